//! One module for each command; each returns what the process ends with. The commands of a product that was not built in
//! are there, and say so.

#[cfg(feature = "backup")]
mod backup;
mod bench;
mod cassandra;
mod configure;
mod demo;
#[cfg(feature = "cassandra")]
mod dev;
mod failover;
mod history;
#[cfg(feature = "engine")]
mod hosted;
mod init;
mod key;
mod list;
#[cfg(feature = "mirror")]
mod mirror;
mod node;
mod notes;
mod operate;
mod proxies;
#[cfg(feature = "proxy")]
mod proxy;
mod psql;
mod registry;
mod status;
mod store;
mod upgrade;
#[cfg(feature = "vm")]
mod vm;
mod watch;
mod zone;

use std::io::IsTerminal;
#[cfg(any(feature = "mirror", feature = "proxy", feature = "vm"))]
use std::path::Path;

use anyhow::Context;
#[cfg(any(feature = "mirror", feature = "proxy", feature = "vm"))]
use coordination::config::{ClusterConfig, ConfigError};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command};
use crate::exit::{Code, Failure};

/// Runs a product's command, if the product was built in.
macro_rules! product {
    ($feature:literal, $run:expr) => {{
        #[cfg(feature = $feature)]
        {
            $run
        }
        #[cfg(not(feature = $feature))]
        {
            Err($crate::exit::not_built($feature).into())
        }
    }};
}
use product;

/// Runs what was asked for.
///
/// # Errors
/// Whatever the command says; [`crate::exit`] translates it.
pub fn run(cli: Cli) -> anyhow::Result<Code> {
    start_logging(cli.log.as_deref(), usual_log(&cli.command))?;
    match cli.command {
        Command::Store(args) => on_runtime(store::run(args)),
        Command::Key(args) => key::run(args),
        Command::Init(args) => on_runtime(init::run(args)),
        Command::Node(args) => on_runtime(node::run(args)),
        Command::Proxy(_args) => product!("proxy", proxy::run(_args)),
        Command::Mirror(_command) => product!("mirror", mirror::run(_command)),
        Command::Vm(_command) => product!("vm", on_runtime(vm::run(_command))),
        Command::Psql(args) => on_runtime(psql::run(args)),
        Command::Status(args) => on_runtime(status::run(args)),
        Command::List(args) => on_runtime(list::run(args)),
        Command::Topology(args) => on_runtime(list::topology(args)),
        Command::Switchover(args) => on_runtime(operate::switch_over(args)),
        Command::Failover(args) => on_runtime(failover::run(args)),
        Command::History(args) => on_runtime(history::run(args)),
        Command::Flush(args) => on_runtime(operate::flush(args)),
        Command::Pause(args) => on_runtime(operate::pause(args)),
        Command::Resume(args) => on_runtime(operate::resume(args)),
        Command::Restart(args) => on_runtime(operate::restart(args)),
        Command::Reload(args) => on_runtime(operate::reload(args)),
        Command::Reinit(args) => on_runtime(operate::reinit(args)),
        Command::Remove(args) => on_runtime(operate::remove(args)),
        Command::AcceptCollations(args) => on_runtime(operate::accept_collations(args)),
        Command::Zone(command) => on_runtime(zone::run(command)),
        Command::Backup(_command) => {
            product!("backup", on_runtime(backup::run(_command, interrupted())))
        }
        Command::Upgrade(command) => on_runtime(upgrade::run(command)),
        Command::ShowConfig(args) => on_runtime(configure::show(args)),
        Command::EditConfig(args) => on_runtime(configure::edit(args)),
        Command::Bench(args) => bench::run(&args, cli.log.as_deref()),
        Command::Dev(_command) => product!("cassandra", on_runtime(dev::run(_command))),
        Command::Demo(args) => {
            #[cfg(feature = "vm")]
            if args.vm {
                cluster::machine::enter_network()?;
            }
            on_runtime(demo::run(args))
        }
    }
}

/// What suits the command, as a filter of its log.
fn usual_log(command: &Command) -> &'static str {
    match command {
        // Cassandra's driver tells of every connection, and of every one that it makes anew.
        Command::Store(_)
        | Command::Node(_)
        | Command::Proxy(_)
        | Command::Backup(crate::cli::Backup::Archive(_))
        | Command::Mirror(crate::cli::Mirror::Run(_))
        | Command::Vm(crate::cli::Vm::Run(_) | crate::cli::Vm::Protect(_)) => "info,scylla=error",
        // Its own words are the story; a log would only disturb it.
        Command::Demo(_) | Command::Bench(_) | Command::Dev(_) => "error",
        _ => "warn",
    }
}

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
fn on_threads(
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
#[cfg(any(feature = "mirror", feature = "proxy", feature = "vm"))]
fn load_table(
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
async fn asked_to_end(until_stdin_closes: bool) {
    tokio::select! {
        () = interrupted() => {}
        () = input_ends(until_stdin_closes) => {}
    }
}

/// Resolves when standard input ends, if that was asked for.
async fn input_ends(until_stdin_closes: bool) {
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
async fn terminated() {
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
