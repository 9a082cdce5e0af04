//! What every life of a node shares: its configuration, facts about the cluster, and how it opens
//! its handle to the storage tier.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use coordination::address::Address;
use coordination::channel::{Identity, Party, Server};
use coordination::config::{Heartbeat, WalSync};
use coordination::records::{
    Cluster, Control, EngineFacts, Libraries, Member, Record, ServerFacts,
};
use coordination::tier;
use dax::forms::Forms;
use dax::storage::Storage;
use nix::unistd::{Gid, Uid};
use parking_lot::Mutex;
use pgdata::layout::PostgresLayout;
use pgdata::segment::SegmentSize;
use pgdata::settings::{self, Configuration, MajorVersion, Setting};
use pgdata::warmth;
use pgserver::{HostLibraries, Installation, RunAs, StartOptions};
use serde_json::{Value, json};
use tokio::sync::watch;
use volume::lsn::Lsn;
use volume::view::Ownership;

use super::driver::MachineDriver;
use super::error::{AgentError, Result};
use super::filling;
use super::slow::Skips;
use super::status::StatusBoard;
use crate::config::Config;
use crate::machine::State;

/// How long the end of an agent waits for the zones to hear of it.
pub(super) const SAY_WITHIN: Duration = Duration::from_secs(2);

/// How far a standby is, for its record.
#[derive(Debug, Default)]
pub(crate) struct Reached(Mutex<(Lsn, Lsn)>);

impl Reached {
    /// The log that its PostgreSQL was given, and has replayed.
    pub(crate) fn set(&self, received: Lsn, applied: Lsn) {
        *self.0.lock() = (received, applied);
    }

    /// What was set last.
    pub(crate) fn get(&self) -> (Lsn, Lsn) {
        *self.0.lock()
    }
}

/// Records that concern the whole cluster, as they were read last.
pub(crate) struct Known {
    /// Orders of operators.
    pub control: watch::Receiver<Control>,
    /// Which forms may be in the volume, once that was read.
    pub forms: watch::Receiver<Option<Forms>>,
}

pub(crate) struct Context {
    pub config: Config,
    pub me: Identity,
    /// The same to other agents.
    pub party: Party,
    pub installation: Installation,
    pub version: MajorVersion,
    pub run_as: Option<RunAs>,
    pub layout: Arc<PostgresLayout>,
    pub server: Arc<Server>,
    pub board: Arc<StatusBoard>,
    /// What outlives a standby that was too slow.
    pub skips: Skips,
    /// What operators want of the cluster, as it was read last.
    pub control: watch::Receiver<Control>,
    /// Which forms may be in the volume, as it was read last.
    pub forms: watch::Receiver<Option<Forms>>,
    /// What the running PostgreSQL says of itself.
    pub facts: Arc<Mutex<ServerFacts>>,
    /// Decides what this node is.
    pub driver: Arc<MachineDriver>,
    /// A handle that never owns an epoch, for records of nodes.
    pub registry: Arc<dyn Storage>,
    /// PostgreSQL refused what an ordered log needs.
    orders_no_log: AtomicBool,
    /// How far this node is while it is a standby.
    pub reached: Arc<Reached>,
    /// Versions of this host's libraries,
    pub libraries: Libraries,
    /// and of those that the database was created with.
    pub built_with: Option<Libraries>,
}

impl Context {
    #[expect(
        clippy::too_many_arguments,
        reason = "each is made once, by the agent, and has a name"
    )]
    pub(crate) fn new(
        config: Config,
        party: Party,
        host: Host,
        cluster: Cluster,
        server: Arc<Server>,
        board: Arc<StatusBoard>,
        known: Known,
        driver: Arc<MachineDriver>,
        registry: Arc<dyn Storage>,
    ) -> Result<Context> {
        host.installation.require_major(cluster.postgres_major)?;
        let segment_size = SegmentSize::new(cluster.wal_segment_bytes).ok_or_else(|| {
            AgentError::Refused(format!(
                "log segments of {} bytes",
                cluster.wal_segment_bytes
            ))
        })?;
        Ok(Context {
            config,
            me: party.me.clone(),
            party,
            installation: host.installation,
            version: host.version,
            run_as: host.run_as,
            layout: Arc::new(PostgresLayout::new(segment_size)),
            server,
            board,
            skips: Skips::default(),
            control: known.control,
            forms: known.forms,
            facts: Arc::default(),
            driver,
            registry,
            orders_no_log: AtomicBool::new(false),
            reached: Arc::default(),
            libraries: host.libraries,
            built_with: cluster.libraries,
        })
    }

    /// A new handle to the volume; owns no epoch.
    ///
    /// # Errors
    /// Those of the storage tier; `Moved`.
    pub(crate) async fn connect(&self) -> Result<Arc<dyn Storage>> {
        let storage = connect(&self.config).await?;
        self.check_moved(storage.as_ref()).await?;
        Ok(storage)
    }

    /// Refuses to go on where the database has left.
    pub(crate) async fn check_moved(&self, storage: &dyn Storage) -> Result<()> {
        match tier::has_moved(&self.config.cluster, storage).await? {
            Some(moved) => Err(AgentError::Moved(moved.volume)),
            None => Ok(()),
        }
    }

    /// Who owns what PostgreSQL must be able to write.
    pub(crate) fn ownership(&self) -> Ownership {
        ownership(self.run_as.as_ref())
    }

    /// Time since the agent started, on its monotonic clock.
    pub(crate) fn now(&self) -> Duration {
        self.driver.now()
    }

    /// Ends some time after the agent was told to stop: whoever still waits for zones then waits in vain.
    pub(crate) async fn out_of_time(&self) {
        self.driver.until(|state| *state == State::Stopping).await;
        tokio::time::sleep(SAY_WITHIN).await;
    }

    /// What operators want of the cluster, for the status.
    pub(crate) fn control_report(&self) -> Value {
        let control = self.control.borrow();
        json!({
            "version": control.version,
            "paused": control.paused,
            "scheduled_switchover": control.scheduled_switchover,
            "standbys": control.standbys,
        })
    }

    /// Which forms may be written, and which this program reads, for the status.
    pub(crate) fn forms_report(&self) -> Value {
        json!({ "written": *self.forms.borrow(), "reads": Forms::NEWEST })
    }

    /// The timings of heartbeats: the cluster's, if operators said so, else this node's own.
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        self.control
            .borrow()
            .heartbeat(self.config.cluster.heartbeat)
    }

    /// What makes the server tell which blocks it has in memory, if that is wanted and possible.
    pub(crate) fn warmth_settings(&self, shared: &Configuration) -> Vec<Setting> {
        let every = self.config.memory.warm_every;
        if every.is_zero() || warmth::library(self.installation.bin()).is_none() {
            return Vec::new();
        }
        let mut configuration = shared.clone();
        for (name, value) in &self.config.postgres.parameters {
            configuration.set(name, value.to_string());
        }
        warmth::settings(&configuration, every)
    }

    /// From now on until the agent is started again servers are started for a strict log.
    pub(crate) fn order_no_log(&self) {
        tracing::error!(
            "PostgreSQL refuses the connection that confirms commits, so they wait: it is started again, with a strict \
             log. Let the superuser connect for replication on the local socket in pg_hba.conf, then restart the agent"
        );
        self.orders_no_log.store(true, Ordering::Release);
    }

    /// True if a server was found to refuse what an ordered log needs.
    pub(crate) fn orders_no_log(&self) -> bool {
        self.orders_no_log.load(Ordering::Acquire)
    }

    /// What an ordered log needs, if that is wanted and this configuration allows it.
    pub(crate) fn ordered_settings(&self, shared: &Configuration) -> Vec<Setting> {
        if self.config.storage.wal_sync == WalSync::Strict || self.orders_no_log() {
            return Vec::new();
        }
        let mut configuration = shared.clone();
        for (name, value) in &self.config.postgres.parameters {
            configuration.set(name, value.to_string());
        }
        match settings::why_strict(&configuration) {
            None => settings::ordered(),
            Some(why) => {
                tracing::warn!("the log stays strict while this server runs: {why}");
                Vec::new()
            }
        }
    }

    /// How PostgreSQL is started, with `pinned` on its command line.
    pub(crate) fn start_options(&self, pinned: &[Setting]) -> StartOptions {
        let own = &self.config.postgres.parameters;
        let own = own
            .iter()
            .map(|(name, value)| (name.clone(), value.to_string()));
        let pinned = pinned.iter().map(|s| (s.name.to_owned(), s.value.clone()));
        StartOptions {
            data: self.config.paths.mount(),
            run: self.config.paths.run(),
            log: self.config.paths.log(),
            port: self.config.postgres.port,
            listen_addresses: self.config.postgres.listen_addresses.clone(),
            superuser: self.config.postgres.superuser.clone(),
            settings: own.chain(pinned).collect(),
            run_as: self.run_as.clone(),
        }
    }

    /// Contents of this node's configuration file for a server that is started with `options`.
    pub(crate) fn node_file(&self, options: &StartOptions, shared: &Configuration) -> Vec<u8> {
        let own = self.config.postgres.parameters.keys();
        settings::node_file(&options.settings, own, shared).into_bytes()
    }

    /// This node's record, before anything of its state is in it.
    pub(crate) fn member(&self) -> Member {
        let postgres = &self.config.postgres;
        let listens = postgres
            .listen_addresses
            .split(',')
            .next()
            .unwrap_or_default()
            .trim();
        let host = match listens {
            "" | "*" | "0.0.0.0" | "::" => "localhost",
            host => host,
        };
        let reached = Address::Tcp {
            host: host.to_owned(),
            port: postgres.port,
        };
        let postgres = postgres.advertise.clone().unwrap_or(reached);
        let channel = self.config.channel.advertised().clone();
        let (name, incarnation) = (self.me.node.clone(), self.me.incarnation.clone());
        Member {
            rest: Some(self.config.rest.advertised().clone()),
            tags: self.config.tags.clone(),
            server: self.facts.lock().clone(),
            control: self.control.borrow().version,
            libraries: self.libraries.clone(),
            misfit: self
                .control
                .borrow()
                .misfit(&self.libraries, self.built_with.as_ref()),
            reads: Forms::NEWEST,
            ..Member::starting(name, incarnation, postgres, channel)
        }
    }
}

/// What this machine offers, checked before anything is touched.
pub(crate) struct Host {
    pub installation: Installation,
    pub version: MajorVersion,
    pub run_as: Option<RunAs>,
    pub libraries: Libraries,
}

impl Host {
    pub(crate) fn check(config: &Config) -> Result<Host> {
        let installation = Installation::find(&config.postgres.bin)?;
        let version = MajorVersion::parse(&installation.version().to_string())?;
        let run_as = pgserver::run_as(&config.postgres.run_as)?;
        let libraries = libraries_of(HostLibraries::find(&installation));
        Ok(Host {
            libraries,
            installation,
            version,
            run_as,
        })
    }

    pub(crate) fn owner(&self) -> Option<(Uid, Gid)> {
        self.run_as.as_ref().map(RunAs::owner)
    }
}

/// Versions of this host, as records have them.
fn libraries_of(host: HostLibraries) -> Libraries {
    Libraries {
        glibc: host.glibc,
        icu: host.icu,
        tzdata: host.tzdata,
    }
}

pub(crate) async fn connect(config: &Config) -> Result<Arc<dyn Storage>> {
    let storage = tier::connect(&config.cluster, config.cluster.name.as_str()).await?;
    filling::over(storage).await
}

pub(crate) fn ownership(run_as: Option<&RunAs>) -> Ownership {
    let (uid, gid) = match run_as {
        Some(run_as) => (run_as.uid, run_as.gid),
        None => (Uid::effective(), Gid::effective()),
    };
    Ownership {
        mode: 0o700,
        uid: uid.as_raw(),
        gid: gid.as_raw(),
    }
}

/// The cluster's facts, or the advice to create one.
pub(crate) async fn load_cluster(config: &Config, storage: &dyn Storage) -> Result<Cluster> {
    let found = Cluster::load(storage).await?;
    if found.is_none()
        && let Some(hosted) = EngineFacts::load(storage).await?
    {
        return Err(AgentError::Refused(format!(
            "the volume {} holds a database of {}; give the configuration [engine] in place of [postgres], or choose \
             another volume",
            config.cluster.volume, hosted.engine
        )));
    }
    found.ok_or_else(|| AgentError::NotInitialised(config.cluster.volume.clone()))
}
