//! How one kind of server is made, started, found ready and stopped: plain data, made from the configuration.

pub mod mariadb;

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::layout::Pattern;

/// Where a server finds what is its own. Each stands for a word in braces in configured commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The mounted volume: `{data}`.
    pub data: PathBuf,
    /// A local directory for its socket and its pid file: `{run}`.
    pub run: PathBuf,
    /// A local directory for temporary files, emptied before each start: `{tmp}`.
    pub tmp: PathBuf,
}

/// A program and what it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// The program's path.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// How to see that a server is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ready {
    /// A connection to this Unix socket is accepted, and its first bytes are a greeting of MySQL's protocol that
    /// is no refusal.
    MySqlGreeting(PathBuf),
    /// A connection to this address is accepted (`host:port`, or a path).
    Connects(String),
    /// This program exits with 0.
    Program(Invocation),
}

/// Everything the agent must know of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// What it is, for people: `MariaDB`.
    pub name: String,
    /// The user that it runs as when the agent is root.
    pub run_as: String,
    /// Makes a new database in an empty, mounted volume.
    pub init: Option<Invocation>,
    /// Invocation of the server itself.
    pub server: Invocation,
    /// See [`Ready`].
    pub ready: Ready,
    /// How long a start may take, recovery included.
    pub ready_within: Duration,
    /// What makes the server stop cleanly.
    pub stop_signal: Signal,
    /// How long a clean stop may take; then it is killed.
    pub stop_within: Duration,
    /// Files that are of this run only.
    pub private: Vec<Pattern>,
    /// Addresses that must be free before a start.
    pub listens: Vec<(String, u16)>,
    /// Where clients reach it, as the node's record tells.
    pub reached: String,
    /// Settings that are safe and that an operator should know of all the same.
    pub warnings: Vec<String>,
    /// The size in bytes that the volume's blocks must have at least, so that no page is torn.
    pub page_bytes: u32,
    /// Prints the server's version.
    pub version: Option<Invocation>,
}

impl Places {
    /// A configured command with the words in braces replaced.
    pub fn expand(&self, command: &[String]) -> Option<Invocation> {
        let (program, arguments) = command.split_first()?;
        let expand = |text: &String| {
            let with =
                |text: String, word: &str, path: &Path| text.replace(word, &path.to_string_lossy());
            let text = with(text.clone(), "{data}", &self.data);
            let text = with(text, "{run}", &self.run);
            with(text, "{tmp}", &self.tmp)
        };
        Some(Invocation {
            program: PathBuf::from(expand(program)),
            arguments: arguments.iter().map(expand).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_braces_are_places() {
        let places = Places {
            data: "/d".into(),
            run: "/r".into(),
            tmp: "/t".into(),
        };
        let command = ["/bin/x", "--data={data}/db", "{run}/{tmp}", "{other}"].map(str::to_owned);
        let invocation = places.expand(&command).unwrap();
        assert_eq!(invocation.program, PathBuf::from("/bin/x"));
        assert_eq!(invocation.arguments, ["--data=/d/db", "/r//t", "{other}"]);
        assert_eq!(places.expand(&[]), None);
    }
}
