//! Members, sessions and clients that are not as the manager wants them.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
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
#[test]
fn sessions_that_have_ended_while_they_waited_hold_nothing_up() {
    let (site, client) = with_schema("");
    run(&site, &client, LOG);
    spread(&site, 0);
    let standby = 1 - site.who_serves();
    let ended = site.sides[standby].server.sql(&[
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'understudy mirror' AND pid NOT IN \
         (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock')",
    ]);
    assert!(ended.parse::<u32>().expect("a number") > 3, "{ended}");
    run(&site, &client, "INSERT INTO t VALUES (100, 'b')");
    site.wait("the standby has it", || {
        let status = site.status(standby);
        status.is_some_and(|status| status.applied == Some(status.logged))
    });
    site.settle();
    site.must_be_equal();
}

/// The client was told COMMIT, and then that its transaction has not committed.
#[test]
fn a_commit_whose_session_is_lost_is_told_as_one() {
    let (site, client) = with_schema("");
    run(&site, &client, "SET app.tenant = 'x'");
    for (number, explicit) in [(100, false), (101, true)] {
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
            let committing = scope.spawn(|| run(&site, &client, &text));
            let server = &site.sides[site.who_serves()].server;
            let waits = format!(
                "SELECT count(*) FROM pg_stat_activity WHERE pid = {backend} AND state = 'idle in transaction'"
            );
            site.wait("it commits", || server.sql(&[&waits]) == "1");
            std::thread::sleep(Duration::from_millis(100));
            server.sql(&[&format!("SELECT pg_terminate_backend({backend})")]);
            site.hold_log(false);
            committing.join().expect("it has committed");
        });
        // It goes on, with a new session of the member.
        let told = site.runtime.block_on(client.query_one(
            "SELECT count(*), current_setting('app.tenant') FROM t WHERE id = $1",
            &[&number],
        ));
        let told = told.expect("reads");
        assert_eq!((told.get::<_, i64>(0), told.get::<_, &str>(1)), (1, "x"));
    }
    site.must_be_equal();
}

/// Sessions that execute the log had statements prepared whose results were others since; the member was taken for one that
/// differs, and made anew.
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

/// Ctrl-C did nothing for as long as another transaction had what it needed, and who hung up kept what he had locked.
#[test]
fn who_waits_for_a_lock_can_be_cancelled_and_can_go_away() {
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
    // It goes on from the savepoint, and hangs up when it waits again.
    run(
        &site,
        &waiting,
        "ROLLBACK TO s; UPDATE t SET a = 'kept' WHERE id = 3",
    );
    let hangs_up = site.runtime.block_on(async {
        let update = waiting.batch_execute("UPDATE t SET a = 'x' WHERE id = 1");
        tokio::time::timeout(Duration::from_millis(500), update).await
    });
    assert!(hangs_up.is_err());
    drop(waiting);
    run(
        &site,
        &site.connect(),
        "UPDATE t SET a = 'free' WHERE id = 2; UPDATE t SET a = 'free' WHERE id = 3",
    );
    run(&site, &holder, "COMMIT");
    assert!(began.elapsed() < Duration::from_secs(20));
    site.must_be_equal();
}

/// The answer came later, and was taken for that to the client's next statement, and so on.
#[test]
fn a_member_that_answers_late_is_not_asked_again() {
    let (mut site, client) = with_schema("");
    let at = site.who_serves();
    site.kill_manager(1 - at);
    site.wait("it is primary", || site.primary() == Some(at));
    let backend = site
        .runtime
        .block_on(client.query_one("SELECT pg_backend_pid()", &[]));
    let backend: i32 = backend.expect("reads").get(0);
    kill(Pid::from_raw(backend), Signal::SIGSTOP).expect("it runs");
    site.cut_off(at, true);
    site.wait("it is not primary", || site.primary().is_none());
    site.cut_off(at, false);
    // The session asks its member what it has, for two seconds.
    std::thread::sleep(Duration::from_millis(2_500));
    site.wait("it is primary again", || site.primary() == Some(at));
    kill(Pid::from_raw(backend), Signal::SIGCONT).expect("it is there");
    std::thread::sleep(Duration::from_millis(200));
    for wanted in ["one", "two"] {
        let told = site
            .runtime
            .block_on(client.simple_query(&format!("SELECT '{wanted}'")));
        let told = told.expect("reads");
        let found = told.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        assert_eq!(found, Some(wanted));
    }
    site.manage(1 - at);
    site.settle();
}

/// A schema that nobody but its owner may use kept the catalog from being read, within the transaction that defined something: it
/// was rolled back, and the client told that it went well.
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

/// All of it was kept before its length was looked at.
#[test]
fn what_is_too_long_is_refused_before_all_of_it_is_there() {
    let (site, client) = with_schema("transaction_bytes = 1000000");
    let copied = site.runtime.block_on(async {
        let sink = client.copy_in("COPY t FROM STDIN").await.expect("copies");
        futures_util::pin_mut!(sink);
        use futures_util::SinkExt;
        let mut sent = Ok(());
        for number in 1000..1_100 {
            let row = format!("{number}\t{}\n", "x".repeat(100_000));
            sent = sink.send(bytes::Bytes::from(row)).await;
            if sent.is_err() {
                break;
            }
        }
        match sent {
            Ok(()) => sink.finish().await.map(drop),
            Err(error) => Err(error),
        }
    });
    let error = copied.expect_err("too long");
    assert!(
        error
            .code()
            .is_none_or(|code| *code == SqlState::PROGRAM_LIMIT_EXCEEDED),
        "{error:?}"
    );
    for from in (200..4_200).step_by(500) {
        let rows = format!(
            "INSERT INTO t SELECT n, repeat('y', 1000) FROM generate_series({from}, {from} + 499) n"
        );
        run(&site, &client, &rows);
    }
    let changed = "UPDATE t SET a = a || random()::text";
    let sent = site.runtime.block_on(client.batch_execute(changed));
    assert_eq!(
        code(sent.expect_err("too long")),
        SqlState::PROGRAM_LIMIT_EXCEEDED
    );
    run(&site, &client, "INSERT INTO t VALUES (100, 'b')");
    let count = site
        .runtime
        .block_on(client.query_one("SELECT count(*) FROM t", &[]));
    assert_eq!(count.expect("reads").get::<_, i64>(0), 20 + 4_000 + 1);
    site.must_be_equal();
}

/// Everybody but the managers must prove who they are.
const PASSWORDS: &str = "local all postgres trust\nlocal all all scram-sha-256\n";

/// Each login left a session of a superuser's behind, until nobody could log in any more.
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
    let count =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'understudy mirror'";
    let own = site.sides[site.who_serves()].server.sql(&[count]);
    assert!(own.parse::<u32>().expect("a number") < 15, "{own}");
    assert_eq!(clients.len(), 60);
}

/// Each side saw its own half of the circle, and both waited for `lock_timeout`.
#[test]
fn a_circle_through_the_manager_and_the_member_has_a_victim() {
    let (site, worker) = with_schema("");
    let other = site.connect();
    let locked = site.runtime.block_on(worker.batch_execute(
        "BEGIN; SELECT id FROM t WHERE a = 'a' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED",
    ));
    locked.expect("it has the first row");
    let began = Instant::now();
    let (waited, victim) = site.runtime.block_on(async {
        tokio::join!(
            other.batch_execute("BEGIN; UPDATE t SET a = 'other' WHERE id = 1; COMMIT"),
            async {
                // The other one waits at the member for this one.
                tokio::time::sleep(Duration::from_millis(500)).await;
                let update = "UPDATE t SET a = 'worker' WHERE id = 1";
                worker.batch_execute(update).await
            }
        )
    });
    let victim = code(victim.expect_err("it waits for itself"));
    assert_eq!(victim, SqlState::T_R_DEADLOCK_DETECTED);
    waited.expect("nobody is in its way any more");
    assert!(began.elapsed() < Duration::from_secs(8));
    run(&site, &worker, "ROLLBACK");
    run(&site, &worker, "UPDATE t SET a = 'late' WHERE id = 1");
    site.must_be_equal();
}

/// The client was told that nothing is known of its transaction, locks were given back while others planned with what was not right
/// any more, and no switchover was possible from then on.
#[test]
fn a_definition_is_acknowledged_when_the_manager_goes_by_it() {
    let (site, client) = with_schema("");
    let at = site.who_serves();
    let server = &site.sides[at].server;
    let admit = |may: bool| {
        server.sql(&[&format!("ALTER DATABASE app ALLOW_CONNECTIONS {may}")]);
    };
    let writer = site.connect();
    admit(false);
    server.sql(&[
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'understudy mirror' AND pid NOT IN \
         (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock')",
    ]);
    std::thread::scope(|scope| {
        let defining = scope.spawn(|| {
            run(
                &site,
                &client,
                "ALTER TABLE t ADD COLUMN r text DEFAULT 'x'; ALTER TABLE t ALTER r SET DEFAULT random()::text",
            );
        });
        std::thread::sleep(Duration::from_millis(1_500));
        assert!(!defining.is_finished(), "nobody has read the catalog");
        admit(true);
        defining.join().expect("it has committed");
    });
    run(&site, &writer, "INSERT INTO t (id) VALUES (100)");
    site.must_be_equal();
    site.ask_primary(mirror::driver::peer::Question::Switchover);
    site.wait("the other one is primary", || {
        site.primary() == Some(1 - at)
    });
}
