//! How commands that look at a running cluster reach its storage tier.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use coordination::channel::Party;
use coordination::config::ClusterConfig;
use dax::storage::Storage;
use node::config::Config;
use operations::operate::Operator;

use crate::exit::{Code, Failure};

/// Zones that answer do so much sooner.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A session with Cassandra is made for each volume on the way, and prepares its statements.
const TIMEOUT_ON_CASSANDRA: Duration = Duration::from_secs(20);

/// Name of a command's connections, for the zones' logs.
const CLIENT: &str = "command";

/// The configuration of a node, whatever server it runs.
pub(super) enum AnyConfig {
    /// PostgreSQL, with standbys.
    Postgres(Box<Config>),
    /// A server of another kind.
    #[cfg(feature = "engine")]
    Engine(Box<engine::config::Config>),
}

impl AnyConfig {
    /// Reads and checks a configuration file.
    pub(super) fn load(file: &Path) -> anyhow::Result<AnyConfig> {
        let text = std::fs::read_to_string(file);
        if text.is_ok_and(|text| hosts_engine(&text)) {
            return Self::load_engine(file);
        }
        Ok(AnyConfig::Postgres(Box::new(Config::load(file)?)))
    }

    #[cfg(feature = "engine")]
    fn load_engine(file: &Path) -> anyhow::Result<AnyConfig> {
        let config = engine::config::Config::load(file)?;
        Ok(AnyConfig::Engine(Box::new(config)))
    }

    #[cfg(not(feature = "engine"))]
    fn load_engine(_: &Path) -> anyhow::Result<AnyConfig> {
        Err(crate::exit::not_built("engine").into())
    }

    /// True if a proxy runs beside the agent.
    pub(super) fn has_proxy(&self) -> bool {
        match self {
            AnyConfig::Postgres(config) => config.has_proxy,
            #[cfg(feature = "engine")]
            AnyConfig::Engine(_) => false,
        }
    }

    /// True if backups are made beside the agent.
    pub(super) fn has_backup(&self) -> bool {
        match self {
            AnyConfig::Postgres(config) => config.has_backup,
            #[cfg(feature = "engine")]
            AnyConfig::Engine(_) => false,
        }
    }

    /// What every process of the cluster has.
    pub(super) fn cluster(&self) -> &ClusterConfig {
        match self {
            AnyConfig::Postgres(config) => &config.cluster,
            #[cfg(feature = "engine")]
            AnyConfig::Engine(config) => &config.cluster,
        }
    }

    fn cluster_mut(&mut self) -> &mut ClusterConfig {
        match self {
            AnyConfig::Postgres(config) => &mut config.cluster,
            #[cfg(feature = "engine")]
            AnyConfig::Engine(config) => &mut config.cluster,
        }
    }
}

/// True if a configuration is of a node with another server than PostgreSQL.
fn hosts_engine(text: &str) -> bool {
    let table = text.parse::<toml::Table>();
    table.is_ok_and(|table| table.contains_key("engine"))
}

/// A cluster as a node's configuration file shows the way to it.
pub(super) struct Registry {
    /// The configuration, which leads to the volume that the database is in.
    pub config: AnyConfig,
    /// A handle that owns no epoch.
    pub storage: Arc<dyn Storage>,
}

impl Registry {
    /// Connects to the storage tier of the configuration file.
    pub(super) async fn open(file: &Path) -> anyhow::Result<Registry> {
        let mut config = AnyConfig::load(file)?;
        let cluster = config.cluster();
        let client = coordination::tier::current(cluster, CLIENT);
        let timeout = match &cluster.store {
            None => TIMEOUT,
            Some(_) => TIMEOUT_ON_CASSANDRA,
        };
        let current = match (tokio::time::timeout(timeout, client).await, &cluster.store) {
            (Ok(current), _) => current?,
            (Err(_), None) => return Err(no_zones(timeout).into()),
            (Err(_), Some(_)) => return Err(no_cassandra().into()),
        };
        let (cluster, storage) = current;
        *config.cluster_mut() = cluster;
        Ok(Registry { config, storage })
    }

    /// The volume that the configuration names, whichever the database is in. Its registry has the names of branches.
    #[cfg(feature = "backup")]
    pub(super) async fn named(&self) -> anyhow::Result<Arc<dyn Storage>> {
        let cluster = self.config.cluster();
        if *cluster.stored_in() == cluster.volume {
            return Ok(Arc::clone(&self.storage));
        }
        let named = cluster.moved_to(None);
        in_time(async { Ok(coordination::tier::connect(&named, CLIENT).await?) }).await
    }

    /// The configuration of a node with PostgreSQL.
    pub(super) fn postgres(&self) -> anyhow::Result<&Config> {
        match &self.config {
            AnyConfig::Postgres(config) => Ok(config),
            #[cfg(feature = "engine")]
            AnyConfig::Engine(_) => Err(Failure::new(
                Code::Refused,
                "the configuration is of a node that hosts another server than PostgreSQL".to_owned(),
            )
            .advise("Use that server's own tools for what it keeps in its configuration and its sessions.")
            .into()),
        }
    }

    /// What gives orders to the cluster.
    pub(super) fn operator(&self) -> anyhow::Result<Operator> {
        Ok(Operator {
            storage: self.storage.clone(),
            me: Party::new(self.config.cluster())?,
        })
    }
}

/// Storage waits for zones for ever; a person at a terminal does not. Whoever asks has opened a volume before, so somebody answers.
pub(super) async fn in_time<T>(
    asking: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    match tokio::time::timeout(TIMEOUT_ON_CASSANDRA, asking).await {
        Ok(answer) => answer,
        Err(_) => Err(no_zones(TIMEOUT_ON_CASSANDRA).into()),
    }
}

fn no_zones(timeout: Duration) -> Failure {
    Failure::new(
        Code::Unavailable,
        format!("too few zones answered within {timeout:?}"),
    )
    .advise(
        "Start the zones (understudy store), and compare their addresses with \"zones\" in the \
         configuration. If they run, their logs say whether they refuse what they are sent: with \
         certificates on one side only neither understands the other ([tls], store --identity).",
    )
}

fn no_cassandra() -> Failure {
    Failure::new(
        Code::Unavailable,
        format!("too few nodes of Cassandra answered within {TIMEOUT_ON_CASSANDRA:?}"),
    )
    .advise(
        "Compare their addresses with \"store\" in the configuration; nodetool status says which of them \
         are up. Nodes that want protected connections need the authority of their certificates here \
         (cassandra.ca).",
    )
}
