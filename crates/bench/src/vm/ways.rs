//! The ways to protect the machine: what RemusDB's figures have on their axis.

use std::fmt;

use serde::Serialize;

/// Way to protect the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Checkpoints of whole pages; everything that leaves the machine waits.
    Plain,
    /// Pages and blocks by how they differ.
    Compression,
    /// Pages that hold what was read are named.
    ReadTracking,
    /// Both: what is transparent to database and clients.
    Memory,
    /// Plain, and only outcomes of transactions wait.
    Commits,
    /// All of them.
    All,
}

impl Way {
    /// The settings of both hosts.
    pub(super) fn settings(self, epoch_ms: u32) -> Vec<(String, String)> {
        let compression = matches!(self, Way::Compression | Way::Memory | Way::All);
        let read_tracking = matches!(self, Way::ReadTracking | Way::Memory | Way::All);
        let protection = match self {
            Way::Commits | Way::All => "commits",
            _ => "everything",
        };
        [
            ("checkpoint_interval", format!("\"{epoch_ms}ms\"")),
            ("protection", format!("\"{protection}\"")),
            ("compression", compression.to_string()),
            ("read_tracking", read_tracking.to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .to_vec()
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Way::Plain => "plain checkpoints",
            Way::Compression => "compression",
            Way::ReadTracking => "read tracking",
            Way::Memory => "both",
            Way::Commits => "commit protection",
            Way::All => "all",
        })
    }
}
