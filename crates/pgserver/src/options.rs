//! How a server is started and stopped, and how it ended: plain data.

use std::fmt;
use std::path::PathBuf;

use nix::sys::signal::Signal;

use supervise::{Exit, RunAs};

use super::logfile;

/// What a server is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartOptions {
    /// The data directory (the mount).
    pub data: PathBuf,
    /// The directory of the Unix socket and the pid file, accessible to `run_as`.
    pub run: PathBuf,
    /// The server log.
    pub log: PathBuf,
    /// The port of socket and network.
    pub port: u16,
    /// PostgreSQL's `listen_addresses`; may be empty.
    pub listen_addresses: String,
    /// The role that sessions of the agent use.
    pub superuser: String,
    /// Parameters for the command line; the last of a name wins.
    pub settings: Vec<(String, String)>,
    /// Who it runs as, if not as this process.
    pub run_as: Option<RunAs>,
}

/// How a server is asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// Waits for clients to leave.
    Smart,
    /// Ends sessions, then writes a shutdown checkpoint.
    Fast,
    /// At once, without a checkpoint.
    Immediate,
}

impl StopMode {
    pub(super) fn signal(self) -> Signal {
        match self {
            StopMode::Smart => Signal::SIGTERM,
            StopMode::Fast => Signal::SIGINT,
            StopMode::Immediate => Signal::SIGQUIT,
        }
    }
}

/// How a server ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitReport {
    /// The exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The last lines of its log.
    pub log: Vec<String>,
}

impl From<Exit> for ExitReport {
    fn from(exit: Exit) -> ExitReport {
        let Exit { code, signal, log } = exit;
        ExitReport { code, signal, log }
    }
}

impl ExitReport {
    /// True if it stopped as asked. Not whether it wrote its last checkpoint: an immediate shutdown is as much of a
    /// success to PostgreSQL, and its control file tells them apart.
    pub fn is_success(&self) -> bool {
        self.code == Some(0)
    }

    /// True if redo failed, so that the same attach would fail again.
    pub fn redo_failed(&self) -> bool {
        logfile::redo_failed(&self.log)
    }
}

impl fmt::Display for ExitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}")?,
            (None, Some(signal)) => write!(f, "signal {signal}")?,
            (None, None) => write!(f, "unknown status")?,
        }
        match logfile::reason(&self.log) {
            Some(reason) => write!(f, "; its log says: {reason}"),
            None => Ok(()),
        }
    }
}
