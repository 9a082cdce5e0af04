//! Numbers that operators and Prometheus see.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::server::free_port;
use crate::site::Site;

/// A page over HTTP: the first line of the answer, and its body.
async fn page(port: u16, path: &str) -> (String, String) {
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
    let mut stream = stream.expect("somebody listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it is asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("a text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let status = head.lines().next().unwrap_or_default();
    (status.to_owned(), body.to_owned())
}

/// The value of a metric with these labels.
fn value(page: &str, name: &str) -> f64 {
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let line = line.unwrap_or_else(|| panic!("{name} is not in {page}"));
    line.parse().expect("a number")
}

async fn stats(operator: &Client, database: &str) -> impl Fn(&str) -> u64 + use<> {
    let rows = operator.simple_query("SHOW STATS").await.expect("shows");
    let row = rows.into_iter().find_map(|row| match row {
        SimpleQueryMessage::Row(row) if row.get("database") == Some(database) => Some(row),
        _ => None,
    });
    let row = row.expect("the database is there");
    move |column: &str| {
        let value = row.get(column).expect(column);
        value.parse().expect("a number")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_transactions_and_waits_are_counted_and_timed() {
    let rest = free_port();
    let site = Site::start(&format!(
        "auth = \"trust\"\npool_mode = \"transaction\"\npool_size = 1\nrest = \"127.0.0.1:{rest}\"\n\
         [databases.desk]\ndbname = \"postgres\""
    ))
    .await;
    let connect = || site.try_connect("postgres", "dbname=desk");
    let (one, other) = (
        connect().await.expect("connects"),
        connect().await.expect("connects"),
    );
    let operator = site.operate().await;
    let before = stats(&operator, "desk").await;
    let run = async |client: &Client, text: &str| client.simple_query(text).await.expect("runs");
    run(&one, "BEGIN").await;
    run(&one, "SELECT pg_sleep(0.3)").await;
    let waiting = async { run(&other, "SELECT repeat('x', 5000)").await };
    let holding = async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        run(&one, "COMMIT").await
    };
    tokio::join!(waiting, holding);
    // A client has its answer a moment before the proxy counts it.
    let mut after = stats(&operator, "desk").await;
    let deadline = Instant::now() + Duration::from_secs(10);
    while after("total_sent") - before("total_sent") < 5_000 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
        after = stats(&operator, "desk").await;
    }
    let more = |column: &str| after(column) - before(column);
    assert_eq!(more("total_query_count"), 4);
    assert_eq!(more("total_xact_count"), 2);
    assert_eq!(more("total_server_assignment_count"), 2);
    let millis = |column: &str| more(column) / 1000;
    // One statement of 0.3 s, and one that waited for 0.4 s.
    let queries = millis("total_query_time");
    assert!((690..1500).contains(&queries), "{queries} ms");
    let transactions = millis("total_xact_time");
    assert!((1090..2500).contains(&transactions), "{transactions} ms");
    let waits = millis("total_wait_time");
    assert!((390..1000).contains(&waits), "{waits} ms");
    assert!((5_000..8_000).contains(&more("total_sent")));
    assert_eq!(more("total_received"), 79, "four messages");

    let (status, text) = page(rest, "/metrics").await;
    assert!(status.contains("200"), "{status}");
    let labels = "database=\"desk\",user=\"postgres\"";
    let of = |name: &str, more: &str| {
        value(&text, &format!("understudy_proxy_{name}{{{labels}{more}}}"))
    };
    let waits = "wait_duration_seconds";
    assert_eq!(
        of(&format!("{waits}_bucket"), ",le=\"+Inf\""),
        of(&format!("{waits}_count"), "")
    );
    let slow = of(&format!("{waits}_count"), "") - of(&format!("{waits}_bucket"), ",le=\"0.25\"");
    assert_eq!(slow, 1.0, "one has waited for long");
    assert!(of("query_duration_seconds_sum", "") > 0.69);
    assert!(of("sent_bytes_total", "") > 5_000.0);
    let connections = |state: &str| {
        let more = format!(",server=\"active\",state=\"{state}\"");
        of("server_connections", &more)
    };
    assert_eq!((connections("active"), connections("idle")), (0.0, 1.0));
    assert_eq!(page(rest, "/health").await.0, "HTTP/1.1 200 OK");
    assert!(page(rest, "/nothing").await.0.contains("404"));
}
