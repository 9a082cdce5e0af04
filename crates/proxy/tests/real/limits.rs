//! Limits of time that PgBouncer has under the same names.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use crate::site::Site;

/// Waits until the connection has been ended, and says by which word.
async fn ended(client: &Client, text: &str) -> Option<SqlState> {
    for _ in 0..500 {
        if client.is_closed() {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let answer = client.batch_execute(text).await;
    answer.err().and_then(|error| error.code().cloned())
}

async fn number(client: &Client, text: &str) -> i64 {
    client.query_one(text, &[]).await.expect(text).get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_clients_are_disconnected() {
    let limits = "client_idle_timeout = \"500ms\"\nidle_transaction_timeout = \"1500ms\"";
    for mode in ["session", "transaction"] {
        let site = Site::start(&format!(
            "auth = \"trust\"\npool_mode = \"{mode}\"\n{limits}"
        ))
        .await;
        site.primary.sql(&["CREATE TABLE t (a int)"]);
        let idle = site.connect().await;
        let open = site.connect().await;
        open.batch_execute("BEGIN; INSERT INTO t VALUES (1)")
            .await
            .expect("begins");
        assert_eq!(ended(&idle, "SELECT 1").await, None, "{mode}: it is idle");
        assert!(
            !open.is_closed(),
            "{mode}: another limit counts in a transaction"
        );
        assert_eq!(
            ended(&open, "SELECT 1").await,
            None,
            "{mode}: it is left open"
        );
        // A server in use ends its transaction when its connection goes.
        for _ in 0..500 {
            let text = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
            if site.primary.sql(&[text]).trim() == "0" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(site.primary.sql(&["SELECT count(*) FROM t"]).trim(), "0");
        // Who works is not sent away, however long that takes in all.
        let busy = site.connect().await;
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            number(&busy, "SELECT count(*) FROM t").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_takes_too_long_is_cancelled() {
    let site =
        Site::start("auth = \"trust\"\npool_mode = \"transaction\"\nquery_timeout = \"700ms\"")
            .await;
    let client = site.connect().await;
    let error = client.batch_execute("SELECT pg_sleep(60)").await;
    let error = error.expect_err("it takes too long");
    assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED), "{error:?}");
    let other = site.connect().await;
    let running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND state = 'active' AND pid <> pg_backend_pid()";
    for _ in 0..100 {
        if number(&other, running).await == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the server still works on it");
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_sees_where_a_client_comes_from() {
    for mode in ["session", "transaction"] {
        let site = Site::start(&format!(
            "auth = \"trust\"\npool_mode = \"{mode}\"\napplication_name_add_host = true"
        ))
        .await;
        let named = site.try_connect("postgres", "application_name=shop").await;
        let named = named.expect("it connects");
        let text = "SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()";
        let row = named.query_one(text, &[]).await.expect("a row");
        assert_eq!(row.get::<_, &str>(0), "shop - 127.0.0.1", "{mode}");
    }
}

/// A client that went away while it waited was counted as waiting for good.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_client_is_counted_as_long_as_it_waits() {
    let site = Site::start("auth = \"trust\"\npool_mode = \"transaction\"\npool_size = 1\nadmin_users = [\"postgres\"]").await;
    let waiting = || {
        let metrics = site.proxy.metrics();
        let mut lines = metrics.lines();
        let line = lines.find(|line| line.starts_with("understudy_proxy_clients_waiting "));
        line.map_or(String::new(), |line| {
            line.rsplit(' ').next().unwrap_or_default().to_owned()
        })
    };
    let busy = site.connect().await;
    let text = format!(
        "host=127.0.0.1 port={} user=postgres dbname=postgres",
        site.address.port()
    );
    let (other, connection) = tokio_postgres::connect(&text, NoTls)
        .await
        .expect("it connects");
    let connection = tokio::spawn(connection);
    busy.batch_execute("BEGIN").await.expect("begins");
    let waits = tokio::spawn(async move { other.batch_execute("SELECT 1").await });
    for _ in 0..500 {
        if waiting() == "1" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(waiting(), "1");
    connection.abort();
    let ended = waits.await.expect("it is no panic");
    assert!(ended.is_err_and(|error| error.is_closed()));
    for _ in 0..500 {
        if waiting() == "0" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{}", site.proxy.metrics());
}
