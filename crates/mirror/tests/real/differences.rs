//! What once made members differ without anybody noticing, where it takes more than one statement.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::site::{Site, connect};
use crate::statements::{Raw, run};

/// A session that begins as `more` of its connection string says.
fn session(site: &Site, more: &str) -> Client {
    site.who_serves();
    let conninfo = format!("{} {more}", site.conninfo());
    site.runtime.block_on(connect(&conninfo)).expect("lets in")
}

/// What a statement is refused by.
fn refusal(site: &Site, client: &Client, text: &str) -> String {
    let error = site.runtime.block_on(client.batch_execute(text));
    let error = error.expect_err(text);
    let error = error.as_db_error().expect("the manager says so");
    assert_eq!(*error.code(), SqlState::FEATURE_NOT_SUPPORTED, "{error:?}");
    assert!(error.hint().is_some(), "{error:?}");
    error.message().to_owned()
}

/// However a setting was made, what is written with it is refused.
#[test]
fn settings_that_mean_something_else_there_are_refused() {
    let site = Site::start("");
    let admin = site.connect();
    run(
        &site,
        &admin,
        &["CREATE TABLE t (id int PRIMARY KEY, a text)"],
    );
    for (name, value) in [
        ("default_transaction_isolation", "repeatable read"),
        ("session_replication_role", "replica"),
        ("standard_conforming_strings", "off"),
        ("extra_float_digits", "0"),
    ] {
        let role = format!("with_{name}");
        run(
            &site,
            &admin,
            &[
                &format!("CREATE ROLE {role} SUPERUSER LOGIN"),
                &format!("ALTER ROLE {role} SET {name} = '{value}'"),
            ],
        );
        let of_role = session(&site, &format!("user={role}"));
        let escaped = value.replace(' ', "\\\\ ");
        let by_option = session(&site, &format!("options='-c {name}={escaped}'"));
        let by_function = site.connect();
        run(
            &site,
            &by_function,
            &[&format!("SELECT set_config('{name}', '{value}', false)")],
        );
        for client in [of_role, by_option, by_function] {
            let said = refusal(&site, &client, "INSERT INTO t VALUES (1, 'a')");
            assert!(said.contains("isolation") || said.contains(name), "{said}");
            refusal(&site, &client, "BEGIN; UPDATE t SET a = 'b'");
            run(&site, &client, &["ROLLBACK"]);
        }
    }
    let client = session(
        &site,
        "options='-c default_transaction_isolation=serializable'",
    );
    // What says that it is not so may write, also when others have not asked again.
    run(
        &site,
        &client,
        &[
            "BEGIN ISOLATION LEVEL READ COMMITTED; INSERT INTO t VALUES (2, 'b'); COMMIT",
            "SELECT count(*) FROM t",
        ],
    );
    refusal(&site, &client, "INSERT INTO t VALUES (3, 'c')");
    run(
        &site,
        &client,
        &[
            "SET default_transaction_isolation = 'read committed'",
            "INSERT INTO t VALUES (3, 'c')",
        ],
    );
    assert_eq!(site.must_be_equal().rows, 2);
}

/// Each member read the time by itself.
#[test]
fn copied_times_are_refused_and_all_else_is_copied() {
    use futures_util::SinkExt;
    let site = Site::start("");
    let client = site.connect();
    run(
        &site,
        &client,
        &["CREATE TABLE t (id int PRIMARY KEY, a text, at timestamptz)"],
    );
    let copy = |data: &'static str| {
        site.runtime.block_on(async {
            let sink = client.copy_in("COPY t FROM STDIN").await.expect("begins");
            futures_util::pin_mut!(sink);
            let data = bytes::Bytes::from_static(data.as_bytes());
            sink.send(data).await.expect("data");
            sink.finish().await
        })
    };
    let error = copy("1\tnow\t2020-01-01\n2\tx\tnow\n").expect_err("a time");
    assert_eq!(error.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED));
    assert_eq!(copy("1\tnow\t2020-01-01\n2\tx\t\\N\n").expect("copies"), 2);
    assert_eq!(site.must_be_equal().rows, 2);
}

/// Another session has made what a name means.
#[test]
fn names_are_looked_for_again_when_schemas_are_made() {
    let site = Site::start("");
    let (client, other) = (site.connect(), site.connect());
    run(
        &site,
        &client,
        &[
            "CREATE TABLE t (id int PRIMARY KEY, r text)",
            "SET search_path = later, public",
            "INSERT INTO t VALUES (1, 'public')",
        ],
    );
    run(
        &site,
        &other,
        &[
            "CREATE SCHEMA later",
            "CREATE TABLE later.t (id serial PRIMARY KEY, r text DEFAULT random()::text)",
        ],
    );
    run(&site, &client, &["INSERT INTO t (id) VALUES (2)"]);
    let of_later = "SELECT r FROM later.t WHERE id = 2";
    let row = site.runtime.block_on(client.query_one(of_later, &[]));
    assert!(
        row.expect("it is there")
            .get::<_, Option<&str>>(0)
            .is_some()
    );
    site.must_be_equal();
}

/// A client that asks for answers by `Flush` waits for them before it sends `Sync`.
#[test]
fn what_is_flushed_is_answered() {
    use postgres_protocol::message::frontend::{bind, execute, flush, parse, sync};
    let site = Site::start("");
    let client = site.connect();
    run(&site, &client, &["CREATE TABLE t (id serial, a text)"]);
    let mut raw = Raw::connect(&site);
    let mut out = bytes::BytesMut::new();
    let text = "INSERT INTO t (a) VALUES ('x') RETURNING id";
    parse("", text, [], &mut out).expect("short");
    bind(
        "",
        "",
        [],
        std::iter::empty::<()>(),
        |(), _| unreachable!(),
        [],
        &mut out,
    )
    .unwrap_or_else(|_| panic!("short"));
    execute("", 0, &mut out).expect("short");
    flush(&mut out);
    assert_eq!(raw.ask_until(&out, 'C'), "12DC");
    out.clear();
    sync(&mut out);
    assert_eq!(raw.ask(&out), "Z");
    assert_eq!(site.must_be_equal().rows, 1);
}
