//! Reads of owners and of others: of one replica where the version is known, of a quorum otherwise; and
//! ReadPromote.

use std::collections::BTreeMap;

use dax::ids::{BlockKey, Generation};
use dax::simulation::history::{Action, ClientId, Content, NOTHING, OpNumber, Outcome};
use dax::storage::Span;
use rand::Rng;
use rand::seq::SliceRandom;

use super::client::{
    DATA, KEYS, LOG, OTHER, SEALS, Token, between, block_of, content, epoch_of, exactly, found_in,
    of_bytes, place_of, place_of_record,
};
use super::flaw::Flaw;
use super::model::{Cell, Level, NodeId, Place, Query, Reply, Request};
use super::owner::{After, Owner};
use super::recorder::Recorder;
use super::world::World;

/// A read that is under way.
#[derive(Debug, Clone)]
struct Reading {
    action: Action,
    query: Query,
    /// The spans of an image that come next, if this one has nothing.
    spans: Vec<Span>,
    /// What the client decides about an owner's read.
    owners: Option<dax::writer::Reading>,
}

/// All reads of one client.
#[derive(Debug, Default)]
pub(super) struct Reads {
    under_way: BTreeMap<OpNumber, Reading>,
}

/// Whether the client finds that it is deposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    Fine,
    Deposed,
}

fn quorum(world: &mut World) -> Vec<NodeId> {
    let setup = *world.cluster.setup();
    let mut nodes: Vec<NodeId> = (0..setup.nodes).collect();
    nodes.shuffle(&mut world.rng);
    // Now and then one more, as speculation does.
    let more = usize::from(world.rng.random_bool(0.2));
    nodes.truncate(setup.quorum() + more);
    nodes
}

impl Reads {
    fn ask_quorum(
        &mut self,
        world: &mut World,
        recorder: &mut Recorder,
        client: ClientId,
        op: OpNumber,
    ) {
        let Some(reading) = self.under_way.get(&op) else {
            return;
        };
        // Rows of generations are given back.
        let kept = |place: &Place| block_of(*place).is_none_or(|(key, _)| key.file != DATA);
        if let Some(place) = reading.query.place().filter(kept) {
            recorder.asks(op, place);
        }
        let contacted = quorum(world);
        let request = Request::Read(reading.query.clone(), Level::Quorum, contacted);
        let node = world.rng.random_range(0..world.cluster.setup().nodes);
        world.request(client, Token::Read(op), node, request);
    }

    fn ask_one(&mut self, world: &mut World, owner: &Owner, op: OpNumber, query: Query) {
        let node = owner.coordinator(world);
        let request = Request::Read(query, Level::One, vec![node]);
        world.request(owner.client, Token::ReadOne(op), node, request);
    }

    fn begin(&mut self, op: OpNumber, action: Action, query: Query, spans: Vec<Span>) {
        let reading = Reading {
            action,
            query,
            spans,
            owners: None,
        };
        self.under_way.insert(op, reading);
    }

    /// Somebody without an epoch looks at something.
    pub fn look_around(&mut self, world: &mut World, recorder: &mut Recorder, client: ClientId) {
        let key = world.any_single();
        let (action, query) = match world.rng.random_range(0..4) {
            0 => (Action::Get(SEALS), exactly(place_of_record(SEALS))),
            1 => (Action::Get(OTHER), exactly(place_of_record(OTHER))),
            _ => {
                let up_to = Generation::SINGLE;
                let action = Action::Read { key, up_to };
                (action, exactly(place_of(key, up_to)))
            }
        };
        let op = recorder.start(client, None, action);
        self.begin(op, action, query, Vec::new());
        self.ask_quorum(world, recorder, client, op);
    }

    /// Reads a block of a sealed image.
    pub fn read_seal(
        &mut self,
        world: &mut World,
        recorder: &mut Recorder,
        client: ClientId,
        seal: Content,
    ) {
        let Some(mut spans) = recorder.seals.get(&seal).map(|s| s.lineage.0.clone()) else {
            return;
        };
        let Some(span) = spans.pop() else {
            return;
        };
        let key = BlockKey::new(DATA, world.rng.random_range(0..KEYS));
        let action = Action::ReadSeal { seal, key };
        let op = recorder.start(client, None, action);
        self.begin(op, action, between(key, span.from, span.to), spans);
        self.ask_quorum(world, recorder, client, op);
    }

    /// A new owner finds the seal that it begins with.
    pub fn promote_seals(&mut self, world: &mut World, recorder: &mut Recorder, owner: &Owner) {
        let action = Action::PromoteRecord(SEALS);
        let op = recorder.start(owner.client, Some(owner.epoch), action);
        self.begin(op, action, exactly(place_of_record(SEALS)), Vec::new());
        self.ask_quorum(world, recorder, owner.client, op);
    }

    /// A new owner looks for the log's end.
    pub fn recover(&mut self, world: &mut World, recorder: &mut Recorder, owner: &Owner) {
        let key = owner.log_end();
        let promoting = |r: &Reading| r.action == Action::Promote(key);
        if owner.log.recovering && !self.under_way.values().any(promoting) {
            self.promote(world, recorder, owner, key);
        }
    }

    fn promote(
        &mut self,
        world: &mut World,
        recorder: &mut Recorder,
        owner: &Owner,
        key: BlockKey,
    ) {
        let action = Action::Promote(key);
        let op = recorder.start(owner.client, Some(owner.epoch), action);
        let place = place_of(key, Generation::SINGLE);
        self.begin(op, action, exactly(place), Vec::new());
        self.ask_quorum(world, recorder, owner.client, op);
    }

    /// An owner reads a block that keeps one version.
    pub fn read_single(&mut self, world: &mut World, recorder: &mut Recorder, owner: &mut Owner) {
        let key = world.any_single();
        let promoting = |r: &Reading| r.action == Action::Promote(key);
        if !owner.writer.handle.is_settled(key) {
            if self.under_way.values().any(promoting) {
                return;
            }
            return self.promote(world, recorder, owner, key);
        }
        let up_to = Generation::SINGLE;
        let action = Action::Read { key, up_to };
        let op = recorder.start(owner.client, Some(owner.epoch), action);
        let mut read = dax::writer::Reading::new(key, up_to);
        if let Some(block) = owner.writer.begin_read(&mut read) {
            owner.writer.handle.end_read(key);
            let bytes = block.map(|block| block.data);
            recorder.end(op, Outcome::Block(up_to, of_bytes(bytes.as_deref())));
            return;
        }
        let query = exactly(place_of(key, up_to));
        self.begin(op, action, query.clone(), Vec::new());
        if let Some(reading) = self.under_way.get_mut(&op) {
            reading.owners = Some(read);
        }
        match read.known() {
            Some(_) => self.ask_one(world, owner, op, query),
            None => self.ask_quorum(world, recorder, owner.client, op),
        }
    }

    /// One replica has answered.
    pub fn one_replied(
        &mut self,
        world: &mut World,
        recorder: &mut Recorder,
        owner: &mut Owner,
        op: OpNumber,
        reply: &Reply,
    ) {
        let Some(read) = self.under_way.get(&op).and_then(|reading| reading.owners) else {
            return;
        };
        if let Reply::Row(row) = reply {
            let found = row.as_ref().map(|(_, cell)| cell);
            let version = found.map(|cell| owner.version_of(cell.timestamp));
            let takes = read.takes(&owner.writer.handle, version.unwrap_or_default());
            if world.has(Flaw::UncheckedReads) || takes {
                world.coverage.one("reads from one replica");
                recorder.end(op, Outcome::Block(Generation::SINGLE, content(found)));
                owner.writer.handle.end_read(read.key);
                self.under_way.remove(&op);
                return;
            }
            world.coverage.one("answers that were stale");
        }
        self.ask_quorum(world, recorder, owner.client, op);
    }

    /// A quorum has answered an owner's read: what the client does with it. Whether that is the answer.
    fn learns(&self, owner: &mut Owner, op: OpNumber, cell: Option<&Cell>) -> bool {
        let Some(read) = self.under_way.get(&op).and_then(|reading| reading.owners) else {
            return true;
        };
        let version = cell.map(|cell| owner.version_of(cell.timestamp));
        if read.is_behind(version.unwrap_or_default()).is_some() {
            return false;
        }
        let found = version.map(|version| (Generation::SINGLE, version));
        read.learn(&mut owner.writer.handle, found);
        owner.writer.handle.end_read(read.key);
        true
    }

    /// A quorum has answered a reader without an epoch.
    pub fn replied(
        &mut self,
        world: &mut World,
        recorder: &mut Recorder,
        client: ClientId,
        op: OpNumber,
        reply: &Reply,
    ) -> Option<Content> {
        let Reply::Row(row) = reply else {
            self.ask_quorum(world, recorder, client, op);
            return None;
        };
        recorder.read(op, row.as_ref().map(|(_, cell)| cell.timestamp));
        if self.steps_over(world, recorder, client, op, row.as_ref()) {
            return None;
        }
        let reading = self.under_way.remove(&op)?;
        let found = content(row.as_ref().map(|(_, cell)| cell));
        match reading.action {
            Action::Get(record) => {
                recorder.end(op, Outcome::Record(found));
                return (record == SEALS).then_some(found);
            }
            _ => recorder.end(op, Outcome::Block(found_in(row.as_ref()), found)),
        }
        None
    }

    /// Asks for the next span of an image, if this one has nothing of the block.
    fn steps_over(
        &mut self,
        world: &mut World,
        recorder: &mut Recorder,
        client: ClientId,
        op: OpNumber,
        row: Option<&(u64, Cell)>,
    ) -> bool {
        let Some(reading) = self.under_way.get_mut(&op).filter(|_| row.is_none()) else {
            return false;
        };
        let (Action::ReadSeal { key, .. }, Some(span)) = (reading.action, reading.spans.pop())
        else {
            return false;
        };
        reading.query = between(key, span.from, span.to);
        self.ask_quorum(world, recorder, client, op);
        true
    }

    /// A quorum has answered an owner.
    pub fn owner_replied(
        &mut self,
        world: &mut World,
        recorder: &mut Recorder,
        owner: &mut Owner,
        op: OpNumber,
        reply: &Reply,
    ) -> Seen {
        let action = self.under_way.get(&op).map(|r| r.action);
        let (Reply::Row(row), Some(action)) = (reply, action) else {
            self.ask_quorum(world, recorder, owner.client, op);
            return Seen::Fine;
        };
        let cell = row.as_ref().map(|(_, cell)| cell);
        recorder.read(op, cell.map(|cell| cell.timestamp));
        let foreign = matches!(action, Action::ReadSeal { .. } | Action::Get(_));
        let newer = cell.is_some_and(|cell| epoch_of(cell.timestamp) > owner.epoch);
        if newer && !foreign && !world.has(Flaw::ClockTimestamps) {
            self.under_way.remove(&op);
            recorder.end(op, Outcome::Fenced);
            return Seen::Deposed;
        }
        match action {
            Action::Promote(key) => {
                self.under_way.remove(&op);
                let place = place_of(key, Generation::SINGLE);
                let (found, upto) = match owner.latest(place) {
                    // Written or promoted while this was asking: that counts.
                    Some(content) => {
                        let pending = owner.writer.pending_single(key);
                        (content, pending.map_or(0, |block| block.version.seq))
                    }
                    None => {
                        let found = content(cell);
                        let skipped = is_skipped(world, found);
                        let written = (!skipped).then(|| owner.promote(world, key, found));
                        (found, written.unwrap_or(0))
                    }
                };
                world.coverage.one("versions promoted");
                let outcome = Outcome::Block(Generation::SINGLE, found);
                let after = (key.file == LOG).then_some(After::Recovered(found));
                owner.wait(world, (Some(key.file), upto), (op, outcome, after));
            }
            Action::PromoteRecord(record) => {
                self.under_way.remove(&op);
                let found = content(cell);
                let ends = (op, Outcome::Record(found), Some(After::Attach(found)));
                if is_skipped(world, found) {
                    owner.wait(world, (None, 0), ends);
                } else {
                    let tombstone = found == NOTHING && world.has(Flaw::AbsenceAsTombstone);
                    owner.put_record(world, (record, found), tombstone, ends);
                }
            }
            _ if !self.learns(owner, op, cell) => {
                self.ask_quorum(world, recorder, owner.client, op);
            }
            _ => {
                self.replied(world, recorder, owner.client, op, reply);
            }
        }
        owner.pass_gate(world, recorder);
        Seen::Fine
    }

    /// What it still waits for.
    pub fn unfinished(&self) -> usize {
        self.under_way.len()
    }
}

/// Whether a promotion leaves out to write again what it has found: flaws.
fn is_skipped(world: &mut World, found: Content) -> bool {
    let absent = found == NOTHING;
    if absent {
        world.coverage.one("absences promoted");
    }
    world.has(Flaw::PromotionWithoutRewrite) || absent && world.has(Flaw::AbsenceNotPromoted)
}
