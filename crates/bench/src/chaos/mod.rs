//! `understudy bench chaos`: a cluster of real processes under random faults, for as long as wanted, and a verdict.
//!
//! ```text
//!   seed ─▶ schedule ─▶ rounds of faults ─▶ everything healed ─▶ whole again? ─▶ next round ... ─▶ verdict
//!                          │                                                                        ▲
//!   clients ───────────────┴──────── what each was told ───────────── checkers (pure) ──────────────┘
//! ```
//!
//! Invariants: the same seed gives the same schedule. Nothing is broken for ever, and no more copies are damaged than
//! is promised to be survived ([`faults`]), so whatever is lost, invented, out of order or not whole again in time is
//! the cluster's fault.

mod check;
mod clients;
mod clocks;
mod exchanges;
mod faults;
mod heal;
mod judge;
mod plan;
mod releases;
mod report;
mod stage;
mod strike;
mod unproven;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use plan::{Schedule, Size};
use stage::Stage;

pub use report::{Report, table};

/// What is run for how long.
#[derive(Debug, Clone)]
pub struct Options {
    /// PostgreSQL's programs.
    pub bin: PathBuf,
    /// An empty directory to work in.
    pub dir: PathBuf,
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// The program of the release before, if two are to be mixed.
    pub before: Option<PathBuf>,
    /// Faults are struck for so long; the round at hand is finished.
    pub duration: Duration,
    /// Gives the schedule.
    pub seed: u64,
    /// Transactions a second of all clients together.
    pub rate: f64,
    /// The heartbeat's preset.
    pub heartbeat: String,
    /// What is made wrong on purpose.
    pub flaw: Option<Flaw>,
}

/// What can be made wrong on purpose: such a run has to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Flaw {
    /// A standby answers what transactions read that write on the active.
    StaleReads,
    /// Two of three zones lose their disks at once, again and again.
    TwoDisks,
    /// The proxy of the strong reads believes a position that was proved a moment ago.
    UnprovenPosition,
}

/// Nodes and zone servers.
const SIZE: Size = Size { nodes: 3, zones: 4 };
/// Zones that the volume begins with: one zone server is no member, and is exchanged for one.
const MEMBERS: u8 = 3;

/// Runs all of it; `say` hears what is going on.
///
/// # Errors
/// The cluster cannot be started, or cannot be asked at the end. What is found wrong is no error but a report.
pub async fn run(options: &Options, say: impl Fn(&str)) -> anyhow::Result<Report> {
    say("starting 4 zones, of which one is spare, and 3 nodes, each in a network of its own");
    let mut stage = Box::pin(Stage::set(options)).await?;
    let mut schedule = Schedule::new(options.seed, SIZE);
    let mut round = 0;
    let whole = loop {
        round += 1;
        let strikes = schedule.next().unwrap_or_default();
        let time = stage.clock.now().seconds();
        say(&format!(
            "{time:.0} s: round {round}, {} faults; {} commits so far",
            strikes.len(),
            stage.commits()
        ));
        Box::pin(stage.play(&strikes, &say)).await?;
        match Box::pin(stage.heal(&say)).await? {
            Ok(took) => say(&format!("whole again after {:.1} s", took.as_secs_f64())),
            Err(why) => {
                say(&format!("not whole again: {why}"));
                break Err(why);
            }
        }
        if stage.clock.now().seconds() > options.duration.as_secs_f64() {
            break Ok(());
        }
    };
    say("verifying");
    Box::pin(judge::report(options, stage, whole)).await
}
