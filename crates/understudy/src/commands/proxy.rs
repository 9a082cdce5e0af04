//! `understudy proxy`: one address that survives takeovers, in front of a cluster's servers.

use std::convert::Infallible;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use coordination::channel::Party;
use coordination::config::ClusterConfig;
use coordination::{service, tier};
use proxy::config::Config;
use proxy::driver::agents_source::AgentsSource;
use proxy::driver::{Predecessor, Proxy, ReadAgain, serve};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::process::{Child, ChildStdin};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli;
use crate::exit::Code;

/// The wait before a proxy that has ended is started again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Serves clients until it is asked to end; then lets their transactions end.
pub fn run(args: cli::Proxy) -> anyhow::Result<Code> {
    let (cluster, config) = load(&args.config)?;
    super::on_threads(config.threads, run_with(args, cluster, config))
}

async fn run_with(
    args: cli::Proxy,
    cluster: ClusterConfig,
    config: Config,
) -> anyhow::Result<Code> {
    let until_stdin_closes = args.until_stdin_closes;
    let asked_to_end = async move {
        tokio::select! {
            () = super::terminated() => {}
            () = super::input_ends(until_stdin_closes) => {}
        }
    };
    let predecessor = Predecessor::meet().await?;
    let registry = tier::connect(&cluster, cluster.name.as_str()).await?;
    let me = Party::new(&cluster)?;
    let source = AgentsSource::new(me, registry, &config);
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

/// Reads the configuration again at each SIGHUP. One that makes no sense changes nothing.
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
    let (cluster, proxy) = super::load_table(file, check, "proxy", advice)?;
    Ok((cluster, Config::parse(&proxy)?))
}

/// Runs the proxy of a node's configuration beside its agent, as a process of its own, and starts it again if it ends. Dropping
/// the future asks it to end: its standard input closes.
///
/// A process of its own, because the agent must not suffer from it: the agent serves the mount that PostgreSQL works on, and
/// its death is a takeover.
pub(super) async fn beside_agent(file: PathBuf) -> Infallible {
    loop {
        match start(&file) {
            Ok(child) => match attend(child).await {
                Ok(status) => tracing::warn!(%status, "the proxy ended; starting it again"),
                Err(error) => tracing::warn!(%error, "the proxy cannot be waited for"),
            },
            Err(error) => tracing::warn!(%error, "the proxy cannot be started"),
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// Waits until a proxy has ended, and whatever process has taken its place: they share the standard input, by which they would
/// be asked to end.
async fn attend(mut child: Child) -> std::io::Result<ExitStatus> {
    // Left there it would be closed now.
    let input = child.stdin.take();
    let status = child.wait().await?;
    while input.as_ref().is_some_and(is_read) {
        tokio::time::sleep(AGAIN_AFTER).await;
    }
    Ok(status)
}

/// True if somebody has the other end of a pipe.
fn is_read(input: &ChildStdin) -> bool {
    let mut ends = [PollFd::new(input.as_fd(), PollFlags::empty())];
    let polled = poll(&mut ends, PollTimeout::ZERO);
    let is_broken = |end: &PollFd<'_>| {
        let events = end.revents();
        events.is_none_or(|events| events.contains(PollFlags::POLLERR))
    };
    polled.is_ok() && !ends.iter().any(is_broken)
}

fn start(file: &Path) -> std::io::Result<Child> {
    tokio::process::Command::new(std::env::current_exe()?)
        .args(["proxy", "--until-stdin-closes", "--config"])
        .arg(file)
        .stdin(Stdio::piped())
        .spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str) -> Child {
        let mut command = tokio::process::Command::new("sh");
        let command = command.args(["-c", script]).stdin(Stdio::piped());
        command.spawn().expect("a shell")
    }

    async fn has_ended(script: &str) -> bool {
        let attending = attend(run(script));
        tokio::time::timeout(Duration::from_millis(300), attending)
            .await
            .is_ok()
    }

    /// Waiting for a child closes its standard input, unless that was taken: then the proxy ended as soon as it was started.
    #[tokio::test]
    async fn a_proxy_is_there_until_it_and_its_successors_have_ended() {
        assert!(!has_ended("cat").await, "it serves");
        let successor = "exec 3<&0; cat <&3 & exit 0";
        assert!(!has_ended(successor).await, "another process serves");
        assert!(has_ended("exit 0").await);
    }
}
