//! `understudy bench backup`: backups of one cluster under load, by Understudy and by what people use.
//!
//! Invariant: all tools back up the same database behind the same clients, one after the other. What a step costs is a difference
//! of the machine's own counters. Each backup is restored and started, and must have every commit that was acknowledged before it.

mod archive;
mod images;
mod report;
mod step;
mod tools;

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::Cluster;
use cluster::clients::clock::{Clock, Offset};
use cluster::clients::history::History;
use cluster::clients::load::{self, Load};
use cluster::clients::session::connect;
use cluster::clients::verify;
use cluster::elsewhere::Elsewhere;
use serde::Serialize;

pub use self::archive::Archiving;
use self::archive::Runs;
pub use self::images::Images;
pub use self::report::table;
use self::step::Before;
pub use self::step::Step;
pub use self::tools::Tool;
use self::tools::{Repository, WITHIN, processors};
use crate::filled::Filled;

const CLIENTS: u16 = 4;

/// Options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// PostgreSQL's programs.
    pub bin: PathBuf,
    /// An empty directory to work in.
    pub dir: PathBuf,
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// pgbench's scale.
    pub scale: u32,
    /// Transactions a second of all clients together.
    pub rate: f64,
    /// Time between two backups, and length of one run of the comparison of archives.
    pub seconds: u32,
    /// Length of one run with or without images of the past.
    pub churn_seconds: u32,
    /// Runs of each way of archiving.
    pub rounds: u32,
}

/// Steps of one tool.
#[derive(Debug, Clone, Serialize)]
pub struct Steps {
    /// The tool.
    pub tool: Tool,
    /// One after the other.
    pub steps: Vec<Step>,
}

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Of the database, before the first backup.
    pub database_bytes: u64,
    /// pgbench's scale.
    pub scale: u32,
    /// Transactions a second of all clients together.
    pub rate: f64,
    /// Clients of that load.
    pub clients: u16,
    /// Processors of the machine.
    pub processors: usize,
    /// The load without any backup.
    pub rest: Step,
    /// Of each tool.
    pub tools: Vec<Steps>,
    /// Transactions a second while the log is archived.
    pub archiving: Archiving,
    /// The same while images of the past are kept in the zones.
    pub images: Images,
}

/// Measures everything; `say` hears what is going on.
///
/// # Errors
/// Something does not start, a tool fails, or what was restored lacks a commit.
pub async fn run(options: &Options, say: impl Fn(&str)) -> Result<Report> {
    let mut bench = Bench::start(options, &say).await?;
    let rest = bench.rest(options).await?;
    say(&format!("at rest: {rest:?}"));
    let (mut repositories, mut began) = (Vec::new(), Vec::new());
    let mut tools = Vec::new();
    for tool in Tool::ALL {
        let repository =
            Repository::create(tool, &bench.cluster, &bench.active, &options.dir).await?;
        let (steps, last) = bench.back_up(&repository, options, &rest).await?;
        repository.archive_nothing(&bench.cluster).await?;
        say(&format!("{}: {steps:#?}", tool.name()));
        tools.push(Steps { tool, steps });
        repositories.push(repository);
        began.push(last);
    }
    let history = bench.load.stop().await;
    for ((repository, began), measured) in repositories.iter().zip(began).zip(&mut tools) {
        let steps = restore(&bench.cluster, repository, &history, began).await?;
        say(&format!("{}: {steps:#?}", repository.tool.name()));
        measured.steps.extend(steps);
    }
    let server = bench.cluster.server(&bench.active)?;
    let runs = Runs {
        bin: options.bin.clone(),
        seconds: options.seconds,
        rounds: options.rounds,
    };
    let archiving = archive::measure(&runs, &bench.cluster, &server, &repositories, &say).await?;
    let runs = Runs {
        seconds: options.churn_seconds,
        ..runs
    };
    let images = images::measure(&runs, &bench.cluster, &bench.active, &say).await?;
    bench.cluster.check_running()?;
    bench.cluster.shutdown();
    Ok(Report {
        database_bytes: bench.database_bytes,
        scale: options.scale,
        rate: options.rate,
        clients: CLIENTS,
        processors: processors(),
        rest,
        tools,
        archiving,
        images,
    })
}

/// The cluster and its clients.
struct Bench {
    cluster: Cluster,
    active: String,
    load: Load,
    clock: Clock,
    database_bytes: u64,
}

impl Bench {
    async fn start(options: &Options, say: &impl Fn(&str)) -> Result<Bench> {
        say(&format!("filling tables of scale {}", options.scale));
        let programs = (options.bin.as_path(), options.understudy.as_path());
        let Filled {
            mut cluster,
            active,
            server,
            database_bytes,
        } = Filled::start(programs, &options.dir, options.scale, WITHIN).await?;
        let standby = cluster.names().find(|name| *name != active);
        let standby = standby.context("two nodes")?.to_owned();
        cluster.wait_follows(&standby, WITHIN).await?;
        let clock = Clock::start();
        let clients = load::Options {
            clients: CLIENTS,
            scale: options.scale,
            rate: Some(options.rate),
            ..load::Options::default()
        };
        Ok(Bench {
            load: Load::start(server.config(), clients, clock),
            cluster,
            active,
            clock,
            database_bytes,
        })
    }

    /// The load alone, behind a checkpoint.
    async fn rest(&self, options: &Options) -> Result<Step> {
        self.checkpoint().await?;
        let apart = Duration::from_secs(options.seconds.into());
        let before = Before::now(self.clock, None)?;
        tokio::time::sleep(apart).await;
        before.until_now("rest", 0.0, Some(&self.load.history()))
    }

    async fn checkpoint(&self) -> Result<()> {
        let client = connect(&self.cluster.server(&self.active)?.config()).await?;
        Ok(client.batch_execute("CHECKPOINT").await?)
    }

    /// A full backup, and two that need only what is new, if the tool has such; and when the last one began.
    async fn back_up(
        &self,
        repository: &Repository,
        options: &Options,
        rest: &Step,
    ) -> Result<(Vec<Step>, Offset)> {
        let kinds: &[(&str, bool)] = match repository.tool.is_incremental() {
            true => &[
                ("full", true),
                ("incremental", false),
                ("incremental", false),
            ],
            false => &[("full", true)],
        };
        let (mut steps, mut began) = (Vec::new(), self.clock.now());
        for (number, (name, is_full)) in kinds.iter().enumerate() {
            if number > 0 {
                tokio::time::sleep(Duration::from_secs(options.seconds.into())).await;
            }
            self.checkpoint().await?;
            let path = repository.path();
            let before = Before::now(self.clock, Some(&path))?;
            began = self.clock.now();
            let done = || repository.back_up(&self.cluster, &self.active, *is_full);
            tokio::task::block_in_place(done)?;
            let used = rest.cpu_seconds / rest.seconds;
            steps.push(before.until_now(name, used, Some(&self.load.history()))?);
        }
        Ok((steps, began))
    }
}

/// Restores the newest state, starts it, and looks for what was acknowledged before `began`. Clients have ended.
async fn restore(
    cluster: &Cluster,
    repository: &Repository,
    history: &History,
    began: Offset,
) -> Result<Vec<Step>> {
    let clock = Clock::start();
    let before = Before::now(clock, None)?;
    let data = tokio::task::block_in_place(|| repository.restore(cluster))?;
    let restored = before.until_now("restore", 0.0, None)?;
    let before = Before::now(clock, None)?;
    let server = Elsewhere::start(cluster, &data, WITHIN).await?;
    let started = before.until_now("start", 0.0, None)?;
    let client = connect(&server.server.config()).await?;
    let known: HashSet<(i32, i64)> = verify::ledger(&client).await?.into_iter().collect();
    let acknowledged = history.commits().filter(|one| one.ended <= began);
    let lost = acknowledged.filter(|one| !known.contains(&(one.client, one.n)));
    let lost = lost.count();
    ensure!(
        lost == 0,
        "{} lacks {lost} commits of before it",
        repository.tool.name()
    );
    drop(server);
    std::fs::remove_dir_all(&data)?;
    Ok(vec![restored, started])
}
