//! `understudy bench cassandra`: commits and reads of blocks over real Apache Cassandra, beside what the
//! driver alone does on the same cluster in the same run.
//!
//! Both sides write and read rows of the same table, with the same consistency: a commit is one block
//! written and synced (QUORUM), a read is one block of the nearest copy (LOCAL_ONE). What our side does
//! beyond that is its price: versions, checksums, `sync_pending`, the gate.

mod driver;
mod side;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use cassandra::server;
use serde::Serialize;

use super::statistics::Sample;
use side::{Ours, Run, Side};

/// What is measured how.
#[derive(Debug, Clone)]
pub struct Options {
    /// An empty directory to work in.
    pub dir: PathBuf,
    /// Clients at a time, one after the other.
    pub clients: Vec<u16>,
    /// Length of one run.
    pub seconds: u32,
    /// Runs of each side; one more of each comes before, and does not count.
    pub rounds: u32,
}

/// What clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// A block written and synced.
    Commit,
    /// A block read that the active knows.
    Read,
}

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Each load with each number of clients.
    pub rows: Vec<Row>,
    /// Length of one run.
    pub seconds: u32,
    /// Processors of the machine, which Cassandra and both sides share.
    pub processors: usize,
}

/// One load with one number of clients.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What clients do.
    pub load: Load,
    /// How many of them.
    pub clients: u16,
    /// The block path.
    pub block_path: Measured,
    /// The driver alone.
    pub driver: Measured,
    /// The block path's median rate by the driver's.
    pub ratio: f64,
}

/// What one side did.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Operations a second, run by run.
    pub per_second: Sample,
    /// The middle latency, of the runs' middle ones.
    pub p50_ms: f64,
    /// The same of one in a hundred.
    pub p99_ms: f64,
}

impl Measured {
    fn of(runs: &[Run]) -> Measured {
        let middle = |value: fn(&Run) -> f64| Sample::of(runs.iter().map(value).collect());
        Measured {
            per_second: middle(|run| run.per_second),
            p50_ms: middle(|run| run.quantile_ms(0.5)).median,
            p99_ms: middle(|run| run.quantile_ms(0.99)).median,
        }
    }
}

/// Measures everything; `say` hears what is going on.
///
/// # Errors
/// Cassandra does not start, or an operation fails.
pub async fn run(options: &Options, say: impl Fn(&str)) -> anyhow::Result<Report> {
    say("starting Apache Cassandra: three data centres");
    let mut nodes = server::Options::new(options.dir.join("cassandra"));
    // Both sides are measured on servers that are warm.
    nodes.warms_soon = false;
    let cluster = tokio::task::spawn_blocking(|| server::Cluster::start(nodes));
    let cluster = cluster.await.context("the start was given up")??;
    let points = cluster.contact_points().into_iter();
    let points: Vec<String> = points.map(|point| point.to_string()).collect();
    let ours = Side::Ours(Box::pin(Ours::open(points.clone())).await?);
    let driver = Side::Driver(Box::pin(driver::Driver::open(points)).await?);
    let mut rows = Vec::new();
    for load in [Load::Commit, Load::Read] {
        for &clients in &options.clients {
            rows.push(compare(options, [&ours, &driver], load, clients, &say).await?);
        }
    }
    drop((ours, driver));
    tokio::task::block_in_place(|| drop(cluster));
    Ok(Report {
        rows,
        seconds: options.seconds,
        processors: std::thread::available_parallelism().map_or(0, Into::into),
    })
}

async fn compare(
    options: &Options,
    sides: [&Side; 2],
    load: Load,
    clients: u16,
    say: &impl Fn(&str),
) -> anyhow::Result<Row> {
    let length = Duration::from_secs(options.seconds.into());
    let mut runs: [Vec<Run>; 2] = Default::default();
    for round in 0..=options.rounds {
        // Whoever comes second has the warmer server: take turns.
        let first = round as usize % 2;
        for at in [first, 1 - first] {
            let run = side::run(sides[at], load, clients, length).await?;
            let name = ["block path", "driver"][at];
            let rate = run.per_second;
            say(&format!(
                "{load:?}, {clients} clients, {name}: {rate:.0} a second"
            ));
            if round > 0 {
                runs[at].push(run);
            }
        }
    }
    let [block_path, driver] = runs.map(|runs| Measured::of(&runs));
    Ok(Row {
        load,
        clients,
        ratio: block_path.per_second.median / driver.per_second.median,
        block_path,
        driver,
    })
}

/// A table for a person.
pub fn table(report: &Report) -> String {
    let mut out = format!(
        "\n  {} s a run, {} processors for Cassandra and its clients; medians\n\n  {:<8}{:>8}{:>14}{:>12}{:>12}{:>14}{:>12}{:>12}{:>8}\n",
        report.seconds,
        report.processors,
        "",
        "clients",
        "block path/s",
        "p50 ms",
        "p99 ms",
        "driver/s",
        "p50 ms",
        "p99 ms",
        "ratio"
    );
    for row in &report.rows {
        let (ours, driver) = (&row.block_path, &row.driver);
        out.push_str(&format!(
            "  {:<8}{:>8}{:>14.0}{:>12.2}{:>12.2}{:>14.0}{:>12.2}{:>12.2}{:>8.2}\n",
            format!("{:?}", row.load).to_lowercase(),
            row.clients,
            ours.per_second.median,
            ours.p50_ms,
            ours.p99_ms,
            driver.per_second.median,
            driver.p50_ms,
            driver.p99_ms,
            row.ratio
        ));
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_told_by_its_middle_run() {
        let run = |per_second, latencies_us: &[u32]| Run {
            per_second,
            latencies_us: latencies_us.to_vec(),
        };
        let measured = Measured::of(&[
            run(10.0, &[1000, 2000, 3000]),
            run(30.0, &[4000]),
            run(20.0, &[9000]),
        ]);
        assert_eq!(measured.per_second.median, 20.0);
        assert_eq!((measured.p50_ms, measured.p99_ms), (4.0, 4.0));
    }
}
