//! Clients of a proxy: what they see of takeovers and planned work.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::clients::clock::Clock;
use cluster::clients::history::Outcome;
use cluster::clients::load::{self, Load};
use cluster::clients::{schema, session, verify};
use cluster::proxy::Proxy;
use cluster::scratch::Scratch;
use cluster::{Cluster, Options, process, programs};

use coordination::channel;
use nix::unistd::Pid;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::branched::KEEP;
use crate::stage::{TIMEOUT, program};

const SCALE: u32 = 1;

/// A cluster of two nodes with pgbench's tables, and a proxy.
async fn start(scratch: &Scratch, settings: &[&str]) -> Result<(Cluster, Proxy)> {
    let bin = programs::find(None)?;
    let mut options = Options::new(scratch.path(), &bin, program());
    options.heartbeat = "wide".into();
    options.past.push(KEEP.to_owned());
    let mut cluster = Cluster::create(options)?;
    cluster.start().await?;
    let active = cluster.wait_active(TIMEOUT).await?;
    schema::create(&bin, &cluster.server(&active)?, SCALE).await?;
    let proxy = cluster.start_proxy(settings).await?;
    Ok((cluster, proxy))
}

fn load(proxy: &Proxy) -> Load {
    let options = load::Options {
        clients: 4,
        scale: SCALE,
        ..load::Options::default()
    };
    let server = schema::any_writable(std::slice::from_ref(proxy.server()));
    Load::start(server, options, Clock::start())
}

async fn commits(load: &Load, more: u64) -> Result<()> {
    let goal = load.acknowledged() + more;
    load.wait_acknowledged(goal, TIMEOUT).await
}

/// Stops the load and holds what its clients were told against the database. Returns how many transactions had errors.
async fn judge(cluster: &mut Cluster, proxy: &mut Proxy, load: Load) -> Result<u64> {
    let history = load.stop().await;
    proxy.check_running()?;
    let active = cluster.wait_active(TIMEOUT).await?;
    let (_, checks) = verify::database(&cluster.server(&active)?, &history).await?;
    let failed: Vec<_> = checks.iter().filter(|check| !check.passed).collect();
    ensure!(failed.is_empty(), "{failed:#?}");
    Ok(history.count(Outcome::Refused) + history.count(Outcome::Unknown))
}

// hazard: MOVE-4
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_rewind_is_a_pause_and_later_commits_are_of_the_branch() -> Result<()> {
    let scratch = Scratch::new("proxied-rewind")?;
    let (mut cluster, mut proxy) = start(&scratch, &[]).await?;
    let load = load(&proxy);
    commits(&load, 100).await?;
    let active = cluster.wait_active(TIMEOUT).await?;
    let client = session::connect(&cluster.server(&active)?.config()).await?;
    let position = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]);
    let position: String = position.await?.get(0);
    drop(client);
    commits(&load, 100).await?;
    let config = cluster.node("north")?.config.display().to_string();
    let secret = cluster.options().dir.join("zones.secret");
    let secret = secret.display().to_string();
    let place = ["--config", &config, "--secret-file", &secret];
    let rewind = [&["rewind", "--json", "--to", &position], &place[..]].concat();
    println!("{}", cluster.run(&rewind).await?);
    let at_return: HashSet<_> = load
        .history()
        .commits()
        .map(|one| (one.client, one.n))
        .collect();
    commits(&load, 200).await?;
    let history = load.stop().await;
    proxy.check_running()?;
    let active = cluster.wait_active(TIMEOUT).await?;
    let client = session::connect(&cluster.server(&active)?.config()).await?;
    let rows: HashSet<_> = verify::ledger(&client).await?.into_iter().collect();
    let lost = history.commits().map(|one| (one.client, one.n));
    let lost: Vec<_> = lost
        .filter(|one| !at_return.contains(one) && !rows.contains(one))
        .collect();
    ensure!(
        lost.is_empty(),
        "{lost:?} were acknowledged since the rewind"
    );
    ensure!(
        at_return.iter().any(|one| !rows.contains(one)),
        "nothing was rewound"
    );
    cluster.shutdown();
    scratch.succeed()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn planned_work_has_no_errors() -> Result<()> {
    let scratch = Scratch::new("planned")?;
    let (mut cluster, mut proxy) = start(&scratch, &[]).await?;
    let load = load(&proxy);
    commits(&load, 100).await?;
    let config = cluster.node("north")?.config.display().to_string();
    cluster.run(&["switchover", "--config", &config]).await?;
    commits(&load, 100).await?;
    let active = cluster.wait_active(TIMEOUT).await?;
    cluster
        .run(&["restart", &active, "--config", &config])
        .await?;
    commits(&load, 100).await?;
    let other = if active == "north" { "south" } else { "north" };
    cluster.wait_follows(other, TIMEOUT).await?;
    let rolling = ["restart", "--all", "--rolling", "--config", &config];
    cluster.run(&rolling).await?;
    commits(&load, 100).await?;
    let trouble = load.trouble();
    let errors = judge(&mut cluster, &mut proxy, load).await?;
    ensure!(
        errors == 0,
        "{errors} errors at clients; the last: {trouble:?}"
    );
    drop(proxy);
    cluster.shutdown();
    scratch.succeed()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_killed_active_is_a_pause() -> Result<()> {
    let scratch = Scratch::new("pause")?;
    let (mut cluster, mut proxy) = start(&scratch, &[]).await?;
    let idle = session::connect(&proxy.server().config()).await?;
    idle.batch_execute("SET application_name = 'kept'").await?;
    let load = load(&proxy);
    commits(&load, 100).await?;
    let active = cluster.wait_active(TIMEOUT).await?;
    cluster.kill_node(&active).context("it runs")?;
    commits(&load, 100).await?;
    let name = idle.query_one("SHOW application_name", &[]).await?;
    ensure!(name.get::<_, String>(0) == "kept");
    let trouble = load.trouble();
    let errors = judge(&mut cluster, &mut proxy, load).await?;
    // Each of four clients has one transaction open when the active dies.
    ensure!(
        errors <= 4,
        "{errors} errors at clients; the last: {trouble:?}"
    );
    drop(proxy);
    cluster.shutdown();
    scratch.succeed()
}

/// What strong readers go by, and what stops them.
#[derive(Default)]
struct Counted {
    /// The greatest number whose commit was acknowledged to anybody.
    acknowledged: AtomicI64,
    reads: AtomicI64,
    stop: AtomicBool,
}

/// Writes one number after the other.
async fn count(client: Client, counted: Arc<Counted>) -> Result<()> {
    let mut number = 1;
    while !counted.stop.load(Ordering::Relaxed) {
        let inserted = client
            .execute("INSERT INTO numbers VALUES ($1)", &[&number])
            .await;
        if inserted.is_ok() {
            counted.acknowledged.store(number, Ordering::SeqCst);
        }
        number += 1;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Each read sees whatever was acknowledged to anybody before it began.
async fn look(client: Client, counted: Arc<Counted>) -> Result<()> {
    while !counted.stop.load(Ordering::Relaxed) {
        let least = counted.acknowledged.load(Ordering::SeqCst);
        let text = "SELECT coalesce(max(n), 0) FROM numbers";
        match client.query_one(text, &[]).await {
            Ok(row) => {
                let seen: i64 = row.get(0);
                ensure!(
                    seen >= least,
                    "a read sees {seen} after {least} was acknowledged"
                );
                counted.reads.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                let code = error.code().map(|code| code.code());
                ensure!(code == Some("57P03"), "a read failed: {error:?}");
            }
        }
    }
    Ok(())
}

/// A standby shows a commit as soon as its log is durable; the active does when its server process gets to it, and here that
/// stands still. Who reads on the active waits until it shows what the standby has shown.
// hazard: PROXY-16
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn strong_reads_on_the_active_miss_nothing_that_a_standby_showed() -> Result<()> {
    let scratch = Scratch::new("shown")?;
    let strong = ["reads = { mode = \"strong\", wait = \"5s\" }"];
    let (mut cluster, mut proxy) = start(&scratch, &strong).await?;
    let active = cluster.wait_active(TIMEOUT).await?;
    let standby = if active == "north" { "south" } else { "north" };
    cluster.wait_follows(standby, TIMEOUT).await?;
    let writer = session::connect(&cluster.server(&active)?.config()).await?;
    writer
        .batch_execute("CREATE TABLE numbers (n bigint PRIMARY KEY)")
        .await?;
    let pid = writer.query_one("SELECT pg_backend_pid()", &[]).await?;
    let process = [Pid::from_raw(pid.get(0))];
    let reader = session::connect(&proxy.server().config()).await?;
    let other = session::connect(&proxy.server().config()).await?;
    let text = "SELECT count(*) FROM numbers";
    ensure!(number(&reader, text).await? == 0);

    // Its log waits for the zones when it is stopped, and becomes durable without it.
    let zones = 1..=cluster.options().zones;
    for zone in zones.clone() {
        cluster.zone_process(zone).context("it runs")?.pause();
    }
    let insert = async move { writer.execute("INSERT INTO numbers VALUES (1)", &[]).await };
    let insert = tokio::spawn(insert);
    tokio::time::sleep(Duration::from_millis(300)).await;
    process::pause(&process);
    for zone in zones {
        cluster.zone_process(zone).context("it runs")?.resume();
    }
    let direct = session::connect(&cluster.server(standby)?.config()).await?;
    let shown = async {
        while number(&direct, text).await? == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(TIMEOUT, shown).await??;
    let seen = number(&reader, text).await?;
    ensure!(seen == 1, "the standby shows it");

    let read = async move {
        number(
            &other,
            "/* understudy.read = active */ SELECT count(*) FROM numbers",
        )
        .await
    };
    let read = tokio::spawn(read);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let was_late = !read.is_finished();
    process::resume(&process);
    let seen = read.await??;
    ensure!(
        seen == 1,
        "the active shows {seen} after a standby showed 1"
    );
    ensure!(
        was_late,
        "the server process that commits did not stand still"
    );
    ensure!(insert.await?? == 1);
    proxy.check_running()?;
    drop(proxy);
    cluster.shutdown();
    scratch.succeed()
}

async fn number(client: &Client, text: &str) -> Result<i64> {
    Ok(client.query_one(text, &[]).await?.get(0))
}

/// How many reads standbys have answered, by the proxy's word.
async fn on_standbys(cluster: &Cluster) -> Result<u64> {
    let status: Value = serde_json::from_str(&cluster.ask("status").await?)?;
    let proxies: Vec<channel::Proxy> = serde_json::from_value(status["proxies"].clone())?;
    let reports = proxies.into_iter().filter_map(|proxy| proxy.report);
    Ok(reports.map(|report| report.on_standbys).sum())
}

async fn reads(counted: &Counted, more: i64) -> Result<()> {
    let goal = counted.reads.load(Ordering::Relaxed) + more;
    let wait = async {
        while counted.reads.load(Ordering::Relaxed) < goal {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(TIMEOUT, wait).await;
    waited.with_context(|| format!("no {more} reads"))
}

/// Standbys answer, and no read is older than what was acknowledged before it: while the standby is started again, while the
/// active stands still until another one takes over, and when it goes on as if nothing had happened.
// hazard: PROXY-18
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn strong_reads_miss_nothing() -> Result<()> {
    let scratch = Scratch::new("strong")?;
    let strong = ["reads = { mode = \"strong\", wait = \"200ms\" }"];
    let (mut cluster, mut proxy) = start(&scratch, &strong).await?;
    let writer = session::connect(&proxy.server().config()).await?;
    writer
        .batch_execute("CREATE TABLE numbers (n bigint PRIMARY KEY)")
        .await?;
    let counted = Arc::new(Counted::default());
    let mut tasks: Vec<JoinHandle<Result<()>>> = Vec::new();
    for _ in 0..3 {
        let reader = session::connect(&proxy.server().config()).await?;
        tasks.push(tokio::spawn(look(reader, Arc::clone(&counted))));
    }
    tasks.push(tokio::spawn(count(writer, Arc::clone(&counted))));
    reads(&counted, 200).await?;

    let active = cluster.wait_active(TIMEOUT).await?;
    let standby = if active == "north" { "south" } else { "north" };
    let config = cluster.node("north")?.config.display().to_string();
    for _ in 0..2 {
        cluster
            .run(&["restart", standby, "--config", &config])
            .await?;
        cluster.wait_follows(standby, TIMEOUT).await?;
        reads(&counted, 100).await?;
    }
    let answered = on_standbys(&cluster).await?;
    ensure!(answered > 0, "the standby has answered nothing");

    cluster.node_process(&active).context("it runs")?.pause();
    let acknowledged = counted.acknowledged.load(Ordering::SeqCst);
    let taken = async {
        while counted.acknowledged.load(Ordering::SeqCst) <= acknowledged + 20 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, taken)
        .await
        .context("nobody took over")?;
    cluster.node_process(&active).context("it runs")?.resume();
    reads(&counted, 300).await?;
    cluster.wait_follows(&active, TIMEOUT).await?;
    reads(&counted, 300).await?;

    counted.stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await??;
    }
    proxy.check_running()?;
    drop(proxy);
    cluster.shutdown();
    scratch.succeed()
}
