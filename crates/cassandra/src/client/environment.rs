//! What surrounds a client: Cassandra, clocks, and whoever runs its tasks.
//!
//! ```text
//!   client (what is asked, in which order, and when that is acknowledged) ──▶ Environment ──┬── driver: a session, tokio
//!                                                                                           └── simulation: virtual time
//! ```
//!
//! Nothing here decides: each request is made once, as it is, and its failure is told. So the order of write, gate and
//! acknowledgement that is simulated is the one that runs. Futures are boxed; that costs far less than a request.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dax::error::Result;
use dax::ids::{BlockIndex, BlockKey, FileId, Generation, Version, VolumeName};
use futures_util::future::BoxFuture;

use crate::lease::{self, Change, Time};
use crate::row::{Chunk, Row};

/// A row of a block as it was read: its checksum was not looked at yet.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub generation: Generation,
    pub version: Version,
    pub cell: Bytes,
}

/// How many replicas answer a read of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    One,
    /// A quorum, which has what was read when it is here.
    Quorum,
    All,
}

/// How the epoch row is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// What a quorum has: every change that was answered before.
    Quorum,
    /// After whatever was under way is completed or buried.
    Settled,
}

/// Ranges of generations of blocks, by the columns' values, ends included.
pub(crate) type Ranges<'a> = &'a [(i64, (i64, i64))];

/// What a delete takes away, where it is not newer than the delete.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Delete<'a> {
    /// These generations of a chunk's blocks.
    Generations(Chunk, Ranges<'a>),
    /// The blocks of a chunk before this one.
    BlocksBefore(Chunk, BlockIndex),
    /// All blocks of a chunk.
    Chunk(Chunk),
    /// The notes that the file has the chunks before this one.
    NotesBefore(Chunk),
    /// The notes of all chunks of a file.
    Notes(FileId),
}

/// A node of the cluster as it looks from here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seen {
    pub address: String,
    pub up: bool,
    pub round_trip: Option<Duration>,
}

/// See the module. All requests are about one volume; blocks are read and listed of those below as well.
///
/// # Errors
/// `Unavailable` where it is not known whether a request was, or will be, carried out: making it again is right.
#[async_trait]
pub(crate) trait Environment: Send + Sync + 'static {
    /// Time since this machine was started, also while it slept (L6).
    fn boot_time(&self) -> Time;

    /// Ends after so long.
    async fn sleep(&self, length: Duration);

    /// Runs a task beside the others.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Writes blocks of one partition together, each with its version, where a sync wants them.
    async fn write_rows(&self, chunk: Chunk, rows: &[Row]) -> Result<()>;

    /// Notes that a file has a chunk.
    async fn write_chunk(&self, chunk: Chunk, version: Version) -> Result<()>;

    /// The newest version that a volume, the own one or one below, has of a block in a generation up to this one.
    async fn read_block(
        &self,
        volume: &VolumeName,
        asked: Asked,
        chunk: Chunk,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Found>>;

    /// What a quorum has of these blocks of a chunk, which keep one version.
    async fn read_singles(&self, chunk: Chunk, blocks: &[i64]) -> Result<HashMap<i64, Found>>;

    /// Which rows a chunk of a volume has: block and generation.
    async fn list_rows(&self, volume: &VolumeName, chunk: Chunk) -> Result<Vec<(i64, Generation)>>;

    /// Which chunks a file has.
    async fn list_chunks(&self, file: FileId) -> Result<Vec<u64>>;

    /// Which chunks all files of a volume have.
    async fn scan_chunks(
        &self,
        volume: &VolumeName,
        each: &mut (dyn FnMut(Chunk) + Send),
    ) -> Result<()>;

    /// Deletes what is not newer than this version.
    async fn delete(&self, what: Delete<'_>, version: Version) -> Result<()>;

    /// Writes a record; no value: that it is removed.
    async fn write_record(&self, name: &str, version: Version, value: Option<&Bytes>)
    -> Result<()>;

    /// What a quorum has of a record, with its version; the lowest if there is none.
    async fn read_record(&self, name: &str) -> Result<(Version, Option<Bytes>)>;

    /// All records whose names begin like this.
    async fn list_records(&self, prefix: &str) -> Result<Vec<(String, Bytes)>>;

    /// What the epoch row says.
    async fn look(&self, how: Look) -> Result<Option<lease::Row>>;

    /// Changes the epoch row if it is as expected; whether it was.
    async fn change(&self, change: &Change) -> Result<bool>;

    /// The nodes of a data centre, by address.
    fn nodes_of(&self, data_centre: &str) -> Vec<Seen>;

    /// What the node that answers stores for the whole keyspace; none if it does not tell.
    async fn used_mib(&self) -> Result<Option<u64>>;
}
