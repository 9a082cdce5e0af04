//! What once made members differ without anybody noticing, where it takes more than one statement.

use tokio_postgres::Client;

use crate::site::{Site, connect};
use crate::statements::{Raw, run};

/// A session that begins as `more` of its connection string says.
fn session(site: &Site, more: &str) -> Client {
    site.who_serves();
    let conninfo = format!("{} {more}", site.conninfo());
    site.runtime.block_on(connect(&conninfo)).expect("lets in")
}

/// However a setting was made, what is written with it is the same on both members.
// hazard: MIRROR-23
#[test]
fn settings_that_mean_something_else_there_make_no_difference() {
    let site = Site::start("");
    let admin = site.connect();
    run(
        &site,
        &admin,
        &[
            "CREATE TABLE t (id serial PRIMARY KEY, a text, f float8 DEFAULT random())",
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.a = NEW.a || random(); RETURN NEW; END'",
            "CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
        ],
    );
    for (name, value) in [
        ("default_transaction_isolation", "repeatable read"),
        ("default_transaction_isolation", "serializable"),
        ("session_replication_role", "replica"),
        ("standard_conforming_strings", "off"),
        ("extra_float_digits", "0"),
        ("bytea_output", "escape"),
        ("intervalstyle", "iso_8601"),
    ] {
        let role = format!(
            "with_{name}_{}",
            value.split(' ').next().unwrap_or_default()
        );
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
            run(
                &site,
                &client,
                &[
                    r"INSERT INTO t (a) VALUES ('a\\b')",
                    "BEGIN; UPDATE t SET a = a || 'b' WHERE id = (SELECT max(id) FROM t); COMMIT",
                ],
            );
        }
    }
    assert_eq!(site.must_be_equal().rows, 21);
}

/// Each member read the time by itself.
#[test]
fn copied_times_are_those_of_the_primary() {
    use futures_util::SinkExt;
    let site = Site::start("");
    let client = site.connect();
    run(
        &site,
        &client,
        &["CREATE TABLE t (id int PRIMARY KEY, a text, at timestamptz)"],
    );
    let copied = site.runtime.block_on(async {
        let sink = client.copy_in("COPY t FROM STDIN").await.expect("begins");
        futures_util::pin_mut!(sink);
        let data = bytes::Bytes::from_static(b"1\tnow\t2020-01-01\n2\tx\tnow\n3\ty\t\\N\n");
        sink.send(data).await.expect("data");
        sink.finish().await
    });
    assert_eq!(copied.expect("copies"), 3);
    assert_eq!(site.must_be_equal().rows, 3);
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
// hazard: MIRROR-24
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
