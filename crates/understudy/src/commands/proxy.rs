//! `understudy proxy`: one address that survives takeovers, in front of a cluster's servers.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use coordination::channel::Party;
use coordination::config::ClusterConfig;
use coordination::{service, tier};
use proxy::config::Config;
use proxy::driver::agents_source::AgentsSource;
use proxy::driver::{Predecessor, Proxy, ReadAgain, serve};

use tokio::signal::unix::{SignalKind, signal};

use crate::cli;
use crate::exit::Code;

/// Serves clients until it is asked to end; then lets their transactions end.
pub fn run(args: cli::Proxy) -> anyhow::Result<Code> {
    let (cluster, config) = load(&args.config)?;
    super::process::on_threads(config.threads, run_with(args, cluster, config))
}

async fn run_with(
    args: cli::Proxy,
    cluster: ClusterConfig,
    config: Config,
) -> anyhow::Result<Code> {
    let until_stdin_closes = args.until_stdin_closes;
    let asked_to_end = async move {
        tokio::select! {
            () = super::process::terminated() => {}
            () = super::process::input_ends(until_stdin_closes) => {}
        }
    };
    let predecessor = Predecessor::meet().await?;
    let me = Party::new(&cluster)?;
    let (cluster, registry) = tier::current(&cluster, cluster.name.as_str()).await?;
    let source = AgentsSource::new(me, registry, Some(cluster), &config);
    let again: ReadAgain = Box::new(move || Ok(load(&args.config)?.1));
    let proxy = Proxy::new(config, Arc::new(source), Some(again))?;
    proxy.allow_restart();
    // Who takes another process's place was never missed: that one says who is the main process, and only that is heeded.
    if predecessor.is_none() {
        service::ready();
    }
    tokio::select! {
        served = serve(Arc::clone(&proxy), predecessor, asked_to_end) => served?,
        never = reload(&proxy) => match never {},
    }
    Ok(Code::Ok)
}

/// Reads the configuration again at each SIGHUP. One that is invalid changes nothing.
async fn reload(proxy: &Proxy) -> Infallible {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else {
        tracing::error!("cannot listen for SIGHUP: the configuration is read at the start only");
        return std::future::pending().await;
    };
    while hangup.recv().await.is_some() {
        match proxy.reload() {
            Ok(waits) if waits.is_empty() => tracing::info!("the configuration was read again"),
            Ok(waits) => tracing::warn!(
                "the configuration was read again; at the next start only: {}",
                waits.join(", ")
            ),
            Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "no reload"),
        }
    }
    std::future::pending().await
}

/// What the file says of the cluster, and of the proxy.
fn load(file: &Path) -> anyhow::Result<(ClusterConfig, Config)> {
    let advice = "Write for example [proxy] and below it listen = \"10.0.0.1:6432\".";
    let check = node::config::Config::check_keys;
    let (cluster, proxy) = super::process::load_table(file, check, "proxy", advice)?;
    Ok((cluster, Config::parse(&proxy)?))
}
