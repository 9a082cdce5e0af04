//! One history: owners write, seal, remove and scrub while things go wrong; then nothing goes wrong any more, and all must
//! become equal.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::net::UnixStream;

use dax::error::ErrorKind;
use dax::ids::{BlockKey, Epoch, FileId, Generation, Version, VolumeName};
use dax::storage::{Lineage, VolumeSettings};
use dax::wire::{Request, Response};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulate::{Coverage, Outcome};

use super::Flaw;
use super::children::Child;
use super::owner::{Owner, REPLICAS, Write};
use super::replica::{ConnId, Replica, volume_name};
use crate::engine::Engine;
use crate::keys::{Slot, VolumeId};
use crate::stream::Stream;

/// Blocks with generations. Files above it hold blocks that keep one version.
pub(super) const DATA: FileId = FileId(9);
/// Things that happen while something may go wrong.
const STEPS: u32 = 220;
/// How often it is tried to make all equal.
const CALM: u32 = 60;

/// A block in a generation.
pub(super) type Place = (BlockKey, Generation);

pub(super) struct Schedule {
    pub rng: SmallRng,
    pub flaw: Option<Flaw>,
    pub replicas: Vec<Replica>,
    /// Oldest first. All but the last were deposed, and may not know it.
    pub owners: Vec<Owner>,
    pub coverage: Coverage,
    /// The newest synced version.
    pub synced: BTreeMap<Place, Version>,
    /// The newest version that each replica has acknowledged, since it has its disk.
    pub acked: [BTreeMap<Place, Version>; REPLICAS],
    /// Copies that were damaged, until they are sound again.
    pub damaged: [BTreeSet<Place>; REPLICAS],
    pub removed: BTreeSet<FileId>,
    /// Those of them that a replica has been told of, since it has its disk.
    pub told_to_remove: [BTreeSet<FileId>; REPLICAS],
    /// Replicas that lost their disk, until they have been rebuilt.
    pub lost: [bool; REPLICAS],
    /// The image that the newest owner writes, the last seals, and the images that are pinned.
    pub line: Lineage,
    pub seals: Vec<Lineage>,
    pub pins: Vec<Lineage>,
    pub children: Vec<Child>,
    /// How many there have been.
    pub branches: u64,
    /// A quorum was read that lacks what was synced.
    pub misread: Option<String>,
    /// The highest epoch that was owned.
    pub epoch: Epoch,
    /// The image that a next owner goes on with.
    pub base: Lineage,
    pub next_conn: ConnId,
    next_number: u64,
    pub stores: u64,
    /// The file of single blocks.
    pub file: FileId,
    print: bool,
}

pub(super) type Checked = Result<(), String>;

impl Schedule {
    /// Runs a seed, with something broken if that is wanted.
    pub fn run(seed: u64, flaw: Option<Flaw>, print: bool) -> Outcome {
        let mut s = Schedule::new(seed, flaw, print);
        let broken = s.storm().and_then(|()| s.calm()).err();
        s.coverage.one("histories");
        let mut trace = DefaultHasher::new();
        for replica in &s.replicas {
            format!("{:?}", replica.engine.stored()).hash(&mut trace);
        }
        Outcome {
            coverage: s.coverage,
            broken,
            trace: trace.finish(),
        }
    }

    fn new(seed: u64, flaw: Option<Flaw>, print: bool) -> Schedule {
        let (socket, _) = UnixStream::pair().unwrap();
        let stores = 1..=REPLICAS as u64;
        let replica = |store| {
            let socket = Stream::Unix(socket.try_clone().unwrap());
            Replica::new(store, socket, flaw)
        };
        let mut s = Schedule {
            rng: SmallRng::seed_from_u64(seed),
            flaw,
            replicas: stores.map(replica).collect(),
            owners: Vec::new(),
            coverage: Coverage::default(),
            synced: BTreeMap::new(),
            acked: [const { BTreeMap::new() }; REPLICAS],
            damaged: [const { BTreeSet::new() }; REPLICAS],
            removed: BTreeSet::new(),
            told_to_remove: [const { BTreeSet::new() }; REPLICAS],
            lost: [false; REPLICAS],
            line: Lineage(Vec::new()),
            misread: None,
            epoch: Epoch::NONE,
            base: Lineage(Vec::new()),
            seals: Vec::new(),
            pins: Vec::new(),
            children: Vec::new(),
            branches: 0,
            next_conn: 1,
            next_number: 1 << 40,
            stores: REPLICAS as u64,
            file: FileId(10),
            print,
        };
        for r in 0..REPLICAS {
            s.create(r, false);
        }
        s.take_over();
        s
    }

    pub fn note(&self, text: impl FnOnce() -> String) {
        if self.print {
            println!("{}", text());
        }
    }

    pub fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_ratio(percent, 100)
    }

    // --- asking ----------------------------------------------------------------------------------

    /// Sends a request on a connection of nobody's, and commits; the answer, if the replica is up.
    pub fn ask(&mut self, r: usize, request: Request) -> Option<Response> {
        self.ask_of(r, &volume_name(), request)
    }

    /// Sends a request about one volume, on a new connection.
    pub fn ask_of(&mut self, r: usize, name: &VolumeName, request: Request) -> Option<Response> {
        let conn = self.next_conn;
        self.next_conn += 1;
        self.replicas[r].connect_to(name, conn);
        self.ask_on(r, conn, request)
    }

    pub fn ask_on(&mut self, r: usize, conn: ConnId, request: Request) -> Option<Response> {
        let number = self.next_number;
        self.next_number += 1;
        self.replicas[r].send(conn, number, request);
        let answers = self.replicas[r].commit();
        let mut own = None;
        for (to, id, answer) in answers {
            match id == number && to == conn {
                true => own = Some(answer),
                false => self.hear(r, to, answer),
            }
        }
        own
    }

    pub fn create(&mut self, r: usize, rebuild: bool) {
        let create = Request::CreateVolume {
            volume: volume_name(),
            settings: VolumeSettings::default(),
            rebuild,
            membership: None,
        };
        let answer = self.ask(r, create);
        assert!(matches!(answer, Some(Response::Done)), "{answer:?}");
    }

    /// A replica says something to an owner.
    pub fn hear(&mut self, r: usize, conn: ConnId, answer: Response) {
        let all_count = self.flaw == Some(Flaw::RebuildingAcksCount);
        let to = |owner: &&mut Owner| owner.links[r].as_ref().is_some_and(|l| l.conn == conn);
        let Some(owner) = self.owners.iter_mut().find(to) else {
            return;
        };
        let Some(link) = &mut owner.links[r] else {
            return;
        };
        match answer {
            Response::WriteRefused { number, kind, .. } => {
                let refused = link.refused(number);
                owner.fenced |= kind == ErrorKind::Fenced;
                if let Some(w) = refused.filter(|_| kind == ErrorKind::NotFound) {
                    owner.whole.insert((r, w));
                    self.coverage.one("writes refused for what they begin with");
                }
                if let Some(w) = refused.filter(|_| kind == ErrorKind::Unavailable)
                    && owner.base(r, w).is_some()
                    && !self.replicas[r].failing
                {
                    let Write {
                        key, generation, ..
                    } = owner.writes[w];
                    let slot = Slot {
                        volume: VolumeId(1),
                        key,
                        generation,
                    };
                    if !self.replicas[r].engine.is_bad(&slot) {
                        let why = format!("{key}: refused for what it begins with, not for itself");
                        self.misread = Some(why);
                    }
                }
                if kind == ErrorKind::Full {
                    self.coverage.one("writes refused by full zones");
                }
                if kind == ErrorKind::Unavailable {
                    self.coverage
                        .one("writes refused because files cannot be read");
                }
            }
            Response::Ack { upto, .. } => {
                for write in link.acked(upto) {
                    let w = &mut owner.writes[write];
                    w.acked[r] = true;
                    let newest = self.acked[r].entry((w.key, w.generation)).or_default();
                    *newest = w.version.max(*newest);
                }
                self.judge_syncs(all_count);
            }
            Response::Fenced { .. } => owner.fenced = true,
            Response::Error {
                kind: ErrorKind::Fenced,
                ..
            } => owner.fenced = true,
            _ => {}
        }
    }

    pub fn judge_syncs(&mut self, all_count: bool) {
        for owner in &mut self.owners {
            for w in 0..owner.writes.len() {
                if owner.writes[w].synced || !owner.is_synced(w, all_count) {
                    continue;
                }
                let write = &mut owner.writes[w];
                write.synced = true;
                if self.print {
                    println!("{} of {} is synced", write.version, write.key);
                }
                let newest = self
                    .synced
                    .entry((write.key, write.generation))
                    .or_default();
                *newest = write.version.max(*newest);
            }
        }
    }

    // --- the course of things --------------------------------------------------------------------

    fn storm(&mut self) -> Checked {
        for step in 0..STEPS {
            self.note(|| format!("step {step}"));
            self.act();
            if self.chance(15) {
                self.tend_children()?;
            }
            if self.chance(18) {
                self.go_wrong();
            }
            self.forget_damage();
            self.check()?;
        }
        Ok(())
    }

    fn act(&mut self) {
        self.owners.retain(|owner| !owner.fenced);
        let r = self.rng.random_range(0..REPLICAS);
        if self.owners.is_empty() || self.chance(2) {
            return self.take_over();
        }
        let newest = self.owners.len() - 1;
        let o = if self.chance(80) {
            newest
        } else {
            self.rng.random_range(0..=newest)
        };
        match self.rng.random_range(0..20) {
            0..7 => self.write_any(o),
            7..11 => self.commit(r),
            11 => self.repeat(o),
            12 => self.send_missing(o),
            13 => self.seal(o),
            14 => self.replicas[r].tidy(),
            15 if self.replicas[r].is_up() => Engine::checkpoint(&self.replicas[r].engine).unwrap(),
            16 if self.chance(30) => self.remove(o),
            16 => self.pin(newest),
            17 => {
                if self.scrub(newest).is_some() {
                    let epoch = self.owners[newest].epoch;
                    self.note(|| format!("{epoch} has compared all replicas"));
                    self.coverage.one("scrubs");
                }
            }
            _ => {
                if !self.replicas[r].is_up() {
                    self.note(|| format!("replica {r} starts"));
                    self.replicas[r].start();
                }
                if self.owners[o].links[r].is_none() {
                    self.connect(o, r);
                }
            }
        }
    }

    /// Nothing goes wrong any more.
    fn calm(&mut self) -> Checked {
        for r in 0..REPLICAS {
            self.replicas[r].engine.fail_reads(0, 1);
            self.replicas[r].engine.read_again();
            self.replicas[r].engine.set_full(false);
            if !self.replicas[r].is_up() {
                self.replicas[r].start();
            }
        }
        for _ in 0..CALM {
            self.owners.retain(|owner| !owner.fenced);
            if self
                .owners
                .last()
                .is_none_or(|owner| owner.epoch < self.epoch)
            {
                self.take_over();
            }
            let Some(o) = self.owners.len().checked_sub(1) else {
                continue;
            };
            for r in 0..REPLICAS {
                if self.owners[o].links[r].is_none() {
                    self.connect(o, r);
                }
                self.commit(r);
                self.replicas[r].tidy();
                self.commit(r);
            }
            if self.owners[o].fenced {
                continue;
            }
            self.send_missing(o);
            (0..REPLICAS).for_each(|r| self.commit(r));
            let scrubbed = self.scrub(o).is_some();
            self.forget_damage();
            self.check()?;
            if scrubbed && self.is_settled(o) {
                self.end_children()?;
                return self.check_equal();
            }
        }
        Err("it does not settle".to_owned())
    }
}
