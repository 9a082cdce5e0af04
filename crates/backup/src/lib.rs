//! Backups: images of a volume and its log, kept outside of the zones, and a data directory made of them.
//!
//! ```text
//!   zones ── source: a claimed image, and the log behind it ──▶ create ──▶ repository ──▶ restore ──▶ a data directory
//!                                                                  │           │
//!                                               archive: the log, ─┘           └──▶ verify: all of it is there, and is
//!                                               again and again                     what was written
//!                                                              expire: what no rule keeps goes
//! ```
//!
//! An image is what a seal names, so it never changes while it is copied, and the active's PostgreSQL has no part in it.
//! It is copied by contents: what the repository has already is not written again, and what was not written since the image
//! before is not even read.
//!
//! Invariants: an object of the repository is written once, under a name that says what is in it, and what is read is
//! compared with that; an image is in the repository when its manifest is, which is written last; a restore ends where it
//! was asked to end, or is an error.

pub mod archive;
pub mod beneath;
pub mod branch;
pub mod changes;
pub mod config;
pub mod create;
pub mod drill;
pub mod error;
pub mod expire;
pub mod log;
pub mod manifest;
mod place;
pub mod repository;
pub mod restore;
#[cfg(test)]
mod simulation;
pub mod source;
pub mod timeline;
pub mod tip;
pub mod verify;
