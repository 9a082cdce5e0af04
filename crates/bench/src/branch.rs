//! `understudy bench branch`: branches of a busy database, beside copies by `pg_basebackup`.
//!
//! Invariant: the load is the same in all runs, which alternate. Each branch and each copy must answer its first query with the last row
//! that was committed before it was asked for.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::Cluster;
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::elsewhere::{Elsewhere, base_backup, open_directory, succeeded};
use cluster::ports;
use cluster::process::Process;
use serde::Serialize;
use serde_json::Value;

use crate::filled::Filled;
use crate::pgbench::timed;
use crate::statistics::Sample;

/// pgbench's clients.
const CLIENTS: u16 = 8;
/// Longest time that anything here takes.
const WITHIN: Duration = Duration::from_secs(1800);
/// The table of which branches and copies are asked for the last row.
pub(crate) const ASKED: &str = "CREATE TABLE asked (number int); CHECKPOINT";
/// How often is asked whether a branch serves.
const POLL: Duration = Duration::from_millis(20);

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
    /// Length of one run.
    pub seconds: u32,
    /// Runs of each kind.
    pub rounds: u32,
}

/// Everything that was measured. Times are in seconds, throughput is in transactions a second.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Of the database, before the first branch.
    pub database_bytes: u64,
    /// pgbench's scale.
    pub scale: u32,
    /// pgbench's clients.
    pub clients: u16,
    /// Nothing happens besides the load.
    pub alone_tps: Sample,
    /// A branch is made and served.
    pub branch_tps: Sample,
    /// A copy is made and served.
    pub copy_tps: Sample,
    /// From the command to the answer of a branch's first query.
    pub branch_seconds: Sample,
    /// The part of it that the active's checkpoint takes.
    pub checkpoint_seconds: Sample,
    /// The part of it that PostgreSQL's recovery takes.
    pub redo_seconds: Sample,
    /// The part of it from when the branch is complete.
    pub serve_seconds: Sample,
    /// WAL that recovery reads, in bytes.
    pub log_bytes: Sample,
    /// From the command to the answer of a copy's first query.
    pub copy_seconds: Sample,
}

/// One branch; times are in seconds.
#[derive(Debug, Clone, Serialize)]
pub struct Branch {
    /// From the command to the answer of its first query.
    pub total: f64,
    /// The part of it that the active's checkpoint takes.
    pub checkpoint: f64,
    /// The part of it that PostgreSQL's recovery takes.
    pub redo: f64,
    /// The part of it from when the branch is complete.
    pub serve: f64,
    /// WAL that recovery reads, in bytes.
    pub log_bytes: f64,
}

/// Measures everything; `say` hears what is going on.
///
/// # Errors
/// Something does not start, or lacks a commit.
pub async fn run(options: &Options, say: impl Fn(&str)) -> Result<Report> {
    say(&format!("filling tables of scale {}", options.scale));
    let programs = (options.bin.as_path(), options.understudy.as_path());
    let Filled {
        mut cluster,
        active,
        server,
        database_bytes,
    } = Filled::start(programs, &options.dir, options.scale, WITHIN).await?;
    let client = connect(&server.config()).await?;
    client.batch_execute(ASKED).await?;

    let pgbench = async || timed(&options.bin, &server, CLIENTS, options.seconds, &[]).await;
    let (mut alone, mut beside_branch, mut beside_copy) = (Vec::new(), Vec::new(), Vec::new());
    let (mut branches, mut copies) = (Vec::new(), Vec::new());
    for round in 0..=options.rounds {
        let number = i32::try_from(round)?;
        let tps = pgbench().await?;
        let with = (options.understudy.as_path(), options.dir.as_path());
        let making = branch(&cluster, &active, with, number);
        let (tps_branch, branch) = tokio::try_join!(pgbench(), making)?;
        let (tps_copy, copied) =
            tokio::try_join!(pgbench(), copy(&cluster, &active, options, number))?;
        say(&format!(
            "round {round}: branch {:.1} s, of which redo {:.1} s; copy {copied:.1} s; {tps:.0}, {tps_branch:.0}, {tps_copy:.0} tps",
            branch.total, branch.redo
        ));
        // The first round warms up.
        if round > 0 {
            alone.push(tps);
            beside_branch.push(tps_branch);
            beside_copy.push(tps_copy);
            branches.push(branch);
            copies.push(copied);
        }
    }
    cluster.check_running()?;
    cluster.shutdown();
    let each = |of: fn(&Branch) -> f64| Sample::of(branches.iter().map(of).collect());
    Ok(Report {
        database_bytes,
        scale: options.scale,
        clients: CLIENTS,
        alone_tps: Sample::of(alone),
        branch_tps: Sample::of(beside_branch),
        copy_tps: Sample::of(beside_copy),
        branch_seconds: each(|one| one.total),
        checkpoint_seconds: each(|one| one.checkpoint),
        redo_seconds: each(|one| one.redo),
        serve_seconds: each(|one| one.serve),
        log_bytes: each(|one| one.log_bytes),
        copy_seconds: Sample::of(copies),
    })
}

/// Makes a branch, serves it until its first answer, and drops it.
pub(crate) async fn branch(
    cluster: &Cluster,
    active: &str,
    (understudy, dir): (&Path, &Path),
    number: i32,
) -> Result<Branch> {
    let (node, of) = (&cluster.node(active)?.config, cluster.server(active)?);
    let client = connect(&of.config()).await?;
    client
        .execute("INSERT INTO asked VALUES ($1)", &[&number])
        .await?;
    let began = Instant::now();
    let name = format!("branch{number}");
    let directory = dir.join(&name);
    let secret = cluster.options().dir.join("zones.secret");
    let port = ports::free()?;
    let secret = secret.display().to_string();
    let (place, at) = (directory.display().to_string(), port.to_string());
    let config = node.display().to_string();
    let with = ["--config", &config, "--secret-file", &secret];
    let create = ["branch", "create", &name, "--json", "--directory", &place];
    let create = [&create[..], &["--port", &at], &with].concat();
    let made: Value = serde_json::from_str(&cluster.run(&create).await?)?;
    let complete = began.elapsed();

    let mut serve = Command::new(understudy);
    serve
        .args(["branch", "run", "--until-stdin-closes", "--directory"])
        .arg(&directory);
    let log = directory.join("agent.log");
    let mut serving = Process::spawn("branch", serve, &log)?;
    let server = Server { port, ..of };
    while !answers(&server, number).await {
        ensure!(
            began.elapsed() < WITHIN,
            "the branch does not serve: see {}",
            log.display()
        );
        tokio::time::sleep(POLL).await;
    }
    let total = began.elapsed();
    ensure!(serving.terminate(WITHIN), "the branch's node does not end");
    let drop = [&["branch", "drop", &name][..], &with].concat();
    cluster.run(&drop).await?;
    std::fs::remove_dir_all(&directory)?;
    let number = |value: &Value| {
        value
            .as_f64()
            .with_context(|| format!("a number in {made}"))
    };
    Ok(Branch {
        total: total.as_secs_f64(),
        checkpoint: number(&made["checkpoint_ms"])? / 1000.0,
        redo: number(&made["took"]["recovery_ms"])? / 1000.0,
        serve: total.saturating_sub(complete).as_secs_f64(),
        log_bytes: number(&made["log_bytes"])?,
    })
}

/// True if the first query gets the last row.
async fn answers(server: &Server, number: i32) -> bool {
    let Ok(client) = connect(&server.config()).await else {
        return false;
    };
    let last = client.query_one("SELECT max(number) FROM asked", &[]).await;
    last.is_ok_and(|row| row.get::<_, Option<i32>>(0) == Some(number))
}

/// Makes a copy by `pg_basebackup`, and serves it until its first answer. Returns how long that took.
async fn copy(cluster: &Cluster, active: &str, options: &Options, number: i32) -> Result<f64> {
    let began = Instant::now();
    let home = open_directory(&options.dir, &format!("copy{number}"))?;
    let data = home.join("base");
    // pgbench is a process of its own, and goes on meanwhile.
    tokio::task::block_in_place(|| base_backup(cluster, active, &data))?;
    let server = Elsewhere::start(cluster, &data, WITHIN).await?;
    ensure!(
        answers(&server.server, number).await,
        "the copy lacks a commit"
    );
    let took = began.elapsed().as_secs_f64();
    drop(server);
    let mut remove = Command::new("rm");
    remove.arg("-rf").arg(&home).stdin(Stdio::null());
    succeeded(remove)?;
    Ok(took)
}

/// A table.
pub fn table(report: &Report) -> String {
    let mut out = format!(
        "\n  {:.1} GB, {} clients, medians\n\n",
        report.database_bytes as f64 / 1e9,
        report.clients
    );
    let line = |name: &str, value: f64, unit: &str| format!("  {name:<46} {value:>9.2} {unit}\n");
    for (name, sample) in [
        (
            "branch: from the command to the first answer",
            &report.branch_seconds,
        ),
        (
            "  of it, the checkpoint of the active",
            &report.checkpoint_seconds,
        ),
        ("  of it, redo by PostgreSQL", &report.redo_seconds),
        (
            "  of it, from complete to the first answer",
            &report.serve_seconds,
        ),
        (
            "pg_basebackup and a server, to the first answer",
            &report.copy_seconds,
        ),
    ] {
        out += &line(name, sample.median, "s");
    }
    out += &line("WAL that redo reads", report.log_bytes.median / 1e6, "MB");
    let alone = report.alone_tps.median.max(f64::MIN_POSITIVE);
    for (name, sample) in [
        ("throughput", &report.alone_tps),
        (
            "  while a branch is made, served and dropped",
            &report.branch_tps,
        ),
        ("  while a copy is made and served", &report.copy_tps),
    ] {
        let (median, ratio) = (sample.median, sample.median / alone);
        out += &format!(
            "  {name:<46} {median:>9.0} tps {ratio:>6.3}, spread {:.2}\n",
            sample.spread
        );
    }
    out
}
