//! Runs the histories of a simulation, each from a seed, and judges what they found.
//!
//! ```text
//!   seeds ──▶ threads ──▶ run(seed, flaw) ──▶ coverage ──▶ did enough happen?
//!                              │
//!                              └──▶ broken promise ──▶ the lowest seed, and the command that shows it again
//! ```
//!
//! Invariants: a seed's history depends on the seed and the flaw alone, so that whatever is found can be
//! seen again. A panic is a broken promise. A simulation in which too little happened fails as well, and
//! so does one that misses a flaw: the rule that is left out on purpose.
//!
//! ```
//! use simulate::{Coverage, Outcome, Simulation};
//!
//! #[derive(Debug, Clone, Copy, PartialEq)]
//! enum Flaw {
//!     /// An odd number is taken for an even one.
//!     OddAsEven,
//! }
//!
//! fn doubled_numbers_are_even(seed: u64, flaw: Option<Flaw>, _trace: bool) -> Outcome {
//!     let mut coverage = Coverage::default();
//!     coverage.one("histories");
//!     let number = if let Some(Flaw::OddAsEven) = flaw { seed } else { seed * 2 };
//!     let broken = (number % 2 == 1).then(|| format!("{number} is odd"));
//!     Outcome { coverage, broken, trace: number }
//! }
//!
//! const SIMULATION: Simulation<Flaw> = Simulation {
//!     target: "sim-even",
//!     unit: "histories",
//!     seeds: 1000,
//!     per_hundred: &[("histories", 100)],
//!     flaws: &[Flaw::OddAsEven],
//!     rare: &[],
//!     run: doubled_numbers_are_even,
//! };
//! SIMULATION.keeps_promises(100);
//! SIMULATION.repeats(10);
//! SIMULATION.catches_flaws(10);
//! ```

mod asked;
mod coverage;

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

pub use coverage::Coverage;

/// Runs of fewer histories than this say nothing about how often things happen.
const ENOUGH: u64 = 100;

/// What one history found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// What happened in it.
    pub coverage: Coverage,
    /// Which promise was broken, and how; ends the run.
    pub broken: Option<String>,
    /// A digest of all that happened in it, in order; 0 if none is made. The same for the same seed.
    pub trace: u64,
}

/// A simulation, and how it is run: by tests for a while, by a target of the Makefile for as long as wanted.
#[derive(Debug)]
pub struct Simulation<F: 'static> {
    /// The target of the Makefile.
    pub target: &'static str,
    /// What one run from a seed is called, as it is counted in the coverage.
    pub unit: &'static str,
    /// How many the target runs, unless it is told otherwise.
    pub seeds: u64,
    /// What must have happened in a hundred of them, at least: about half of what is counted.
    pub per_hundred: &'static [(&'static str, u64)],
    /// The rules that can be switched off.
    pub flaws: &'static [F],
    /// Flaws that few histories catch, each with the seed of one that does, which is tried first. A change of the simulation may
    /// make it another one: then all are searched, and the test says which it is now.
    pub rare: &'static [(F, u64)],
    /// One history: its seed, the rule that is switched off, and whether its steps are printed.
    pub run: fn(u64, Option<F>, bool) -> Outcome,
}

impl<F: Copy + Debug + PartialEq + Send + Sync> Simulation<F> {
    /// One history; a panic is a broken promise.
    pub fn run_one(&self, seed: u64, flaw: Option<F>) -> Outcome {
        let run = || (self.run)(seed, flaw, asked::trace());
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Outcome {
                broken: Some(format!("no panics: {}", text.unwrap_or_default())),
                ..Outcome::default()
            }
        })
    }

    /// Runs seeds from 0 on, on all processors.
    ///
    /// # Panics
    /// With the lowest seed that breaks a promise, or if too little happened.
    pub fn keeps_promises(&self, seeds: u64) {
        self.judge(self.run_many(0, seeds, None, false));
    }

    /// Runs every seed below `seeds` twice.
    ///
    /// # Panics
    /// If a seed's history differs from the same seed's, or does not from another seed's.
    pub fn repeats(&self, seeds: u64) {
        for seed in 0..seeds {
            let (one, other) = (self.run_one(seed, None), self.run_one(seed, None));
            assert_eq!(one, other, "seed {seed}");
        }
        assert_ne!(self.run_one(1, None), self.run_one(2, None));
    }

    /// Switches each rule off in turn (or the one that `FLAW` names): the checks can fail.
    ///
    /// # Panics
    /// If a flaw breaks no promise within so many seeds.
    pub fn catches_flaws(&self, within: u64) {
        self.catches_flaws_from(0, within, self.rare);
    }

    fn catches_flaws_from(&self, first: u64, within: u64, known: &[(F, u64)]) {
        let asked = asked::flaw(self.flaws);
        let flaws = asked.as_ref().map_or(self.flaws, std::slice::from_ref);
        let mut missed = Vec::new();
        for flaw in flaws {
            let known = known.iter().find(|(rare, _)| rare == flaw);
            let known = known.and_then(|(_, seed)| {
                let broken = self.run_one(*seed, Some(*flaw)).broken?;
                Some((*seed, broken))
            });
            let caught = match known {
                Some(caught) => Err(caught),
                None => self.run_many(first, within, Some(*flaw), false),
            };
            match caught {
                Err((seed, broken)) => println!("{flaw:?}: caught by seed {seed}: {broken}"),
                Ok(_) => missed.push(flaw),
            }
        }
        let unit = self.unit;
        assert!(
            missed.is_empty(),
            "not caught within {within} {unit}: {missed:?}"
        );
    }

    /// What the environment asks for: `SEEDS` of them from `FIRST` on, or one `SEED`, with `TRACE=1` to
    /// see it step by step, and `FLAW` to switch a rule off. With `FLAW` and no `SEED`, the first seed that catches it
    /// is looked for.
    ///
    /// # Panics
    /// As [`keeps_promises`](Simulation::keeps_promises).
    pub fn as_asked(&self) {
        let started = Instant::now();
        if asked::number("SEED").is_none() && asked::flaw(self.flaws).is_some() {
            let first = asked::number("FIRST").unwrap_or_default();
            let within = asked::number("SEEDS").unwrap_or(self.seeds);
            return self.catches_flaws_from(first, within, &[]);
        }
        let (first, seeds) = match asked::number("SEED") {
            Some(seed) => (seed, 1),
            None => {
                let seeds = asked::number("SEEDS").unwrap_or(self.seeds);
                (asked::number("FIRST").unwrap_or_default(), seeds)
            }
        };
        self.judge(self.run_many(first, seeds, asked::flaw(self.flaws), true));
        let seconds = started.elapsed().as_secs_f64();
        println!("{seeds} {} from {first} on in {seconds:.0} s", self.unit);
    }

    /// Seeds from `first` on, on all processors, until one breaks a promise; the lowest of those that did.
    fn run_many(
        &self,
        first: u64,
        seeds: u64,
        flaw: Option<F>,
        progress: bool,
    ) -> Result<Coverage, (u64, String)> {
        let (next, stop) = (AtomicU64::new(first), AtomicBool::new(false));
        let result: Mutex<(Coverage, Option<(u64, String)>)> = Mutex::default();
        let work = || {
            let mut coverage = Coverage::default();
            let mut found = None;
            while !stop.load(Ordering::Relaxed) {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                let done = seed - first;
                if done >= seeds {
                    break;
                }
                if progress && done > 0 && done.is_multiple_of(seeds.div_ceil(20)) {
                    println!("{done} of {seeds} {}", self.unit);
                }
                let outcome = self.run_one(seed, flaw);
                coverage.add(&outcome.coverage);
                if let Some(broken) = outcome.broken {
                    stop.store(true, Ordering::Relaxed);
                    found = Some((seed, broken));
                }
            }
            let mut result = result.lock().expect("nobody panics with it");
            result.0.add(&coverage);
            let first = result.1.take().into_iter().chain(found);
            result.1 = first.min_by_key(|(seed, _)| *seed);
        };
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        let (coverage, first) = result.into_inner().expect("nobody panics with it");
        first.map_or(Ok(coverage), Err)
    }

    fn judge(&self, outcome: Result<Coverage, (u64, String)>) {
        let coverage = outcome.unwrap_or_else(|(seed, broken)| {
            let target = self.target;
            panic!(
                "seed {seed} breaks {broken}\nto see it again: make {target} SEED={seed} TRACE=1"
            )
        });
        println!("{coverage}");
        let ran = coverage.of(self.unit);
        for (what, least) in self.per_hundred {
            let count = coverage.of(what);
            let enough = ran < ENOUGH || count * 100 >= least * ran;
            assert!(enough, "{count} {what} in {ran} {}", self.unit);
        }
    }
}
