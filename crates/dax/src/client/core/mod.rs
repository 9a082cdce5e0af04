//! The client as a pure state machine: no socket, clock, thread or random number inside.
//!
//! Owns what a client decides: which replicas to ask, when a write is synced, what a read may return,
//! who owns the epoch. The driver feeds it calls, messages, connections and time, and carries out the
//! [`Effect`]s in order. Invariants (each with its place): [`crate::writer::pending`], [`crate::writer::versions`],
//! [`quorum`], [`links`]; and, here: once fenced, always fenced.

mod broadcasts;
mod calls;
mod change;
mod epoch;
mod links;
mod members;
mod promote;
mod quorum;
mod reads;
mod records;
mod repair;
mod scrub;
mod shared;
mod sightings;
mod space;
mod usage;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlockKey, Epoch, Generation, ReplicaId, StoreId, Version};
use crate::membership::Membership;
use crate::sightings::Sightings;
use crate::storage::{Block, ReplicaStatus, StorageCounters, VolumeSettings};
use crate::wire::{Request, Response};
use crate::writer::IdMap;
use crate::writer::differences::Contents;

pub(crate) use calls::{Arrival, Asker, Call, CoreConfig, Effect, Effects, OpId, Output, Time};
pub(crate) use members::Advice;
use shared::Shared;
pub(crate) use sightings::SIGHTINGS_EVERY;

/// What happened to an operation.
#[derive(Debug)]
enum Event {
    Start,
    Reply(ReplicaId, Response),
    /// The replica went down: its answers will not come.
    Lost(ReplicaId),
    /// The replica lost its disk, and with it what it has answered for.
    Emptied(ReplicaId),
    /// Time has passed, or a replica came up.
    Wake,
    /// What the operation waits for in [`SyncWaits`](crate::writer::SyncWaits) is on k replicas.
    Synced,
}

/// An operation: takes events until it gives a result.
#[derive(Debug)]
enum Op {
    Room(usize),
    Sync,
    Read(reads::Read),
    Promote(promote::Promote),
    Look(epoch::Look),
    Confirm(epoch::Confirm),
    Claim(epoch::Claim),
    Record(records::RecordOp),
    List(records::List),
    Broadcast,
    Space(space::Ask),
    Usage(usage::Ask),
    Scrub(scrub::Page),
    Mend(scrub::Mend),
    EndScrub(scrub::End),
    Begin(change::Begin),
    Finish(change::Finish),
    /// It could be told at once.
    Told(Output),
    /// Nobody waits for it.
    Repair(repair::Repair),
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct Core {
    shared: Shared,
    ops: IdMap<OpId, Op>,
    next_op: u64,
    /// Operations are to be woken, because they have to ask again.
    restarted: bool,
}

impl Core {
    pub fn new(config: CoreConfig, settings: VolumeSettings) -> Core {
        Core {
            shared: Shared::new(config, settings),
            ops: IdMap::default(),
            next_op: 1,
            restarted: false,
        }
    }

    /// What the driver must do now, in order.
    pub fn effects(&mut self) -> std::vec::Drain<'_, Effect> {
        self.shared.out.drain(..)
    }

    pub fn settings(&self) -> &VolumeSettings {
        &self.shared.settings
    }

    pub fn epoch(&self) -> Option<Epoch> {
        self.shared.handle.epoch()
    }

    pub fn is_fenced(&self) -> bool {
        self.shared.handle.is_fenced()
    }

    pub fn counters(&self) -> &StorageCounters {
        &self.shared.handle.counters
    }

    pub fn replicas(&self) -> Vec<ReplicaStatus> {
        let mut replicas = self.shared.links.status();
        let members = self.shared.membership.as_ref();
        if members.is_some_and(|m| m.change.is_some()) {
            // At the end of it, the exchange ends.
            replicas.iter_mut().for_each(|r| r.scrub_wanted = true);
        }
        replicas
    }

    /// Breaks something on purpose, and bounds the bytes on their way to a replica, for the simulation.
    #[cfg(test)]
    pub fn distort(&mut self, flaw: Option<crate::simulation::flaw::Flaw>, window_bytes: usize) {
        self.shared.flaw = flaw;
        self.shared.handle.pending_evicted =
            flaw == Some(crate::simulation::flaw::Flaw::PendingEvicted);
        self.shared.links.unadmitted_count =
            flaw == Some(crate::simulation::flaw::Flaw::UnadmittedReads);
        self.shared.links.set_window(window_bytes);
    }

    /// Changes a bit of what waits to be written.
    #[cfg(test)]
    pub fn flip_bit(&mut self, which: u64) -> bool {
        self.shared.handle.pending.flip_bit(which)
    }

    /// True if some replica's writes wait for a tick.
    #[cfg(test)]
    pub fn has_spares(&self) -> bool {
        !self.shared.links.lazy().is_empty()
    }

    /// Sends what waits for a tick, except to lazy replicas.
    #[cfg(test)]
    pub fn send_lingering(&mut self) {
        self.shared.send_lingering();
    }

    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        self.ops.is_empty()
    }

    /// See [`crate::storage::Storage::next_version`].
    pub fn next_version(&mut self) -> Result<Version> {
        self.shared.handle.check_writer()?;
        Ok(self.shared.new_version())
    }

    /// See [`crate::storage::Storage::write`].
    pub fn write(
        &mut self,
        key: BlockKey,
        generation: Generation,
        contents: impl Into<Contents>,
    ) -> Result<Version> {
        self.shared.write(key, generation, contents.into())
    }

    /// The answer to a read that needs no replica, if there is one.
    pub fn read_at_once(&mut self, key: BlockKey, up_to: Generation) -> Option<Option<Block>> {
        let checked = self.shared.check_pending(key, up_to);
        self.fail_if_fenced();
        checked.ok()?;
        self.shared.handle.read_at_once(key, up_to)
    }

    /// True if there is room for so many bytes of writes at once.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        self.shared.has_room(bytes)
    }

    /// Starts an operation. Its `Done` may be among the effects already.
    pub fn start(&mut self, now: Time, call: Call) -> OpId {
        self.shared.now = now;
        let op = OpId(self.next_op);
        self.next_op += 1;
        match self.prepare(op, call) {
            Ok(state) => {
                self.begin(op, state);
                self.settle();
            }
            Err(error) => self.shared.done(op, Err(error)),
        }
        op
    }

    fn begin(&mut self, id: OpId, op: Op) {
        if let Some(key) = op.key() {
            self.shared.handle.begin_read(key);
        }
        self.ops.insert(id, op);
        self.step(id, Event::Start);
    }

    /// Starts repairs while replicas have room for them.
    fn repair(&mut self) {
        if self.shared.handle.check_writer().is_err() {
            return;
        }
        while let Some((replica, key, generation)) = self.shared.links.next_repair(self.shared.now)
        {
            let op = OpId(self.next_op);
            self.next_op += 1;
            let repair = repair::Repair::new(replica, key, generation);
            self.begin(op, Op::Repair(repair));
        }
    }

    /// Nobody waits for the operation any more.
    pub fn cancel(&mut self, op: OpId) {
        if let Some(state) = self.ops.remove(&op) {
            self.end(op, &state);
        }
    }

    fn prepare(&mut self, op: OpId, call: Call) -> Result<Op> {
        let s = &mut self.shared;
        if let Call::AcceptedEpoch = call {
            return Ok(Op::Look(epoch::Look::new(s.quorums)));
        }
        s.handle.check_fence()?;
        Ok(match call {
            Call::Room(bytes) => Op::Room(bytes),
            Call::Sync(scope) => {
                s.handle.check_writer()?;
                s.start_sync(op, scope);
                Op::Sync
            }
            Call::Read { key, up_to } => Op::Read(reads::Read::new(key, up_to)),
            Call::ReadExpected {
                key,
                up_to,
                version,
            } => Op::Read(reads::Read::expecting(key, up_to, version)),
            Call::Promote(key) => {
                s.handle.check_writer()?;
                Op::Promote(promote::Promote::new(key))
            }
            Call::AcceptedEpoch => Op::Look(epoch::Look::new(s.quorums)),
            Call::Confirm => {
                let own = s.handle.check_writer()?;
                Op::Confirm(epoch::Confirm::new(own, s.quorums))
            }
            Call::OwnEpoch { owner } => Op::Claim(epoch::Claim::new(owner, s.quorums)),
            Call::PutRecord {
                name,
                value,
                authority,
            } => Op::Record(records::RecordOp::put(name, value, authority, s)?),
            Call::GetRecord(name) => Op::Record(records::RecordOp::get(name, s)),
            Call::PromoteRecord(name) => Op::Record(records::RecordOp::promote(name, s)?),
            Call::ListRecords(prefix) => Op::List(records::List::new(prefix, s.quorums)),
            Call::Retain(retention) => {
                let epoch = s.handle.check_writer()?;
                s.retention = Some(retention.clone());
                s.broadcast(op, Request::Retain { epoch, retention });
                Op::Broadcast
            }
            Call::RemoveFiles(files) => {
                let epoch = s.handle.check_writer()?;
                s.remove_files(op, epoch, &files);
                Op::Broadcast
            }
            Call::RemoveBlocksBefore(file, block) => {
                let epoch = s.handle.check_writer()?;
                s.remove_blocks_before(op, epoch, file, block);
                Op::Broadcast
            }
            Call::Scrub(after) => Op::Scrub(scrub::Page::new(after, s)?),
            Call::Mend(differences) => Op::Mend(scrub::Mend::new(&differences, s)?),
            Call::EndScrub => Op::EndScrub(scrub::End::new(s)?),
            Call::ChangeMembers(change) => Op::Begin(change::Begin::new(change, s)?),
            Call::CancelChange => Op::Begin(change::Begin::cancel(s)?),
            Call::FinishChange => match change::Finish::new(s)? {
                Some(finish) => Op::Finish(finish),
                None => Op::Told(Output::Ended(false)),
            },
            Call::Space => Op::Space(space::Ask::new(s.quorums)),
            Call::Usage => Op::Usage(usage::Ask::new(s.quorums)),
        })
    }

    /// A connection stands and the replica welcomed us.
    ///
    /// # Errors
    /// `Conflict` if it is not the store that belongs there, or the one that another replica of this client
    /// is already: the connection is of no use.
    pub fn replica_up(&mut self, now: Time, replica: ReplicaId, arrival: &Arrival) -> Result<()> {
        self.shared.now = now;
        if let Some(standing) = &arrival.standing {
            self.hear_sightings(&standing.sightings);
        }
        let position = arrival.standing.as_ref();
        let position = position.map(|standing| standing.position.clone());
        let back = self.shared.arrives_back(arrival.store, position.as_ref());
        let rebuilding = arrival.rebuilding || back;
        let links = &self.shared.links;
        let emptied = links.emptied_by(replica, arrival.store, rebuilding);
        // Also if the one who arrives is turned away: what this entry led to before is there no more.
        for replica in emptied.iter() {
            self.emptied(replica);
        }
        let recognized = self.shared.recognize(replica, arrival);
        self.restart();
        if let Err(error) = recognized.and_then(|()| self.shared.check_back(replica, back)) {
            // What it said of the members holds all the same.
            self.settle();
            return Err(error);
        }
        self.shared.observe(&arrival.grant);
        self.shared.set_rebuilding(replica, rebuilding);
        // Also one that says itself that it is being rebuilt: once it counts, it would be denied again.
        let begun_anew = self.shared.links.stands(replica, position, back);
        self.shared.noted(replica, 0);
        if begun_anew {
            // Others who answered before this run began may not have known how far its store had been.
            self.restart_all();
        }
        let kept = arrival
            .membership
            .as_ref()
            .map_or(Version::ZERO, |m| m.version);
        self.shared.links.keeps(replica, kept);
        if kept < self.shared.members_version() {
            self.shared.say_known(replica);
        }
        self.shared.replica_up(replica, arrival.reads);
        if begun_anew {
            self.shared.ask_who_knows(replica);
        }
        self.shared.settle_sightings();
        self.wake_all();
        Ok(())
    }

    /// A store says how far it was told that stores are. Those who are not there are given up: what they say when
    /// they are met again decides.
    fn hear_sightings(&mut self, sightings: &Sightings) {
        self.shared.learn_sightings(sightings);
        for replica in self.shared.contradicted() {
            self.emptied(replica);
        }
        self.shared.settle_sightings();
    }

    /// What to do about a store that does not know the volume, where a replica should be.
    pub fn advise(&mut self, now: Time, replica: ReplicaId, store: Option<StoreId>) -> Advice {
        self.shared.now = now;
        if self.shared.links.is_another(replica, store) {
            self.emptied(replica);
        }
        let advice = self.shared.advise(replica, store);
        self.restart();
        self.wake_all();
        advice
    }

    /// Who counts, if that is recorded.
    pub fn membership(&self) -> Option<&Membership> {
        self.shared.membership.as_ref()
    }

    /// A connection is gone.
    pub fn replica_down(&mut self, now: Time, replica: ReplicaId, why: String) {
        self.shared.now = now;
        self.shared.replica_down(replica, why);
        self.shared.tell_of_lost();
        self.shared.scrub_lost(replica);
        self.shared.broadcasts.lost(replica);
        for op in self.op_ids() {
            self.step(op, Event::Lost(replica));
        }
        self.settle();
    }

    /// A replica lost its disk, and with it all that it ever answered for.
    fn emptied(&mut self, replica: ReplicaId) {
        if self.shared.links.up().contains(replica) {
            // Answers of the old one may still be on the way.
            self.disconnect(replica, "it has another disk".to_owned());
        }
        self.shared.forget_acks(replica);
        for op in self.op_ids() {
            self.step(op, Event::Emptied(replica));
        }
    }

    /// Gives a connection up.
    fn disconnect(&mut self, replica: ReplicaId, why: String) {
        self.shared.out.push(Effect::Disconnect {
            replica,
            why: why.clone(),
        });
        self.replica_down(self.shared.now, replica, why);
    }

    /// A replica cannot be used, for a reason that an operator should see.
    pub fn replica_trouble(&mut self, replica: ReplicaId, why: String) {
        self.shared.links.set_trouble(replica, Some(why));
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        self.shared.now = now;
        for replica in self.shared.watch_replicas().iter() {
            self.disconnect(replica, "it does not answer".to_owned());
        }
        self.shared.wake_refused();
        self.shared.send_what_waited();
        self.shared.record_members();
        self.shared.tell_members();
        self.shared.tell_sightings_in_time();
        self.restart();
        self.wake_all();
        self.repair();
    }

    /// A replica said something.
    pub fn message(&mut self, now: Time, replica: ReplicaId, id: u64, response: Response) {
        self.shared.now = now;
        self.shared.links.heard(replica, now);
        match response {
            Response::Ack { upto, commit } => {
                self.shared.noted(replica, commit);
                self.shared.acked(replica, upto);
                self.repair();
            }
            Response::WriteRefused {
                number,
                kind,
                message,
            } => self.shared.write_refused(replica, number, kind, message),
            Response::Fenced { grant } => self.shared.observe(&grant),
            Response::Members(membership) => {
                self.shared.learn(&membership);
                self.shared.say_known(replica);
                self.restart();
                self.wake_all();
            }
            Response::Sightings(sightings) => self.hear_sightings(&sightings),
            reply => self.reply(replica, id, reply),
        }
        self.settle();
    }

    fn reply(&mut self, replica: ReplicaId, id: u64, reply: Response) {
        let Some(asked) = self.shared.links.answered(replica, id) else {
            return;
        };
        let round_trip = self.shared.now.saturating_sub(asked.at);
        if matches!(reply, Response::Block(_) | Response::Pong { .. }) {
            self.shared.links.measured(replica, round_trip);
        }
        self.shared.look_for_fence(replica, &reply);
        self.fail_if_fenced();
        self.shared.prove();
        match asked.asker {
            Asker::Op(op) => self.step(op, Event::Reply(replica, reply)),
            Asker::Broadcast(number) => {
                for op in self.shared.broadcast_reply(replica, number, &reply) {
                    self.step(op, Event::Wake);
                }
            }
            Asker::Members => {
                self.shared.members_told(replica, &reply);
                self.wake_all();
            }
            Asker::Sightings => {}
            Asker::Back => self.shared.back_told(replica, &reply),
            Asker::Announcement => {
                if matches!(reply, Response::Owned { accepted: true, .. }) {
                    self.shared.links.admit(replica);
                    self.shared.tell_members();
                    self.shared.tell_admitted(replica);
                    self.shared.say_back(replica);
                    // Whoever waited for its answer may ask it now.
                    self.wake_all();
                }
            }
            Asker::Ping => {
                if let Response::Pong { rebuilding, commit } = reply {
                    self.shared.noted(replica, commit);
                    let back = self.shared.links.back_at(replica).is_some();
                    self.shared.set_rebuilding(replica, rebuilding || back);
                }
            }
        }
    }

    fn op_ids(&self) -> Vec<OpId> {
        let mut ids: Vec<OpId> = self.ops.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    fn wake_all(&mut self) {
        for op in self.op_ids() {
            self.step(op, Event::Wake);
        }
        self.settle();
    }

    /// If the members have changed: every operation forgets the answers it has, which say nothing about
    /// the new ones, and asks again when it is woken next.
    fn restart(&mut self) {
        if std::mem::take(&mut self.shared.members_news) {
            self.restart_all();
        }
    }

    fn restart_all(&mut self) {
        self.shared.links.forget_all_asked();
        for op in self.ops.values_mut() {
            op.restart();
        }
        self.restarted = true;
    }

    /// Gives an operation an event, and completes it if that gave a result.
    fn step(&mut self, id: OpId, event: Event) {
        let Some(mut op) = self.ops.remove(&id) else {
            return;
        };
        match op.on(id, event, &mut self.shared) {
            None => {
                self.ops.insert(id, op);
                self.restart();
            }
            Some(result) => {
                self.restart();
                self.end(id, &op);
                self.shared.done(id, result);
            }
        }
    }

    /// Forgets what an operation kept outside itself.
    fn end(&mut self, id: OpId, op: &Op) {
        self.shared.syncs.retain(|op| *op != id);
        if let Op::Repair(repair) = op {
            self.shared.links.repair_ended(repair.replica);
        }
        if let Some(key) = op.key() {
            self.shared.handle.end_read(key);
        }
    }

    /// Follows up on what the last input changed: syncs that are complete, room, the fence.
    fn settle(&mut self) {
        self.fail_if_fenced();
        if std::mem::take(&mut self.restarted) {
            self.wake_all();
        }
        while self.shared.progress {
            self.shared.progress = false;
            for op in self.shared.complete_syncs() {
                self.step(op, Event::Synced);
            }
            self.serve_room();
        }
    }

    /// Lets those who wait for room go on, first come first served.
    fn serve_room(&mut self) {
        let waiting = self.ops.iter().filter(|(_, op)| matches!(op, Op::Room(_)));
        let mut ids: Vec<OpId> = waiting.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        for id in ids {
            self.step(id, Event::Wake);
            if self.ops.contains_key(&id) {
                break;
            }
        }
    }

    /// After news of a fence, everything but looking at the epoch fails for good.
    fn fail_if_fenced(&mut self) {
        if !std::mem::take(&mut self.shared.fence_news) {
            return;
        }
        for id in self.op_ids() {
            if matches!(self.ops.get(&id), Some(Op::Look(_))) {
                continue;
            }
            if let Some(op) = self.ops.remove(&id) {
                self.end(id, &op);
                if let Err(fenced) = self.shared.handle.check_fence() {
                    self.shared.done(id, Err(fenced));
                }
            }
        }
        self.shared.syncs.clear();
        self.shared.drop_writes();
    }
}

impl Op {
    /// The block that it reads.
    fn key(&self) -> Option<BlockKey> {
        match self {
            Op::Read(op) => Some(op.key()),
            Op::Promote(op) => Some(op.key),
            Op::Repair(op) => Some(op.key),
            _ => None,
        }
    }

    /// Members changed: what was answered is forgotten.
    fn restart(&mut self) {
        match self {
            Op::Read(op) => op.restart(),
            Op::Promote(op) => op.restart(),
            Op::Look(op) => op.restart(),
            Op::Confirm(op) => op.restart(),
            Op::Claim(op) => op.restart(),
            Op::Record(op) => op.restart(),
            Op::List(op) => op.restart(),
            Op::Space(op) => op.restart(),
            Op::Usage(op) => op.restart(),
            Op::Scrub(op) => op.restart(),
            Op::EndScrub(op) => op.restart(),
            Op::Repair(op) => op.restart(),
            Op::Finish(op) => op.restart(),
            Op::Room(_) | Op::Sync | Op::Broadcast | Op::Mend(_) | Op::Begin(_) | Op::Told(_) => {}
        }
    }

    fn on(&mut self, id: OpId, event: Event, s: &mut Shared) -> Option<Result<Output>> {
        match self {
            Op::Room(bytes) => s.has_room(*bytes).then_some(Ok(Output::Unit)),
            Op::Sync => {
                if !matches!(event, Event::Synced) {
                    return None;
                }
                s.handle.counters.syncs += 1;
                Some(Ok(Output::Unit))
            }
            Op::Read(op) => op.on(id, event, s),
            Op::Promote(op) => op.on(id, event, s),
            Op::Look(op) => op.on(id, event, s),
            Op::Confirm(op) => op.on(id, event, s),
            Op::Claim(op) => op.on(id, event, s),
            Op::Record(op) => op.on(id, event, s),
            Op::List(op) => op.on(id, event, s),
            Op::Broadcast => s.broadcasts.is_done(id).then_some(Ok(Output::Unit)),
            Op::Space(op) => op.on(id, event, s),
            Op::Usage(op) => op.on(id, event, s),
            Op::Scrub(op) => op.on(id, event, s),
            Op::Mend(op) => op.on(s),
            Op::EndScrub(op) => op.on(id, event, s),
            Op::Begin(op) => op.on(s),
            Op::Finish(op) => op.on(id, event, s),
            Op::Told(output) => Some(Ok(output.clone())),
            Op::Repair(op) => op.on(id, event, s),
        }
    }
}

/// What an answer of the wrong type gives.
fn unexpected(replica: ReplicaId, reply: &Response) -> Error {
    let what = match reply {
        Response::Error { message, .. } => message.as_str(),
        _ => "an answer to something else",
    };
    Error::new(ErrorKind::Protocol, format!("{replica} sent {what}"))
}

#[cfg(test)]
pub(crate) mod tests;
