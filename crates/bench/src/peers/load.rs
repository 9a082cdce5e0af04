//! The loads, and what a run of one gave: rate and latency of its transactions.
//!
//! Invariant: what is run is what pgbench and go-tpc ship (YCSB's transactions are pgbench scripts); latencies
//! are the program's own.

use std::path::Path;

use anyhow::Context;

use super::mode::{Mode, Rate, Tables};
use super::{Options, tpcc, ycsb};
use crate::pgbench::{run_pgbench, tps};
use cluster::clients::schema::Server;

/// Of so many read-only transactions one is logged: the log itself costs.
const LOGGED_SHARE: f64 = 0.05;
/// What the names of pgbench's logs begin with.
const LOG: &str = "log";

/// Creates what the loads need besides pgbench's tables.
pub(super) async fn create(options: &Options, server: &Server) -> anyhow::Result<()> {
    let mut needed: Vec<Tables> = options
        .loads
        .iter()
        .filter_map(|(mode, _)| mode.tables())
        .collect();
    needed.dedup();
    for tables in needed {
        match tables {
            Tables::Ycsb => ycsb::create(options, server).await?,
            Tables::TpcC => tpcc::create(options, server).await?,
        }
    }
    Ok(())
}

/// Runs one for some seconds. `dir` must not exist, and is gone afterwards.
pub(super) async fn run(
    options: &Options,
    server: &Server,
    dir: &Path,
    (mode, clients, seconds): (Mode, u16, u32),
) -> anyhow::Result<Rate> {
    if mode == Mode::TpcC {
        return tpcc::run(options, server, clients, seconds).await;
    }
    std::fs::create_dir(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut arguments = vec![
        "--protocol=prepared".to_owned(),
        "--no-vacuum".to_owned(),
        "--log".to_owned(),
        format!("--log-prefix={}", dir.join(LOG).display()),
        format!("--client={clients}"),
        format!("--jobs={}", clients.min(2)),
        format!("--time={seconds}"),
    ];
    match mode {
        Mode::ReadWrite => {}
        Mode::ReadOnly => arguments.push("--select-only".to_owned()),
        _ => arguments.extend(ycsb::arguments(options, mode, dir)?),
    }
    if mode != Mode::ReadWrite {
        arguments.push(format!("--sampling-rate={LOGGED_SHARE}"));
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let said = run_pgbench(&options.bin, server, &arguments).await?;
    let mut latencies = latencies_us(dir).context("no log of pgbench")?;
    std::fs::remove_dir_all(dir).context("cannot remove pgbench's log")?;
    latencies.sort_unstable();
    Ok(Rate {
        tps: tps(&said).with_context(|| format!("pgbench says nothing of tps: {said}"))?,
        transactions: transactions(&said).context("pgbench does not say how many")?,
        p50_ms: quantile_ms(&latencies, 0.5),
        p99_ms: quantile_ms(&latencies, 0.99),
    })
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

/// A quantile of sorted microseconds, in milliseconds with two decimals.
pub(super) fn quantile_ms(sorted_us: &[u64], share: f64) -> f64 {
    let last = sorted_us.len().saturating_sub(1);
    let at = (last as f64 * share).round() as usize;
    let us = sorted_us.get(at).copied().unwrap_or_default();
    (us as f64 / 10.0).round() / 100.0
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
