//! `understudy bench size`: times that may grow with the size of a database, and the memory of each process.
//!
//! A cluster with pgbench's tables and one table of many pages. In turn, under load from the second step on: a new standby, a branch, the
//! loss of the active, and the exchange of a zone for an empty one.
//!
//! Invariant: whatever clients were told is there afterwards, or the measurement fails.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::Cluster;
use cluster::clients::clock::Clock;
use cluster::clients::load::{self, Load};
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::clients::{schema, verify};
use serde::Serialize;

use crate::branch::{ASKED, Branch, branch};
use crate::filled::{database_bytes, settings};
use crate::soak::sample::{resident, tree_bytes};
use crate::zones::Exchange;

/// Scale of pgbench's tables, which clients change.
const SCALE: u32 = 20;
/// Zones and nodes share the machine here: clients at full speed would leave nothing for a branch or a scrub.
const COMMITS_PER_SECOND: f64 = 300.0;
/// Longest time that anything here takes.
const WITHIN: Duration = Duration::from_secs(7200);
/// Limit of a scrub in a second: an exchange shall not wait for that.
const SCRUB_RATE: &str = "1GiB";
/// Rows of a page of the large table.
const ROWS_PER_PAGE: u64 = 4;
/// Rows that are made at once.
const ROWS: u64 = 250_000;

/// Options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// PostgreSQL's programs.
    pub bin: PathBuf,
    /// An empty directory to work in.
    pub dir: PathBuf,
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// Size of the large table.
    pub table_bytes: u64,
}

/// Memory of a process.
#[derive(Debug, Clone, Serialize)]
pub struct Memory {
    /// A zone's or a node's name.
    pub process: String,
    /// Without PostgreSQL.
    pub resident_bytes: u64,
}

/// Everything that was measured. Times are in seconds.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Of the database.
    pub database_bytes: u64,
    /// Room that one zone takes on its disk.
    pub zone_bytes: u64,
    /// Until the large table was there.
    pub fill_seconds: f64,
    /// From the start of a new standby until it has replayed everything.
    pub standby_seconds: f64,
    /// A branch under load.
    pub branch: Branch,
    /// From the last commit before the active is killed to the first one after.
    pub outage_seconds: f64,
    /// From the start of the lost node until it has replayed everything.
    pub return_seconds: f64,
    /// Exchange of a zone for an empty one, under load.
    pub exchange_seconds: f64,
    /// Before the loss, under load.
    pub memory: Vec<Memory>,
}

/// Measures everything; `say` hears what is going on.
///
/// # Errors
/// Something does not start, or lacks a commit.
pub async fn run(options: &Options, say: impl Fn(&str)) -> Result<Report> {
    let programs = (options.bin.as_path(), options.understudy.as_path());
    let mut settings = settings(programs, &options.dir)?;
    settings.storage = vec![format!("scrub_rate = \"{SCRUB_RATE}\"")];
    let mut cluster = Cluster::create(settings)?;
    cluster.start_first().await?;
    let active = cluster.wait_active(WITHIN).await?;
    let server = cluster.server(&active)?;
    schema::create(&options.bin, &server, SCALE).await?;
    let client = connect(&server.config()).await?;
    client.batch_execute(ASKED).await?;
    let began = Instant::now();
    fill(&server, options.table_bytes, &say).await?;
    let fill_seconds = began.elapsed().as_secs_f64();
    let database_bytes = database_bytes(&client).await?;
    let zone_bytes = tree_bytes(&cluster.options().dir.join("zone-1"));
    let gb = |bytes: u64| bytes as f64 / 1e9;
    say(&format!(
        "{:.1} GB after {fill_seconds:.0} s, {:.1} GB in each zone",
        gb(database_bytes),
        gb(zone_bytes)
    ));

    let standby = cluster.names().find(|name| *name != active);
    let standby = standby.context("a second node")?.to_owned();
    let began = Instant::now();
    cluster.start_node(&standby)?;
    cluster.wait_follows(&standby, WITHIN).await?;
    let standby_seconds = began.elapsed().as_secs_f64();
    say(&format!("a new standby: {standby_seconds:.1} s"));

    let clock = Clock::start();
    let load_options = load::Options {
        scale: SCALE,
        rate: Some(COMMITS_PER_SECOND),
        ..load::Options::default()
    };
    let load = Load::start(cluster.any_writable(), load_options, clock);
    load.wait_acknowledged(1_000, WITHIN).await?;
    let with = (options.understudy.as_path(), options.dir.as_path());
    let branch = branch(&cluster, &active, with, 1).await?;
    say(&format!(
        "a branch: {:.1} s, of which checkpoint {:.1} s, redo {:.1} s, to serve {:.1} s",
        branch.total, branch.checkpoint, branch.redo, branch.serve
    ));
    let memory = memory(&cluster)?;

    let killed = clock.now();
    cluster.kill_node(&active).context("the active ran")?;
    cluster.wait_takes_over(&standby, WITHIN).await?;
    load.wait_acknowledged(load.acknowledged() + 1_000, WITHIN)
        .await?;
    let outage = load.history().outage(killed);
    let outage_seconds = outage.context("an outage")?.length().as_secs_f64();
    say(&format!("the active is lost: {outage_seconds:.2} s"));
    let began = Instant::now();
    cluster.start_node(&active)?;
    cluster.wait_follows(&active, WITHIN).await?;
    let return_seconds = began.elapsed().as_secs_f64();
    say(&format!("it returns: {return_seconds:.1} s"));

    let exchange = Exchange::prepare(&mut cluster, &standby).await?;
    let began = Instant::now();
    exchange.carry_out(&cluster).await?;
    let exchange_seconds = began.elapsed().as_secs_f64();
    say(&format!("a zone is exchanged: {exchange_seconds:.0} s"));

    let history = load.stop().await;
    let server = cluster.server(&standby)?;
    let (_, checks) = verify::database(&server, &history).await?;
    ensure!(checks.iter().all(|check| check.passed), "{checks:?}");
    cluster.shutdown();
    Ok(Report {
        database_bytes,
        zone_bytes,
        fill_seconds,
        standby_seconds,
        branch,
        outage_seconds,
        return_seconds,
        exchange_seconds,
        memory,
    })
}

/// Makes a table of so many bytes, in several sessions: one would wait for the disks of the zones most of the time.
async fn fill(server: &Server, bytes: u64, say: &impl Fn(&str)) -> Result<()> {
    let rows = bytes / 8192 * ROWS_PER_PAGE;
    let client = connect(&server.config()).await?;
    let make = "CREATE TABLE large (id bigint, words text); ALTER TABLE large ALTER words SET STORAGE PLAIN";
    client.batch_execute(make).await?;
    let next = AtomicU64::new(0);
    let session = async || {
        let client = connect(&server.config()).await?;
        loop {
            let first = next.fetch_add(ROWS, Ordering::Relaxed);
            if first >= rows {
                return anyhow::Ok(());
            }
            let last = (first + ROWS).min(rows) - 1;
            let insert = format!(
                "INSERT INTO large SELECT n, repeat(md5(n::text), 60) FROM generate_series({first}, {last}) n"
            );
            client.batch_execute(&insert).await?;
            say(&format!("{} of {rows} rows", last + 1));
        }
    };
    tokio::try_join!(session(), session(), session(), session())?;
    client.batch_execute("CHECKPOINT").await?;
    Ok(())
}

/// Of each zone's and each node's process.
fn memory(cluster: &Cluster) -> Result<Vec<Memory>> {
    let processes = cluster.processes().map(|(name, pid)| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        Ok(Memory {
            process: name.to_owned(),
            resident_bytes: resident(&status).context("a process without memory")?,
        })
    });
    processes.collect()
}

/// For a person.
pub fn table(report: &Report) -> String {
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let mut out = format!(
        "\n  {:.1} GB, {:.1} GB in each zone\n\n",
        gb(report.database_bytes),
        gb(report.zone_bytes)
    );
    for (name, seconds) in [
        ("a new standby", report.standby_seconds),
        ("a branch, to its first answer", report.branch.total),
        ("the active is lost", report.outage_seconds),
        ("the lost node returns", report.return_seconds),
        ("a zone is exchanged", report.exchange_seconds),
    ] {
        out += &format!("  {name:<32} {seconds:>9.2} s\n");
    }
    for memory in &report.memory {
        let mb = memory.resident_bytes as f64 / 1e6;
        out += &format!("  memory of {:<22} {mb:>9.0} MB\n", memory.process);
    }
    out
}
