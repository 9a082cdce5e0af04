//! What operators ask and say.

use std::time::Duration;

use tokio_postgres::{NoTls, SimpleQueryMessage};

use crate::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_and_pauses() {
    let site = Site::start("auth = \"trust\"\npool_mode = \"transaction\"").await;
    let client = site.connect().await;
    client.batch_execute("SELECT 1").await.expect("answers");
    let text = format!(
        "host=127.0.0.1 port={} user=postgres dbname=understudy",
        site.address.port()
    );
    let (operator, connection) = tokio_postgres::connect(&text, NoTls)
        .await
        .expect("it connects");
    tokio::spawn(connection);
    for what in ["POOLS", "CLIENTS", "SERVERS", "STATS", "CONFIG", "VERSION"] {
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
    let stranger = text.replace("user=postgres", "user=stranger");
    assert!(tokio_postgres::connect(&stranger, NoTls).await.is_err());
}
