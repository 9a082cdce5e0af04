//! A model of PostgreSQL's group commit, for tests: clients, one flush at a time, and a processor.
//!
//! Who comes first when no flush is under way waits for the delay, and takes along whoever has come until then. When
//! the flush is over, all of these begin their next transactions, which take turns on the processor.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::tuner::Tuner;
use super::window::Reading;
use super::{ASK_AFTER, Pace};

const ROUND_TRIP_MS: f64 = 35.0;
/// What zones and agent add to it.
const FLUSH_MS: f64 = 2.0;
const BACKGROUND_EVERY_MS: f64 = 200.0;
/// How long it takes until what the tuner told is in force.
const IN_FORCE_AFTER_MS: f64 = 300.0;

/// Clients that do the same.
#[derive(Clone, Copy)]
struct Load {
    clients: usize,
    /// What a transaction takes of the processor.
    processor_ms: f64,
    /// What it takes besides: up to this.
    statements_ms: f64,
    /// True if the WAL writer flushes for itself at times.
    background: bool,
}

const fn pgbench(clients: usize) -> Load {
    Load {
        clients,
        processor_ms: 0.22,
        statements_ms: 1.0,
        background: false,
    }
}

struct Flush {
    /// Whose log it contains came before this.
    takes_until_ms: f64,
    ends_ms: f64,
}

struct Model {
    load: Load,
    delay_ms: f64,
    random: SmallRng,
    /// When each client's commit asks for a flush, or did.
    commits_ms: Vec<f64>,
    processor_free_ms: f64,
    flush: Option<Flush>,
    free_ms: f64,
    background_ms: f64,
    transactions: u64,
    flushes: u64,
}

impl Model {
    fn new(load: Load, delay_ms: f64) -> Model {
        let mut model = Model {
            load,
            delay_ms,
            random: SmallRng::seed_from_u64(7),
            commits_ms: Vec::new(),
            processor_free_ms: 0.0,
            flush: None,
            free_ms: 0.0,
            background_ms: 0.0,
            transactions: 0,
            flushes: 0,
        };
        model.be(load);
        model
    }

    /// Other clients from now on.
    fn be(&mut self, load: Load) {
        self.load = load;
        self.flush = None;
        self.commits_ms = (0..load.clients)
            .map(|_| self.free_ms + self.random.random_range(0.0..ROUND_TRIP_MS))
            .collect();
    }

    fn run_until(&mut self, now_ms: f64) {
        loop {
            let under_way = self.flush.take();
            let Some(flush) = under_way.or_else(|| self.begin(now_ms)) else {
                return;
            };
            if flush.ends_ms > now_ms {
                self.flush = Some(flush);
                return;
            }
            self.end(&flush);
        }
    }

    /// The next flush, if it begins before `now_ms`.
    fn begin(&mut self, now_ms: f64) -> Option<Flush> {
        let commits_ms = self.commits_ms.iter().copied();
        let first_ms = commits_ms.fold(f64::INFINITY, f64::min).max(self.free_ms);
        let background_ms = match self.load.background {
            true => self.background_ms.max(self.free_ms),
            false => f64::INFINITY,
        };
        let begins_ms = first_ms.min(background_ms);
        if begins_ms > now_ms {
            return None;
        }
        let in_background = background_ms < first_ms;
        if in_background {
            self.background_ms = begins_ms + BACKGROUND_EVERY_MS;
        }
        let waits = !in_background && self.load.clients > 3;
        let takes_until_ms = begins_ms + if waits { self.delay_ms } else { 0.0 };
        let flush_ms = ROUND_TRIP_MS + FLUSH_MS * self.random.random_range(0.5..1.5);
        Some(Flush {
            takes_until_ms,
            ends_ms: takes_until_ms + flush_ms,
        })
    }

    fn end(&mut self, flush: &Flush) {
        self.flushes += 1;
        self.free_ms = flush.ends_ms;
        for commit_ms in &mut self.commits_ms {
            if *commit_ms <= flush.takes_until_ms {
                self.transactions += 1;
                let begins_ms = self.processor_free_ms.max(flush.ends_ms);
                let processor_ms = self.load.processor_ms * self.random.random_range(0.5..1.5);
                self.processor_free_ms = begins_ms + processor_ms;
                let statements_ms = self.random.random_range(0.0..=self.load.statements_ms);
                *commit_ms = self.processor_free_ms + statements_ms;
            }
        }
    }

    fn waiting(&self, now_ms: f64) -> u64 {
        self.commits_ms.iter().filter(|at| **at <= now_ms).count() as u64
    }
}

/// Transactions a second with a delay that stays.
fn fixed(load: Load, delay_ms: f64) -> f64 {
    let mut model = Model::new(load, delay_ms);
    model.run_until(30_000.0);
    model.transactions as f64 / 30.0
}

fn best_fixed(load: Load) -> f64 {
    let delays = (5..=35).map(|quarters| f64::from(quarters) * 0.25);
    delays
        .map(|delay_ms| fixed(load, delay_ms))
        .fold(0.0, f64::max)
}

/// A model with a tuner at work.
struct Tuned {
    model: Model,
    tuner: Tuner,
    pace: Pace,
    now_ms: f64,
    /// What was told, and when.
    told: (Duration, f64),
    changes: u32,
}

impl Tuned {
    fn new(load: Load) -> Tuned {
        let tuner = Tuner::new(Duration::from_secs_f64(ROUND_TRIP_MS / 1000.0));
        Tuned {
            model: Model::new(load, 0.0),
            told: (tuner.delay(), 0.0),
            tuner,
            pace: Pace::default(),
            now_ms: 0.0,
            changes: 0,
        }
    }

    /// Transactions a second, and how often the delay changed, in the next minutes.
    fn minutes(&mut self, minutes: f64) -> (f64, u32) {
        let (began_ms, end_ms) = (self.now_ms, self.now_ms + minutes * 60_000.0);
        let (transactions, changes) = (self.model.transactions, self.changes);
        while self.now_ms < end_ms {
            self.step();
        }
        let seconds = (self.now_ms - began_ms) / 1000.0;
        let more = self.model.transactions - transactions;
        (more as f64 / seconds, self.changes - changes)
    }

    fn step(&mut self) {
        let passed = self.pace.ask_after();
        assert!(passed <= ASK_AFTER.1);
        self.now_ms += passed.as_secs_f64() * 1000.0;
        self.model.run_until(self.now_ms);
        let round_trip = Duration::from_secs_f64(ROUND_TRIP_MS / 1000.0);
        self.tuner.pass(passed, round_trip);
        let delay_us = (self.model.delay_ms * 1000.0).round() as u64;
        self.tuner.read(Reading {
            passed,
            waiting: self.model.waiting(self.now_ms),
            clients: self.model.load.clients as u64,
            transactions: self.model.transactions,
            flushes: self.model.flushes,
            delay: Duration::from_micros(delay_us),
        });
        if self.tuner.delay() != self.told.0 {
            self.told = (self.tuner.delay(), self.now_ms);
            self.changes += 1;
        }
        if self.now_ms > self.told.1 + IN_FORCE_AFTER_MS {
            self.model.delay_ms = self.told.0.as_secs_f64() * 1000.0;
        }
    }
}

#[test]
fn the_model_has_a_knee_as_postgresql_has() {
    for (clients, short_ms, good_ms) in [(8, 0.0, 3.0), (32, 3.0, 8.0)] {
        let load = pgbench(clients);
        let (short, good) = (fixed(load, short_ms), fixed(load, good_ms));
        assert!(good > 1.3 * short, "{clients} clients: {short} and {good}");
        assert!(fixed(load, 15.0) < 0.95 * good);
    }
}

// Each change of the delay rewrites the shared configuration: a search that goes by chance would never come to rest.
// hazard: NODE-2
#[test]
fn tuner_settles_near_the_knee_and_stays_calm() {
    for clients in [4, 8, 16, 32] {
        let load = pgbench(clients);
        let best = best_fixed(load);
        let mut tuned = Tuned::new(load);
        tuned.minutes(2.0);
        let (rate, _) = tuned.minutes(3.0);
        assert!(rate > 0.94 * best, "{clients} clients: {rate} of {best}");
        let (rate, changes) = tuned.minutes(120.0);
        assert!(rate > 0.94 * best, "{clients} clients: {rate} of {best}");
        assert!(changes <= 10, "{clients} clients: {changes} changes");
    }
}

// hazard: NODE-2
#[test]
fn flushes_of_others_do_not_mislead_it() {
    for clients in [8, 32] {
        let load = Load {
            background: true,
            ..pgbench(clients)
        };
        let best = best_fixed(load);
        let (rate, changes) = Tuned::new(load).minutes(120.0);
        assert!(rate > 0.94 * best, "{clients} clients: {rate} of {best}");
        assert!(changes <= 36, "{clients} clients: {changes} changes");
    }
}

#[test]
fn more_and_fewer_clients_are_followed() {
    let mut tuned = Tuned::new(pgbench(8));
    tuned.minutes(5.0);
    for clients in [32, 8] {
        let load = pgbench(clients);
        tuned.model.be(load);
        tuned.minutes(3.0);
        let (rate, best) = (tuned.minutes(5.0).0, best_fixed(load));
        assert!(rate > 0.94 * best, "{clients} clients: {rate} of {best}");
    }
}

// hazard: NODE-2
#[test]
fn clients_that_take_turns_or_are_in_no_step_are_left_alone() {
    for (processor_ms, statements_ms) in [(0.1, 60.0), (0.1, 150.0), (1.5, 5.0)] {
        let load = Load {
            clients: 24,
            processor_ms,
            statements_ms,
            background: false,
        };
        let mut tuned = Tuned::new(load);
        let (rate, changes) = tuned.minutes(120.0);
        let best = best_fixed(load);
        let case = format!("{processor_ms} ms, {statements_ms} ms: {rate} of {best}, {changes}");
        assert!(rate > 0.93 * best && changes <= 36, "{case}");
    }
}

#[test]
fn a_load_that_stops_changes_nothing() {
    let mut tuned = Tuned::new(pgbench(32));
    tuned.minutes(5.0);
    let delay = tuned.tuner.delay();
    tuned.model.be(pgbench(0));
    assert_eq!(tuned.minutes(30.0).1, 0);
    tuned.model.be(pgbench(2));
    assert_eq!(tuned.minutes(30.0).1, 0, "nobody is waited for");
    assert_eq!(tuned.tuner.delay(), delay);
}
