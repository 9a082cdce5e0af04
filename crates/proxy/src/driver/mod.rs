//! What does what the core decides: sockets, tasks, clocks.
//!
//! One task serves one client and whatever server it has in hand, so that a query costs one wake-up for each
//! direction and no message between tasks.

mod admin;
pub mod agents_source;
mod catalog;
mod client;
mod cluster;
pub mod file_source;
mod handle;
mod listener;
mod login;
mod pool;
mod positions;
mod relay;
mod socket;
pub mod source;
mod startup;
mod totals;

use std::collections::HashMap;
use std::sync::Arc;

use dax::tls::WebTls;
use parking_lot::Mutex;

use crate::config::Config;
use crate::core::session::Rules;
use crate::core::sql::Statements;
use crate::scram::Keys;

use catalog::Catalogs;
use handle::Handles;
use login::Login;
use pool::{Limits, Pool};
use positions::Positions;
use source::Source;
use totals::Totals;

pub use cluster::Cluster;
pub use listener::{ServeError, serve};

type PoolKey = (String, String, Vec<(String, String)>);

/// What all tasks of a proxy share.
pub struct Proxy {
    config: Config,
    rules: Rules,
    statements: Statements,
    catalogs: Catalogs,
    cluster: Arc<Cluster>,
    handles: Arc<Handles>,
    positions: Positions,
    pools: Mutex<HashMap<PoolKey, Arc<Pool>>>,
    totals: Arc<Totals>,
    tls: Option<WebTls>,
    /// Makes the salts of users that do not exist.
    secret: [u8; 32],
}

impl Proxy {
    /// A proxy that learns of its cluster from `source`. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If the system has no random numbers, or the certificate makes no sense.
    pub fn new(config: Config, source: Arc<dyn Source>) -> Result<Arc<Proxy>, ServeError> {
        let handles = Arc::new(Handles::default());
        let totals = Arc::new(Totals::default());
        let cluster = Arc::new(Cluster::new(handles.clone(), totals.clone()));
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(ServeError::Random)?;
        let tls = config.tls.as_ref().map(|tls| WebTls::load(tls.files()));
        tokio::spawn(source.clone().run(cluster.clone()));
        Ok(Arc::new(Proxy {
            rules: config.rules(),
            statements: Statements::default(),
            catalogs: Catalogs::new(config.control.clone(), cluster.clone()),
            positions: Positions::new(source, cluster.clone()),
            cluster,
            handles,
            pools: Mutex::default(),
            totals,
            tls: tls.transpose().map_err(ServeError::Tls)?,
            secret,
            config,
        }))
    }

    /// What was counted, as Prometheus reads it.
    pub fn metrics(&self) -> String {
        admin::metrics(self)
    }

    fn new_pool(&self, login: Login) -> Pool {
        let limits = Limits {
            size: self.config.pool_size,
            wait: self.config.query_wait_timeout,
            takeover_wait: self.config.takeover_wait,
        };
        Pool::new(login, limits, self.cluster.clone())
    }

    /// The pool of a user and a database.
    fn pool(&self, login: Login) -> Arc<Pool> {
        let key = (
            login.user.clone(),
            login.database.clone(),
            login.parameters.clone(),
        );
        let keys: Option<Keys> = login.keys.clone();
        let mut pools = self.pools.lock();
        let pool = pools
            .entry(key)
            .or_insert_with(|| Arc::new(self.new_pool(login)));
        pool.use_keys(keys);
        pool.clone()
    }
}
