//! Two managers and their members, from seeds.
//!
//! One seed gives one history: clients with random transactions, which the primary's member commits by itself and whose rows are logged
//! before anybody is told, zones whose syncs take their time, a connection between the
//! managers that breaks, managers and members that are killed at any step, false suspicion, managers that are cut off from the zones,
//! streams of commits that end and begin again, members that become wrong. [`check`] judges: what was acknowledged is in the log, once; the
//! log's order is the order that the primary executed in; who serves has all of the log; in the end both members are what the log says.

mod check;
mod client;
mod database;
mod effects;
mod faults;
mod stream;
mod tests;

use std::collections::VecDeque;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulate::{Coverage, Outcome};

use super::flaw::Flaw;
use super::log::Identity;
use super::manager::{CommitAck, Effect, Life, Manager, Message, Role, Rules, Why};
use super::record::{Number, Record};
use super::rows::Lsn;

use client::Client;
use database::Database;
use stream::Stream;

/// Steps of one history before faults end.
const STEPS: u32 = 3_000;
/// Steps in which everybody must come to an end then.
const PATIENCE: u32 = 60_000;
const TIMEOUT_MS: u64 = 150;

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

/// A batch on its way to the zones.
struct Writing {
    site: usize,
    life: u32,
    epoch: u32,
    records: Vec<Record>,
}

/// What the zones have.
#[derive(Default)]
struct Zones {
    epoch: u32,
    name: Option<Identity>,
    log: Vec<Record>,
    first: u64,
    writing: Vec<Writing>,
}

/// A transaction that a member executes because the log says so.
struct Applying {
    record: Record,
    /// Of the server that its session is at; `None` if there is none in the life that it may be in.
    member_life: Option<u32>,
    life: Life,
}

/// A session of the member's says that it has executed this, in this life, which is heard later.
type Report = (Life, Number);

/// A manager, its member, and what is between them.
struct Site {
    manager: Manager,
    life: u32,
    is_alive: bool,
    serves: bool,
    /// It reaches the zones.
    reaches: bool,
    /// Which life of its member it has been told of.
    knows: Option<u32>,
    member: Database,
    /// The stream of the member's commits.
    stream: Option<Stream>,
    /// The end of the member's own commits when it was found that nobody makes more.
    began: Option<Lsn>,
    /// The epoch in which the log has all that was committed before it.
    level: Option<u32>,
    /// The member is to be replaced.
    replaces: bool,
    applying: Vec<Applying>,
    reports: Vec<Report>,
    /// What sessions said before their server crashed, and is heard only when it is back.
    late: Vec<Report>,
    /// Questions to the zones.
    asked: VecDeque<Effect>,
    /// Answers of the zones about an epoch: the one it was, the highest, and when it was asked.
    confirms: VecDeque<(u32, u32, u64)>,
    inbox: VecDeque<Message>,
}

pub struct World {
    rng: SmallRng,
    flaw: Option<Flaw>,
    rules: Rules,
    now_ms: u64,
    zones: Zones,
    sites: [Site; 2],
    is_linked: bool,
    clients: Vec<Client>,
    next_xid: u64,
    next_value: u64,
    faults_end: bool,
    /// What follows says nothing about managers.
    is_over: bool,
    coverage: Coverage,
    trace: bool,
    broken: Option<Broken>,
}

impl World {
    fn new(seed: u64, flaw: Option<Flaw>, trace: bool) -> World {
        let mut rng = SmallRng::seed_from_u64(seed);
        let rules = Rules {
            commit_ack: if rng.random_bool(0.5) {
                CommitAck::Both
            } else {
                CommitAck::Durable
            },
            timeout_ms: TIMEOUT_MS,
            lease_ms: TIMEOUT_MS / 2,
            lag_records: 20,
            window_records: 12,
            retain_records: rng.random_range(10..60),
            flaw,
            ..Rules::default()
        };
        let site = |system: u64| Site {
            manager: Manager::new(rules.clone(), 0),
            life: 0,
            is_alive: false,
            serves: false,
            reaches: true,
            knows: None,
            member: Database {
                is_alive: true,
                system,
                ..Database::default()
            },
            stream: None,
            began: None,
            level: None,
            replaces: false,
            applying: Vec::new(),
            reports: Vec::new(),
            late: Vec::new(),
            asked: VecDeque::new(),
            confirms: VecDeque::new(),
            inbox: VecDeque::new(),
        };
        let mut world = World {
            sites: [site(1), site(2)],
            rng,
            flaw,
            rules,
            now_ms: 0,
            zones: Zones {
                first: 1,
                ..Zones::default()
            },
            is_linked: true,
            clients: (0..4).map(|_| Client::default()).collect(),
            next_xid: 0,
            next_value: 0,
            faults_end: false,
            is_over: false,
            coverage: Coverage::default(),
            trace,
            broken: None,
        };
        for at in 0..2 {
            world.start(at);
        }
        world
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:6} {}", self.now_ms, what());
        }
    }

    fn break_promise(&mut self, what: String) {
        self.trace(|| format!("BROKEN: {what}"));
        self.broken.get_or_insert(Broken(what));
    }

    /// One history.
    fn run(seed: u64, flaw: Option<Flaw>, trace: bool) -> Outcome {
        let mut world = World::new(seed, flaw, trace);
        world.play();
        let mut coverage = std::mem::take(&mut world.coverage);
        coverage.one("histories");
        Outcome {
            coverage,
            broken: world.broken.map(|Broken(what)| what),
            trace: 0,
        }
    }

    fn play(&mut self) {
        for _ in 0..STEPS {
            self.step();
            if self.broken.is_some() || self.is_over {
                return;
            }
        }
        self.faults_end = true;
        self.heal();
        for _ in 0..PATIENCE {
            self.step();
            if self.broken.is_some() || self.is_over {
                return;
            }
            if self.is_settled() {
                return self.judge();
            }
        }
        let roles: Vec<Role> = self.sites.iter().map(|site| site.manager.role()).collect();
        let clients: Vec<String> = self.clients.iter().map(Client::standing).collect();
        self.break_promise(format!("nobody comes to an end: {roles:?} {clients:?}"));
    }

    /// True if all is done: clients have stopped, one serves, and the other one has everything.
    fn is_settled(&self) -> bool {
        let last = Number(self.zones.log.len() as u64);
        let has_all = |site: &Site| {
            let floor = site.manager.ledger().map(|ledger| ledger.floor());
            let has_nothing_else = site.manager.logged_of(site.member.system) >= site.member.end();
            floor == Some(last)
                && site.knows == Some(site.member.life)
                && has_nothing_else
                && site.member.wal.iter().all(|own| own.holds.is_empty())
                && site.applying.is_empty()
                && site.reports.is_empty()
                && site.late.is_empty()
        };
        let roles: Vec<Role> = self.sites.iter().map(|site| site.manager.role()).collect();
        self.clients.iter().all(Client::is_idle)
            && self.sites.iter().all(has_all)
            && roles.contains(&Role::Primary)
            && roles.contains(&Role::Standby)
    }

    fn step(&mut self) {
        self.now_ms += self.rng.random_range(0..3);
        self.check_reads();
        let at = self.rng.random_range(0..2);
        match self.rng.random_range(0..28) {
            0..=4 => self.client_acts(),
            5..=7 => self.apply_some(at),
            8..=12 => self.stream(at),
            13 | 14 => self.sync_one(),
            15 | 16 => self.answer_one(at),
            17 | 18 => self.deliver(at),
            19 | 20 => self.tick(at),
            21 => self.see_member(at),
            22 => self.transfer(at),
            23 => self.save(at),
            24 => self.end_writers(at),
            25 | 26 => self.hear_one(at),
            _ if !self.faults_end => self.fault(),
            _ => {}
        }
    }

    fn tick(&mut self, at: usize) {
        if self.sites[at].is_alive {
            self.with(at, |manager, out| manager.tick(out));
        }
    }

    /// What a client reads is not old: nobody serves in a higher epoch.
    fn check_reads(&mut self) {
        let now_ms = self.now_ms;
        let reads = |site: &&Site| site.is_alive && site.manager.reads(now_ms);
        let epochs: Vec<Option<u32>> = self
            .sites
            .iter()
            .filter(reads)
            .map(|site| site.manager.epoch())
            .collect();
        if epochs.len() > 1 {
            self.break_promise(format!("both answer reads, in the epochs {epochs:?}"));
        }
    }

    /// The manager hears how its member is.
    fn see_member(&mut self, at: usize) {
        let site = &mut self.sites[at];
        let life = site.member.is_alive.then_some(site.member.life);
        if !site.is_alive || life == site.knows {
            return;
        }
        if site.knows.take().is_some() {
            self.trace(|| format!("{at}: the member is down"));
            self.with(at, |manager, out| manager.member_down(out));
        } else {
            self.attend(at);
            for report in std::mem::take(&mut self.sites[at].late) {
                self.coverage.one("heard after the server has crashed");
                self.hear(at, report);
            }
        }
    }

    /// The manager finds out what its member has, which nobody writes to.
    fn attend(&mut self, at: usize) {
        let site = &mut self.sites[at];
        site.knows = Some(site.member.life);
        site.stream = None;
        site.replaces = false;
        let member = &mut site.member;
        let end = member.end();
        member.release(end);
        site.began = Some(end);
        let has: Vec<(u64, Lsn)> = [(member.system, end)]
            .into_iter()
            .chain(member.copied)
            .collect();
        let (system, logged) = (member.system, member.logged);
        let (ledger, is_marked) = (member.ledger(), member.is_marked);
        let (saved, log) = (member.floor, member.log);
        self.trace(|| format!("{at}: the member is up, with all up to {}", ledger.floor()));
        self.with(at, |manager, _| {
            manager.member_up(ledger, saved, is_marked, log);
            manager.member_has(has);
            manager.settled(system, logged);
        });
        self.lose_words();
    }

    /// The member's disk gets what was committed; the manager may have asked for it.
    fn save(&mut self, at: usize) {
        let site = &mut self.sites[at];
        if !site.member.is_alive || self.rng.random_bool(0.9) {
            return;
        }
        site.member.save();
        let knows = site.knows == Some(site.member.life);
        if !site.is_alive || !knows || self.rng.random_bool(0.2) {
            return;
        }
        let Some(floor) = site.manager.ledger().map(|ledger| ledger.floor()) else {
            return;
        };
        site.member.floor = site.member.floor.max(floor);
        site.member.log = site.member.log.or(site.manager.log());
        let logged = site.manager.logged_of(site.member.system);
        site.member.logged = site.member.logged.max(logged);
        let life = site.manager.life();
        self.with(at, |manager, out| manager.saved(life, floor, out));
    }

    /// The manager hears what a session of its member's has said, maybe long ago.
    fn hear_one(&mut self, at: usize) {
        let site = &mut self.sites[at];
        if site.reports.is_empty() || !site.is_alive {
            return;
        }
        let index = self.rng.random_range(0..site.reports.len());
        let report = site.reports.swap_remove(index);
        self.hear(at, report);
    }

    fn hear(&mut self, at: usize, report: Report) {
        let (life, number) = report;
        self.with(at, |manager, out| manager.applied(life, number, out));
    }

    /// A member that cannot be made current by the log gets the other one's state, with what the other one has of the log.
    fn transfer(&mut self, at: usize) {
        let from = 1 - at;
        let needs = matches!(
            self.sites[at].manager.role(),
            Role::Recovering(Why::Behind | Why::Diverged)
        );
        let other = &self.sites[from];
        let is_ready = needs
            && self.sites[at].is_alive
            && self.sites[at].member.is_alive
            && self.sites[at].applying.is_empty();
        if !is_ready
            || !other.member.is_alive
            || other.member.is_marked
            || self.rng.random_bool(0.7)
        {
            return;
        }
        // What a primary's member has is all that the log has, also of what the member has committed itself that gets the copy; but not
        // after a crash of which its manager has not heard.
        if other.manager.role() != Role::Primary || other.knows != Some(other.member.life) {
            return;
        }
        // The log has all that the copy has.
        let (system, end) = (other.member.system, other.member.end());
        if other.manager.logged_of(system) < end {
            return;
        }
        let copy = other.member.clone();
        self.trace(|| format!("{at}: gets the state of {from}"));
        self.coverage.one("state transfers");
        let member = &mut self.sites[at].member;
        member.content = copy.content;
        member.numbers = copy.numbers;
        member.floor = copy.floor;
        member.is_corrupt = copy.is_corrupt;
        member.is_marked = false;
        member.log = copy.log;
        member.copied = Some((system, end));
        // A slot of its own is made then.
        member.slot = member.end();
        member.logged = member.end();
        member.save();
        self.attend(at);
    }
}
