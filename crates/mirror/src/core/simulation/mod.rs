//! Two managers and their members, from seeds.
//!
//! One seed gives one history: clients with random transactions, zones whose syncs take their time, a connection between the
//! managers that breaks, managers and members that are killed at any step, false suspicion, managers that are cut off from the zones,
//! members that become wrong. [`check`] judges: what was acknowledged is in the log, once; the log's order is the order that the
//! primary executed in; who serves has all of the log; in the end both members are what the log says.

mod check;
mod client;
mod database;
mod effects;
mod faults;
mod tests;

use std::collections::{BTreeMap, VecDeque};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulate::{Coverage, Outcome};

use super::flaw::Flaw;
use super::locks::Tx;
use super::log::Identity;
use super::manager::{Ack, Effect, Life, Manager, Message, Role, Rules, Why};
use super::record::{Number, Record};

use client::Client;
use database::{Database, Session};

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
    session: Session,
    at: usize,
    is_wrong: bool,
    /// Of the server that its session is at; `None` if there is none in the life that it may be in.
    member_life: Option<u32>,
    life: Life,
}

/// What a session of the member's says, which is heard later.
enum Report {
    /// Executed from the log.
    Applied(Life, Number),
    /// A client's.
    Committed(Life, Number),
}

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
    sessions: BTreeMap<Tx, Session>,
    applying: Vec<Applying>,
    commits: Vec<(Tx, Number)>,
    reports: Vec<Report>,
    /// What sessions said before their server crashed, and is heard only when it is back.
    late: Vec<Report>,
    /// Questions to the zones.
    asked: VecDeque<Effect>,
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
    next_tx: u64,
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
            ack: if rng.random_bool(0.5) {
                Ack::Both
            } else {
                Ack::Logged
            },
            timeout_ms: TIMEOUT_MS,
            lease_ms: TIMEOUT_MS / 2,
            lag_records: 20,
            window_records: 12,
            retain_records: rng.random_range(10..60),
            flaw,
            ..Rules::default()
        };
        let site = || Site {
            manager: Manager::new(rules.clone(), 0),
            life: 0,
            is_alive: false,
            serves: false,
            reaches: true,
            knows: None,
            member: Database {
                is_alive: true,
                ..Database::default()
            },
            sessions: BTreeMap::new(),
            applying: Vec::new(),
            commits: Vec::new(),
            reports: Vec::new(),
            late: Vec::new(),
            asked: VecDeque::new(),
            inbox: VecDeque::new(),
        };
        let mut world = World {
            sites: [site(), site()],
            rng,
            flaw,
            rules,
            now_ms: 0,
            zones: Zones {
                first: 1,
                ..Zones::default()
            },
            is_linked: true,
            clients: (0..4).map(Client::new).collect(),
            next_tx: 0,
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
            site.member.ledger().floor() == last
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
            0..=6 => self.client_acts(),
            7..=10 => self.apply_some(at),
            11 | 12 => self.commit_one(at),
            13 | 14 => self.sync_one(),
            15 | 16 => self.answer_one(at),
            17 | 18 => self.deliver(at),
            19 | 20 => self.tick(at),
            21 => self.see_member(at),
            22 => self.transfer(at),
            23 => self.save(at),
            24..=26 => self.hear_one(at),
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
            site.knows = life;
            let (ledger, is_marked) = (site.member.ledger(), site.member.is_marked);
            let (saved, log) = (site.member.floor, site.member.log);
            self.trace(|| format!("{at}: the member is up, with all up to {}", ledger.floor()));
            self.with(at, |manager, _| {
                manager.member_up(ledger, saved, is_marked, log)
            });
            for report in std::mem::take(&mut self.sites[at].late) {
                self.coverage.one("heard after the server has crashed");
                self.hear(at, report);
            }
        }
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
        self.with(at, |manager, out| match report {
            Report::Applied(life, number) => manager.applied(life, number, out),
            Report::Committed(life, number) => manager.committed(life, number, out),
        });
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
        if other.manager.role() != Role::Primary && !self.faults_end {
            return;
        }
        let copy = other.member.clone();
        self.trace(|| format!("{at}: gets the state of {from}"));
        self.coverage.one("state transfers");
        let member = &mut self.sites[at].member;
        member.lists = copy.lists;
        member.numbers = copy.numbers;
        member.is_corrupt = copy.is_corrupt;
        member.is_marked = false;
        member.save();
        let ledger = member.ledger();
        member.floor = ledger.floor();
        member.log = copy.log;
        let (saved, log) = (member.floor, member.log);
        self.with(at, |manager, _| {
            manager.member_up(ledger, saved, false, log)
        });
    }
}
