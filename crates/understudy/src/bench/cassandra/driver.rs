//! The driver alone, with statements as the block path's.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::Context;
use bytes::Bytes;
use scylla::client::PoolSize;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;

use super::side::{HERE, KEYSPACE};

/// Its rows are of a volume of its own, which nobody else looks at.
const VOLUME: &str = "driver";
/// Blocks in a partition, as the block path has them.
const CHUNK_BLOCKS: i64 = 128;
/// Connections to each node, as the block path has them.
const CONNECTIONS: std::num::NonZeroUsize =
    std::num::NonZeroUsize::new(2).expect("two is not zero");

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Driver(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    session: Session,
    write: PreparedStatement,
    read: PreparedStatement,
    timestamp: AtomicI64,
}

impl Driver {
    /// Connects; the tables are there.
    pub(super) async fn open(contact_points: Vec<String>) -> anyhow::Result<Driver> {
        let near = DefaultPolicy::builder()
            .token_aware(true)
            .permit_dc_failover(true)
            .prefer_datacenter(HERE.to_owned())
            .build();
        let profile = ExecutionProfile::builder().load_balancing_policy(near);
        let builder = SessionBuilder::new()
            .known_nodes(&contact_points)
            .default_execution_profile_handle(profile.build().into_handle())
            .pool_size(PoolSize::PerHost(CONNECTIONS));
        let session = builder.build().await?;
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
            Consistency::Quorum,
        );
        let read = prepare(
            format!(
                "SELECT generation, writetime(data), data FROM {KEYSPACE}.blocks WHERE volume = ? \
                 AND file = ? AND chunk = ? AND block = ? AND generation <= 0 LIMIT 1"
            ),
            Consistency::LocalOne,
        );
        let (write, read) = (write.await?, read.await?);
        Ok(Driver(Arc::new(Inner {
            write,
            read,
            session,
            timestamp: AtomicI64::new(1),
        })))
    }

    /// Writes a row.
    pub(super) async fn commit(&self, client: u16, block: u64, data: Bytes) -> anyhow::Result<()> {
        let inner = &self.0;
        let (file, block) = (i64::from(client), block as i64);
        let timestamp = inner.timestamp.fetch_add(1, Ordering::Relaxed);
        let values = (VOLUME, file, block / CHUNK_BLOCKS, block, data, timestamp);
        inner.session.execute_unpaged(&inner.write, values).await?;
        Ok(())
    }

    /// Reads a row.
    pub(super) async fn read(&self, client: u16, block: u64) -> anyhow::Result<()> {
        let inner = &self.0;
        let (file, block) = (i64::from(client), block as i64);
        let values = (VOLUME, file, block / CHUNK_BLOCKS, block);
        let found = inner.session.execute_unpaged(&inner.read, values).await?;
        let rows = found.into_rows_result()?;
        let row = rows.maybe_first_row::<(i64, i64, Bytes)>()?;
        row.context("a row is not there").map(drop)
    }
}
