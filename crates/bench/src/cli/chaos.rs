//! Arguments of `understudy bench chaos`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{Common, Programs, duration};

/// Run a cluster under random faults, and check everything that clients were told.
///
/// Three zones and three nodes, each in a network namespace of its own and each zone with a disk of its own, so it
/// needs root, iproute2 and util-linux, and Debian's libfaketime for clocks that jump. The seed gives the schedule of
/// the faults, in rounds; after each round everything is healed and has to be whole again by itself. Ends with a
/// verdict: the exit code is 1 if anything is lost, invented, out of order, damaged, or not whole again. The directory
/// to work in is left in place then.
///
/// Ten minutes of faults; with --quick, one minute.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench chaos --quick
  understudy bench chaos --duration 2h --seed 7 --json >chaos.json
  understudy bench chaos --quick --flaw stale-reads       # has to fail
  understudy bench chaos --quick --flaw unproven-position # has to fail")]
pub struct BenchChaos {
    /// Options of every measurement.
    #[command(flatten)]
    pub common: Common,
    /// PostgreSQL.
    #[command(flatten)]
    pub programs: Programs,
    /// How long faults are struck; the round at hand is finished. 10m if not given, 1m with --quick.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub duration: Option<Duration>,
    /// The same seed gives the same faults in the same order.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Transactions a second of all clients together.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rate: u32,
    /// The heartbeat's preset: fast, normal or wide.
    #[arg(long, default_value = "normal", value_parser = ["fast", "normal", "wide"])]
    pub heartbeat: String,
    /// The program of the release before, as scripts/release-before prints it: everybody has it at first, and members are
    /// upgraded and go back all the time.
    #[arg(long, value_name = "PROGRAM")]
    pub before: Option<PathBuf>,
    /// Something that is wrong on purpose: the run has to fail.
    #[arg(long, value_enum)]
    pub flaw: Option<crate::chaos::Flaw>,
}
