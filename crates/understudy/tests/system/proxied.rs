//! Clients of a proxy: what they see of takeovers and planned work.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::clients::clock::Clock;
use cluster::clients::history::Outcome;
use cluster::clients::load::{self, Load};
use cluster::clients::{schema, verify};
use cluster::proxy::Proxy;
use cluster::scratch::Scratch;
use cluster::{Cluster, Options, programs};

use crate::stage::{TIMEOUT, program};

const SCALE: u32 = 1;

/// A cluster of two nodes with pgbench's tables, and a proxy.
async fn start(scratch: &Scratch) -> Result<(Cluster, Proxy)> {
    let bin = programs::find(None)?;
    let mut options = Options::new(scratch.path(), &bin, program());
    options.heartbeat = "wide".into();
    let mut cluster = Cluster::create(options)?;
    cluster.start().await?;
    let active = cluster.wait_active(TIMEOUT).await?;
    schema::create(&bin, &cluster.server(&active)?, SCALE).await?;
    let proxy = cluster.start_proxy(&[]).await?;
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
    let wait = async {
        while load.acknowledged() < goal {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(TIMEOUT, wait).await;
    waited.with_context(|| format!("no {more} commits; last trouble: {:?}", load.trouble()))
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

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn planned_work_has_no_errors() -> Result<()> {
    let scratch = Scratch::new("planned")?;
    let (mut cluster, mut proxy) = start(&scratch).await?;
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
    let (mut cluster, mut proxy) = start(&scratch).await?;
    let idle = cluster::clients::session::connect(&proxy.server().config()).await?;
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
