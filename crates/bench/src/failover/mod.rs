//! `understudy bench failover`: what clients see when the active is lost, in every way that it can be,
//! again and again, and how soon the database is protected anew.
//!
//! Three parts. *Causes*: two nodes, one kind of fault many times in a row, the lost node comes back each
//! time. *Row*: three nodes, random faults one after the other under load. *Busy*: no fault at all, but no
//! processor time and a slow store for a long while: nobody may take over.
//!
//! Invariant: after each part the clients' history is compared with what the database has, and the
//! report fails if anything acknowledged is missing or anything is there that nobody committed.

mod busy;
mod chart;
mod fault;
mod report;
mod round;
mod stage;

use std::path::PathBuf;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

pub use chart::draw;
use cluster::clients::history::Outcome;
pub use fault::Fault;
pub use report::{Busy, Measurement, Report, Rounds, table};
use stage::Stage;

/// What is measured how often.
#[derive(Debug, Clone)]
pub struct Options {
    /// PostgreSQL's programs.
    pub bin: PathBuf,
    /// An empty directory to work in.
    pub dir: PathBuf,
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// What is measured.
    pub parts: Vec<Measurement>,
    /// The faults.
    pub faults: Vec<Fault>,
    /// How often each.
    pub rounds: u32,
    /// Takeovers in the row.
    pub row: u32,
    /// Length of the busy part.
    pub busy: Duration,
    /// Clients that write.
    pub clients: u16,
    /// pgbench's scale.
    pub scale: u32,
    /// Decides the order of the row's faults.
    pub seed: u64,
}

/// Runs all parts; `say` hears what is going on.
///
/// # Errors
/// Something cannot be started or does not come back. What is lost is no error but a report.
pub async fn run(options: &Options, say: impl Fn(&str)) -> anyhow::Result<Report> {
    let mut report = Report::default();
    if options.parts.contains(&Measurement::Causes) {
        for &fault in &options.faults {
            let faults = vec![fault; options.rounds as usize];
            let rounds = Box::pin(rounds(
                options,
                fault.name(),
                &["north", "south"],
                &faults,
                &say,
            ));
            report.causes.push(rounds.await?);
        }
    }
    if options.parts.contains(&Measurement::Row) {
        let mut random = SmallRng::seed_from_u64(options.seed);
        let faults: Vec<Fault> = (0..options.row)
            .filter_map(|_| options.faults.choose(&mut random).copied())
            .collect();
        let nodes = ["north", "south", "east"];
        let rounds = Box::pin(rounds(options, "row", &nodes, &faults, &say));
        report.row = Some(rounds.await?);
    }
    if options.parts.contains(&Measurement::Busy) {
        report.busy = Some(Box::pin(busy::run(options, &say)).await?);
    }
    report.judge();
    Ok(report)
}

/// One cluster, these faults one after the other, and a verdict.
async fn rounds(
    options: &Options,
    name: &str,
    nodes: &[&str],
    faults: &[Fault],
    say: &impl Fn(&str),
) -> anyhow::Result<Rounds> {
    say(&format!(
        "{name}: starting {} nodes, filling the tables",
        nodes.len()
    ));
    let mut stage = Stage::set(options, name, nodes, |_, _| {}).await?;
    let disk_bytes_before = stage.disk_bytes()?;
    let mut done = Vec::new();
    for (number, &fault) in faults.iter().enumerate() {
        let round = round::play(&mut stage, fault).await?;
        say(&format!("{name} {}: {}", number + 1, round.describe()));
        done.push(round);
    }
    let disk_bytes_after = stage.disk_bytes()?;
    say(&format!("{name}: verifying"));
    let (history, checks) = stage.verify().await?;
    Ok(Rounds {
        name: name.to_owned(),
        nodes: nodes.len(),
        acknowledged: history.count(Outcome::Acknowledged),
        unknown: history.count(Outcome::Unknown),
        disk_bytes: (disk_bytes_before, disk_bytes_after),
        checks,
        rounds: done,
    })
}
