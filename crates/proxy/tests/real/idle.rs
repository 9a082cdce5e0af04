//! Connections to servers that nobody uses.

use std::time::Duration;

use tokio_postgres::{Client, SimpleQueryMessage};

use crate::site::Site;

/// Until a sweep must have come, on a machine that has other things to do.
const SOON: u32 = 1000;

/// How many sessions the primary has of clients of the proxy.
fn sessions(site: &Site) -> String {
    let text = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
                AND pid <> pg_backend_pid() AND application_name <> 'understudy proxy'";
    tokio::task::block_in_place(|| site.primary.sql(&[text]))
}

async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..SOON {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it does not happen that {what}");
}

async fn backend(client: &Client) -> i32 {
    let row = client.query_one("SELECT pg_backend_pid()", &[]).await;
    row.expect("answers").get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_nobody_uses_are_closed() {
    let configuration = "auth = \"trust\"\npool_mode = \"transaction\"\n\
                         server_idle_timeout = \"300ms\"";
    let site = Site::start(configuration).await;
    let (idle, busy) = (site.connect().await, site.connect().await);
    idle.batch_execute("BEGIN; SELECT 1").await.expect("begins");
    busy.batch_execute("BEGIN").await.expect("begins");
    let kept = backend(&busy).await;
    idle.batch_execute("COMMIT").await.expect("gives it back");
    eventually("the idle connection is closed", async || {
        sessions(&site) == "1"
    })
    .await;
    // A transaction is no idle connection, however long it does nothing.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(backend(&busy).await, kept);
    busy.batch_execute("COMMIT").await.expect("commits");
    eventually("both are closed", async || sessions(&site) == "0").await;
    // Nobody notices.
    idle.batch_execute("SELECT 1")
        .await
        .expect("it gets another");

    drop((idle, busy));
    let operator = site.operate().await;
    eventually("the pool is forgotten", async || {
        let rows = operator.simple_query("SHOW POOLS").await.expect("shows");
        let is_row = |row: &SimpleQueryMessage| matches!(row, SimpleQueryMessage::Row(_));
        !rows.iter().any(is_row)
    })
    .await;
    let log = site.primary.log();
    assert!(!log.contains("unexpected EOF"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_do_not_live_for_ever() {
    let configuration = "auth = \"trust\"\npool_mode = \"transaction\"\npool_size = 1\n\
                         server_lifetime = \"500ms\"";
    let site = Site::start(configuration).await;
    let client = site.connect().await;
    client.batch_execute("BEGIN").await.expect("begins");
    let first = backend(&client).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(
        backend(&client).await,
        first,
        "in the middle of a transaction"
    );
    client.batch_execute("COMMIT").await.expect("commits");
    assert_ne!(backend(&client).await, first);
    // One that is always in use does not get older either.
    let second = backend(&client).await;
    eventually("another takes its place", async || {
        backend(&client).await != second
    })
    .await;
}
