//! The course of a demo: set the stage, load, kill, go on, verify, report.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::lag::Lag;
use super::picture::{self, Scene};
use super::progress::Progress;
use super::proxied::{self, Proxied};
use super::report::Report;
use super::takeover::Takeover;
use super::timeline::{duration, thousands};
use cluster::clients::churn::Churn;
use cluster::clients::clock::{Clock, Offset};
use cluster::clients::history::{History, Outage};
use cluster::clients::load::{self, Load};
use cluster::clients::schema::{self, Server};
use cluster::clients::session::connect;
use cluster::clients::verify;
use cluster::process::Kill;
use cluster::tier::{Store, Tier};
use cluster::workspace::Workspace;
use cluster::{Cluster, programs};
use coordination::channel::ProxyReport;

/// What the user chose.
#[derive(Debug, Clone)]
pub struct Options {
    /// What keeps the blocks.
    pub store: Store,
    /// Length of the load.
    pub duration: Duration,
    /// Concurrent clients.
    pub clients: u16,
    /// pgbench's scale.
    pub scale: u32,
    /// Decides the moment of the kill and the rows touched.
    pub seed: u64,
    /// A client that creates and drops tables besides.
    pub ddl: bool,
    /// Start the killed node again after the takeover, and wait until it follows as a standby.
    pub rejoin: bool,
    /// Clients connect to a proxy, and do nothing about reconnecting.
    pub proxy: bool,
    /// PostgreSQL's programs, if not Debian's newest.
    pub bin: Option<PathBuf>,
    /// Where to work.
    pub data: Option<PathBuf>,
    /// Leave data and logs in place.
    pub keep: bool,
    /// Where the picture goes.
    pub picture: Option<PathBuf>,
}

/// How long the cluster may take to accept writes again before the demo calls it a failure.
const TAKEOVER_WITHIN: Duration = Duration::from_secs(60);
/// At least this much load after the first commit, whatever the duration.
const AFTERWARDS: Duration = Duration::from_secs(5);

/// Runs the demo. Dropping the future ends it and cleans up.
///
/// # Errors
/// Something cannot be started or does not answer. Lost commits are no error but a report.
pub async fn run(options: &Options) -> anyhow::Result<Report> {
    let bin = programs::find(options.bin.as_deref())?;
    let mut workspace = Workspace::create(options.data.as_deref(), options.keep)?;
    let result = on_stage(options, &bin, &workspace).await;
    workspace.keep_unless(matches!(&result, Ok(report) if report.passed));
    let mut report = result?;
    report.data = workspace.is_kept().then(|| workspace.path().to_owned());
    Ok(report)
}

async fn on_stage(options: &Options, bin: &Path, workspace: &Workspace) -> anyhow::Result<Report> {
    let mut progress = Progress::new();
    let dir = workspace.path();
    let tier = Tier::start(options.store, dir, |what| progress.say(what)).await?;
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let mut settings = cluster::Options::new(dir, bin, &program);
    tier.serve(&mut settings);
    let mut cluster = start_cluster(settings, options.scale, &progress).await?;
    let run = play(options, &mut cluster, &mut progress).await?;
    progress.say("verifying");
    let report = judge(options, bin, &cluster, &run).await?;
    cluster.shutdown();
    tokio::task::block_in_place(|| drop(tier));
    Ok(report)
}

/// Starts the cluster and fills the tables.
pub(super) async fn start_cluster(
    settings: cluster::Options,
    scale: u32,
    progress: &Progress,
) -> anyhow::Result<Cluster> {
    let bin = settings.bin.clone();
    let zones = match settings.zones {
        0 => String::new(),
        zones => format!("{zones} zones and "),
    };
    progress.say(&format!(
        "starting {zones}{} nodes with {} in {}",
        settings.nodes.len(),
        bin.display(),
        settings.dir.display()
    ));
    let mut cluster = Cluster::create(settings)?;
    cluster.start().await?;
    let active = cluster.wait_active(Duration::from_secs(10)).await?;
    progress.say(&format!(
        "loading pgbench's tables, scale {}: {} accounts",
        scale,
        thousands(u64::from(scale) * 100_000)
    ));
    schema::create(&bin, &cluster.server(&active)?, scale).await?;
    for name in standbys(&cluster, &active) {
        cluster
            .wait_follows(&name, Duration::from_secs(120))
            .await?;
    }
    Ok(cluster)
}

fn standbys(cluster: &Cluster, active: &str) -> Vec<String> {
    let others = cluster.names().filter(|name| *name != active);
    others.map(str::to_owned).collect()
}

/// What happened under load.
struct Run {
    clock: Clock,
    history: History,
    outage: Outage,
    killed: Offset,
    kill: Kill,
    killed_node: String,
    postgres: String,
    lag: Option<u64>,
    rejoined: Option<Duration>,
    end: Offset,
    ddl_rounds: Option<u64>,
    /// What the proxy counted.
    proxied: Option<ProxyReport>,
}

/// Load, kill, and what follows.
async fn play(
    options: &Options,
    cluster: &mut Cluster,
    progress: &mut Progress,
) -> anyhow::Result<Run> {
    let first = cluster.wait_active(Duration::from_secs(10)).await?;
    let standby = standbys(cluster, &first).pop().context("no standby")?;
    let postgres = version(&cluster.server(&first)?).await?;
    let mut proxy = match options.proxy {
        true => Some(cluster.start_proxy(&[]).await?),
        false => None,
    };
    let application = match &proxy {
        Some(proxy) => schema::any_writable(std::slice::from_ref(proxy.server())),
        None => cluster.any_writable(),
    };
    progress.say(&format!(
        "{postgres}; {} clients connect to \"{}\"",
        options.clients,
        schema::connection_string(&application)
    ));

    let clock = Clock::start();
    let load = Load::start(application.clone(), load_options(options), clock);
    let churn = options.ddl.then(|| Churn::start(application));
    let lag = Lag::watch(&cluster.server(&first)?, &cluster.server(&standby)?);
    let (count, behind) = (load.counter(), lag.reader());
    progress.set_state(format!("{first} is active"));
    progress.start(
        clock,
        move || count.get(),
        move || {
            behind
                .bytes()
                .map(|b| format!("{standby} is {} bytes behind", thousands(b)))
        },
    );

    tokio::time::sleep(moment_of_kill(options)).await;
    cluster.check_running()?;
    // On a machine that is much too busy, a standby may have taken over already.
    let active = cluster.wait_active(TAKEOVER_WITHIN).await?;
    let behind = lag.bytes().filter(|_| active == first);
    drop(lag);
    if active != first {
        progress.say(&format!(
            "{:>4.1} s  {active} has taken over already: {first} was silent for too long on this busy machine",
            clock.now().seconds()
        ));
    }
    let kill = tokio::task::block_in_place(|| cluster.kill_node(&active))
        .with_context(|| format!("{active} was not running"))?;
    let killed = clock.at(kill.at);
    progress.say(&format!(
        "{:>4.1} s  {active} KILLED: its agent, its PostgreSQL, {} processes",
        killed.seconds(),
        kill.processes
    ));
    progress.set_state("nobody is active");

    let outage = wait_for_commit(cluster, &load, killed).await?;
    let new = cluster.active().await.unwrap_or_else(|| "somebody".into());
    progress.say(&format!(
        "{:>4.1} s  {new} took over: first commit {} after the kill",
        outage.first_after.seconds(),
        duration(Offset(outage.first_after.0 - killed.0).millis())
    ));
    progress.set_state(format!("{new} is active"));

    let rejoined = match options.rejoin {
        true => Some(rejoin(cluster, &active, clock, progress).await?),
        false => None,
    };
    let rest = options
        .duration
        .saturating_sub(clock.now().since(Offset(0)));
    tokio::time::sleep(rest.max(AFTERWARDS)).await;
    cluster.check_running()?;
    let end = clock.now();
    progress.stop();
    let history = load.stop().await;
    let ddl_rounds = match churn {
        Some(churn) => Some(churn.stop().await),
        None => None,
    };
    let proxied = match &mut proxy {
        Some(proxy) => {
            proxy.check_running()?;
            Some(proxied::report_of(cluster).await?)
        }
        None => None,
    };
    Ok(Run {
        clock,
        history,
        outage,
        killed,
        kill,
        killed_node: active,
        postgres,
        lag: behind,
        rejoined,
        end,
        ddl_rounds,
        proxied,
    })
}

/// Starts the dead node again; how long until it has replayed what the new active had by then.
async fn rejoin(
    cluster: &mut Cluster,
    dead: &str,
    clock: Clock,
    progress: &Progress,
) -> anyhow::Result<Duration> {
    let began = clock.now();
    cluster.start_node(dead)?;
    cluster.wait_follows(dead, TAKEOVER_WITHIN).await?;
    let took = clock.now().since(began);
    progress.say(&format!(
        "{:>4.1} s  {dead} was started again and follows as a standby after {}",
        clock.now().seconds(),
        duration(Offset(took.as_micros() as i64).millis())
    ));
    Ok(took)
}

fn load_options(options: &Options) -> load::Options {
    load::Options {
        clients: options.clients,
        scale: options.scale,
        seed: options.seed,
        connects: Some(2),
        ..load::Options::default()
    }
}

/// Somewhere in the middle fifth, by the seed.
fn moment_of_kill(options: &Options) -> Duration {
    let share = SmallRng::seed_from_u64(options.seed).random_range(0.4..0.6);
    options.duration.mul_f64(share)
}

pub(super) async fn version(server: &Server) -> anyhow::Result<String> {
    let client = connect(&server.config()).await?;
    let row = client.query_one("SHOW server_version", &[]).await?;
    let version: String = row.get(0);
    let number = version.split_whitespace().next().unwrap_or_default();
    Ok(format!("PostgreSQL {number}"))
}

/// Waits for the first commit whose transaction began after the kill.
async fn wait_for_commit(
    cluster: &mut Cluster,
    load: &Load,
    killed: Offset,
) -> anyhow::Result<Outage> {
    let deadline = tokio::time::Instant::now() + TAKEOVER_WITHIN;
    loop {
        if let Some(outage) = load.history().outage(killed) {
            return Ok(outage);
        }
        cluster.check_running()?;
        anyhow::ensure!(
            tokio::time::Instant::now() < deadline,
            "nobody took over within {TAKEOVER_WITHIN:?}; a client's last words: {}",
            load.trouble().unwrap_or_else(|| "none".into())
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Asks the new active what is there, and puts everything together.
async fn judge(
    options: &Options,
    bin: &Path,
    cluster: &Cluster,
    run: &Run,
) -> anyhow::Result<Report> {
    let new_active = cluster.active().await.context("nobody is active")?;
    let server = cluster.server(&new_active)?;
    let (comparison, mut checks) = verify::database(&server, &run.history).await?;
    checks.push(verify::amcheck(bin, &server).await?);
    let takeover = Takeover::last(&cluster.ask("history").await?)?;
    let moments = takeover.moments(&run.clock, run.killed, run.outage.first_after);

    let mut report = Report {
        phases_ms: moments.phases(),
        lag_bytes_at_kill: run.lag,
        seed: options.seed,
        clients: options.clients,
        scale: options.scale,
        ddl_rounds: run.ddl_rounds,
        rejoined_ms: run
            .rejoined
            .map(|took| Offset(took.as_micros() as i64).millis()),
        postgres: run.postgres.clone(),
        killed_node: run.killed_node.clone(),
        killed_processes: run.kill.processes,
        new_active: takeover.node,
        epoch: takeover.epoch,
        ..Report::default()
    };
    report.judge(&comparison, checks);
    if let Some(said) = &run.proxied {
        report.judge_proxy(Proxied::new(&run.history, &comparison, said));
    }
    report.measure(&run.history, run.killed, &run.outage, run.end);
    if let Some(file) = &options.picture {
        let scene = Scene {
            report: &report,
            history: &run.history,
            moments: &moments,
            outage: &run.outage,
            end: run.end,
        };
        std::fs::write(file, picture::render(&scene))
            .with_context(|| format!("cannot write the picture {}", file.display()))?;
        report.picture = Some(file.clone());
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_the_moment_of_the_kill() {
        let with = |seed| Options {
            store: Store::Zones,
            duration: Duration::from_secs(100),
            clients: 1,
            scale: 1,
            seed,
            ddl: false,
            rejoin: false,
            proxy: false,
            bin: None,
            data: None,
            keep: false,
            picture: None,
        };
        assert_eq!(moment_of_kill(&with(1)), moment_of_kill(&with(1)));
        assert_ne!(moment_of_kill(&with(1)), moment_of_kill(&with(2)));
        let middle = Duration::from_secs(40)..Duration::from_secs(60);
        assert!((0..100).all(|seed| middle.contains(&moment_of_kill(&with(seed)))));
    }
}
