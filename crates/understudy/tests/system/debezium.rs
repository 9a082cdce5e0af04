//! Debezium's engine, as an application embeds it, reads the changes of a cluster over takeovers.
//!
//! Debezium promises that each change comes at least once: after its connection broke it begins at the position that it has stored.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::verify::ledger;
use cluster::programs;
use serde_json::Value;

use crate::backups::{take_over, wanted};
use crate::slots::{Row, active, decoding, follow, make};
use crate::stage::{Stage, TIMEOUT};

/// Takeovers of the test, each when the standby has the active's slots; more of them by hand.
const TAKEOVERS: (&str, u32) = ("UNDERSTUDY_TEST_TAKEOVERS", 3);
/// Takeovers in a row afterwards.
const IN_A_ROW: u32 = 5;
/// Class path for java: what java's -cp needs: scripts/debezium prints it.
const CLASSES: &str = "UNDERSTUDY_TEST_DEBEZIUM";

/// The process, which ends when its standard input is closed.
struct Reader {
    process: Child,
    _stdin: ChildStdin,
    changes: Receiver<(Instant, Row)>,
}

impl Reader {
    fn start(stage: &Stage) -> Result<Reader> {
        let classes = std::env::var(CLASSES).with_context(|| format!("{CLASSES} is not set"))?;
        let servers = stage.cluster.names().map(|name| stage.cluster.server(name));
        let servers = servers.collect::<Result<Vec<_>>>()?;
        let password = servers[0].password.clone().unwrap_or_default();
        let hosts = servers
            .iter()
            .map(|server| format!("127.0.0.1:{}", server.port));
        let log = std::fs::File::create(stage.path().join("logs/debezium.log"))?;
        let mut process = Command::new("java")
            .args(["-cp", &classes, "Ledger"])
            .arg(stage.path().join("position"))
            .args(hosts)
            .env("PGPASSWORD", password)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let stdin = process.stdin.take().context("no input")?;
        let stdout = BufReader::new(process.stdout.take().context("no output")?);
        let (sender, changes) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(row) = row(&line)
                    && sender.send((Instant::now(), row)).is_err()
                {
                    return;
                }
            }
        });
        Ok(Reader {
            process,
            _stdin: stdin,
            changes,
        })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The row that a change says was inserted.
fn row(line: &str) -> Option<Row> {
    let said: Value = serde_json::from_str(line).ok()?;
    let after = &said["after"];
    let client = i32::try_from(after["client"].as_i64()?).ok()?;
    Some((client, after["n"].as_i64()?))
}

/// Changes that came, in order.
#[derive(Default)]
struct Came {
    rows: BTreeSet<Row>,
    first: BTreeMap<i32, i64>,
    last: BTreeMap<i32, i64>,
    again: u64,
    gaps: Vec<Duration>,
    at: Option<Instant>,
}

impl Came {
    /// Takes a change; it must be the client's next, or have come before.
    fn take(&mut self, at: Instant, row: Row) -> Result<()> {
        if let Some(before) = self.at.replace(at) {
            self.gaps.push(at - before);
        }
        let (client, n) = row;
        if !self.rows.insert(row) {
            self.again += 1;
            return Ok(());
        }
        self.first.entry(client).or_insert(n);
        let last = self.last.insert(client, n).unwrap_or(i64::MIN);
        ensure!(last < n, "client {client}: {n} came after {last}");
        Ok(())
    }

    fn take_all(&mut self, reader: &Reader) -> Result<()> {
        while let Ok((at, row)) = reader.changes.try_recv() {
            self.take(at, row)?;
        }
        Ok(())
    }
}

// hazard: SL1
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-debezium"]
async fn an_engine_misses_nothing_over_takeovers() -> Result<()> {
    let mut stage = decoding("debezium", &programs::find(None)?).await?;
    let publication = "CREATE PUBLICATION debezium FOR TABLE understudy_ledger";
    // The engine makes its slot as well: see `make`.
    stage.stop_churn().await;
    make(&mut stage, &[publication]).await?;
    let reader = Reader::start(&stage)?;
    let mut came = Came::default();
    let (at, row) = tokio::task::block_in_place(|| reader.changes.recv_timeout(TIMEOUT))?;
    came.take(at, row)?;
    stage.start_churn();
    for _ in 0..wanted(TAKEOVERS)? {
        follow(&mut stage).await?;
        take_over(&mut stage, 1).await?;
        came.take_all(&reader)?;
    }
    take_over(&mut stage, IN_A_ROW).await?;
    let history = stage.load.take().context("no load")?.stop().await;
    stage.stop_churn().await;
    let all = ledger(&active(&mut stage).await?).await?;
    let deadline = Instant::now() + TIMEOUT;
    let missing = loop {
        came.take_all(&reader)?;
        let since = |row: &&Row| came.first.get(&row.0).is_some_and(|first| row.1 >= *first);
        let missing: Vec<&Row> = all
            .iter()
            .filter(since)
            .filter(|row| !came.rows.contains(row))
            .collect();
        if missing.is_empty() || Instant::now() > deadline {
            break missing.len();
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let all: BTreeSet<Row> = all.into_iter().collect();
    let lost: Vec<&Row> = came.rows.difference(&all).collect();
    came.gaps.sort();
    println!(
        "{} changes, {} of them again after a connection broke; longest times without one, in ms: {:?}; {} acknowledged",
        came.rows.len(),
        came.again,
        came.gaps
            .iter()
            .rev()
            .take(10)
            .map(Duration::as_millis)
            .collect::<Vec<_>>(),
        history.commits().count()
    );
    ensure!(missing == 0, "{missing} changes never came");
    ensure!(
        lost.is_empty(),
        "changes came that the table does not have: {lost:?}"
    );
    drop(reader);
    stage.end().await
}
