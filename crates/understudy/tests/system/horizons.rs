//! The horizon of an epoch, which decides commits without an answer: what had committed before it has an id below, and what
//! the epoch gives out is not below.

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;
use cluster::scratch::Scratch;
use cluster::{Cluster, Options, programs};
use serde_json::Value;
use tokio_postgres::Client;

use crate::stage::{TIMEOUT, program};

// hazard: NODE-8
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn horizons_separate_what_committed_from_what_is_given_next() -> Result<()> {
    let scratch = Scratch::new("horizons")?;
    let bin = programs::find(None)?;
    let mut options = Options::new(scratch.path(), &bin, program());
    options.heartbeat = "wide".into();
    options.nodes = vec!["north".into(), "south".into()];
    let prepared = ("max_prepared_transactions".into(), "4".into());
    options.parameters.push(prepared);
    let mut cluster = Cluster::create(options)?;
    cluster.start().await?;
    let active = cluster.wait_active(TIMEOUT).await?;
    let client = connect(&cluster.server(&active)?.config()).await?;
    client.batch_execute("CREATE TABLE t (n int)").await?;

    // A takeover from an active that is killed with transactions of every kind.
    let other = if active == "north" { "south" } else { "north" };
    cluster.wait_follows(other, TIMEOUT).await?;
    let used = Used::make(&cluster, &active, "first").await?;
    cluster.kill_node(&active).context("it runs")?;
    ensure!(cluster.wait_active(TIMEOUT).await? == other);
    used.check(&cluster, other).await?;

    // A handover.
    cluster.start_node(&active)?;
    cluster.wait_follows(&active, TIMEOUT).await?;
    let used = Used::make(&cluster, other, "second").await?;
    let config = cluster.node(other)?.config.display().to_string();
    switch_over(&cluster, &config).await?;
    ensure!(cluster.wait_active(TIMEOUT).await? == active);
    used.check(&cluster, &active).await?;

    // A direct start after a clean stop.
    cluster.stop_node(other, TIMEOUT)?;
    let used = Used::make(&cluster, &active, "third").await?;
    cluster.stop_node(&active, TIMEOUT)?;
    cluster.start_node(&active)?;
    cluster.wait_active(TIMEOUT).await?;
    used.check(&cluster, &active).await?;
    cluster.shutdown();
    scratch.succeed()
}

/// Hands over as soon as the standby's own record says that it could take over, which is a moment after it follows.
async fn switch_over(cluster: &Cluster, config: &str) -> Result<()> {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let ordered = cluster.run(&["switchover", "--config", config]).await;
        if ordered.is_ok() || tokio::time::Instant::now() > deadline {
            return ordered.map(drop);
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

/// Transactions of an epoch.
struct Used {
    /// The epoch that they are of.
    epoch: u64,
    committed: Vec<u64>,
    /// Have an id and no end.
    open: Vec<u64>,
    /// Keep them open.
    _sessions: Vec<Client>,
}

impl Used {
    async fn make(cluster: &Cluster, active: &str, name: &str) -> Result<Used> {
        let mut used = Used {
            epoch: last_epoch(cluster, active, 0).await?["epoch"]
                .as_u64()
                .context("no epoch")?,
            committed: Vec::new(),
            open: Vec::new(),
            _sessions: Vec::new(),
        };
        for number in 0..4 {
            let client = connect(&cluster.server(active)?.config()).await?;
            client
                .batch_execute("BEGIN; INSERT INTO t VALUES (1)")
                .await?;
            used.open.push(id(&client).await?);
            client
                .batch_execute(
                    "SAVEPOINT a; INSERT INTO t VALUES (2); SAVEPOINT b; INSERT INTO t VALUES (3)",
                )
                .await?;
            used._sessions.push(client);
            let client = connect(&cluster.server(active)?.config()).await?;
            client
                .batch_execute(
                    "BEGIN; INSERT INTO t VALUES (1); SAVEPOINT a; INSERT INTO t VALUES (2)",
                )
                .await?;
            let xid = id(&client).await?;
            match number {
                0 => client.batch_execute("ROLLBACK").await?,
                1 => {
                    let prepare = format!("PREPARE TRANSACTION '{name}'");
                    client.batch_execute(&prepare).await?;
                }
                _ => {
                    client.batch_execute("COMMIT").await?;
                    used.committed.push(xid);
                }
            }
        }
        Ok(used)
    }

    /// Holds the horizon of the epoch that began last against these.
    async fn check(&self, cluster: &Cluster, active: &str) -> Result<()> {
        let client = connect(&cluster.server(active)?.config()).await?;
        let given = id(&client).await?;
        let last = last_epoch(cluster, active, self.epoch).await?;
        let horizon = last["horizon"].as_u64();
        let horizon = horizon.with_context(|| format!("no horizon: {last}"))?;
        ensure!(horizon <= given, "{given} is given out below {horizon}");
        for xid in &self.committed {
            ensure!(*xid < horizon, "{xid} committed, not below {horizon}");
            ensure!(status(&client, *xid).await?.as_deref() == Some("committed"));
        }
        for xid in self.open.iter().filter(|xid| **xid < horizon) {
            ensure!(status(&client, *xid).await?.as_deref() == Some("aborted"));
        }
        Ok(())
    }
}

/// What the history says of the epoch in which a node is active, and which comes after that one: the history has it some
/// time after the server serves.
async fn last_epoch(cluster: &Cluster, active: &str, after: u64) -> Result<Value> {
    let config = cluster.node(active)?.config.display().to_string();
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let history = cluster
            .run(&["history", "--json", "--config", &config])
            .await?;
        let history: Vec<Value> = serde_json::from_str(&history)?;
        let last = history.into_iter().next_back();
        let is_it = |last: &Value| {
            last["node"] == active && last["epoch"].as_u64().is_some_and(|epoch| epoch > after)
        };
        match last {
            Some(last) if is_it(&last) => return Ok(last),
            last => ensure!(
                tokio::time::Instant::now() < deadline,
                "no history of {active} behind epoch {after}: {last:?}"
            ),
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

async fn id(client: &Client) -> Result<u64> {
    let sql = "SELECT pg_current_xact_id()::text";
    let text: String = client.query_one(sql, &[]).await?.get(0);
    Ok(text.parse()?)
}

async fn status(client: &Client, xid: u64) -> Result<Option<String>> {
    let sql = format!("SELECT pg_xact_status('{xid}')");
    Ok(client.query_one(&sql, &[]).await?.get(0))
}
