//! The demo with another server than PostgreSQL: kill its machine under load as often as wanted, see it restarted on
//! another one, and look for every commit.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use cluster::clients::clock::Clock;
use cluster::clients::mysql::{self, Load, Server, Verdict};
use cluster::workspace::Workspace;
use cluster::{Cluster, Options as ClusterOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::progress::Progress;
use super::timeline::thousands;

/// What the user chose.
#[derive(Debug, Clone)]
pub struct Options {
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
    /// Whether nothing was lost or invented, and all tables are sound.
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
    /// What the server's own check of its tables says.
    pub tables: String,
    /// Repeats the run.
    pub seed: u64,
}

const ACCOUNTS: u32 = 20_000;
/// How long another node may take to serve.
const TAKEOVER_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Users that a server may run as when we are root, the first that exists.
const USERS: [&str; 2] = ["mysql", "nobody"];

/// Runs the demo. Dropping the future ends it and cleans up.
///
/// # Errors
/// Something cannot be started or does not answer. Lost commits are no error but a report.
pub async fn run(options: &Options) -> anyhow::Result<Report> {
    let mut workspace = Workspace::create(options.data.as_deref(), options.keep)?;
    let result = on_stage(options, workspace.path()).await;
    if !matches!(&result, Ok(report) if report.passed) {
        workspace.keep();
        eprintln!("  data and logs stay in {}", workspace.path().display());
    }
    result
}

async fn on_stage(options: &Options, dir: &Path) -> anyhow::Result<Report> {
    let progress = Progress::new();
    let mut cluster = set_stage(options, dir, &progress).await?;
    let servers = servers(&cluster);
    let clock = Clock::start();
    let load = Load::start(&servers, options.clients, ACCOUNTS, options.seed, clock);
    let mut rng = SmallRng::seed_from_u64(options.seed);
    let mut kills = Vec::new();
    for _ in 0..options.kills {
        let wait = options.between.mul_f64(rng.random_range(0.5..1.5));
        tokio::time::sleep(wait).await;
        kills.push(kill_and_wait(&mut cluster, &progress).await?);
    }
    tokio::time::sleep(options.between).await;
    progress.say("verifying");
    let history = load.stop().await?;
    let ran = clock.now();
    wait_active(&mut cluster, 0).await?;
    let verdict = mysql::verify(&servers, &history, ACCOUNTS).await?;
    let tables = match mysql::check_tables(&servers).await {
        Ok(()) => "OK".to_owned(),
        Err(error) => format!("{error:#}"),
    };
    let entries: Value = serde_json::from_str(&cluster.ask("history").await?)?;
    let outages = kills.iter().map(|kill| {
        let outage = history
            .outage(clock.at(kill.at))
            .context("no commit after a kill")?;
        Ok(Outage {
            killed: kill.node.clone(),
            downtime_ms: outage.first_after.since(outage.last_before).as_secs_f64() * 1000.0,
            phases: phases(&entries, kill.epoch),
        })
    });
    let outages: Vec<Outage> = outages.collect::<anyhow::Result<_>>()?;
    cluster.shutdown();
    let mut downtimes: Vec<f64> = outages.iter().map(|outage| outage.downtime_ms).collect();
    downtimes.sort_by(f64::total_cmp);
    progress.set_state("done");
    Ok(Report {
        passed: verdict.holds() && tables == "OK",
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
        seed: options.seed,
    })
}

/// A kill that was carried out.
struct Kill {
    node: String,
    /// When all of its processes were dead.
    at: SystemTime,
    /// The epoch that followed.
    epoch: u64,
}

async fn kill_and_wait(cluster: &mut Cluster, progress: &Progress) -> anyhow::Result<Kill> {
    let (node, epoch) = wait_active(cluster, 0).await?;
    let killed = cluster
        .kill_node(&node)
        .context("the active does not run")?;
    let at = SystemTime::now();
    progress.say(&format!(
        "killed {node} with its server: {} processes",
        killed.processes
    ));
    let (next, epoch) = wait_active(cluster, epoch + 1).await?;
    progress.say(&format!("{next} serves, epoch {epoch}"));
    cluster.start_node(&node)?;
    Ok(Kill { node, at, epoch })
}

/// Waits until a node serves under an epoch not before `from`.
async fn wait_active(cluster: &mut Cluster, from: u64) -> anyhow::Result<(String, u64)> {
    let deadline = Instant::now() + TAKEOVER_WITHIN;
    loop {
        // While nobody serves it fails, and says so by its exit code.
        if let Ok(status) = cluster.ask("status").await {
            let status: Value = serde_json::from_str(&status)?;
            let epoch = status["epoch"].as_u64().unwrap_or_default();
            if let (Some(active), true) = (status["active"].as_str(), epoch >= from) {
                return Ok((active.to_owned(), epoch));
            }
        }
        cluster.check_running()?;
        ensure!(
            Instant::now() < deadline,
            "no node serves after {TAKEOVER_WITHIN:?}; the logs are in {}",
            cluster.logs().display()
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn phases(history: &Value, epoch: u64) -> Value {
    let mut entries = history.as_array().into_iter().flatten();
    let entry = entries.rfind(|entry| entry["epoch"].as_u64() == Some(epoch));
    entry
        .map(|entry| entry["phases"].clone())
        .unwrap_or_default()
}

fn servers(cluster: &Cluster) -> Vec<Server> {
    let node = |name: &str| cluster.node(name).ok();
    let nodes = cluster.names().filter_map(node);
    nodes
        .map(|node| Server {
            address: node.address,
            port: node.port,
        })
        .collect()
}

/// Starts the cluster and fills the tables.
async fn set_stage(options: &Options, dir: &Path, progress: &Progress) -> anyhow::Result<Cluster> {
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let mut settings = ClusterOptions::new(dir, Path::new("/"), &program);
    let bin = options
        .bin
        .as_ref()
        .map(|bin| format!("bin = \"{}\"", bin.display()));
    let lines = [
        "kind = \"mariadb\"".to_owned(),
        format!("run_as = \"{}\"", server_user()?),
    ];
    settings.engine = Some(lines.into_iter().chain(bin).collect());
    settings.parameters = vec![("innodb_buffer_pool_size".to_owned(), "64M".to_owned())];
    progress.say(&format!(
        "starting 3 zones and 2 nodes with MariaDB in {}",
        dir.display()
    ));
    let mut cluster = Cluster::create(settings)?;
    for zone in 1..=3 {
        cluster.start_zone(zone)?;
    }
    cluster.init().await?;
    let names: Vec<String> = cluster.names().map(str::to_owned).collect();
    for name in &names {
        cluster.start_node(name)?;
    }
    let (active, _) = wait_active(&mut cluster, 0).await?;
    progress.say(&format!(
        "{active} serves; making {} accounts",
        thousands(u64::from(ACCOUNTS))
    ));
    let socket = cluster.node(&active)?.data.join("run/server.sock");
    administrate(&socket, &mysql::setup_statements(ACCOUNTS)).await?;
    Ok(cluster)
}

/// Who the server runs as: the first of the usual users that exists.
fn server_user() -> anyhow::Result<&'static str> {
    let exists =
        |user: &&&str| nix::unistd::User::from_name(user).is_ok_and(|found| found.is_some());
    USERS
        .iter()
        .find(exists)
        .copied()
        .context("there is neither a user mysql nor nobody")
}

/// Runs statements as the administrator, by MariaDB's own client.
async fn administrate(socket: &Path, statements: &str) -> anyhow::Result<()> {
    let mut client = tokio::process::Command::new("mariadb");
    client
        .arg("--no-defaults")
        .arg(format!("--socket={}", socket.display()));
    let mut child = client
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot run mariadb, MariaDB's client: apt-get install mariadb-client")?;
    let mut input = child.stdin.take().context("its standard input is a pipe")?;
    tokio::io::AsyncWriteExt::write_all(&mut input, statements.as_bytes()).await?;
    drop(input);
    let output = child.wait_with_output().await?;
    if !output.status.success() {
        bail!(
            "mariadb failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
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
    let verdict = if report.passed { "passed" } else { "FAILED" };
    text.push_str(&format!("\n  {verdict} (seed {})\n", report.seed));
    text
}
