//! The loads, and what a run of one gave: rate and latency of its transactions.
//!
//! Invariant: what is run is what pgbench and go-tpc ship (YCSB's transactions are pgbench scripts).

use std::path::Path;

use super::mode::{Mode, Tables};
use super::{Options, tpcc, ycsb};
use crate::rates::{Logs, Rate};
use cluster::clients::schema::Server;

/// Of so many read-only transactions one is logged: the log itself costs.
const LOGGED_SHARE: f64 = 0.05;

/// Creates what the loads need besides pgbench's tables.
pub(super) async fn create(options: &Options, server: &Server) -> anyhow::Result<()> {
    let mut needed: Vec<Tables> = options
        .loads
        .iter()
        .filter_map(|(mode, _)| mode.tables())
        .collect();
    needed.dedup();
    for tables in needed {
        match tables {
            Tables::Ycsb => ycsb::create(options, server).await?,
            Tables::TpcC => tpcc::create(options.scale, server).await?,
        }
    }
    Ok(())
}

/// Runs one for some seconds. `dir` must not exist, and is gone afterwards.
pub(super) async fn run(
    options: &Options,
    server: &Server,
    dir: &Path,
    (mode, clients, seconds): (Mode, u16, u32),
) -> anyhow::Result<Rate> {
    if mode == Mode::TpcC {
        return tpcc::run(options.scale, &tpcc::of(server), clients, seconds).await;
    }
    let logs = Logs::create(dir)?;
    let mut arguments = vec![
        "--protocol=prepared".to_owned(),
        "--no-vacuum".to_owned(),
        format!("--client={clients}"),
        format!("--jobs={}", clients.min(2)),
        format!("--time={seconds}"),
    ];
    match mode {
        Mode::ReadWrite => {}
        Mode::ReadOnly => arguments.push("--select-only".to_owned()),
        _ => arguments.extend(ycsb::arguments(options, mode, dir)?),
    }
    if mode != Mode::ReadWrite {
        arguments.push(format!("--sampling-rate={LOGGED_SHARE}"));
    }
    logs.run(&options.bin, server, &arguments).await
}
