//! An owner from the moment that it owns its epoch: writes, sync points, the gate, promotions, seals,
//! reclaims, as *On Cassandra* of docs/PROTOCOL.md says.

use std::collections::BTreeMap;

use dax::ids::{BlockKey, Epoch, Generation};
use dax::simulation::history::{Action, ClientId, Content, Event, NOTHING, OpNumber, Outcome};
use dax::storage::Lineage;
use rand::Rng;

use super::client::{DATA, KEYS, OTHER, SEALS, Token, bytes, place_of, place_of_record, version};
use super::flaw::Flaw;
use super::model::{Cell, Level, Mutation, NodeId, Place, Request, Timestamp};
use super::recorder::{Recorder, Seal};
use super::world::{Wake, World};
use crate::lease::{Gate, Lease, Renewal};

/// What an owner is in the middle of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Commits,
    Takeover,
    /// Of the takeover: what it has found is being written again.
    Promotion,
}

/// What an operation waits for.
#[derive(Debug)]
struct Waiting {
    op: OpNumber,
    /// Every version from here
    from: Timestamp,
    /// to here must be acknowledged, then the gate be open.
    up_to: Timestamp,
    outcome: Outcome,
    /// The gate was looked at already: one of the flaws.
    passed: bool,
}

/// What follows the end of an operation.
#[derive(Debug, Clone, Copy)]
pub(super) enum After {
    Attach(Content),
    PutSeal(Content),
    Reclaim(Content),
    /// The log's next block was promoted.
    Recovered(Content),
    Committed {
        position: usize,
        content: Content,
    },
}

/// What an owner knows of the log.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// All commits in order, also those that are not acknowledged yet.
    pub commits: Vec<Content>,
    /// Its end is still looked for.
    pub recovering: bool,
    pub unacknowledged: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Owner {
    pub client: ClientId,
    pub home: NodeId,
    pub epoch: Epoch,
    pub lease: Lease,
    pub renewal: Option<Renewal>,
    last_version: Timestamp,
    seq: u64,
    /// Not acknowledged yet.
    pending: BTreeMap<Timestamp, (Place, Content, bool)>,
    /// The version list.
    pub known: BTreeMap<Place, (Timestamp, Content)>,
    waiting: Vec<Waiting>,
    acknowledging: BTreeMap<OpNumber, Outcome>,
    after: BTreeMap<OpNumber, After>,
    pub lineage: Lineage,
    pub generation: Generation,
    /// The seal it began with.
    pub base: Content,
    pub attached: bool,
    pub log: Log,
    seals: [Content; 2],
    sealing: bool,
    written: BTreeMap<BlockKey, Vec<Generation>>,
}

impl Owner {
    pub fn new(client: ClientId, home: NodeId, lease: Lease) -> Owner {
        let epoch = lease.epoch();
        Owner {
            client,
            home,
            epoch,
            lease,
            renewal: None,
            last_version: 0,
            seq: 0,
            pending: BTreeMap::new(),
            known: BTreeMap::new(),
            waiting: Vec::new(),
            acknowledging: BTreeMap::new(),
            after: BTreeMap::new(),
            lineage: Lineage(Vec::new()),
            generation: Generation { epoch, number: 1 },
            base: NOTHING,
            attached: false,
            log: Log::default(),
            seals: [NOTHING; 2],
            sealing: false,
            written: BTreeMap::new(),
        }
    }

    fn next_version(&mut self, world: &World) -> Timestamp {
        self.seq += 1;
        self.last_version = match world.has(Flaw::ClockTimestamps) {
            true => {
                let clock = world.clock(self.client).as_micros() as Timestamp;
                clock.max(self.last_version + 1)
            }
            false => version(self.epoch, self.seq),
        };
        self.last_version
    }

    /// A coordinator: mostly the own data centre's.
    pub fn coordinator(&self, world: &mut World) -> NodeId {
        let nodes = world.cluster.setup().nodes;
        match world.cluster.is_up(self.home) && world.rng.random_bool(0.8) {
            true => self.home,
            false => world.rng.random_range(0..nodes),
        }
    }

    /// Gives contents a version, and sends them. With `tombstone`, a delete of that version.
    pub fn write(&mut self, world: &mut World, place: Place, content: Content, tombstone: bool) {
        let same = self.pending.iter().find(|(_, (at, ..))| *at == place);
        let timestamp = match same.map(|(timestamp, _)| *timestamp) {
            Some(timestamp) if world.has(Flaw::SameTimestampTwice) => timestamp,
            _ => self.next_version(world),
        };
        self.pending.insert(timestamp, (place, content, tombstone));
        self.known.insert(place, (timestamp, content));
        self.send(world, timestamp);
    }

    fn send(&mut self, world: &mut World, timestamp: Timestamp) {
        let Some((place, content, tombstone)) = self.pending.get(&timestamp).copied() else {
            return;
        };
        let cell = match tombstone {
            true => Cell::tombstone(timestamp),
            false => Cell::live(timestamp, bytes(content)),
        };
        let level = match world.has(Flaw::WrittenAtOne) {
            true => Level::One,
            false => Level::Quorum,
        };
        let request = Request::Write(Mutation::one(place, cell), level);
        let node = self.coordinator(world);
        world.request(self.client, Token::Write(timestamp), node, request);
    }

    /// A write was acknowledged, or not in time.
    pub fn written(&mut self, world: &mut World, timestamp: Timestamp, done: bool) {
        let Some((place, ..)) = self.pending.get(&timestamp).copied() else {
            return;
        };
        let same_row = |at: &Place| *at == place;
        if done {
            self.pending
                .retain(|version, (at, ..)| *version > timestamp || !same_row(at));
            return;
        }
        let newer = self.pending.range(timestamp + 1..);
        if !newer.into_iter().any(|(_, (at, ..))| same_row(at)) {
            self.send(world, timestamp);
        }
    }

    pub fn is_writing(&self) -> bool {
        !self.pending.is_empty()
    }

    /// What is pending in a row.
    pub fn pending_in(&self, place: Place) -> Option<Content> {
        let mut newest = self.pending.values().rev();
        newest.find(|(at, ..)| *at == place).map(|(_, c, _)| *c)
    }

    /// The operation ends like this once everything written so far is acknowledged, and the gate open.
    pub fn wait(&mut self, world: &World, op: OpNumber, outcome: Outcome, after: Option<After>) {
        let early = match world.flaw {
            Some(Flaw::NoGate) => true,
            Some(Flaw::PromotionWithoutGate) => matches!(outcome, Outcome::Block(..)),
            Some(Flaw::GateBeforeWrites) => self.lease.gate(world.clock(self.client)) == Gate::Open,
            _ => false,
        };
        self.waiting.push(Waiting {
            op,
            from: Timestamp::MIN,
            up_to: self.last_version,
            outcome,
            passed: early,
        });
        self.after.extend(after.map(|after| (op, after)));
    }

    /// Looks which operations may end.
    pub fn pass_gate(&mut self, world: &mut World, recorder: &mut Recorder) {
        let pending = &self.pending;
        let (ready, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|w| pending.range(w.from..=w.up_to).next().is_none());
        self.waiting = waiting;
        for waiting in ready {
            match self.lease.gate(world.clock(self.client)) {
                Gate::Open => self.acknowledge(world, &waiting),
                _ if waiting.passed => self.acknowledge(world, &waiting),
                Gate::Fenced => recorder.end(waiting.op, Outcome::Fenced),
                Gate::Shut => {
                    world.coverage.one("times that the gate was shut");
                    self.reclaim_anyway(world, waiting.op);
                    self.waiting.push(waiting);
                }
            }
        }
    }

    /// One of the flaws.
    fn reclaim_anyway(&mut self, world: &mut World, op: OpNumber) {
        if world.has(Flaw::ReclaimWithoutGate)
            && let Some(After::Reclaim(_)) = self.after.get(&op)
        {
            // As if the seal that is being put were there.
            self.delete_up_to(world, self.generation);
        }
    }

    fn acknowledge(&mut self, world: &mut World, waiting: &Waiting) {
        self.acknowledging.insert(waiting.op, waiting.outcome);
        let micros = match world.rng.random_bool(0.02) {
            true => world.rng.random_range(0..3_000_000),
            false => world.rng.random_range(0..500),
        };
        let after = std::time::Duration::from_micros(micros);
        world.wake(self.client, after, Wake::Acknowledge(waiting.op));
    }

    /// Whoever waits is told; what follows is returned.
    pub fn acknowledged(&mut self, recorder: &mut Recorder, op: OpNumber) -> Option<After> {
        let outcome = self.acknowledging.remove(&op)?;
        recorder.end(op, outcome);
        self.after.remove(&op)
    }

    pub fn follow(&mut self, world: &mut World, recorder: &mut Recorder, after: After) {
        match after {
            After::Attach(seal) => self.attach(recorder, seal),
            After::PutSeal(seal) => self.put_seal(world, recorder, seal),
            After::Reclaim(seal) => self.reclaim(world, recorder, seal),
            After::Recovered(found) => self.recovered(recorder, found),
            After::Committed { position, content } => self.committed(recorder, position, content),
        }
    }

    fn attach(&mut self, recorder: &Recorder, seal: Content) {
        self.base = seal;
        let base = recorder.seals.get(&seal);
        self.seals = [seal, base.map_or(NOTHING, |s| s.previous)];
        let lineage = base.map_or(Lineage(Vec::new()), |s| s.lineage.clone());
        self.lineage = lineage.continued(self.generation);
        self.begin_recovery(recorder);
    }

    /// One thing that a database does.
    pub fn work(&mut self, world: &mut World, recorder: &mut Recorder) {
        let key = world.rng.random_range(0..KEYS);
        let (single, data) = (world.some_single(), BlockKey::new(DATA, key));
        match world.rng.random_range(0..100) {
            0..26 => self.write_block(world, recorder, single, Generation::SINGLE),
            26..46 => self.write_block(world, recorder, data, self.generation),
            46..70 => self.commit(world, recorder),
            70..84 => {
                let op = recorder.start(self.client, Some(self.epoch), Action::Sync);
                self.wait(world, op, Outcome::Done, None);
            }
            84..94 if !self.sealing => self.seal(world, recorder),
            94..98 => {
                let content = recorder.content();
                self.put(world, recorder, OTHER, content, None);
            }
            _ => {}
        }
        self.pass_gate(world, recorder);
    }

    fn write_block(
        &mut self,
        world: &mut World,
        recorder: &mut Recorder,
        key: BlockKey,
        generation: Generation,
    ) {
        let content = recorder.wrote(self.client, self.epoch, key, generation);
        if generation != Generation::SINGLE {
            let generations = self.written.entry(key).or_default();
            if generations.last() != Some(&generation) {
                generations.push(generation);
            }
        }
        self.write(world, place_of(key, generation), content, false);
    }

    fn put(
        &mut self,
        world: &mut World,
        recorder: &mut Recorder,
        record: u8,
        content: Content,
        after: Option<After>,
    ) {
        let action = Action::Put { record, content };
        let op = recorder.start(self.client, Some(self.epoch), action);
        self.write(world, place_of_record(record), content, false);
        self.wait(world, op, Outcome::Done, after);
    }

    /// Cuts, syncs, and puts the seal then.
    fn seal(&mut self, world: &mut World, recorder: &mut Recorder) {
        self.sealing = true;
        let seal = recorder.content();
        let lineage = self.lineage.truncated(self.generation);
        let previous = self.seals[0];
        let log = self.log.commits.clone();
        let sealed = Seal {
            lineage,
            previous,
            log,
        };
        recorder.seals.insert(seal, sealed);
        recorder.event(&Event::Cut {
            client: self.client,
            epoch: self.epoch,
            seal,
            base: self.base,
        });
        self.generation = self.generation.next();
        if world.has(Flaw::SealBeforeSync) {
            self.put_seal(world, recorder, seal);
            return;
        }
        let op = recorder.start(self.client, Some(self.epoch), Action::Sync);
        self.wait(world, op, Outcome::Done, Some(After::PutSeal(seal)));
    }

    fn put_seal(&mut self, world: &mut World, recorder: &mut Recorder, seal: Content) {
        self.put(world, recorder, SEALS, seal, Some(After::Reclaim(seal)));
        if world.has(Flaw::SealBeforeSync)
            && let Some(waiting) = self.waiting.last_mut()
        {
            waiting.from = waiting.up_to;
        }
    }

    fn reclaim(&mut self, world: &mut World, recorder: &mut Recorder, seal: Content) {
        self.sealing = false;
        self.seals = [seal, self.seals[0]];
        world.coverage.one("seals completed");
        if self.lease.gate(world.clock(self.client)) != Gate::Open {
            return;
        }
        let oldest = recorder.seals.get(&self.seals[1]);
        let end = oldest.map_or(Generation::SINGLE, |seal| seal.lineage.end());
        if recorder.newest_owned == self.epoch {
            recorder.event(&Event::Retained {
                epoch: self.epoch,
                seals: self.seals,
                end,
            });
        }
        self.delete_up_to(world, end);
    }

    /// Deletes versions that a later one up to `end` has replaced.
    fn delete_up_to(&mut self, world: &mut World, end: Generation) {
        let mut gone = Vec::new();
        for (key, generations) in &mut self.written {
            let kept = generations.iter().rposition(|g| *g <= end).unwrap_or(0);
            gone.extend(generations.drain(..kept).map(|g| place_of(*key, g)));
        }
        for place in gone {
            world.coverage.one("versions reclaimed");
            let cell = Cell::tombstone(self.next_version(world));
            let node = self.coordinator(world);
            let request = Request::Write(Mutation::one(place, cell), Level::Quorum);
            world.request(self.client, Token::Delete, node, request);
        }
    }
}
