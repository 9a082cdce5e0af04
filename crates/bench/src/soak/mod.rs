//! `understudy bench soak`: a cluster under everything at once for a long time, then a kill.
//!
//! pgbench's transactions, an order entry like TPC-C's, and tables that come and go write; both
//! nodes have so few buffers that pages leave them all the time; sessions on the standby ask all the
//! time for what must be true in every snapshot. Then the active is killed, the standby takes over,
//! the dead node comes back as a standby, and everything is verified.
//!
//! Invariant: the run is bounded: the load has a rate, and what the blocks take on disk a limit at
//! which the run ends with an error.

mod chart;
mod judge;
pub(crate) mod orders;
mod readers;
mod report;
pub(crate) mod sample;
mod tables;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::task::JoinSet;

use crate::lag::{self, Watch};
use cluster::Cluster;
use cluster::clients::churn::Churn;
use cluster::clients::clock::{Clock, Offset};
use cluster::clients::history::History;
use cluster::clients::load::{self, Load};
use cluster::clients::schema;
use cluster::clients::session::connect;
use cluster::tier::{Store, Tier};
use orders::Orders;
use readers::Readers;
use sample::Sample;
use tables::Table;

pub use chart::draw;
pub use report::{Report, table};
pub(super) use sample::{blocks_bytes, tree_bytes};

/// What is run for how long.
#[derive(Debug, Clone)]
pub struct Options {
    /// PostgreSQL's programs.
    pub bin: PathBuf,
    /// An empty directory to work in.
    pub dir: PathBuf,
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// Length of the load until the kill.
    pub duration: Duration,
    /// Length of the load after it.
    pub afterwards: Duration,
    /// Transactions a second, if limited; a fifth of them order entry.
    pub rate: Option<f64>,
    /// Clients of each kind.
    pub clients: u16,
    /// pgbench's scale, and the order entry's warehouses.
    pub scale: u32,
    /// What keeps the blocks.
    pub store: Store,
    /// Time between checkpoints.
    pub checkpoints: Duration,
    /// Time between samples.
    pub every: Duration,
}

/// How often the lag is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long anything that must happen may take: longer than a lag that a slow machine builds up.
const TIMEOUT: Duration = Duration::from_secs(300);
/// What zones or Cassandra may take on disk together.
const DISK_BYTES_MAX: u64 = 20 << 30;
/// Less than the data, so that pages leave all the time.
const BUFFERS: &str = "16MB";
/// PostgreSQL's shortest; more frequent checkpoints are asked for.
const TIMED_CHECKPOINTS: Duration = Duration::from_secs(30);
/// Sessions that ask a standby.
const SESSIONS: usize = 2;
/// Where the rate is limited, so many transactions go with a round of table changes, which costs about
/// as much as they do.
const PER_ROUND: f64 = 60.0;
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(100);

/// Runs all of it; `say` hears what is going on.
///
/// # Errors
/// Something cannot be started or does not answer, or the disk limit is reached. What is found
/// wrong is no error but a report.
pub async fn run(options: &Options, say: impl Fn(&str)) -> anyhow::Result<Report> {
    let tier = Tier::start(options.store, &options.dir, &say).await?;
    say("starting the cluster, filling the tables");
    let mut cluster = set_stage(options, &tier).await?;
    let run = Box::pin(play(options, &mut cluster, &tier, &say)).await?;
    say("verifying");
    // On a starved machine it may have changed once more.
    cluster.wait_active(TIMEOUT).await?;
    let report = judge::report(options, &cluster, run).await?;
    cluster.shutdown();
    tokio::task::block_in_place(|| drop(tier));
    Ok(report)
}

async fn set_stage(options: &Options, tier: &Tier) -> anyhow::Result<Cluster> {
    let mut settings = cluster::Options::new(&options.dir, &options.bin, &options.understudy);
    tier.serve(&mut settings);
    // A busy machine's heartbeat can be late; the kill is noticed by other signs.
    settings.heartbeat = "wide".into();
    let interval = options.checkpoints.max(TIMED_CHECKPOINTS).as_secs();
    let parameters = [
        ("shared_buffers", BUFFERS.to_owned()),
        ("checkpoint_timeout", format!("{interval}s")),
    ];
    let parameters = parameters.map(|(name, value)| (name.to_owned(), value));
    settings.parameters.extend(parameters);
    let mut cluster = Cluster::create(settings)?;
    cluster.start().await?;
    let active = cluster.wait_active(TIMEOUT).await?;
    let server = cluster.server(&active)?;
    schema::create(&options.bin, &server, options.scale).await?;
    orders::create(&server.config(), options.scale).await?;
    let standby = other(&cluster, &active)?;
    cluster.wait_follows(&standby, TIMEOUT).await?;
    Ok(cluster)
}

fn other(cluster: &Cluster, name: &str) -> anyhow::Result<String> {
    let other = cluster.names().find(|other| *other != name);
    other.map(str::to_owned).context("there are two nodes")
}

/// What happened under load.
struct Run {
    killed: Offset,
    end: Offset,
    balances: History,
    orders: History,
    ddl_rounds: u64,
    /// What was seen of the lag until the kill, in bytes and milliseconds.
    lag: (lag::Spread, lag::Spread),
    answers: Vec<(String, readers::Tally)>,
    series: Vec<Sample>,
    tables: Vec<Table>,
}

/// Everybody who writes.
struct Writers {
    balances: Load,
    orders: Load,
    churn: Churn,
    checkpoints: JoinSet<()>,
}

impl Writers {
    fn start(options: &Options, application: &tokio_postgres::Config, clock: Clock) -> Writers {
        let load = |share: f64| load::Options {
            clients: options.clients,
            scale: options.scale,
            rate: options.rate.map(|rate| rate * share),
            ..load::Options::default()
        };
        let mut checkpoints = JoinSet::new();
        if options.checkpoints < TIMED_CHECKPOINTS {
            checkpoints.spawn(checkpoint(application.clone(), options.checkpoints));
        }
        let rounds = options.rate.map(|rate| rate / PER_ROUND);
        Writers {
            balances: Load::start(application.clone(), load(0.8), clock),
            orders: Load::of::<Orders>(application.clone(), load(0.2), clock),
            churn: Churn::paced(application.clone(), rounds),
            checkpoints,
        }
    }

    fn commits(&self) -> u64 {
        self.balances.acknowledged() + self.orders.acknowledged()
    }

    /// Lets everybody finish what is at hand.
    async fn stop(self) -> (History, History, u64) {
        drop(self.checkpoints);
        tokio::join!(self.balances.stop(), self.orders.stop(), self.churn.stop())
    }
}

async fn checkpoint(application: tokio_postgres::Config, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        if let Ok(client) = connect(&application).await
            && let Err(error) = client.batch_execute("CHECKPOINT").await
        {
            tracing::debug!(%error, "no checkpoint this time");
        }
    }
}

async fn play(
    options: &Options,
    cluster: &mut Cluster,
    tier: &Tier,
    say: &impl Fn(&str),
) -> anyhow::Result<Run> {
    let active = cluster.wait_active(TIMEOUT).await?;
    let standby = other(cluster, &active)?;
    let servers = (cluster.server(&active)?, cluster.server(&standby)?);
    let clock = Clock::start();
    let writers = Writers::start(options, &cluster.any_writable(), clock);
    let readers = Readers::start(&servers.1, SESSIONS, BETWEEN_QUESTIONS);
    let mut series = Vec::new();

    say(&format!(
        "{active} serves, {standby} follows; load for {:?}",
        options.duration
    ));
    let watch = Watch::start(&servers.0, &servers.1, LOOK_EVERY);
    let until = Offset(0) + options.duration;
    follow(
        options,
        cluster,
        &writers,
        &watch,
        (clock, until),
        &mut series,
    )
    .await?;
    // A slow machine's standby is given the time to move its base once.
    let timeout = clock.now() + TIMEOUT;
    while judge::moved(&series) == 0 && clock.now() < timeout {
        let until = clock.now() + options.every;
        follow(
            options,
            cluster,
            &writers,
            &watch,
            (clock, until),
            &mut series,
        )
        .await?;
    }
    let lag = watch.spread();
    drop(watch);
    let tables = tokio::task::block_in_place(|| {
        let cassandra = tier.cassandra();
        cassandra.map(|cassandra| tables::look(cassandra, "understudy"))
    });
    let tables = tables.transpose()?.unwrap_or_default();

    let kill = tokio::task::block_in_place(|| cluster.kill_node(&active))
        .with_context(|| format!("{active} was not running"))?;
    let killed = clock.at(kill.at);
    let last = series.last().map(|sample| sample.lag).unwrap_or_default();
    say(&format!(
        "{:.0} s: {active} killed; {standby} was {} ms and {} bytes behind",
        killed.seconds(),
        last.ms,
        last.bytes
    ));
    wait_for_commits(cluster, &writers, killed).await?;
    say(&format!("{:.0} s: {standby} serves", clock.now().seconds()));
    cluster.start_node(&active)?;
    cluster.wait_follows(&active, TIMEOUT).await?;
    say(&format!("{:.0} s: {active} follows", clock.now().seconds()));

    let returned = Readers::start(&servers.0, SESSIONS, BETWEEN_QUESTIONS);
    let watch = Watch::start(&servers.1, &servers.0, LOOK_EVERY);
    let until = clock.now() + options.afterwards;
    follow(
        options,
        cluster,
        &writers,
        &watch,
        (clock, until),
        &mut series,
    )
    .await?;
    drop(watch);
    let answers = vec![(standby, readers.tally()), (active, returned.tally())];
    drop((readers, returned));
    let end = clock.now();
    let (balances, orders, ddl_rounds) = writers.stop().await;
    Ok(Run {
        killed,
        end,
        balances,
        orders,
        ddl_rounds,
        lag,
        answers,
        series,
        tables,
    })
}

/// Takes samples until a moment.
async fn follow(
    options: &Options,
    cluster: &mut Cluster,
    writers: &Writers,
    watch: &Watch,
    (clock, until): (Clock, Offset),
    series: &mut Vec<Sample>,
) -> anyhow::Result<()> {
    let mut looks = 0;
    while clock.now() < until {
        let left = until.since(clock.now());
        tokio::time::sleep(left.min(options.every)).await;
        cluster.check_running()?;
        let mut sample = Sample::take(cluster).await?;
        (sample.lag, looks) = watch.worst_since(looks);
        sample.seconds = clock.now().seconds();
        sample.commits = writers.commits();
        ensure!(
            sample.disk_bytes < DISK_BYTES_MAX,
            "the storage tier takes {} bytes on disk",
            sample.disk_bytes
        );
        series.push(sample);
    }
    Ok(())
}

/// Waits until both kinds of clients were answered after the kill.
async fn wait_for_commits(
    cluster: &mut Cluster,
    writers: &Writers,
    killed: Offset,
) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    for load in [&writers.balances, &writers.orders] {
        while load.history().outage(killed).is_none() {
            cluster.check_running()?;
            ensure!(
                tokio::time::Instant::now() < deadline,
                "nobody took over; a client's last words: {}",
                load.trouble().unwrap_or_else(|| "none".into())
            );
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
    Ok(())
}
