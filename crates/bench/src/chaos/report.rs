//! What came of it, as JSON and as a table.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cluster::clients::verify::Check;
use serde::Serialize;
use understudy::demo::timeline::thousands;

use super::Flaw;
use super::faults::Refusal;
use super::plan::Fault;

/// A fault of the schedule, and what became of it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Struck {
    pub at_s: f64,
    pub kind: &'static str,
    pub fault: Fault,
    pub lasts_s: f64,
    /// Whom it struck.
    pub members: Vec<String>,
    /// Why it did not strike.
    pub refused: Option<Refusal>,
}

/// A process that ended by itself, and was started again.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Ended {
    pub at_s: f64,
    pub member: String,
    pub status: String,
}

/// How much clients did.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Counts {
    pub transfers: u64,
    pub transfers_unknown: u64,
    pub lists: u64,
    pub lists_unknown: u64,
    pub lists_refused: u64,
    pub numbers: u64,
    pub prepared: u64,
    pub snapshots: u64,
    pub strong_reads: u64,
    pub deeds: u64,
    pub ddl_rounds: u64,
}

impl Counts {
    /// Transactions that were acknowledged.
    fn acknowledged(&self) -> u64 {
        self.transfers + self.lists + self.numbers + self.prepared
    }
}

/// Everything that is known of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// True if all checks hold.
    pub passed: bool,
    /// Gives the same schedule again.
    pub seed: u64,
    /// What was wrong on purpose.
    pub flaw: Option<Flaw>,
    pub(super) heartbeat: String,
    /// How long there were faults and clients.
    pub seconds: f64,
    /// Epochs that began: every change of the active is one.
    pub epochs: u64,
    pub(super) counts: Counts,
    /// Silences of more than a second between acknowledged transfers, longest first.
    pub outages_ms: Vec<u64>,
    /// What was checked.
    pub checks: Vec<Check>,
    /// How long it took after each round until everything was whole, in seconds.
    pub healed_s: Vec<f64>,
    /// True if there was something to make clocks jump with.
    pub clocks: bool,
    pub(super) ended: Vec<Ended>,
    pub(super) struck: Vec<Struck>,
    /// Where data and logs are, if they were left.
    pub data: Option<PathBuf>,
}

impl Report {
    /// How often each kind of fault struck.
    fn kinds(&self) -> BTreeMap<&'static str, usize> {
        let mut kinds = BTreeMap::new();
        for struck in self.struck.iter().filter(|s| s.refused.is_none()) {
            *kinds.entry(struck.kind).or_default() += 1;
        }
        kinds
    }
}

/// The report as a person reads it.
pub fn table(report: &Report) -> String {
    let kinds = report.kinds();
    let faults: usize = kinds.values().sum();
    let kinds: Vec<String> = kinds
        .iter()
        .map(|(kind, n)| format!("{kind} {n}"))
        .collect();
    let longest = report.outages_ms.first().copied().unwrap_or(0);
    let silent: u64 = report.outages_ms.iter().sum();
    let healed = report.healed_s.iter().copied().fold(0.0, f64::max);
    let counts = &report.counts;
    let lines = [
        (
            "seed",
            format!("{} (--seed repeats the schedule)", report.seed),
        ),
        ("time", format!("{:.0} s", report.seconds)),
        ("faults", format!("{faults}: {}", kinds.join(", "))),
        ("epochs", report.epochs.to_string()),
        (
            "commits",
            format!(
                "{} acknowledged: transfers {}, appends {}, numbers {}, in two phases {}; {} rounds of table changes",
                thousands(counts.acknowledged()),
                thousands(counts.transfers),
                thousands(counts.lists),
                thousands(counts.numbers),
                thousands(counts.prepared),
                counts.ddl_rounds,
            ),
        ),
        (
            "no commits",
            format!("at most {longest} ms, {silent} ms in all"),
        ),
        (
            "whole again",
            format!(
                "{} times, after {healed:.1} s at most",
                report.healed_s.len()
            ),
        ),
        (
            "restarted",
            format!("{} processes ended by themselves", report.ended.len()),
        ),
    ];
    let mut out = String::from("\n");
    for (name, said) in lines {
        out.push_str(&format!("  {name:<14}{said}\n"));
    }
    if !report.clocks {
        out.push_str("  no clock jumped: Debian's libfaketime is not installed\n");
    }
    out.push('\n');
    for check in &report.checks {
        let mark = if check.passed { "ok  " } else { "FAIL" };
        out.push_str(&format!("  {mark}  {}: {}\n", check.name, check.detail));
    }
    out.push('\n');
    out
}
