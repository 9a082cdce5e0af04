//! The core against scripted peers, and against replicas in a simulated network.

mod judge;
mod peer;
mod scripted;
mod simulation;
mod world;
