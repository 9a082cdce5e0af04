//! What all operations of a client share: the links, the pending writes, the version list, the epoch.

use std::collections::{BTreeMap, HashSet};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, ReplicaId, StoreId, Version};
use crate::membership::Membership;
use crate::sightings::{Sighting, Sightings};
use crate::storage::{Block, Difference, EpochGrant, Retention, SyncScope, VolumeSettings};
use crate::wire::{BlockWrite, MAX_FILES_PER_REQUEST, Request, Response, checksum};

use super::broadcasts::Broadcasts;
use super::links::Links;
use super::quorum::{Quorums, ReplicaSet};
use super::{Asker, CoreConfig, Effect, Effects, OpId, Output, Time};
#[cfg(test)]
use crate::simulation::flaw::Flaw;
use crate::writer::differences::Contents;
use crate::writer::pending::{Dropped, Seq};
use crate::writer::{Handle, SyncWaits};

/// Why a writer stops whose own copy of a write is not what it was.
const CHANGED: &str = "a block that waits to be written has changed in this process's memory: this writer stops, and \
                       another one takes over from what is durable; check this machine's memory";

#[derive(Debug)]
pub(super) struct Shared {
    pub config: CoreConfig,
    pub settings: VolumeSettings,
    pub quorums: Quorums,
    pub now: Time,
    pub links: Links,
    /// What this handle knows without a replica.
    pub handle: Handle,
    pub broadcasts: Broadcasts,
    pub out: Effects,
    pub syncs: SyncWaits<OpId>,
    /// As it calls itself in grants.
    pub owner: String,
    pub fence_news: bool,
    /// Something was acknowledged or dropped.
    pub progress: bool,
    /// What was said last to be kept.
    pub retention: Option<Retention>,
    /// Who counts, if that is recorded.
    pub membership: Option<Membership>,
    /// A newer membership is gone by: what was asked must be asked again.
    pub members_news: bool,
    /// What others have seen of stores, and what was told last.
    pub sightings: Sightings,
    /// What this owner has seen itself.
    pub seen: BTreeMap<StoreId, Sighting>,
    /// Something of both was not told yet, whatever the time.
    pub sightings_news: bool,
    /// When the stores are told next.
    pub sightings_due: Time,
    /// Rebuilding replicas that have taken part in the present scrub from its beginning.
    scrubbed: ReplicaSet,
    /// Replicas that a whole scrub of this handle has looked at.
    pub compared: ReplicaSet,
    /// What is broken on purpose.
    #[cfg(test)]
    pub flaw: Option<Flaw>,
}

impl Shared {
    pub fn new(mut config: CoreConfig, settings: VolumeSettings) -> Shared {
        let membership = config.membership.take();
        if membership.is_some() {
            config.addresses.clear();
        }
        let mut shared = Shared {
            quorums: Quorums::new(&settings),
            now: Time::ZERO,
            links: Links::new(&config.addresses, &settings),
            handle: Handle::new(&settings, config.version_list_max),
            broadcasts: Broadcasts::default(),
            out: Effects::new(),
            syncs: SyncWaits::default(),
            owner: String::new(),
            fence_news: false,
            progress: false,
            retention: None,
            membership: None,
            members_news: false,
            sightings: Sightings::default(),
            seen: BTreeMap::new(),
            sightings_news: false,
            sightings_due: Time::ZERO,
            scrubbed: ReplicaSet::default(),
            compared: ReplicaSet::default(),
            #[cfg(test)]
            flaw: None,
            config,
            settings,
        };
        match membership {
            Some(membership) => shared.go_by(membership),
            None => shared.links.everybody().iter().for_each(|replica| {
                let address = shared.links.address(replica).to_owned();
                shared.out.push(Effect::Dial { replica, address });
            }),
        }
        shared
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

    /// Makes sure that what waits to be written of a block, and will be read, has not changed in memory since.
    ///
    /// # Errors
    /// `Fenced`: this writer stops.
    pub fn check_pending(&mut self, key: BlockKey, up_to: Generation) -> Result<()> {
        if !self.handle.pending.is_read_intact(key, up_to) && !self.keeps_what_changed() {
            self.fence(CHANGED.to_owned());
        }
        self.handle.check_fence()
    }

    /// A replica has accepted this: if it is somebody else's higher epoch, ours is over.
    pub fn observe(&mut self, grant: &EpochGrant) {
        if self.handle.epoch().is_some_and(|own| grant.epoch > own) && grant.owner != self.owner {
            self.fence(format!(
                "{} of {} fences this writer",
                grant.epoch, grant.owner
            ));
        }
    }

    fn fence(&mut self, why: String) {
        if self.handle.fence(why) {
            self.fence_news = true;
            let why = self.handle.check_fence().err();
            let why = why.map_or_else(String::new, |why| why.to_string());
            self.out.push(Effect::Fenced { why });
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

    pub fn observe_version(&mut self, version: Version) {
        if self.handle.is_overtaken_by(version) {
            self.fence(format!("{} has written already", version.epoch));
        }
    }

    /// This handle owns `epoch` from now on.
    pub fn adopt(&mut self, epoch: Epoch, owner: String) {
        self.handle.adopt(epoch);
        self.links.own();
        self.owner = owner;
        for replica in self.links.up().iter() {
            self.announce(replica);
            self.pump(replica);
        }
    }

    fn announce(&mut self, replica: ReplicaId) {
        if let Ok(epoch) = self.handle.check_writer() {
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

    /// A replica lost its disk: what it has acknowledged is there no more, and is sent again.
    pub fn forget_acks(&mut self, replica: ReplicaId) {
        #[cfg(test)]
        if self.flaw == Some(Flaw::LostAcksCount) {
            return;
        }
        let owed = self.handle.pending.owe(replica);
        self.links.owe(replica, &owed);
    }

    /// True if a replica counts in quorums. What it acknowledged while it was being rebuilt counts once it does.
    pub fn set_rebuilding(&mut self, replica: ReplicaId, rebuilding: bool) {
        let was = self.links.set_rebuilding(replica, rebuilding);
        if was && !rebuilding {
            self.judge_pending();
        }
    }

    /// A replica is there (again): announce the epoch, then send what it lacks, then the broadcasts.
    pub fn replica_up(&mut self, replica: ReplicaId, reads: crate::forms::Forms) {
        self.links.connected(replica, reads, self.now);
        #[cfg(test)]
        let late = self.flaw == Some(Flaw::UnadmittedReads);
        #[cfg(not(test))]
        let late = false;
        if !late {
            self.announce(replica);
        }
        self.pump(replica);
        self.broadcasts
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
        #[cfg(test)]
        if self.flaw == Some(Flaw::UnadmittedReads) && self.now.as_millis() % 900 < 20 {
            let late = self.links.up().without(self.links.admitted());
            late.iter().for_each(|replica| self.announce(replica));
        }
        self.links.choose_lazy(self.quorums.sync(), self.now);
        self.send_all_queued(self.links.everybody());
    }

    /// A tick for all but the lazy replicas, who stay what they are.
    #[cfg(test)]
    pub fn send_lingering(&mut self) {
        let all = self.links.everybody();
        self.send_all_queued(all.without(self.links.lazy()));
    }

    fn send_all_queued(&mut self, replicas: ReplicaSet) {
        replicas
            .iter()
            .for_each(|replica| self.send_queued(replica));
    }

    /// A store is met in a new run: the others are asked, so that those who know better of it say so.
    pub fn ask_who_knows(&mut self, replica: ReplicaId) {
        let mut others = self.links.up();
        others.remove(replica);
        others.iter().for_each(|other| self.ping(other));
        self.prove();
    }

    /// True if it is certain by now of somebody that it has lost nothing: what it acknowledged counts.
    pub fn prove(&mut self) {
        let quorums = self.quorums;
        if self.links.prove(|those| quorums.is_epoch(those)) {
            self.judge_pending();
        }
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
        #[cfg(test)]
        if self.flaw == Some(Flaw::TimestampsAlone) {
            // Clocks of different machines differ.
            let skew = u64::from(crc32c::crc32c(self.owner.as_bytes()) % 50);
            self.handle.skip_past(Version {
                epoch: self.handle.epoch().unwrap_or_default(),
                seq: (self.now.as_millis() as u64 + skew).saturating_sub(1),
            });
        }
        self.handle.next_version()
    }

    pub fn write(
        &mut self,
        key: BlockKey,
        generation: Generation,
        contents: Contents,
    ) -> Result<Version> {
        self.handle.check_writer()?;
        // Shorter if it is packed.
        if !(1..=self.settings.block_size_bytes as usize).contains(&contents.data.len()) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("a write of {} bytes is not one block", contents.data.len()),
            ));
        }
        let version = self.new_version();
        #[cfg(test)]
        let generation = match (self.flaw, self.handle.pending.read(key, Generation::MAX)) {
            (Some(Flaw::GenerationsMerged), Some(pending)) => pending.generation,
            _ => generation,
        };
        let (replicas, bytes) = (self.links.everybody(), contents.data.len());
        self.handle.counters.writes_onto += u64::from(contents.base.is_some());
        self.handle
            .store(version, key, generation, contents, replicas);
        self.handle.counters.writes += 1;
        self.links.write(version.seq, bytes, replicas);
        self.pump_all();
        Ok(version)
    }

    fn pump_all(&mut self) {
        let replicas = self.links.everybody();
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
        let Ok(epoch) = self.handle.check_writer() else {
            return;
        };
        // Between two memberships, whoever has everything must have each write that was durable.
        let may_skip = self.quorums.sync().is_some();
        self.links.pump(
            replica,
            epoch,
            &mut self.handle.pending,
            may_skip,
            &mut self.out,
        );
    }

    /// True if those who have acknowledged a write make it durable, as far as they count now.
    pub fn enough(&self) -> impl Fn(ReplicaSet) -> bool + Copy + use<> {
        let (quorums, counting) = (self.quorums, self.links.counting());
        let enough = move |acked: ReplicaSet| quorums.is_synced(acked.intersection(counting));
        #[cfg(test)]
        let at_one = self.flaw == Some(Flaw::SyncedAtOne);
        #[cfg(test)]
        let enough = move |acked| enough(acked) || at_one;
        enough
    }

    pub fn acked(&mut self, replica: ReplicaId, upto: u64) {
        let enough = self.enough();
        for seq in self.links.acked(replica, upto, self.now) {
            let links = &mut self.links;
            if let Some(entry) = self.handle.pending.get(seq) {
                links.took(replica, entry.key, entry.generation);
            }
            self.handle.acked(seq, replica, enough, |covered, bytes| {
                links.covered(replica, covered, bytes);
            });
        }
        self.handle.pending.tidy();
        self.progress = true;
        self.pump(replica);
    }

    // --- scrub -----------------------------------------------------------------------------------

    /// A scrub starts at the beginning.
    pub fn begin_scrub(&mut self) {
        self.scrubbed = self.links.admitted();
        for replica in self.scrubbed.iter() {
            if self.links.misses_unknown(replica) {
                self.compared.remove(replica);
            }
            self.links.forget_unknown(replica);
        }
    }

    /// These took part in the present page.
    pub fn scrub_answered(&mut self, answered: ReplicaSet) {
        self.scrubbed = self.scrubbed.intersection(answered);
    }

    /// A replica that does nothing for so long is not waited for.
    fn stuck(&self) -> Time {
        self.config.replica_timeout * 2
    }

    /// True if the replica has refused something for long: nobody waits for what it lacks.
    pub fn refuses(&self, replica: ReplicaId) -> bool {
        #[cfg(test)]
        if self.flaw == Some(Flaw::RefusedForEver) {
            return false;
        }
        self.links.refuses(replica, self.now, self.stuck())
    }

    /// Writes that a replica has refused for long, and that are durable without it, are held for it no more: it misses
    /// them, and gets them when it takes them again.
    fn give_up_refused(&mut self) {
        #[cfg(test)]
        if self.flaw == Some(Flaw::RefusedForEver) {
            return;
        }
        let stuck = self.stuck();
        for replica in self.links.up().iter() {
            let pending = &mut self.handle.pending;
            for seq in self.links.refused_for(replica, pending, self.now, stuck) {
                if let Some(write) = pending.give_up_for(seq, replica) {
                    self.links.dropped(&write, true);
                    self.progress = true;
                }
            }
        }
    }

    /// A replica that was away has seen the scrub with a gap.
    pub fn scrub_lost(&mut self, replica: ReplicaId) {
        self.scrubbed.remove(replica);
    }

    /// The rebuilding replicas that a whole scrub has looked at.
    pub fn end_scrub(&mut self) -> ReplicaSet {
        let scrubbed = std::mem::take(&mut self.scrubbed);
        self.compared = self.compared.union(scrubbed);
        scrubbed.intersection(self.links.rebuilding())
    }

    /// True if a newer write of the block is on its way to the replica, or the block is gone.
    pub fn is_underway(&self, d: &Difference) -> bool {
        self.handle.is_removed(d.key)
            || self
                .handle
                .pending
                .is_underway(d.replica, d.key, d.generation)
    }

    /// Sends a replica a block that it missed, as it was written.
    pub fn send_repair(&mut self, replica: ReplicaId, key: BlockKey, block: Block) {
        let Ok(epoch) = self.handle.check_writer() else {
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
            base: None,
            data,
        };
        self.handle.counters.copies_mended += 1;
        self.links.repair(replica, write, &mut self.out);
    }

    pub fn write_refused(
        &mut self,
        replica: ReplicaId,
        number: u64,
        kind: ErrorKind,
        message: String,
    ) {
        if kind == ErrorKind::Fenced {
            return self.fence(message);
        }
        if kind == ErrorKind::Conflict {
            self.announce(replica);
        }
        if kind == ErrorKind::NotFound {
            self.send_whole(replica, number);
            return;
        }
        if kind == ErrorKind::Corrupt
            && let Some(seq) = self.links.sent_as(replica, number)
            && !self.handle.pending.is_intact(seq)
            && !self.keeps_what_changed()
        {
            return self.fence(CHANGED.to_owned());
        }
        let why = (kind, message);
        let pending = &self.handle.pending;
        self.links.refused(replica, number, why, pending, self.now);
    }

    #[cfg(test)]
    fn keeps_what_changed(&self) -> bool {
        self.flaw == Some(Flaw::ChangedKept)
    }

    #[cfg(not(test))]
    fn keeps_what_changed(&self) -> bool {
        false
    }

    /// A replica does not have what a write begins with: the whole is sent, at once.
    fn send_whole(&mut self, replica: ReplicaId, number: u64) {
        if let Some(seq) = self.links.refused_base(replica, number) {
            self.handle.counters.bases_missed += 1;
            self.handle.pending.send_whole(seq);
            self.pump(replica);
        }
    }

    pub fn wake_refused(&mut self) {
        self.give_up_refused();
        for replica in self.links.wake_refused(self.now).iter() {
            self.pump(replica);
        }
    }

    /// True if `bytes` more may be pending; gives up what replicas that are away lack, if that helps.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        let max = self.config.pending_bytes_max;
        if self.handle.pending.is_empty() || self.handle.pending.bytes() + bytes <= max {
            return true;
        }
        // Give up more than needed now, so that the search is not repeated for every write.
        let enough = bytes.max(max / 8);
        let away = self.links.away(self.now, self.stuck());
        for write in self.handle.pending.give_up(away, enough) {
            self.links.dropped(&write, true);
        }
        self.handle.pending.is_empty() || self.handle.pending.bytes() + bytes <= max
    }

    pub fn drop_writes(&mut self) {
        self.handle.pending.clear();
        self.links.clear();
    }

    // --- sync points -----------------------------------------------------------------------------

    pub fn start_sync(&mut self, op: OpId, scope: SyncScope) {
        let (file, upto) = self.handle.scope(scope);
        self.wait_synced(op, file, upto);
    }

    /// Completes the operation with `Synced` once everything up to `upto` is on k replicas.
    pub fn wait_synced(&mut self, op: OpId, file: Option<FileId>, upto: Seq) {
        if !self.handle.pending.is_synced(file, upto) {
            self.links.want_flush(upto);
            self.pump_all();
        }
        self.syncs.add(file, upto, op);
        self.progress = true;
    }

    /// The operations whose sync is complete.
    pub fn complete_syncs(&mut self) -> Vec<OpId> {
        self.syncs.complete(&mut self.handle.pending)
    }

    // --- removal ---------------------------------------------------------------------------------

    pub fn broadcast(&mut self, op: OpId, request: Request) {
        let replicas = self.links.everybody();
        self.broadcasts.add(op, request, replicas);
        for replica in self.links.up().iter() {
            self.broadcasts
                .send(replica, self.now, &mut self.links, &mut self.out);
        }
    }

    pub fn remove_files(&mut self, op: OpId, epoch: Epoch, files: &[FileId]) {
        let removed: HashSet<FileId> = files.iter().copied().collect();
        let dropped = self.handle.remove_files(&removed);
        self.drop_removed(dropped, |file, _| removed.contains(&file));
        for files in files.chunks(MAX_FILES_PER_REQUEST) {
            let files = files.to_vec();
            self.broadcast(op, Request::RemoveFiles { epoch, files });
        }
    }

    pub fn remove_blocks_before(
        &mut self,
        op: OpId,
        epoch: Epoch,
        file: FileId,
        block: BlockIndex,
    ) {
        let dropped = self.handle.remove_before(file, block);
        self.drop_removed(dropped, |f, b| f == file && b < block);
        self.broadcast(op, Request::RemoveBlocksBefore { epoch, file, block });
    }

    fn drop_removed(
        &mut self,
        dropped: Vec<Dropped>,
        removed: impl Fn(FileId, BlockIndex) -> bool,
    ) {
        self.links.forget_missed(&removed);
        for write in dropped {
            self.links.dropped(&write, false);
        }
        self.progress = true;
    }

    pub fn broadcast_reply(
        &mut self,
        replica: ReplicaId,
        number: u64,
        reply: &Response,
    ) -> Vec<OpId> {
        let done = !matches!(reply, Response::Error { .. });
        self.broadcasts.replied(replica, number, done)
    }
}
