//! What clients see when the primary is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::site::Site;

const MODES: [&str; 2] = ["session", "transaction"];

async fn number(client: &Client, text: &str) -> i64 {
    client.query_one(text, &[]).await.expect(text).get(0)
}

// hazard: PROXY-14
#[tokio::test(flavor = "multi_thread")]
async fn idle_sessions_and_open_transactions_go_on() {
    for mode in MODES {
        let site = Site::start(&format!("auth = \"trust\"\npool_mode = \"{mode}\"")).await;
        let idle = site.connect().await;
        idle.batch_execute("CREATE TABLE t (a int); SET work_mem = '7MB'")
            .await
            .expect("set up");
        let prepared = idle
            .prepare("SELECT count(*) FROM t WHERE a > $1")
            .await
            .expect("prepared");
        let mut open = site.connect().await;
        let transaction = open.transaction().await.expect("begins");
        transaction
            .execute("INSERT INTO t VALUES (1)", &[])
            .await
            .expect("inserts");
        let row = transaction
            .query_one("SELECT count(*) FROM t", &[])
            .await
            .expect("counts");
        assert_eq!(row.get::<_, i64>(0), 1);
        let other = site.connect().await;
        other
            .batch_execute("BEGIN; SELECT clock_timestamp()")
            .await
            .expect("begins");

        site.take_over();

        transaction
            .execute("INSERT INTO t VALUES (2)", &[])
            .await
            .expect("goes on");
        transaction.commit().await.expect("commits");
        let row = idle
            .query_one(&prepared, &[&0])
            .await
            .expect("the statement is there");
        assert_eq!(row.get::<_, i64>(0), 2, "{mode}");
        let row = idle.query_one("SHOW work_mem", &[]).await.expect("shows");
        assert_eq!(row.get::<_, &str>(0), "7MB", "{mode}");
        // This one got another answer than it has had.
        let failed = other
            .batch_execute("SELECT 1")
            .await
            .expect_err("cannot go on");
        assert_eq!(
            failed.code(),
            Some(&SqlState::T_R_SERIALIZATION_FAILURE),
            "{mode}"
        );
        other.batch_execute("ROLLBACK").await.expect("rolls back");
        assert_eq!(number(&other, "SELECT count(*) FROM t").await, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unrestorable_state_is_reported() {
    let site = Site::start("auth = \"trust\"").await;
    let client = site.connect().await;
    client
        .batch_execute("CREATE TEMP TABLE t (a int)")
        .await
        .expect("creates");
    site.take_over();
    let lost = client
        .batch_execute("SELECT 1")
        .await
        .expect_err("its table is gone");
    assert!(
        lost.is_closed() || lost.code() == Some(&SqlState::ADMIN_SHUTDOWN),
        "{lost:?}"
    );
}

/// What one writer was told.
#[derive(Default)]
struct WriteLog {
    committed: Vec<i64>,
    failed: Vec<i64>,
    errors: Vec<String>,
}

/// Inserts numbers until it is told to stop: by itself, or in a transaction with an older one.
async fn write(client: Client, writer: i64, stop: Arc<AtomicBool>) -> WriteLog {
    let mut told = WriteLog::default();
    for at in 0.. {
        if stop.load(Ordering::Relaxed) {
            return told;
        }
        let value = writer * 1_000_000 + at;
        let text = match at % 3 {
            0 => {
                client
                    .batch_execute(&format!("INSERT INTO t VALUES ({value})"))
                    .await
            }
            1 => client
                .execute("INSERT INTO t VALUES ($1)", &[&value])
                .await
                .map(|_| ()),
            _ => in_block(&client, value).await,
        };
        match text {
            Ok(()) => told.committed.push(value),
            Err(error) => {
                let code = error
                    .code()
                    .map_or_else(|| error.to_string(), |code| code.code().to_owned());
                if code != "08007" {
                    told.failed.push(value);
                }
                told.errors.push(code);
                // If it was in a block, that is over.
                let _ = client.batch_execute("ROLLBACK").await;
            }
        }
    }
    told
}

async fn in_block(client: &Client, value: i64) -> Result<(), tokio_postgres::Error> {
    client.batch_execute("BEGIN").await?;
    client
        .execute("SELECT count(*) FROM t WHERE a = $1", &[&value])
        .await?;
    client
        .execute("INSERT INTO t VALUES ($1)", &[&value])
        .await?;
    client.batch_execute("COMMIT").await
}

// hazard: PROXY-2
#[tokio::test(flavor = "multi_thread")]
async fn commits_are_never_lost_or_reported_wrongly() {
    for mode in MODES {
        let site = Site::start(&format!("auth = \"trust\"\npool_mode = \"{mode}\"")).await;
        let client = site.connect().await;
        client
            .batch_execute("CREATE TABLE t (a bigint)")
            .await
            .expect("creates");
        let stop = Arc::new(AtomicBool::new(false));
        let mut writers = Vec::new();
        for writer in 0..6 {
            let client = site.connect().await;
            writers.push(tokio::spawn(write(client, writer, stop.clone())));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        tokio::task::block_in_place(|| site.take_over());
        tokio::time::sleep(Duration::from_millis(500)).await;
        stop.store(true, Ordering::Relaxed);
        let rows = client
            .query("SELECT a FROM t", &[])
            .await
            .expect("the connection was kept");
        drop(rows);
        let mut all = Vec::new();
        for writer in writers {
            all.push(writer.await.expect("it ends"));
        }
        let rows = client
            .query("SELECT a FROM t ORDER BY a", &[])
            .await
            .expect("reads");
        let found: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        let mut once = found.clone();
        once.dedup();
        assert_eq!(once.len(), found.len(), "{mode}: something was done twice");
        let mut committed = 0;
        for told in &all {
            committed += told.committed.len();
            for value in &told.committed {
                assert!(
                    found.binary_search(value).is_ok(),
                    "{mode}: {value} is lost"
                );
            }
            for value in &told.failed {
                assert!(
                    found.binary_search(value).is_err(),
                    "{mode}: {value} was told to have failed"
                );
            }
            for code in &told.errors {
                assert!(
                    ["40001", "08007"].contains(&code.as_str()),
                    "{mode}: {code}"
                );
            }
        }
        assert!(committed > 0);
        println!(
            "{mode}: {committed} commits, {} errors; {}",
            all.iter().map(|told| told.errors.len()).sum::<usize>(),
            site.proxy
                .metrics()
                .lines()
                .filter(|line| !line.starts_with('#'))
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
}

/// What was committed before `AND CHAIN` was run again with what came behind it.
// hazard: PROXY-3
#[tokio::test(flavor = "multi_thread")]
async fn committed_part_of_a_chain_is_there_once() {
    let site = Site::start("auth = \"trust\"").await;
    let mut clients = Vec::new();
    for (at, next) in ["COMMIT AND CHAIN", "COMMIT; BEGIN"]
        .into_iter()
        .enumerate()
    {
        let client = site.connect().await;
        let texts = [
            format!("CREATE TABLE t{at} (a int)"),
            "BEGIN".to_owned(),
            format!("INSERT INTO t{at} VALUES (1)"),
            next.to_owned(),
            format!("INSERT INTO t{at} VALUES (2)"),
        ];
        for text in texts {
            client.batch_execute(&text).await.expect(&text);
        }
        clients.push(client);
    }
    site.take_over();
    for (at, client) in clients.into_iter().enumerate() {
        let failed = client
            .batch_execute("COMMIT")
            .await
            .expect_err("it is lost");
        assert_eq!(failed.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
        client
            .batch_execute("ROLLBACK")
            .await
            .expect("nothing is open");
        let found = number(&client, &format!("SELECT sum(a) FROM t{at}")).await;
        assert_eq!(found, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_transaction_begins_when_the_hold_is_over() {
    let site = Site::start("auth = \"trust\"").await;
    let client = site.connect().await;
    client
        .batch_execute("CREATE TABLE t (a int)")
        .await
        .expect("creates");
    let mut open = site.connect().await;
    let transaction = open.transaction().await.expect("begins");
    site.tell(1, &site.primary, "held = true", true);
    tokio::time::sleep(Duration::from_millis(200)).await;
    transaction
        .execute("INSERT INTO t VALUES (1)", &[])
        .await
        .expect("an open one goes on");
    transaction.commit().await.expect("and ends");
    let held = client.execute("INSERT INTO t VALUES (2)", &[]);
    tokio::pin!(held);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut held).await;
    assert!(early.is_err(), "it began during the hold");
    site.tell(1, &site.primary, "held = false", true);
    held.await.expect("it begins now");
}
