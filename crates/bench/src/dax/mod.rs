//! `understudy bench dax`: the paper's comparison of the block protocol's variants (DAX 7), with real
//! PostgreSQL on real zone servers whose distances are emulated.
//!
//! What differs from the paper: one machine in place of a cloud, so the numbers say nothing about a
//! cloud, but their ratios compare the variants under equal conditions; pgbench's tables with a read-
//! heavy script in place of TPC-C.

mod chart;
mod distances;
mod outages;
mod site;
mod variants;
mod workload;

use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;

pub use chart::{draw_outages, draw_variants};
pub use outages::Timeline;
pub use variants::Row;

/// Copies in each zone, as in the paper: N = 6, k = 4 over three zones.
const SERVERS_PER_ZONE: usize = 2;

/// What is measured how.
#[derive(Debug, Clone)]
pub struct Options {
    /// PostgreSQL's programs.
    pub bin: PathBuf,
    /// An empty directory to work in.
    pub dir: PathBuf,
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// pgbench's clients.
    pub clients: u16,
    /// pgbench's scale.
    pub scale: u32,
    /// Length of one run of a variant at a distance.
    pub seconds: u32,
    /// Runs of each variant at each distance.
    pub rounds: u32,
    /// Length of each timeline with an outage; 0 for none.
    pub outage_seconds: u32,
}

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The variants at each distance (figure 6).
    pub variants: Vec<Row>,
    /// Servers lost under load (figures 8 to 10).
    pub outages: Vec<Timeline>,
    /// pgbench's clients.
    pub clients: u16,
    /// pgbench's scale.
    pub scale: u32,
    /// Length of one run.
    pub seconds: u32,
    /// Processors of the machine.
    pub processors: usize,
}

/// Measures everything; `say` hears what is going on.
///
/// # Errors
/// Something does not start, or pgbench fails.
pub async fn run(options: &Options, say: impl Fn(&str)) -> anyhow::Result<Report> {
    let part = |name: &str| {
        let dir = options.dir.join(name);
        std::fs::create_dir(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))
            .map(|()| dir)
    };
    let variants = variants::run(options, &part("variants")?, &say).await?;
    let outages = match options.outage_seconds {
        0 => Vec::new(),
        _ => outages::run(options, &part("outages")?, &say).await?,
    };
    Ok(Report {
        variants,
        outages,
        clients: options.clients,
        scale: options.scale,
        seconds: options.seconds,
        processors: std::thread::available_parallelism().map_or(0, Into::into),
    })
}

/// Tables for a person.
pub fn table(report: &Report) -> String {
    let mut out = format!(
        "\n  {} clients, scale {}, {} s a run, {} processors; medians of transactions a second\n\n",
        report.clients, report.scale, report.seconds, report.processors
    );
    out.push_str(&format!(
        "  {:<28}{:>12}{:>12}{:>18}{:>19}{:>12}{:>10}\n",
        "",
        "Baseline 1",
        "Baseline 2",
        "basic optimistic",
        "strong optimistic",
        "strong/B2",
        "/basic"
    ));
    for row in &report.variants {
        let median = |at: usize| row.cells.get(at).map_or(0.0, |cell| cell.tps.median);
        out.push_str(&format!(
            "  {:<28}{:>12.0}{:>12.0}{:>18.0}{:>19.0}{:>12.2}{:>10.2}\n",
            row.distance,
            median(0),
            median(1),
            median(2),
            median(3),
            row.strong_by_quorum,
            row.strong_by_basic
        ));
    }
    if !report.outages.is_empty() {
        out.push_str(&format!(
            "\n  {:<48}{:<20}{:>8}{:>8}\n",
            "lost under load, regions apart, 6 copies, k = 4", "", "worst", "best"
        ));
    }
    for timeline in &report.outages {
        out.push_str(&format!(
            "  {:<48}{:<20}{:>8.0}{:>8.0}\n",
            timeline.outage.describe(),
            variants::name(timeline.protocol),
            timeline.worst(),
            timeline.best()
        ));
    }
    out.push('\n');
    out
}
