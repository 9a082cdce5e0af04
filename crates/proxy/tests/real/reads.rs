//! Reads on the standby.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::server::{Server, psql};
use crate::site::Site;

async fn is_on_standby(client: &Client) -> bool {
    let text = "/* understudy.read = standby */ SELECT pg_is_in_recovery()";
    client.query_one(text, &[]).await.expect("answers").get(0)
}

async fn number(client: &Client, text: &str) -> i64 {
    client.query_one(text, &[]).await.expect(text).get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_see_what_they_must() {
    for mode in ["strong", "session"] {
        let site = Site::start(&format!(
            "auth = \"trust\"\n[reads]\nmode = \"{mode}\"\nwait = \"5s\""
        ))
        .await;
        // Without this the primary would wait until the standby has applied each commit.
        site.primary.sql(&[
            "ALTER SYSTEM SET synchronous_commit = local",
            "SELECT pg_reload_conf()",
        ]);
        let client = site.connect().await;
        client
            .batch_execute("CREATE TABLE t (a int)")
            .await
            .expect("creates");
        let other = site.connect().await;
        for round in 1..=50 {
            client
                .execute("INSERT INTO t VALUES (1)", &[])
                .await
                .expect("inserts");
            assert_eq!(
                number(&client, "SELECT count(*) FROM t").await,
                round,
                "{mode}"
            );
            if mode == "strong" {
                assert_eq!(number(&other, "SELECT count(*) FROM t").await, round);
            }
        }
        assert!(is_on_standby(&client).await, "{mode}");
        let metrics = site.proxy.metrics();
        let line = metrics
            .lines()
            .find(|line| line.contains("units_on_standby_total "));
        assert!(line.is_some_and(|line| !line.ends_with(" 0")), "{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_other_than_plain_reads_stay_on_the_active() {
    let site = Site::start("auth = \"trust\"\n[reads]\nmode = \"any\"").await;
    let client = site.connect().await;
    client
        .batch_execute(
            "CREATE TABLE t (a int); INSERT INTO t VALUES (1); CREATE SEQUENCE s;
             CREATE FUNCTION f() RETURNS int LANGUAGE sql VOLATILE AS 'INSERT INTO t VALUES (2) RETURNING a'",
        )
        .await
        .expect("creates");
    // Until the catalogs are read again, a session that has called what is new stays on the active.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    for text in [
        "SELECT a FROM t FOR UPDATE",
        "SELECT nextval('s')",
        "SELECT f()",
        "WITH x AS (INSERT INTO t VALUES (3) RETURNING a) SELECT a FROM x",
    ] {
        client.query(text, &[]).await.expect(text);
    }
    client
        .batch_execute("BEGIN READ ONLY")
        .await
        .expect("begins");
    let row = client
        .query_one("SELECT pg_is_in_recovery()", &[])
        .await
        .expect("answers");
    assert!(
        row.get::<_, bool>(0),
        "a transaction that is read-only runs on the standby"
    );
    client.batch_execute("COMMIT").await.expect("ends");
    client
        .batch_execute("SET understudy.read = 'active'")
        .await
        .expect("sets");
    assert!(!is_on_standby(&client).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_is_handed_over() {
    let site = Site::start("auth = \"trust\"\n[reads]\nmode = \"any\"\nwait = \"5s\"").await;
    site.primary.sql(&[
        "ALTER SYSTEM SET synchronous_commit = local",
        "SELECT pg_reload_conf()",
    ]);
    let (writer, reader) = (site.connect().await, site.connect().await);
    writer
        .batch_execute("CREATE TABLE t (a int)")
        .await
        .expect("creates");
    for round in 1..=20 {
        writer
            .execute("INSERT INTO t VALUES (1)", &[])
            .await
            .expect("inserts");
        let version = writer
            .query_one("SHOW understudy.version", &[])
            .await
            .expect("shows");
        let version: &str = version.get(0);
        reader
            .batch_execute(&format!("SET understudy.min_version = '{version}'"))
            .await
            .expect("sets");
        assert_eq!(number(&reader, "SELECT count(*) FROM t").await, round);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_go_on_when_the_standby_is_gone() {
    let site = Site::start("auth = \"trust\"\n[reads]\nmode = \"any\"").await;
    site.primary.sql(&[
        "ALTER SYSTEM SET synchronous_standby_names = ''",
        "SELECT pg_reload_conf()",
    ]);
    let client = site.connect().await;
    assert_eq!(number(&client, "SELECT 1::bigint").await, 1);
    tokio::task::block_in_place(|| site.standby.stop("immediate"));
    for _ in 0..20 {
        assert_eq!(number(&client, "SELECT 1::bigint").await, 1);
    }
}

fn metric(site: &Site, name: &str) -> u64 {
    let metrics = site.proxy.metrics();
    let name = format!("understudy_proxy_{name} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
    let value = value.expect("it is counted");
    value.parse().expect("a number")
}

/// What is known of a function may be old. If it writes by now the standby refuses it, and the active runs it, once.
// hazard: PROXY-20
#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_writes_by_now_runs_on_the_active() {
    let site = Site::start("auth = \"trust\"\n[reads]\nmode = \"any\"").await;
    // A database that nobody has asked about yet.
    site.primary.sql(&["CREATE DATABASE d"]);
    let directory = site.primary.directory().display();
    let conninfo = format!("host={directory} port=5432 user=postgres dbname=d");
    let directly = |text: &str| {
        let answered = tokio::task::block_in_place(|| psql(&conninfo, text));
        answered.expect(text)
    };
    directly("CREATE TABLE t (a int)");
    directly(
        "CREATE FUNCTION f(int) RETURNS bigint LANGUAGE sql STABLE AS 'SELECT count(*) FROM t'",
    );
    let connect = || site.try_connect("postgres", "dbname=d");
    let client = connect().await.expect("it connects");
    let other = connect().await.expect("it connects");
    assert_eq!(number(&client, "SELECT f(0)").await, 0);
    assert_eq!(metric(&site, "units_on_standby_total"), 1);
    directly(
        "CREATE OR REPLACE FUNCTION f(int) RETURNS bigint LANGUAGE sql VOLATILE
         AS 'INSERT INTO t VALUES ($1) RETURNING a::bigint'",
    );
    for value in 1..=20 {
        let text = format!("SELECT f({value})");
        assert_eq!(number(&client, &text).await, value);
        let rows = other.simple_query(&format!("SELECT f({})", -value)).await;
        rows.expect("the simple protocol as well");
    }
    let refused = metric(&site, "refused_by_standby_total");
    assert!(refused > 0, "nothing was tried on the standby");
    let written = directly("SELECT count(*), count(DISTINCT a) FROM t");
    assert_eq!(written, "40|40");
    // Once it is known again, the standby is not asked any more.
    tokio::time::sleep(Duration::from_secs(2)).await;
    number(&client, "SELECT f(100)").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = metric(&site, "refused_by_standby_total");
    for value in 101..120 {
        number(&client, &format!("SELECT f({value})")).await;
    }
    assert_eq!(metric(&site, "refused_by_standby_total"), before);
    assert!(before < refused + 3, "{refused}, then {before}");
}

/// The next client ran as the tenant of the one before, and two had the same lock, on two servers.
// hazard: PROXY-49
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_only_reads_leaves_nothing_on_the_standby() {
    for pool_mode in ["transaction", "session"] {
        let site = Site::start(&format!(
            "auth = \"trust\"\npool_mode = \"{pool_mode}\"\n[reads]\nmode = \"any\""
        ))
        .await;
        let (client, other) = (site.connect().await, site.connect().await);
        assert!(is_on_standby(&client).await);
        client
            .batch_execute("BEGIN READ ONLY")
            .await
            .expect("begins");
        let text = "SELECT set_config('app.tenant', $1, false), pg_try_advisory_lock(5)";
        let row = client.query_one(text, &[&"one"]).await.expect("sets");
        assert!(row.get::<_, bool>(1));
        client.batch_execute("COMMIT").await.expect("ends");
        for _ in 0..5 {
            let text = "/* understudy.read = standby */ SELECT pg_is_in_recovery(), \
                        coalesce(current_setting('app.tenant', true), '')";
            let row = other.query_one(text, &[]).await.expect("answers");
            assert!(row.get::<_, bool>(0), "{pool_mode}");
            assert_eq!(row.get::<_, &str>(1), "", "{pool_mode}");
        }
        let text = "SELECT pg_try_advisory_lock(5)";
        let row = other.query_one(text, &[]).await.expect("answers");
        assert!(!row.get::<_, bool>(0), "{pool_mode}: both have the lock");
        let text = "SELECT current_setting('app.tenant')";
        let row = client.query_one(text, &[]).await.expect("answers");
        assert_eq!(row.get::<_, &str>(0), "one", "{pool_mode}");
    }
}

/// A view calls a function that writes: its read is asked about as what it is, and so is that of a view above it, and of a table
/// whose policy does.
// hazard: PROXY-63
#[tokio::test(flavor = "multi_thread")]
async fn relations_that_write_when_they_are_read_are_found_in_the_catalog() {
    let site = Site::start("auth = \"trust\"").await;
    site.primary.sql(&[
        "CREATE DATABASE d",
        "ALTER SYSTEM SET log_statement = 'all'",
        "SELECT pg_reload_conf()",
    ]);
    let directory = site.primary.directory().display();
    let conninfo = format!("host={directory} port=5432 user=postgres dbname=d");
    let directly = |text: &str| {
        let answered = tokio::task::block_in_place(|| psql(&conninfo, text));
        answered.expect(text)
    };
    directly("CREATE TABLE t (a int)");
    directly("CREATE TABLE p (a int)");
    directly(
        "CREATE FUNCTION seen(int) RETURNS boolean LANGUAGE sql VOLATILE AS 'INSERT INTO t VALUES ($1) RETURNING true'",
    );
    directly("CREATE VIEW v AS SELECT seen(1) AS a");
    directly("CREATE VIEW above AS SELECT a FROM v");
    directly("CREATE VIEW plain AS SELECT a FROM t");
    directly("CREATE POLICY reads ON p USING (seen(a))");
    let client = site.try_connect("postgres", "dbname=d").await;
    let client = client.expect("it connects");
    for (name, is_asked) in [
        ("v", true),
        ("above", true),
        ("p", true),
        ("plain", false),
        ("t", false),
    ] {
        let before = site.primary.log().matches("statement: BEGIN").count();
        let text = format!("SELECT * FROM {name}");
        client.simple_query(&text).await.expect("answers");
        let after = site.primary.log().matches("statement: BEGIN").count();
        assert_eq!(after > before, is_asked, "{name}");
    }
}

/// An active that is cut off from the zones and the news goes on answering whoever still reaches it, with what was true once.
/// Here nobody can prove that it is active, as the session is frozen in which the proxy asks.
#[tokio::test(flavor = "multi_thread")]
async fn an_active_that_proves_nothing_answers_nobody() {
    let configuration = "auth = \"trust\"\n[takeover]\nlease = \"600ms\"";
    let site = Site::start(configuration).await;
    let client = site.connect().await;
    assert_eq!(
        number(&client, "SELECT count(*) FROM pg_class WHERE false").await,
        0
    );
    // The session by which positions are asked for is there once one was.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asks = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_current_wal_insert_lsn()::text%' AND pid <> pg_backend_pid()";
    let pid = site.primary.sql(&[asks]);
    let pid = Pid::from_raw(pid.trim().parse().expect("one session asks"));
    kill(pid, Signal::SIGSTOP).expect("it is there");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let read = client.query_one("SELECT 1::int8", &[]);
    tokio::pin!(read);
    let told = tokio::time::timeout(Duration::from_secs(2), &mut read).await;
    kill(pid, Signal::SIGCONT).expect("it is there");
    assert!(told.is_err(), "it was told without proof");
    let row = tokio::time::timeout(Duration::from_secs(20), read).await;
    let row = row.expect("it is proved again").expect("answers");
    assert_eq!(row.get::<_, i64>(0), 1);
}

/// A frozen server keeps its connections: nothing but its silence tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_on_a_frozen_standby_is_answered_by_the_active() {
    let site = Site::start("auth = \"trust\"\n[reads]\nmode = \"any\"\ntimeout = \"500ms\"").await;
    let client = site.connect().await;
    client
        .batch_execute("CREATE TABLE t AS SELECT generate_series(1, 1000) AS n")
        .await
        .expect("creates");
    while !is_on_standby(&client).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // One that takes longer than the limit is not cut off: the standby answers questions meanwhile.
    let long = "/* understudy.read = standby */ SELECT pg_is_in_recovery() FROM pg_sleep(2)";
    let row = client.query_one(long, &[]).await.expect("answers");
    assert!(row.get::<_, bool>(0), "it stayed on the standby");

    let frozen = site.standby.freeze();
    let text = "/* understudy.read = standby */ SELECT pg_is_in_recovery(), count(*) FROM t";
    let read = client.query_one(text, &[]);
    let read = tokio::time::timeout(Duration::from_secs(20), read).await;
    let row = read.expect("it does not wait for ever").expect("answers");
    assert!(!row.get::<_, bool>(0), "it ran on the active");
    assert_eq!(row.get::<_, i64>(1), 1000);
    drop(frozen);
    while !is_on_standby(&client).await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// How many read-only transactions each standby has, as an operator sees them.
async fn reading(site: &Site) -> [usize; 2] {
    let rows = site.operate().await.simple_query("SHOW POOLS").await;
    let rows = rows.expect("shows");
    ["standby", "second"].map(|name| {
        let counts = rows.iter().filter_map(|row| match row {
            SimpleQueryMessage::Row(row) if row.get("server") == Some(name) => row.get("sv_active"),
            _ => None,
        });
        counts
            .map(|count| count.parse::<usize>().expect("a number"))
            .sum()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_go_to_who_is_near_and_then_to_who_has_least() {
    let configuration =
        "auth = \"trust\"\npool_mode = \"transaction\"\n[reads]\nmode = \"any\"\nnear = []";
    let site = Site::start(configuration).await;
    site.standby.stop("fast");
    let second = Server::copy_of(&site.standby);
    site.standby.start();
    second.start();
    let mut open = Vec::new();
    let mut read = async || {
        let client = site.connect().await;
        let begin = "BEGIN READ ONLY; SELECT 1";
        client.batch_execute("BEGIN READ ONLY").await.expect(begin);
        client.batch_execute("SELECT 1").await.expect(begin);
        open.push(client);
    };
    for _ in 0..3 {
        read().await;
    }
    assert_eq!(reading(&site).await, [3, 0]);
    let more = format!(
        "[[standbys]]\nname = \"second\"\naddress = \"{}\"\n",
        second.address()
    );
    site.tell(1, &site.primary, &more, true);
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..3 {
        read().await;
    }
    assert_eq!(reading(&site).await, [3, 3], "the second had less");
    site.reconfigure("near = []", "near = [\"standby\", \"nobody\"]");
    site.operate()
        .await
        .simple_query("RELOAD")
        .await
        .expect("RELOAD");
    for _ in 0..3 {
        read().await;
    }
    assert_eq!(reading(&site).await, [6, 3], "it is near, however busy");
}
