//! Pools of several users and databases: limits that they share.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::site::Site;

/// Users and a second database beside what every site has.
async fn start(configuration: &str) -> Site {
    let site = Site::start(&format!("auth = \"trust\"\n{configuration}")).await;
    site.primary.sql(&[
        "CREATE ROLE ann LOGIN",
        "CREATE ROLE bob LOGIN",
        "CREATE ROLE eve LOGIN",
        "CREATE DATABASE other",
    ]);
    site
}

async fn connect(site: &Site, user: &str, database: &str) -> Client {
    let client = site.try_connect(user, &format!("dbname={database}")).await;
    client.expect("it connects")
}

async fn run(client: &Client, text: &str) {
    client.batch_execute(text).await.expect(text);
}

/// Begins a statement, which must not end soon.
async fn begin(client: Client, text: &'static str) -> JoinHandle<(Client, Result<(), String>)> {
    let running = tokio::spawn(async move {
        let ran = client.batch_execute(text).await;
        (client, ran.map_err(|error| format!("{error:?}")))
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!running.is_finished(), "{text} did not wait");
    running
}

/// Connections of clients to the primary.
const CONNECTIONS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE usename IN ('ann', 'bob', 'eve')";

/// A column of the row of `name` in what an operator is shown.
async fn shown(site: &Site, what: &str, name: &str, column: &str) -> String {
    let rows = site.operate().await.simple_query(what).await.expect(what);
    let value = rows.iter().find_map(|row| match row {
        SimpleQueryMessage::Row(row) if row.get("name") == Some(name) => row.get(column),
        _ => None,
    });
    value.unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_of_a_database_share_its_connections() {
    let site = start("pool_mode = \"transaction\"\nmax_db_connections = 2").await;
    let ann = [
        connect(&site, "ann", "postgres").await,
        connect(&site, "ann", "postgres").await,
    ];
    let bob = connect(&site, "bob", "postgres").await;
    for client in &ann {
        run(client, "BEGIN").await;
    }
    assert_eq!(
        shown(&site, "SHOW DATABASES", "postgres", "current_connections").await,
        "2"
    );
    let other = connect(&site, "bob", "other").await;
    run(&other, "SELECT 1").await;
    let waiting = begin(bob, "SELECT 1").await;
    // What Ann does not use any more makes place for Bob.
    run(&ann[0], "COMMIT").await;
    let (bob, ran) = waiting.await.expect("no panic");
    assert_eq!(ran, Ok(()));
    run(&bob, "BEGIN").await;
    let [first, second] = ann;
    let waiting = begin(first, "SELECT 1").await;
    site.reconfigure("max_db_connections = 2", "max_db_connections = 3");
    run(&site.operate().await, "RELOAD").await;
    let (first, ran) = waiting.await.expect("no panic");
    assert_eq!(ran, Ok(()));
    assert_eq!(
        shown(&site, "SHOW DATABASES", "postgres", "max_connections").await,
        "3"
    );
    // Those that are too many end when their transactions do.
    site.reconfigure("max_db_connections = 3", "max_db_connections = 1");
    run(&site.operate().await, "RELOAD").await;
    run(&second, "COMMIT").await;
    run(&bob, "COMMIT").await;
    run(&first, "SELECT 1").await;
    assert_eq!(
        shown(&site, "SHOW DATABASES", "postgres", "current_connections").await,
        "1"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_of_a_user_share_its_connections() {
    let site =
        start("pool_mode = \"session\"\nmax_user_connections = 1\nquery_wait_timeout = \"500ms\"")
            .await;
    let ann = connect(&site, "ann", "postgres").await;
    run(&ann, "SELECT 1").await;
    let refused = site.try_connect("ann", "dbname=other").await;
    let error = refused.expect_err("it is one too many");
    let said = error.as_db_error().expect("the proxy says why");
    assert_eq!(said.code().code(), "53300");
    assert!(
        said.detail().unwrap_or_default().contains("user \"ann\""),
        "{said:?}"
    );
    assert!(
        said.hint()
            .unwrap_or_default()
            .contains("max_user_connections"),
        "{said:?}"
    );
    connect(&site, "bob", "other").await;
    drop(ann);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let ann = connect(&site, "ann", "other").await;
    run(&ann, "SELECT 1").await;
    assert_eq!(
        shown(&site, "SHOW USERS", "ann", "max_user_connections").await,
        "1"
    );
}

/// Many more clients than connections, of three users: all are served, in turn, and the limit holds.
#[tokio::test(flavor = "multi_thread")]
async fn clients_do_not_starve_behind_a_shared_limit() {
    let site = start("pool_mode = \"transaction\"\nmax_db_connections = 2").await;
    let mut working = Vec::new();
    for user in ["ann", "bob", "eve"] {
        for _ in 0..5 {
            let client = connect(&site, user, "postgres").await;
            working.push(tokio::spawn(async move {
                let mut longest = Duration::ZERO;
                for _ in 0..40 {
                    let began = std::time::Instant::now();
                    run(&client, "SELECT pg_sleep(0.005)").await;
                    longest = longest.max(began.elapsed());
                }
                longest
            }));
        }
    }
    let mut most = 0;
    while !working.iter().all(JoinHandle::is_finished) {
        let count = tokio::task::block_in_place(|| site.primary.sql(&[CONNECTIONS]));
        most = most.max(count.trim().parse().expect("a number"));
    }
    // A server process ends a moment after its connection.
    assert!((2..=4).contains(&most), "{most} connections");
    for work in working {
        let longest = work.await.expect("it was served");
        assert!(longest < Duration::from_secs(5), "{longest:?}");
    }
}

async fn text(client: &Client, query: &str) -> String {
    client.query_one(query, &[]).await.expect(query).get(0)
}

const TABLES: &str = "
[databases.shop]
dbname = \"other\"
pool_mode = \"session\"
pool_size = 1
[databases.shop.settings]
search_path = \"attic, public\"
work_mem = \"3MB\"
[databases.desk]
pool_size = 1
dbname = \"postgres\"
query_timeout = \"700ms\"
[users.eve]
pool_mode = \"transaction\"
[users.eve.settings]
work_mem = \"5MB\"
";

#[tokio::test(flavor = "multi_thread")]
async fn databases_and_users_have_settings_of_their_own() {
    let general = "pool_mode = \"transaction\"\nquery_wait_timeout = \"300ms\"";
    let site = start(&format!("{general}\n{TABLES}")).await;
    let where_am_i = "SELECT current_database() || ' ' || current_setting('search_path') || ' ' \
                      || current_setting('work_mem')";
    let ann = connect(&site, "ann", "shop").await;
    assert_eq!(text(&ann, where_am_i).await, "other attic, public 3MB");
    run(&ann, "SET work_mem = '9MB'; RESET ALL").await;
    assert_eq!(text(&ann, where_am_i).await, "other attic, public 3MB");
    run(&ann, "CREATE TEMP TABLE t (a int)").await;
    run(&ann, "DISCARD ALL").await;
    assert_eq!(text(&ann, where_am_i).await, "other attic, public 3MB");
    let eve = connect(&site, "eve", "shop").await;
    assert_eq!(text(&eve, where_am_i).await, "other attic, public 5MB");
    let own = site.try_connect("eve", "dbname=shop options='-c work_mem=7MB'");
    let own = own.await.expect("it connects");
    assert_eq!(text(&own, where_am_i).await, "other attic, public 7MB");
    // Eve's clients share the only connection, by the mode that she has.
    assert_eq!(text(&eve, where_am_i).await, "other attic, public 5MB");
    let second = site.try_connect("ann", "dbname=shop");
    let refused = second.await.expect_err("Ann's connection is her own");
    assert_eq!(refused.code().map(|code| code.code()), Some("53300"));
    assert_eq!(
        shown(&site, "SHOW DATABASES", "shop", "database").await,
        "other"
    );

    let desk = [
        connect(&site, "bob", "desk").await,
        connect(&site, "bob", "desk").await,
    ];
    run(&desk[0], "BEGIN").await;
    let refused = desk[1].batch_execute("SELECT 1").await;
    let refused = refused.expect_err("there is one connection");
    assert_eq!(refused.code().map(|code| code.code()), Some("53300"));
    let late = desk[0].batch_execute("SELECT pg_sleep(30)").await;
    let late = late.expect_err("it takes too long");
    assert_eq!(late.code().map(|code| code.code()), Some("57014"));
}

/// A client's pool stays the one that it began with; its transaction does not go to another pool.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_moves_nobody_to_another_database() {
    let site = start(&format!("pool_mode = \"transaction\"\n{TABLES}")).await;
    let old = connect(&site, "bob", "shop").await;
    run(&old, "BEGIN").await;
    let pid = text(&old, "SELECT pg_backend_pid()::text").await;
    site.reconfigure(
        "dbname = \"other\"\npool_mode = \"session\"\npool_size = 1",
        "dbname = \"postgres\"",
    );
    run(&site.operate().await, "RELOAD").await;
    assert_eq!(text(&old, "SELECT pg_backend_pid()::text").await, pid);
    run(&old, "COMMIT").await;
    assert_eq!(text(&old, "SELECT current_database()::text").await, "other");
    assert_eq!(text(&old, "SELECT pg_backend_pid()::text").await, pid);
    let new = connect(&site, "bob", "shop").await;
    assert_eq!(
        text(&new, "SELECT current_database()::text").await,
        "postgres"
    );
    // It shares its connections now, and the timeout of the database counts for who is there as well.
    site.reconfigure(
        "dbname = \"postgres\"\n[",
        "client_idle_timeout = \"300ms\"\n[",
    );
    run(&site.operate().await, "RELOAD").await;
    run(&old, "SELECT 1").await;
    for _ in 0..200 {
        if old.is_closed() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(old.is_closed());
    site.reconfigure("pool_size = 1", "pool_size = 0");
    let refused = site.operate().await.batch_execute("RELOAD").await;
    let refused = refused.expect_err("there are no pools of nothing");
    let detail = refused.as_db_error().and_then(|error| error.detail());
    assert!(
        detail.is_some_and(|detail| detail.contains("databases.desk.pool_size")),
        "{refused:?}"
    );
}
