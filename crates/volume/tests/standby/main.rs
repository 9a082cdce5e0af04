//! The standby view over real storage: what it shows, what a takeover makes of it.

mod database;
mod model;
mod rules;
mod support;
mod takeover;
