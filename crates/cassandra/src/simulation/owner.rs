//! An owner from the moment that it owns its epoch: writes, sync points, the gate, promotions, seals,
//! reclaims, as *On Cassandra* of docs/PROTOCOL.md says.
//!
//! Its [`Writer`] is the client's, and so is who waits for what ([`SyncWaits`]); what the client's tasks do around
//! them is done here step by step.

mod sending;

use std::collections::{BTreeMap, BTreeSet};

use dax::ids::{BlockKey, Epoch, FileId, Generation};
use dax::simulation::history::{
    Action, ClientId, Content, Event, NOTHING, OpNumber, Outcome, RecordId,
};
use dax::storage::{Lineage, SyncScope, VolumeSettings};
use dax::writer::SyncWaits;
use dax::writer::pending::Seq;
use rand::Rng;

use super::client::{DATA, KEYS, OTHER, SEALS, Token, place_of};
use super::flaw::Flaw;
use super::model::{Cell, Level, Mutation, NodeId, Place, Request, Timestamp};
use super::recorder::{Recorder, Seal};
use super::world::{Wake, World};
use crate::lease::{Gate, Lease, Renewal};
use crate::writer::{Batch, Limits, Writer};

/// Few requests at a time, so that rows wait for each other, and a list that forgets.
const LIMITS: Limits = Limits {
    pending_bytes_max: usize::MAX,
    version_list_max: 8,
    requests_max: 2,
};

/// What an owner is in the middle of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Commits,
    Takeover,
    /// What was found of a block is being written again.
    Promotion,
}

/// An operation that ends when what it wrote is acknowledged, and the gate open.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    op: OpNumber,
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
    /// The client's own: versions, what is pending, the order in which it goes out, the version list.
    pub writer: Writer,
    /// Its batches that are on their way, by their first row.
    sending: BTreeMap<Seq, Batch>,
    /// Records that are on their way, and who waits for each.
    putting: BTreeMap<Seq, (Mutation, Waiting)>,
    /// Records that it wrote, and what is in the blocks that it wrote.
    latest: BTreeMap<Place, Content>,
    /// What is not the version's own timestamp: one of the flaws.
    stamps: BTreeMap<Seq, Timestamp>,
    syncs: SyncWaits<Waiting>,
    /// Everything that they wait for is acknowledged.
    at_gate: Vec<Waiting>,
    acknowledging: BTreeMap<OpNumber, Outcome>,
    /// Promotions that have been written again, and that nobody has been told of.
    promoting: BTreeSet<OpNumber>,
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
        let mut writer = Writer::new(VolumeSettings::default(), LIMITS);
        writer.handle.adopt(epoch);
        Owner {
            client,
            home,
            epoch,
            lease,
            renewal: None,
            writer,
            sending: BTreeMap::new(),
            putting: BTreeMap::new(),
            latest: BTreeMap::new(),
            stamps: BTreeMap::new(),
            syncs: SyncWaits::default(),
            at_gate: Vec::new(),
            acknowledging: BTreeMap::new(),
            promoting: BTreeSet::new(),
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

    /// A coordinator: mostly the own data centre's.
    pub fn coordinator(&self, world: &mut World) -> NodeId {
        let nodes = world.cluster.setup().nodes;
        match world.cluster.is_up(self.home) && world.rng.random_bool(0.8) {
            true => self.home,
            false => world.rng.random_range(0..nodes),
        }
    }

    /// Whether somebody waits for a promotion.
    pub fn is_promoting(&self) -> bool {
        !self.promoting.is_empty()
    }

    fn waiting(
        &mut self,
        world: &World,
        op: OpNumber,
        outcome: Outcome,
        after: Option<After>,
    ) -> Waiting {
        let passed = match world.flaw {
            Some(Flaw::NoGate) => true,
            Some(Flaw::PromotionWithoutGate) => matches!(outcome, Outcome::Block(..)),
            Some(Flaw::GateBeforeWrites) => self.lease.gate(world.clock(self.client)) == Gate::Open,
            _ => false,
        };
        self.after.extend(after.map(|after| (op, after)));
        Waiting {
            op,
            outcome,
            passed,
        }
    }

    /// The operation ends like this once a file is acknowledged up to there, and the gate open.
    pub fn wait(
        &mut self,
        world: &World,
        (file, upto): (Option<FileId>, Seq),
        (op, outcome, after): (OpNumber, Outcome, Option<After>),
    ) {
        if matches!(outcome, Outcome::Block(..)) {
            self.promoting.insert(op);
        }
        let waiting = self.waiting(world, op, outcome, after);
        self.syncs.add(file, upto, waiting);
    }

    /// A sync point.
    pub fn sync(&mut self, world: &World, recorder: &mut Recorder, after: Option<After>) {
        let op = recorder.start(self.client, Some(self.epoch), Action::Sync);
        let scope = self.writer.handle.scope(SyncScope::Volume);
        self.wait(world, scope, (op, Outcome::Done, after));
    }

    /// A higher epoch exists: nobody waits any more.
    pub fn fence(&mut self) {
        self.writer.fence("somebody owns a higher epoch".to_owned());
        self.syncs.clear();
        self.putting.clear();
    }

    /// Looks which operations may end.
    pub fn pass_gate(&mut self, world: &mut World, recorder: &mut Recorder) {
        let synced = self.syncs.complete(&mut self.writer.handle.pending);
        self.at_gate.extend(synced);
        for waiting in std::mem::take(&mut self.at_gate) {
            match self.lease.gate(world.clock(self.client)) {
                Gate::Open => self.acknowledge(world, &waiting),
                _ if waiting.passed => self.acknowledge(world, &waiting),
                Gate::Fenced => recorder.end(waiting.op, Outcome::Fenced),
                Gate::Shut => {
                    world.coverage.one("times that the gate was shut");
                    self.reclaim_anyway(world, waiting.op);
                    self.at_gate.push(waiting);
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
        self.promoting.remove(&op);
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
            70..84 => self.sync(world, recorder, None),
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
        self.write(world, key, generation, content);
    }

    fn put(
        &mut self,
        world: &mut World,
        recorder: &mut Recorder,
        record: RecordId,
        content: Content,
        after: Option<After>,
    ) {
        let action = Action::Put { record, content };
        let op = recorder.start(self.client, Some(self.epoch), action);
        let ends = (op, Outcome::Done, after);
        self.put_record(world, (record, content), false, ends);
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
        self.sync(world, recorder, Some(After::PutSeal(seal)));
    }

    fn put_seal(&mut self, world: &mut World, recorder: &mut Recorder, seal: Content) {
        self.put(world, recorder, SEALS, seal, Some(After::Reclaim(seal)));
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
            let seq = self.next_version(world).seq;
            let cell = Cell::tombstone(self.timestamp(seq));
            let node = self.coordinator(world);
            let request = Request::Write(Mutation::one(place, cell), Level::Quorum);
            world.request(self.client, Token::Delete, node, request);
        }
    }
}
