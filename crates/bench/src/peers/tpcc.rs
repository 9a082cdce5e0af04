//! TPC-C by go-tpc: its own schema, keys and think times of zero.
//!
//! Invariant: transactions of all five kinds count as throughput; latencies are those of new orders.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, ensure};
use tokio::process::Command;

use crate::rates::Rate;
use cluster::clients::schema::Server;
use cluster::clients::session::connect;

const DATABASE: &str = "tpcc";
const PROGRAM: &str = "go-tpc";
/// Of pgbench's scale for each warehouse: both take about 100 MB then.
const SCALE_PER_WAREHOUSE: u32 = 7;

/// True if the program is installed.
pub fn is_there() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir: PathBuf| dir.join(PROGRAM).is_file())
}

/// Creates its database, and fills it.
pub(super) async fn create(scale: u32, server: &Server) -> anyhow::Result<()> {
    let client = connect(&server.config()).await?;
    client
        .batch_execute(&format!("CREATE DATABASE {DATABASE}"))
        .await?;
    fill(scale, &of(server)).await
}

/// The server's database of it.
pub(super) fn of(server: &Server) -> Server {
    Server {
        database: DATABASE.to_owned(),
        ..server.clone()
    }
}

/// Creates and fills its tables in a database that is there.
pub(crate) async fn fill(scale: u32, server: &Server) -> anyhow::Result<()> {
    let words = ["prepare", "--no-check", "--threads=2"];
    go_tpc(scale, server, &words.map(str::to_owned))
        .await
        .map(drop)
}

/// Runs it for some seconds.
pub(crate) async fn run(
    scale: u32,
    server: &Server,
    clients: u16,
    seconds: u32,
) -> anyhow::Result<Rate> {
    let words = [
        "run".to_owned(),
        format!("--threads={clients}"),
        format!("--time={seconds}s"),
    ];
    let said = go_tpc(scale, server, &words).await?;
    rate(&said, seconds).with_context(|| format!("{PROGRAM} says nothing of its rate: {said}"))
}

async fn go_tpc(scale: u32, server: &Server, words: &[String]) -> anyhow::Result<String> {
    let warehouses = (scale / SCALE_PER_WAREHOUSE).max(1);
    let output = Command::new(PROGRAM)
        .arg("tpcc")
        .args(words)
        .args([
            "--driver=postgres",
            "--conn-params=sslmode=disable",
            "--password=",
        ])
        .args([
            format!("--warehouses={warehouses}"),
            format!("--db={}", server.database),
        ])
        .args([
            format!("--host={}", server.host),
            format!("--port={}", server.port),
        ])
        .arg(format!("--user={}", server.user))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("cannot run {PROGRAM}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{PROGRAM} failed: {}{said}",
        errors.trim()
    );
    Ok(said)
}

/// Reads the lines `[Summary] NEW_ORDER - Takes(s): 9.9, Count: 120, ..., 50th(ms): 15.2, ...`.
fn rate(said: &str, seconds: u32) -> Option<Rate> {
    let summaries = said
        .lines()
        .filter_map(|line| line.strip_prefix("[Summary] "));
    let kinds: BTreeMap<&str, &str> = summaries
        .filter_map(|line| line.split_once(" - "))
        .collect();
    let good = kinds.iter().filter(|(kind, _)| !kind.ends_with("_ERR"));
    let transactions: f64 = good.filter_map(|(_, line)| field(line, "Count")).sum();
    let orders = kinds.get("NEW_ORDER")?;
    Some(Rate {
        tps: transactions / f64::from(seconds.max(1)),
        transactions: transactions as u64,
        p50_ms: field(orders, "50th(ms)")?,
        p99_ms: field(orders, "99th(ms)")?,
    })
}

fn field(line: &str, name: &str) -> Option<f64> {
    let fields = line.split(", ").filter_map(|field| field.split_once(": "));
    let (_, value) = fields.into_iter().find(|(key, _)| *key == name)?;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_transactions_count_and_new_orders_have_the_latency() {
        let said = "\
[Current] NEW_ORDER - Takes(s): 9.9, Count: 999, TPM: 1.0, 50th(ms): 9.0, 99th(ms): 9.0
[Summary] NEW_ORDER - Takes(s): 9.9, Count: 450, TPM: 2727.0, Sum(ms): 1.0, 50th(ms): 15.2, 99th(ms): 28.3, Max(ms): 44.0
[Summary] NEW_ORDER_ERR - Takes(s): 9.9, Count: 3, TPM: 1.0, 50th(ms): 1.0, 99th(ms): 1.0
[Summary] PAYMENT - Takes(s): 9.9, Count: 430, TPM: 2605.0, Sum(ms): 1.0, 50th(ms): 9.4, 99th(ms): 20.0
tpmC: 2727.0, tpmTotal: 5332.0, efficiency: 2120.0%";
        let rate = rate(said, 10).unwrap();
        assert_eq!((rate.tps, rate.transactions), (88.0, 880));
        assert_eq!((rate.p50_ms, rate.p99_ms), (15.2, 28.3));
    }
}
