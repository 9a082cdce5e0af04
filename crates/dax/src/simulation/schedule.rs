//! One schedule: a stretch with faults, then one without, in which everything that waits must end and
//! all replicas become equal.

use std::collections::BTreeMap;

use super::checkers::{Checkers, Violation};
use super::contents::{content_of, content_of_value};
use super::faults::Faults;
use super::flaw::Flaw;
use super::history::{
    Action, ClientId, Content, DAMAGED, Event, NOTHING, OpNumber, Outcome, RecordId, Shelf,
};
use super::trace::Trace;
use super::workload::{Intent, Reader, SealOf, Writer};
use super::world::{Ending, Turn, World};
use crate::client::core::{Call, OpId, Output, Time};
use crate::error::{ErrorKind, Result};
use crate::ids::{BlockKey, FileId, Generation};
use crate::storage::ScrubPage;

/// Blocks that keep one version, and blocks with generations: few, so that operations meet.
pub(super) const SINGLES: FileId = FileId(2);
pub(super) const DATA: FileId = FileId(9);
/// A file with one version of each block, whose beginning its writers give back.
pub(super) const TAIL: FileId = FileId(5);
pub(super) const KEYS: u64 = 3;

/// How long the calm may take until everything has ended and is equal.
const SETTLED_WITHIN: Time = Time::from_secs(30);

/// Between two scrubs in the calm.
const SCRUB_PAUSE: Time = Time::from_millis(50);

pub(super) struct Schedule {
    pub world: World,
    pub checkers: Checkers,
    pub faults: Faults,
    pub intents: BTreeMap<(ClientId, OpId), (OpNumber, Intent)>,
    pub writers: Vec<Writer>,
    pub readers: Vec<Reader>,
    /// Clients that are trying to own an epoch.
    pub claimants: Vec<ClientId>,
    pub seals: BTreeMap<Content, SealOf>,
    next_op: OpNumber,
    next_content: Content,
    /// What a scrub found, until it is mended.
    pub page: Option<ScrubPage>,
    pub violation: Option<Violation>,
}

impl Schedule {
    /// Runs a seed, with something broken if that is wanted.
    pub fn run(seed: u64, flaw: Option<Flaw>, print: bool) -> simulate::Outcome {
        let mut schedule = Schedule::new(seed, flaw, print);
        schedule.storm();
        schedule.calm();
        schedule.report()
    }

    fn new(seed: u64, flaw: Option<Flaw>, print: bool) -> Schedule {
        let mut world = World::new(seed, flaw, Trace::new(print));
        world.lay(seed);
        let faults = Faults::new(&mut world);
        let sync_replicas = usize::from(world.settings.sync_replicas);
        let readers = (0..2).map(|_| Reader::new(world.add_client())).collect();
        Schedule {
            world,
            checkers: Checkers::new(sync_replicas),
            faults,
            intents: BTreeMap::new(),
            writers: Vec::new(),
            readers,
            claimants: Vec::new(),
            seals: BTreeMap::new(),
            next_op: 1,
            next_content: 1,
            page: None,
            violation: None,
        }
    }

    fn report(mut self) -> simulate::Outcome {
        let clients = std::mem::take(&mut self.world.clients);
        let coverage = &mut self.world.coverage;
        for client in &clients {
            let counters = client.core.counters();
            coverage.some("syncs, as clients count", counters.syncs);
            coverage.some("blocks written", counters.writes);
            coverage.some("reads from pending writes", counters.reads_pending);
            coverage.some("reads from one replica", counters.reads_one);
            coverage.some("answers that were stale", counters.reads_stale);
            coverage.some("reads by quorum", counters.reads_quorum);
            coverage.some("versions promoted", counters.reads_promoted);
            coverage.some("copies mended", counters.copies_mended);
        }
        coverage.some("events", self.world.trace.steps());
        coverage.one("schedules");
        simulate::Outcome {
            trace: self.world.trace.hash(),
            coverage: std::mem::take(coverage),
            broken: (self.violation).map(|v| format!("{}: {}", v.checker, v.what)),
        }
    }

    // --- the history -----------------------------------------------------------------------------

    /// Tells the checkers.
    pub fn event(&mut self, event: &Event) {
        let result = self.checkers.event(event);
        if let (None, Err(violation)) = (&self.violation, result) {
            self.fail(violation);
        }
    }

    fn fail(&mut self, violation: Violation) {
        self.world
            .note(99, [0; 3], || format!("VIOLATION {violation:?}"));
        self.violation.get_or_insert(violation);
    }

    /// Something that no checker of the history can see.
    pub fn wrong(&mut self, checker: &'static str, what: String) {
        self.fail(Violation { checker, what });
    }

    pub fn content(&mut self) -> Content {
        let content = self.next_content;
        self.next_content += 1;
        content
    }

    fn number(&mut self) -> OpNumber {
        self.next_op += 1;
        self.next_op
    }

    /// Starts an operation that the checkers hear of.
    pub fn start(&mut self, client: ClientId, call: Call, action: Action, intent: Intent) {
        let op = self.number();
        let epoch = self.world.clients[client].core.epoch();
        self.event(&Event::Started {
            op,
            client,
            epoch,
            action,
        });
        self.begin(client, call, op, intent);
    }

    /// Starts what may be only a part of an operation.
    pub fn begin(&mut self, client: ClientId, call: Call, op: OpNumber, intent: Intent) {
        self.world.note(20, [client as u64, op, 0], || {
            format!("client {client} starts {op}: {call:?}")
        });
        let id = self.world.with(client, |core, now| core.start(now, call));
        self.intents.insert((client, id), (op, intent));
    }

    /// Starts what is no business of the checkers.
    pub fn quietly(&mut self, client: ClientId, call: Call, intent: Intent) {
        self.start(client, call, Action::Other, intent);
    }

    fn ended(&mut self, op: OpNumber, outcome: Outcome) {
        self.world
            .note(21, [op, 0, 0], || format!("{op} ends: {outcome:?}"));
        self.event(&Event::Ended { op, outcome });
    }

    /// What operations gave, until nothing more follows from it.
    pub fn collect(&mut self) {
        loop {
            let endings = self.world.endings();
            if endings.is_empty() {
                return;
            }
            endings.into_iter().for_each(|ending| self.ending(ending));
        }
    }

    fn ending(&mut self, (client, id, result): Ending) {
        let Some((op, intent)) = self.intents.remove(&(client, id)) else {
            return;
        };
        self.check_form(client, &result);
        let Some(outcome) = self.outcome(&intent, result) else {
            return;
        };
        if let Some(outcome) = self.follow(client, op, &intent, outcome) {
            self.ended(op, outcome);
        }
        self.after_below(intent, outcome);
        self.after(client, intent, outcome);
    }

    fn outcome(&mut self, intent: &Intent, result: Result<Output>) -> Option<Outcome> {
        let output = match result {
            Ok(output) => output,
            Err(error) if error.is_fenced() => return Some(Outcome::Fenced),
            Err(error) if error.kind() == ErrorKind::Conflict && *intent == Intent::Own => {
                return Some(Outcome::Fenced);
            }
            // Somebody else has changed the members meanwhile.
            Err(_) if *intent == Intent::Exchange => return Some(Outcome::Done),
            // Right for an image that was let go; for another one a checker misses the block.
            Err(error) if error.kind() == ErrorKind::Corrupt && *intent == Intent::ReadListed => {
                return Some(Outcome::Block(Generation::SINGLE, NOTHING));
            }
            Err(error) => {
                self.wrong("no other errors", format!("{intent:?}: {error}"));
                return None;
            }
        };
        Some(match output {
            Output::Epoch(epoch) => Outcome::Owned(epoch),
            Output::Block(Some(b)) => Outcome::Block(b.generation, content_of(&b.data)),
            Output::Block(None) => Outcome::Block(Generation::SINGLE, NOTHING),
            Output::Record(record) => {
                Outcome::Record(record.map_or(NOTHING, |value| content_of_value(&value)))
            }
            Output::Scrubbed(page) => {
                self.scrubbed(page);
                Outcome::Done
            }
            Output::Rebuilt(replicas) => {
                let count = replicas.len() as u64;
                self.world.coverage.some("replicas rebuilt", count);
                Outcome::Done
            }
            Output::Unit
            | Output::Grant(_)
            | Output::Records(_)
            | Output::Space(_)
            | Output::Usage(_)
            | Output::Ended(false) => Outcome::Done,
            Output::Ended(true) => {
                self.world.coverage.one("exchanges ended");
                Outcome::Done
            }
        })
    }

    // --- with faults -----------------------------------------------------------------------------

    fn storm(&mut self) {
        let end = self.storm_time();
        self.world.plan_turn(Turn::Act, 1000);
        self.world.plan_turn(Turn::Fault, 100_000);
        while self.violation.is_none()
            && let Some(turn) = self.world.step(end)
        {
            self.collect();
            match turn {
                Some(Turn::Act) => {
                    self.act();
                    self.look_below();
                    self.collect();
                    self.world.plan_turn(Turn::Act, 5000);
                }
                Some(Turn::Fault) => {
                    self.fault();
                    let pause_us = self.faults.pause_us;
                    self.world.plan_turn(Turn::Fault, pause_us);
                }
                None => {}
            }
        }
    }

    // --- without ---------------------------------------------------------------------------------

    fn calm(&mut self) {
        if self.violation.is_some() {
            return;
        }
        self.world.calm_down();
        self.world.restore_below(false);
        self.correct_configurations();
        self.keep_bad_sectors();
        self.settle("what was under way ends");
        self.last_words();
        self.settle("the last writer's work ends");
        let peers = self.world.replicas.iter_mut().map(|r| &mut r.peer);
        peers.for_each(|peer| peer.bad.clear());
        self.even_out();
        self.read_everything();
        self.settle("the last reads end");
        self.take_stock();
    }

    /// A sector that cannot be read stays so, if everybody else is whole; a scrub meets it.
    fn keep_bad_sectors(&mut self) {
        let bad = |s: &Schedule, replica: usize| !s.world.replicas[replica].peer.bad.is_empty();
        for replica in 0..self.world.replicas.len() {
            if bad(self, replica) && !self.world.may_lose(replica as u8) {
                self.world.replicas[replica].peer.bad.clear();
            }
        }
        // Who reads an image that was given up waits as long as somebody cannot tell what he has of it.
        let mut intents = self.intents.values();
        if intents.any(|(_, intent)| *intent == Intent::ReadListed) {
            let peers = self.world.replicas.iter_mut().map(|r| &mut r.peer);
            peers.for_each(|peer| peer.bad.clear());
        }
        let any = (0..self.world.replicas.len()).any(|replica| bad(self, replica));
        if any && let Some(writer) = self.newest_writer() {
            self.world.coverage.one("sectors that stayed unreadable");
            self.scrub(writer);
        }
    }

    /// Operators look after those who cannot reach all replicas.
    fn correct_configurations(&mut self) {
        let wrong = |s: &Schedule, client| s.lives(client) && s.world.is_misconfigured(client);
        for index in 0..self.readers.len() {
            if wrong(self, self.readers[index].client) {
                self.restart_reader(index);
            }
        }
        for client in 0..self.world.clients.len() {
            if wrong(self, client) {
                self.crash_writer(client);
            }
        }
    }

    /// Lets time pass until nothing waits.
    pub fn settle(&mut self, what: &'static str) {
        let end = self.world.now + SETTLED_WITHIN;
        loop {
            self.collect();
            if self.violation.is_some() || !self.is_waiting() {
                return;
            }
            if self.world.step(end).is_none() {
                break;
            }
        }
        let waiting: Vec<_> = self
            .intents
            .iter()
            .filter(|(k, _)| self.lives(k.0))
            .collect();
        let what = format!("not in {SETTLED_WITHIN:?}: {what}: {waiting:?}");
        self.wrong("liveness", what);
    }

    fn lives(&self, client: ClientId) -> bool {
        self.world.clients[client].alive
    }

    fn is_waiting(&self) -> bool {
        self.intents.keys().any(|(client, _)| self.lives(*client))
    }

    /// A last writer takes over, decides what survived and writes every block.
    fn last_words(&mut self) {
        let old: Vec<ClientId> = self.writers.iter().map(|w| w.client).collect();
        for client in old {
            self.world.crash_client(client);
        }
        // The claim of somebody who died may win first.
        let lives = |s: &Schedule, index: usize| s.lives(s.writers[index].client);
        while !self.newest_writer().is_some_and(|w| lives(self, w)) && self.violation.is_none() {
            self.claim();
            self.settle("an epoch is owned");
        }
        for step in 0..3 {
            for block in 0..KEYS {
                self.last_word(step, block);
            }
            self.collect();
            if step == 0 {
                self.settle("promotions end");
            }
        }
        if let Some(writer) = self.newest_writer() {
            self.sync_all(writer);
        }
    }

    fn last_word(&mut self, step: u8, block: u64) {
        let Some(writer) = self.newest_writer() else {
            return;
        };
        match step {
            0 => self.promote(writer, BlockKey::new(SINGLES, block)),
            1 => {
                self.write(writer, BlockKey::new(DATA, block));
            }
            _ => {
                self.write(writer, BlockKey::new(SINGLES, block));
            }
        }
    }

    /// Scrubs until all replicas hold the same: a scrub mends what it finds at those who are there, and
    /// whoever comes back later is found by the next one.
    fn even_out(&mut self) {
        let end = self.world.now + SETTLED_WITHIN;
        while self.violation.is_none() {
            if let Some(writer) = self.newest_writer() {
                self.scrub(writer);
            }
            self.settle("a scrub ends");
            self.end_exchange(self.world.now + SETTLED_WITHIN / 2 > end);
            let Some(differing) = self.differing() else {
                self.world
                    .coverage
                    .one("schedules after which all replicas were equal");
                return;
            };
            if self.world.now > end {
                return self.wrong("convergence", differing);
            }
            self.pass(SCRUB_PAUSE);
        }
    }

    fn pass(&mut self, time: Time) {
        let end = self.world.now + time;
        while self.world.step(end).is_some() {
            self.collect();
        }
        self.world.now = end;
    }

    /// Where replicas differ in something that is kept: blocks with one version, what the last writer
    /// wrote, and the images of its seals. (Unsynced remains of dead epochs may stay where they are.)
    fn differing(&self) -> Option<String> {
        let mut first = None;
        let rosters = self.world.rosters();
        let changing = self.world.members().is_some_and(|m| m.change.is_some());
        if changing || !self.world.replaced().is_empty() {
            return Some(format!("members change: {:?}", self.world.members()));
        }
        for number in rosters[0].members.iter().copied() {
            let replica = &self.world.replicas[number];
            let Some(shelf) = replica.shelf() else {
                return Some(format!("replica {number} does not count"));
            };
            let kept = self.kept_of(&shelf);
            let first = first.get_or_insert_with(|| kept.clone());
            let mut slots = first.keys().chain(kept.keys());
            if let Some(slot) = slots.find(|slot| first.get(*slot) != kept.get(*slot)) {
                let (one, other) = (first.get(slot), kept.get(slot));
                return Some(format!("{slot:?}: {one:?} at 0, {other:?} at {number}"));
            }
        }
        None
    }

    fn kept_of(&self, shelf: &Shelf) -> Shelf {
        let last = self.newest_writer().map(|index| self.writers[index].epoch);
        let seals = self.kept_seals().into_iter();
        let images: Vec<_> = seals.filter_map(|seal| self.seals.get(&seal)).collect();
        let is_kept = |(key, generation): &(BlockKey, Generation)| {
            let newest_of = |image: &&super::workload::SealOf| {
                let of_block = shelf
                    .keys()
                    .filter(|(k, g)| k == key && image.lineage.contains(*g));
                of_block.map(|(_, g)| *g).max() == Some(*generation)
            };
            // What was given back may have come back from a replica that was away.
            key.file != TAIL && *generation == Generation::SINGLE
                || Some(generation.epoch) == last
                || images.iter().any(newest_of)
        };
        let kept = shelf.iter().filter(|(slot, _)| is_kept(slot));
        // A damaged copy is none. Where nobody has another one, nothing was durable, and nothing can be sent.
        let kept = kept.filter(|(_, content)| **content != DAMAGED);
        kept.map(|(slot, content)| (*slot, *content)).collect()
    }

    fn read_everything(&mut self) {
        for block in 0..KEYS {
            let single = BlockKey::new(SINGLES, block);
            let data = BlockKey::new(DATA, block);
            if let Some(writer) = self.newest_writer() {
                self.promote(writer, single);
                self.read(self.writers[writer].client, single, Generation::MAX);
                self.read(self.writers[writer].client, data, Generation::MAX);
            }
            let reader = self.readers[0].client;
            self.read(reader, single, Generation::SINGLE);
            self.read(reader, data, Generation::MAX);
            for seal in self.kept_seals() {
                self.read_seal(reader, seal, data);
            }
            for record in RecordId::MIN..3 {
                self.get(reader, record);
            }
        }
    }
}
