//! What all operations of a client share: the links, the pending writes, the version list, the epoch.

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, ReplicaId, Version};
use crate::storage::{
    Block, Difference, EpochGrant, Retention, StorageCounters, SyncScope, VolumeSettings,
};
use crate::wire::{BlockWrite, MAX_FILES_PER_REQUEST, Request, Response, checksum};

use super::chores::Chores;
use super::links::Links;
use super::quorum::{Quorums, ReplicaSet};
use super::{Asker, CoreConfig, Effect, Effects, OpId, Output, SyncWait, Time};
#[cfg(test)]
use crate::simulation::flaw::Flaw;
use crate::writer::pending::{Pending, Seq};
use crate::writer::versions::VersionList;
use crate::writer::{IdMap, NodeVersions};

#[derive(Debug)]
pub(super) struct Shared {
    pub config: CoreConfig,
    pub settings: VolumeSettings,
    pub quorums: Quorums,
    pub now: Time,
    pub links: Links,
    pub pending: Pending,
    pub versions: VersionList,
    pub chores: Chores,
    pub counters: StorageCounters,
    pub out: Effects,
    pub syncs: Vec<SyncWait>,
    /// The epoch that this handle owns.
    pub own: Option<Epoch>,
    /// The first epoch it ever owned: versions of lower ones are not its own.
    first_own: Option<Epoch>,
    /// As it calls itself in grants.
    pub owner: String,
    /// Why it must stop, once it must.
    pub fenced: Option<String>,
    pub fence_news: bool,
    /// Something was acknowledged or dropped.
    pub progress: bool,
    /// Versions of records that this handle alone writes, without an epoch.
    pub node_records: NodeVersions,
    /// Blocks with reads or promotions in progress: what is learned of them meanwhile must not be
    /// forgotten, or an answer from before a write would pass as the newest.
    reading: IdMap<BlockKey, u32>,
    /// What was said last to be kept.
    pub retention: Option<Retention>,
    /// Rebuilding replicas that have taken part in the present scrub from its beginning.
    scrubbed: ReplicaSet,
    /// What is broken on purpose.
    #[cfg(test)]
    pub flaw: Option<Flaw>,
    seq: Seq,
    removed_before: IdMap<FileId, BlockIndex>,
}

impl Shared {
    pub fn new(config: CoreConfig, settings: VolumeSettings) -> Shared {
        Shared {
            quorums: Quorums::new(&settings),
            now: Time::ZERO,
            links: Links::new(&config.addresses, &settings),
            pending: Pending::default(),
            versions: VersionList::new(config.version_list_max),
            chores: Chores::default(),
            counters: StorageCounters::default(),
            out: Effects::new(),
            syncs: Vec::new(),
            own: None,
            first_own: None,
            owner: String::new(),
            fenced: None,
            fence_news: false,
            progress: false,
            node_records: NodeVersions::default(),
            reading: IdMap::default(),
            retention: None,
            scrubbed: ReplicaSet::default(),
            #[cfg(test)]
            flaw: None,
            seq: 0,
            removed_before: IdMap::default(),
            config,
            settings,
        }
    }

    /// What a client takes for the newest answer if it compares timestamps alone.
    #[cfg(test)]
    pub fn distort_newest<'a>(
        &self,
        replies: &'a [(ReplicaId, Option<crate::wire::StoredBlock>)],
        newest: Option<&'a crate::wire::StoredBlock>,
    ) -> Option<&'a crate::wire::StoredBlock> {
        match self.flaw {
            Some(Flaw::TimestampsAlone) => {
                let blocks = replies.iter().filter_map(|(_, block)| block.as_ref());
                blocks.max_by_key(|b| (b.generation, b.version.seq))
            }
            _ => newest,
        }
    }

    pub fn done(&mut self, op: OpId, result: Result<Output>) {
        self.out.push(Effect::Done { op, result });
    }

    // --- the epoch -------------------------------------------------------------------------------

    pub fn check_fence(&self) -> Result<()> {
        match self.fenced {
            Some(_) => Err(self.fence_error()),
            None => Ok(()),
        }
    }

    pub fn fence_error(&self) -> Error {
        let why = self.fenced.clone().unwrap_or_default();
        Error::new(ErrorKind::Fenced, why)
    }

    /// The epoch to write under.
    pub fn check_writer(&self) -> Result<Epoch> {
        self.check_fence()?;
        let none = || Error::new(ErrorKind::Invalid, "this handle owns no epoch");
        self.own.ok_or_else(none)
    }

    /// Whether a version was made by this handle.
    pub fn is_own(&self, version: Version) -> bool {
        let epochs = self.first_own.zip(self.own);
        epochs.is_some_and(|(first, last)| (first..=last).contains(&version.epoch))
    }

    /// A replica has accepted this: if it is somebody else's higher epoch, ours is over.
    pub fn observe(&mut self, grant: &EpochGrant) {
        if self.own.is_some_and(|own| grant.epoch > own) && grant.owner != self.owner {
            self.fence(format!(
                "{} of {} fences this writer",
                grant.epoch, grant.owner
            ));
        }
    }

    fn fence(&mut self, why: String) {
        if self.fenced.is_none() && self.own.is_some() {
            self.fenced = Some(why);
            self.fence_news = true;
            self.out.push(Effect::Fenced);
        }
    }

    /// Looks for a higher epoch, or for a writer that must announce itself, in any answer.
    pub fn look_for_fence(&mut self, replica: ReplicaId, reply: &Response) {
        match reply {
            Response::Epoch(grant) | Response::Owned { grant, .. } => self.observe(grant),
            Response::Error {
                kind: ErrorKind::Fenced,
                message,
            } => self.fence(message.clone()),
            Response::Error {
                kind: ErrorKind::Conflict,
                ..
            } => self.announce(replica),
            Response::Block(Some(block)) => self.observe_version(block.version),
            Response::RecordStored { version } => self.observe_version(*version),
            _ => {}
        }
    }

    /// Only the owner of an epoch makes versions of it.
    fn observe_version(&mut self, version: Version) {
        if self.own.is_some_and(|own| version.epoch > own) {
            self.fence(format!("{} has written already", version.epoch));
        }
    }

    /// This handle owns `epoch` from now on.
    pub fn adopt(&mut self, epoch: Epoch, owner: String) {
        self.own = Some(epoch);
        self.links.own();
        self.first_own.get_or_insert(epoch);
        self.owner = owner;
        for replica in self.links.up().iter() {
            self.announce(replica);
            self.pump(replica);
        }
    }

    fn announce(&mut self, replica: ReplicaId) {
        if let Some(epoch) = self.own
            && self.fenced.is_none()
        {
            let request = Request::OwnEpoch {
                epoch,
                owner: self.owner.clone(),
                settled: true,
            };
            self.links.ask(
                replica,
                Asker::Announcement,
                request,
                self.now,
                &mut self.out,
            );
        }
    }

    // --- replicas -----------------------------------------------------------------------------------

    /// A replica is there (again): announce the epoch, then send what it lacks, then the chores.
    pub fn replica_up(&mut self, replica: ReplicaId) {
        self.links.connected(replica, self.now);
        self.announce(replica);
        self.pump(replica);
        self.chores
            .send(replica, self.now, &mut self.links, &mut self.out);
        self.ping(replica);
    }

    /// Whoever trailed is needed at once.
    pub fn replica_down(&mut self, replica: ReplicaId, why: String) {
        self.links.disconnected(replica, why);
        self.links.dismiss_lazy();
        self.pump_all();
    }

    /// A tick: what has waited for it is sent.
    pub fn send_what_waited(&mut self) {
        self.links.choose_lazy(self.quorums.sync, self.now);
        self.send_all_queued(ReplicaSet::first(self.quorums.replicas));
    }

    /// A tick for all but the lazy replicas, who stay what they are.
    #[cfg(test)]
    pub fn send_lingering(&mut self) {
        let all = ReplicaSet::first(self.quorums.replicas);
        self.send_all_queued(all.without(self.links.lazy()));
    }

    fn send_all_queued(&mut self, replicas: ReplicaSet) {
        replicas
            .iter()
            .for_each(|replica| self.send_queued(replica));
    }

    fn ping(&mut self, replica: ReplicaId) {
        self.links
            .ask(replica, Asker::Ping, Request::Ping, self.now, &mut self.out);
    }

    /// Pings; returns the replicas that have been silent for too long.
    pub fn watch_replicas(&mut self) -> ReplicaSet {
        let timeout = self.config.replica_timeout;
        let (ping, silent) = self.links.watch(self.now, timeout / 4, timeout);
        ping.iter().for_each(|replica| self.ping(replica));
        silent
    }

    // --- writes ----------------------------------------------------------------------------------

    pub fn new_version(&mut self) -> Version {
        self.seq += 1;
        #[cfg(test)]
        if self.flaw == Some(Flaw::TimestampsAlone) {
            // Clocks of different machines differ.
            let skew = u64::from(crc32c::crc32c(self.owner.as_bytes()) % 50);
            self.seq = self.seq.max(self.now.as_millis() as u64 + skew);
        }
        Version {
            epoch: self.own.unwrap_or_default(),
            seq: self.seq,
        }
    }

    /// The last version given.
    pub fn last_seq(&self) -> Seq {
        self.seq
    }

    /// Makes versions from now on higher than one that was seen.
    pub fn skip_past(&mut self, version: Version) {
        if self.own == Some(version.epoch) {
            self.seq = self.seq.max(version.seq);
        }
    }

    pub fn write(&mut self, key: BlockKey, generation: Generation, data: Bytes) -> Result<Version> {
        self.check_writer()?;
        // Shorter if it is packed.
        if !(1..=self.settings.block_size_bytes as usize).contains(&data.len()) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("a write of {} bytes is not one block", data.len()),
            ));
        }
        let version = self.new_version();
        #[cfg(test)]
        let generation = match (self.flaw, self.pending.read(key, Generation::MAX)) {
            (Some(Flaw::GenerationsMerged), Some(pending)) => pending.generation,
            _ => generation,
        };
        let checksum = checksum(key, generation, version, &data);
        let (replicas, bytes) = (ReplicaSet::first(self.quorums.replicas), data.len());
        self.pending
            .add(key, generation, version, checksum, data, replicas);
        self.evict_versions();
        self.versions.written(key, generation, version);
        self.counters.writes += 1;
        self.links.write(version.seq, bytes, replicas);
        self.pump_all();
        Ok(version)
    }

    /// Makes room in the version list.
    pub fn evict_versions(&mut self) {
        let pinned = self.pending.keys().chain(self.reading.keys().copied());
        #[cfg(test)]
        let pinned = pinned.filter(|_| self.flaw != Some(Flaw::PendingEvicted));
        self.versions.evict(pinned);
    }

    pub fn begin_read(&mut self, key: BlockKey) {
        *self.reading.entry(key).or_default() += 1;
    }

    pub fn end_read(&mut self, key: BlockKey) {
        if let Some(count) = self.reading.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.reading.remove(&key);
            }
        }
    }

    fn pump_all(&mut self) {
        let replicas = ReplicaSet::first(self.quorums.replicas);
        replicas.iter().for_each(|replica| self.pump(replica));
    }

    /// Sends what fits, unless it can wait.
    fn pump(&mut self, replica: ReplicaId) {
        match self.links.can_wait(replica) {
            true => self.links.flush(replica, &mut self.out),
            false => self.send_queued(replica),
        }
    }

    fn send_queued(&mut self, replica: ReplicaId) {
        let Some(epoch) = self.own.filter(|_| self.fenced.is_none()) else {
            return;
        };
        self.links.pump(
            replica,
            epoch,
            &mut self.pending,
            self.quorums,
            &mut self.out,
        );
    }

    pub fn acked(&mut self, replica: ReplicaId, upto: u64) {
        let Quorums { sync, .. } = self.quorums;
        let counting = self.links.counting();
        #[cfg(test)]
        let sync = match self.flaw {
            Some(Flaw::SyncedAtOne) => 1,
            _ => sync,
        };
        for seq in self.links.acked(replica, upto, self.now) {
            self.pending.ack(seq, replica, counting, sync);
        }
        self.pending.tidy();
        self.progress = true;
        self.pump(replica);
    }

    // --- scrub -----------------------------------------------------------------------------------

    /// A scrub starts at the beginning.
    pub fn begin_scrub(&mut self) {
        self.scrubbed = self.links.admitted();
        self.scrubbed
            .iter()
            .for_each(|replica| self.links.forget_unknown(replica));
    }

    /// These took part in the present page.
    pub fn scrub_answered(&mut self, answered: ReplicaSet) {
        self.scrubbed = self.scrubbed.intersection(answered);
    }

    /// A replica that was away has seen the scrub with a gap.
    pub fn scrub_lost(&mut self, replica: ReplicaId) {
        self.scrubbed.remove(replica);
    }

    /// The rebuilding replicas that a whole scrub has looked at.
    pub fn end_scrub(&mut self) -> ReplicaSet {
        std::mem::take(&mut self.scrubbed).intersection(self.links.rebuilding())
    }

    /// Whether a newer write of the block is on its way to the replica, or the block is gone.
    pub fn is_underway(&self, d: &Difference) -> bool {
        let removed = self.removed_before.get(&d.key.file);
        removed.is_some_and(|first| d.key.block < *first)
            || self.pending.is_underway(d.replica, d.key, d.generation)
    }

    /// Sends a replica a block that it missed, as it was written.
    pub fn send_repair(&mut self, replica: ReplicaId, key: BlockKey, block: Block) {
        let Ok(epoch) = self.check_writer() else {
            return;
        };
        let Block {
            version,
            generation,
            data,
        } = block;
        #[cfg(test)]
        let version = match self.flaw {
            Some(Flaw::RepairAsNewVersion) => self.new_version(),
            _ => version,
        };
        let write = BlockWrite {
            epoch,
            key,
            generation,
            version,
            checksum: checksum(key, generation, version, &data),
            data,
        };
        self.counters.copies_mended += 1;
        self.links.repair(replica, write, &mut self.out);
    }

    pub fn write_refused(
        &mut self,
        replica: ReplicaId,
        number: u64,
        kind: ErrorKind,
        message: String,
    ) {
        match kind {
            ErrorKind::Fenced => self.fence(message),
            ErrorKind::Conflict => {
                self.announce(replica);
                self.links.refused(replica, number, message, self.now);
            }
            _ => self.links.refused(replica, number, message, self.now),
        }
    }

    pub fn wake_refused(&mut self) {
        for replica in self.links.wake_refused(self.now).iter() {
            self.pump(replica);
        }
    }

    /// Whether `bytes` more may be pending; gives up what replicas that are away lack, if that helps.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        let max = self.config.pending_bytes_max;
        if self.pending.is_empty() || self.pending.bytes() + bytes <= max {
            return true;
        }
        // Give up more than needed now, so that the search is not repeated for every write.
        let enough = bytes.max(max / 8);
        let away = self.links.away(self.now, self.config.replica_timeout * 2);
        for write in self.pending.give_up(away, enough) {
            self.links.dropped(&write, true);
        }
        self.pending.is_empty() || self.pending.bytes() + bytes <= max
    }

    pub fn drop_writes(&mut self) {
        self.pending.clear();
        self.links.clear();
    }

    // --- sync points -----------------------------------------------------------------------------

    pub fn start_sync(&mut self, op: OpId, scope: SyncScope) {
        let (file, upto) = match scope {
            SyncScope::Volume => (None, self.seq),
            SyncScope::File(file) => (Some(file), self.seq),
            SyncScope::FileUpTo(file, version) if self.is_own(version) => {
                (Some(file), version.seq.min(self.seq))
            }
            SyncScope::FileUpTo(file, _) => (Some(file), 0),
        };
        self.wait_synced(op, file, upto);
    }

    /// Completes the operation with `Synced` once everything up to `upto` is on k replicas.
    pub fn wait_synced(&mut self, op: OpId, file: Option<FileId>, upto: Seq) {
        if !self.pending.is_synced(file, upto) {
            self.links.want_flush(upto);
            self.pump_all();
        }
        self.syncs.push(SyncWait { op, file, upto });
        self.progress = true;
    }

    /// The operations whose sync is complete.
    pub fn complete_syncs(&mut self) -> Vec<OpId> {
        let pending = &mut self.pending;
        let complete = self
            .syncs
            .extract_if(.., |w| pending.is_synced(w.file, w.upto));
        complete.map(|w| w.op).collect()
    }

    // --- reads without a message -----------------------------------------------------------------

    /// Answers from `sync_pending`, and from the list where it knows that there is nothing.
    pub fn read_at_once(&mut self, key: BlockKey, up_to: Generation) -> Option<Option<Block>> {
        if self.own.is_none() || self.fenced.is_some() {
            return None;
        }
        let removed = self.removed_before.get(&key.file);
        if removed.is_some_and(|first| key.block < *first) {
            return Some(None);
        }
        let known = self.versions.get(key, up_to);
        if let Some(block) = self.pending.read(key, up_to)
            && known.is_none_or(|k| k.version <= block.version)
        {
            self.counters.reads_pending += 1;
            return Some(Some(block));
        }
        let absent = known.is_some_and(|k| k.version == Version::ZERO);
        (absent && self.settings.protocol.is_optimistic()).then_some(None)
    }

    // --- removal ---------------------------------------------------------------------------------

    pub fn chore(&mut self, op: OpId, request: Request) {
        let replicas = ReplicaSet::first(self.quorums.replicas);
        self.chores.add(op, request, replicas);
        for replica in self.links.up().iter() {
            self.chores
                .send(replica, self.now, &mut self.links, &mut self.out);
        }
    }

    pub fn remove_files(&mut self, op: OpId, epoch: Epoch, files: &[FileId]) {
        let removed: std::collections::HashSet<FileId> = files.iter().copied().collect();
        self.drop_removed(|file, _| removed.contains(&file));
        for file in files {
            self.removed_before.remove(file);
        }
        for files in files.chunks(MAX_FILES_PER_REQUEST) {
            let files = files.to_vec();
            self.chore(op, Request::RemoveFiles { epoch, files });
        }
    }

    pub fn remove_blocks_before(
        &mut self,
        op: OpId,
        epoch: Epoch,
        file: FileId,
        block: BlockIndex,
    ) {
        self.drop_removed(|f, b| f == file && b < block);
        let first = self.removed_before.entry(file).or_default();
        *first = block.max(*first);
        self.chore(op, Request::RemoveBlocksBefore { epoch, file, block });
    }

    fn drop_removed(&mut self, removed: impl Fn(FileId, BlockIndex) -> bool) {
        self.links.forget_missed(&removed);
        for write in self.pending.drop_removed(removed) {
            self.links.dropped(&write, false);
        }
        self.progress = true;
    }

    pub fn chore_reply(&mut self, replica: ReplicaId, number: u64, reply: &Response) -> Vec<OpId> {
        let done = !matches!(reply, Response::Error { .. });
        self.chores.replied(replica, number, done)
    }
}
