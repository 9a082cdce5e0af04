//! `understudy proxy`: one address that survives takeovers, in front of a cluster's servers.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use coordination::channel::Party;
use coordination::config::ClusterConfig;
use coordination::{service, tier};
use proxy::config::Config;
use proxy::driver::agents_source::AgentsSource;
use proxy::driver::{Proxy, serve};

use crate::cli;
use crate::exit::{Code, Failure};

/// The wait before a proxy that has ended is started again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Serves clients until it is asked to end; then lets their transactions end.
pub async fn run(args: cli::Proxy) -> anyhow::Result<Code> {
    let (cluster, config) = load(&args.config)?;
    let asked_to_end = super::asked_to_end(args.until_stdin_closes);
    let registry = tier::connect(&cluster, cluster.name.as_str()).await?;
    let me = Party::new(&cluster)?;
    let source = AgentsSource::new(me, registry, config.listen.to_string());
    let proxy = Proxy::new(config, Arc::new(source))?;
    service::ready();
    serve(proxy, asked_to_end).await?;
    Ok(Code::Ok)
}

/// What the file says of the cluster, and of the proxy.
fn load(file: &Path) -> anyhow::Result<(ClusterConfig, Config)> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the configuration {}", file.display()))?;
    node::config::Config::check_keys(&text)?;
    let cluster = ClusterConfig::parse(&text, None)?;
    let table: toml::Table = text.parse()?;
    let proxy = table.get("proxy").cloned().ok_or_else(|| {
        Failure::new(Code::Usage, format!("{} has no [proxy]", file.display()))
            .advise("Write for example [proxy] and below it listen = \"10.0.0.1:6432\".")
    })?;
    let config = Config::parse(&toml::to_string(&proxy)?)?;
    Ok((cluster, config))
}

/// Runs the proxy of a node's configuration beside its agent, as a process of its own, and starts it again if it ends. Dropping
/// the future asks it to end: its standard input closes.
///
/// A process of its own, because the agent must not suffer from it: the agent serves the mount that PostgreSQL works on, and
/// its death is a takeover.
pub(super) async fn beside_agent(file: PathBuf) -> Infallible {
    loop {
        match start(&file) {
            Ok(mut child) => match child.wait().await {
                Ok(status) => tracing::warn!(%status, "the proxy ended; starting it again"),
                Err(error) => tracing::warn!(%error, "the proxy cannot be waited for"),
            },
            Err(error) => tracing::warn!(%error, "the proxy cannot be started"),
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

fn start(file: &Path) -> std::io::Result<tokio::process::Child> {
    tokio::process::Command::new(std::env::current_exe()?)
        .args(["proxy", "--until-stdin-closes", "--config"])
        .arg(file)
        .stdin(Stdio::piped())
        .spawn()
}
