//! The agent of a node that hosts a server: it does what the state of the [machine](crate::machine) asks for, one
//! state after the other, and tells what happened.
//!
//! Invariant: what one life holds (server, mount, handle to the volume) is gone before the next one begins, the
//! server before its mount.

mod admission;
mod board;
mod claim;
mod driver;
mod life;
mod membership;
pub(crate) mod opened;
mod watch;

use std::io;
use std::sync::Arc;

use coordination::channel::{Party, Server};
use coordination::records::{Control, EngineFacts};
use coordination::tier;
use dax::storage::Storage;
use nix::unistd::{Gid, Uid};
use parking_lot::Mutex;
use supervise::logfile::{Rotation, keep_rotating};
use supervise::{RunAs, leftovers};
use tokio::sync::mpsc;
use volume::view::Ownership;

pub use self::board::Board;
use self::board::Order;
pub(crate) use self::driver::Driver;
use self::life::Life;
use self::membership::Membership;
use crate::config::Config;
use crate::error::{EngineError, Result};
use crate::machine::{Event, Limits, Machine, State};
use crate::recipe::Recipe;
use crate::server::identity;

/// What all lives of an agent share.
pub(crate) struct Context {
    pub config: Config,
    pub party: Party,
    pub recipe: Recipe,
    pub run_as: Option<RunAs>,
    /// What the volume says of its database, as it was read last.
    pub facts: Mutex<EngineFacts>,
    pub server: Server,
    pub driver: Arc<Driver>,
    /// A handle that never owns an epoch.
    pub registry: Arc<dyn Storage>,
    /// What operators want of the cluster, as it was read last.
    pub control: Mutex<Control>,
    pub board: Arc<Board>,
}

/// An agent that listens for requests and does not host anything yet.
pub struct Agent {
    config: Config,
    party: Party,
    server: Server,
    driver: Arc<Driver>,
    board: Arc<Board>,
    orders: mpsc::Receiver<Order>,
    run_as: Option<RunAs>,
    _lock: supervise::Lock,
}

impl Agent {
    /// Checks this machine, becomes the only agent of the node's directory, cleans up after one that was killed, and
    /// listens.
    ///
    /// # Errors
    /// What keeps the node from starting; says what to change.
    pub async fn prepare(config: Config) -> Result<Agent> {
        let run_as = RunAs::resolve(&config.engine.run_as)?;
        let lock = prepare_directory(&config, run_as.as_ref())?;
        mount::detach_stale(&config.paths.mount())?;
        let name = config.cluster.name.clone();
        let driver = Arc::new(Driver::new(Machine::new(
            name,
            config.tags.nofailover,
            Limits::default(),
        )));
        let (board, orders) = Board::new(Arc::clone(&driver));
        let party = Party::new(&config.cluster)?;
        let server = Server::bind(&config.channel.listen, party.clone(), board.clone()).await?;
        Ok(Agent {
            config,
            party,
            server,
            driver,
            board,
            orders,
            run_as,
            _lock: lock,
        })
    }

    /// Who this agent is, for its HTTP interface.
    pub fn party(&self) -> Party {
        self.party.clone()
    }

    /// What answers requests, for its HTTP interface.
    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Runs until `shutdown` resolves, or until it is clear that this machine cannot host the server.
    ///
    /// # Errors
    /// What keeps it from running at all. Later failures are logged, and the node tries again.
    pub async fn run(mut self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let stopping = Arc::clone(&self.driver);
        tokio::spawn(async move {
            shutdown.await;
            stopping.tell(Event::Stop);
        });
        let registry = tokio::select! {
            connected = tier::connect(&self.config.cluster, self.config.cluster.name.as_str()) => connected?,
            () = self.driver.until(|state| state == State::Stopping) => return Ok(()),
        };
        let facts = admission::load_facts(&self.config, registry.as_ref()).await?;
        let recipe = self
            .config
            .recipe(registry.settings().block_size_bytes, "root")?;
        admission::check(&facts, &recipe).await?;
        for warning in &recipe.warnings {
            tracing::warn!("{warning}");
        }
        leftovers::clean(
            &self.config.paths.run(),
            &identity(&recipe, &self.config.paths),
        )?;
        let rotation = Rotation {
            bytes: self.config.engine.log_size.0,
            kept: self.config.engine.log_kept,
        };
        let rotating = tokio::spawn(keep_rotating(self.config.paths.log(), rotation));
        let context = Arc::new(Context {
            config: self.config,
            party: self.party,
            recipe,
            run_as: self.run_as,
            facts: Mutex::new(facts),
            server: self.server,
            driver: self.driver,
            registry,
            control: Mutex::default(),
            board: self.board,
        });
        let membership = Membership::start(Arc::clone(&context));
        coordination::service::ready();
        let ended = live(&context, &mut self.orders).await;
        membership.end(&context).await;
        rotating.abort();
        ended
    }
}

/// Does what the state asks for until the node has stopped.
async fn live(context: &Context, orders: &mut mpsc::Receiver<Order>) -> Result<()> {
    let mut life = Life::default();
    let mut last = None;
    while context.driver.state() != State::Stopped {
        let Err(error) = life.step(context, orders).await else {
            continue;
        };
        let failure = driver::failure(&error);
        if failure.superseded {
            tracing::info!(%error, "another node owns the volume now");
        }
        let hopeless = failure.of_this_machine;
        context.driver.tell(Event::Failed(failure));
        // The one that keeps it from running at all is what the caller hears.
        if hopeless && context.driver.state() == State::Stopping && last.is_none() {
            last = Some(error);
        }
    }
    last.map_or(Ok(()), Err)
}

pub(crate) fn prepare_directory(
    config: &Config,
    run_as: Option<&RunAs>,
) -> Result<supervise::Lock> {
    let paths = &config.paths;
    let failed = |e| EngineError::system(format!("cannot use {}", paths.base().display()), e);
    supervise::directory::make(paths.base(), 0o755).map_err(failed)?;
    let lock = supervise::Lock::take(paths.base()).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => EngineError::Machine(format!(
            "another agent runs on {}; stop it first, or give this one another \"data\"",
            paths.base().display()
        )),
        _ => failed(e),
    })?;
    for (path, mode) in [(paths.private(), 0o700), (paths.run(), 0o755)] {
        supervise::directory::make(&path, mode).map_err(failed)?;
    }
    if let Some(user) = run_as {
        let (uid, gid) = user.owner();
        nix::unistd::chown(&paths.run(), Some(uid), Some(gid)).map_err(|e| failed(e.into()))?;
    }
    match std::fs::create_dir(paths.mount()) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(failed(e)),
        _ => Ok(lock),
    }
}

pub(crate) fn ownership(run_as: Option<&RunAs>) -> Ownership {
    let (uid, gid) = run_as.map_or((Uid::effective(), Gid::effective()), RunAs::owner);
    Ownership {
        mode: 0o700,
        uid: uid.as_raw(),
        gid: gid.as_raw(),
    }
}
