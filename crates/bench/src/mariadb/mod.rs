//! `understudy bench mariadb`: MariaDB on a volume against the same server on the plain disk, at work and when it is
//! killed.
//!
//! Invariant: all servers run the same programs with the same buffer pool, log, data and clients on the same file
//! system; runs alternate, so that a slow minute of the machine hits all. On the disk there is one with InnoDB's
//! doublewrite buffer, which it needs there, and one with exactly the settings of the volume.

mod loss;
mod report;
mod side;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use cluster::clients::clock::Clock;
use cluster::clients::mysql::{Load, Work};
use serde::Serialize;

pub use self::loss::Loss;
pub use self::report::table;
use self::side::{Side, System, Usage};
use crate::statistics::Sample;

/// What is measured how.
#[derive(Debug, Clone)]
pub struct Options {
    /// An empty directory to work in.
    pub dir: PathBuf,
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// Numbers of clients that write.
    pub clients: Vec<u16>,
    /// Accounts, of about 130 bytes each.
    pub accounts: u32,
    /// Length of one run in seconds.
    pub seconds: u32,
    /// Runs of each workload on each system.
    pub rounds: u32,
    /// Kills of each system; 0 leaves them out.
    pub kills: u32,
    /// Length of the load before each kill in seconds.
    pub before: u32,
}

/// One workload on all systems.
#[derive(Debug, Clone, Serialize)]
pub struct Workload {
    /// Name of the workload.
    pub name: String,
    /// Each system, in the order of [`System`].
    pub systems: Vec<Measured>,
}

/// One workload on one system.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// System that ran it.
    pub system: System,
    /// Transactions a second.
    pub tps: Sample,
    /// How long one took, in the middle, in milliseconds.
    pub p50_ms: Sample,
    /// By the first system's transactions a second, medians.
    pub ratio: f64,
    /// Processor time of all of its processes for a transaction, in microseconds.
    pub cpu_us: Sample,
    /// Bytes that its processes wrote to the disk for a transaction, all copies together.
    pub written_bytes: Sample,
}

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// True if nothing that was acknowledged was lost by any system.
    pub passed: bool,
    /// Each workload.
    pub workloads: Vec<Workload>,
    /// The kills.
    pub losses: Vec<Loss>,
    /// Accounts.
    pub accounts: u32,
    /// Length of one run in seconds.
    pub seconds: u32,
    /// Length of the load before a kill in seconds.
    pub before: u32,
    /// Processors of the machine.
    pub processors: usize,
}

/// How much memory the servers get.
#[derive(Debug, Clone, Copy)]
struct Memory {
    name: &'static str,
    /// The buffer pool as a multiple of the data.
    data_share: f64,
}

const MEMORIES: [Memory; 2] = [
    Memory {
        name: "data in memory",
        data_share: 2.0,
    },
    Memory {
        name: "data 4 x buffer pool",
        data_share: 0.25,
    },
];
/// What an account takes.
const ACCOUNT_BYTES: f64 = 130.0;
/// Before a run counts.
const WARM_UP: Duration = Duration::from_millis(1000);

/// Measures everything; `say` hears what is going on.
///
/// # Errors
/// Something does not start.
pub async fn run(options: &Options, say: impl Fn(&str)) -> anyhow::Result<Report> {
    let mut workloads = Vec::new();
    for memory in MEMORIES {
        workloads.extend(measure(options, memory, &say).await?);
    }
    let losses = match options.kills {
        0 => Vec::new(),
        _ => loss::measure(options, &say).await?,
    };
    Ok(Report {
        passed: losses.iter().all(Loss::lost_nothing),
        workloads,
        losses,
        accounts: options.accounts,
        seconds: options.seconds,
        before: options.before,
        processors: std::thread::available_parallelism().map_or(0, Into::into),
    })
}

/// The parameters of every server with so much memory.
fn parameters(options: &Options, data_share: f64) -> Vec<(String, String)> {
    let mib = f64::from(options.accounts) * ACCOUNT_BYTES * data_share / f64::from(1 << 20);
    let pool = format!("{:.0}M", mib.max(16.0));
    [
        ("innodb_buffer_pool_size", pool.as_str()),
        ("innodb_log_file_size", "256M"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

/// All kinds of load with so much memory.
async fn measure(
    options: &Options,
    memory: Memory,
    say: &impl Fn(&str),
) -> anyhow::Result<Vec<Workload>> {
    let parameters = parameters(options, memory.data_share);
    say(&format!(
        "{}: buffer pool {}, filling {}",
        memory.name,
        parameters[0].1,
        System::ALL.len()
    ));
    let dir = options.dir.join(memory.name.replace(' ', "-"));
    let mut sides = Vec::new();
    for system in System::ALL {
        sides.push(Side::start(options, system, &dir.join(system.to_string()), &parameters).await?);
    }
    let writes = options.clients.iter().map(|n| (Work::Transfers, *n));
    let reads = options.clients.last().map(|n| (Work::Reads, *n));
    let mut workloads = Vec::new();
    for (work, clients) in writes.chain(reads) {
        let kind = match work {
            Work::Reads => "read-only",
            _ => "read-write",
        };
        let name = format!("{kind}, {clients} clients, {}", memory.name);
        workloads.push(alternate(options, &mut sides, (work, clients), name, say).await?);
    }
    for side in &mut sides {
        side.check()?;
    }
    sides.into_iter().for_each(Side::end);
    Ok(workloads)
}

/// Runs one workload in turn on all systems, after one run each that does not count.
async fn alternate(
    options: &Options,
    sides: &mut [Side],
    load: (Work, u16),
    name: String,
    say: &impl Fn(&str),
) -> anyhow::Result<Workload> {
    let mut runs: Vec<Vec<Run>> = sides.iter().map(|_| Vec::new()).collect();
    for round in 0..=options.rounds {
        for (side, runs) in sides.iter_mut().zip(&mut runs) {
            let run = timed(side, options, load).await?;
            if round > 0 {
                runs.push(run);
            }
        }
        let last: Vec<String> = runs
            .iter()
            .zip(System::ALL)
            .filter_map(|(runs, system)| Some(format!("{system} {:.0}", runs.last()?.tps)))
            .collect();
        if round > 0 {
            say(&format!("{name}, round {round}: {} tps", last.join(", ")));
        }
    }
    let first: Vec<f64> = runs.iter().flatten().map(|run| run.tps).collect();
    ensure!(
        first.iter().all(|tps| *tps > 0.0),
        "{name}: a run without transactions"
    );
    let base = Sample::of(runs[0].iter().map(|run| run.tps).collect()).median;
    let systems = runs.iter().zip(System::ALL).map(|(runs, system)| {
        let of = |value: fn(&Run) -> f64| Sample::of(runs.iter().map(value).collect());
        let tps = of(|run| run.tps);
        Measured {
            system,
            ratio: (tps.median / base * 1000.0).round() / 1000.0,
            p50_ms: of(|run| run.p50_ms),
            cpu_us: of(|run| run.usage.cpu_seconds * 1e6 / run.transactions),
            written_bytes: of(|run| run.usage.written_bytes as f64 / run.transactions),
            tps,
        }
    });
    Ok(Workload {
        name,
        systems: systems.collect(),
    })
}

/// What one run gave.
struct Run {
    tps: f64,
    p50_ms: f64,
    transactions: f64,
    usage: Usage,
}

async fn timed(
    side: &mut Side,
    options: &Options,
    (work, clients): (Work, u16),
) -> anyhow::Result<Run> {
    let clock = Clock::start();
    let plan = side.plan(work, clients, options.accounts);
    let load = Load::start(&side.servers(), &plan, clock);
    tokio::time::sleep(WARM_UP).await;
    let (before, from) = (side.usage(), clock.now());
    tokio::time::sleep(Duration::from_secs(u64::from(options.seconds))).await;
    let (usage, to) = (side.usage().since(&before), clock.now());
    let history = load.stop().await?;
    let counted = history
        .commits()
        .filter(|a| from <= a.ended && a.ended < to);
    let mut times: Vec<f64> = counted
        .map(|a| a.ended.since(a.began).as_secs_f64() * 1000.0)
        .collect();
    times.sort_by(f64::total_cmp);
    let p50_ms = *times.get(times.len() / 2).context("no transactions")?;
    Ok(Run {
        tps: history.rate(from, to),
        p50_ms: (p50_ms * 100.0).round() / 100.0,
        transactions: times.len() as f64,
        usage,
    })
}
