//! A command as a process: a log, a runtime, the wish to end it, and its configuration.

use std::io::IsTerminal;
#[cfg(any(
    feature = "backup",
    feature = "mirror",
    feature = "proxy",
    feature = "vm"
))]
use std::path::Path;

use anyhow::Context;
#[cfg(any(
    feature = "backup",
    feature = "mirror",
    feature = "proxy",
    feature = "vm"
))]
use coordination::config::{ClusterConfig, ConfigError};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::exit::{Code, Failure};

/// Logs to standard error: by `filter` (`--log`), else by RUST_LOG, else by what is `usual`.
///
/// # Errors
/// The filter is none.
pub fn start_logging(filter: Option<&str>, usual: &str) -> anyhow::Result<()> {
    let from_environment = std::env::var("RUST_LOG")
        .ok()
        .filter(|text| !text.is_empty());
    let chosen = filter.or(from_environment.as_deref()).unwrap_or(usual);
    let filter = EnvFilter::try_new(chosen).map_err(|error| {
        Failure::new(Code::Usage, format!("cannot log by {chosen:?}: {error}"))
            .advise("Write for example --log debug, or --log node=debug,info.")
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    Ok(())
}

/// Runs a command that needs the async runtime.
///
/// # Errors
/// The command's, or the runtime cannot start.
pub fn on_runtime(command: impl Future<Output = anyhow::Result<Code>>) -> anyhow::Result<Code> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(command)
}

/// Runs a service on so many threads. One is cheaper than a pool of one, which wakes its only member for each message.
#[cfg(any(feature = "mirror", feature = "proxy"))]
pub(super) fn on_threads(
    threads: usize,
    work: impl Future<Output = anyhow::Result<Code>>,
) -> anyhow::Result<Code> {
    let mut runtime = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    runtime
        .worker_threads(threads)
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(work)
}

/// What a configuration says of its cluster, and its table of this name as a text of its own. `check` judges its keys, and
/// `advice` says what to write if the table is not there.
#[cfg(any(
    feature = "backup",
    feature = "mirror",
    feature = "proxy",
    feature = "vm"
))]
pub(super) fn load_table(
    file: &Path,
    check: impl FnOnce(&str) -> Result<(), ConfigError>,
    name: &str,
    advice: &str,
) -> anyhow::Result<(ClusterConfig, String)> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the configuration {}", file.display()))?;
    check(&text)?;
    let cluster = ClusterConfig::parse(&text, None)?;
    let whole: toml::Table = text.parse()?;
    let table = whole.get(name).ok_or_else(|| {
        Failure::new(Code::Usage, format!("{} has no [{name}]", file.display())).advise(advice)
    })?;
    Ok((cluster, toml::to_string(table)?))
}

/// As [`interrupted`], and when standard input ends, if that was asked for: then whoever started
/// this process is gone, however it ended.
pub(super) async fn asked_to_end(until_stdin_closes: bool) {
    tokio::select! {
        () = interrupted() => {}
        () = input_ends(until_stdin_closes) => {}
    }
}

/// Resolves when standard input ends, if that was asked for.
pub(super) async fn input_ends(until_stdin_closes: bool) {
    match until_stdin_closes {
        true => stdin_closed().await,
        false => std::future::pending().await,
    }
}

/// Resolves at the end of standard input. On a thread of its own: the runtime waits for its own.
async fn stdin_closed() {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        // An error is an end as well.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = tell.send(());
    });
    let _ = told.await;
}

/// Resolves when the user or the system asks the process to end.
pub async fn interrupted() {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else {
        tracing::error!("cannot listen for signals: a hangup will end the process at once");
        return terminated().await;
    };
    tokio::select! {
        () = terminated() => {}
        _ = hangup.recv() => {}
    }
}

/// The same but for SIGHUP, which tells some to read their configuration again.
pub(super) async fn terminated() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        tracing::error!("cannot listen for signals: an interrupt will not be noticed");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
