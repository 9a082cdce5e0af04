//! The backend: a [`Storage`] over Cassandra.
//!
//! Owns the session, a [`Writer`] behind a lock, the gate and the tasks. Invariants: nothing is acknowledged
//! without having passed the gate after it was durable; effects of the writer are carried out under its lock.

mod epochs;
mod gate;
mod gather;
mod nodes;
mod reads;
mod reclaim;
mod records;
mod status;
mod trace;
mod writes;

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dax::error::{Error, ErrorKind, Result};
use dax::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, NodeName, ReplicaId, Version};
use dax::storage::{
    Authority, Block, Difference, EpochGrant, ReplicaStatus, Retention, ScrubCursor, ScrubPage,
    Space, Storage, StorageCounters, SyncScope, VolumeSettings,
};
use dax::writer::SyncWaits;
use dax::writer::packing::unpack;
use parking_lot::Mutex;
use scylla::client::session::Session;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;

use crate::config::{Config, Fencing};
use crate::connect::{connect, describe};
use crate::lease::Sighting;
use crate::schema::Replication;
use crate::setup;
use crate::statements::Statements;
use crate::writer::{Limits, Writer};
use gate::Gate;
use gather::Gathering;
use nodes::RoundTrips;

/// The first wait before a failed request is made again, and the longest.
const RETRY_MIN: Duration = Duration::from_millis(5);
const RETRY_MAX: Duration = Duration::from_millis(500);

/// A volume's storage in Cassandra. Dropping it ends its tasks; writes that were not synced may or may
/// not survive.
pub struct Client {
    inner: Arc<Inner>,
    /// What is done for the epoch that is owned.
    tasks: Mutex<JoinSet<()>>,
    /// What measures the nodes' distance; ends when this is dropped.
    _measuring: JoinSet<()>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("volume", &self.inner.config.volume)
            .field("epoch", &self.epoch())
            .finish_non_exhaustive()
    }
}

struct Inner {
    config: Config,
    settings: VolumeSettings,
    replication: Replication,
    session: Session,
    statements: Statements,
    runtime: Handle,
    /// Makes this life of the node differ from its earlier ones.
    incarnation: u64,
    claims: AtomicU64,
    state: Mutex<State>,
    gate: Gate,
    /// What was seen of the epoch row, and since when.
    sighting: Mutex<Option<Sighting>>,
    fenced: watch::Sender<bool>,
    closed: watch::Sender<bool>,
    trouble: Mutex<Option<String>>,
    round_trips: RoundTrips,
    retention: Mutex<Option<Retention>>,
    reclaim: Notify,
    gathering: Gathering,
}

/// What the lock protects.
struct State {
    writer: Writer,
    /// The name in the epoch row under which this handle owns its epoch.
    me: String,
    syncs: SyncWaits<oneshot::Sender<()>>,
    rooms: VecDeque<(usize, oneshot::Sender<()>)>,
    /// What may be sent will be, in a moment.
    pumping: bool,
}

impl Client {
    /// Opens a volume: checks the keyspace and the tables, waits while too few nodes answer. Must be called
    /// inside a tokio runtime, which the client's tasks then use.
    ///
    /// # Errors
    /// `NotFound` if there is no such volume; `Conflict` if something was changed that breaks a guarantee,
    /// with what to ALTER; `Denied` for the user.
    pub async fn connect(config: Config) -> Result<Arc<Client>> {
        let session = connect(&config).await?;
        let opened = setup::open(&session, &config).await?;
        let keyspace = &config.keyspace;
        let protocol = opened.settings.protocol;
        let statements =
            Statements::prepare(&session, keyspace, protocol, opened.durability).await?;
        let limits = Limits {
            pending_bytes_max: config.pending_bytes_max,
            version_list_max: config.version_list_max,
            requests_max: config.requests_max,
        };
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|e| {
            Error::with_source(
                ErrorKind::Unavailable,
                "the system gives no random numbers",
                e,
            )
        })?;
        let inner = Arc::new(Inner {
            gate: Gate::new(config.fencing),
            settings: opened.settings.clone(),
            replication: opened.replication,
            session,
            statements,
            runtime: Handle::current(),
            incarnation: u64::from_le_bytes(random),
            claims: AtomicU64::new(0),
            state: Mutex::new(State {
                writer: Writer::new(opened.settings, limits),
                me: String::new(),
                syncs: SyncWaits::default(),
                rooms: VecDeque::new(),
                pumping: false,
            }),
            sighting: Mutex::new(None),
            fenced: watch::Sender::new(false),
            closed: watch::Sender::new(false),
            trouble: Mutex::new(None),
            round_trips: RoundTrips::default(),
            retention: Mutex::new(None),
            reclaim: Notify::new(),
            gathering: Gathering::default(),
            config,
        });
        let mut measuring = JoinSet::new();
        measuring.spawn(Arc::clone(&inner).keep_measuring());
        Ok(Arc::new(Client {
            _measuring: measuring,
            inner,
            tasks: Mutex::new(JoinSet::new()),
        }))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.inner.closed.send_replace(true);
    }
}

impl Inner {
    fn volume(&self) -> &str {
        self.config.volume.as_str()
    }

    /// A block as it was written.
    fn unpacked(&self, found: Option<Block>) -> Result<Option<Block>> {
        let Some(mut block) = found else {
            return Ok(None);
        };
        block.data = unpack(block.data, self.settings.block_size_bytes as usize)?;
        Ok(Some(block))
    }

    fn check_fence(&self) -> Result<()> {
        self.state.lock().writer.handle.check_fence()
    }

    fn check_writer(&self) -> Result<Epoch> {
        self.state.lock().writer.handle.check_writer()
    }

    fn next_version(&self) -> Result<Version> {
        self.state.lock().writer.next_version()
    }

    /// This handle stops for good. Whoever waits is told.
    fn fence(&self, why: String) {
        let mut state = self.state.lock();
        if !state.writer.fence(why.clone()) {
            return;
        }
        state.syncs.clear();
        state.rooms.clear();
        drop(state);
        tracing::warn!(why, "this writer has stopped for good");
        self.fenced.send_replace(true);
    }

    /// Only the owner of an epoch makes versions of it.
    fn observe(&self, version: Version) -> Result<()> {
        if self.state.lock().writer.handle.is_overtaken_by(version) {
            self.fence(format!("{} has written already", version.epoch));
        }
        self.check_fence()
    }

    async fn wait_fenced(&self) {
        let mut fenced = self.fenced.subscribe();
        // The sender lives as long as `self`.
        let _ = fenced.wait_for(|fenced| *fenced).await;
    }

    async fn wait_closed(&self) {
        let mut closed = self.closed.subscribe();
        let _ = closed.wait_for(|closed| *closed).await;
    }

    /// Tries until Cassandra carries it out or refuses it; ends with `Fenced` as soon as that is known.
    async fn persist<T, F>(&self, attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.check_fence()?;
        tokio::select! {
            biased;
            () = self.wait_fenced() => {
                self.check_fence()?;
                Err(Error::new(ErrorKind::Fenced, "a higher epoch exists"))
            }
            result = self.insist(attempt) => result,
        }
    }

    /// The same also for who is fenced.
    async fn insist<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut wait = RETRY_MIN;
        loop {
            match attempt().await {
                Ok(result) => {
                    self.note(None);
                    return Ok(result);
                }
                Err(error) if error.kind() == ErrorKind::Unavailable => self.note(Some(&error)),
                Err(error) => return Err(error),
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.wait_closed() => {
                    return Err(Error::new(ErrorKind::Unavailable, "the client is closing"));
                }
            }
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    /// Remembers what is wrong for the status.
    fn note(&self, error: Option<&Error>) {
        let mut trouble = self.trouble.lock();
        match error {
            None => *trouble = None,
            Some(error) => {
                let why = describe(error);
                if trouble.is_none() {
                    tracing::info!(why, "Cassandra does not carry out a request; trying again");
                }
                *trouble = Some(why);
            }
        }
    }
}

#[async_trait]
impl Storage for Client {
    fn settings(&self) -> &VolumeSettings {
        &self.inner.settings
    }

    fn epoch(&self) -> Option<Epoch> {
        self.inner.state.lock().writer.handle.epoch()
    }

    async fn accepted_epoch(&self) -> Result<EpochGrant> {
        self.inner.accepted_epoch().await
    }

    async fn confirm(&self) -> Result<Epoch> {
        self.inner.pass_gate().await?;
        self.inner.check_writer()
    }

    async fn own_epoch(&self, owner: &NodeName) -> Result<Epoch> {
        self.tasks.lock().abort_all();
        let epoch = self.inner.own_epoch(owner).await?;
        let mut tasks = self.tasks.lock();
        let runtime = &self.inner.runtime;
        tasks.spawn_on(Arc::clone(&self.inner).keep_epoch(), runtime);
        tasks.spawn_on(Arc::clone(&self.inner).keep_reclaiming(), runtime);
        Ok(epoch)
    }

    fn is_leased(&self) -> bool {
        matches!(self.inner.config.fencing, Fencing::Lease(_))
    }

    async fn release(&self) -> Result<()> {
        self.inner.release().await
    }

    fn next_version(&self) -> Result<Version> {
        self.inner.next_version()
    }

    fn write(&self, key: BlockKey, generation: Generation, data: Bytes) -> Result<Version> {
        self.inner.write(key, generation, data)
    }

    async fn write_room(&self, bytes: usize) -> Result<()> {
        self.inner.write_room(bytes).await
    }

    async fn csync(&self, scope: SyncScope) -> Result<()> {
        self.inner.csync(scope).await
    }

    async fn read(&self, key: BlockKey, up_to: Generation) -> Result<Option<Block>> {
        let found = self.inner.read(key, up_to).await?;
        self.inner.unpacked(found)
    }

    async fn read_expected(
        &self,
        key: BlockKey,
        up_to: Generation,
        version: Version,
    ) -> Result<Option<Block>> {
        let found = self.inner.read_expected(key, up_to, version).await?;
        self.inner.unpacked(found)
    }

    async fn read_promote(&self, key: BlockKey) -> Result<Option<Block>> {
        let found = self.inner.read_promote(key).await?;
        self.inner.unpacked(found)
    }

    async fn put_record(&self, name: &str, value: Bytes, authority: Authority) -> Result<()> {
        self.inner.put_record(name, Some(value), authority).await
    }

    async fn get_record(&self, name: &str) -> Result<Option<Bytes>> {
        self.inner.get_record(name).await
    }

    async fn promote_record(&self, name: &str) -> Result<Option<Bytes>> {
        self.inner.promote_record(name).await
    }

    async fn list_records(&self, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        self.inner.list_records(prefix).await
    }

    async fn remove_record(&self, name: &str, authority: Authority) -> Result<()> {
        self.inner.put_record(name, None, authority).await
    }

    async fn retain(&self, retention: Retention) -> Result<()> {
        self.inner.retain(retention).await
    }

    async fn remove_files(&self, files: &[FileId]) -> Result<()> {
        self.inner.remove_files(files).await
    }

    async fn remove_blocks_before(&self, file: FileId, block: BlockIndex) -> Result<()> {
        self.inner.remove_blocks_before(file, block).await
    }

    async fn scrub(&self, _after: Option<ScrubCursor>) -> Result<ScrubPage> {
        self.inner.scrub().await
    }

    /// Nothing: comparing copies is the work of Cassandra's repair.
    async fn mend(&self, _differences: Vec<Difference>) -> Result<()> {
        self.inner.check_writer().map(drop)
    }

    async fn end_scrub(&self) -> Result<Vec<ReplicaId>> {
        self.inner.check_writer().map(|_| Vec::new())
    }

    async fn space(&self) -> Result<Space> {
        self.inner.space().await
    }

    fn replicas(&self) -> Vec<ReplicaStatus> {
        self.inner.replicas()
    }

    fn counters(&self) -> StorageCounters {
        self.inner.state.lock().writer.handle.counters.clone()
    }

    async fn fenced(&self) {
        self.inner.wait_fenced().await;
    }
}
