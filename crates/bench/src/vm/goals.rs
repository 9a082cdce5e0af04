//! What was hoped for, and what came of it.

use serde::Serialize;

use super::loads::Load;
use super::ways::Way;
use super::{Measured, Report};

/// One of them.
#[derive(Debug, Clone, Serialize)]
pub struct Goal {
    /// What is looked at.
    pub what: String,
    /// What was hoped for.
    pub wanted: String,
    /// What was seen.
    pub seen: f64,
    /// True if that is as hoped.
    pub met: bool,
}

const PAUSE_MS: f64 = 5.0;
const TIMES_FEWER: f64 = 20.0;
const WITH_COMMITS: f64 = 0.8;
const WITHOUT: f64 = 0.1;
const DOWNTIME_MS: f64 = 1000.0;
/// The machine and the interval that the goals are about.
const MEMORY_MB: u64 = 512;
const EPOCH_MS: u32 = 50;

/// Those that the report says something of.
pub(super) fn of(report: &Report) -> Vec<Goal> {
    // The load of that name if it was measured, or the next one.
    let find = |loads: &[Load], wanted: Way| {
        let cases = loads.iter().flat_map(|load| {
            let cases = report.cases.iter();
            cases.filter(move |case| case.load == *load && case.memory_mb == MEMORY_MB)
        });
        let ways: Vec<&Measured> = cases.flat_map(|case| &case.ways).collect();
        let mut ways = ways.into_iter().filter(|way| way.epoch_ms == EPOCH_MS);
        ways.find(|it| it.way == wanted)
    };
    let (in_functions, by_statements) = (
        [Load::Orders, Load::Statements],
        [Load::Statements, Load::Orders],
    );
    let mut goals = Vec::new();
    let mut put = |what: &str, wanted: String, seen: f64, met: bool| {
        let what = what.to_owned();
        goals.push(Goal {
            what,
            wanted,
            seen,
            met,
        });
    };
    if let Some(all) = find(&in_functions, Way::All) {
        let (pause, times) = (all.pause_p50_ms.median, all.times_fewer.median);
        put(
            "pause of a checkpoint, median, in ms",
            format!("below {PAUSE_MS}"),
            pause,
            pause < PAUSE_MS,
        );
        put(
            "bytes of pages and blocks that were written, by bytes sent",
            format!("at least {TIMES_FEWER}"),
            times,
            times >= TIMES_FEWER,
        );
    }
    if let Some(all) = find(&by_statements, Way::All) {
        let ratio = all.ratio.median;
        put(
            "throughput with commit protection, by that of the machine unprotected",
            format!("at least {WITH_COMMITS}"),
            ratio,
            ratio >= WITH_COMMITS,
        );
    }
    if let Some(everything) = find(&by_statements, Way::Memory) {
        let ratio = everything.ratio.median;
        put(
            "the same if everything waits",
            format!("about {WITHOUT}"),
            ratio,
            ratio <= 2.0 * WITHOUT,
        );
    }
    for failover in &report.failovers {
        let ms = failover.without_detection_ms.median;
        put(
            &format!(
                "no commits, without the detection, in ms: {}, {}",
                failover.guest, failover.way
            ),
            format!("below {DOWNTIME_MS}"),
            ms,
            ms < DOWNTIME_MS,
        );
    }
    goals
}
