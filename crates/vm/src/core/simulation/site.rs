//! A host: its decisions, its machine, its disk, and what it does about checkpoints.

mod checkpoints;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::Rng;
use rand::rngs::SmallRng;

use super::super::{Effect, Flaw, Follower, Gate, Guard, Message, Number, Role, Session};
use super::World;
use super::guest::{Contents, Did, Guest};
use super::zones::{Answer, Operation};

/// Checkpoints that may be on their way.
const UNDER_WAY: u64 = 2;

/// What goes from host to host.
#[derive(Debug, Clone)]
pub enum Packet {
    Message(Message),
    /// A block that the machine wrote, for the checkpoint that follows.
    Block(Session, Number, u64, Contents),
    Pages(Session, Number, BTreeMap<u64, Contents>),
    /// The checkpoint is complete; of the first one, all blocks as well.
    End(Session, Number, Guest, Option<BTreeMap<u64, Contents>>),
}

/// A checkpoint that is arriving, or is being applied.
#[derive(Debug, Default)]
struct Arriving {
    pages: BTreeMap<u64, Contents>,
    blocks: Vec<(u64, Contents)>,
    end: Option<(Guest, Option<BTreeMap<u64, Contents>>)>,
    are_pages_applied: bool,
}

/// A checkpoint for which the machine stood still, and of which nobody heard yet.
struct Making {
    session: Session,
    number: Number,
    is_last: bool,
    pages: BTreeMap<u64, Contents>,
    processor: Guest,
    blocks: Option<BTreeMap<u64, Contents>>,
}

/// The active host's part in a following.
struct Protection {
    session: Session,
    made: u64,
    confirmed: u64,
}

pub struct Site {
    guard: Option<Guard>,
    pub guest: Option<Guest>,
    runs: bool,
    /// When it began to run.
    pub runs_since: u64,
    /// The disk as it is read, and the part of it that survives a power failure.
    disk: BTreeMap<u64, Contents>,
    synced: BTreeMap<u64, Contents>,
    /// Counts power failures.
    boot: u64,
    /// The disk is being synced, and the guard waits for it; until the machine runs, nothing changes it.
    syncs: bool,
    is_complete: bool,
    /// It may be heard until then at most.
    until_ms: Option<u64>,
    holds_all: bool,
    /// All of its processes stand still until then.
    pub frozen_until_ms: u64,
    gate: Gate<u64>,
    dirty: BTreeSet<u64>,
    protection: Option<Protection>,
    making: Option<Making>,
    stands_still: bool,
    /// Its disk, or QEMU, does nothing until then.
    pub stuck_until_ms: u64,
    arriving: BTreeMap<Number, Arriving>,
    follows: Option<Session>,
    pub inbox: VecDeque<Packet>,
    asked: VecDeque<Operation>,
    answers: VecDeque<Answer>,
}

impl Site {
    pub fn new() -> Site {
        Site {
            guard: None,
            guest: None,
            runs: false,
            runs_since: 0,
            disk: BTreeMap::new(),
            synced: BTreeMap::new(),
            boot: 0,
            syncs: false,
            is_complete: false,
            until_ms: None,
            holds_all: false,
            frozen_until_ms: 0,
            gate: Gate::default(),
            dirty: BTreeSet::new(),
            protection: None,
            making: None,
            stands_still: false,
            stuck_until_ms: 0,
            arriving: BTreeMap::new(),
            follows: None,
            inbox: VecDeque::new(),
            asked: VecDeque::new(),
            answers: VecDeque::new(),
        }
    }

    /// What it had in memory is gone; its disk is what it was.
    pub fn kill(&mut self) {
        *self = Site {
            disk: std::mem::take(&mut self.disk),
            synced: std::mem::take(&mut self.synced),
            boot: self.boot,
            ..Site::new()
        };
    }

    /// Its host loses power: of each block that was written and not synced, either content may be on the disk.
    pub fn lose_power(&mut self, rng: &mut SmallRng) {
        self.kill();
        self.boot += 1;
        let written = std::mem::take(&mut self.disk);
        for (block, contents) in written {
            if rng.random_bool(0.5) {
                self.synced.insert(block, contents);
            }
        }
        self.disk = self.synced.clone();
    }

    /// Names this boot of the host.
    pub fn boot(&self) -> String {
        self.boot.to_string()
    }

    pub fn start(&mut self, guard: Guard) {
        self.kill();
        self.guard = Some(guard);
    }

    pub fn is_alive(&self) -> bool {
        self.guard.is_some()
    }

    pub fn guard(&self) -> &Guard {
        self.guard.as_ref().expect("asked of the living only")
    }

    pub fn is_applying(&self) -> bool {
        self.arriving
            .values()
            .any(|arriving| arriving.are_pages_applied)
    }

    pub fn runs(&self) -> bool {
        self.runs
    }

    pub fn stands_still(&self) -> bool {
        self.stands_still
    }
}

impl World {
    /// Gives the guard an event, and does what it wants.
    pub fn with<R>(
        &mut self,
        at: usize,
        event: impl FnOnce(&mut Guard, &mut Vec<Effect>) -> R,
    ) -> Option<R> {
        let mut out = Vec::new();
        let guard = self.sites[at].guard.as_mut()?;
        let (before, me) = (guard.role().clone(), guard.me().clone());
        guard.at(self.now_ms);
        let result = event(guard, &mut out);
        let after = guard.role().clone();
        self.judge_decision(at, &me, (&before, &after), &out);
        if std::mem::discriminant(&before) != std::mem::discriminant(&after) {
            self.trace(|| format!("{at}: {after:?}"));
        }
        for effect in out {
            self.act(at, effect);
        }
        Some(result)
    }

    fn act(&mut self, at: usize, effect: Effect) {
        if !matches!(
            effect,
            Effect::Send(Message::Alive(_)) | Effect::Release { .. }
        ) {
            self.trace(|| format!("{at}: {effect:?}"));
        }
        let site = &mut self.sites[at];
        match effect {
            Effect::Read => site.asked.push_back(Operation::Read),
            Effect::Own => site.asked.push_back(Operation::Own),
            Effect::Write(record) => site.asked.push_back(Operation::Write(record)),
            Effect::Send(message) => self.send(at, Packet::Message(message)),
            Effect::Boot => {
                site.guest = Some(Guest::boot(site.disk.clone()));
                site.syncs = true;
                self.coverage.one("boots");
                self.begin_to_run(at);
            }
            Effect::Sync => self.sync(at),
            Effect::Resume => self.resume(at),
            Effect::Destroy => {
                site.guest = None;
                site.runs = false;
                site.gate.discard();
                site.protection = None;
                site.making = None;
                site.arriving.clear();
                site.follows = None;
                site.stands_still = false;
                (site.syncs, site.is_complete) = (false, false);
            }
            Effect::Protect(session) => {
                site.protection = Some(Protection {
                    session,
                    made: 0,
                    confirmed: 0,
                });
                site.gate.made(Number(0));
                site.until_ms = None;
            }
            Effect::Unprotect => {
                site.protection = None;
                site.making = None;
            }
            Effect::Hold => {
                site.gate.hold();
                site.holds_all = true;
            }
            Effect::Release { number, until_ms } => {
                if let Some(protection) = &mut site.protection {
                    protection.confirmed = number.0;
                }
                site.until_ms = Some(until_ms);
                if !self.may_be_heard(at) {
                    return;
                }
                let site = &mut self.sites[at];
                let outputs = site.gate.release(number);
                self.tell(at, outputs);
            }
            Effect::Open => {
                (site.until_ms, site.holds_all) = (None, false);
                let outputs = site.gate.open();
                self.tell(at, outputs);
            }
            Effect::HandOver => {}
            Effect::GoOn => site.stands_still = false,
            Effect::Renew => {
                self.next_life += 1;
                let life = self.next_life;
                if let Some(guard) = self.sites[at].guard.as_mut() {
                    guard.renewed(life);
                }
            }
            Effect::Prepare(session) => {
                site.arriving.clear();
                // What its disk held is gone.
                site.disk.clear();
                site.synced.clear();
                site.is_complete = false;
                site.guest = Some(Guest::boot(BTreeMap::new()));
                site.follows = Some(session);
                self.coverage.one("followings");
            }
        }
    }

    fn begin_to_run(&mut self, at: usize) {
        let since = 1 + self
            .sites
            .iter()
            .map(|site| site.runs_since)
            .max()
            .unwrap_or(0);
        let site = &mut self.sites[at];
        site.runs = true;
        site.runs_since = since;
        site.gate.discard();
        (site.until_ms, site.holds_all) = (None, false);
        self.judge_start(at);
    }

    /// A takeover begins: what is here counts.
    fn sync(&mut self, at: usize) {
        if self.sites[at].is_applying() {
            self.coverage.one("takeovers in the middle of applying");
            if self.flaw != Some(Flaw::HalfApplied) {
                self.apply(at);
            }
        }
        let site = &mut self.sites[at];
        (site.syncs, site.is_complete) = (true, true);
    }

    /// True if its network lets through now what waits for no checkpoint.
    fn may_be_heard(&self, at: usize) -> bool {
        let until_ms = self.sites[at].until_ms;
        self.flaw == Some(Flaw::DeadlineIgnored) || until_ms.is_none_or(|it| self.now_ms < it)
    }

    /// Something of an open transaction, which waits for nothing.
    fn chat(&mut self, at: usize) {
        let site = &self.sites[at];
        if site.holds_all || !self.may_be_heard(at) {
            return;
        }
        self.coverage.one("heard without a checkpoint");
        if self.sites[1 - at].runs_since > site.runs_since {
            self.break_promise("the host that was replaced is heard".to_owned());
        }
    }

    fn resume(&mut self, at: usize) {
        self.coverage.one("takeovers");
        let site = &mut self.sites[at];
        site.arriving.clear();
        let session = site.follows.take();
        if let Some(guest) = &mut site.guest {
            guest.blocks = site.disk.clone();
        }
        let site = &self.sites[at];
        let is_exact = session.as_ref().is_some_and(|session| {
            self.made.iter().any(|((who, count, _), guest)| {
                *who == session.standby.to_string()
                    && *count == session.count
                    && Some(guest) == site.guest.as_ref()
            })
        });
        if !is_exact {
            self.break_promise("it runs on from what the other one never was".to_owned());
        }
        self.begin_to_run(at);
    }

    pub fn guest_acts(&mut self, at: usize) {
        let site = &mut self.sites[at];
        if !site.runs || site.stands_still || self.now_ms < site.stuck_until_ms {
            return;
        }
        let Some(guest) = &mut site.guest else {
            return;
        };
        match guest.step(&mut self.next_commit) {
            Did::Page(page) => {
                site.dirty.insert(page);
                self.chat(at);
            }
            Did::Block(block) => {
                let contents = guest.blocks.get(&block).cloned().unwrap_or_default();
                site.disk.insert(block, contents.clone());
                if let Some(protection) = site.protection.as_ref().filter(|p| p.made > 0) {
                    let number = Number(protection.made + 1);
                    let session = protection.session.clone();
                    self.send(at, Packet::Block(session, number, block, contents));
                }
            }
            Did::Said(id) => {
                // The database has flushed its log.
                site.synced = site.disk.clone();
                if let Some(output) = site.gate.put(id) {
                    self.tell(at, vec![output]);
                }
            }
        }
    }

    /// The disk is durable by now.
    pub fn flush(&mut self, at: usize) {
        let site = &mut self.sites[at];
        if !site.is_alive() {
            return;
        }
        site.synced = site.disk.clone();
        if std::mem::take(&mut site.syncs) {
            self.with(at, |guard, out| guard.durable(guard.me().life, out));
        }
    }

    pub fn send(&mut self, at: usize, packet: Packet) {
        if self.is_linked && self.sites[1 - at].is_alive() {
            self.sites[1 - at].inbox.push_back(packet);
        }
    }

    /// The zones do what was asked, or what they did is heard of.
    pub fn answer(&mut self, at: usize) {
        if !self.sites[at].is_alive() {
            return;
        }
        if let Some(operation) = self.sites[at].asked.pop_front() {
            let is_whole = self.faults_end || self.rng.random_bool(0.93);
            let is_lost = !self.faults_end && self.rng.random_bool(0.05);
            let luck = self.rng.random_bool(0.5);
            let is_fenced = self.flaw != Some(Flaw::FenceIgnored);
            let answer = self.zones.perform(operation, is_fenced, is_whole, luck);
            if matches!(answer, Answer::Refused) {
                self.coverage.one("records refused");
            }
            let answer = if is_lost { Answer::Refused } else { answer };
            self.sites[at].answers.push_back(answer);
            return;
        }
        let Some(answer) = self.sites[at].answers.pop_front() else {
            return;
        };
        self.trace(|| format!("{at}: zones: {answer:?}"));
        self.with(at, |guard, out| match answer {
            Answer::Read(record) => guard.read(record, out),
            Answer::Owned(epoch, record) => guard.owned(epoch, record, out),
            Answer::Written(record) => guard.written(&record, out),
            Answer::Refused => guard.refused(),
        });
    }
}
