//! `understudy mirror`: the same transactions on a second, independent database.

mod findings;
mod managers;
mod upgrade;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use coordination::config::ClusterConfig;
use coordination::{service, tier};
use dax::storage::Storage;
use mirror::driver::config::Config;
use mirror::driver::peer::Question;
use mirror::driver::upgrade::upgrade as upgrade_of;
use mirror::driver::{Open, Status, Verdict, resolve};
use serde_json::Value;

use crate::cli::{self, MirrorAsking, MirrorResolving};
use crate::exit::{Code, Failure};
use findings::findings;
use managers::{ask_both, ask_primary, declined, load, silent, statuses, switchover};

/// Opens the volume of a configuration.
struct Tier(ClusterConfig);

#[async_trait]
impl Open for Tier {
    async fn open(&self) -> dax::Result<Arc<dyn Storage>> {
        tier::connect(&self.0, self.0.name.as_str()).await
    }
}

/// Runs what was asked for.
///
/// # Errors
/// It fails, or the runtime cannot start.
pub fn run(command: cli::Mirror) -> anyhow::Result<Code> {
    use super::process::on_runtime;
    match command {
        cli::Mirror::Check(args) => on_runtime(async move { check(&args).await }),
        cli::Mirror::CreateLog(args) => on_runtime(async move { create_log(&args.config).await }),
        cli::Mirror::Init(args) => {
            tracing::warn!("\"mirror init\" has a new name: use \"mirror create-log\"");
            on_runtime(async move { create_log(&args.config).await })
        }
        cli::Mirror::Run(args) => serve(args),
        cli::Mirror::Status(args) => on_runtime(async move { status(&args).await }),
        cli::Mirror::Switchover(args) => on_runtime(async move { switch_over(&args).await }),
        cli::Mirror::Verify(args) => on_runtime(async move { verify(&args).await }),
        cli::Mirror::Upgrade(args) => on_runtime(async move { upgrade::run(&args).await }),
        cli::Mirror::Resolve(args) => on_runtime(async move { decide(&args).await }),
        cli::Mirror::History(args) => on_runtime(async move { history(&args).await }),
        cli::Mirror::Metrics(args) => on_runtime(async move { metrics(&args.config).await }),
    }
}

async fn check(args: &MirrorAsking) -> anyhow::Result<Code> {
    let (_, config) = load(&args.file.config)?;
    let checked = mirror::driver::check(&config).await?;
    match args.json {
        true => println!("{}", serde_json::to_string(&checked)?),
        false => print!("{}", findings(&checked)),
    }
    Ok(match checked.ok {
        true => Code::Ok,
        false => Code::Failed,
    })
}

async fn create_log(file: &Path) -> anyhow::Result<Code> {
    let (cluster, config) = load(file)?;
    if config.single {
        let why = "a single member has no log, and needs no volume";
        return Err(Failure::new(Code::Usage, why)
            .advise("Leave single = true out once there is a second member.")
            .into());
    }
    tier::create_volume(&cluster, &cluster.volume_settings()).await?;
    println!(
        "volume {} is made; it keeps the mirror's log",
        cluster.volume
    );
    // What a member lacks is said before a manager waits for it.
    let checked = mirror::driver::check(&config).await?;
    if !checked.ok {
        eprint!("{}", findings(&checked));
    }
    Ok(Code::Ok)
}

fn serve(args: cli::MirrorRun) -> anyhow::Result<Code> {
    let (cluster, config) = load(&args.file.config)?;
    super::process::on_threads(config.threads, serve_with(args, cluster, config))
}

async fn serve_with(
    args: cli::MirrorRun,
    cluster: ClusterConfig,
    config: Config,
) -> anyhow::Result<Code> {
    let asked_to_end = super::process::asked_to_end(args.until_stdin_closes);
    let (name, tls) = (cluster.name.clone(), cluster.tls()?);
    service::ready();
    mirror::driver::run(config, name, Box::new(Tier(cluster)), tls, asked_to_end).await?;
    Ok(Code::Ok)
}

async fn status(args: &MirrorAsking) -> anyhow::Result<Code> {
    let statuses = statuses(&args.file.config).await?;
    if args.json {
        println!("{}", with_upgrade(&statuses)?);
    } else {
        print!("{}", table(&statuses)?);
    }
    Ok(match statuses.iter().any(Option::is_some) {
        true => Code::Ok,
        false => Code::Unavailable,
    })
}

/// The statuses in JSON, each with the upgrade that both show.
fn with_upgrade(statuses: &[Option<Status>]) -> anyhow::Result<Value> {
    let mut told = serde_json::to_value(statuses)?;
    if let Some(upgrade) = upgrade_of(statuses) {
        let managers = told.as_array_mut().into_iter().flatten();
        for manager in managers.filter(|manager| manager.is_object()) {
            manager["upgrade"] = serde_json::to_value(&upgrade)?;
        }
    }
    Ok(told)
}

/// The time of a clock, from milliseconds of the Unix epoch.
fn moment(unix_ms: u64) -> impl std::fmt::Display {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(unix_ms))
}

/// The last comparison that a manager has made.
fn compared(status: &Status) -> String {
    let mut out = String::new();
    if let Some(verified) = &status.verified {
        let (at, tables, rows) = (moment(verified.unix_ms), verified.tables, verified.rows);
        let result = match verified.equal {
            true => "equal",
            false => "DIFFERENT",
        };
        out.push_str(&format!(
            "  the members were compared at {at}: {result} ({tables} tables with {rows} rows)\n"
        ));
        for difference in &verified.differences {
            out.push_str(&format!("    {difference}\n"));
        }
    }
    if let Some(why) = &status.unverified {
        out.push_str(&format!("  the members cannot be compared now: {why}\n"));
    }
    out
}

fn table(statuses: &[Option<Status>]) -> anyhow::Result<String> {
    let mut out = format!(
        "{:<16} {:<26} {:>7} {:>12} {:>12} {:>8}\n",
        "manager", "state", "epoch", "logged", "applied", "clients"
    );
    for status in statuses {
        let Some(status) = status else {
            out.push_str("(one manager cannot be reached)\n");
            continue;
        };
        let role = serde_json::to_value(status.role)?;
        let word = |key: &str| role[key].as_str().unwrap_or_default().replace('_', " ");
        let state = match word("why").as_str() {
            "" => word("role"),
            why => format!("{}: {why}", word("role")),
        };
        let number = |number: Option<u64>| {
            number.map_or_else(|| "-".to_owned(), |number| number.to_string())
        };
        out.push_str(&format!(
            "{:<16} {state:<26} {:>7} {:>12} {:>12} {:>8}\n",
            status.name,
            number(status.epoch.map(u64::from)),
            status.logged,
            number(status.applied),
            status.clients
        ));
        if let Some(difference) = &status.difference {
            out.push_str(&format!("  its member differs: {difference}\n"));
        }
        if let Some(since) = status.aside_since {
            let since = moment(since);
            out.push_str(&format!("  its member is set aside since {since}\n"));
        }
        out.push_str(&compared(status));
        if !status.kept.is_empty() {
            let kept = status.kept.join(", ");
            out.push_str(&format!(
                "  its server keeps what was replaced, until you drop it: {kept}\n"
            ));
        }
        if let Some(advice) = &status.advice {
            out.push_str(&format!("  {advice}\n"));
        }
    }
    if let Some(upgrade) = upgrade_of(statuses) {
        out.push_str(&format!("{upgrade}\n"));
    }
    Ok(out)
}

async fn switch_over(args: &MirrorAsking) -> anyhow::Result<Code> {
    let file = &args.file.config;
    let statuses = statuses(file).await?;
    let told = ask_primary(file, &statuses, switchover(&statuses)).await?;
    match args.json {
        true => println!("{told}"),
        false => println!("handed over; the standby serves as soon as it owns the next epoch"),
    }
    Ok(Code::Ok)
}

async fn verify(args: &MirrorAsking) -> anyhow::Result<Code> {
    let file = &args.file.config;
    let told = ask_primary(file, &statuses(file).await?, Question::Verify).await?;
    let verdict: Verdict = serde_json::from_str(&told)?;
    if args.json {
        println!("{told}");
    } else {
        let (tables, rows) = (verdict.tables, verdict.rows);
        println!(
            "{tables} tables with {rows} rows at transaction {}",
            verdict.transaction
        );
        verdict
            .differences
            .iter()
            .for_each(|difference| println!("{difference}"));
        println!(
            "{}",
            if verdict.equal {
                "the members are equal"
            } else {
                "the members differ"
            }
        );
    }
    Ok(if verdict.equal {
        Code::Ok
    } else {
        Code::Failed
    })
}

async fn decide(args: &MirrorResolving) -> anyhow::Result<Code> {
    let (cluster, config) = load(&args.asking.file.config)?;
    let (tls, own) = (cluster.tls()?, config.peer_listen.to_string());
    let resolved = resolve([&own, &config.peer], tls.as_ref(), &args.keep).await;
    let resolved = resolved.map_err(|error| silent(&error))?;
    let resolved = resolved.map_err(|why| declined(Question::Replace, false, why))?;
    if args.asking.json {
        println!("{}", serde_json::to_string(&resolved)?);
        return Ok(Code::Ok);
    }
    if resolved.adopted {
        println!(
            "{} becomes primary with what its member has; transactions that it lacks are in {}'s alone",
            resolved.keep, resolved.replaced
        );
    }
    println!(
        "the member of {} is replaced by a copy, and kept under another name: understudy mirror status",
        resolved.replaced
    );
    Ok(Code::Ok)
}

async fn history(args: &MirrorAsking) -> anyhow::Result<Code> {
    let (_, config) = load(&args.file.config)?;
    let told = ask_both(&args.file.config, Question::History).await?;
    let told = told.into_iter().flatten().min_by_key(Result::is_err);
    let told = told.ok_or_else(|| Failure::new(Code::Unavailable, "no manager can be reached"))?;
    let told = told.map_err(|why| declined(Question::History, config.single, why))?;
    if args.json {
        println!("{told}");
        return Ok(Code::Ok);
    }
    let entries: Vec<Value> = serde_json::from_str(&told)?;
    for entry in entries {
        let seconds = entry["unix_ms"].as_u64().unwrap_or(0) / 1000;
        let (manager, last) = (
            entry["manager"].as_str().unwrap_or("?"),
            &entry["transaction"],
        );
        println!(
            "epoch {}: {manager} since second {seconds}, after transaction {last}",
            entry["epoch"]
        );
    }
    Ok(Code::Ok)
}

async fn metrics(file: &Path) -> anyhow::Result<Code> {
    let told = ask_both(file, Question::Metrics)
        .await?
        .into_iter()
        .next()
        .flatten();
    match told {
        Some(Ok(text)) => {
            print!("{text}");
            Ok(Code::Ok)
        }
        _ => Err(Failure::new(Code::Unavailable, "the manager cannot be reached").into()),
    }
}
