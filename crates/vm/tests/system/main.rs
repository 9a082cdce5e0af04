//! Whole machines: made, booted, checkpointed, moved. Run with `make test-system`; they need root.
//!
//! Each test works in a directory of its own below `UNDERSTUDY_TEST_DIR` (or the temporary directory) and leaves it
//! there only when it fails. Images are made once, and kept below the target directory.

#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod checkpoints;
mod images;
mod stage;
