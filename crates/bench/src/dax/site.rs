//! One cluster without a standby, as the papers' tenant: a node in the first zone.

use std::path::Path;

use anyhow::Context;
use dax::storage::Protocol;

use super::Options;
use cluster::Cluster;
use cluster::clients::schema::{self, Server};

/// `shared_buffers`: a small part of the data, so that most reads and writes reach the storage tier.
const BUFFERS: &str = "16MB";

/// A running cluster.
pub(super) struct Site {
    pub cluster: Cluster,
}

impl Site {
    /// Starts one with so many servers in each of three zones, all of them near.
    pub async fn start(
        options: &Options,
        dir: &Path,
        protocol: Protocol,
        servers_per_zone: usize,
    ) -> anyhow::Result<Site> {
        let name = serde_json::to_value(protocol)?;
        let name = name.as_str().unwrap_or_default().replace('_', "-");
        let dir = dir.join(format!("{name}-{servers_per_zone}"));
        std::fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let mut settings = cluster::Options::new(&dir, &options.bin, &options.understudy);
        settings.nodes.truncate(1);
        settings.servers_per_zone = servers_per_zone;
        settings.init_arguments = vec!["--protocol".into(), name];
        settings.network = Some(store::Network::default());
        // Neither the kernel nor the mount keeps what the storage tier shall be asked for.
        settings.memory = vec!["kernel_cache = false".into(), "cache = \"1MiB\"".into()];
        settings.heartbeat = "wide".into();
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        settings.parameters = vec![
            set("shared_buffers", BUFFERS),
            set("max_connections", &(options.clients + 20).to_string()),
        ];
        let mut cluster = Cluster::create(settings)?;
        cluster.start().await?;
        Ok(Site { cluster })
    }

    /// Creates the tables.
    pub async fn fill(&self, options: &Options) -> anyhow::Result<()> {
        schema::create(&options.bin, &self.server()?, options.scale).await
    }

    /// Where its PostgreSQL listens.
    pub fn server(&self) -> anyhow::Result<Server> {
        let node = self.cluster.names().next().context("it has a node")?;
        self.cluster.server(node)
    }
}
