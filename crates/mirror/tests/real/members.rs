//! Members, sessions and clients that are not as the manager wants them.

use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use crate::server::psql;
use crate::site::{Site, connect, run};

const SCHEMA: &str = "
    CREATE TABLE t (id int PRIMARY KEY, a text);
    INSERT INTO t SELECT n, 'a' FROM generate_series(1, 20) n";

fn with_schema(more: &str) -> (Site, Client) {
    let site = Site::start(more);
    let client = site.connect();
    run(&site, &client, SCHEMA);
    (site, client)
}

fn code(error: tokio_postgres::Error) -> SqlState {
    error.code().cloned().unwrap_or_else(|| panic!("{error:?}"))
}

/// What each of them adds another row to.
const LOG: &str = "CREATE TABLE log (id int PRIMARY KEY)";
const INSERT: &str = "INSERT INTO log (id) VALUES ($1) RETURNING *";

/// Clients that write to the table `log` while nobody can on the standby: as many sessions execute it there as may.
fn spread(site: &Site, round: i32) {
    let standby = 1 - site.who_serves();
    let local = site.runtime.block_on(connect(&site.member(standby)));
    let local = local.expect("let in");
    run(site, &local, "BEGIN; LOCK TABLE log IN SHARE MODE");
    let clients: Vec<_> = (0..8)
        .map(|number| {
            let (conninfo, id) = (site.conninfo(), round * 8 + number);
            let client = site.runtime.spawn(async move {
                let client = connect(&conninfo).await.expect("let in");
                let rows = client.query(INSERT, &[&id]).await;
                assert_eq!(rows.expect("it writes").len(), 1);
            });
            std::thread::sleep(Duration::from_millis(100));
            client
        })
        .collect();
    run(site, &local, "ROLLBACK");
    for client in clients {
        site.runtime.block_on(client).expect("it does not panic");
    }
    site.settle();
}

#[track_caller]
fn nothing_differs(site: &Site) {
    for at in 0..2 {
        let status = site.status(at).expect("it answers");
        assert_eq!(status.difference, None);
    }
}

/// A transaction of the log that met four of them was never executed: the standby, or the client, hung for ever.
// hazard: MIRROR-6
#[test]
fn sessions_that_have_ended_while_they_waited_hold_nothing_up() {
    let (site, client) = with_schema("");
    run(&site, &client, LOG);
    spread(&site, 0);
    let standby = 1 - site.who_serves();
    let ended = site.sides[standby].server.sql(&[
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name ~ '^understudy (mirror|applier)' AND pid NOT IN \
         (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock')",
    ]);
    assert!(ended.parse::<u32>().expect("a number") > 0, "{ended}");
    run(&site, &client, "INSERT INTO t VALUES (100, 'b')");
    site.level();
    site.settle();
    site.must_be_equal();
}

/// A client whose session at the member is ended while its commit waits for the log is told that nobody knows, and it has committed.
#[test]
fn a_commit_whose_session_is_lost_is_in_doubt_and_happens() {
    let (site, _) = with_schema("");
    for (number, explicit) in [(100, false), (101, true)] {
        let client = site.connect();
        let backend = site
            .runtime
            .block_on(client.query_one("SELECT pg_backend_pid()", &[]));
        let backend: i32 = backend.expect("reads").get(0);
        let text = match explicit {
            true => format!("BEGIN; INSERT INTO t VALUES ({number}, 'b'); COMMIT"),
            false => format!("INSERT INTO t VALUES ({number}, 'b')"),
        };
        site.hold_log(true);
        std::thread::scope(|scope| {
            let committing = scope.spawn(|| site.runtime.block_on(client.batch_execute(&text)));
            let server = &site.sides[site.who_serves()].server;
            let waits = format!(
                "SELECT count(*) FROM pg_stat_activity WHERE pid = {backend} AND wait_event = 'SyncRep'"
            );
            site.wait("it commits", || server.sql(&[&waits]) == "1");
            server.sql(&[&format!("SELECT pg_terminate_backend({backend})")]);
            std::thread::sleep(Duration::from_millis(100));
            site.hold_log(false);
            let told = committing.join().expect("no panic").expect_err("in doubt");
            assert!(
                told.code()
                    .is_none_or(|code| code.code().starts_with("08") || code.code() == "57P01"),
                "{told:?}"
            );
        });
        let client = site.connect();
        let told = site
            .runtime
            .block_on(client.query_one("SELECT count(*) FROM t WHERE id = $1", &[&number]));
        assert_eq!(told.expect("reads").get::<_, i64>(0), 1);
    }
    site.must_be_equal();
}

/// Sessions that execute the log had statements prepared whose results were others since; the member was taken for one that
/// differs, and made anew.
// hazard: MIRROR-8
#[test]
fn what_was_prepared_before_a_definition_changed_is_prepared_again() {
    let (site, client) = with_schema("");
    run(&site, &client, LOG);
    // A text is prepared when it comes to a session for the second time.
    spread(&site, 0);
    spread(&site, 1);
    run(&site, &client, "ALTER TABLE log ADD COLUMN c int DEFAULT 5");
    spread(&site, 2);
    nothing_differs(&site);
    site.must_be_equal();
}

/// What the member's own settings do to a session of the manager's was taken for a difference, and the member made anew.
// hazard: MIRROR-7
#[test]
fn what_a_member_is_configured_to_do_is_no_difference() {
    let (site, client) = with_schema("");
    let standby = 1 - site.who_serves();
    for text in [
        "ALTER SYSTEM SET default_transaction_read_only = on",
        "ALTER SYSTEM SET statement_timeout = '300ms'",
        "ALTER SYSTEM SET default_transaction_isolation = 'serializable'",
        "SELECT pg_reload_conf()",
    ] {
        site.sides[standby].server.sql(&[text]);
    }
    let local = site
        .runtime
        .block_on(connect(&site.member(standby)))
        .expect("let in");
    let own = "SET statement_timeout = 0; SET default_transaction_read_only = off";
    run(&site, &local, own);
    run(
        &site,
        &local,
        "BEGIN; SELECT FROM t WHERE id = 1 FOR KEY SHARE",
    );
    run(&site, &client, "INSERT INTO t VALUES (100, 'b')");
    // It waits there for longer than the server allows.
    run(&site, &client, "DELETE FROM t WHERE id = 1");
    let until = Instant::now() + Duration::from_secs(16);
    while Instant::now() < until {
        assert!(
            site.status(standby)
                .is_some_and(|status| !status.is_filling)
        );
        nothing_differs(&site);
        std::thread::sleep(Duration::from_millis(200));
    }
    run(&site, &local, "ROLLBACK");
    site.settle();
    nothing_differs(&site);
    site.must_be_equal();
}

/// Ctrl-C did nothing for as long as another transaction had what it needed.
#[test]
fn who_waits_for_a_lock_can_be_cancelled() {
    let (site, holder) = with_schema("");
    run(
        &site,
        &holder,
        "BEGIN; UPDATE t SET a = 'held' WHERE id = 1",
    );
    let waiting = site.connect();
    run(
        &site,
        &waiting,
        "BEGIN; UPDATE t SET a = 'kept' WHERE id = 2; SAVEPOINT s",
    );
    let token = waiting.cancel_token();
    let began = Instant::now();
    let (waited, asked) = site.runtime.block_on(async {
        tokio::join!(
            waiting.batch_execute("UPDATE t SET a = 'x' WHERE id = 1"),
            async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                token.cancel_query(NoTls).await
            }
        )
    });
    asked.expect("it can be asked for");
    assert_eq!(
        code(waited.expect_err("cancelled")),
        SqlState::QUERY_CANCELED
    );
    // It goes on from the savepoint.
    run(
        &site,
        &waiting,
        "ROLLBACK TO s; UPDATE t SET a = 'kept' WHERE id = 3; COMMIT",
    );
    run(&site, &holder, "COMMIT");
    assert!(began.elapsed() < Duration::from_secs(20));
    site.must_be_equal();
}

/// A schema that nobody but its owner may use kept the catalog from being read, within the transaction that defined something: it
/// was rolled back, and the client told that it went well.
// hazard: MIRROR-12
#[test]
fn a_definition_is_told_only_if_it_has_happened() {
    let (site, admin) = with_schema("");
    run(
        &site,
        &admin,
        "CREATE SCHEMA hr; CREATE TABLE hr.secret (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY); \
         CREATE ROLE app LOGIN; CREATE SCHEMA app AUTHORIZATION app; INSERT INTO hr.secret DEFAULT VALUES",
    );
    let conninfo = site.conninfo().replace("user=postgres", "user=app");
    let app = site.runtime.block_on(connect(&conninfo)).expect("let in");
    run(&site, &app, "CREATE TABLE app.x (id int)");
    run(
        &site,
        &app,
        "BEGIN; CREATE TABLE app.y (id int); INSERT INTO app.y VALUES (1); COMMIT",
    );
    run(&site, &app, "INSERT INTO app.x VALUES (1)");
    site.must_be_equal();
    let rows = psql(
        &site.member(1 - site.who_serves()),
        "SELECT count(*) FROM app.x, app.y",
    );
    assert_eq!(rows.as_deref(), Ok("1"));
}

/// Everybody but the managers must prove who they are.
const PASSWORDS: &str = "local all postgres trust\nlocal all all scram-sha-256\n";

/// Each login left a session of a superuser's behind, until nobody could log in any more.
// hazard: MIRROR-22
#[test]
fn many_logins_leave_few_sessions_behind() {
    let (site, admin) = with_schema("");
    run(&site, &admin, "CREATE ROLE app LOGIN PASSWORD 'secret'");
    for side in &site.sides {
        side.server.admit(PASSWORDS);
        side.server.sql(&["SELECT pg_reload_conf()"]);
    }
    let conninfo = site
        .conninfo()
        .replace("user=postgres", "user=app password=secret");
    let logins: Vec<_> = (0..60)
        .map(|_| {
            let conninfo = conninfo.clone();
            site.runtime
                .spawn(async move { connect(&conninfo).await.expect("let in") })
        })
        .collect();
    let clients = logins
        .into_iter()
        .map(|login| site.runtime.block_on(login).expect("in"));
    let clients: Vec<Client> = clients.collect();
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name ~ '^understudy (mirror|applier)'";
    let own = site.sides[site.who_serves()].server.sql(&[count]);
    assert!(own.parse::<u32>().expect("a number") < 15, "{own}");
    assert_eq!(clients.len(), 60);
}

/// Two sessions that wait for each other are PostgreSQL's business: one of them is told.
#[test]
fn a_circle_has_a_victim() {
    let (site, worker) = with_schema("");
    let other = site.connect();
    run(
        &site,
        &worker,
        "BEGIN; SELECT id FROM t WHERE a = 'a' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED",
    );
    let began = Instant::now();
    run(
        &site,
        &other,
        "BEGIN; UPDATE t SET a = 'other' WHERE id = 2",
    );
    let (one, two) = site.runtime.block_on(async {
        tokio::join!(
            other.batch_execute("UPDATE t SET a = 'other' WHERE id = 1; COMMIT"),
            worker.batch_execute("UPDATE t SET a = 'worker' WHERE id = 2; COMMIT"),
        )
    });
    assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
    let victim = code(one.and(two).expect_err("one of them"));
    assert_eq!(victim, SqlState::T_R_DEADLOCK_DETECTED);
    assert!(began.elapsed() < Duration::from_secs(8));
    for client in [&worker, &other] {
        run(&site, client, "ROLLBACK");
        run(&site, client, "UPDATE t SET a = 'late' WHERE id = 1");
    }
    site.must_be_equal();
}
