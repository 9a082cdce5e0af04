//! The demo with another server than PostgreSQL: kill its machine under load as often as wanted, see it restarted on
//! another one, and look for every commit.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use cluster::clients::clock::Clock;
use cluster::clients::history::History;
use cluster::clients::mysql::{self, Load, Plan, Verdict, Work};
use cluster::mariadb::pages::{Inspector, Pages};
use cluster::mariadb::{self, Kill};
use cluster::tier::{Store, Tier};
use cluster::workspace::Workspace;
use cluster::{Cluster, Options as ClusterOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use serde_json::Value;

use super::progress::Progress;
use super::timeline::thousands;

/// What the user chose.
#[derive(Debug, Clone)]
pub struct Options {
    /// What keeps the blocks.
    pub store: Store,
    /// Half of the clients write large rows, and every page is looked at after each kill, before the server recovers.
    pub large_writes: bool,
    /// Length of the load before the first kill, and after each.
    pub between: Duration,
    /// How often the active's machine is killed.
    pub kills: u32,
    /// Concurrent clients.
    pub clients: u16,
    /// Decides the moments of the kills and the rows touched.
    pub seed: u64,
    /// The directory of MariaDB's programs, if not the usual ones.
    pub bin: Option<PathBuf>,
    /// Where to work.
    pub data: Option<PathBuf>,
    /// Leave data and logs in place.
    pub keep: bool,
}

/// One kill.
#[derive(Debug, Clone, Serialize)]
pub struct Outage {
    /// Whose machine it was.
    pub killed: String,
    /// From the last commit acknowledged before the machine was gone to the first one after that.
    pub downtime_ms: f64,
    /// The steps of the takeover, as the history has them.
    pub phases: Value,
}

/// What the demo found: `--json` prints exactly this.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// True if nothing was lost or invented, and all tables are sound.
    pub passed: bool,
    /// Which server.
    pub engine: String,
    /// What is there, beside what clients were told.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Every kill.
    pub outages: Vec<Outage>,
    /// The median of the downtimes.
    pub downtime_ms: f64,
    /// The longest of them.
    pub downtime_worst_ms: f64,
    /// Commits a second over the whole run, outages included.
    pub tps: f64,
    /// What the server's own check of its tables says; with large writes, after each takeover, too.
    pub tables: String,
    /// With large writes: large rows that are not whole, or should not be there, or are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrong_large_rows: Option<u64>,
    /// With large writes: what every page looked like before each recovery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages: Option<Pages>,
    /// Repeats the run.
    pub seed: u64,
}

const ACCOUNTS: u32 = 20_000;
/// Clients that write large rows have numbers from here on.
const LARGE_FIRST: i32 = 10_000;

/// Runs the demo. Dropping the future ends it and cleans up.
///
/// # Errors
/// Something cannot be started or does not answer. Lost commits are no error but a report.
pub async fn run(options: &Options) -> anyhow::Result<Report> {
    let mut workspace = Workspace::create(options.data.as_deref(), options.keep)?;
    let result = on_stage(options, workspace.path()).await;
    workspace.keep_unless(matches!(&result, Ok(report) if report.passed));
    result
}

/// The database and what stands below it. Fields are dropped in this order.
struct Stage {
    cluster: Cluster,
    tier: Tier,
    inspector: Option<Inspector>,
}

async fn on_stage(options: &Options, dir: &Path) -> anyhow::Result<Report> {
    let progress = Progress::new();
    let mut stage = set_stage(options, dir, &progress).await?;
    let servers = mariadb::servers(&stage.cluster);
    let clock = Clock::start();
    let loads = start_load(options, &stage, clock);
    let mut rng = SmallRng::seed_from_u64(options.seed);
    let mut kills = Vec::new();
    let mut tables = Ok(());
    for _ in 0..options.kills {
        let wait = options.between.mul_f64(rng.random_range(0.5..1.5));
        tokio::time::sleep(wait).await;
        let kill = mariadb::kill_active(&mut stage.cluster, |what| progress.say(what)).await?;
        if options.large_writes {
            tables = tables.and(check_next(&stage.cluster, &kill).await);
        }
        kills.push(kill);
    }
    tokio::time::sleep(options.between).await;
    progress.say("verifying");
    let history = stop(loads).await?;
    let ran = clock.now();
    mariadb::wait_active(&mut stage.cluster, 0).await?;
    let verdict = mysql::verify(&servers, &history, ACCOUNTS).await?;
    let wrong_large_rows = match options.large_writes {
        true => Some(mysql::wrong_large_rows(&servers, LARGE_FIRST).await?),
        false => None,
    };
    let tables = match tables.and(mysql::check_tables(&servers).await) {
        Ok(()) => "OK".to_owned(),
        Err(error) => format!("{error:#}"),
    };
    let outages = outages(&stage.cluster, &history, clock, &kills).await?;
    let pages = match &stage.inspector {
        Some(inspector) => Some(look_at_pages(&mut stage.cluster, inspector).await?),
        None => None,
    };
    stage.cluster.shutdown();
    tokio::task::block_in_place(|| drop(stage.tier));
    progress.set_state("done");
    let mut downtimes: Vec<f64> = outages.iter().map(|outage| outage.downtime_ms).collect();
    downtimes.sort_by(f64::total_cmp);
    let damaged = pages
        .as_ref()
        .is_some_and(|pages| !pages.damaged.is_empty());
    Ok(Report {
        passed: verdict.holds()
            && tables == "OK"
            && wrong_large_rows.unwrap_or_default() == 0
            && !damaged,
        engine: "MariaDB".to_owned(),
        downtime_ms: downtimes
            .get(downtimes.len() / 2)
            .copied()
            .unwrap_or_default(),
        downtime_worst_ms: downtimes.last().copied().unwrap_or_default(),
        tps: verdict.acknowledged as f64 / ran.seconds().max(1.0),
        verdict,
        outages,
        tables,
        wrong_large_rows,
        pages,
        seed: options.seed,
    })
}

fn start_load(options: &Options, stage: &Stage, clock: Clock) -> Vec<Load> {
    let large = match options.large_writes {
        true => options.clients.div_ceil(2),
        false => 0,
    };
    let groups = [
        (Work::Transfers, options.clients - large, 0),
        (Work::LargeRows, large, LARGE_FIRST),
    ];
    let servers = mariadb::servers(&stage.cluster);
    let start = |(work, clients, first)| {
        let plan = Plan {
            work,
            clients,
            first,
            accounts: ACCOUNTS,
            seed: options.seed,
        };
        Load::start(&servers, &plan, clock)
    };
    groups.into_iter().map(start).collect()
}

async fn stop(loads: Vec<Load>) -> anyhow::Result<History> {
    let mut attempts = Vec::new();
    for load in loads {
        attempts.extend_from_slice(load.stop().await?.attempts());
    }
    Ok(History::new(attempts))
}

/// Has whoever took over check all tables, under load.
async fn check_next(cluster: &Cluster, kill: &Kill) -> anyhow::Result<()> {
    let next = cluster.node(&kill.next)?;
    mariadb::check(mysql::Server {
        address: next.address,
        port: next.port,
    })
    .await
}

async fn outages(
    cluster: &Cluster,
    history: &History,
    clock: Clock,
    kills: &[Kill],
) -> anyhow::Result<Vec<Outage>> {
    let entries: Value = serde_json::from_str(&cluster.ask("history").await?)?;
    let outage = |kill: &Kill| {
        let outage = history
            .outage(clock.at(kill.at))
            .context("no commit after a kill")?;
        Ok(Outage {
            killed: kill.node.clone(),
            downtime_ms: outage.length().as_secs_f64() * 1000.0,
            phases: phases(&entries, kill.epoch),
        })
    };
    kills.iter().map(outage).collect()
}

/// What was found before each recovery, after it was seen that damage would have been found.
async fn look_at_pages(cluster: &mut Cluster, inspector: &Inspector) -> anyhow::Result<Pages> {
    let (active, _) = mariadb::wait_active(cluster, 0).await?;
    // A table of the server's own, which nobody writes while its file is copied.
    let node = cluster.node(&active)?;
    let file = node.data.join("volume/mysql/transaction_registry.ibd");
    inspector.notices_damage(&file).await?;
    inspector.pages()
}

fn phases(history: &Value, epoch: u64) -> Value {
    let mut entries = history.as_array().into_iter().flatten();
    let entry = entries.rfind(|entry| entry["epoch"].as_u64() == Some(epoch));
    entry
        .map(|entry| entry["phases"].clone())
        .unwrap_or_default()
}

/// Starts the cluster and fills the tables.
async fn set_stage(options: &Options, dir: &Path, progress: &Progress) -> anyhow::Result<Stage> {
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let tier = Tier::start(options.store, dir, |what| progress.say(what)).await?;
    let mut settings = ClusterOptions::new(dir, Path::new("/"), &program);
    tier.serve(&mut settings);
    let inspector = match options.large_writes {
        true => Some(Inspector::install(dir, options.bin.as_deref())?),
        false => None,
    };
    let inspected = inspector.as_ref().map(Inspector::bin);
    settings.engine = Some(mariadb::engine(inspected.or(options.bin.as_deref()))?);
    // With large writes, most pages have to leave a small pool at once.
    let pool = if options.large_writes { "16M" } else { "64M" };
    settings.parameters = vec![("innodb_buffer_pool_size".to_owned(), pool.to_owned())];
    let zones = match settings.zones {
        0 => String::new(),
        zones => format!("{zones} zones and "),
    };
    progress.say(&format!(
        "starting {zones}2 nodes with MariaDB in {}",
        dir.display()
    ));
    let mut cluster = Cluster::create(settings)?;
    let active = mariadb::start(&mut cluster).await?;
    progress.say(&format!(
        "{active} serves; making {} accounts",
        thousands(u64::from(ACCOUNTS))
    ));
    let socket = cluster.node(&active)?.data.join("run/server.sock");
    mariadb::administrate(&socket, &mysql::setup_statements(ACCOUNTS)).await?;
    Ok(Stage {
        cluster,
        tier,
        inspector,
    })
}

/// The story in a few lines.
pub fn render(report: &Report) -> String {
    let verdict = &report.verdict;
    let mut text = format!(
        "\n  {} was killed {} times under load: {} commits acknowledged, {} LOST, {} invented\n",
        report.engine,
        report.outages.len(),
        thousands(verdict.acknowledged),
        verdict.lost,
        verdict.unexpected,
    );
    text.push_str(&format!(
        "  no commits for {:.0} ms (median), {:.0} ms at most; {:.0} commits a second over all\n",
        report.downtime_ms, report.downtime_worst_ms, report.tps
    ));
    let sums = if verdict.sums_agree {
        "agree"
    } else {
        "DO NOT AGREE"
    };
    text.push_str(&format!("  sums {sums}, tables: {}\n", report.tables));
    if let Some(pages) = &report.pages {
        text.push_str(&format!(
            "  {} starts on files that were there: {} pages looked at before recovery, {} files with a TORN page; {} \
             large rows wrong\n",
            pages.starts,
            thousands(pages.pages),
            pages.damaged.len(),
            report.wrong_large_rows.unwrap_or_default(),
        ));
    }
    let verdict = if report.passed { "passed" } else { "FAILED" };
    text.push_str(&format!("\n  {verdict} (seed {})\n", report.seed));
    text
}
