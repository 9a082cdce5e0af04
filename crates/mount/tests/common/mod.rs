//! What the tests over real FUSE share: a view in memory, and mounts that clean up.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod fixture;
pub mod ram;
pub mod volume;
