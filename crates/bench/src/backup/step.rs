//! One backup, restore or start, and what it cost.
//!
//! Invariant: costs are differences of the counters of the whole machine, without the clients' load.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use cluster::clients::clock::{Clock, Offset};
use cluster::clients::history::History;
use nix::unistd::{SysconfVar, sysconf};
use serde::Serialize;

use crate::soak::tree_bytes;
use crate::statistics::quantile;

/// One backup, restore or start.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// Name of the step.
    pub name: &'static str,
    /// How long it took.
    pub seconds: f64,
    /// Processor time of the whole machine in seconds, without that of the clients' load at rest.
    pub cpu_seconds: f64,
    /// By how much the repository grew on the disk.
    pub stored_bytes: u64,
    /// Latency that half of the clients' transactions stayed below meanwhile, in milliseconds.
    pub p50_ms: f64,
    /// The same for all but a hundredth.
    pub p99_ms: f64,
}

/// Counters at the beginning of a step.
pub struct Before<'a> {
    clock: Clock,
    at: Offset,
    since: Instant,
    cpu_seconds: f64,
    repository: Option<(&'a Path, u64)>,
}

impl<'a> Before<'a> {
    pub fn now(clock: Clock, repository: Option<&'a Path>) -> Result<Before<'a>> {
        Ok(Before {
            repository: repository.map(|path| (path, tree_bytes(path))),
            cpu_seconds: cpu_seconds()?,
            since: Instant::now(),
            at: clock.now(),
            clock,
        })
    }

    /// Ends the step, of which the load alone used so many processors.
    pub fn until_now(
        self,
        name: &'static str,
        used: f64,
        history: Option<&History>,
    ) -> Result<Step> {
        let seconds = self.since.elapsed().as_secs_f64();
        let until = self.clock.now();
        let cpu_seconds = cpu_seconds()? - self.cpu_seconds - used * seconds;
        let grown = |(path, before)| tree_bytes(path).saturating_sub(before);
        let commits = history.into_iter().flat_map(History::commits);
        let meanwhile = commits.filter(|one| self.at <= one.ended && one.ended <= until);
        let mut latencies: Vec<f64> = meanwhile
            .map(|one| one.ended.since(one.began).as_secs_f64() * 1000.0)
            .collect();
        latencies.sort_by(f64::total_cmp);
        Ok(Step {
            name,
            seconds,
            cpu_seconds,
            stored_bytes: self.repository.map_or(0, grown),
            p50_ms: quantile(&latencies, 0.5),
            p99_ms: quantile(&latencies, 0.99),
        })
    }
}

/// Processor time of everything on this machine since it was started.
fn cpu_seconds() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let ticks = busy_ticks(&text).context("the kernel does not count processor time")?;
    let a_second = sysconf(SysconfVar::CLK_TCK)?.context("no clock")?;
    Ok(ticks as f64 / a_second as f64)
}

/// All but idle time and waits for disks, in the first line of /proc/stat.
fn busy_ticks(text: &str) -> Option<u64> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let counts: Option<Vec<u64>> = line.split_whitespace().map(|n| n.parse().ok()).collect();
    let counts = counts?;
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in the first two.
    let busy = [0, 1, 2, 5, 6];
    busy.iter().map(|at| counts.get(*at)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_processors_are_not_busy() {
        let stat = "cpu  100 1 20 4000 500 3 7 9 50 0\ncpu0 50 0 10 2000 250 1 3 4 25 0\n";
        assert_eq!(busy_ticks(stat), Some(131));
        assert_eq!(busy_ticks("cpu  100 1"), None);
    }
}
