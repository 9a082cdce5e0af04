//! `understudy bench zones`: what clients see while a zone is exchanged, and how long that takes.
//!
//! Three zones, two nodes, clients that write all the time. Commits are counted for a while, then a fourth zone takes
//! the third one's place by `understudy zone replace`, then they are counted for a while again.
//!
//! Invariant: the report fails if a client met an error, or if anything acknowledged is missing afterwards.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cluster::Cluster;
use cluster::clients::clock::Clock;
use cluster::clients::history::Outcome;
use cluster::clients::load::{self, Counter, Load};
use cluster::clients::session::connect;
use cluster::clients::verify::Check;
use cluster::clients::{schema, verify};
use serde::Serialize;

use crate::filled::database_bytes;

/// How long anything may take before that counts as a failure.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// PostgreSQL's programs.
    pub bin: PathBuf,
    /// An empty directory to work in.
    pub dir: PathBuf,
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// Clients that write.
    pub clients: u16,
    /// pgbench's scale.
    pub scale: u32,
    /// How long commits are counted before and after.
    pub around: Duration,
    /// What the scrub that fills a newcomer may compare in a second (`storage.scrub_rate`).
    pub scrub_rate: Option<String>,
}

/// Commits a second, second by second.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Phase {
    /// Duration of the phase.
    pub seconds: f64,
    /// Acknowledged commits a second, over all of it.
    pub commits_per_second: f64,
    /// In the slowest second.
    pub slowest_second: u64,
}

/// What came of it.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// pgbench's scale.
    pub scale: u32,
    /// Clients that write.
    pub clients: u16,
    /// What the database takes.
    pub database_bytes: u64,
    /// Before the exchange.
    pub before: Phase,
    /// From the command to its end.
    pub during: Phase,
    /// After it.
    pub after: Phase,
    /// How long the exchange took for each GB of the database.
    pub seconds_per_gb: f64,
    /// Commits that were acknowledged.
    pub acknowledged: u64,
    /// Transactions that a client does not know the end of.
    pub unknown: u64,
    /// Why a client lost its connection.
    pub trouble: Option<String>,
    /// True if what was acknowledged is there.
    pub checks: Vec<Check>,
    /// All of it held.
    pub passed: bool,
}

/// Counts commits until `done` is.
async fn count<T>(counter: &Counter, done: impl Future<Output = T>) -> (T, Phase) {
    let (begun, first) = (Instant::now(), counter.get());
    let mut each = Vec::new();
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.tick().await;
    tokio::pin!(done);
    let mut last = first;
    let result = loop {
        tokio::select! {
            result = &mut done => break result,
            _ = tick.tick() => {
                let now = counter.get();
                each.push(now - last);
                last = now;
            }
        }
    };
    let (seconds, commits) = (begun.elapsed().as_secs_f64(), counter.get() - first);
    let phase = Phase {
        seconds,
        commits_per_second: commits as f64 / seconds,
        slowest_second: each.into_iter().min().unwrap_or(commits),
    };
    (result, phase)
}

/// Runs it; `say` hears what is going on.
///
/// # Errors
/// Something cannot be started, or the exchange fails. What is lost is no error but a report.
pub async fn run(options: &Options, say: impl Fn(&str)) -> anyhow::Result<Report> {
    let mut settings = cluster::Options::new(&options.dir, &options.bin, &options.understudy);
    if let Some(rate) = &options.scrub_rate {
        settings.storage = vec![format!("scrub_rate = \"{rate}\"")];
    }
    let mut cluster = Cluster::create(settings)?;
    say("starting three zones and two nodes, filling the tables");
    cluster.start_first().await?;
    let active = cluster.wait_active(TIMEOUT).await?;
    let server = cluster.server(&active)?;
    schema::create(&options.bin, &server, options.scale).await?;
    let session = connect(&server.config()).await?;
    session.batch_execute("CHECKPOINT").await?;
    let database_bytes = database_bytes(&session).await?;
    cluster.start_others().await?;
    let load_options = load::Options {
        clients: options.clients,
        scale: options.scale,
        ..load::Options::default()
    };
    let load = Load::start(cluster.any_writable(), load_options, Clock::start());
    let counter = load.counter();
    tokio::time::sleep(Duration::from_secs(3)).await;
    say("counting commits");
    let ((), before) = count(&counter, tokio::time::sleep(options.around)).await;
    let exchange = Exchange::prepare(&mut cluster, &active).await?;
    say(&format!("exchanging {} for {}", exchange.old, exchange.new));
    let (exchanged, during) = count(&counter, exchange.carry_out(&cluster)).await;
    exchanged.context("the exchange failed")?;
    cluster.kill_zone(3).context("the old zone ran")?;
    say("counting commits again");
    let ((), after) = count(&counter, tokio::time::sleep(options.around)).await;
    let trouble = load.trouble();
    let history = load.stop().await;
    say("verifying");
    let (_, mut checks) = verify::database(&server, &history).await?;
    checks.push(verify::amcheck(&options.bin, &server).await?);
    cluster.shutdown();
    let unknown = history.count(Outcome::Unknown);
    ensure!(during.seconds > 0.0, "no time passed");
    Ok(Report {
        scale: options.scale,
        clients: options.clients,
        database_bytes,
        seconds_per_gb: during.seconds / (database_bytes as f64 / f64::from(1 << 30)),
        before,
        during,
        after,
        acknowledged: history.count(Outcome::Acknowledged),
        unknown,
        passed: trouble.is_none() && unknown == 0 && checks.iter().all(|check| check.passed),
        trouble,
        checks,
    })
}

/// The third zone, and an empty one that takes its place.
pub(crate) struct Exchange {
    old: String,
    new: String,
    /// The configuration of the node that asks for it.
    config: String,
}

impl Exchange {
    /// Starts the empty zone.
    pub async fn prepare(cluster: &mut Cluster, node: &str) -> anyhow::Result<Exchange> {
        let (number, new) = cluster.add_zone()?;
        cluster.start_zone(number)?;
        listens(&new).await?;
        Ok(Exchange {
            old: cluster.zone_address(3)?,
            new,
            config: cluster.node(node)?.config.display().to_string(),
        })
    }

    /// Exchanges them, and waits until the new one has everything.
    pub async fn carry_out(&self, cluster: &Cluster) -> anyhow::Result<String> {
        let (old, new) = (&self.old, &self.new);
        let arguments = ["zone", "replace", old, new, "--config", &self.config];
        cluster.run(&arguments).await
    }
}

/// Waits until a zone that was just started can be reached.
async fn listens(address: &str) -> anyhow::Result<()> {
    let wait = async {
        while tokio::net::TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(TIMEOUT, wait).await;
    waited.with_context(|| format!("{address} does not listen"))
}

/// For a person.
pub fn table(report: &Report) -> String {
    let mb = report.database_bytes as f64 / f64::from(1 << 20);
    let mut text = format!(
        "\n  {:.0} MB, {} clients: exchanged in {:.0} s, {:.0} s for each GB\n",
        mb, report.clients, report.during.seconds, report.seconds_per_gb
    );
    for (name, phase) in [
        ("before", &report.before),
        ("during", &report.during),
        ("after", &report.after),
    ] {
        text += &format!(
            "  {name:<8}{:>8.0} commits a second, {:>6} in the slowest second\n",
            phase.commits_per_second, phase.slowest_second
        );
    }
    let trouble = report.trouble.as_deref().unwrap_or("none");
    text += &format!(
        "  {} acknowledged, {} unknown, errors at clients: {trouble}\n",
        report.acknowledged, report.unknown
    );
    for check in report.checks.iter().filter(|check| !check.passed) {
        text += &format!("  FAILED: {check:?}\n");
    }
    text
}
