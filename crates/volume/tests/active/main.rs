//! The active's side of a volume against models: what a seal holds, what a crash leaves, what a
//! fence stops.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod common;
mod concurrency;
mod crash;
mod holes;
mod inherit;
mod journal;
mod model;
mod names;
mod ordered;
mod past;
mod past_model;
mod seals;
mod yielding;
