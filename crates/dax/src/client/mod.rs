//! The client of the embedded replica servers.
//!
//! Owns the connections to all replicas and one pure `core` behind a lock. Invariant: nothing here
//! decides anything; it moves messages, time and results between the core and the world.

mod connection;
pub(crate) mod core;
mod driver;
mod entries;
mod greeting;
mod outbox;
mod removal;
mod setup;
mod stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::task::JoinSet;

use crate::credentials::VolumeKey;
use crate::error::{Error, ErrorKind, Result};
use crate::forms::Forms;
use crate::ids::ReplicaId;
use crate::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, NodeName, Version, VolumeName};
use crate::membership::{Change, Membership};
use crate::storage::{
    Authority, Block, Difference, EpochGrant, Prepared, ReplicaStatus, Retention, ScrubCursor,
    ScrubPage, Space, Storage, StorageCounters, SyncScope, Usage, VolumeSettings,
};
use crate::tls::Tls;
use crate::writer::differences::{Contents, Differences};
use crate::writer::packing::{pack, unpack};
use crate::writer::tails::Tails;
use core::{Call, Core, CoreConfig, Output};
use driver::Driver;
use greeting::Introduction;

pub use entries::{Identity, identify};
pub use removal::remove_volume;
pub use setup::create_volume;

/// How often the core hears that time has passed.
const TICK: Duration = Duration::from_millis(20);

/// What a client needs to know.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// The volume to open.
    pub volume: VolumeName,
    /// Addresses of replicas: `host:port` or `unix:/path`. One that answers tells who all of the volume's members are.
    /// To make a volume, and as long as its members are not recorded: one per replica, zone by zone.
    pub replicas: Vec<String>,
    /// For the zone servers' logs.
    pub client_name: String,
    /// The zone that this client is in, as the servers' network file names it; only matters to servers
    /// that emulate distances. Default none: no distance.
    pub zone: Option<String>,
    /// The volume's key, if the zones have a secret. Then zones that cannot prove to know it are
    /// refused. Default none.
    pub key: Option<VolumeKey>,
    /// What protects connections to `host:port`; those to `unix:/path` stay on this machine. Default
    /// none: plaintext, which is for this machine only.
    pub tls: Option<Tls>,
    /// Bytes of blocks that may wait for acknowledgements before writers wait. Default 64 MiB.
    pub pending_bytes_max: usize,
    /// Bytes of blocks that are remembered as they were, so that only what changed of them is sent. 0 sends all blocks
    /// whole. Default 0.
    pub differences_bytes_max: usize,
    /// Entries of the version list. Default 262,144 (2 GiB of 8 KiB blocks).
    pub version_list_max: usize,
    /// A replica that is silent for so long is taken as down. Default 2 s. A connection that breaks
    /// counts at once.
    pub replica_timeout: Duration,
}

impl ClientConfig {
    /// The defaults.
    pub fn new(
        volume: VolumeName,
        replicas: Vec<String>,
        client_name: impl Into<String>,
    ) -> ClientConfig {
        ClientConfig {
            volume,
            replicas,
            client_name: client_name.into(),
            zone: None,
            key: None,
            tls: None,
            pending_bytes_max: 64 << 20,
            differences_bytes_max: 0,
            version_list_max: 1 << 18,
            replica_timeout: Duration::from_secs(2),
        }
    }
}

/// A volume's storage in embedded replica servers. Dropping it closes the connections; writes that were
/// not synced may or may not survive.
pub struct Client {
    driver: Arc<Driver>,
    /// What pages were, so that only differences of them are sent.
    differences: Differences,
    tails: Tails,
    /// Which forms may be written.
    forms: AtomicU32,
    /// Makes this life of the node differ from its earlier ones.
    incarnation: u64,
    /// Ends with the client.
    _tasks: JoinSet<()>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("volume", &self.driver.introduction.volume)
            .field("epoch", &self.epoch())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Opens a volume: returns once one replica has said how it is laid out, and waits for that. Must be
    /// called inside a tokio runtime, which the client's tasks then use.
    ///
    /// # Errors
    /// `NotFound` or `Denied` if a majority of the replicas does not know the volume, or refuses the
    /// key or is refused for lack of it; `Invalid` if the number of replicas is not the volume's
    /// number of replicas, or one of them is not one of the volume's recorded members and never was; `Protocol` if
    /// something else answers.
    pub async fn connect(config: ClientConfig) -> Result<Arc<Client>> {
        let introduction = Introduction::new(&config);
        let (settings, membership) = setup::find_volume(&config.replicas, &introduction).await?;
        if let Some(members) = &membership {
            entries::check(&config.replicas, members, &introduction).await?;
        }
        let core_config = CoreConfig {
            addresses: config.replicas,
            membership,
            pending_bytes_max: config.pending_bytes_max,
            version_list_max: config.version_list_max,
            sightings_every: core::SIGHTINGS_EVERY,
            replica_timeout: config.replica_timeout,
        };
        let core = Core::new(core_config, settings);
        let (driver, dials) = Driver::new(core, introduction);
        let driver = Arc::new(driver);
        driver.begin();
        let mut tasks = JoinSet::new();
        tasks.spawn(connection::keep_all_connected(Arc::clone(&driver), dials));
        tasks.spawn(tick(Arc::clone(&driver)));
        Ok(Arc::new(Client {
            driver,
            differences: Differences::new(config.differences_bytes_max),
            tails: Tails::default(),
            forms: AtomicU32::new(Forms::default().0),
            incarnation: random(),
            _tasks: tasks,
        }))
    }

    fn block_bytes(&self) -> usize {
        self.driver.settings().block_size_bytes as usize
    }

    /// A block as it was written.
    fn unpacked(&self, found: Option<Block>) -> Result<Option<Block>> {
        let Some(mut block) = found else {
            return Ok(None);
        };
        block.data = unpack(block.data, self.block_bytes())?;
        Ok(Some(block))
    }

    fn check_length(&self, data: &Bytes) -> Result<()> {
        match data.len() == self.block_bytes() {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Invalid,
                format!("a write of {} bytes is not one block", data.len()),
            )),
        }
    }

    /// A block as it is kept, and what of that zones have already.
    fn packed(&self, key: BlockKey, generation: Generation, data: Bytes) -> Contents {
        let parts = Forms(self.forms.load(Ordering::Relaxed)).allows_parts();
        match generation {
            _ if !parts => pack(data).into(),
            // Ends of the log, the journal, and configuration.
            Generation::SINGLE => self.tails.pack(key, data),
            _ => self.differences.pack(key, generation, data),
        }
    }

    async fn call<T>(&self, call: Call, take: impl FnOnce(Output) -> Option<T>) -> Result<T> {
        let mismatch = || Error::new(ErrorKind::Protocol, "an operation gave another's result");
        take(self.driver.call(call).await?).ok_or_else(mismatch)
    }
}

async fn tick(driver: Arc<Driver>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        driver.tick();
    }
}

/// A number that no other incarnation has: the standard library's per-process random keys.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

fn unit(output: Output) -> Option<()> {
    matches!(output, Output::Unit).then_some(())
}

fn block(output: Output) -> Option<Option<Block>> {
    match output {
        Output::Block(block) => Some(block),
        _ => None,
    }
}

fn record(output: Output) -> Option<Option<Bytes>> {
    match output {
        Output::Record(value) => Some(value),
        _ => None,
    }
}

#[async_trait]
impl Storage for Client {
    fn settings(&self) -> &VolumeSettings {
        self.driver.settings()
    }

    fn epoch(&self) -> Option<Epoch> {
        self.driver.peek(Core::epoch)
    }

    async fn accepted_epoch(&self) -> Result<EpochGrant> {
        self.call(Call::AcceptedEpoch, |output| match output {
            Output::Grant(grant) => Some(grant),
            _ => None,
        })
        .await
    }

    async fn confirm(&self) -> Result<Epoch> {
        self.call(Call::Confirm, |output| match output {
            Output::Epoch(epoch) => Some(epoch),
            _ => None,
        })
        .await
    }

    async fn own_epoch(&self, owner: &NodeName) -> Result<Epoch> {
        let owner = format!("{owner}/{:016x}", self.incarnation);
        self.call(Call::OwnEpoch { owner }, |output| match output {
            Output::Epoch(epoch) => Some(epoch),
            _ => None,
        })
        .await
    }

    fn use_forms(&self, forms: Forms) {
        self.forms.store(forms.0, Ordering::Relaxed);
    }

    fn next_version(&self) -> Result<Version> {
        self.driver.next_version()
    }

    fn write(&self, key: BlockKey, generation: Generation, data: Bytes) -> Result<Version> {
        self.check_length(&data)?;
        let contents = self.packed(key, generation, data);
        self.driver.write(key, generation, contents)
    }

    fn prepare(&self, key: BlockKey, generation: Generation, data: Bytes) -> Prepared {
        match data.len() == self.block_bytes() {
            true => {
                let contents = self.packed(key, generation, data.clone());
                Prepared::packed(data, generation, contents)
            }
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
            Ok(contents) => self.driver.write(key, generation, contents),
            Err(data) => self.write(key, generation, data),
        }
    }

    async fn write_room(&self, bytes: usize) -> Result<()> {
        if self.driver.has_room(bytes) {
            return Ok(());
        }
        self.call(Call::Room(bytes), unit).await
    }

    async fn csync(&self, scope: SyncScope) -> Result<()> {
        self.call(Call::Sync(scope), unit).await
    }

    async fn read(&self, key: BlockKey, up_to: Generation) -> Result<Option<Block>> {
        if let Some(answer) = self.driver.read_at_once(key, up_to) {
            return self.unpacked(answer);
        }
        let found = self.call(Call::Read { key, up_to }, block).await?;
        self.unpacked(found)
    }

    async fn read_expected(
        &self,
        key: BlockKey,
        up_to: Generation,
        version: Version,
    ) -> Result<Option<Block>> {
        let call = Call::ReadExpected {
            key,
            up_to,
            version,
        };
        let found = self.call(call, block).await?;
        self.unpacked(found)
    }

    async fn read_promote(&self, key: BlockKey) -> Result<Option<Block>> {
        let found = self.call(Call::Promote(key), block).await?;
        self.unpacked(found)
    }

    async fn put_record(&self, name: &str, value: Bytes, authority: Authority) -> Result<()> {
        let call = Call::PutRecord {
            name: name.to_owned(),
            value: Some(value),
            authority,
        };
        self.call(call, unit).await
    }

    async fn get_record(&self, name: &str) -> Result<Option<Bytes>> {
        self.call(Call::GetRecord(name.to_owned()), record).await
    }

    async fn promote_record(&self, name: &str) -> Result<Option<Bytes>> {
        self.call(Call::PromoteRecord(name.to_owned()), record)
            .await
    }

    async fn list_records(&self, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        self.call(
            Call::ListRecords(prefix.to_owned()),
            |output| match output {
                Output::Records(records) => Some(records),
                _ => None,
            },
        )
        .await
    }

    async fn remove_record(&self, name: &str, authority: Authority) -> Result<()> {
        let call = Call::PutRecord {
            name: name.to_owned(),
            value: None,
            authority,
        };
        self.call(call, unit).await
    }

    async fn retain(&self, retention: Retention) -> Result<()> {
        self.call(Call::Retain(retention), unit).await
    }

    async fn remove_files(&self, files: &[FileId]) -> Result<()> {
        self.call(Call::RemoveFiles(files.to_vec()), unit).await
    }

    async fn remove_blocks_before(&self, file: FileId, block: BlockIndex) -> Result<()> {
        self.call(Call::RemoveBlocksBefore(file, block), unit).await
    }

    async fn scrub(&self, after: Option<ScrubCursor>) -> Result<ScrubPage> {
        self.call(Call::Scrub(after), |output| match output {
            Output::Scrubbed(page) => Some(page),
            _ => None,
        })
        .await
    }

    async fn mend(&self, differences: Vec<Difference>) -> Result<()> {
        self.call(Call::Mend(differences), unit).await
    }

    async fn end_scrub(&self) -> Result<Vec<ReplicaId>> {
        let rebuilt = self.call(Call::EndScrub, |output| match output {
            Output::Rebuilt(replicas) => Some(replicas),
            _ => None,
        });
        let rebuilt = rebuilt.await?;
        // Who joins has been sent everything now.
        let ended = self.call(Call::FinishChange, |output| match output {
            Output::Ended(ended) => Some(ended),
            _ => None,
        });
        if ended.await? {
            tracing::info!("the exchange of zones is complete");
        }
        Ok(rebuilt)
    }

    fn membership(&self) -> Option<Membership> {
        self.driver.peek(|core| core.membership().cloned())
    }

    async fn change_members(&self, change: Change) -> Result<()> {
        self.call(Call::ChangeMembers(change), unit).await
    }

    async fn cancel_change(&self) -> Result<()> {
        self.call(Call::CancelChange, unit).await
    }

    async fn space(&self) -> Result<Space> {
        self.call(Call::Space, |output| match output {
            Output::Space(space) => Some(space),
            _ => None,
        })
        .await
    }

    async fn usage(&self) -> Result<Vec<(ReplicaId, Usage)>> {
        self.call(Call::Usage, |output| match output {
            Output::Usage(usage) => Some(usage),
            _ => None,
        })
        .await
    }

    fn replicas(&self) -> Vec<ReplicaStatus> {
        self.driver.peek(Core::replicas)
    }

    fn counters(&self) -> StorageCounters {
        self.driver.peek(|core| core.counters().clone())
    }

    async fn fenced(&self) {
        self.driver.fenced().await;
    }
}

#[cfg(test)]
mod tests;
