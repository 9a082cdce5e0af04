//! Sessions that go on when the other manager becomes primary.

use std::time::Duration;

use mirror::driver::peer::Question;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use crate::site::{self, Site, connect};

/// The other manager becomes primary.
fn switch_over(site: &Site) {
    site.settle();
    let before = site.who_serves();
    site.switch_to(1 - before);
}

/// The first value that a text returns; nothing in place of NULL.
fn value(site: &Site, client: &Client, text: &str) -> String {
    site::value(site, client, text).unwrap_or_default()
}

const SCHEMA: &str = "
    CREATE SCHEMA other;
    CREATE TABLE t (id int PRIMARY KEY, a text);
    CREATE TABLE other.o (id int PRIMARY KEY);
    CREATE ROLE reader;
    GRANT USAGE ON SCHEMA other TO reader;
    GRANT SELECT ON t, other.o TO reader";

fn with_schema(more: &str) -> Site {
    let site = Site::start(more);
    let client = site.connect();
    let made = site.runtime.block_on(client.batch_execute(SCHEMA));
    made.expect("it is made");
    site
}

// hazard: MIRROR-52
#[test]
fn a_session_goes_on_with_all_that_it_has() {
    let site = with_schema("");
    let client = site.connect();
    let run = |text: &str| {
        let done = site.runtime.block_on(client.batch_execute(text));
        done.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    };
    let insert = site
        .runtime
        .block_on(client.prepare("INSERT INTO t VALUES ($1, $2)"))
        .expect("prepared");
    run("SET search_path = other, public; SET app.tenant = 'it''s'; SET TimeZone = 'Asia/Tokyo'");
    run("BEGIN; SET work_mem = '7MB'; ROLLBACK");
    run("PREPARE mine AS SELECT 'prepared'");
    for round in 1..=4 {
        switch_over(&site);
        assert_eq!(value(&site, &client, "SHOW app.tenant"), "it's");
        assert_eq!(value(&site, &client, "SHOW search_path"), "other, public");
        assert_eq!(value(&site, &client, "SHOW TimeZone"), "Asia/Tokyo");
        assert_eq!(value(&site, &client, "SHOW work_mem"), "4MB");
        assert_eq!(value(&site, &client, "EXECUTE mine"), "prepared");
        let text = format!("round {round}");
        let inserted = site
            .runtime
            .block_on(client.execute(&insert, &[&round, &text]));
        assert_eq!(inserted.expect("inserted"), 1);
        run(&format!("INSERT INTO o VALUES ({round})"));
        // What is changed elsewhere comes along as well.
        run(&format!("SET app.round = '{round}'"));
        if round == 2 {
            run("DEALLOCATE mine; PREPARE mine AS SELECT 'prepared'");
        }
        run("SET ROLE reader");
        switch_over(&site);
        assert_eq!(value(&site, &client, "SELECT current_user"), "reader");
        assert_eq!(value(&site, &client, "SHOW app.round"), round.to_string());
        run("RESET ROLE");
    }
    let rows = value(
        &site,
        &client,
        "SELECT count(*) FROM public.t JOIN other.o USING (id)",
    );
    assert_eq!(rows, "4");
    site.must_be_equal();
}

#[test]
fn a_session_that_has_moved_can_be_cancelled() {
    let site = with_schema("");
    let client = site.connect();
    for _ in 0..2 {
        switch_over(&site);
        let token = client.cancel_token();
        let sleeping = async {
            tokio::join!(client.batch_execute("SELECT pg_sleep(30)"), async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                token.cancel_query(NoTls).await
            })
        };
        let (slept, asked) = site.runtime.block_on(sleeping);
        asked.expect("it can be asked for");
        let code = slept.expect_err("it is cancelled").code().cloned();
        assert_eq!(code, Some(SqlState::QUERY_CANCELED));
        assert_eq!(value(&site, &client, "SELECT 1"), "1");
    }
}

/// Everybody but the managers must prove who they are.
const PASSWORDS: &str = "local all postgres trust
local all all scram-sha-256
host all postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
";

// hazard: MIRROR-55
#[test]
fn a_client_with_a_password_is_not_asked_again() {
    let site = with_schema("");
    for side in &site.sides {
        side.server.admit(PASSWORDS);
        side.server.sql(&["SELECT pg_reload_conf()"]);
    }
    let admin = site.connect();
    // The second one is made by the mirror itself, and has the same verifier on both members.
    let made = "CREATE ROLE app LOGIN PASSWORD 'secret'; GRANT ALL ON t TO app; ALTER ROLE app PASSWORD 'other'";
    site.runtime
        .block_on(admin.batch_execute(made))
        .expect("it is made");
    let with = |password: &str| {
        let conninfo = site.conninfo().replace("user=postgres", "user=app");
        let conninfo = format!("{conninfo} password={password}");
        site.runtime.block_on(connect(&conninfo))
    };
    assert!(with("secret").is_err(), "the password is another one");
    let client = with("other").expect("it is right");
    for round in 0..3 {
        switch_over(&site);
        assert_eq!(value(&site, &client, "SELECT session_user"), "app");
        let text = format!("INSERT INTO t VALUES ({round}, 'by app')");
        site.runtime
            .block_on(client.batch_execute(&text))
            .expect("it goes on");
    }
    site.must_be_equal();
}

// hazard: MIRROR-52
#[test]
fn what_cannot_move_is_told_why() {
    let site = with_schema("");
    let cases = [
        ("CREATE TEMP TABLE mine (a int)", "temporary"),
        ("LISTEN channel", "notifications"),
        ("SELECT pg_advisory_lock(1)", "advisory"),
        ("DECLARE c CURSOR WITH HOLD FOR SELECT 1", "cursor"),
    ];
    let sessions: Vec<_> = cases
        .iter()
        .map(|(text, _)| {
            let (client, connection) = site
                .runtime
                .block_on(tokio_postgres::connect(&site.conninfo(), NoTls))
                .expect("let in");
            let ending = site.runtime.spawn(connection);
            let done = site.runtime.block_on(client.batch_execute(text));
            done.unwrap_or_else(|error| panic!("{text}: {error:?}"));
            (client, ending)
        })
        .collect();
    let gone = site.connect();
    let back = "CREATE TEMP TABLE mine (a int); DROP TABLE mine; SELECT pg_advisory_lock(2); \
        SELECT pg_advisory_unlock(2); LISTEN c; UNLISTEN c";
    for text in back.split("; ") {
        site.runtime
            .block_on(gone.batch_execute(text))
            .expect("it is done");
    }
    switch_over(&site);
    for ((_client, ending), (text, why)) in sessions.into_iter().zip(cases) {
        let ended = site.runtime.block_on(ending).expect("it does not panic");
        let error = ended.expect_err("the session ends");
        let told = error.as_db_error().expect("it is told why");
        assert_eq!(told.code(), &SqlState::ADMIN_SHUTDOWN, "{text}");
        assert!(
            told.detail().is_some_and(|detail| detail.contains(why)),
            "{text}: {told:?}"
        );
    }
    assert_eq!(
        value(&site, &gone, "SELECT 1"),
        "1",
        "it has nothing any more"
    );
}

/// A client that only reads in a transaction is waited for, and so is one that has begun to write.
// hazard: MIRROR-51
#[test]
fn what_has_begun_is_waited_for() {
    let site = with_schema("");
    let (reader, writer, late) = (site.connect(), site.connect(), site.connect());
    let run = |client: &Client, text: &str| {
        let done = site.runtime.block_on(client.batch_execute(text));
        done.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    };
    run(&reader, "BEGIN; SELECT count(*) FROM t");
    run(&writer, "BEGIN; INSERT INTO t VALUES (1, 'a')");
    site.settle();
    let before = site.who_serves();
    std::thread::scope(|scope| {
        let switching = scope.spawn(|| site.ask_primary(Question::Switchover));
        std::thread::sleep(Duration::from_millis(500));
        let waiting = scope.spawn(|| run(&late, "INSERT INTO t VALUES (3, 'late')"));
        std::thread::sleep(Duration::from_millis(500));
        assert!(!switching.is_finished() && !waiting.is_finished());
        run(&reader, "INSERT INTO t VALUES (2, 'reads first'); COMMIT");
        run(&writer, "INSERT INTO t VALUES (4, 'b'); COMMIT");
        switching.join().expect("it hands over");
        waiting.join().expect("it goes on there");
    });
    site.wait("the other one is primary", || {
        site.primary() == Some(1 - before)
    });
    assert_eq!(value(&site, &reader, "SELECT count(*) FROM t"), "4");
    site.must_be_equal();
}

// hazard: MIRROR-54
#[test]
fn nobody_waits_for_a_manager_that_is_lost() {
    let mut site = with_schema("");
    let client = site.connect();
    let primary = site.who_serves();
    site.kill_manager(1 - primary);
    site.wait("it is primary still", || site.primary() == Some(primary));
    assert_eq!(value(&site, &client, "SELECT 1"), "1");
    site.manage(1 - primary);
    site.settle();
    switch_over(&site);
    assert_eq!(value(&site, &client, "SELECT 1"), "1");
    // The session is elsewhere: if that manager is lost it ends, and says what it knows.
    site.kill_manager(1 - primary);
    let lost = site.runtime.block_on(client.batch_execute("SELECT 1"));
    assert!(lost.is_err());
    site.wait("this one is primary again", || {
        site.primary() == Some(primary)
    });
}

/// A manager that is asked to end hands over, and sends those home whose clients are the other one's.
#[test]
fn a_manager_that_ends_sends_sessions_home() {
    let mut site = with_schema("");
    let home = site.who_serves();
    let client = site.connect();
    switch_over(&site);
    assert_eq!(value(&site, &client, "SELECT 1"), "1");
    site.settle();
    let local = site.connect();
    site.end_manager(1 - home);
    site.wait("the first is primary again", || {
        site.primary() == Some(home)
    });
    assert_eq!(value(&site, &client, "SELECT 2"), "2");
    assert!(
        site.runtime
            .block_on(local.batch_execute("SELECT 1"))
            .is_err(),
        "its own clients connect again"
    );
}

/// The zones did not answer for a little longer than the lease, and every session with something under way was ended.
// hazard: MIRROR-78
#[test]
fn zones_that_are_slow_for_a_moment_end_nothing() {
    let site = with_schema("");
    // On a busy machine the moment may be too long.
    for _ in 0..10 {
        site.settle();
        let primary = site.who_serves();
        let client = site.connect();
        let epoch = site.status(primary).expect("it runs").epoch;
        site.cut_off(primary, true);
        let asked = std::time::Instant::now();
        let (answer, ()) = site.runtime.block_on(async {
            let healed = async {
                tokio::time::sleep(Duration::from_millis(1_150)).await;
                site.cut_off(primary, false);
            };
            tokio::join!(client.simple_query("SELECT pg_sleep(1.05)"), healed)
        });
        if site.status(primary).expect("it runs").epoch == epoch {
            answer.expect("it is answered when the zones have confirmed the epoch");
            let took = asked.elapsed();
            assert!(took > Duration::from_millis(1_140), "{took:?}");
            return;
        }
    }
    panic!("each epoch has ended");
}

/// Sessions with nothing under way outlive their member.
// hazard: MIRROR-36
#[test]
fn a_lost_member_is_not_noticed_by_who_is_idle() {
    let site = with_schema("");
    let primary = site.who_serves();
    let client = site.connect();
    let set = "SET app.tenant = 'x'";
    site.runtime
        .block_on(client.batch_execute(set))
        .expect("set");
    for mode in ["immediate", "fast"] {
        let lost = site.who_serves();
        site.sides[lost].server.stop(mode);
        site.wait("the other one is primary", || {
            site.primary() == Some(1 - lost)
        });
        assert_eq!(value(&site, &client, "SHOW app.tenant"), "x");
        site.sides[lost].server.start();
        site.settle();
    }
    assert_eq!(site.who_serves(), primary);
    site.must_be_equal();
}
