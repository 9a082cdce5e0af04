//! What was found: `--json` prints exactly this.

use clap::ValueEnum;
use serde::Serialize;

use super::fault::Fault;
use crate::statistics::Sample;
use cluster::clients::verify::Check;
use understudy::demo::report::Phases;
use understudy::demo::timeline::{millis, thousands};

/// What can be measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Measurement {
    /// Each fault many times, on two nodes.
    Causes,
    /// Random faults one after the other, on three nodes.
    Row,
    /// No fault, but no processor time and a slow store.
    Busy,
}

/// One fault and what followed.
#[derive(Debug, Clone, Serialize)]
pub struct Round {
    /// What happened.
    pub fault: Fault,
    /// To whom.
    pub from: String,
    /// Who took over.
    pub to: String,
    /// The longest time without an acknowledged commit, over all clients.
    pub downtime_ms: f64,
    /// The steps, from the fault to the first commit afterwards.
    pub phases_ms: Phases,
    /// From the end of the takeover until a warm standby was there.
    pub protected_ms: f64,
}

impl Round {
    /// In a line.
    pub fn describe(&self) -> String {
        let steps = self.phases_ms.steps();
        let steps = steps.map(|(name, ms)| format!("{name} {}", millis(ms)));
        format!(
            "{}: {} lost, {} serves; {} without commits ({}); protected after {}",
            self.fault.name(),
            self.from,
            self.to,
            millis(self.downtime_ms),
            steps.join(", "),
            millis(self.protected_ms)
        )
    }
}

/// Several rounds on one cluster.
#[derive(Debug, Clone, Serialize)]
pub struct Rounds {
    /// What they have in common.
    pub name: String,
    /// How many nodes.
    pub nodes: usize,
    /// Commits that the clients were told of, in all rounds.
    pub acknowledged: u64,
    /// Commits whose answer never came.
    pub unknown: u64,
    /// What the zones took on disk, before and after.
    pub disk_bytes: (u64, u64),
    /// What was verified at the end.
    pub checks: Vec<Check>,
    /// Each of them.
    pub rounds: Vec<Round>,
}

impl Rounds {
    /// Of all rounds.
    pub fn of(&self, value: impl Fn(&Round) -> f64) -> Sample {
        Sample::of(self.rounds.iter().map(value).collect())
    }

    /// The highest.
    pub fn worst(&self, value: impl Fn(&Round) -> f64) -> f64 {
        self.rounds.iter().map(value).fold(0.0, f64::max)
    }
}

/// What came of being busy.
#[derive(Debug, Clone, Serialize)]
pub struct Busy {
    /// Duration of the load on the processors.
    pub seconds: f64,
    /// Threads that took the processors' time.
    pub threads: usize,
    /// Between any two of nodes and zones.
    pub round_trip_ms: f64,
    /// Should be none.
    pub takeovers: u32,
    /// Commits a second meanwhile.
    pub tps: f64,
    /// Commits that the clients were told of.
    pub acknowledged: u64,
    /// What was verified at the end.
    pub checks: Vec<Check>,
}

/// All of it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// True if every check holds and nobody took over without a reason.
    pub passed: bool,
    /// Two nodes, a fault many times.
    pub causes: Vec<Rounds>,
    /// Three nodes, random faults.
    pub row: Option<Rounds>,
    /// No faults.
    pub busy: Option<Busy>,
}

impl Report {
    /// Decides whether it passed.
    pub(super) fn judge(&mut self) {
        let rounds = self.causes.iter().chain(&self.row);
        let mut checks = rounds
            .flat_map(|rounds| &rounds.checks)
            .chain(self.busy.iter().flat_map(|busy| &busy.checks));
        let idle = self.busy.as_ref().is_none_or(|busy| busy.takeovers == 0);
        self.passed = idle && checks.all(|check| check.passed);
    }
}

/// For a person.
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    if !report.causes.is_empty() || report.row.is_some() {
        out.push_str(&format!(
            "\n  {:<20}{:>7}{:>14}{:>10}{:>16}{:>10}{:>14}\n",
            "", "rounds", "no commits", "worst", "protected again", "worst", "commits"
        ));
    }
    for rounds in report.causes.iter().chain(&report.row) {
        let downtime = rounds.of(|round| round.downtime_ms).median;
        let protected = rounds.of(|round| round.protected_ms).median;
        out.push_str(&format!(
            "  {:<20}{:>7}{:>14}{:>10}{:>16}{:>10}{:>14}\n",
            rounds.name,
            rounds.rounds.len(),
            millis(downtime),
            millis(rounds.worst(|round| round.downtime_ms)),
            millis(protected),
            millis(rounds.worst(|round| round.protected_ms)),
            thousands(rounds.acknowledged)
        ));
    }
    if let Some(busy) = &report.busy {
        out.push_str(&format!(
            "\n  busy: {} takeovers in {:.0} s with {} spinning threads and a store {} away; {} commits a second\n",
            busy.takeovers,
            busy.seconds,
            busy.threads,
            millis(busy.round_trip_ms),
            busy.tps
        ));
    }
    out.push('\n');
    let named = report
        .causes
        .iter()
        .chain(&report.row)
        .map(|rounds| (rounds.name.as_str(), &rounds.checks))
        .chain(report.busy.iter().map(|busy| ("busy", &busy.checks)));
    for (name, checks) in named {
        for check in checks {
            let mark = if check.passed { "ok  " } else { "FAIL" };
            out.push_str(&format!(
                "  {mark}  {name}: {}: {}\n",
                check.name, check.detail
            ));
        }
    }
    out
}
