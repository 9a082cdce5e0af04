//! A database server of any kind on a volume, restarted where the storage is when its machine is lost: DAX's own
//! way (sections 2 and 6), beside the warm standbys that PostgreSQL gets from crate `node`.
//!
//! ```text
//!   configuration ──▶ recipe (how MariaDB, or a configured command, is made, started, found ready, stopped)
//!                        │
//!   registry ──▶ machine (pure) ──▶ agent ──▶ storage (epoch) ──▶ volume (active view) ──▶ mount
//!                  what this node is   │                                                     │
//!                                      └──▶ server: a child process ─── reads and writes ────┘
//! ```
//!
//! Invariants:
//! - the server runs only while this node owns the volume's epoch, and is killed as soon as a higher one is known;
//!   what it writes later is refused by the zones whatever it does;
//! - `fsync` on the mount returns when k zones have what was written before (CSync, DAX 4), and every file keeps
//!   single versions (ReadPromote, DAX 5): after a takeover the server finds what a disk would have after a power
//!   failure, and recovers as it does then;
//! - a block is written whole or not at all. A page that fits a block is therefore never torn.
//!
//! A recipe is plain data:
//!
//! ```
//! use engine::recipe::Places;
//!
//! let places = Places { data: "/mnt/volume".into(), run: "/run/x".into(), tmp: "/tmp/x".into() };
//! let command = ["/usr/bin/keydb-server", "--dir", "{data}"].map(str::to_owned);
//! let server = places.expand(&command).expect("a program");
//! assert_eq!(server.arguments, ["--dir", "/mnt/volume"]);
//! ```

pub mod agent;
pub mod config;
mod error;
pub mod init;
pub mod layout;
pub mod machine;
pub mod recipe;
mod server;
mod version;

pub use error::{EngineError, Result};
