//! The command line: what can be asked for, with its help and examples.

// These comments are help texts: [tls] and <SEED> are what users type.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

mod backup;
mod bench;
mod branch;
mod cluster;
mod demo;
mod dev;
mod mirror;
mod operate;
mod upgrade;
mod vm;
mod zone;

use std::time::Duration;

use clap::{Parser, Subcommand};
use dax::ids::{NodeName, VolumeName};

pub use self::cluster::*;
pub use backup::*;
pub use bench::*;
pub use branch::*;
pub use demo::*;
pub use dev::*;
pub use mirror::*;
pub use operate::*;
pub use upgrade::*;
pub use vm::*;
pub use zone::*;

const AFTER_HELP: &str = "\
Exit codes: 0 success; 1 failure, or a failed check; 2 invalid command line or configuration;
3 not available now (zones, agent, something that must be installed); 4 refused; 130 interrupted.

Try it:  understudy demo";

/// Keeps an unmodified PostgreSQL available: standbys replay the log from shared, replicated storage,
/// and take over within a second or two without losing a commit.
#[derive(Debug, Parser)]
#[command(name = "understudy", version, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Cli {
    /// What to log to standard error: error, warn, info, debug or trace, or a level for each part
    /// ("node=debug,info"). RUST_LOG does the same.
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be asked for.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)] // the documentation of a variant's arguments is its help text
pub enum Command {
    Store(Store),
    Key(Key),
    Init(Init),
    Node(Node),
    Proxy(Proxy),
    #[command(subcommand)]
    Mirror(Mirror),
    #[command(subcommand)]
    Vm(Vm),
    Psql(Psql),
    Status(Status),
    List(List),
    Topology(Topology),
    History(History),
    Switchover(Switchover),
    Failover(Failover),
    Flush(Flush),
    Pause(Pause),
    Resume(Resume),
    Restart(Restart),
    Reload(Reload),
    Reinit(Reinit),
    Remove(Remove),
    AcceptCollations(AcceptCollations),
    #[command(subcommand)]
    Zone(Zone),
    #[command(subcommand)]
    Backup(Backup),
    #[command(subcommand)]
    Branch(Branch),
    /// Take the database back to a moment. What it has been since stays as a branch.
    Rewind(Rewind),
    /// Show which moments a repository of backups can be restored to.
    Timeline(BackupRepository),
    #[command(subcommand)]
    Upgrade(Upgrade),
    ShowConfig(ShowConfig),
    EditConfig(EditConfig),
    Demo(Demo),
    Bench(Bench),
    #[command(subcommand)]
    Dev(Dev),
}

/// A length of time such as `30s`, `500ms`, `2m` or `1m 30s`.
///
/// # Errors
/// The text is no length of time, or its length is zero; the error says what to write.
pub fn duration(text: &str) -> Result<Duration, String> {
    let parsed = humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write for example 30s, 500ms or 2m"))?;
    if parsed.is_zero() {
        return Err("must be longer than zero".into());
    }
    Ok(parsed)
}

fn node_name(text: &str) -> Result<NodeName, String> {
    NodeName::new(text).map_err(|error| error.to_string())
}

fn volume_name(text: &str) -> Result<VolumeName, String> {
    VolumeName::new(text).map_err(|error| error.to_string())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("must be a number of at least 1".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_key_command_makes_one_thing() {
        let parse = |words: &str| Cli::try_parse_from(words.split(' '));
        let accepted = [
            "understudy key --new-identity i",
            "understudy key --new-secret s",
            "understudy key --secret-file s --volume main",
            "understudy key --secret-file s --volume main --output k",
        ];
        let refused = [
            "understudy key",
            "understudy key --new-identity i --new-secret s",
            "understudy key --secret-file s",
            "understudy key --volume main",
            "understudy key --new-secret s --volume main",
            "understudy key --new-secret s --output k",
            "understudy key --secret-file s --volume no/name",
        ];
        for words in accepted {
            assert!(parse(words).is_ok(), "{words}");
        }
        for words in refused {
            assert!(parse(words).is_err(), "{words}");
        }
    }

    #[test]
    fn a_zone_has_one_kind_of_certificate_and_all_of_it() {
        let parse = |words: &str| {
            let words = format!("understudy store --data d --listen a:1 {words}");
            Cli::try_parse_from(words.split_whitespace())
        };
        let own = "--certificate c --certificate-key k --ca a";
        for words in ["", "--identity i", own] {
            assert!(parse(words).is_ok(), "{words}");
        }
        for words in [
            "--certificate c",
            "--certificate c --ca a",
            "--ca a",
            "--certificate-key k",
            &format!("--identity i {own}"),
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
    }

    #[test]
    fn a_restart_is_of_one_node_or_of_all() {
        let parse = |words: &str| Cli::try_parse_from(words.split(' '));
        for good in ["", " south", " --all", " --all --rolling"] {
            let words = format!("understudy restart --config n.toml{good}");
            assert!(parse(&words).is_ok(), "{words}");
        }
        for bad in [" south --all", " --rolling", " no/name"] {
            let words = format!("understudy restart --config n.toml{bad}");
            assert!(parse(&words).is_err(), "{words}");
        }
        let watched = parse("understudy list --config n.toml --watch 5").unwrap();
        let Command::List(list) = watched.command else {
            panic!("another command");
        };
        assert_eq!(list.watching.watch, Some(Duration::from_secs(5)));
    }

    #[test]
    fn lengths_of_time_have_units() {
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert!(duration("30").is_err());
        assert!(duration("0s").is_err());
    }
}
