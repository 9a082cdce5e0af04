//! A manager whose member is the only one: what clients send arrives as they have sent it, and what a mirror refuses is refused.

use std::time::Duration;

use bytes::BytesMut;
use mirror::core::manager::{Role, Why};
use mirror::driver::peer::{Question, ask};
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::site::{Site, connect, run};
use crate::statements::Raw;

/// A session at the manager.
fn session(site: &Site) -> Client {
    let port = site.client_address(0).port();
    let conninfo = format!("host=127.0.0.1 port={port} user=postgres dbname=app");
    let connected = site.runtime.block_on(connect(&conninfo));
    connected.expect("clients are let in")
}

fn fails(site: &Site, client: &Client, text: &str) -> SqlState {
    let done = site.runtime.block_on(client.batch_execute(text));
    let error = done.expect_err(text);
    error.code().cloned().expect("the server says why")
}

fn count(site: &Site, client: &Client, table: &str) -> i64 {
    let text = format!("SELECT count(*) FROM {table}");
    let row = site.runtime.block_on(client.query_one(&text, &[]));
    row.expect("it is counted").get(0)
}

const TABLE: &str = "CREATE TABLE t (id int PRIMARY KEY, a text DEFAULT gen_random_uuid())";

#[test]
fn statements_arrive_as_they_are() {
    let site = Site::start_singly();
    let client = session(&site);
    run(&site, &client, TABLE);
    run(
        &site,
        &client,
        "INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)",
    );
    // A text is one transaction.
    assert_eq!(
        fails(
            &site,
            &client,
            "INSERT INTO t VALUES (3); INSERT INTO t VALUES (1)"
        ),
        SqlState::UNIQUE_VIOLATION
    );
    assert_eq!(count(&site, &client, "t"), 2);
    run(
        &site,
        &client,
        "BEGIN; INSERT INTO t VALUES (3); SAVEPOINT s",
    );
    assert_eq!(
        fails(&site, &client, "INSERT INTO t VALUES (3)"),
        SqlState::UNIQUE_VIOLATION
    );
    run(
        &site,
        &client,
        "ROLLBACK TO s; RELEASE s; INSERT INTO t VALUES (4); COMMIT",
    );
    run(&site, &client, "BEGIN; INSERT INTO t VALUES (5); ROLLBACK");
    assert_eq!(count(&site, &client, "t"), 4);
    let insert = site
        .runtime
        .block_on(client.prepare("INSERT INTO t VALUES ($1) RETURNING a"));
    let insert = insert.expect("prepared");
    let both = site.runtime.block_on(async {
        // Sent together, each with a `Sync` of its own.
        tokio::join!(
            client.query_one(&insert, &[&6]),
            client.query_one(&insert, &[&7])
        )
    });
    both.0.expect("inserted");
    both.1.expect("inserted");
    assert_eq!(count(&site, &client, "t"), 6);
    // Nothing says that the member belongs to a mirror.
    let state = "SELECT to_regclass('understudy_mirror.state') IS NULL";
    let row = site.runtime.block_on(client.query_one(state, &[]));
    assert!(row.expect("it is asked").get::<_, bool>(0));
}

#[test]
fn data_is_copied_in_and_out() {
    use futures_util::{SinkExt, StreamExt};
    let site = Site::start_singly();
    let client = session(&site);
    run(&site, &client, TABLE);
    let copied = site.runtime.block_on(async {
        let sink = client.copy_in("COPY t FROM STDIN").await?;
        futures_util::pin_mut!(sink);
        sink.send(bytes::Bytes::from_static(b"1\ta\n2\tb\n"))
            .await?;
        sink.as_mut().finish().await
    });
    assert_eq!(copied.expect("copied"), 2);
    let out: Vec<_> = site.runtime.block_on(async {
        let stream = client
            .copy_out("COPY (SELECT * FROM t ORDER BY id) TO STDOUT")
            .await;
        stream.expect("begun").collect().await
    });
    let out: Vec<u8> = out
        .into_iter()
        .flat_map(|part| part.expect("data"))
        .collect();
    assert_eq!(out, b"1\ta\n2\tb\n");
}

/// An application is known to be fit for a mirror before there is one.
#[test]
fn what_a_mirror_refuses_is_refused() {
    let site = Site::start_singly();
    let client = session(&site);
    run(&site, &client, TABLE);
    assert_eq!(
        fails(&site, &client, "PREPARE TRANSACTION 'x'"),
        SqlState::FEATURE_NOT_SUPPORTED
    );
    // Within a transaction the member's fails as well.
    run(&site, &client, "BEGIN; INSERT INTO t VALUES (1)");
    assert_eq!(
        fails(&site, &client, "PREPARE TRANSACTION 'x'"),
        SqlState::FEATURE_NOT_SUPPORTED
    );
    assert_eq!(
        fails(&site, &client, "SELECT 1"),
        SqlState::IN_FAILED_SQL_TRANSACTION
    );
    run(&site, &client, "ROLLBACK");
    assert_eq!(count(&site, &client, "t"), 0);
}

/// Definitions, temporary names and settings are the member's business.
#[test]
fn definitions_are_followed() {
    let site = Site::start_singly();
    let (client, other) = (session(&site), session(&site));
    run(&site, &client, TABLE);
    run(&site, &other, "INSERT INTO t VALUES (1)");
    run(
        &site,
        &client,
        "BEGIN; ALTER TABLE t ADD b int; UPDATE t SET b = 1; COMMIT",
    );
    run(&site, &other, "UPDATE t SET b = 2");
    run(
        &site,
        &client,
        "CREATE TEMP TABLE own (id int); INSERT INTO own VALUES (1)",
    );
    run(
        &site,
        &client,
        "CREATE SCHEMA x; SET search_path = x; CREATE TABLE y (id int PRIMARY KEY)",
    );
    run(&site, &client, "INSERT INTO y VALUES (1)");
    run(&site, &client, "BEGIN; DROP TABLE y; ROLLBACK");
    assert_eq!(count(&site, &client, "y"), 1);
    assert_eq!(
        fails(&site, &other, "SELECT * FROM y"),
        SqlState::UNDEFINED_TABLE
    );
}

#[test]
fn a_member_that_is_lost_is_served_again() {
    let site = Site::start_singly();
    let client = session(&site);
    run(&site, &client, TABLE);
    site.sides[0].server.stop("immediate");
    let told = site
        .runtime
        .block_on(client.batch_execute("INSERT INTO t VALUES (1)"));
    assert!(told.is_err());
    site.wait("the manager notices", || !site.serves_singly(0));
    site.sides[0].server.start();
    site.wait("it is served again", || site.serves_singly(0));
    let client = session(&site);
    run(&site, &client, "INSERT INTO t VALUES (1)");
    assert_eq!(count(&site, &client, "t"), 1);
}

/// What was written to it singly the other member would never have got.
// hazard: MIRROR-3
#[test]
fn a_member_of_a_mirror_is_refused_and_a_single_one_becomes_one() {
    let mut site = Site::start_singly();
    let client = session(&site);
    run(&site, &client, TABLE);
    run(&site, &client, "INSERT INTO t VALUES (1)");
    let address = site.peer_address(0).to_string();
    let told = site.runtime.block_on(ask(&address, None, Question::Verify));
    assert!(
        told.expect("it answers")
            .is_err_and(|why| why.contains("single = true"))
    );
    drop(client);
    site.kill_manager(0);
    site.manage(0);
    site.manage(1);
    site.settle();
    run(&site, &site.connect(), "INSERT INTO t VALUES (2)");
    assert_eq!(site.must_be_equal().rows, 2);
    site.kill_manager(0);
    site.manage_singly(0);
    site.wait("it sees whose member it is", || {
        let role = site.status(0).map(|status| status.role);
        role == Some(Role::Recovering(Why::Mirrored))
    });
    std::thread::sleep(Duration::from_millis(500));
    assert!(!site.serves_singly(0));
    let advice = site.status(0).and_then(|status| status.advice);
    assert!(advice.is_some_and(|advice| advice.contains("single = true")));
}

/// A statement of the extended protocol, without `Sync`.
fn put(out: &mut BytesMut, text: &str) {
    let none: [i16; 0] = [];
    let no_values: [i32; 0] = [];
    frontend::parse("", text, [], out).expect("it fits");
    let bound = frontend::bind("", "", none, no_values, |_, _| Ok(IsNull::Yes), none, out);
    assert!(bound.is_ok());
    frontend::execute("", 0, out).expect("it fits");
}

/// A batch is one transaction, as at the member itself.
// hazard: MIRROR-4
#[test]
fn a_batch_happens_wholly_or_not_at_all() {
    let site = Site::start_singly();
    let client = session(&site);
    run(&site, &client, TABLE);
    let mut raw = Raw::connect_to(site.client_address(0));
    let batch = |texts: &[&str]| {
        let mut out = BytesMut::new();
        texts.iter().for_each(|text| put(&mut out, text));
        frontend::sync(&mut out);
        out
    };
    let fails = raw.ask(&batch(&[
        "INSERT INTO t VALUES (1)",
        "INSERT INTO t VALUES (1)",
    ]));
    assert!(fails.contains('E'), "{fails}");
    let refused = raw.ask(&batch(&[
        "INSERT INTO t VALUES (2)",
        "PREPARE TRANSACTION 'x'",
    ]));
    assert!(refused.contains('E'), "{refused}");
    assert_eq!(count(&site, &client, "t"), 0);
    let inserted = raw.ask(&batch(&[
        "INSERT INTO t VALUES (3)",
        "INSERT INTO t VALUES (4)",
    ]));
    assert!(!inserted.contains('E'), "{inserted}");
    assert_eq!(count(&site, &client, "t"), 2);
}

/// Statements before a refusal in its batch are undone as well, although they were answered.
// hazard: MIRROR-4
#[test]
fn a_refusal_after_a_flush_undoes_the_batch() {
    let site = Site::start_singly();
    let client = session(&site);
    run(&site, &client, TABLE);
    let mut raw = Raw::connect_to(site.client_address(0));
    let mut out = BytesMut::new();
    put(&mut out, "INSERT INTO t VALUES (1)");
    frontend::flush(&mut out);
    raw.ask_until(&out, 'C');
    out.clear();
    put(&mut out, "PREPARE TRANSACTION 'x'");
    frontend::sync(&mut out);
    assert!(raw.ask(&out).ends_with("EZ"));
    assert_eq!(count(&site, &client, "t"), 0);
}
