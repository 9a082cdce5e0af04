//! A proxy that takes positions without proof: what was proved a moment ago counts as if it were proved now.
//!
//! Strong reads through it may miss what was acknowledged since. It is the real proxy, in this process, with another source
//! of positions.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use async_trait::async_trait;
use cluster::PASSWORD_FILE;
use cluster::clients::schema::Server;
use cluster::ports;
use coordination::channel::Party;
use coordination::config::ClusterConfig;
use coordination::tier;
use parking_lot::Mutex;
use proxy::config::Config;
use proxy::driver::agents_source::AgentsSource;
use proxy::driver::source::{Position, Source, SourceError};
use proxy::driver::{Cluster, Proxy, serve};

/// For so long a position counts that was proved once.
const BELIEVED: Duration = Duration::from_secs(3);

struct Unproven {
    source: Arc<AgentsSource>,
    last: Mutex<Option<(Instant, Position)>>,
}

#[async_trait]
impl Source for Unproven {
    async fn run(self: Arc<Self>, cluster: Arc<Cluster>) {
        self.source.clone().run(cluster).await;
    }

    async fn position(&self, shown: bool) -> Result<Position, SourceError> {
        let last = *self.last.lock();
        if let Some((at, position)) = last
            && at.elapsed() < BELIEVED
        {
            return Ok(position);
        }
        let position = self.source.position(shown).await?;
        *self.last.lock() = Some((Instant::now(), position));
        Ok(position)
    }
}

/// Starts such a proxy beside `proxy`, for the same cluster. Where it listens.
pub(super) fn start(proxy: &cluster::proxy::Proxy) -> anyhow::Result<Server> {
    let text = std::fs::read_to_string(proxy.config())?;
    let cluster = ClusterConfig::parse(&text, None)?;
    let server = Server {
        port: ports::free()?,
        ..proxy.server().clone()
    };
    let listen = format!("{}:{}", server.host, server.port);
    let password = proxy.config().with_file_name(PASSWORD_FILE);
    let config = format!(
        "listen = \"{listen}\"\n[control]\npassword_file = \"{}\"\n[reads]\nmode = \"strong\"\n",
        password.display()
    );
    let config = Config::parse(&config)?;
    tokio::spawn(async move {
        if let Err(error) = run(cluster, config).await {
            tracing::error!(error = &*error, "the proxy without proof does not serve");
        }
    });
    Ok(server)
}

async fn run(cluster: ClusterConfig, config: Config) -> anyhow::Result<()> {
    let registry = tier::connect(&cluster, cluster.name.as_str()).await?;
    let me = Party::new(&cluster)?;
    let source = Unproven {
        source: Arc::new(AgentsSource::new(me, registry, None, &config)),
        last: Mutex::new(None),
    };
    let proxy = Proxy::new(config, Arc::new(source), None)?;
    let served = serve(proxy, None, pending()).await;
    served.context("it cannot listen")
}
