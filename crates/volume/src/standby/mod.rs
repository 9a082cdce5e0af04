//! A standby's view: a sealed generation under a private overlay, and the live log up to the
//! horizon (design section 4).
//!
//! [`state`] is the pure core: one immutable value that every operation looks at once.
//! [`overlay`] is what the standby's PostgreSQL changed, [`ops`] and [`contents`] how it changes;
//! [`blocks`] and [`spill`] keep the contents of changed blocks.

mod blocks;
mod contents;
mod gate;
mod ops;
mod overlay;
mod spill;
mod state;
mod fetch;

#[cfg(test)]
mod state_test;
#[cfg(test)]
mod testing;
