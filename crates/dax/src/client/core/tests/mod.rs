//! The core against scripted peers, and against replicas in a simulated network.

mod blocks;
mod desk;
mod epochs;
mod judge;
mod others;
pub(crate) mod peer;
mod scrub;
mod simulation;
mod variants;
mod world;
