//! Files over blocks: the namespace and its journal, generations and seals, and the two views of a
//! volume that can be mounted, the active's and a standby's.
//!
//! ```text
//!   active's view ──── writes ──▶ blocks of the open generation ──┐
//!     │ namespace ──▶ journal                                     │ cut, sync
//!     │                                                           ▼
//!     └─────────────────────────────────────────── seal: an image of the whole volume
//!                                                                 │
//!   standby's view = that image, below an overlay of its own ◀────┘  + the live log up to the replay limit
//! ```
//!
//! Invariants:
//! - only the owner of the volume's epoch changes blocks, journal and seals; what a standby writes stays in its overlay
//!   until it owns an epoch itself;
//! - a seal is put when everything of its generation is durable, and what it names is never changed afterwards;
//! - what a seal, a claim, a pin or the [`past`] needs is not given back.
//!
//! This room knows nothing of PostgreSQL: which class a path belongs to is told to it through
//! [`layout::Layout`], and what happens around a checkpoint is decided in `pgdata`.
//!
//! A new volume has one seal, of an image in which there is only the root directory:
//!
//! ```
//! use std::sync::Arc;
//!
//! use dax::ids::NodeName;
//! use dax::memory::MemoryCluster;
//! use dax::storage::{Storage, VolumeSettings};
//! use volume::latest::format;
//! use volume::seal::{Base, load_seals};
//! use volume::view::{Ownership, Timestamp};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let cluster = MemoryCluster::new(VolumeSettings::default());
//! let storage: Arc<dyn Storage> = cluster.client();
//! storage.own_epoch(&NodeName::new("north")?).await?;
//! let root = Ownership { mode: 0o700, uid: 1000, gid: 1000 };
//! let seal = format(&storage, root, Timestamp(0)).await?;
//! assert_eq!(load_seals(&storage).await?, [seal.clone()]);
//! let base = Base::load(&storage, &seal).await?;
//! assert_eq!(base.namespace.directories().count(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod active;
mod bytes_file;
pub mod cache;
pub mod claim;
pub mod error;
#[cfg(test)]
mod golden_test;
pub mod image;
pub mod journal;
pub mod latest;
pub mod layered;
pub mod layout;
pub mod lists;
pub mod log_history;
pub mod log_syncs;
pub mod lsn;
pub mod namespace;
pub mod past;
pub mod private;
pub mod recent_log;
pub mod seal;
pub mod snapshot;
pub mod standby;
pub mod view;
pub mod waiting;
