//! `understudy bench peers`: Understudy beside what people use, in the same run on the same machine.
//!
//! Each system in turn is created, filled, loaded, and loses its active's machine; then the next one, and
//! all of them again. Every measurement is a line of JSON; the report is made from such lines alone.
//!
//! Invariant: only one system exists at a time, so that nothing of another one is in its figures.

mod chart;
pub(crate) mod footprint;
mod load;
mod loss;
mod mode;
mod patroni;
mod probe;
mod record;
mod report;
mod single;
mod subscriber;
mod system;
pub(crate) mod tpcc;
mod understudy;
pub(crate) mod ycsb;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use self::understudy::Understudy;
use cluster::clients::schema::{self, Server};
use cluster::process::pin;
use footprint::{Counters, flush};
pub use mode::Mode;
use patroni::Patroni;
pub use record::{Finding, Record, Setting, append, read};
pub use report::Report;
use single::Single;
pub use subscriber::Subscribed;
use subscriber::Subscriber;
pub use system::Kind;
use system::{Machines, OTHER_CORE, System};
pub use tpcc::is_there as has_go_tpc;

/// How long anything may take before that counts as a failure.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Length of the run that does not count.
const WARM_SECONDS: u32 = 2;
/// Where a load keeps its files.
const LOAD: &str = "load";

/// How far the sites are apart.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Distance {
    /// All are near.
    OneZone,
    /// The standby and a zone are 35 ms from the active there and back, another zone 75 ms.
    Regions,
}

impl Distance {
    /// In milliseconds: active to standby, active to the third site, between those. `None` if all are near.
    fn round_trips_ms(self) -> Option<[f64; 3]> {
        match self {
            Distance::OneZone => None,
            Distance::Regions => Some([35.0, 75.0, 40.0]),
        }
    }
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
    /// What is compared.
    pub systems: Vec<Kind>,
    /// How often each.
    pub rounds: u32,
    /// What is run, by how many clients.
    pub loads: Vec<(Mode, u16)>,
    /// Length of a run.
    pub seconds: u32,
    /// Clients at full speed when the active is lost; 0: it is not lost.
    pub loss_clients: u16,
    /// Load before that.
    pub before: Duration,
    /// Load after the first commit of the new active; the lost machine is given back in its middle.
    pub after: Duration,
    /// pgbench's scale.
    pub scale: u32,
    /// `shared_buffers` of every PostgreSQL.
    pub buffers_mb: u32,
    /// `checkpoint_timeout` of every PostgreSQL.
    pub checkpoint_seconds: u32,
    /// How long Patroni's leader may be silent.
    pub patroni_ttl: u32,
    /// True if another PostgreSQL subscribes to the probe's rows while the active is lost.
    pub subscriber: bool,
    /// How far the sites are apart.
    pub distance: Distance,
    /// True if each side gets a processor of its own.
    pub pinned: bool,
}

impl Options {
    fn setting(&self) -> Setting {
        Setting {
            distance: self.distance,
            pinned: self.pinned,
            scale: self.scale,
            buffers_mb: self.buffers_mb,
            checkpoint_seconds: self.checkpoint_seconds,
            patroni_ttl: self.patroni_ttl,
        }
    }
}

/// Measures everything. `say` hears what is going on, `found` every measurement as soon as it is made.
///
/// # Errors
/// Something does not start or does not come back, or the measurement cannot be kept. What is lost is no
/// error but a measurement.
pub async fn run(
    options: &Options,
    say: impl Fn(&str),
    found: impl Fn(&Record) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if options.pinned {
        let processors = std::thread::available_parallelism().map_or(0, Into::into);
        ensure!(
            processors >= 2,
            "pinning needs two processors: use --unpinned"
        );
        // The clients are elsewhere.
        pin(Pid::this(), OTHER_CORE)?;
    }
    let needs_go_tpc = options.loads.iter().any(|(mode, _)| *mode == Mode::TpcC);
    ensure!(
        !needs_go_tpc || has_go_tpc(),
        "TPC-C needs go-tpc (scripts/peers installs it), or leave it out with --load"
    );
    for round in 1..=options.rounds {
        for &kind in &options.systems {
            say(&format!("round {round}: {}", kind.name()));
            let dir = options.dir.join(format!("{}-{round}", kind.slug()));
            let found = |finding| {
                let record = Record {
                    system: kind,
                    setting: options.setting(),
                    finding,
                };
                say(&describe(&record));
                found(&record)
            };
            Box::pin(visit(options, kind, &dir, found))
                .await
                .with_context(|| format!("{}; data and logs: {}", kind.name(), dir.display()))?;
            std::fs::remove_dir_all(&dir)
                .with_context(|| format!("cannot remove {}", dir.display()))?;
        }
    }
    Ok(())
}

/// Starts a system with an empty database.
async fn start(
    kind: Kind,
    options: &Options,
    machines: &Machines,
    dir: &Path,
) -> anyhow::Result<Box<dyn System>> {
    Ok(match kind {
        Kind::Stock => Box::new(Single::start(options, machines, dir).await?),
        Kind::PatroniAsync => Box::new(Patroni::start(options, machines, dir, false).await?),
        Kind::PatroniSync => Box::new(Patroni::start(options, machines, dir, true).await?),
        Kind::Understudy | Kind::Ordered | Kind::Cold => {
            Box::new(Understudy::start(options, machines, dir, kind).await?)
        }
    })
}

/// One system from its creation to its end.
async fn visit(
    options: &Options,
    kind: Kind,
    dir: &Path,
    found: impl Fn(Finding) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    std::fs::create_dir(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let machines = Machines::create(options.pinned, options.distance)?;
    let mut system = start(kind, options, &machines, dir).await?;
    let active = active(system.as_ref())?;
    schema::create(&options.bin, &active, options.scale).await?;
    probe::create(&active.config()).await?;
    load::create(options, &active).await?;
    system.wait_protected().await?;
    let mut warm = Vec::new();
    for &(mode, clients) in &options.loads {
        if !warm.contains(&mode) {
            // The first seconds fill buffers and do not count.
            let how = (mode, clients, WARM_SECONDS);
            load::run(options, &active, &dir.join(LOAD), how).await?;
            warm.push(mode);
        }
        found(measure(options, system.as_ref(), &machines, dir, (mode, clients)).await?)?;
    }
    if options.loss_clients > 0 {
        let subscriber = match options.subscriber {
            true => Some(Subscriber::start(&options.bin, dir, &system.servers()).await?),
            false => None,
        };
        found(Finding::Loss {
            clients: options.loss_clients,
            loss: loss::play(system.as_mut(), options, subscriber.as_ref()).await?,
        })?;
    }
    Ok(())
}

/// Where the active's PostgreSQL listens.
fn active(system: &dyn System) -> anyhow::Result<Server> {
    let first = system.servers().into_iter().next();
    first.context("it has a server")
}

/// One run of a load and what it cost.
async fn measure(
    options: &Options,
    system: &dyn System,
    machines: &Machines,
    dir: &Path,
    (mode, clients): (Mode, u16),
) -> anyhow::Result<Finding> {
    let active = active(system)?;
    flush(system).await?;
    let counters = Counters::read(system, machines, dir).await?;
    let how = (mode, clients, options.seconds);
    let rate = load::run(options, &active, &dir.join(LOAD), how).await?;
    // What transactions have left to be written is their cost, too.
    flush(system).await?;
    Ok(Finding::Load {
        mode,
        clients,
        seconds: options.seconds,
        rate,
        footprint: counters.until(system, machines, dir).await?,
    })
}

/// A measurement in a line.
fn describe(record: &Record) -> String {
    match &record.finding {
        Finding::Load {
            mode,
            clients,
            rate,
            footprint,
            ..
        } => {
            let transactions = rate.transactions.max(1);
            let disk = footprint.disk_bytes.unwrap_or_default() / transactions;
            let sent = footprint.network_bytes / transactions;
            let cpu = |(name, seconds): (&String, &f64)| {
                let ms = seconds * 1000.0 / transactions as f64;
                (ms >= 0.001).then(|| format!("{name} {ms:.3}"))
            };
            let cpu: Vec<String> = footprint.cpu_seconds.iter().filter_map(cpu).collect();
            let work = footprint.work_each(transactions);
            let work = work.map(|(name, each)| format!(", {each:.2} {name}"));
            format!(
                "  {}, {clients} clients: {:.0} tps, p50 {} ms, p99 {} ms; a transaction: {disk} bytes written, {sent} sent; \
                 processor, ms: {}{}",
                mode.name(),
                rate.tps,
                rate.p50_ms,
                rate.p99_ms,
                cpu.join(", "),
                work.collect::<String>()
            )
        }
        Finding::Loss { loss, .. } => {
            let protected = loss
                .given_back_at_s
                .map(|_| after(", protected again", loss.protected_ms));
            let subscriber = loss.subscriber.map(|seen| {
                let Subscribed {
                    silent_ms,
                    missing,
                    unexpected,
                } = seen;
                format!(
                    "; a subscriber got nothing for {:.1} s, missed {missing} rows, has {unexpected} that are lost",
                    silent_ms / 1000.0
                )
            });
            format!(
                "  active lost: down for {:.1} s, {}, {} of {} acknowledged commits lost{}{}",
                loss.downtime_ms / 1000.0,
                after("90 % of throughput", loss.back_ms),
                loss.lost,
                loss.acknowledged,
                protected.unwrap_or_default(),
                subscriber.unwrap_or_default()
            )
        }
    }
}

/// How long something took, if it came in time.
fn after(what: &str, ms: Option<f64>) -> String {
    match ms {
        Some(ms) => format!("{what} after {:.1} s", ms / 1000.0),
        None => format!("{what} not in time"),
    }
}
