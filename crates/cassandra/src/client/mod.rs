//! The backend: a [`Storage`] over Cassandra.
//!
//! Owns a [`Writer`] behind a lock, the gate and the tasks. Whatever is outside of it (Cassandra, clocks, tokio) is its
//! [`Environment`]. Invariants: nothing is acknowledged without having passed the gate after it was durable; effects of
//! the writer are carried out under its lock; nothing here is random, so that a simulated history can be repeated.

mod below;
pub(crate) mod environment;
mod epochs;
mod gate;
mod gather;
pub(crate) mod reads;
mod reclaim;
mod records;
mod status;
mod writes;

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dax::error::{Error, ErrorKind, Result, describe};
use dax::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, NodeName, ReplicaId, Version};
use dax::layer::Layer;
use dax::storage::{
    Authority, Block, Difference, EpochGrant, Prepared, ReplicaStatus, Retention, ScrubCursor,
    ScrubPage, Space, Storage, StorageCounters, SyncScope, VolumeSettings,
};
use dax::writer::SyncWaits;
use dax::writer::packing::pack;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};

use crate::config::{Config, Fencing};
use crate::driver::Driver;
use crate::lease::Sighting;
use crate::row::{self, Chunk};
use crate::schema::Replication;
use crate::setup::Opened;
#[cfg(test)]
use crate::simulation::Flaw;
use crate::writer::{Limits, Writer};
use environment::Environment;
use gate::Gate;
use gather::Gathering;
use records::Turns;

/// The first wait before a failed request is made again, and the longest.
const RETRY_MIN: Duration = Duration::from_millis(5);
const RETRY_MAX: Duration = Duration::from_millis(500);

/// A volume's storage in Cassandra. Dropping it ends its tasks; writes that were not synced may or may
/// not survive.
pub struct Client {
    inner: Arc<Inner>,
    /// What is done for the epoch that is owned.
    tasks: Mutex<Vec<Task>>,
}

/// A task that ends when this is dropped.
struct Task(#[expect(dead_code, reason = "the task notices that it is gone")] oneshot::Sender<()>);

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
    /// The volumes below, the next one first.
    layers: Vec<Layer>,
    environment: Arc<dyn Environment>,
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
    turns: Turns,
    retention: Mutex<Option<Retention>>,
    reclaim: Notify,
    gathering: Gathering,
    /// A rule that is left out: the simulation must notice.
    #[cfg(test)]
    flaw: Option<Flaw>,
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
        let (driver, opened) = Driver::open(&config).await?;
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|e| {
            Error::with_source(
                ErrorKind::Unavailable,
                "the system gives no random numbers",
                e,
            )
        })?;
        let incarnation = u64::from_le_bytes(random);
        let inner = Inner::new(Arc::new(driver), opened, config, incarnation);
        Ok(Client::of(inner))
    }

    fn of(inner: Inner) -> Arc<Client> {
        Arc::new(Client {
            inner: Arc::new(inner),
            tasks: Mutex::new(Vec::new()),
        })
    }

    /// A client in a simulated environment.
    #[cfg(test)]
    pub(crate) fn simulated(
        environment: Arc<dyn Environment>,
        (opened, config): (Opened, Config),
        incarnation: u64,
        flaw: Option<Flaw>,
    ) -> Arc<Client> {
        let mut inner = Inner::new(environment, opened, config, incarnation);
        inner.flaw = flaw;
        Client::of(inner)
    }

    /// What was seen of the epoch row, and since when.
    #[cfg(test)]
    pub(crate) fn sighting(&self) -> Option<Sighting> {
        self.inner.sighting.lock().clone()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.inner.closed.send_replace(true);
    }
}

impl Inner {
    /// `incarnation` makes this life of the node differ from its earlier ones.
    fn new(
        environment: Arc<dyn Environment>,
        opened: Opened,
        config: Config,
        incarnation: u64,
    ) -> Inner {
        let limits = Limits {
            pending_bytes_max: config.pending_bytes_max,
            version_list_max: config.version_list_max,
            requests_max: config.requests_max,
        };
        Inner {
            gate: Gate::new(config.fencing),
            settings: opened.settings.clone(),
            replication: opened.replication,
            layers: opened.layers,
            environment,
            incarnation,
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
            turns: Turns::default(),
            retention: Mutex::new(None),
            reclaim: Notify::new(),
            gathering: Gathering::default(),
            config,
            #[cfg(test)]
            flaw: None,
        }
    }

    #[cfg(test)]
    fn has_flaw(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.environment.spawn(Box::pin(task));
    }

    /// Runs a task that ends with what is returned.
    fn begin_task(&self, task: impl Future<Output = ()> + Send + 'static) -> Task {
        let (wanted, unwanted) = oneshot::channel();
        self.spawn(async move {
            tokio::select! {
                biased;
                // Nothing is ever sent.
                _ = unwanted => {}
                () = task => {}
            }
        });
        Task(wanted)
    }

    fn chunk_of(&self, key: BlockKey) -> Chunk {
        let chunk = row::chunk_of(key.block.0, self.settings.block_size_bytes);
        (key.file, chunk)
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
                biased;
                () = self.wait_closed() => {
                    return Err(Error::new(ErrorKind::Unavailable, "the client is closing"));
                }
                () = self.environment.sleep(wait) => {}
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
        self.tasks.lock().clear();
        let epoch = self.inner.own_epoch(owner).await?;
        let keeping = self.inner.begin_task(Arc::clone(&self.inner).keep_epoch());
        let reclaiming = self
            .inner
            .begin_task(Arc::clone(&self.inner).keep_reclaiming());
        self.tasks.lock().extend([keeping, reclaiming]);
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

    fn prepare(&self, _key: BlockKey, generation: Generation, data: Bytes) -> Prepared {
        match data.len() == self.settings().block_size_bytes as usize {
            true => Prepared::packed(data.clone(), generation, pack(data).into()),
            // The write refuses it.
            false => Prepared::plain(data),
        }
    }

    fn write_prepared(
        &self,
        key: BlockKey,
        generation: Generation,
        block: Prepared,
    ) -> Result<Version> {
        match block.contents(generation) {
            Ok(contents) => self.inner.write_packed(key, generation, contents.data),
            Err(data) => self.inner.write(key, generation, data),
        }
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
