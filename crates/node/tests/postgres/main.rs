//! The supervisor against a real PostgreSQL on a plain directory.

mod common;
mod leftovers;
mod lifetime;
