//! How commands that look at a running cluster reach its storage tier.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use coordination::channel::Party;
use dax::storage::Storage;
use node::config::Config;
use operations::operate::Operator;

use crate::exit::{Code, Failure};

/// Zones that answer do so much sooner.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A cluster as a node's configuration file shows the way to it.
pub(super) struct Registry {
    /// The configuration.
    pub config: Config,
    /// A handle that owns no epoch.
    pub storage: Arc<dyn Storage>,
}

impl Registry {
    /// Connects to the storage tier of the configuration file.
    pub(super) async fn open(file: &Path) -> anyhow::Result<Registry> {
        let config = Config::load(file)?;
        let client = coordination::tier::connect(&config.cluster, "command");
        let storage = match (
            tokio::time::timeout(TIMEOUT, client).await,
            &config.cluster.store,
        ) {
            (Ok(storage), _) => storage?,
            (Err(_), None) => return Err(no_zones().into()),
            (Err(_), Some(_)) => return Err(no_cassandra().into()),
        };
        Ok(Registry { config, storage })
    }

    /// What gives orders to the cluster.
    pub(super) fn operator(&self) -> anyhow::Result<Operator> {
        Ok(Operator {
            storage: self.storage.clone(),
            me: Party::new(&self.config.cluster)?,
        })
    }
}

/// Storage waits for zones for ever; a person at a terminal does not.
pub(super) async fn in_time<T>(
    asking: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    match tokio::time::timeout(TIMEOUT, asking).await {
        Ok(answer) => answer,
        Err(_) => Err(no_zones().into()),
    }
}

fn no_zones() -> Failure {
    Failure::new(
        Code::Unavailable,
        format!("too few zones answered within {TIMEOUT:?}"),
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
        format!("too few nodes of Cassandra answered within {TIMEOUT:?}"),
    )
    .advise(
        "Compare their addresses with \"store\" in the configuration; nodetool status says which of them \
         are up. Nodes that want protected connections need the authority of their certificates here \
         (cassandra.ca).",
    )
}
