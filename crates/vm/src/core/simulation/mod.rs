//! Two hosts, their machine, and the zones, from seeds.
//!
//! One seed gives one history: a machine that commits, checkpoints whose parts are late or lost, hosts that are killed at any step (also in the
//! middle of applying a checkpoint), stopped for a while, or lose power and what was not synced; a connection that breaks, zones that answer late
//! or not at all.
//! Judged is: what a client was told is in every machine that runs later; a machine runs on from exactly what the other one had at
//! that checkpoint; nobody hears a host that was replaced; in the end one runs and the other one is its current standby, or an operator is
//! asked which disk counts.

mod faults;
mod guest;
mod site;
mod tests;
mod zones;

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulate::{Coverage, Outcome};

use super::{Effect, Flaw, Follower, Guard, Message, Number, Role, Rules, Session, Who};
use guest::Guest;
use site::Site;
use zones::Zones;

/// Steps of one history before faults end.
const STEPS: u32 = 4_000;
/// Steps in which everybody must come to an end then.
const PATIENCE: u32 = 60_000;
const NAMES: [&str; 2] = ["a", "b"];

struct World {
    rng: SmallRng,
    flaw: Option<Flaw>,
    now_ms: u64,
    zones: Zones,
    sites: [Site; 2],
    is_linked: bool,
    next_life: u64,
    next_commit: u64,
    /// What clients were told.
    told: BTreeSet<u64>,
    /// What the machine was when a checkpoint was made.
    made: BTreeMap<(String, u64, Number), Guest>,
    faults_end: bool,
    coverage: Coverage,
    trace: bool,
    broken: Option<String>,
}

impl World {
    fn new(seed: u64, flaw: Option<Flaw>, trace: bool) -> World {
        let mut world = World {
            rng: SmallRng::seed_from_u64(seed),
            flaw,
            now_ms: 0,
            zones: Zones::default(),
            sites: [Site::new(), Site::new()],
            is_linked: true,
            next_life: 0,
            next_commit: 0,
            told: BTreeSet::new(),
            made: BTreeMap::new(),
            faults_end: false,
            coverage: Coverage::default(),
            trace,
            broken: None,
        };
        (0..2).for_each(|at| world.start(at));
        world
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:6} {}", self.now_ms, what());
        }
    }

    fn break_promise(&mut self, what: String) {
        self.trace(|| format!("BROKEN: {what}"));
        self.broken.get_or_insert(what);
    }

    fn run(seed: u64, flaw: Option<Flaw>, trace: bool) -> Outcome {
        let mut world = World::new(seed, flaw, trace);
        world.play();
        world.coverage.one("histories");
        Outcome {
            coverage: world.coverage,
            broken: world.broken,
            trace: world.now_ms * 1_000_003 + world.told.len() as u64,
        }
    }

    fn play(&mut self) {
        for _ in 0..STEPS {
            self.step();
            if self.broken.is_some() {
                return;
            }
        }
        self.faults_end = true;
        self.heal();
        for _ in 0..PATIENCE {
            self.step();
            if self.broken.is_some() {
                return;
            }
            if self.is_settled() {
                if self.waits_for_operator() {
                    self.coverage.one("nobody starts it");
                }
                self.coverage.some("acknowledged", self.told.len() as u64);
                return;
            }
        }
        let roles: Vec<&Role> = self.sites.iter().map(|site| site.guard().role()).collect();
        self.break_promise(format!("nobody comes to an end: {roles:?}"));
    }

    fn is_settled(&self) -> bool {
        let is_current = |at: usize| {
            matches!(
                self.sites[at].guard().role(),
                Role::Running(Follower::Current { .. })
            )
        };
        let follows = |at: usize| {
            matches!(
                self.sites[at].guard().role(),
                Role::Following { whole: Some(_), .. }
            )
        };
        (0..2).any(|at| is_current(at) && follows(1 - at)) || self.waits_for_operator()
    }

    /// True if nobody starts the machine: the disk that has the most may have lost something, and its host says so.
    fn waits_for_operator(&self) -> bool {
        let looks = |site: &Site| matches!(site.guard().role(), Role::Looking { .. });
        self.sites.iter().all(looks) && self.sites.iter().any(|it| it.guard().is_doubtful())
    }

    fn start(&mut self, at: usize) {
        self.next_life += 1;
        let life = self.next_life;
        let rules = Rules {
            first: at == 0,
            silence_ms: 200,
            confirm_ms: 120,
            heard_ms: 160,
            stuck_ms: 400,
            patience_ms: 600,
            retry_ms: 20 + 10 * at as u64,
            flaw: self.flaw,
        };
        let me = Who {
            name: NAMES[at].to_owned(),
            life,
        };
        self.trace(|| format!("{me} starts"));
        let boot = self.sites[at].boot();
        self.sites[at].start(Guard::new(me, boot, rules, self.now_ms));
    }

    fn step(&mut self) {
        self.now_ms += self.rng.random_range(0..3);
        let at = self.rng.random_range(0..2);
        let what = self.rng.random_range(0..22);
        if self.now_ms < self.sites[at].frozen_until_ms && what <= 20 {
            return;
        }
        match what {
            0..=5 => self.guest_acts(at),
            6..=8 => self.make_checkpoint(at),
            9..=13 => self.deliver(at),
            14 | 15 => self.apply(at),
            // A sync takes long.
            16 if self.rng.random_bool(0.2) => self.flush(at),
            17 | 18 => self.answer(at),
            19 | 20 => self.tick(at),
            _ if !self.faults_end => self.fault(),
            _ => {}
        }
    }

    fn tick(&mut self, at: usize) {
        if !self.sites[at].is_alive() {
            return;
        }
        let now_ms = self.now_ms;
        self.with(at, |guard, out| guard.tick(now_ms, out));
        if self.is_linked {
            let message = self.sites[at].guard().sign_of_life();
            self.send(at, site::Packet::Message(message));
        }
    }

    /// What was at the moment of a checkpoint.
    fn key(session: &Session, number: Number) -> (String, u64, Number) {
        (session.standby.to_string(), session.count, number)
    }

    /// Clients hear it.
    fn tell(&mut self, at: usize, outputs: Vec<u64>) {
        for output in outputs {
            self.told.insert(output);
            let newer = &self.sites[1 - at];
            let is_replaced = newer.runs_since > self.sites[at].runs_since;
            if is_replaced && newer.guest.as_ref().is_some_and(|guest| !guest.has(output)) {
                self.break_promise(format!("{output} is told by the host that was replaced"));
            }
        }
    }

    /// A host that holds the machine which the record says it runs does not forget it, and a machine that is handed over stands still.
    fn judge_decision(
        &mut self,
        at: usize,
        me: &Who,
        (before, after): (&Role, &Role),
        out: &[Effect],
    ) {
        let held = matches!(before, Role::Starting { whole: Some(_) });
        if held && matches!(after, Role::Looking { .. }) && self.zones.names_active(me) {
            self.break_promise("the machine that the record names is forgotten".to_owned());
        }
        let hands_over = out
            .iter()
            .any(|effect| matches!(effect, Effect::Send(Message::TakeOver(_))));
        let is_lost = out.contains(&Effect::Destroy);
        if hands_over && !is_lost && !self.sites[at].stands_still() {
            self.break_promise("the standby is to take over while the machine runs".to_owned());
        }
    }

    /// A machine begins to run: it must know all that clients were told.
    fn judge_start(&mut self, at: usize) {
        let lost = self.sites[at]
            .guest
            .as_ref()
            .map(|guest| self.told.iter().filter(|id| !guest.has(**id)).count());
        match lost {
            Some(0) => {}
            Some(lost) => self.break_promise(format!("{lost} of what clients were told is lost")),
            None => self.break_promise("there is no machine to start".to_owned()),
        }
    }
}
