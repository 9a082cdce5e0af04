//! One measurement: a line of JSON, written when it is made and read for the report.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::Distance;
use super::footprint::Footprint;
use super::loss::Loss;
use super::mode::Mode;
use super::system::Kind;
use crate::rates::Rate;

/// A line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Of which system.
    pub system: Kind,
    /// How it was measured.
    #[serde(flatten)]
    pub setting: Setting,
    /// What was measured.
    #[serde(flatten)]
    pub finding: Finding,
}

/// How it was measured: only records with the same setting are compared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// How far the sites are apart.
    pub distance: Distance,
    /// True if each side had a processor of its own.
    pub pinned: bool,
    /// pgbench's scale.
    pub scale: u32,
    /// `shared_buffers`.
    pub buffers_mb: u32,
    /// `checkpoint_timeout`.
    pub checkpoint_seconds: u32,
    /// Patroni's `ttl`.
    pub patroni_ttl: u32,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Finding {
    /// A run of a load.
    Load {
        /// Kind of load.
        mode: Mode,
        /// How many at once.
        clients: u16,
        /// Duration of the run.
        seconds: u32,
        /// Throughput and latency.
        #[serde(flatten)]
        rate: Rate,
        /// At what cost, with the checkpoint at its end.
        footprint: Footprint,
    },
    /// The loss of the active's machine.
    Loss {
        /// Clients at full speed.
        clients: u16,
        /// What was seen.
        #[serde(flatten)]
        loss: Loss,
    },
}

/// Appends a record to a file of lines.
///
/// # Errors
/// It cannot be written.
pub fn append(path: &Path, record: &Record) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(record)?;
    line.push('\n');
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path);
    let written = file.as_mut().map(|file| file.write_all(line.as_bytes()));
    match written {
        Ok(Ok(())) => Ok(()),
        _ => anyhow::bail!("cannot write {}", path.display()),
    }
}

/// Reads a file of lines.
///
/// # Errors
/// It cannot be read, or a line is no record.
pub fn read(path: &Path) -> anyhow::Result<Vec<Record>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let parse = |(at, line): (usize, &str)| {
        let record = serde_json::from_str(line);
        record.with_context(|| format!("{}, line {}", path.display(), at + 1))
    };
    text.lines().enumerate().map(parse).collect()
}
