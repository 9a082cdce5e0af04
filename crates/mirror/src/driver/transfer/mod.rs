//! A state transfer: the member is made anew as a copy of the other one, at a position of the log.
//!
//! The copy is taken from a snapshot, and the same snapshot says which transactions it has: nobody waits for it. `pg_dump` and
//! `pg_restore` do the work, so the members may be of different versions.
//!
//! Invariant: what the member had goes only when all that shall take its place is on this machine, and never if it is what is copied. It
//! gets another name first ([`room`]), and is dropped, once the copy is whole, only if the log had all of it; an operator decides otherwise.

mod files;
mod roles;
mod room;
mod trust;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::process::Command;

use super::hub::Hub;
use super::rewind::{RewindError, rewind};
use super::rows;
use super::state::{Contents, Tokens, contents, install_with, tokens};
use super::target::Target;
use super::wire::{Postgres, WireError};
use crate::core::ledger::Ledger;
use crate::core::log::Identity;
use crate::core::manager::{Manager, Role, Why};
use crate::core::rows::Lsn;

use files::{Emptied, Files};
use roles::Roles;

pub(super) use room::{is_half_made, kept};

/// What sessions are called.
const NAME: &str = "understudy mirror transfer";
/// Asks whether a manager has looked at the server since that has begun: one that has crashed may have lost what it had executed last.
const ATTENDED: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
    WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted AND a.application_name = 'understudy mirror')";
/// Processes that copy.
const JOBS: &str = "2";
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// After a transfer that failed the next one waits, each time for twice as long, and no longer than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

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
    #[error(
        "the other member belongs to another log than the volume has: let other_member name the other manager's member"
    )]
    OtherLog,
    #[error(
        "a copy would execute as a superuser what clients have defined: {0}; name their owners in trust of [mirror] if they may become \
         superusers of both servers, or let superusers own such functions and tables"
    )]
    Untrusted(String),
    #[error("roles were changed while they were copied")]
    RolesChanged,
    #[error(transparent)]
    Emptied(#[from] Emptied),
    #[error("the other member's server has crashed, or has no manager")]
    Unattended,
    #[error("a server stands still, and does not answer any more")]
    Silent,
}

/// Makes the member anew whenever the log cannot make it current.
pub async fn watch(hub: Arc<Hub>) {
    let mut pause = LOOK_AGAIN * 4;
    let mut filled = None;
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        if filled == Some(hub.look(Manager::life)) {
            // Nobody has looked yet at what it was filled with: its slot may wait for somebody's transaction.
            continue;
        }
        let is_behind = hub.role() == Role::Recovering(Why::Behind);
        let needs = is_behind || hub.replaces.load(Ordering::Acquire) && !hub.role().serves();
        if !needs || !hub.look(|manager| manager.hears_primary()) {
            pause = LOOK_AGAIN * 4;
            continue;
        }
        match rewind_first(&hub).await {
            Returns::Rewound => continue,
            Returns::Later => {
                tokio::time::sleep(pause).await;
                continue;
            }
            Returns::Filled => {}
        }
        hub.is_filling.store(true, Ordering::Release);
        let started = Instant::now();
        match transfer(&hub).await {
            Ok(()) => {
                hub.counters.transfers.fetch_add(1, Ordering::Relaxed);
                let seconds = started.elapsed().as_secs_f64();
                tracing::info!(seconds, "the member was filled from the other one");
                *hub.difference.lock() = None;
                *hub.hindrance.lock() = None;
                *hub.aside_since.lock() = None;
                hub.replaces.store(false, Ordering::Release);
                pause = LOOK_AGAIN * 4;
                filled = Some(hub.look(Manager::life));
            }
            Err(error) => {
                tracing::warn!(%error, "the member cannot be filled from the other one; trying again");
                *hub.hindrance.lock() = Some(format!("the member cannot be filled: {error}"));
                tokio::time::sleep(pause).await;
                // Where tables are truncated all the time, a copy begins between two of those in the end.
                if !matches!(error, TransferError::Emptied(_)) {
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
        hub.is_filling.store(false, Ordering::Release);
        *hub.filling.lock() = None;
    }
}

/// How a member returns that the log cannot make current.
enum Returns {
    Rewound,
    /// It is to be tried again.
    Later,
    Filled,
}

/// Undoes the member's own commits, if that is what it has more than the log.
async fn rewind_first(hub: &Hub) -> Returns {
    let Some(surplus) = hub.capture.surplus.lock().clone() else {
        return Returns::Filled;
    };
    let why = match rewind(hub, surplus).await {
        Ok(()) => {
            hub.counters.rewinds.fetch_add(1, Ordering::Relaxed);
            *hub.hindrance.lock() = None;
            return Returns::Rewound;
        }
        Err(RewindError::Wire(error @ WireError::Lost(_))) => {
            tracing::warn!(%error, "the member's own commits cannot be undone now; trying again");
            *hub.hindrance.lock() = Some(format!("the member cannot be rewound now: {error}"));
            return Returns::Later;
        }
        Err(why) => why,
    };
    tracing::warn!(%why, "the member's own commits cannot be undone: it is replaced, and its database kept");
    hub.capture.surplus.lock().take();
    Returns::Filled
}

async fn transfer(hub: &Hub) -> Result<(), TransferError> {
    tracing::info!("the member is made anew from the other one");
    let own = &hub.member.target;
    let other = hub.config.other_target().map_err(io::Error::other)?;
    // `elsewhere`, because the member's own database is replaced meanwhile.
    let elsewhere = own.elsewhere();
    let directory = match &hub.config.transfers {
        Some(path) => tempfile::tempdir_in(path)?,
        None => tempfile::tempdir()?,
    };
    let dumped = directory.path().join("dump");
    hub.member.forget();
    let since = Instant::now();
    let begins = |step| *hub.filling.lock() = Some((step, since));
    begins("connecting to the other member");
    let patience = Patience::of(hub);
    let mut watch = Postgres::connect(&other, NAME).await?;
    let copying = Box::pin(copy(hub, &other, &elsewhere, &dumped, begins));
    let copied = while_it_answers(&mut watch, patience, copying).await?;
    begins("restoring");
    let mut watch = Postgres::connect(&elsewhere, NAME).await?;
    let restoring = restore(hub, &elsewhere, &dumped, &copied);
    while_it_answers(&mut watch, patience, restoring).await
}

/// What a server is asked meanwhile, so that one that stands still is noticed. Not how far the programs are: an index, or a lock that
/// somebody has, may take them hours in which they say nothing.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// How often it is asked.
    every: Duration,
    /// How long it may take to answer.
    answers: Duration,
}

impl Patience {
    fn of(hub: &Hub) -> Patience {
        Patience {
            every: hub.config.timeout,
            answers: hub.config.timeout * 10,
        }
    }
}

/// Does something for as long as a server answers; `watch` is a session there that nobody uses for anything else.
async fn while_it_answers<T>(
    watch: &mut Postgres,
    patience: Patience,
    doing: impl Future<Output = Result<T, TransferError>>,
) -> Result<T, TransferError> {
    let silence = async {
        loop {
            tokio::time::sleep(patience.every).await;
            match tokio::time::timeout(patience.answers, watch.query("SELECT 1")).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return TransferError::Wire(error),
                Err(_) => return TransferError::Silent,
            }
        }
    };
    tokio::select! {
        done = doing => done,
        error = silence => Err(error),
    }
}

/// What was copied besides the dump.
struct Copied {
    ledger: Ledger,
    tokens: Tokens,
    log: Option<Identity>,
    roles: Roles,
    /// The server that was copied, and up to where the copy has its commits.
    commits: (u64, Lsn),
}

/// Copies the other member to this machine.
async fn copy(
    hub: &Hub,
    other: &Target,
    elsewhere: &Target,
    dumped: &Path,
    begins: impl Fn(&'static str),
) -> Result<Copied, TransferError> {
    let mut source = Postgres::connect(other, NAME).await?;
    must_differ(&mut source, elsewhere).await?;
    source
        .query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .await?;
    let exported = rows::Snapshot::export(other).await?;
    let name = &exported.name;
    source
        .query(&format!("SET TRANSACTION SNAPSHOT '{name}'"))
        .await?;
    let (ledger, log) = match contents(&mut source, None).await? {
        Contents::Known {
            is_diverged: true, ..
        } => return Err(TransferError::Differs),
        Contents::Known { ledger, log, .. } => (ledger, log),
        Contents::Empty { .. } => return Err(TransferError::Empty),
    };
    if source.query(ATTENDED).await?.value().as_deref() != Some("t") {
        return Err(TransferError::Unattended);
    }
    let known = hub.look(Manager::log_of_zones);
    if log.is_some() && known.is_some() && log != known {
        return Err(TransferError::OtherLog);
    }
    let reached = trust::reached(&mut source, &hub.config.trust).await?;
    if !reached.is_empty() {
        return Err(TransferError::Untrusted(reached));
    }
    // Nothing else is done before pg_dump has its locks: nobody may truncate a table until then.
    let files = Files::read(&mut source).await?;
    begins("dumping the other member");
    let snapshot = format!("--snapshot={name}");
    let dump = dump(hub, other, dumped, &snapshot);
    let rest = async {
        let tokens = tokens(&mut source).await?;
        Ok((tokens, Roles::read(hub, other, &mut source).await?))
    };
    let dump = files.hold((other, NAME), dumped, dump);
    let ((), (tokens, roles)) = tokio::try_join!(dump, rest)?;
    begins("waiting for the log");
    rows::has_logged(other, exported.commits.1).await?;
    Ok(Copied {
        ledger,
        tokens,
        log,
        roles,
        commits: exported.commits,
    })
}

/// Puts what was copied in the member's place.
async fn restore(
    hub: &Hub,
    elsewhere: &Target,
    dumped: &Path,
    copied: &Copied,
) -> Result<(), TransferError> {
    let own = &hub.member.target;
    copied.roles.make(hub, elsewhere).await?;
    let is_kept = hub.replaces.load(Ordering::Acquire);
    let mut session = Postgres::connect(elsewhere, NAME).await?;
    room::make(&mut session, &own.database, is_kept).await?;
    let path = dumped.display().to_string();
    // With the database's owner, privileges, settings and locale.
    let list = contents_list(hub, elsewhere, dumped).await?;
    let list = list.path().display().to_string();
    let arguments = [
        "--exit-on-error",
        "--create",
        "-L",
        &list,
        "-j",
        JOBS,
        "-d",
        &elsewhere.database,
        &path,
    ];
    program(hub, "pg_restore", elsewhere, &arguments).await?;
    // Nothing is theirs any more.
    copied.roles.end_others(hub, elsewhere).await?;
    let mut session = Postgres::connect(elsewhere, NAME).await?;
    let before = room::before(&mut session, &own.database).await?;
    finish(own, copied).await?;
    Ok(room::drop_explained(&mut session, before).await?)
}

/// The server that is copied is not the one that is made anew, whatever their addresses are: its session cannot be seen there.
async fn must_differ(source: &mut Postgres, elsewhere: &Target) -> Result<(), TransferError> {
    let key = RandomState::new().hash_one(Instant::now());
    let name = format!("{NAME} {key:x}");
    source
        .query(&format!("SET application_name = '{name}'"))
        .await?;
    let mut session = Postgres::connect(elsewhere, NAME).await?;
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

/// List of a dump's contents that are restored: all but those that the mirror itself has made, and makes again.
async fn contents_list(
    hub: &Hub,
    target: &Target,
    dumped: &Path,
) -> Result<tempfile::NamedTempFile, TransferError> {
    let path = dumped.display().to_string();
    let listed = program(hub, "pg_restore", target, &["-l", "--create", &path]).await?;
    let is_own = |line: &str| {
        let is_kind = line.contains(" EVENT TRIGGER ") || line.contains(" PUBLICATION ");
        is_kind && line.contains(&format!(" {}", rows::NAME))
    };
    let kept: Vec<&str> = listed.lines().filter(|line| !is_own(line)).collect();
    let list = tempfile::NamedTempFile::new_in(dumped)?;
    std::fs::write(list.path(), kept.join("\n"))?;
    Ok(list)
}

async fn finish(own: &Target, copied: &Copied) -> Result<(), TransferError> {
    let mut session = Postgres::connect(own, NAME).await?;
    session.query("ANALYZE").await?;
    let (ledger, tokens) = (&copied.ledger, &copied.tokens);
    let (system, up_to) = copied.commits;
    let more = format!(
        "{}{}",
        room::is_made(&own.database),
        rows::note_copied(system, up_to)
    );
    install_with(&mut session, ledger, tokens, copied.log, &more).await?;
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
        // Nobody confirms commits of a database that is being made.
        .env("PGOPTIONS", "-c synchronous_commit=local")
        .env("PGAPPNAME", NAME)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::wire::Wire;
    use proxy::driver::socket::Socket;
    use tokio::net::{TcpListener, TcpStream};

    /// It was waited for until the network gave the connection up, for hours or for ever.
    // hazard: MIRROR-17
    #[tokio::test]
    async fn a_server_that_stands_still_ends_what_is_done_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("it listens");
        let address = listener.local_addr().expect("it has one");
        let stream = TcpStream::connect(address).await.expect("let in");
        // Nobody reads what it is asked.
        let _other = listener.accept().await.expect("it came");
        let mut watch = Postgres {
            wire: Wire::new(Socket::Tcp(stream)),
        };
        let patience = Patience {
            every: Duration::from_millis(20),
            answers: Duration::from_millis(300),
        };
        let done = while_it_answers(&mut watch, patience, std::future::ready(Ok(5))).await;
        assert_eq!(done.expect("nothing has ended it"), 5);
        let never = std::future::pending::<Result<(), TransferError>>();
        let ended = while_it_answers(&mut watch, patience, never).await;
        assert!(matches!(ended, Err(TransferError::Silent)));
    }
}
