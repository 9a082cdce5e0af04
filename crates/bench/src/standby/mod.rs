//! `understudy bench standby`: how standbys keep up, what that costs the active, and how soon a new one
//! is there (CAC-DB 4.4, 6.3 and 6.6).
//!
//! What differs from the paper: one machine in place of a cloud, so that the processes take processor
//! time from each other, and pgbench in place of TPC-C. Ratios within one run compare the methods
//! under equal conditions; the numbers themselves say little.

mod attach;
mod chart;
mod cost;
mod curve;
mod lag;
mod methods;
mod site;
mod warm;

use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;

pub use attach::Attached;
pub use chart::{draw_curve, draw_methods};
pub use cost::Cost;
pub use curve::CatchUp;
pub use lag::Lag;
pub use methods::Outcome;
pub use warm::Warmth;

use understudy::demo::timeline::thousands;

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Measurement {
    /// Catching up, by the number of blocks read at the same time.
    Curve,
    /// What is done about a slow standby (table 6.3, figures 6.11 to 6.13).
    Table,
    /// A new standby against a copy of the database.
    Attach,
    /// What standbys cost the active.
    Cost,
    /// How far a standby is behind under steady load.
    Lag,
    /// How soon throughput is back after a takeover, against a cold start.
    Warm,
}

/// What is measured how.
#[derive(Debug, Clone)]
pub struct Options {
    /// PostgreSQL's programs.
    pub bin: PathBuf,
    /// An empty directory to work in.
    pub dir: PathBuf,
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// Parts that are measured.
    pub parts: Vec<Measurement>,
    /// pgbench's scale, for all parts but the new standby.
    pub scale: u32,
    /// Transactions that the standby of the curve has to catch up with.
    pub transactions: u32,
    /// Before and after the failure, for each method.
    pub seconds: (u64, u64),
    /// Size of the database that a new standby joins, in MiB.
    pub size_mib: u32,
    /// Length of a run, and runs with each number of standbys.
    pub cost: (u32, u32),
    /// Clients.
    pub clients: u16,
}

/// Everything that was measured; parts that were left out are empty.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Catching up.
    pub curve: Vec<CatchUp>,
    /// The methods.
    pub methods: Vec<Outcome>,
    /// A new standby.
    pub attach: Option<Attached>,
    /// The cost.
    pub cost: Vec<Cost>,
    /// The lag.
    pub lag: Vec<Lag>,
    /// Throughput after a takeover.
    pub warm: Option<Warmth>,
    /// pgbench's scale.
    pub scale: u32,
    /// Processors of the machine.
    pub processors: usize,
}

/// Measures; `say` hears what is going on.
///
/// # Errors
/// Something does not start, or a standby does not catch up.
pub async fn run(options: &Options, say: impl Fn(&str)) -> anyhow::Result<Report> {
    let dir = |name: &str| {
        let dir = options.dir.join(name);
        std::fs::create_dir(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))
            .map(|()| dir)
    };
    let wants = |part| options.parts.contains(&part);
    let mut report = Report {
        curve: Vec::new(),
        methods: Vec::new(),
        attach: None,
        cost: Vec::new(),
        lag: Vec::new(),
        warm: None,
        scale: options.scale,
        processors: std::thread::available_parallelism().map_or(0, Into::into),
    };
    if wants(Measurement::Curve) {
        report.curve = curve::run(options, &dir("curve")?, &say).await?;
    }
    if wants(Measurement::Table) {
        report.methods = methods::run(options, &dir("methods")?, &say).await?;
    }
    if wants(Measurement::Attach) {
        report.attach = Some(attach::run(options, &dir("attach")?, &say).await?);
    }
    if wants(Measurement::Cost) {
        report.cost = cost::run(options, &dir("cost")?, &say).await?;
    }
    if wants(Measurement::Lag) {
        report.lag = lag::run(options, &dir("lag")?, &say).await?;
    }
    if wants(Measurement::Warm) {
        report.warm = Some(warm::run(options, &dir("warm")?, &say).await?);
    }
    Ok(report)
}

/// Tables for a person.
pub fn table(report: &Report) -> String {
    let mut out = format!(
        "\n  scale {}, {} processors\n",
        report.scale, report.processors
    );
    if !report.curve.is_empty() {
        out.push_str(&format!(
            "\n  catching up{:>12}{:>10}{:>12}{:>12}{:>14}{:>12}\n",
            "distance", "at once", "seconds", "kB/s", "blocks ahead", "used"
        ));
    }
    for run in &report.curve {
        out.push_str(&format!(
            "  {:>20} ms{:>10}{:>12.1}{:>12.0}{:>14}{:>12}\n",
            run.latency_ms,
            run.degree,
            run.seconds,
            run.bytes_per_second / 1000.0,
            thousands(run.fetched),
            thousands(run.used)
        ));
    }
    if !report.methods.is_empty() {
        out.push_str(&format!(
            "\n  {:<22}{:>10}{:>10}{:>14}{:>12}{:>14}{:>12}{:>8}\n",
            "method", "tps", "ratio", "lag kB", "downtime s", "to peak s", "blocks held", "skips"
        ));
    }
    for row in &report.methods {
        let seconds = |s: Option<f64>| s.map_or("-".to_owned(), |s| format!("{s:.1}"));
        out.push_str(&format!(
            "  {:<22}{:>10.0}{:>10.2}{:>14}{:>12}{:>14}{:>12}{:>8}\n",
            row.method.describe(),
            row.tps_before,
            row.ratio,
            thousands(row.lag_bytes_at_failure / 1000),
            seconds(row.downtime_s),
            seconds(row.peak_after_s),
            thousands(row.blocks_held.last().copied().unwrap_or_default()),
            row.skips
        ));
    }
    if let Some(new) = &report.attach {
        out.push_str(&format!(
            "\n  a new standby of {} MiB: {:.1} s, {} kB read from the zones; pg_basebackup: {:.1} s, {} kB\n",
            new.database_bytes >> 20,
            new.seconds,
            thousands(new.bytes_read / 1000),
            new.copy_seconds,
            thousands(new.copy_bytes / 1000)
        ));
    }
    for row in &report.cost {
        out.push_str(&format!(
            "\n  {} standbys: {:.0} tps (ratio {:.3}, spread {:.3})",
            row.standbys, row.tps.median, row.ratio.median, row.ratio.spread
        ));
    }
    for row in &report.lag {
        out.push_str(&format!(
            "\n  lag {} ms away, at {:.0} of {:.0} tps: p50 {} ms, p99 {} ms, at most {} ms",
            row.distance_ms, row.tps, row.peak_tps, row.lag_ms.p50, row.lag_ms.p99, row.lag_ms.max
        ));
    }
    if let Some(warm) = &report.warm {
        for (name, back) in [("takeover", &warm.takeover), ("cold start", &warm.cold)] {
            out.push_str(&format!(
                "\n  {name}: back at 90 % after {} s, {:.2} of the throughput in the first 10 s",
                back.back_after_s
                    .map_or("-".to_owned(), |s| format!("{s:.1}")),
                back.first_share
            ));
        }
    }
    out.push_str("\n\n");
    out
}
