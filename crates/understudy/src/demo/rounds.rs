//! Kills and planned work behind a proxy, as often as wanted, and what clients saw of them.
//!
//! Half of the clients use the extended protocol, the others the simple one; none does anything about reconnecting but as
//! after any error. Besides there are idle sessions, which must be the same ones at the end. Invariant: a round begins when
//! both nodes are well again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use cluster::Cluster;
use cluster::clients::clock::Clock;
use cluster::clients::history::{History, Outcome};
use cluster::clients::load::{self, Load};
use cluster::clients::schema::{self, Server};
use cluster::clients::session::{self, connect};
use cluster::clients::simple::Simple;
use cluster::clients::verify::{self, Check};
use cluster::proxy::Proxy;
use cluster::workspace::Workspace;
use cluster::{Options as ClusterOptions, programs};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use serde::Serialize;
use tokio_postgres::{Client, Statement};

use super::progress::Progress;
use super::proxied::report_of;
use super::timeline::thousands;

/// What the user chose.
#[derive(Debug, Clone)]
pub struct Options {
    /// Kills of the active: its agent, and its PostgreSQL.
    pub kills: u32,
    /// Switchovers.
    pub switchovers: u32,
    /// Rolling restarts.
    pub restarts: u32,
    /// Concurrent clients.
    pub clients: u16,
    /// pgbench's scale.
    pub scale: u32,
    /// Decides the order of the rounds and the rows touched.
    pub seed: u64,
    /// PostgreSQL's programs, if not Debian's newest.
    pub bin: Option<PathBuf>,
    /// Where to work.
    pub data: Option<PathBuf>,
    /// Leave data and logs in place.
    pub keep: bool,
}

/// What the rounds showed: `--json` prints exactly this.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// True if nothing was lost or told wrongly, planned work had no errors, every error was one that clients retry or that
    /// says that the outcome is not known, and every idle session was kept.
    pub passed: bool,
    /// Kills, switchovers and rolling restarts that were done.
    pub kills: u32,
    /// Number of planned switchovers.
    pub switchovers: u32,
    /// Number of restarts of the proxy.
    pub restarts: u32,
    /// Commits that clients were told of.
    pub acknowledged: u64,
    /// Those of them that are not there.
    pub lost: u64,
    /// Commits that are not there although the client was told so, or are there although it was told otherwise.
    pub told_wrong: u64,
    /// Transactions that failed for a client, or whose outcome it was not told.
    pub client_errors: u64,
    /// What clients were told then, by SQLSTATE.
    pub errors: BTreeMap<String, u64>,
    /// Those of them during switchovers and restarts.
    pub planned_errors: u64,
    /// Transactions that were run again on another server, unnoticed.
    pub replayed: u64,
    /// Of the transactions that a kill interrupted, the share that was run again or decided, in percent.
    pub kept_percent: f64,
    /// Commits whose answer did not come from the server.
    pub in_doubt: u64,
    /// Those of them that had committed, and whose client was told so.
    pub in_doubt_committed: u64,
    /// Those of which nobody could tell.
    pub in_doubt_unknown: u64,
    /// Sessions that had nothing under way.
    pub idle_sessions: u64,
    /// Those of them that were lost.
    pub idle_lost: u64,
    /// The longest that any client waited for the end of a transaction, in milliseconds.
    pub longest_pause_ms: f64,
    /// What else was looked at.
    pub checks: Vec<Check>,
    /// Repeats the run.
    pub seed: u64,
}

/// What is done in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    Kill,
    Switchover,
    Restart,
}

/// The errors that a client may be told: try again, and not known.
const MAY_BE_TOLD: [&str; 2] = ["40001", "08007"];
/// Sessions that do nothing.
const IDLE: usize = 8;
/// How long anything may take.
const WITHIN: Duration = Duration::from_secs(120);
/// Commits between two rounds.
const COMMITS: u64 = 200;
/// The transactions of the second load have numbers from here on.
const SECOND_LOAD: i64 = 1 << 40;

/// Runs the rounds. Dropping the future ends them and cleans up.
///
/// # Errors
/// Something cannot be started or does not answer. What clients were told wrongly is no error but a report.
pub async fn run(options: &Options) -> anyhow::Result<Report> {
    let bin = programs::find(options.bin.as_deref())?;
    let mut workspace = Workspace::create(options.data.as_deref(), options.keep)?;
    let result = on_stage(options, &bin, workspace.path()).await;
    workspace.keep_unless(matches!(&result, Ok(report) if report.passed));
    result
}

/// A session that does nothing, and what it must still have.
struct Idle {
    client: Client,
    name: String,
    question: Statement,
}

impl Idle {
    async fn open(server: &Server, number: usize) -> anyhow::Result<Idle> {
        let client = connect(&server.config()).await?;
        let name = format!("idle {number}");
        client
            .batch_execute(&format!("SET application_name = '{name}'"))
            .await?;
        let question = client
            .prepare("SELECT current_setting('application_name')")
            .await?;
        Ok(Idle {
            client,
            name,
            question,
        })
    }

    async fn is_kept(&self) -> bool {
        let answer = self.client.query_one(&self.question, &[]);
        match tokio::time::timeout(WITHIN, answer).await {
            Ok(Ok(row)) => row.get::<_, String>(0) == self.name,
            _ => false,
        }
    }
}

/// The clients that run transactions.
struct Loads([Load; 2]);

impl Loads {
    fn start(options: &Options, proxy: &Proxy, clock: Clock) -> Loads {
        let server = schema::any_writable(std::slice::from_ref(proxy.server()));
        let half = (options.clients / 2).max(1);
        let group = |clients, numbered_after| load::Options {
            clients,
            scale: options.scale,
            seed: options.seed,
            numbered_after,
            connects: Some(2),
            ..load::Options::default()
        };
        let simple = group(half, SECOND_LOAD);
        let extended = group((options.clients - half).max(1), 0);
        Loads([
            Load::of::<session::Session>(server.clone(), extended, clock),
            Load::of::<Simple>(server, simple, clock),
        ])
    }

    fn errors(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for (code, count) in self.0.iter().flat_map(Load::errors) {
            *all.entry(code).or_default() += count;
        }
        all
    }

    async fn more(&self) -> anyhow::Result<()> {
        for load in &self.0 {
            let goal = load.acknowledged() + COMMITS / 2;
            load.wait_acknowledged(goal, WITHIN).await?;
        }
        Ok(())
    }

    async fn stop(self) -> History {
        let mut attempts = Vec::new();
        for load in self.0 {
            attempts.extend_from_slice(load.stop().await.attempts());
        }
        History::new(attempts)
    }
}

async fn on_stage(options: &Options, bin: &Path, dir: &Path) -> anyhow::Result<Report> {
    let progress = Progress::new();
    let mut cluster = set_stage(options, bin, dir, &progress).await?;
    let mut proxy = cluster.start_proxy(&[]).await?;
    let mut idle = Vec::new();
    for number in 0..IDLE {
        idle.push(Idle::open(proxy.server(), number).await?);
    }
    let loads = Loads::start(options, &proxy, Clock::start());
    loads.more().await?;
    let mut report = Report {
        idle_sessions: IDLE as u64,
        seed: options.seed,
        ..Report::default()
    };
    let rounds = plan(options);
    for (number, round) in rounds.iter().enumerate() {
        progress.say(&format!(
            "round {} of {}: {round:?}",
            number + 1,
            rounds.len()
        ));
        play(*round, &mut cluster, &loads, &mut report).await?;
        proxy.check_running()?;
        cluster.check_running()?;
    }
    for session in &idle {
        report.idle_lost += u64::from(!session.is_kept().await);
    }
    drop(idle);
    progress.say("verifying");
    report.errors = loads.errors();
    let history = loads.stop().await;
    judge(&cluster, bin, &history, &mut report).await?;
    drop(proxy);
    cluster.shutdown();
    Ok(report)
}

async fn set_stage(
    options: &Options,
    bin: &Path,
    dir: &Path,
    progress: &Progress,
) -> anyhow::Result<Cluster> {
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let settings = ClusterOptions::new(dir, bin, &program);
    progress.say(&format!(
        "starting {} zones, {} nodes and a proxy in {}",
        settings.zones,
        settings.nodes.len(),
        dir.display()
    ));
    let mut cluster = Cluster::create(settings)?;
    cluster.start().await?;
    let active = cluster.wait_active(WITHIN).await?;
    schema::create(bin, &cluster.server(&active)?, options.scale).await?;
    let standby = other(&cluster, &active)?;
    cluster.wait_follows(&standby, WITHIN).await?;
    Ok(cluster)
}

/// All rounds, in an order that the seed decides.
fn plan(options: &Options) -> Vec<Round> {
    let some = |round, count: u32| std::iter::repeat_n(round, count as usize);
    let kills = some(Round::Kill, options.kills);
    let planned = some(Round::Switchover, options.switchovers);
    let mut all: Vec<Round> = kills
        .chain(planned)
        .chain(some(Round::Restart, options.restarts))
        .collect();
    all.shuffle(&mut SmallRng::seed_from_u64(options.seed));
    all
}

fn other(cluster: &Cluster, active: &str) -> anyhow::Result<String> {
    let mut others = cluster.names().filter(|name| *name != active);
    Ok(others.next().context("there is one node only")?.to_owned())
}

async fn play(
    round: Round,
    cluster: &mut Cluster,
    loads: &Loads,
    report: &mut Report,
) -> anyhow::Result<()> {
    let active = cluster.wait_active(WITHIN).await?;
    let config = cluster.node(&active)?.config.display().to_string();
    let before: u64 = loads.errors().values().sum();
    match round {
        Round::Kill => {
            let killed = tokio::task::block_in_place(|| cluster.kill_node(&active));
            killed.with_context(|| format!("{active} was not running"))?;
            loads.more().await?;
            cluster.start_node(&active)?;
            cluster.wait_follows(&active, WITHIN).await?;
            report.kills += 1;
        }
        Round::Switchover => {
            cluster.run(&["switchover", "--config", &config]).await?;
            loads.more().await?;
            cluster.wait_follows(&active, WITHIN).await?;
            report.switchovers += 1;
        }
        Round::Restart => {
            let rolling = ["restart", "--all", "--rolling", "--config", &config];
            cluster.run(&rolling).await?;
            loads.more().await?;
            let active = cluster.wait_active(WITHIN).await?;
            let standby = other(cluster, &active)?;
            cluster.wait_follows(&standby, WITHIN).await?;
            report.restarts += 1;
        }
    }
    loads.more().await?;
    let after: u64 = loads.errors().values().sum();
    if round != Round::Kill {
        report.planned_errors += after - before;
    }
    Ok(())
}

/// Holds what clients were told against the database.
async fn judge(
    cluster: &Cluster,
    bin: &Path,
    history: &History,
    report: &mut Report,
) -> anyhow::Result<()> {
    let counts = report_of(cluster).await?;
    let active = cluster.active().await.context("nobody is active")?;
    let server = cluster.server(&active)?;
    let (comparison, mut checks) = verify::database(&server, history).await?;
    checks.push(verify::amcheck(bin, &server).await?);
    report.acknowledged = comparison.acknowledged;
    report.lost = comparison.lost.len() as u64;
    report.told_wrong = (comparison.lost.len() + comparison.unexpected.len()) as u64;
    report.client_errors = history.count(Outcome::Refused) + history.count(Outcome::Unknown);
    let waited = history
        .attempts()
        .iter()
        .map(|attempt| attempt.ended.since(attempt.began));
    report.longest_pause_ms = waited.max().unwrap_or_default().as_secs_f64() * 1000.0;
    report.replayed = counts.replayed;
    report.in_doubt = counts.in_doubt;
    report.in_doubt_committed = counts.in_doubt_committed;
    report.in_doubt_unknown = counts.in_doubt_unknown;
    let kept = counts.replayed + counts.in_doubt_committed;
    let interrupted = kept + report.client_errors;
    report.kept_percent = 100.0 * kept as f64 / (interrupted.max(1)) as f64;
    let may_be_told = report
        .errors
        .keys()
        .all(|code| MAY_BE_TOLD.contains(&code.as_str()));
    report.passed = report.told_wrong == 0
        && report.planned_errors == 0
        && report.idle_lost == 0
        && may_be_told
        && checks.iter().all(|check| check.passed);
    report.checks = checks;
    ensure!(report.acknowledged > 0, "nothing was committed");
    Ok(())
}

/// The story in a few lines.
pub fn render(report: &Report) -> String {
    let mut text = format!(
        "\n  {} kills, {} switchovers and {} rolling restarts behind a proxy: {} commits acknowledged, {} LOST, {} told wrong\n",
        report.kills,
        report.switchovers,
        report.restarts,
        thousands(report.acknowledged),
        report.lost,
        report.told_wrong,
    );
    text.push_str(&format!(
        "  {} errors at clients {:?}, {} of them in planned work; {} of {} idle sessions lost\n",
        report.client_errors,
        report.errors,
        report.planned_errors,
        report.idle_lost,
        report.idle_sessions,
    ));
    text.push_str(&format!(
        "  {} transactions run again, {} commits in doubt ({} had committed, {} not known): {:.1} % of what was \
         interrupted went on; the longest pause was {:.0} ms\n",
        report.replayed,
        report.in_doubt,
        report.in_doubt_committed,
        report.in_doubt_unknown,
        report.kept_percent,
        report.longest_pause_ms,
    ));
    for check in &report.checks {
        let sign = if check.passed { '✓' } else { '✗' };
        text.push_str(&format!("  {sign} {:<38} {}\n", check.name, check.detail));
    }
    let verdict = if report.passed { "passed" } else { "FAILED" };
    text.push_str(&format!("\n  {verdict} (seed {})\n", report.seed));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_is_played_in_an_order_that_the_seed_decides() {
        let options = |seed| Options {
            kills: 5,
            switchovers: 3,
            restarts: 2,
            clients: 8,
            scale: 1,
            seed,
            bin: None,
            data: None,
            keep: false,
        };
        let rounds = plan(&options(1));
        let count = |round| rounds.iter().filter(|one| **one == round).count();
        assert_eq!(
            [Round::Kill, Round::Switchover, Round::Restart].map(count),
            [5, 3, 2]
        );
        assert_eq!(rounds, plan(&options(1)));
        assert_ne!(rounds, plan(&options(2)));
    }
}
