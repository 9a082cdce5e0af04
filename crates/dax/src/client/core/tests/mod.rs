//! The core against scripted peers, and against replicas in a simulated network.

mod peer;
mod scripted;
