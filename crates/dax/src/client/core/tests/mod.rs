//! The core against scripted peers, one situation at a time; [`crate::simulation`] has the rest.

mod blocks;
mod epochs;
pub(super) mod harness;
mod lazy;
mod lingering;
mod others;
pub(crate) mod peer;
mod refusals;
mod scrub;
mod variants;
