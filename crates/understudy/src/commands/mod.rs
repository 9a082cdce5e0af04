//! One module for each command; each returns what the process ends with. The commands of a product that was not built in
//! are there, and say so.

#[cfg(feature = "backup")]
mod backup;
mod bench;
mod beside;
#[cfg(feature = "backup")]
mod branch;
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
mod process;
mod proxies;
#[cfg(feature = "proxy")]
mod proxy;
mod psql;
mod registry;
mod repositories;
mod status;
mod store;
mod upgrade;
mod upkeep;
#[cfg(feature = "vm")]
mod vm;
mod watch;
mod zone;

pub use self::process::{interrupted, on_runtime, start_logging};
use crate::cli::{Cli, Command};
use crate::exit::Code;

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
            product!("backup", on_runtime(backup::run(_command)))
        }
        Command::Branch(_command) => product!("backup", on_runtime(branch::run(_command))),
        Command::Rewind(_args) => product!("backup", on_runtime(branch::rewind(_args))),
        Command::Timeline(_args) => product!("backup", on_runtime(backup::timeline(_args))),
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
        | Command::Branch(crate::cli::Branch::Run(_))
        | Command::Mirror(crate::cli::Mirror::Run(_))
        | Command::Vm(crate::cli::Vm::Run(_) | crate::cli::Vm::Protect(_)) => "info,scylla=error",
        // Its own words are the story; a log would only disturb it.
        Command::Demo(_) | Command::Bench(_) | Command::Dev(_) => "error",
        _ => "warn",
    }
}
