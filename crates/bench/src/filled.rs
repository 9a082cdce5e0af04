//! A cluster with pgbench's tables, of which benchmarks make copies under load.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use cluster::Cluster;
use cluster::clients::schema::{self, Server};
use cluster::clients::session::connect;

/// Memory of the servers: clients shall not wait for the disk at rest.
const BUFFERS: &str = "512MB";

/// A cluster that serves.
pub(crate) struct Filled {
    pub cluster: Cluster,
    pub active: String,
    pub server: Server,
    pub database_bytes: u64,
}

impl Filled {
    /// Starts one in a new directory `cluster` of `dir`.
    pub async fn start(
        (bin, understudy): (&Path, &Path),
        dir: &Path,
        scale: u32,
        within: Duration,
    ) -> Result<Filled> {
        let mut cluster = Cluster::create(settings((bin, understudy), dir)?)?;
        cluster.start().await?;
        let active = cluster.wait_active(within).await?;
        let server = cluster.server(&active)?;
        schema::create(bin, &server, scale).await?;
        let database_bytes = database_bytes(&connect(&server.config()).await?).await?;
        Ok(Filled {
            cluster,
            active,
            server,
            database_bytes,
        })
    }
}

/// Settings of a cluster in a new directory `cluster` of `dir`.
pub(crate) fn settings((bin, understudy): (&Path, &Path), dir: &Path) -> Result<cluster::Options> {
    let dir = dir.join("cluster");
    std::fs::create_dir(&dir)?;
    let mut settings = cluster::Options::new(&dir, bin, understudy);
    let parameters = [("shared_buffers", BUFFERS), ("max_wal_size", "4GB")];
    settings.parameters = parameters
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
    Ok(settings)
}

/// Room that PostgreSQL says its database takes.
pub(crate) async fn database_bytes(client: &tokio_postgres::Client) -> Result<u64> {
    let size = "SELECT pg_database_size(current_database())";
    let bytes: i64 = client.query_one(size, &[]).await?.get(0);
    Ok(bytes.unsigned_abs())
}
