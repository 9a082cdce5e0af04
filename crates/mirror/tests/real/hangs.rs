//! Ways in which commits that wait for the log could wait for ever: each ends by itself.

use std::time::{Duration, Instant};

use crate::server::psql;
use crate::site::{Site, connect, run, value};

/// Commits that have locked what whoever decodes them needs. PostgreSQL does not see that they wait for each other.
const CIRCLES: &[&str] = &[
    "DO $$ BEGIN LOCK pg_class IN ACCESS EXCLUSIVE MODE; INSERT INTO t VALUES (1); END $$",
    "DO $$ BEGIN LOCK pg_attribute, pg_type IN ACCESS EXCLUSIVE MODE; INSERT INTO t VALUES (2); END $$",
    "DO $$ BEGIN LOCK pg_authid IN ACCESS EXCLUSIVE MODE; INSERT INTO t VALUES (3); END $$",
    "DO $$ BEGIN LOCK t IN ACCESS EXCLUSIVE MODE; INSERT INTO t VALUES (4); END $$",
];

#[test]
fn a_commit_that_locks_what_decodes_it_ends_by_itself() {
    let site = Site::start("");
    let client = site.connect();
    run(&site, &client, "CREATE TABLE t (id int PRIMARY KEY)");
    site.must_be_equal();
    for text in CIRCLES {
        let began = Instant::now();
        let executing = client.batch_execute(text);
        let executing = async { tokio::time::timeout(Duration::from_secs(20), executing).await };
        let done = site.runtime.block_on(executing);
        done.unwrap_or_else(|_| panic!("{text}: it waits for ever"))
            .unwrap_or_else(|error| panic!("{text}: {error:?}"));
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "{text}: {:?}",
            began.elapsed()
        );
    }
    assert_eq!(site.must_be_equal().rows, 4);
}

/// Whoever decoded waited behind somebody who waited for the commit: only who held what was waited for at once was looked for.
// hazard: MIRROR-72
#[test]
fn a_commit_that_is_waited_for_by_whom_the_decoder_waits_for_ends_by_itself() {
    let site = Site::start("");
    let (holder, waiting) = (site.connect(), site.connect());
    run(&site, &holder, "CREATE TABLE t (id int PRIMARY KEY)");
    site.must_be_equal();
    let holds =
        "BEGIN; DO $$ BEGIN LOCK pg_class IN ROW EXCLUSIVE MODE; END $$; INSERT INTO t VALUES (1)";
    run(&site, &holder, holds);
    let waits =
        "DO $$ BEGIN LOCK pg_class IN ACCESS EXCLUSIVE MODE; INSERT INTO t VALUES (2); END $$";
    let waits = async move { waiting.batch_execute(waits).await };
    let waits = site.runtime.spawn(waits);
    // Nobody can look whether it waits without waiting behind it.
    std::thread::sleep(Duration::from_secs(1));
    let commit = holder.batch_execute("COMMIT");
    let commit = async { tokio::time::timeout(Duration::from_secs(20), commit).await };
    let committed = site.runtime.block_on(commit);
    committed
        .expect("it does not wait for ever")
        .expect("it is done");
    let waited = site.runtime.block_on(waits).expect("it runs");
    waited.expect("it is done");
    assert_eq!(site.must_be_equal().rows, 2);
}

/// Clients that wait for the log of a manager that is gone get an answer, and go on at the other one.
#[test]
fn whoever_waits_for_a_manager_that_is_gone_is_told() {
    let mut site = Site::start("");
    let client = site.connect();
    run(&site, &client, "CREATE TABLE t (id int PRIMARY KEY)");
    site.must_be_equal();
    let before = site.who_serves();
    let member = site.member(before);
    site.hold_log(true);
    let inserting = site
        .runtime
        .spawn(async move { client.batch_execute("INSERT INTO t VALUES (1)").await });
    site.wait("the commit waits", || waiting(&member) == "1");
    site.kill_manager(before);
    site.hold_log(false);
    let ended = async { tokio::time::timeout(Duration::from_secs(10), inserting).await };
    let ended = site
        .runtime
        .block_on(ended)
        .expect("it ends")
        .expect("it runs");
    ended.expect_err("nobody has logged it");
    site.wait("the other one is primary", || {
        site.primary() == Some(1 - before)
    });
    run(&site, &site.connect(), "INSERT INTO t VALUES (2)");
    site.manage(before);
    site.settle();
    site.must_be_equal();
}

fn waiting(member: &str) -> String {
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    psql(member, waits).expect("it answers")
}

/// Writes so much WAL that the slot loses what was not decoded.
fn lose_slot(member: &str) {
    let session = format!("{member} options='-c synchronous_commit=local'");
    for _ in 0..6 {
        psql(
            &session,
            "SELECT pg_logical_emit_message(false, 'x', 'y'), pg_switch_wal()",
        )
        .expect("it is written");
    }
    psql(&session, "CHECKPOINT").expect("it is done");
    let lost = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'understudy_mirror'";
    assert_eq!(psql(&session, lost).as_deref(), Ok("lost"));
}

/// A member whose slot is full has commits that nobody can decode any more: it is replaced, and its database kept.
#[test]
fn a_member_whose_slot_is_lost_while_its_manager_is_away_is_replaced() {
    let mut site = Site::start_with("", |server| {
        server.configure("max_slot_wal_keep_size = '32MB'");
    });
    run(
        &site,
        &site.connect(),
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)",
    );
    site.must_be_equal();
    let standby = 1 - site.who_serves();
    site.kill_manager(standby);
    std::thread::sleep(Duration::from_secs(1));
    lose_slot(&site.member(standby));
    site.manage(standby);
    site.settle();
    assert_eq!(site.must_be_equal().rows, 1);
    assert_eq!(site.kept(standby).len(), 1);
}

/// The primary's slot is lost while it serves: it stops, and the other one goes on.
#[test]
fn a_primary_whose_slot_is_lost_is_replaced() {
    let site = Site::start("");
    let client = site.connect();
    run(
        &site,
        &client,
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)",
    );
    site.must_be_equal();
    let before = site.who_serves();
    let session = site.member(before);
    let dropped = "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots; SELECT pg_drop_replication_slot('understudy_mirror')";
    site.wait("the slot is dropped", || psql(&session, dropped).is_ok());
    site.wait("the other one is primary", || {
        site.primary() == Some(1 - before)
    });
    let client = site
        .runtime
        .block_on(connect(&site.conninfo()))
        .expect("let in");
    run(&site, &client, "INSERT INTO t VALUES (2)");
    site.settle();
    assert_eq!(
        value(&site, &client, "SELECT count(*) FROM t").as_deref(),
        Some("2")
    );
    assert_eq!(site.must_be_equal().rows, 2);
}

/// The manager asks sequences for their values, and PostgreSQL had it wait behind whoever waited to lock one; no commit was logged then.
#[test]
fn nobody_waits_for_whoever_waits_to_lock_a_sequence() {
    let site = Site::start("");
    let (holder, client, altering) = (site.connect(), site.connect(), site.connect());
    let tables = "CREATE SEQUENCE s; CREATE TABLE t (id int PRIMARY KEY)";
    run(&site, &client, tables);
    run(&site, &holder, "BEGIN; SELECT nextval('s')");
    let restart = async move { altering.batch_execute("ALTER SEQUENCE s RESTART").await };
    let altering = site.runtime.spawn(restart);
    let member = site.member(site.who_serves());
    site.wait("somebody waits to lock it", || {
        let text =
            "SELECT count(*) > 0 FROM pg_locks WHERE relation = 's'::regclass AND NOT granted";
        psql(&member, text).as_deref() == Ok("t")
    });
    let inserting = async {
        let inserting = client.batch_execute("INSERT INTO t VALUES (1)");
        tokio::time::timeout(Duration::from_secs(20), inserting).await
    };
    let done = site.runtime.block_on(inserting);
    done.expect("it does not wait").expect("it is done");
    run(&site, &holder, "COMMIT");
    let altered = site.runtime.block_on(altering).expect("it runs");
    altered.expect("it is done");
    site.must_be_equal();
}

/// A standby whose server lacked a tablespace was set aside for good.
#[test]
fn a_table_waits_until_the_standby_has_its_tablespace() {
    const CREATE: &[&str] = &[
        "SET allow_in_place_tablespaces = on",
        "CREATE TABLESPACE fast LOCATION ''",
    ];
    let site = Site::start("");
    let client = site.connect();
    let at = site.who_serves();
    site.sides[at].server.sql(CREATE);
    let text = "CREATE TABLE t (id int PRIMARY KEY) TABLESPACE fast; INSERT INTO t VALUES (1)";
    run(&site, &client, text);
    site.wait("it is told what is missing", || {
        let advice = site.status(1 - at).and_then(|status| status.advice);
        advice.is_some_and(|advice| advice.contains("CREATE TABLESPACE at this member"))
    });
    site.sides[1 - at].server.sql(CREATE);
    site.settle();
    assert_eq!(site.must_be_equal().rows, 1);
}
