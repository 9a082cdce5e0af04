//! Waiting until the cluster is in some state, by asking its servers as a client would.

use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;
use tokio_postgres::Client;

use super::Cluster;
use crate::clients::schema::Server;
use crate::clients::session::connect;

const POLL: Duration = Duration::from_millis(50);

impl Cluster {
    /// Waits until a node accepts writes; returns its name.
    ///
    /// # Errors
    /// None does in time, or a process has ended.
    pub async fn wait_active(&mut self, timeout: Duration) -> anyhow::Result<String> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(name) = self.active().await {
                return Ok(name);
            }
            self.check_running()?;
            anyhow::ensure!(
                Instant::now() < deadline,
                "no node accepts writes after {timeout:?}; the logs are in {}",
                self.logs().display()
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until this node is the one that accepts writes.
    ///
    /// # Errors
    /// It does not in time.
    pub async fn wait_takes_over(&self, name: &str, timeout: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + timeout;
        while self.active().await.as_deref() != Some(name) {
            anyhow::ensure!(Instant::now() < deadline, "{name} does not take over");
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// The node that accepts writes now, if there is one.
    pub async fn active(&self) -> Option<String> {
        for node in &self.settings {
            if in_recovery(&node.server()).await == Some(false) {
                return Some(node.name.clone());
            }
        }
        None
    }

    /// What the active of the newest epoch says of itself; nothing if none answers.
    ///
    /// # Errors
    /// `understudy status` fails.
    pub async fn status_of_active(&self) -> anyhow::Result<Value> {
        let mut status: Value = serde_json::from_str(&self.ask("status").await?)?;
        let nodes = status["nodes"].as_array_mut().into_iter().flatten();
        let answers = nodes.map(|node| node["answer"].take());
        let active = answers.filter(|answer| answer["role"] == "active");
        let newest = active.max_by_key(|answer| answer["epoch"].as_u64());
        Ok(newest.unwrap_or_default())
    }

    /// Since when a standby could take over from the active of an epoch not before `epoch`, Unix
    /// milliseconds; `None` if none could. One that was lost may still say how it was.
    ///
    /// # Errors
    /// `understudy status` fails.
    pub async fn protected_since(&self, epoch: u32) -> anyhow::Result<Option<u64>> {
        let status: Value = serde_json::from_str(&self.ask("status").await?)?;
        let nodes = status["nodes"].as_array().into_iter().flatten();
        let active = nodes
            .map(|node| &node["answer"])
            .filter(|answer| answer["epoch"].as_u64() >= Some(epoch.into()))
            .find(|answer| answer["role"] == "active");
        let protection = active.map(|answer| &answer["protection"]);
        let protected = protection.filter(|p| p["protected"] == true);
        Ok(protected.and_then(|p| p["since_unix_ms"].as_u64()))
    }

    /// Waits until a standby answers queries and has replayed what the active has now.
    ///
    /// # Errors
    /// It has not in time, or a process has ended.
    pub async fn wait_follows(&mut self, name: &str, timeout: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + timeout;
        let standby = self.server(name)?;
        let active = self.wait_active(timeout).await?;
        let goal = log_end(&self.server(&active)?)
            .await
            .context("the active does not answer")?;
        let mut at = None;
        loop {
            at = replayed(&standby).await.or(at);
            if at.is_some_and(|at| at >= goal) {
                return Ok(());
            }
            self.check_running()?;
            if Instant::now() >= deadline {
                let now = self.active().await;
                anyhow::bail!(
                    "{name} does not follow after {timeout:?}: {active} was the active and had {goal} bytes of log, \
                     {name} has replayed {at:?}, and the active is {now:?}; the logs are in {}",
                    self.logs().display()
                );
            }
            // Each look is a process of PostgreSQL's, which a standby that still redoes old log on a busy machine can ill spare.
            tokio::time::sleep(if at.is_some() { POLL } else { 5 * POLL }).await;
        }
    }
}

async fn ask(server: &Server) -> Option<Client> {
    let config = server.config();
    let connected = tokio::time::timeout(Duration::from_secs(3), connect(&config)).await;
    connected.ok()?.ok()
}

async fn in_recovery(server: &Server) -> Option<bool> {
    let client = ask(server).await?;
    let row = client.query_one("SELECT pg_is_in_recovery()", &[]).await;
    Some(row.ok()?.get(0))
}

/// The end of the active's log in bytes.
pub async fn log_end(server: &Server) -> Option<i64> {
    let client = ask(server).await?;
    flushed_by(&client).await
}

/// How far a standby has replayed, in bytes of log.
pub async fn replayed(server: &Server) -> Option<i64> {
    let client = ask(server).await?;
    replayed_by(&client).await
}

/// The same over a connection that stands.
pub async fn flushed_by(client: &Client) -> Option<i64> {
    position(client, "pg_current_wal_flush_lsn()").await
}

/// The same over a connection that stands.
pub async fn replayed_by(client: &Client) -> Option<i64> {
    position(client, "pg_last_wal_replay_lsn()").await
}

async fn position(client: &Client, function: &str) -> Option<i64> {
    let query = format!("SELECT ({function} - '0/0')::bigint");
    let row = client.query_one(&query, &[]).await.ok()?;
    row.get(0)
}
