//! The work of the DAX benchmark: transactions that read much and write some, as TPC-C's do, on
//! pgbench's tables.
//!
//! Pages come from all over the table, which is many times larger than `shared_buffers`, so that a
//! transaction costs several reads and, sooner or later, several writes of the storage tier.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::Instant;

use cluster::clients::schema::Server;

/// Ten rows read and three written in two round trips; rows are written in ascending order, so that
/// no two transactions wait for each other in a circle.
const SCRIPT: &str = "\
\\set third 100000 * :scale / 3
\\set r1 random(1, 100000 * :scale)
\\set r2 random(1, 100000 * :scale)
\\set r3 random(1, 100000 * :scale)
\\set r4 random(1, 100000 * :scale)
\\set r5 random(1, 100000 * :scale)
\\set r6 random(1, 100000 * :scale)
\\set r7 random(1, 100000 * :scale)
\\set r8 random(1, 100000 * :scale)
\\set w1 random(1, :third)
\\set w2 random(:third + 1, 2 * :third)
\\set w3 random(2 * :third + 1, 3 * :third)
\\set delta random(-5000, 5000)
BEGIN;
SELECT sum(abalance) FROM pgbench_accounts WHERE aid IN (:r1, :r2, :r3, :r4, :r5, :r6, :r7, :r8);
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :w1;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :w2;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :w3;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (1, 1, :w1, :delta, CURRENT_TIMESTAMP);
COMMIT;
";

/// How to load a server.
#[derive(Debug, Clone)]
pub(super) struct Workload {
    pub bin: PathBuf,
    pub script: PathBuf,
    pub clients: u16,
    pub scale: u32,
}

impl Workload {
    /// Writes the script into `dir`.
    pub fn prepare(dir: &Path, bin: &Path, clients: u16, scale: u32) -> anyhow::Result<Workload> {
        let script = dir.join("transactions.sql");
        std::fs::write(&script, SCRIPT)
            .with_context(|| format!("cannot write {}", script.display()))?;
        Ok(Workload {
            bin: bin.to_owned(),
            script,
            clients,
            scale,
        })
    }

    fn command(&self, server: &Server, length: Duration) -> Command {
        let mut command = Command::new(self.bin.join("pgbench"));
        command
            .args(["--no-vacuum", "--jobs", "2", "--protocol", "prepared"])
            .args(["--client", &self.clients.to_string()])
            .args(["--time", &length.as_secs().max(1).to_string()])
            .args(["--scale", &self.scale.to_string()])
            .arg("--file")
            .arg(&self.script)
            .args(server.arguments())
            .envs(server.environment())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Transactions a second over a run.
    pub async fn run(&self, server: &Server, length: Duration) -> anyhow::Result<f64> {
        let output = self.command(server, length).arg(&server.database).output();
        let output = output.await.context("cannot run pgbench")?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "pgbench failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        crate::pgbench::tps(&said).with_context(|| format!("pgbench says nothing of tps: {said}"))
    }

    /// Transactions a second, second by second, for so long. A server that goes away ends a run of
    /// pgbench; the next one starts as soon as the server can be reached, and what lies between
    /// counts as nothing.
    pub async fn watch(&self, server: &Server, length: Duration) -> anyhow::Result<Vec<f64>> {
        let begun = Instant::now();
        let seconds = length.as_secs() as usize;
        let mut rates = vec![0.0; seconds];
        while begun.elapsed() < length {
            let offset = begun.elapsed();
            let mut command = self.command(server, length - offset);
            let mut pgbench = command
                .args(["--progress", "1"])
                .arg(&server.database)
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .context("cannot run pgbench")?;
            let said = pgbench.stderr.take().context("pgbench has a stderr")?;
            let mut lines = BufReader::new(said).lines();
            while let Some(line) = lines.next_line().await? {
                if let Some((at, tps)) = progress(&line) {
                    let second = (offset.as_secs_f64() + at).round() as usize;
                    if let Some(rate) = rates.get_mut(second.saturating_sub(1)) {
                        *rate = tps;
                    }
                }
            }
            pgbench.wait().await?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(rates)
    }
}

/// Finds time and rate in `progress: 3.0 s, 512.3 tps, lat 3.9 ms stddev 1.1, 0 failed`.
fn progress(line: &str) -> Option<(f64, f64)> {
    let rest = line.strip_prefix("progress: ")?;
    let (at, rest) = rest.split_once(" s, ")?;
    let (tps, _) = rest.split_once(" tps")?;
    Some((at.parse().ok()?, tps.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_found_in_what_pgbench_prints() {
        let line = "progress: 3.0 s, 512.3 tps, lat 3.902 ms stddev 1.101, 0 failed";
        assert_eq!(progress(line), Some((3.0, 512.3)));
        assert_eq!(progress("pgbench: error: connection lost"), None);
    }
}
