//! What does what the core decides: sockets, tasks, clocks.
//!
//! One task serves one client and whatever server it has in hand, so that a query costs one wake-up for each
//! direction and no message between tasks.

mod admin;
pub mod agents_source;
mod cancel;
mod catalog;
mod client;
mod cluster;
pub mod descriptors;
pub mod dial;
mod endpoints;
pub mod file_source;
mod handle;
mod handover;
mod health;
mod listener;
mod loads;
mod login;
mod metrics;
mod pool;
mod positions;
mod proof;
mod quotas;
mod relay;
mod rest;
pub mod socket;
pub mod source;
mod startup;
mod stats;
mod totals;

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dax::tls::PostgresServer;
use parking_lot::{Mutex, RwLock};

use crate::config::{Config, ConfigError, Mode, Scope};
use crate::core::hba;
use crate::core::sql::Statements;
use crate::core::topology::{NodeName, Place};
use protocol::scram::Keys;

use catalog::{Catalogs, OwnLogin};
use dial::Dialer;
use handle::Handles;
use handover::{Handover, HandoverError};
use health::Asked;
use loads::Loads;
use login::Login;
use pool::{Common, Limits, Pool};
use positions::Positions;
use quotas::Quotas;
use source::Source;
use stats::{Names, Stats};
use totals::Totals;

pub use cluster::Cluster;
pub use handover::Predecessor;
pub use listener::{ServeError, serve};
pub use startup::unencrypted_data;

/// Reads the configuration again.
pub type ReadAgain = Box<dyn Fn() -> Result<Config, Box<dyn Error + Send + Sync>> + Send + Sync>;

/// Why a configuration was not read again.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// There is nothing to read.
    #[error("this proxy was not started with a configuration file")]
    NoFile,
    /// The file is invalid.
    #[error("the configuration stays as it was")]
    Unusable(#[source] Box<dyn Error + Send + Sync>),
}

/// User, database by both its names, mode, and parameters of the startup message.
type PoolKey = (String, String, String, Mode, Vec<(String, String)>);

/// Settings that may change while a proxy runs.
struct Settings {
    /// The configuration that was read last.
    config: Config,
    /// Rules of who may come from where, if there are any.
    rules: Option<hba::Rules>,
}

impl Settings {
    /// Reads the files that the configuration names.
    fn load(config: Config) -> Result<Settings, ConfigError> {
        let rules = config.load_rules()?;
        Ok(Settings { config, rules })
    }

    /// Those that count for a client with this login.
    fn scope(&self, login: &Login) -> Arc<Scope> {
        Arc::new(self.config.scope(&login.name, &login.user, login.mode))
    }
}

/// What all tasks of a proxy share.
pub struct Proxy {
    /// What it began with: what does not change while it runs.
    config: Config,
    settings: RwLock<Arc<Settings>>,
    again: Option<ReadAgain>,
    statements: Statements,
    catalogs: Catalogs,
    cluster: Arc<Cluster>,
    handles: Arc<Handles>,
    positions: Positions,
    pools: Mutex<HashMap<PoolKey, Arc<Pool>>>,
    quotas: Arc<Quotas>,
    loads: Arc<Loads>,
    totals: Arc<Totals>,
    stats: Stats,
    handover: Handover,
    tls: Option<PostgresServer>,
    dialer: Dialer,
    /// Makes the salts of users that do not exist.
    secret: [u8; 32],
}

/// What to sweep for is looked for so often in the shortest time that something may stay.
const SWEEPS: u32 = 10;
/// But not more and not less often than that.
const SWEEP_EVERY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

fn limits_of(config: &Config, login: &Login) -> Limits {
    let some = |time: Duration| (!time.is_zero()).then_some(time);
    Limits {
        size: config.size_of(&login.name, &login.user),
        wait: config.query_wait_timeout,
        takeover_wait: config.takeover_wait,
        idle: some(config.server_idle_timeout),
        lifetime: some(config.server_lifetime),
    }
}

impl Proxy {
    /// A proxy that learns of its cluster from `source`, and reads its configuration again with `again`. Must be called inside a
    /// tokio runtime.
    ///
    /// # Errors
    /// If the system has no random numbers, or the certificate is invalid.
    pub fn new(
        config: Config,
        source: Arc<dyn Source>,
        again: Option<ReadAgain>,
    ) -> Result<Arc<Proxy>, ServeError> {
        let handles = Arc::new(Handles::default());
        let totals = Arc::new(Totals::default());
        let cluster = Arc::new(Cluster::new(handles.clone(), totals.clone()));
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(ServeError::Random)?;
        let tls = config.tls.as_ref().map(|tls| tls.load());
        let dialer = Dialer::new(&config.server_tls).map_err(ServeError::Tls)?;
        let settings = Settings::load(config.clone())?;
        tokio::spawn(source.clone().run(cluster.clone()));
        let proxy = Arc::new(Proxy {
            again,
            settings: RwLock::new(Arc::new(settings)),
            statements: Statements::default(),
            catalogs: Catalogs::new(OwnLogin::new(&config, dialer.clone()), cluster.clone()),
            positions: Positions::new(source, cluster.clone()),
            cluster,
            handles,
            pools: Mutex::default(),
            quotas: Arc::default(),
            loads: Arc::default(),
            stats: Stats::default(),
            totals,
            handover: Handover::default(),
            tls: tls.transpose().map_err(ServeError::Tls)?,
            dialer,
            secret,
            config,
        });
        proxy.quotas.set(proxy.config.most());
        tokio::spawn(sweep(Arc::downgrade(&proxy)));
        let watched = Arc::downgrade(&proxy);
        let whom = move || Some(watched.upgrade()?.standbys_to_ask());
        tokio::spawn(health::watch(proxy.cluster.clone(), whom));
        let watched = Arc::downgrade(&proxy);
        let lease = move || Some(watched.upgrade()?.settings().config.takeover.lease);
        let watched = Arc::downgrade(&proxy);
        let ask = move || {
            let asked = watched.upgrade()?.positions.ask(false);
            Some(async move { asked.await.ok().flatten() })
        };
        tokio::spawn(proof::watch(proxy.cluster.clone(), lease, ask));
        Ok(proxy)
    }

    /// The standbys to which there are connections, and those that did not answer last.
    fn standbys_to_ask(&self) -> Asked {
        let topology = self.cluster.topology();
        let pools = self.pools.lock();
        let is_used = |name: &NodeName| {
            let place = Place::Standby(name.clone());
            pools.values().any(|pool| pool.is_connected_to(&place))
        };
        let asked = topology.told.iter();
        let asked = asked.filter(|one| topology.silent.contains(&one.name) || is_used(&one.name));
        Asked {
            timeout: self.settings().config.reads.timeout,
            standbys: asked
                .map(|one| (one.name.clone(), one.address.clone()))
                .collect(),
        }
    }

    /// Closes connections to servers that have been unused or there for too long, and forgets pools that nobody needs.
    fn close_old(&self) {
        self.pools.lock().retain(|_, pool| {
            pool.close_old();
            // Who has it got it from here: nobody else can have it by now.
            Arc::strong_count(pool) > 1 || pool.has_connections()
        });
    }

    /// Reads the configuration again and goes by it from now on, as far as that is possible in a running process. Returns the
    /// names of what differs and takes effect at the next start only.
    ///
    /// # Errors
    /// If there is nothing to read, or it is invalid: then nothing has changed.
    pub fn reload(&self) -> Result<Vec<&'static str>, ReloadError> {
        let again = self.again.as_ref().ok_or(ReloadError::NoFile)?;
        let config = again().map_err(ReloadError::Unusable)?;
        let waits = self.config.fixed_that_differ(&config);
        let most = config.most();
        let settings = Settings::load(config);
        let settings = Arc::new(settings.map_err(|error| ReloadError::Unusable(error.into()))?);
        *self.settings.write() = settings.clone();
        for pool in self.pools.lock().values() {
            pool.set_limits(limits_of(&settings.config, &pool.login()));
        }
        self.quotas.set(most);
        Ok(waits)
    }

    /// Lets this process be restarted: its program, with the same arguments, takes its place.
    pub fn allow_restart(&self) {
        self.handover.allow();
    }

    /// Starts another process of the same program, and hands everything over to it. Returns when that serves.
    ///
    /// # Errors
    /// Why it does not; then this one goes on.
    pub async fn restart(&self) -> Result<(), HandoverError> {
        self.handover.request().await
    }

    /// Settings that count now.
    fn settings(&self) -> Arc<Settings> {
        self.settings.read().clone()
    }

    /// Pools by database and user.
    fn pools_by_names(&self) -> BTreeMap<Names, Vec<Arc<Pool>>> {
        let mut pools: BTreeMap<Names, Vec<Arc<Pool>>> = BTreeMap::new();
        for pool in self.pools.lock().values() {
            let login = pool.login();
            let names = (login.name, login.user);
            pools.entry(names).or_default().push(pool.clone());
        }
        pools
    }

    fn new_pool(&self, login: Login) -> Pool {
        let limits = limits_of(&self.settings().config, &login);
        let common = Common {
            cluster: self.cluster.clone(),
            dialer: self.dialer.clone(),
            quotas: self.quotas.clone(),
            loads: self.loads.clone(),
        };
        Pool::new(login, limits, common)
    }

    /// The pool of a user and a database.
    fn pool(&self, login: Login) -> Arc<Pool> {
        let keys: Option<Keys> = login.keys.clone();
        let key = (
            login.user.clone(),
            login.name.clone(),
            login.database.clone(),
            login.mode,
            login.parameters.clone(),
        );
        let mut pools = self.pools.lock();
        let pool = pools
            .entry(key)
            .or_insert_with(|| Arc::new(self.new_pool(login)));
        pool.use_keys(keys);
        pool.clone()
    }
}

/// Looks for what has been there too long, as long as there is a proxy.
async fn sweep(proxy: Weak<Proxy>) {
    loop {
        let Some(proxy) = proxy.upgrade() else {
            return;
        };
        let settings = proxy.settings();
        proxy.close_old();
        proxy.stats.tick(Instant::now());
        drop(proxy);
        let Config {
            server_idle_timeout,
            server_lifetime,
            ..
        } = settings.config;
        let mut limits = [server_idle_timeout, server_lifetime].to_vec();
        limits.retain(|time| !time.is_zero());
        let [least, most] = SWEEP_EVERY;
        let shortest = limits.into_iter().min();
        let pause = shortest.map_or(most, |time| (time / SWEEPS).clamp(least, most));
        tokio::time::sleep(pause).await;
    }
}
