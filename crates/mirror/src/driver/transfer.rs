//! A state transfer: the member is made anew as a copy of the other one, at a position of the log.
//!
//! The copy is taken from a snapshot, and the same snapshot says which transactions it has: nobody waits for it. `pg_dump` and
//! `pg_restore` do the work, so the members may be of different versions.
//!
//! Invariant: what the member had is dropped only when all that shall take its place is on this machine, and never if it is what is
//! copied.

use std::hash::{BuildHasher, RandomState};
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
use super::member::{Contents, Tokens, contents, install_with, tokens};
use super::wire::{Postgres, WireError};
use crate::core::ledger::Ledger;
use crate::core::manager::{Role, Why};

/// The database that is used while the member's own is made anew.
const ELSEWHERE: &str = "template1";
/// Processes that copy.
const JOBS: &str = "2";
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// After a transfer that failed the next one waits, each time for twice as long, and no longer than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// What roles there are, as a short sum of it.
const ROLES: &str = "SELECT pg_catalog.md5( \
    coalesce((SELECT pg_catalog.string_agg(r::text, '|' ORDER BY r.oid) FROM pg_catalog.pg_roles r), '') || \
    coalesce((SELECT pg_catalog.string_agg(m::text, '|' ORDER BY m::text) FROM pg_catalog.pg_auth_members m), ''))";

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
    #[error(
        "the other member is one that differs, and is not copied: it has to be made anew itself"
    )]
    Differs,
    #[error(
        "member and other_member are the same server: let them name two, or it would be dropped"
    )]
    Same,
    #[error("roles were changed while they were copied")]
    RolesChanged,
}

/// Makes the member anew whenever the log cannot make it current.
pub async fn watch(hub: Arc<Hub>) {
    let mut pause = LOOK_AGAIN * 4;
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        let needs = matches!(hub.role(), Role::Recovering(Why::Behind | Why::Diverged));
        if !needs || !hub.look(|manager| manager.hears_primary()) {
            pause = LOOK_AGAIN * 4;
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
                pause = LOOK_AGAIN * 4;
            }
            Err(error) => {
                tracing::warn!(%error, "the member cannot be filled from the other one; trying again");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
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
    must_differ(&mut source, own).await?;
    source
        .query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .await?;
    let exported = source
        .query("SELECT pg_catalog.pg_export_snapshot()")
        .await?;
    let snapshot = exported.value().unwrap_or_default();
    let ledger = match contents(&mut source, false).await? {
        Contents::Known {
            is_diverged: true, ..
        } => return Err(TransferError::Differs),
        Contents::Known { ledger, .. } => ledger,
        Contents::Empty => return Err(TransferError::Empty),
    };
    let tokens = tokens(&mut source).await?;
    let of_snapshot = source.query(ROLES).await?.value();
    let directory = match &hub.config.transfers {
        Some(path) => tempfile::tempdir_in(path)?,
        None => tempfile::tempdir()?,
    };
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
    // They are not of the snapshot: what the log is going to change must not be there already.
    let mut roles_now = Postgres::connect(&other, "understudy mirror transfer").await?;
    if roles_now.query(ROLES).await?.value() != of_snapshot {
        return Err(TransferError::RolesChanged);
    }
    let snapshot = format!("--snapshot={snapshot}");
    begins("dumping the other member");
    dump(hub, &other, &dumped, &snapshot).await?;
    begins("restoring");
    let elsewhere = Target {
        database: ELSEWHERE.to_owned(),
        ..own.clone()
    };
    let roles = without(&own.user, &roles_with);
    // Roles that are there already cannot be made; what they are is set in any case.
    let _ = feed(hub, "psql", &elsewhere, &["-X", "-q"], &roles).await;
    drop_database(&elsewhere, &own.database).await?;
    let path = dumped.display().to_string();
    // With the database's owner, privileges, settings and locale.
    let arguments = [
        "--exit-on-error",
        "--create",
        "-j",
        JOBS,
        "-d",
        ELSEWHERE,
        &path,
    ];
    program(hub, "pg_restore", &elsewhere, &arguments).await?;
    finish(own, &ledger, &tokens).await?;
    Ok(())
}

/// The server that is copied is not the one that is made anew, whatever their addresses are: its session cannot be seen there.
async fn must_differ(source: &mut Postgres, own: &Target) -> Result<(), TransferError> {
    let key = RandomState::new().hash_one(Instant::now());
    let name = format!("understudy mirror transfer {key:x}");
    source
        .query(&format!("SET application_name = '{name}'"))
        .await?;
    let elsewhere = Target {
        database: ELSEWHERE.to_owned(),
        ..own.clone()
    };
    let mut session = Postgres::connect(&elsewhere, "understudy mirror transfer").await?;
    let seen = session
        .query(&format!(
            "SELECT FROM pg_catalog.pg_stat_activity WHERE application_name = '{name}'"
        ))
        .await?;
    match seen.rows().is_empty() {
        true => Ok(()),
        false => Err(TransferError::Same),
    }
}

/// What `pg_dumpall` says of roles, without what would change the one that the manager itself logs in as.
fn without(user: &str, roles: &str) -> String {
    let names = [user.to_owned(), quote_identifier(user)];
    let concerns = |line: &&str| {
        let rest = line
            .strip_prefix("CREATE ROLE ")
            .or_else(|| line.strip_prefix("ALTER ROLE "));
        let rest = rest.map(|rest| rest.trim_end_matches(';'));
        rest.is_some_and(|rest| {
            names.iter().any(|name| {
                let after = rest.strip_prefix(name.as_str());
                after.is_some_and(|after| after.is_empty() || after.starts_with(" WITH "))
            })
        })
    };
    let kept: Vec<&str> = roles.lines().filter(|line| !concerns(line)).collect();
    kept.join("\n") + "\n"
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

/// Drops a database, and whoever uses it.
async fn drop_database(elsewhere: &Target, name: &str) -> Result<(), TransferError> {
    let mut session = Postgres::connect(elsewhere, "understudy mirror transfer").await?;
    let name = quote_identifier(name);
    session
        .query(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        .await?;
    Ok(())
}

async fn finish(own: &Target, ledger: &Ledger, tokens: &Tokens) -> Result<(), TransferError> {
    let mut session = Postgres::connect(own, "understudy mirror transfer").await?;
    session.query("ANALYZE").await?;
    install_with(&mut session, ledger, tokens).await?;
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
    let input = child.stdin.take();
    let feeding = async {
        match input {
            Some(mut input) => input.write_all(text.as_bytes()).await,
            None => Ok(()),
        }
    };
    // What it says meanwhile is read: it may be more than a pipe holds.
    let (fed, ended) = tokio::join!(feeding, child.wait_with_output());
    fed?;
    ended?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The manager was locked out of its own member, because the other one's superuser had another password.
    #[test]
    fn the_role_that_the_manager_logs_in_as_is_left_as_it_is() {
        let roles = "CREATE ROLE postgres;\nALTER ROLE postgres WITH SUPERUSER PASSWORD 'x';\n\
            CREATE ROLE postgres2;\nALTER ROLE postgres2 WITH LOGIN;\nCREATE ROLE \"Or der\";\n\
            ALTER ROLE postgres SET work_mem TO '1MB';\nGRANT postgres2 TO postgres;\n";
        let kept = "CREATE ROLE postgres2;\nALTER ROLE postgres2 WITH LOGIN;\nCREATE ROLE \"Or der\";\n\
            ALTER ROLE postgres SET work_mem TO '1MB';\nGRANT postgres2 TO postgres;\n";
        assert_eq!(without("postgres", roles), kept);
        assert_eq!(
            without("Or der", roles),
            roles.replace("CREATE ROLE \"Or der\";\n", "")
        );
    }
}
