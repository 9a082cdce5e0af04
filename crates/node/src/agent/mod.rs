//! The agent: it does what the node's state asks for, one state after the other.
//!
//! [`machine`](crate::machine) decides what the node is; [`roles`] has the work of each state; the
//! [`driver`] stands between them. Whatever goes wrong is told to the machine as well, which tries again
//! from the beginning. What all lives share is in [`context`]; what is thought of a silent active is in
//! [`detector`](coordination::detector).

pub(crate) mod active;
mod asking;
mod backpressure;
mod beneath;
mod branches;
mod candidates;
mod claims;
pub(crate) mod context;
mod control;
mod controls;
pub(crate) mod driver;
pub(crate) mod error;
mod feedback;
mod files;
mod filling;
mod follow;
mod life;
mod log;
mod look;
mod membership;
mod moving;
mod others;
mod past;
mod prefetch;
mod protection;
mod pulse;
mod roles;
mod server_watch;
mod slots;
mod slow;
pub(crate) mod standby;
mod start;
pub(crate) mod status;
mod takeover;
mod throughput;
mod warmth;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use coordination::channel::{Handler, Party, Server};
use coordination::records::Cluster;
use coordination::tier;
use dax::storage::Storage;
use pgserver::{check_port, leftovers};
use supervise::logfile::{Rotation, keep_rotating};
use tokio::sync::mpsc;

use self::context::{Context, Host};
use self::controls::Controls;
use self::driver::{MachineDriver, Order};
pub use self::error::{AgentError, Result};
use self::life::Life;
use self::membership::Membership;
use self::status::StatusBoard;
use crate::config::Config;
use crate::machine::{Event, Limits, Machine, State};

/// How often standbys hear of the log where a look at it asks a quorum of Cassandra's nodes.
const QUORUM_GATHER: Duration = Duration::from_millis(20);

/// The agent of a node that has its directory to itself and listens to others, and does nothing yet.
pub struct Agent {
    config: Config,
    host: Host,
    party: Party,
    driver: Arc<MachineDriver>,
    board: Arc<StatusBoard>,
    orders: mpsc::Receiver<Order>,
    server: Server,
    _only: supervise::Lock,
}

impl Agent {
    /// Checks what this machine offers, takes the node's directory, and listens on the channel.
    ///
    /// # Errors
    /// What keeps the node from starting: configuration, programs, permissions, addresses in use.
    pub async fn bind(config: Config) -> Result<Agent> {
        let host = Host::check(&config)?;
        let only = prepare(&config, &host)?;
        check_port(&config.postgres.listen_addresses, config.postgres.port)?;
        let cluster = &config.cluster;
        let limits = Limits::new(cluster.heartbeat.timeout);
        let machine = Machine::new(cluster.name.clone(), config.tags.clone(), limits);
        let driver = Arc::new(MachineDriver::new(machine));
        let socket = config.paths.socket(config.postgres.port);
        let (board, orders) = StatusBoard::new(Arc::clone(&driver), socket);
        let party = Party::new(cluster)?;
        let server = Server::bind(&config.channel.listen, party.clone(), board.clone()).await?;
        if cluster.store.is_some() {
            server.gather(QUORUM_GATHER);
        }
        Ok(Agent {
            config,
            host,
            party,
            driver,
            board,
            orders,
            server,
            _only: only,
        })
    }

    /// Who this life of the node is to others.
    pub fn party(&self) -> &Party {
        &self.party
    }

    /// Answers what this node is asked, on the channel and by whoever else may ask.
    pub fn handler(&self) -> Arc<dyn Handler> {
        self.board.clone()
    }

    /// The version of PostgreSQL on this machine, as `server_version_num`.
    pub fn server_version(&self) -> u32 {
        self.host.installation.version().number()
    }

    /// Runs the node until `shutdown` resolves or it cannot start at all.
    ///
    /// # Errors
    /// What keeps the node from starting: programs, permissions, an unknown volume. Once it runs,
    /// failures are logged and the node tries again.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let Agent {
            mut config,
            host,
            party,
            driver,
            board,
            mut orders,
            server,
            _only,
        } = self;
        let stopping = Arc::clone(&driver);
        tokio::spawn(async move {
            shutdown.await;
            stopping.tell(Event::Stop);
        });
        let (registry, cluster) = tokio::select! {
            connected = wait_for_cluster(&mut config) => connected?,
            () = driver.until(|state| *state == State::Stopping) => return Ok(()),
        };
        let (_controls, known) = Controls::start(config.clone());
        let server = Arc::new(server);
        let context = Context::new(
            config, party, host, cluster, server, board, known, driver, registry,
        )?;
        let rotation = Rotation {
            bytes: context.config.postgres.log_size.bytes() as u64,
            kept: context.config.postgres.log_kept,
        };
        let rotating = tokio::spawn(keep_rotating(context.config.paths.log(), rotation));
        let membership = Membership::start(&context);
        coordination::service::ready();
        let ended = live(&context, &mut orders).await;
        membership.end(&context).await;
        rotating.abort();
        ended
    }
}

/// Makes the local directories, becomes their only agent, and cleans up after one that was killed.
pub(crate) fn prepare(config: &Config, host: &Host) -> Result<supervise::Lock> {
    let paths = &config.paths;
    let cannot_use = |e| AgentError::system(format!("cannot use {}", paths.data().display()), e);
    paths.create(host.owner()).map_err(cannot_use)?;
    let lock = paths.lock().map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => AgentError::Refused(format!(
            "another agent runs on {}; stop it first, or give this one another \"data\"",
            paths.data().display()
        )),
        _ => cannot_use(e),
    })?;
    let killed = leftovers::clean(&paths.run(), &paths.mount())?;
    if killed > 0 {
        tracing::info!(killed, "killed processes that an earlier agent left behind");
    }
    mount::detach_stale(&paths.mount())?;
    Ok(lock)
}

/// A handle for the registry, and facts about the cluster; waits while too few zones answer. From then on the configuration leads to
/// the volume that the database is in.
async fn wait_for_cluster(config: &mut Config) -> Result<(Arc<dyn Storage>, Cluster)> {
    let (cluster, storage) = tier::current(&config.cluster, config.cluster.name.as_str()).await?;
    config.cluster = cluster;
    let cluster = context::load_cluster(config, storage.as_ref()).await?;
    Ok((storage, cluster))
}

/// Does what the state asks for until the node has stopped.
async fn live(context: &Context, orders: &mut mpsc::Receiver<Order>) -> Result<()> {
    let mut life = Life::default();
    let mut last = None;
    loop {
        if context.driver.state() == State::Stopped {
            return last.map_or(Ok(()), Err);
        }
        if let Err(error) = life.step(context, orders).await {
            let failure = driver::failure(&error);
            if failure.superseded {
                tracing::info!(%error, "another node owns the volume now; joining as a standby");
            }
            let ends = [
                State::Fenced,
                State::Discarding,
                State::HandingOver,
                State::Stopping,
            ];
            if ends.contains(&context.driver.state()) && !failure.superseded {
                tracing::warn!(%error, "the last role did not end in order");
            }
            if matches!(error, AgentError::Moved(_)) {
                tracing::info!(%error, "this life of the agent ends");
                context.driver.tell(Event::Stop);
                last = Some(error);
                continue;
            }
            let fatal = failure.of_this_machine;
            context.driver.tell(Event::Failed(failure));
            // The one that keeps it from running at all is what the caller hears.
            let ends = fatal && context.driver.state() == State::Stopping;
            last = last.or(ends.then_some(error));
        }
    }
}
