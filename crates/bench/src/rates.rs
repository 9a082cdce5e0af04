//! What a run of pgbench gave: how many transactions a second, and how long they took.
//!
//! Invariant: both are the program's own: the rate that it prints, and the latencies that it logs.

use std::path::{Path, PathBuf};

use anyhow::Context;
use cluster::clients::schema::Server;
use serde::{Deserialize, Serialize};

use crate::pgbench::{run_pgbench, tps};
use crate::statistics::quantile;

/// What the names of pgbench's logs begin with.
const LOG: &str = "log";

/// What one run gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Transactions a second.
    pub tps: f64,
    /// Transactions.
    pub transactions: u64,
    /// Latency that half of them stay below, in milliseconds.
    pub p50_ms: f64,
    /// Latency that all but a hundredth stay below, in milliseconds.
    pub p99_ms: f64,
}

/// A directory for the logs of one run, which is gone afterwards.
pub(crate) struct Logs(PathBuf);

impl Logs {
    /// Makes the directory, which must not exist.
    pub fn create(dir: &Path) -> anyhow::Result<Logs> {
        std::fs::create_dir(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Logs(dir.to_owned()))
    }

    /// Runs pgbench with these arguments and a log.
    pub async fn run(
        self,
        bin: &Path,
        server: &Server,
        arguments: &[String],
    ) -> anyhow::Result<Rate> {
        let dir = self.0;
        let prefix = format!("--log-prefix={}", dir.join(LOG).display());
        let own = ["--log", &prefix];
        let others = arguments.iter().map(String::as_str);
        let arguments: Vec<&str> = own.into_iter().chain(others).collect();
        let said = run_pgbench(bin, server, &arguments).await?;
        let mut latencies = latencies_us(&dir).context("no log of pgbench")?;
        std::fs::remove_dir_all(&dir).context("cannot remove pgbench's log")?;
        latencies.sort_unstable();
        Ok(Rate {
            tps: tps(&said).with_context(|| format!("pgbench says nothing of tps: {said}"))?,
            transactions: transactions(&said).context("pgbench does not say how many")?,
            p50_ms: quantile_ms(&latencies, 0.5),
            p99_ms: quantile_ms(&latencies, 0.99),
        })
    }
}

/// From all of pgbench's logs: it writes one in each thread.
fn latencies_us(dir: &Path) -> std::io::Result<Vec<u64>> {
    let mut latencies = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(LOG) {
            let text = std::fs::read_to_string(entry.path())?;
            latencies.extend(text.lines().filter_map(latency_us));
        }
    }
    Ok(latencies)
}

/// The third field of a line of pgbench's log: microseconds.
fn latency_us(line: &str) -> Option<u64> {
    line.split(' ').nth(2)?.parse().ok()
}

/// Finds `number of transactions actually processed: 1234`.
fn transactions(said: &str) -> Option<u64> {
    let prefix = "number of transactions actually processed: ";
    let line = said.lines().find_map(|line| line.strip_prefix(prefix))?;
    line.split(['/', ' ']).next()?.parse().ok()
}

/// A quantile of sorted microseconds, in milliseconds.
fn quantile_ms(sorted_us: &[u64], share: f64) -> f64 {
    quantile(sorted_us, share) as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_the_third_field_and_failures_have_none() {
        assert_eq!(latency_us("0 199 2241 0 1175850568 995598"), Some(2241));
        assert_eq!(latency_us("0 200 failed 0 1175850568 998079"), None);
    }

    #[test]
    fn quantiles_are_of_the_sorted_list() {
        let latencies: Vec<u64> = (1..=101).map(|n| n * 1000).collect();
        assert_eq!(quantile_ms(&latencies, 0.5), 51.0);
        assert_eq!(quantile_ms(&latencies, 0.99), 100.0);
        assert_eq!(quantile_ms(&[], 0.5), 0.0);
    }

    #[test]
    fn the_number_is_found_in_what_pgbench_prints() {
        let said =
            "number of transactions actually processed: 1234\nnumber of failed transactions: 0";
        assert_eq!(transactions(said), Some(1234));
        assert_eq!(transactions("nothing"), None);
    }
}
