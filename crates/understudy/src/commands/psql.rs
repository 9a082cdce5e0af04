//! `understudy psql`: a session on the active, from any node.
//!
//! ```text
//!   this node's server ── its private socket ──────────────────────────────▶ psql takes this process' place
//!   another node's ─┬─ protected channel ── a private socket here ── agent ─▶ its private socket
//!                   └─ without [tls] ────── the network, with a password ──▶ psql takes this process' place
//! ```

use std::os::unix::net::UnixStream as BlockingStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use coordination::address::Address;
use coordination::channel::{ChannelError, Party, Session, open_session};
use coordination::records::{ActiveState, Heartbeat, Member, Record};
use dax::ids::NodeName;
use node::config::Config;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};

use super::registry::Registry;
use crate::cli;
use crate::exit::{Code, Failure};

/// A takeover is over sooner.
const ACTIVE_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The database that exists everywhere.
const DATABASE: &str = "postgres";

/// Opens the session; this process ends with psql.
pub async fn run(args: cli::Psql) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.config).await?;
    let config = registry.postgres()?;
    let mut psql = Command::new(program(config));
    psql.args(&args.arguments);
    for name in ["PGHOSTADDR", "PGSERVICE", "PGTARGETSESSIONATTRS"] {
        psql.env_remove(name);
    }
    psql.env("PGUSER", &config.postgres.superuser);
    if std::env::var_os("PGDATABASE").is_none() {
        psql.env("PGDATABASE", DATABASE);
    }
    let me = Party::new(&config.cluster)?;
    match open(&registry, &me, args.node.as_ref()).await? {
        Way::Socket => replace(psql, &config.paths.run(), config.postgres.port),
        Way::Network(host, port) => {
            eprintln!(
                "understudy: connecting to {host}:{port} over the network, which needs a password (there is no [tls])"
            );
            replace(psql, Path::new(&host), port)
        }
        Way::Agent(first) => {
            let node = args.node;
            Tunnel { registry, me, node }.run(psql, first).await
        }
    }
}

/// psql of the configured installation, else the one that the shell would find.
fn program(config: &Config) -> PathBuf {
    let ours = config.postgres.bin.join("psql");
    match ours.exists() {
        true => ours,
        false => "psql".into(),
    }
}

/// psql in place of this process: signals, terminal and exit code are its own.
fn replace(mut psql: Command, host: &Path, port: u16) -> anyhow::Result<Code> {
    let error = psql
        .env("PGHOST", host)
        .env("PGPORT", port.to_string())
        .exec();
    Err(missing(&error).into())
}

fn missing(error: &std::io::Error) -> Failure {
    Failure::new(Code::Unavailable, format!("psql cannot be run: {error}"))
        .advise("Install PostgreSQL's client programs (Debian: postgresql-client).")
}

/// The node to ask: the one that is named, else the owner of the epoch, once it serves.
async fn find(registry: &Registry, node: Option<&NodeName>) -> anyhow::Result<Option<Member>> {
    let storage = registry.storage.as_ref();
    let wanted = match node {
        Some(name) => name.clone(),
        // A dead node's own record may still say that it is the active.
        None => match Heartbeat::load(storage).await? {
            Some(beat) if beat.state == ActiveState::Serving => beat.node,
            _ => return Ok(None),
        },
    };
    let found = Member::of(storage, &wanted).await?;
    if let (None, Some(name)) = (&found, node) {
        let message = format!("there is no node {name}");
        return Err(Failure::new(Code::Usage, message).into());
    }
    Ok(found)
}

/// How PostgreSQL is reached.
enum Way {
    /// Its private socket, on this machine.
    Socket,
    /// The agent of its node.
    Agent(Session),
    Network(String, u16),
}

/// Looks for a way, also through a takeover.
async fn open(registry: &Registry, me: &Party, node: Option<&NodeName>) -> anyhow::Result<Way> {
    let deadline = tokio::time::Instant::now() + ACTIVE_WITHIN;
    loop {
        let found = find(registry, node).await?;
        let failed = match &found {
            Some(member) => match way(registry.postgres()?, me, member).await {
                Ok(way) => return Ok(way),
                Err(error) => error.into(),
            },
            None => no_active(),
        };
        if tokio::time::Instant::now() > deadline || node.is_some() {
            return Err(failed);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn way(config: &Config, me: &Party, member: &Member) -> Result<Way, ChannelError> {
    let socket = config.paths.socket(config.postgres.port);
    if member.name == config.cluster.name && BlockingStream::connect(socket).is_ok() {
        return Ok(Way::Socket);
    }
    match (&member.postgres, &member.channel, &me.tls) {
        (Address::Tcp { host, port }, Address::Tcp { .. }, None) => {
            Ok(Way::Network(host.clone(), *port))
        }
        _ => Ok(Way::Agent(open_session(&member.channel, me).await?)),
    }
}

fn no_active() -> anyhow::Error {
    let message = format!("no node became the active within {ACTIVE_WITHIN:?}");
    let advice = "understudy status shows what the nodes do.";
    Failure::new(Code::Unavailable, message)
        .advise(advice)
        .into()
}

/// Gives psql a socket of its own, in a directory that only this user can enter.
struct Tunnel {
    registry: Registry,
    me: Party,
    node: Option<NodeName>,
}

impl Tunnel {
    async fn run(self, psql: Command, first: Session) -> anyhow::Result<Code> {
        let directory = tempfile::tempdir().context("cannot make a directory for a socket")?;
        let port = self.registry.postgres()?.postgres.port;
        let place = directory.path().join(format!(".s.PGSQL.{port}"));
        let listener = UnixListener::bind(place).context("cannot make a socket for psql")?;
        // psql gets it too, and cancels its query.
        let _interrupts = signal(SignalKind::interrupt())?;
        let mut psql = tokio::process::Command::from(psql);
        psql.env("PGHOST", directory.path())
            .env("PGPORT", port.to_string());
        let mut child = psql
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| missing(&error))?;
        let status = tokio::select! {
            status = child.wait() => status?,
            never = self.accept(&listener, first) => match never? {},
        };
        drop(directory);
        // As a shell says it of a program that a signal ended.
        std::process::exit(status.code().unwrap_or(128 + 15));
    }

    /// Serves every connection that psql opens: its own, those that cancel a query, and new ones after a takeover.
    async fn accept(
        &self,
        listener: &UnixListener,
        first: Session,
    ) -> anyhow::Result<std::convert::Infallible> {
        let mut next = Some(first);
        loop {
            let (client, _) = listener.accept().await?;
            let way = match next.take() {
                Some(session) => Ok(Way::Agent(session)),
                None => open(&self.registry, &self.me, self.node.as_ref()).await,
            };
            match way {
                Ok(Way::Agent(session)) => {
                    tokio::spawn(carry(session, client));
                }
                Ok(_) => eprintln!("understudy: this node is the active now: start psql again"),
                Err(error) => eprintln!("understudy: no session: {error:#}"),
            }
        }
    }
}

async fn carry(session: Session, client: UnixStream) {
    if let Err(error) = session.serve(client).await {
        tracing::debug!(%error, "a session broke");
    }
}
