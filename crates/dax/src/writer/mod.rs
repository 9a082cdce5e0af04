//! What a volume's one writer remembers, whatever its blocks are kept in: [`Handle`], with [`pending`], the
//! writes that are not everywhere yet (DAX 4), and [`versions`], what a read must return (DAX 3.1);
//! [`Reading`], what answers a read; [`SyncWaits`], who waits for writes; [`NodeVersions`], for records
//! without an epoch; and [`packing`], the form blocks are kept in.
//!
//! Pure. Shared by the backends: the client of zone servers and the one of Apache Cassandra.

pub mod differences;
mod handle;
mod hash;
mod node_versions;
pub mod packing;
pub mod pending;
mod reading;
mod replica_set;
mod syncs;
pub mod tails;
pub mod versions;

pub use handle::Handle;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use hash::IdHasher;
pub use hash::IdMap;
pub use node_versions::NodeVersions;
pub use reading::Reading;
pub use replica_set::ReplicaSet;
pub use syncs::SyncWaits;
