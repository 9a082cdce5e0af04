//! What a soak did and found, as one object: `--json` prints exactly this.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use super::readers::Tally;
use super::sample::Sample;
use super::tables::{self, Table};
use crate::lag::Spread;
use cluster::clients::verify::Check;
use understudy::demo::takeover::Takeover;
use understudy::demo::timeline::thousands;

/// Results of a soak test.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// True if every check holds.
    pub passed: bool,
    /// What was checked.
    pub checks: Vec<Check>,
    /// From the start of the load to the kill.
    pub before_s: f64,
    /// From the kill to the end of the load.
    pub after_s: f64,
    /// From the last acknowledgement of the old active to the first of the new one.
    pub downtime_ms: f64,
    /// The new active's own record of its takeover.
    pub takeover: Takeover,
    /// Transactions acknowledged: pgbench's, and of the order entry.
    pub acknowledged: [u64; 2],
    /// Transactions a second, both kinds, until the kill.
    pub tps_before: f64,
    /// Rounds of table changes.
    pub ddl_rounds: u64,
    /// How far replay was behind the durable log until the kill.
    pub lag_bytes: Spread,
    /// The same in time.
    pub lag_ms: Spread,
    /// How often the standby's base moved until the kill.
    pub base_moves: u64,
    /// How often the standby attached afresh until the kill.
    pub fresh_attaches: u64,
    /// What sessions on each node were answered; the first node is the standby until the kill.
    pub answers: BTreeMap<String, Tally>,
    /// Lines of the logs that no healthy run has.
    pub unexpected_log_lines: Vec<String>,
    /// The cluster every few seconds.
    pub series: Vec<Sample>,
    /// What Cassandra says of its tables under the load, before the kill; empty with zones.
    pub tables: Vec<Table>,
    /// Where the picture is.
    pub picture: Option<PathBuf>,
    /// Where logs and data are, if kept.
    pub data: Option<PathBuf>,
}

impl Report {
    /// The largest of a quantity over the run.
    fn highest(&self, of: impl Fn(&Sample) -> Option<u64>) -> u64 {
        self.series.iter().filter_map(of).max().unwrap_or(0)
    }
}

/// For a person.
pub fn table(report: &Report) -> String {
    let mib = |bytes: u64| format!("{} MiB", thousands(bytes >> 20));
    let spread = |s: Spread| {
        let [p50, p99, max] = [s.p50, s.p99, s.max].map(thousands);
        format!("p50 {p50}, p99 {p99}, max {max}")
    };
    let [balances, orders] = report.acknowledged.map(thousands);
    let lines = [
        (
            "load",
            format!(
                "{:.0} s, killed, {:.0} s more",
                report.before_s, report.after_s
            ),
        ),
        (
            "acknowledged",
            format!("{balances} of pgbench's kind, {orders} of the order entry"),
        ),
        (
            "throughput",
            format!(
                "{:.0} transactions a second until the kill",
                report.tps_before
            ),
        ),
        (
            "table changes",
            format!("{} rounds", thousands(report.ddl_rounds)),
        ),
        ("lag", format!("{} bytes", spread(report.lag_bytes))),
        ("", format!("{} ms", spread(report.lag_ms))),
        (
            "base",
            format!(
                "moved {} times, reattached {} times",
                report.base_moves, report.fresh_attaches
            ),
        ),
        (
            "overlay",
            format!("at most {}", mib(report.highest(|s| s.overlay_bytes))),
        ),
        (
            "log kept",
            format!("at most {}", mib(report.highest(|s| s.log_bytes))),
        ),
        (
            "blocks' disks",
            format!("at most {}", mib(report.highest(|s| Some(s.disk_bytes)))),
        ),
        (
            "memory",
            format!(
                "an agent at most {}, a zone {}",
                mib(report.highest(|s| s.largest(false))),
                mib(report.highest(|s| s.largest(true)))
            ),
        ),
        (
            "no commits",
            format!("for {:.1} s at the takeover", report.downtime_ms / 1000.0),
        ),
    ];
    let mut out = String::from("\n");
    for (name, said) in lines {
        out.push_str(&format!("  {name:<16}{said}\n"));
    }
    for line in tables::lines(&report.tables) {
        out.push_str(&format!("  {:<16}{line}\n", "table"));
    }
    out.push('\n');
    for check in &report.checks {
        let mark = if check.passed { "ok  " } else { "FAIL" };
        out.push_str(&format!("  {mark}  {}: {}\n", check.name, check.detail));
    }
    out.push('\n');
    out
}
