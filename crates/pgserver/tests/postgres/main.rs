//! The supervisor against a real PostgreSQL on a plain directory.

#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod commits;
mod common;
mod leftovers;
mod lifetime;
