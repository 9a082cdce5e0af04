//! The loads by name.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What the transactions do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// pgbench's TPC-B.
    ReadWrite,
    /// pgbench's `--select-only`.
    ReadOnly,
    /// YCSB A: half reads, half updates.
    YcsbA,
    /// YCSB B: one update in twenty.
    YcsbB,
    /// YCSB C: reads.
    YcsbC,
    /// TPC-C, by go-tpc.
    TpcC,
}

impl Mode {
    /// As it is called in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::ReadWrite => "read-write",
            Mode::ReadOnly => "read-only",
            Mode::YcsbA => "YCSB A",
            Mode::YcsbB => "YCSB B",
            Mode::YcsbC => "YCSB C",
            Mode::TpcC => "TPC-C",
        }
    }

    /// Which tables it needs besides pgbench's.
    pub(super) fn tables(self) -> Option<Tables> {
        match self {
            Mode::ReadWrite | Mode::ReadOnly => None,
            Mode::YcsbA | Mode::YcsbB | Mode::YcsbC => Some(Tables::Ycsb),
            Mode::TpcC => Some(Tables::TpcC),
        }
    }
}

/// Tables besides pgbench's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tables {
    Ycsb,
    TpcC,
}
