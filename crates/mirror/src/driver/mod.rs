//! What does what the core decides: sockets, tasks, clocks, programs.

mod advice;
mod answer;
mod apply;
mod apply_rows;
mod aside;
mod capture;
mod check;
mod command;
pub mod config;
mod counters;
mod definitions;
mod deputy;
mod epoch;
mod hub;
mod jobs;
mod level;
mod member;
mod net;
mod page;
pub mod peer;
mod ready;
mod resolve;
mod rest;
mod rewind;
mod rows;
mod sequences;
mod session;
mod state;
mod statements;
mod tables;
pub mod target;
mod transfer;
pub mod upgrade;
mod verified;
mod verify;
mod version;
mod waits;
mod wire;
mod zones;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dax::ids::NodeName;
use dax::tls::Tls;
use proxy::driver::socket::Socket;
use tokio::net::TcpListener;

use config::{Config, ConfigError};
use hub::{Hub, Protection};
use member::Member;
use state::Contents;
use wire::{Postgres, WireError};
use zones::Zones;

use crate::core::ledger::Ledger;

pub use check::{Checked, Finding, Level, check};
pub use command::Status;
pub use resolve::{Resolved, resolve};
pub use verify::Verdict;
pub use zones::Open;

/// How often the member is asked whether it is well.
const PING_EVERY: Duration = Duration::from_millis(300);
/// How long it may take to answer.
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the only member may take to answer: nobody takes over for it, so its clients are better off waiting.
const SINGLE_PING_TIMEOUT: Duration = Duration::from_secs(30);
/// How long sessions may take to leave when the process is asked to end.
const ENDING: Duration = Duration::from_secs(5);
/// How often the member's disk is asked to have everything, in pings: the log is kept until then.
const SAVE_EVERY: u32 = 3;
/// How often numbers that everybody has are forgotten, in pings.
const PRUNE_EVERY: u32 = 21;

/// Why a manager cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address cannot be listened at.
    #[error("cannot listen at {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The certificate for clients cannot be used.
    #[error(transparent)]
    Certificate(#[from] dax::Error),
    /// Clients of the manager would get in under any name, without a proof.
    #[error("{UNPROVED}")]
    Unproved,
    /// The system has no randomness.
    #[error("no random number can be had: {0}")]
    Random(String),
}

const UNPROVED: &str = "the member lets the manager in as anybody, without a proof: let its pg_hba.conf ask the manager's address for \
    scram-sha-256, for all roles but the manager's own, or set clients_need_no_proof in [mirror] if everybody who reaches the manager may \
    be a superuser";

/// Fails if the member asks nobody who comes from here for a proof, unless the operator wants none.
async fn must_ask(config: &Config, target: &target::Target) -> std::io::Result<()> {
    let is_open = !config.clients_need_no_proof
        && wire::asks_nobody(target)
            .await
            .map_err(std::io::Error::other)?;
    match is_open {
        true => Err(std::io::Error::other(UNPROVED)),
        false => Ok(()),
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, RunError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| RunError::Listen { address, source })
}

/// Runs a manager until `shutdown` is done; a primary then hands over, if somebody can take over.
///
/// # Errors
/// If it cannot begin.
pub async fn run(
    config: Config,
    name: NodeName,
    opener: Box<dyn Open>,
    tls: Option<Tls>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    config.check_protected(tls.is_some())?;
    // One that does not answer is asked again before it is used.
    let target = config.target()?;
    if let Err(error) = must_ask(&config, &target).await
        && error.to_string() == UNPROVED
    {
        return Err(RunError::Unproved);
    }
    let clients = bind(config.listen).await?;
    let peers = bind(config.peer_listen).await?;
    let checks = match config.rest {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let member = Arc::new(Member::new(
        config.target()?,
        config.appliers,
        config.managers()?,
    ));
    let zones = Arc::new(Zones::new(opener, name.clone()));
    let protection = Protection {
        peers: tls,
        clients: config.tls.as_ref().map(|tls| tls.load()).transpose()?,
        secret: protocol::scram::nonce().map_err(|error| RunError::Random(error.to_string()))?,
    };
    let (hub, jobs) = Hub::new(config, name.to_string(), zones, member, protection);
    tokio::spawn(jobs::work(hub.clone(), jobs));
    tokio::spawn(tick(hub.clone()));
    tokio::spawn(watch_member(hub.clone()));
    tokio::spawn(transfer::watch(hub.clone()));
    if !hub.config.single {
        tokio::spawn(capture::watch(hub.clone()));
        tokio::spawn(waits::watch(hub.clone()));
        tokio::spawn(verify::watch(hub.clone()));
    }
    tokio::spawn(peer::listen(hub.clone(), peers));
    if let Some(checks) = checks {
        tokio::spawn(rest::serve(hub.clone(), checks));
    }
    if hub.config.first && !hub.config.single {
        tokio::spawn(peer::dial(hub.clone()));
    }
    tracing::info!(address = %hub.config.listen, "the manager listens");
    let accepting = accept(hub.clone(), clients);
    tokio::select! {
        () = accepting => {}
        () = shutdown => {}
    }
    hub.ending.send_replace(true);
    if hub.look(|manager| manager.follower().is_some_and(|(_, is_standby)| is_standby)) {
        // Whether or not it succeeds, the manager ends.
        let _ = command::answer(&hub, peer::Question::Switchover).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Sessions of the other manager go back there, and what they do elsewhere ends.
    let deadline = tokio::time::Instant::now() + ENDING;
    let has_clients = || hub.counters.clients.load(Ordering::Relaxed) > 0;
    while hub.serving().borrow().is_none()
        && has_clients()
        && tokio::time::Instant::now() < deadline
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn accept(hub: Arc<Hub>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Latency is all that Nagle's algorithm would bring.
                let _ = stream.set_nodelay(true);
                tokio::spawn(session::receive(hub.clone(), Socket::Tcp(stream), peer));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Lets the manager see that time passes.
async fn tick(hub: Arc<Hub>) {
    let every = (hub.config.lease / 4).max(Duration::from_millis(5));
    loop {
        tokio::time::sleep(every).await;
        hub.act(|manager, out| manager.tick(out));
    }
}

/// Tells the manager how its member is.
async fn watch_member(hub: Arc<Hub>) {
    let mut is_up = false;
    loop {
        if !hub.is_filling.load(Ordering::Acquire) {
            match attend(&hub, &mut is_up).await {
                Ok(()) => {}
                Err(error) if is_up => {
                    tracing::warn!(%error, "the member does not answer any more")
                }
                Err(error) => {
                    tracing::debug!(%error, "the member does not answer");
                    let why = match error {
                        WireError::Lost(error) => error.to_string(),
                        said => said.to_string(),
                    };
                    *hub.hindrance.lock() = Some(format!("the member cannot be used: {why}"));
                }
            }
            if std::mem::take(&mut is_up) {
                hub.member.forget();
                hub.act(|manager, out| manager.member_down(out));
            }
        }
        tokio::time::sleep(PING_EVERY).await;
    }
}

/// Stays with the only member for as long as it answers.
async fn attend_single(hub: &Hub, is_up: &mut bool) -> Result<(), WireError> {
    let mut session = Postgres::find(&hub.member.target, "understudy mirror").await?;
    version::learn(hub).await;
    let key = member::hold(&mut session).await?;
    let is_mirrored = state::is_of_mirror(&mut session).await?;
    hub.act(|manager, out| {
        manager.single_up(is_mirrored, out);
        hub.member.begin(manager.life(), key);
    });
    *is_up = true;
    hub.hindrance.lock().take();
    loop {
        tokio::time::sleep(PING_EVERY).await;
        let answered = tokio::time::timeout(SINGLE_PING_TIMEOUT, session.query("SELECT 1")).await;
        answered.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    }
}

/// Looks at what the member has, and stays with it for as long as it answers.
async fn attend(hub: &Hub, is_up: &mut bool) -> Result<(), WireError> {
    must_ask(&hub.config, &hub.member.target).await?;
    if hub.config.single {
        return attend_single(hub, is_up).await;
    }
    let is_new = hub.config.first && hub.zones.is_new().await.unwrap_or(false);
    let new = is_new.then(jobs::unused_identity).transpose()?;
    let found = Postgres::find(&hub.member.target, "understudy mirror").await;
    version::learn(hub).await;
    let mut session = match found {
        // A server that was made anew has not even the database. What the mirror begins with must have it.
        Err(WireError::Server(said)) if said.code == wire::NO_SUCH_DATABASE && !is_new => {
            hub.act(|manager, _| manager.member_empty(false));
            return Ok(());
        }
        connected => connected?,
    };
    *hub.kept.lock() = transfer::kept(&mut session, &hub.member.target).await?;
    if transfer::is_half_made(&mut session, &hub.member.target).await? {
        hub.act(|manager, _| manager.member_empty(false));
        return Ok(());
    }
    let key = member::hold(&mut session).await?;
    state::renew(&mut session).await?;
    let mut contents = state::contents(&mut session, new).await?;
    if hub.capture.forget() {
        // The stream says again what is to be undone.
        hub.replaces.store(false, Ordering::Release);
    }
    let mut prepared = None;
    if matches!(contents, Contents::Known { .. }) {
        prepared = rows::prepare(&mut session, &hub.member.managers).await?;
        if prepared.is_none() {
            hub.act(|manager, _| manager.member_empty(false));
            hub.has_no_slot();
            return Ok(());
        }
        // Sessions that have ended only now may have executed more.
        contents = state::contents(&mut session, None).await?;
    }
    let own = prepared
        .as_ref()
        .and_then(|one| one.has.first())
        .map(|(system, _)| *system);
    let life = match contents {
        Contents::Known {
            ledger,
            saved,
            is_diverged,
            log,
            difference,
        } => {
            if let Some((difference, since)) = difference.filter(|_| is_diverged) {
                *hub.difference.lock() = Some(difference);
                *hub.aside_since.lock() = Some(since);
            }
            tracing::info!(transaction = %ledger.floor(), is_diverged, "the member answers");
            hub.act(|manager, out| {
                manager.member_up(ledger, saved, is_diverged, log);
                if let Some(prepared) = prepared {
                    manager.member_has(prepared.has);
                    let (system, up_to) = prepared.settled;
                    manager.settled(system, up_to);
                    *hub.capture.began.lock() = Some(prepared.began);
                }
                hub.member.begin(manager.life(), key);
                hub.capture.begin(manager.life());
                if !manager.role().serves() {
                    // What the other manager has said until now is about what the member was before.
                    peer::drop_link(hub, manager, out, |_| true);
                }
                manager.life()
            })
        }
        Contents::Empty { is_occupied } => {
            hub.act(|manager, _| manager.member_empty(is_occupied));
            return Ok(());
        }
    };
    *is_up = true;
    hub.hindrance.lock().take();
    let mut pings: u32 = 0;
    let mut memory = state::Memory::default();
    while !hub.is_filling.load(Ordering::Acquire) {
        tokio::time::sleep(PING_EVERY).await;
        pings = pings.wrapping_add(1);
        let (floor, log) = hub.look(|manager| (manager.ledger().map(Ledger::floor), manager.log()));
        let logged = own.map(|own| hub.look(|manager| manager.logged_of(own)));
        let logged = logged.map(rows::note_logged).unwrap_or_default();
        let saves = floor.filter(|_| pings.is_multiple_of(SAVE_EVERY));
        let asked = async {
            match saves {
                Some(floor) => state::save(&mut session, floor, log, &logged).await?,
                None => rows::must_wait_for_manager(&mut session).await?,
            }
            match floor.filter(|_| pings.is_multiple_of(PRUNE_EVERY)) {
                Some(floor) => {
                    let oldest = memory.forgets(Instant::now(), floor);
                    state::prune(&mut session, oldest).await
                }
                None => Ok(()),
            }
        };
        let answered = tokio::time::timeout(PING_TIMEOUT, asked).await;
        answered.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
        if let Some(floor) = saves {
            hub.act(|manager, out| manager.saved(life, floor, out));
        }
    }
    Ok(())
}
