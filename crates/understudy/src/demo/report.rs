//! What a demo found, as one object: `--json` prints exactly this, the timeline and the picture
//! are drawn from it.

use std::path::PathBuf;

use serde::Serialize;

use super::proxied::Proxied;

use cluster::clients::clock::Offset;
use cluster::clients::history::{History, Outage};
use cluster::clients::verify::{Check, Comparison};

/// The steps of a takeover, in milliseconds, one after the other from the kill to the first
/// acknowledged commit. Their sum is the time from the kill to that commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Phases {
    /// From the kill until the standby suspects the active.
    pub detect: f64,
    /// Until a majority of the zones refuses the old writer.
    pub fence: f64,
    /// Until the end of the log is fixed.
    pub log_tail: f64,
    /// Until PostgreSQL has replayed to it.
    pub replay: f64,
    /// Until the views are switched and PostgreSQL accepts writes.
    pub promote: f64,
    /// Until a client's commit is acknowledged.
    pub first_commit: f64,
}

impl Phases {
    /// Names and lengths, in order.
    pub fn steps(&self) -> [(&'static str, f64); 6] {
        [
            ("detect", self.detect),
            ("fence", self.fence),
            ("log_tail", self.log_tail),
            ("replay", self.replay),
            ("promote", self.promote),
            ("first_commit", self.first_commit),
        ]
    }

    /// From the kill to the first commit.
    pub fn total(&self) -> f64 {
        self.steps().iter().map(|(_, ms)| ms).sum()
    }
}

/// When each step of the takeover ended, on the run's clock. Each is at least the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moments {
    /// The kill.
    pub killed: Offset,
    /// The standby suspects.
    pub suspected: Offset,
    /// It owns the new epoch.
    pub fenced: Offset,
    /// The log's end is fixed.
    pub tail_read: Offset,
    /// It is replayed.
    pub replayed: Offset,
    /// PostgreSQL accepts writes.
    pub promoted: Offset,
    /// A client got an acknowledgement.
    pub first_commit: Offset,
}

impl Moments {
    /// The lengths between the moments. A moment that seems earlier than the one before (two
    /// processes wrote them) counts as the same moment.
    pub fn phases(&self) -> Phases {
        let mut at = self.killed;
        let mut until = |next: Offset| {
            let next = next.max(at);
            let length = Offset(next.0 - at.0).millis();
            at = next;
            length
        };
        Phases {
            detect: until(self.suspected),
            fence: until(self.fenced),
            log_tail: until(self.tail_read),
            replay: until(self.replayed),
            promote: until(self.promoted),
            first_commit: until(self.first_commit),
        }
    }
}

/// What a demo did and found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// True if nothing was lost and every check holds.
    pub passed: bool,
    /// Commits the clients were told of.
    pub acknowledged: u64,
    /// Transactions in the database afterwards.
    pub present: u64,
    /// Acknowledged commits that are not there.
    pub lost: u64,
    /// Transactions that are there though no client committed them.
    pub unexpected: u64,
    /// Commits whose answer was lost with the connection; each may be there or not.
    pub unknown: u64,
    /// How many of those are there.
    pub unknown_present: u64,
    /// From the last acknowledgement of the old active to the first of the new one.
    pub downtime_ms: f64,
    /// The steps from the kill to the first commit.
    pub phases_ms: Phases,
    /// Commits a second in the five seconds before the kill.
    pub tps_before: f64,
    /// Commits a second from the first commit after the takeover to the end.
    pub tps_after: f64,
    /// How far the standby's replay was behind the active's log at the kill, if it was seen.
    pub lag_bytes_at_kill: Option<u64>,
    /// What was checked.
    pub checks: Vec<Check>,
    /// Decides the moment of the kill and the rows touched.
    pub seed: u64,
    /// When the active was killed, after the load began.
    pub killed_at_ms: f64,
    /// Length of the load.
    pub duration_ms: f64,
    /// Concurrent clients.
    pub clients: u16,
    /// pgbench's scale.
    pub scale: u32,
    /// Rounds of table changes beside the load, if asked for.
    pub ddl_rounds: Option<u64>,
    /// From the restart of the killed node until it followed as a standby, if asked for.
    pub rejoined_ms: Option<f64>,
    /// What the clients saw through a proxy, if there was one.
    #[serde(flatten)]
    pub proxied: Option<Proxied>,
    /// What PostgreSQL says it is.
    pub postgres: String,
    /// Who was killed.
    pub killed_node: String,
    /// Who took over.
    pub new_active: String,
    /// Epoch that this takeover began.
    pub epoch: u32,
    /// Processes killed with the node.
    pub killed_processes: usize,
    /// Where the picture is.
    pub picture: Option<PathBuf>,
    /// Where logs and data are, if kept.
    pub data: Option<PathBuf>,
}

impl Report {
    /// Takes over what the comparison says.
    pub fn judge(&mut self, comparison: &Comparison, checks: Vec<Check>) {
        self.acknowledged = comparison.acknowledged;
        self.present = comparison.present;
        self.lost = comparison.lost.len() as u64;
        self.unexpected = comparison.unexpected.len() as u64;
        self.unknown = comparison.unknown;
        self.unknown_present = comparison.unknown_present;
        self.passed = self.lost == 0 && checks.iter().all(|check| check.passed);
        self.checks = checks;
    }

    /// Takes over what the clients saw through a proxy: it must have told nobody anything wrong.
    pub fn judge_proxy(&mut self, proxied: Proxied) {
        self.passed &= proxied.told_wrong == 0;
        self.proxied = Some(proxied);
    }

    /// Takes over what the clients saw of the outage.
    pub fn measure(&mut self, history: &History, killed: Offset, outage: &Outage, end: Offset) {
        const BEFORE_US: i64 = 5_000_000;
        let from = Offset((killed.0 - BEFORE_US).max(0));
        self.downtime_ms = Offset(outage.length().as_micros() as i64).millis();
        self.tps_before = history.rate(from, killed);
        self.tps_after = history.rate(outage.first_after, end);
        self.killed_at_ms = killed.millis();
        self.duration_ms = end.millis();
    }
}

#[cfg(test)]
impl Report {
    /// A report to draw, for tests.
    pub fn sample() -> Report {
        Report {
            passed: true,
            acknowledged: 5199,
            present: 5200,
            lost: 0,
            unexpected: 0,
            unknown: 2,
            unknown_present: 1,
            downtime_ms: 801.0,
            phases_ms: Phases::default(),
            tps_before: 1000.0,
            tps_after: 990.0,
            lag_bytes_at_kill: Some(4096),
            checks: Vec::new(),
            seed: 7,
            killed_at_ms: 3000.0,
            duration_ms: 6000.0,
            clients: 4,
            scale: 10,
            ddl_rounds: None,
            rejoined_ms: None,
            proxied: None,
            postgres: "PostgreSQL 15.18".into(),
            killed_node: "alice".into(),
            new_active: "bob".into(),
            epoch: 2,
            killed_processes: 24,
            picture: None,
            data: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_add_up_to_the_time_from_the_kill_to_the_first_commit() {
        let at = |ms: i64| Offset(ms * 1000);
        let phases = Moments {
            killed: at(10_000),
            suspected: at(10_400),
            fenced: at(10_412),
            tail_read: at(10_420),
            // Another process's clock reading, a little early.
            replayed: at(10_419),
            promoted: at(10_600),
            first_commit: at(10_650),
        }
        .phases();
        assert_eq!(
            phases.steps().map(|(_, ms)| ms),
            [400.0, 12.0, 8.0, 0.0, 180.0, 50.0]
        );
        assert_eq!(phases.total(), 650.0);
    }
}
