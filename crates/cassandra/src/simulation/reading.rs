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
    place_of, place_of_record,
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
    pub fn read_single(&mut self, world: &mut World, recorder: &mut Recorder, owner: &Owner) {
        let key = world.any_single();
        let place = place_of(key, Generation::SINGLE);
        let promoting = |r: &Reading| r.action == Action::Promote(key);
        if !owner.known.contains_key(&place) {
            if self.under_way.values().any(promoting) {
                return;
            }
            return self.promote(world, recorder, owner, key);
        }
        let up_to = Generation::SINGLE;
        let action = Action::Read { key, up_to };
        let op = recorder.start(owner.client, Some(owner.epoch), action);
        if let Some(content) = owner.pending_in(place) {
            recorder.end(op, Outcome::Block(up_to, content));
            return;
        }
        self.begin(op, action, exactly(place), Vec::new());
        self.ask_one(world, owner, op, exactly(place));
    }

    /// One replica has answered.
    pub fn one_replied(
        &mut self,
        world: &mut World,
        recorder: &mut Recorder,
        owner: &Owner,
        op: OpNumber,
        reply: &Reply,
    ) {
        let Some(reading) = self.under_way.get(&op) else {
            return;
        };
        let place = Place {
            partition: reading.query.partition,
            row: reading.query.from,
        };
        if let Reply::Row(row) = reply {
            let found = row.as_ref().map(|(_, cell)| cell);
            let expected = owner.known.get(&place).map(|(version, _)| *version);
            if world.has(Flaw::UncheckedReads) || found.map(|c| c.timestamp) == expected {
                world.coverage.one("reads from one replica");
                recorder.end(op, Outcome::Block(Generation::SINGLE, content(found)));
                self.under_way.remove(&op);
                return;
            }
            world.coverage.one("answers that were stale");
        }
        self.ask_quorum(world, recorder, owner.client, op);
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
                let found = Self::promoted(world, owner, place, cell);
                world.coverage.one("versions promoted");
                let outcome = Outcome::Block(Generation::SINGLE, found);
                let after = (key.file == LOG).then_some(After::Recovered(found));
                owner.wait(world, op, outcome, after);
            }
            Action::PromoteRecord(record) => {
                self.under_way.remove(&op);
                let found = Self::promoted(world, owner, place_of_record(record), cell);
                let outcome = Outcome::Record(found);
                owner.wait(world, op, outcome, Some(After::Attach(found)));
            }
            _ => {
                self.replied(world, recorder, owner.client, op, reply);
            }
        }
        owner.pass_gate(world, recorder);
        Seen::Fine
    }

    /// Writes again what a promotion found, unless the owner has written the row meanwhile.
    fn promoted(
        world: &mut World,
        owner: &mut Owner,
        place: Place,
        cell: Option<&Cell>,
    ) -> Content {
        if let Some((_, content)) = owner.known.get(&place) {
            return *content;
        }
        let found = content(cell);
        let absent = found == NOTHING;
        if absent {
            world.coverage.one("absences promoted");
        }
        let skipped = world.has(Flaw::PromotionWithoutRewrite)
            || absent && world.has(Flaw::AbsenceNotPromoted);
        if !skipped {
            let tombstone = absent && world.has(Flaw::AbsenceAsTombstone);
            owner.write(world, place, found, tombstone);
        }
        found
    }

    /// What it still waits for.
    pub fn unfinished(&self) -> usize {
        self.under_way.len()
    }
}
