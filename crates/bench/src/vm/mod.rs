//! `understudy bench vm`: a virtual machine that is protected by checkpoints, against the same machine unprotected.
//!
//! After RemusDB's experiments: plain checkpoints, and each of its optimizations (Figures 5, 6 and 10: [`Measurement::Overhead`]), a failover
//! under load (3 and 4), memory and data of other sizes (7 to 9), and other intervals between checkpoints (13 and 14).
//!
//! ```text
//!   a machine with data ── round ─▶ unprotected ─▶ a standby copies ─▶ way, way, way ... ─▶ the standby is stopped ─▶ next round
//! ```
//!
//! Invariant: all ways of a round have one machine, which runs on warm; each is compared with the unprotected run of its round.

mod failover;
mod goals;
mod loads;
mod measure;
mod report;
mod stage;
mod statements;
mod ways;

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub use self::failover::Failover;
pub use self::goals::Goal;
pub use self::loads::Load;
pub use self::measure::{Case, Measured};
pub use self::report::table;
pub use self::stage::{Guest, needs};
pub use self::ways::Way;

/// What can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Measurement {
    /// Each optimization, alone and with the others.
    Overhead,
    /// Checkpoints from every 25 ms to every 500 ms.
    Intervals,
    /// Data of several sizes.
    Sizes,
    /// Machines with more and less memory.
    Memory,
    /// The host is killed under load.
    Failover,
}

/// What is measured how.
#[derive(Debug, Clone)]
pub struct Options {
    /// An empty directory to work in.
    pub dir: PathBuf,
    /// Where images are kept.
    pub images: PathBuf,
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// Parts that are measured.
    pub parts: Vec<Measurement>,
    /// Which databases.
    pub guests: Vec<Guest>,
    /// What clients do.
    pub loads: Vec<Load>,
    /// How many clients write.
    pub clients: u16,
    /// Between two checkpoints, unless that is what is varied.
    pub epoch_ms: u32,
    /// The intervals of that part.
    pub intervals_ms: Vec<u32>,
    /// Warehouses of the order entry; of the part about sizes, this and multiples.
    pub warehouses: u32,
    /// Megabytes that are scanned; of the part about sizes, this and multiples.
    pub scan_mb: u32,
    /// Megabytes of the machine's memory; of the part about memory, this and multiples.
    pub memory_mb: u64,
    /// What sizes and memory are multiplied by.
    pub multiples: Vec<u32>,
    /// Length of one run in seconds.
    pub seconds: u32,
    /// Runs of each way.
    pub rounds: u32,
}

/// Everything that was measured.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// What runs the machine's code, and why that.
    pub accelerator: String,
    /// Reason why this accelerator was chosen.
    pub accelerator_reason: String,
    /// Each load in each machine.
    pub cases: Vec<Case>,
    /// Hosts that were killed.
    pub failovers: Vec<Failover>,
    /// What was hoped for, and what came of it.
    pub goals: Vec<Goal>,
    /// Length of one run in seconds.
    pub seconds: u32,
    /// Runs of each way.
    pub rounds: u32,
    /// Processors of the machine that all of it ran on.
    pub processors: usize,
    /// Its load average before it began: who else wanted the processors.
    pub load_before: f64,
}

/// A machine and what its clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Subject {
    guest: Guest,
    load: Load,
    memory_mb: u64,
    /// Warehouses, or megabytes.
    size: u32,
}

impl Options {
    fn subject(&self, guest: Guest, load: Load, multiple: u32) -> Subject {
        let size = match load {
            Load::Scan => self.scan_mb,
            _ => self.warehouses,
        };
        Subject {
            guest,
            load,
            memory_mb: self.memory_mb,
            size: size * multiple,
        }
    }

    /// Each database with the loads that it takes.
    fn subjects(&self) -> Vec<Subject> {
        let each = |guest: &Guest| {
            let guest = *guest;
            let loads = self.loads.iter().filter(move |load| guest.takes(**load));
            loads.map(move |load| self.subject(guest, *load, 1))
        };
        self.guests.iter().flat_map(each).collect()
    }

    /// The subjects of a part, each with what is varied.
    fn cases(&self, part: Measurement) -> Vec<(Subject, Vec<(Way, u32)>)> {
        let at = |ways: &[Way]| -> Vec<(Way, u32)> {
            ways.iter().map(|way| (*way, self.epoch_ms)).collect()
        };
        let multiples = self.multiples.iter().copied();
        match part {
            Measurement::Failover => Vec::new(),
            Measurement::Overhead => {
                let subjects = self.subjects().into_iter();
                subjects.map(|it| (it, at(it.guest.ways()))).collect()
            }
            Measurement::Intervals => {
                let all = |way: Way| self.intervals_ms.iter().map(move |ms| (way, *ms));
                let last = |it: &Subject| it.guest.ways().last().copied();
                let ways = |it: &Subject| match last(it) {
                    Some(way) if way != Way::Memory => {
                        all(Way::Memory).chain(all(way)).collect::<Vec<_>>()
                    }
                    _ => all(Way::Memory).collect(),
                };
                let subjects = self.subjects().into_iter();
                subjects.map(|it| (it, ways(&it))).collect()
            }
            Measurement::Sizes => {
                let subjects = self.subjects();
                let every = |multiple: u32| {
                    let larger = move |it: Subject| Subject {
                        size: it.size * multiple,
                        ..it
                    };
                    subjects.clone().into_iter().map(larger)
                };
                let ways = |it: Subject| (it, at(it.guest.fewer_ways()));
                multiples.flat_map(every).map(ways).collect()
            }
            Measurement::Memory => {
                let subjects = self.subjects();
                let every = |multiple: u32| {
                    let larger = move |it: Subject| Subject {
                        memory_mb: it.memory_mb * u64::from(multiple),
                        ..it
                    };
                    subjects.clone().into_iter().map(larger)
                };
                let ways = |it: Subject| (it, at(it.guest.fewer_ways()));
                multiples.flat_map(every).map(ways).collect()
            }
        }
    }
}

/// Measures everything; `say` hears what is going on.
///
/// # Errors
/// Something does not start, or a client finds nobody.
pub async fn run(options: &Options, say: impl Fn(&str)) -> anyhow::Result<Report> {
    let mut report = Report {
        seconds: options.seconds,
        rounds: options.rounds,
        processors: std::thread::available_parallelism().map_or(0, Into::into),
        load_before: load_average(),
        ..Report::default()
    };
    for &part in &options.parts {
        for (subject, ways) in options.cases(part) {
            let case = measure::measure(options, part, subject, &ways, &mut report, &say).await?;
            report.cases.push(case);
        }
        if part == Measurement::Failover {
            failover::measure(options, &mut report, &say).await?;
        }
    }
    report.goals = goals::of(&report);
    Ok(report)
}

fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next();
    first.and_then(|number| number.parse().ok()).unwrap_or(0.0)
}
