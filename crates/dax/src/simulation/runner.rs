//! Runs many seeds on all processors, and tells which one failed and how to see it again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::checkers::Violation;
use super::coverage::Coverage;
use super::flaw::Flaw;
use super::schedule::{Report, Schedule};

/// A seed whose schedule broke a promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub seed: u64,
    pub violation: Violation,
}

impl Failure {
    /// What is wrong, and the command that shows it.
    pub fn describe(&self) -> String {
        let Failure { seed, violation } = self;
        format!(
            "seed {seed} breaks {}: {}\nto see it again: make sim SEED={seed} TRACE=1",
            violation.checker, violation.what
        )
    }
}

/// One schedule; a panic is a broken promise, too.
pub(super) fn run_one(seed: u64, flaw: Option<Flaw>, print: bool) -> Report {
    catch_unwind(|| Schedule::run(seed, flaw, print)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Report {
            coverage: Coverage::default(),
            trace_hash: 0,
            violation: Some(Violation {
                checker: "no panics",
                what: text.unwrap_or_default(),
            }),
        }
    })
}

/// Runs so many seeds from `from` on, until one fails. Says how far it is, if that is wanted.
///
/// # Errors
/// The lowest seed that failed.
pub(super) fn run_many(from: u64, seeds: u64, progress: bool) -> Result<Coverage, Failure> {
    let (next, stop) = (AtomicU64::new(from), AtomicBool::new(false));
    let result: Mutex<(Coverage, Option<Failure>)> = Mutex::default();
    let work = || {
        let mut coverage = Coverage::default();
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let done = seed - from;
            if done >= seeds {
                break;
            }
            if progress && done > 0 && done.is_multiple_of(seeds.div_ceil(20)) {
                println!("{done} of {seeds} schedules");
            }
            let report = run_one(seed, None, false);
            coverage.add(&report.coverage);
            if let Some(violation) = report.violation {
                stop.store(true, Ordering::Relaxed);
                let failure = Failure { seed, violation };
                let first = &mut result.lock().unwrap().1;
                if first.as_ref().is_none_or(|f| seed < f.seed) {
                    *first = Some(failure);
                }
            }
        }
        result.lock().unwrap().0.add(&coverage);
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| {
            scope.spawn(AssertUnwindSafe(work));
        });
    });
    let (coverage, failure) = result.into_inner().unwrap();
    failure.map_or(Ok(coverage), Err)
}

/// How many schedules it takes until the checkers see a flaw, and what they see.
pub(super) fn first_to_catch(flaw: Flaw, within: u64) -> Option<(u64, Violation)> {
    (0..within).find_map(|seed| Some((seed + 1, run_one(seed, Some(flaw), false).violation?)))
}
