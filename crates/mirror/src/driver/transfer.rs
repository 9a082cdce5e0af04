//! A state transfer: the member is made anew as a copy of the other one, at a position of the log.
//!
//! The copy is taken from a snapshot, and the same snapshot says which transactions it has: nobody waits for it. `pg_dump` and
//! `pg_restore` do the work, so the members may be of different versions.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use proxy::core::settings::quote_identifier;
use tokio::process::Command;

use super::config::Target;
use super::hub::Hub;
use super::member::{Contents, contents, install_with};
use super::wire::{Postgres, WireError};
use crate::core::ledger::Ledger;
use crate::core::manager::{Role, Why};

/// Processes that copy.
const JOBS: &str = "2";
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Why a transfer failed; it is tried again.
#[derive(Debug, thiserror::Error)]
enum TransferError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0} failed: {1}")]
    Program(&'static str, String),
    #[error("the other member has nothing to be copied")]
    Empty,
}

/// Makes the member anew whenever the log cannot make it current.
pub async fn watch(hub: Arc<Hub>) {
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        let needs = matches!(hub.role(), Role::Recovering(Why::Behind | Why::Diverged));
        if !needs || !hub.look(|manager| manager.hears_primary()) {
            continue;
        }
        hub.is_filling.store(true, Ordering::Release);
        let started = Instant::now();
        match transfer(&hub).await {
            Ok(()) => {
                hub.counters.transfers.fetch_add(1, Ordering::Relaxed);
                let seconds = started.elapsed().as_secs_f64();
                tracing::info!(seconds, "the member was filled from the other one");
                *hub.difference.lock() = None;
            }
            Err(error) => {
                tracing::warn!(%error, "the member cannot be filled from the other one; trying again");
                tokio::time::sleep(LOOK_AGAIN * 4).await;
            }
        }
        hub.is_filling.store(false, Ordering::Release);
        *hub.filling.lock() = None;
    }
}

async fn transfer(hub: &Hub) -> Result<(), TransferError> {
    let own = &hub.member.target;
    let other = hub.config.other_target().map_err(io::Error::other)?;
    tracing::info!("the member is made anew from the other one");
    let since = Instant::now();
    let begins = |step| *hub.filling.lock() = Some((step, since));
    begins("copying roles");
    hub.member.forget();
    let mut source = Postgres::connect(&other, "understudy mirror transfer").await?;
    source
        .query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .await?;
    let exported = source
        .query("SELECT pg_catalog.pg_export_snapshot()")
        .await?;
    let snapshot = exported.value().unwrap_or_default();
    let ledger = match contents(&mut source, false).await? {
        Contents::Known { ledger, .. } => ledger,
        Contents::Empty => return Err(TransferError::Empty),
    };
    let directory = tempfile::tempdir()?;
    let dumped = directory.path().join("dump");
    let roles = program(
        hub,
        "pg_dumpall",
        &other,
        &["--roles-only", "--no-role-passwords"],
    )
    .await?;
    let roles_with = program(hub, "pg_dumpall", &other, &["--roles-only"])
        .await
        .unwrap_or(roles);
    remake(own).await?;
    // Roles that are there stay as they are.
    let _ = feed(hub, "psql", own, &["-X", "-q"], &roles_with).await;
    let snapshot = format!("--snapshot={snapshot}");
    begins("dumping the other member");
    dump(hub, &other, &dumped, &snapshot).await?;
    begins("restoring");
    let path = dumped.display().to_string();
    program(
        hub,
        "pg_restore",
        own,
        &["--exit-on-error", "-j", JOBS, "-d", &own.database, &path],
    )
    .await?;
    finish(own, &ledger).await?;
    Ok(())
}

async fn dump(hub: &Hub, other: &Target, to: &Path, snapshot: &str) -> Result<(), TransferError> {
    let path = to.display().to_string();
    let arguments = [
        "-Fd",
        "-j",
        JOBS,
        "--exclude-schema=understudy_mirror",
        snapshot,
        "-f",
        &path,
    ];
    program(hub, "pg_dump", other, &arguments).await?;
    Ok(())
}

/// Makes the database anew.
async fn remake(own: &Target) -> Result<(), TransferError> {
    let elsewhere = Target {
        database: "template1".to_owned(),
        ..own.clone()
    };
    let mut session = Postgres::connect(&elsewhere, "understudy mirror transfer").await?;
    let name = quote_identifier(&own.database);
    session
        .query(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        .await?;
    session
        .query(&format!("CREATE DATABASE {name} TEMPLATE template0"))
        .await?;
    Ok(())
}

async fn finish(own: &Target, ledger: &Ledger) -> Result<(), TransferError> {
    let mut session = Postgres::connect(own, "understudy mirror transfer").await?;
    session.query("ANALYZE").await?;
    install_with(&mut session, ledger).await?;
    Ok(())
}

fn command(hub: &Hub, name: &str, target: &Target, arguments: &[&str]) -> Command {
    let program = hub
        .config
        .bin
        .as_ref()
        .map_or_else(|| name.into(), |bin| bin.join(name));
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(target.environment())
        .kill_on_drop(true);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

async fn program(
    hub: &Hub,
    name: &'static str,
    target: &Target,
    arguments: &[&str],
) -> Result<String, TransferError> {
    let output = command(hub, name, target, arguments).output().await?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(TransferError::Program(name, said));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

async fn feed(
    hub: &Hub,
    name: &'static str,
    target: &Target,
    arguments: &[&str],
    text: &str,
) -> Result<(), TransferError> {
    use tokio::io::AsyncWriteExt;
    let mut child = command(hub, name, target, arguments)
        .stdin(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(text.as_bytes()).await?;
    }
    child.wait_with_output().await?;
    Ok(())
}
