//! The driver alone, with statements as the block path's: with the block path's consistency, or as the
//! baselines of DAX 7.1.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::Context;
use bytes::Bytes;
use scylla::client::session::Session;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;

use super::KEYSPACE;

/// Blocks in a partition, as the block path has them.
const CHUNK_BLOCKS: i64 = 128;

/// How many copies a request waits for. Every write waits when it is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// As the report calls it.
    pub name: &'static str,
    /// Its rows are of a volume of its own, which nobody else looks at.
    volume: &'static str,
    write: Consistency,
    read: Consistency,
}

/// What the block path waits for: a read that the block path's versions would have to vouch for.
pub(super) const SAME: Rules = Rules {
    name: "driver",
    volume: "driver",
    write: Consistency::Quorum,
    read: Consistency::LocalOne,
};

/// DAX 7.1: Write(ALL) and Read(1). No copy may be down.
pub(super) const BASELINE_1: Rules = Rules {
    name: "baseline_1",
    volume: "baseline_1",
    write: Consistency::All,
    read: Consistency::LocalOne,
};

/// DAX 7.1: Write(QUORUM) and Read(QUORUM).
pub(super) const BASELINE_2: Rules = Rules {
    name: "baseline_2",
    volume: "baseline_2",
    write: Consistency::Quorum,
    read: Consistency::Quorum,
};

#[derive(Debug, Clone)]
pub(super) struct Driver(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    session: Arc<Session>,
    rules: Rules,
    write: PreparedStatement,
    read: PreparedStatement,
    timestamp: AtomicI64,
}

impl Driver {
    /// Prepares what it needs; the tables are there.
    pub(super) async fn open(session: &Arc<Session>, rules: Rules) -> anyhow::Result<Driver> {
        let prepare = async |text: String, consistency| {
            let mut statement = session.prepare(text).await?;
            statement.set_consistency(consistency);
            statement.set_is_idempotent(true);
            anyhow::Ok(statement)
        };
        let write = prepare(
            format!(
                "INSERT INTO {KEYSPACE}.blocks (volume, file, chunk, block, generation, data) \
                 VALUES (?, ?, ?, ?, 0, ?) USING TIMESTAMP ?"
            ),
            rules.write,
        );
        let read = prepare(
            format!(
                "SELECT generation, writetime(data), data FROM {KEYSPACE}.blocks WHERE volume = ? \
                 AND file = ? AND chunk = ? AND block = ? AND generation <= 0 LIMIT 1"
            ),
            rules.read,
        );
        Ok(Driver(Arc::new(Inner {
            session: Arc::clone(session),
            rules,
            write: write.await?,
            read: read.await?,
            timestamp: AtomicI64::new(1),
        })))
    }

    /// As the report calls it.
    pub(super) fn name(&self) -> &'static str {
        self.0.rules.name
    }

    /// Writes a row, and waits for as many copies as the rules say.
    pub(super) async fn write(&self, client: u16, block: u64, data: Bytes) -> anyhow::Result<()> {
        let inner = &self.0;
        let (file, block) = (i64::from(client), block as i64);
        let timestamp = inner.timestamp.fetch_add(1, Ordering::Relaxed);
        let volume = inner.rules.volume;
        let values = (volume, file, block / CHUNK_BLOCKS, block, data, timestamp);
        inner.session.execute_unpaged(&inner.write, values).await?;
        Ok(())
    }

    /// Reads a row, of as many copies as the rules say.
    pub(super) async fn read(&self, client: u16, block: u64) -> anyhow::Result<()> {
        let inner = &self.0;
        let (file, block) = (i64::from(client), block as i64);
        let values = (inner.rules.volume, file, block / CHUNK_BLOCKS, block);
        let found = inner.session.execute_unpaged(&inner.read, values).await?;
        let rows = found.into_rows_result()?;
        let row = rows.maybe_first_row::<(i64, i64, Bytes)>()?;
        row.context("a row is not there").map(drop)
    }
}
