//! Files over blocks: the namespace and its journal, generations and seals, and the two views of a
//! volume that can be mounted, the active's and a standby's.
//!
//! This room knows nothing of PostgreSQL: which class a path belongs to is told to it through
//! [`layout::Layout`], and what happens around a checkpoint is decided in `pgdata`.

pub mod active;
mod bytes_file;
pub mod cache;
pub mod claim;
pub mod error;
pub mod image;
pub mod journal;
pub mod latest;
pub mod layout;
pub mod lists;
pub mod lsn;
pub mod namespace;
pub mod private;
pub mod recent_log;
pub mod scrubber;
pub mod seal;
pub mod snapshot;
pub mod standby;
pub mod view;
