//! Throughput of the active while its log is archived, and how far the repository is behind.
//!
//! Invariant: runs alternate, so that a slow minute of the machine hits all of them.

use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cluster::Cluster;
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::wait::flushed_by;
use proxy::core::version::parse_lsn;
use serde::Serialize;

use super::tools::{Repository, Tool, WITHIN};
use crate::lag::{Ahead, Spread};
use crate::pgbench::timed;
use crate::statistics::Sample;

/// How often the log's end is noted.
const EVERY: Duration = Duration::from_millis(250);
/// pgbench's clients.
pub(super) const CLIENTS: u16 = 8;

/// How it is measured.
pub(super) struct Runs {
    /// PostgreSQL's programs.
    pub bin: PathBuf,
    /// Length of one run.
    pub seconds: u32,
    /// Runs of each kind.
    pub rounds: u32,
}

/// Transactions a second, as many as go through.
#[derive(Debug, Clone, Serialize)]
pub struct Archiving {
    /// Nobody archives.
    pub nothing: Sample,
    /// `understudy backup archive` does.
    pub understudy: Sample,
    /// pgBackRest's `archive-push` does.
    pub pgbackrest: Sample,
    /// For how many milliseconds the oldest log that the repository of `understudy backup` lacked had been durable, meanwhile.
    pub lag_ms: Spread,
}

/// Measures all ways in turn.
pub(super) async fn measure(
    runs: &Runs,
    cluster: &Cluster,
    server: &Server,
    repositories: &[Repository],
    say: &impl Fn(&str),
) -> Result<Archiving> {
    let of = |tool: Tool| repositories.iter().find(|found| found.tool == tool);
    let ours = of(Tool::Understudy).context("a repository of understudy")?;
    let others = of(Tool::PgBackRest).context("a repository of pgBackRest")?;
    let (mut nothing, mut understudy, mut pgbackrest) = (Vec::new(), Vec::new(), Vec::new());
    let mut lags = Vec::new();
    let pgbench = async || timed(&runs.bin, server, CLIENTS, runs.seconds, &[]).await;
    for round in 0..=runs.rounds {
        let alone = pgbench().await?;
        let archiver = Archiver::start(ours, cluster).await?;
        let (with_ours, behind) = tokio::join!(pgbench(), follow(runs, ours, cluster, server));
        drop(archiver);
        others.archive(cluster).await?;
        let with_others = pgbench().await?;
        others.archive_nothing(cluster).await?;
        // The first round warms up.
        if round > 0 {
            nothing.push(alone);
            understudy.push(with_ours?);
            pgbackrest.push(with_others);
            lags.extend(behind?);
        }
        say(&format!(
            "archiving, round {round}: {alone:.0} tps alone, {with_others:.0} with pgBackRest"
        ));
    }
    Ok(Archiving {
        nothing: Sample::of(nothing),
        understudy: Sample::of(understudy),
        pgbackrest: Sample::of(pgbackrest),
        lag_ms: Spread::of(lags),
    })
}

/// A process that archives until this is dropped.
struct Archiver(Child);

impl Archiver {
    /// Starts it, and waits until it has what is durable now.
    async fn start(repository: &Repository, cluster: &Cluster) -> Result<Archiver> {
        let archiver = Archiver(repository.archiver(cluster).spawn()?);
        let before = repository.log_end(cluster).await?;
        let deadline = Instant::now() + WITHIN;
        while repository.log_end(cluster).await? == before {
            anyhow::ensure!(Instant::now() < deadline, "nothing is archived");
            tokio::time::sleep(EVERY).await;
        }
        Ok(archiver)
    }
}

impl Drop for Archiver {
    fn drop(&mut self) {
        // It may have ended by itself; what it has archived stays.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Looks for one run how far the repository is behind.
async fn follow(
    runs: &Runs,
    repository: &Repository,
    cluster: &Cluster,
    server: &Server,
) -> Result<Vec<u64>> {
    let client = connect(&server.config()).await?;
    let (mut ahead, mut lags) = (Ahead::default(), Vec::new());
    let (began, length) = (Instant::now(), Duration::from_secs(runs.seconds.into()));
    while began.elapsed() < length {
        let durable = flushed_by(&client).await.context("the active is gone")?;
        let archived = repository.log_end(cluster).await?.context("no log")?;
        let archived = parse_lsn(&archived).context("no position")?.0;
        let lag = ahead.look(began.elapsed(), durable, i64::try_from(archived)?);
        lags.push(u64::try_from(lag.as_millis())?);
        tokio::time::sleep(EVERY).await;
    }
    Ok(lags)
}
