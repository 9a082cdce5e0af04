//! What operators ask and say.

use std::time::Duration;

use tokio_postgres::{NoTls, SimpleQueryMessage};

use crate::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_and_pauses() {
    let site = Site::start("auth = \"trust\"\npool_mode = \"transaction\"").await;
    let client = site.connect().await;
    client.batch_execute("SELECT 1").await.expect("answers");
    let operator = site.operate().await;
    for what in [
        "POOLS", "CLIENTS", "SERVERS", "STATS", "TOTALS", "CONFIG", "VERSION",
    ] {
        let rows = operator
            .simple_query(&format!("SHOW {what}"))
            .await
            .expect(what);
        let rows = rows
            .iter()
            .filter(|row| matches!(row, SimpleQueryMessage::Row(_)));
        assert!(rows.count() > 0, "{what}");
    }
    operator
        .simple_query("SHOW NOTHING")
        .await
        .expect_err("no command");
    operator.simple_query("PAUSE").await.expect("pauses");
    let paused = client.batch_execute("SELECT 1");
    tokio::pin!(paused);
    let early = tokio::time::timeout(Duration::from_millis(200), &mut paused).await;
    assert!(early.is_err(), "it ran during the pause");
    operator.simple_query("RESUME").await.expect("resumes");
    paused.await.expect("it runs now");
    let stranger = format!(
        "host=127.0.0.1 port={} user=stranger dbname=understudy",
        site.address.port()
    );
    assert!(tokio_postgres::connect(&stranger, NoTls).await.is_err());
}

/// The only value of the only row of an answer.
fn only_value(messages: &[SimpleQueryMessage]) -> Option<&str> {
    messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_configuration_counts_without_a_restart() {
    let configuration = "auth = \"trust\"\npool_mode = \"transaction\"\npool_size = 1\n\
                         query_wait_timeout = \"200ms\"\nmax_clients = 3";
    let site = Site::start(configuration).await;
    let operator = site.operate().await;
    let [first, second] = [site.connect().await, site.connect().await];
    first
        .batch_execute("BEGIN; SELECT 1")
        .await
        .expect("the pool's only connection");
    let refused = second
        .batch_execute("SELECT 1")
        .await
        .expect_err("none is left");
    assert_eq!(refused.code().map(|code| code.code()), Some("53300"));

    site.reconfigure("pool_size = 1", "pool_size = 2");
    operator
        .simple_query("RELOAD")
        .await
        .expect("it makes sense");
    second
        .batch_execute("BEGIN; SELECT 1")
        .await
        .expect("there are two now");

    // Who has a connection too many keeps it until the end of its transaction, and the limit counts from then on.
    site.reconfigure("pool_size = 2", "pool_size = 1");
    operator
        .simple_query("RELOAD")
        .await
        .expect("it makes sense");
    second
        .batch_execute("SELECT 1; COMMIT")
        .await
        .expect("its transaction goes on");
    second
        .batch_execute("SELECT 1")
        .await
        .expect_err("the first has the only one");
    first
        .batch_execute("COMMIT")
        .await
        .expect("its transaction goes on");
    second.batch_execute("SELECT 1").await.expect("it is free");

    site.reconfigure("auth = \"trust\"", "auth = \"trust\"\nthreads = 2");
    let waits = operator
        .simple_query("RELOAD")
        .await
        .expect("it makes sense");
    assert_eq!(only_value(&waits), Some("threads"));

    site.reconfigure("max_clients = 3", "max_clients = \"many\"");
    let refused = operator
        .simple_query("RELOAD")
        .await
        .expect_err("it is invalid");
    assert_eq!(refused.code().map(|code| code.code()), Some("F0000"));
    second
        .batch_execute("SELECT 1")
        .await
        .expect("nothing has changed");

    site.reconfigure("max_clients = \"many\"", "max_clients = 2");
    operator
        .simple_query("RELOAD")
        .await
        .expect("it makes sense");
    let third = site.try_connect("postgres", "").await;
    assert!(third.is_err(), "more clients than allowed");
}
