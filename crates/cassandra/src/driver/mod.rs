//! The real surroundings of a client: a session with Cassandra, the machine's clock, tokio's tasks.
//!
//! Owns the session, the prepared statements and what is measured of the nodes. Invariant: each request is one
//! statement with the timestamp that it was given (C1); blocks are written from where they lie in memory.

mod blocks;
mod epochs;
mod nodes;
mod reclaim;
mod records;
mod statements;
mod trace;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dax::error::Result;
use dax::ids::{BlockKey, FileId, Generation, Version, VolumeName};
use dax::storage::Protocol;
use futures_util::future::BoxFuture;
use nix::time::{ClockId, clock_gettime};
use scylla::client::session::Session;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::client::environment::{Asked, Delete, Environment, Found, Look, Seen};
use crate::config::Config;
use crate::connect::connect;
use crate::lease::{Change, Row as EpochRow, Time};
use crate::row::{Chunk, Row};
use crate::schema::{Durability, Replication};
use crate::setup::{self, Opened};
use nodes::Nodes;
use statements::Statements;

pub(crate) struct Driver {
    session: Arc<Session>,
    statements: Statements,
    volume: String,
    keyspace: String,
    runtime: Handle,
    nodes: Arc<Nodes>,
    /// What measures the nodes' distance; ends when this is dropped.
    _measuring: JoinSet<()>,
}

impl Driver {
    /// Connects and opens the volume. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// As [`Client::connect`](crate::Client::connect).
    pub async fn open(config: &Config) -> Result<(Driver, Opened)> {
        let session = Arc::new(connect(config).await?);
        let opened = setup::open(&session, config).await?;
        let kind = (opened.settings.protocol, opened.durability);
        let replication = opened.replication.clone();
        let driver = Driver::on(session, config, kind, replication).await?;
        Ok((driver, opened))
    }

    /// A driver of a volume whose rows may be gone.
    ///
    /// # Errors
    /// As [`Statements::prepare`].
    pub async fn on(
        session: Arc<Session>,
        config: &Config,
        (protocol, durability): (Protocol, Durability),
        replication: Replication,
    ) -> Result<Driver> {
        let statements =
            Statements::prepare(&session, &config.keyspace, protocol, durability).await?;
        let nodes = Arc::new(Nodes::default());
        let mut measuring = JoinSet::new();
        let (of, among) = (Arc::clone(&nodes), Arc::clone(&session));
        measuring.spawn(async move { of.keep_measuring(&among, &replication).await });
        Ok(Driver {
            session,
            statements,
            volume: config.volume.as_str().to_owned(),
            keyspace: config.keyspace.as_str().to_owned(),
            runtime: Handle::current(),
            nodes,
            _measuring: measuring,
        })
    }

    /// The session with the cluster.
    pub fn session(&self) -> &Session {
        &self.session
    }

    fn volume(&self) -> &str {
        &self.volume
    }
}

#[async_trait]
impl Environment for Driver {
    fn boot_time(&self) -> Time {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has this clock");
        Time::from(now)
    }

    async fn sleep(&self, length: Duration) {
        tokio::time::sleep(length).await;
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.runtime.spawn(task);
    }

    async fn write_rows(&self, chunk: Chunk, rows: &[Row]) -> Result<()> {
        self.insert_rows(chunk, rows).await
    }

    async fn write_chunk(&self, chunk: Chunk, version: Version) -> Result<()> {
        self.insert_chunk(chunk, version).await
    }

    async fn read_block(
        &self,
        volume: &VolumeName,
        asked: Asked,
        chunk: Chunk,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Found>> {
        self.select_block(volume, asked, chunk, key, up_to).await
    }

    async fn read_singles(&self, chunk: Chunk, blocks: &[i64]) -> Result<HashMap<i64, Found>> {
        self.select_singles(chunk, blocks).await
    }

    async fn list_rows(&self, volume: &VolumeName, chunk: Chunk) -> Result<Vec<(i64, Generation)>> {
        self.select_rows(volume, chunk).await
    }

    async fn list_chunks(&self, file: FileId) -> Result<Vec<u64>> {
        self.select_chunks(file).await
    }

    async fn scan_chunks(
        &self,
        volume: &VolumeName,
        each: &mut (dyn FnMut(Chunk) + Send),
    ) -> Result<()> {
        self.select_all_chunks(volume, each).await
    }

    async fn delete(&self, what: Delete<'_>, version: Version) -> Result<()> {
        self.delete_from(what, version).await
    }

    async fn write_record(
        &self,
        name: &str,
        version: Version,
        value: Option<&Bytes>,
    ) -> Result<()> {
        self.insert_record(name, version, value).await
    }

    async fn read_record(&self, name: &str) -> Result<(Version, Option<Bytes>)> {
        self.select_record(name).await
    }

    async fn list_records(&self, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        self.select_records(prefix).await
    }

    async fn look(&self, how: Look) -> Result<Option<EpochRow>> {
        self.select_epoch(how).await
    }

    async fn change(&self, change: &Change) -> Result<bool> {
        self.change_epoch(change).await
    }

    fn nodes_of(&self, data_centre: &str) -> Vec<Seen> {
        self.nodes.of(&self.session, data_centre)
    }

    async fn used_mib(&self) -> Result<Option<u64>> {
        self.select_used_mib().await
    }
}
