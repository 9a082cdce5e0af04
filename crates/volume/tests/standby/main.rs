//! The standby view over real storage: what it shows, what a takeover makes of it.
#![allow(clippy::unwrap_used)] // tests fail by panicking

mod asleep;
mod database;
mod model;
mod moving;
mod prefetch;
mod reads;
mod rules;
mod support;
mod takeover;
