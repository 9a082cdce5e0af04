//! Bad input at the port: others are served meanwhile.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::site::Site;

fn say(site: &Site, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(site.address).expect("it connects");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a timeout");
    stream.write_all(bytes).expect("sends");
    stream
}

/// What is answered until the connection ends.
fn answer(mut stream: TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut answer);
    answer
}

pub const STARTUP: &[u8] = b"\0\0\0\x29\0\x03\0\0user\0postgres\0database\0postgres\0\0";

#[tokio::test(flavor = "multi_thread")]
async fn noise_is_refused_and_others_are_served() {
    let site = Site::start("auth = \"trust\"\nlogin_timeout = \"2s\"").await;
    tokio::task::block_in_place(|| {
        let silent = say(&site, b"");
        let half_encrypted = say(&site, b"\0\0\0\x08\x04\xd2\x16\x2f");
        // Whose length is none is not told, as by PostgreSQL; `X` is a client that leaves before it has begun.
        for (noise, told) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], None),
            (b"X\0\0\0\x04", None),
            (b"\xff\xff\xff\xff\0\x03\0\0", None),
            (b"\0\0\0\x04", None),
            (b"\0\0\0\x10\0\x03\0\0user\0\0\0\0", Some(&b'E')),
            (b"\0\0\0\x08\0\x02\0\0", Some(&b'E')),
        ] {
            assert_eq!(answer(say(&site, noise)).first(), told, "{noise:?}");
        }
        let begun = [STARTUP, b"Q\0\0\0\x01"].concat();
        let told = answer(say(&site, &begun));
        let text = String::from_utf8_lossy(&told).into_owned();
        assert!(text.contains("08P01"), "{text}");
        let huge = [STARTUP, b"Q\x7f\xff\xff\xff"].concat();
        let text = String::from_utf8_lossy(&answer(say(&site, &huge))).into_owned();
        assert!(text.contains("54000"), "{text}");
        // Who says nothing is sent away.
        assert!(answer(silent).is_empty());
        drop(half_encrypted);
    });
    site.connect()
        .await
        .batch_execute("SELECT 1")
        .await
        .expect("others are served");
}

/// More connections that say nothing than there may be strangers: whoever is one knocks in vain no longer than it takes.
// hazard: PROXY-19
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_keep_nobody_out() {
    let site = Site::start("auth = \"trust\"\nlogin_timeout = \"60s\"").await;
    let before = resident_kib();
    let silent: Vec<TcpStream> = (0..1500)
        .map(|_| TcpStream::connect(site.address).expect("it connects"))
        .collect();
    for _ in 0..10 {
        let client = site.connect().await;
        client
            .batch_execute("SELECT 1")
            .await
            .expect("it is served");
    }
    let grown = resident_kib().saturating_sub(before);
    assert!(
        grown < 50_000,
        "{grown} KiB for connections that say nothing"
    );
    // The first of them was sent away.
    let mut first = &silent[0];
    first
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a timeout");
    let read = tokio::task::block_in_place(|| first.read(&mut [0]));
    assert_eq!(read.expect("it ends"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold() {
    let site = Site::start(
        "auth = \"trust\"\nmax_clients = 5\npool_mode = \"transaction\"\npool_size = 1\nquery_wait_timeout = \"500ms\"",
    )
    .await;
    let mut clients = Vec::new();
    while clients.len() < 5 {
        match site.try_connect("postgres", "").await {
            Ok(client) => clients.push(client),
            // The last client of the set-up has not left yet.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    let refused = site
        .try_connect("postgres", "")
        .await
        .expect_err("too many");
    assert_eq!(refused.code().map(|code| code.code()), Some("53300"));
    clients[0]
        .batch_execute("BEGIN")
        .await
        .expect("it has the only server");
    let waited = clients[1]
        .batch_execute("SELECT 1")
        .await
        .expect_err("none is free");
    assert_eq!(waited.code().map(|code| code.code()), Some("53300"));
    clients[0]
        .batch_execute("COMMIT")
        .await
        .expect("gives it back");
    clients[1]
        .batch_execute("SELECT 1")
        .await
        .expect("it is free");
}

/// A client that does not read what it asked for does not fill the proxy's memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_holds_only_its_server_up() {
    let site = Site::start("auth = \"trust\"").await;
    let text = b"SELECT repeat('x', 1000) FROM generate_series(1, 200000)\0";
    let len = u32::try_from(text.len() + 4).expect("short").to_be_bytes();
    let begun = [STARTUP, b"Q", &len, text].concat();
    let slow = say(&site, &begun);
    let before = resident_kib();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let grown = resident_kib().saturating_sub(before);
    assert!(
        grown < 50_000,
        "{grown} KiB of an answer of 200 MB are kept"
    );
    site.connect()
        .await
        .batch_execute("SELECT 1")
        .await
        .expect("others are served");
    drop(slow);
}

fn resident_kib() -> u64 {
    resident_kib_of("self")
}

/// The memory of a process.
pub fn resident_kib_of(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    let status = status.expect("it is there");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("a line");
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .expect("a number")
}
