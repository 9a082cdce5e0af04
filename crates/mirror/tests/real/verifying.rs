//! Members that are compared without being asked.

use std::time::{Duration, Instant};

use mirror::core::verifying::Verified;
use mirror::driver::Status;
use mirror::driver::peer::Question;

use crate::server::psql;
use crate::site::{Site, connect, run};

const SCHEMA: &str = "
    CREATE EXTENSION pg_surgery;
    CREATE TABLE t (id int PRIMARY KEY, a text);
    INSERT INTO t VALUES (1, 'a'), (2, 'a'), (3, 'a')";

fn primary(site: &Site) -> Status {
    let at = site.who_serves();
    site.status(at).expect("it answers")
}

/// Waits until the primary's last comparison is as wanted.
fn wait_verified(site: &Site, what: &str, is_it: impl Fn(&Verified) -> bool) -> Verified {
    site.wait(what, || {
        let at = site.primary();
        let status = at.and_then(|at| site.status(at));
        let verified = status.and_then(|status| status.verified);
        verified.is_some_and(|verified| is_it(&verified))
    });
    primary(site).verified.expect("it was there")
}

/// A row that is gone without a transaction, as on a damaged page, is seen neither by the log nor by whoever compares transactions.
#[test]
fn a_damaged_page_is_found_by_schedule_and_nothing_is_set_aside() {
    let site = Site::start("verify_every = '1s'");
    let client = site.connect();
    run(&site, &client, SCHEMA);
    let equal = wait_verified(&site, "it is compared", |one| one.rows == 3);
    assert!(equal.equal && equal.differences.is_empty(), "{equal:?}");
    let standby = 1 - site.who_serves();
    let kill = "SELECT heap_force_kill('t'::regclass, ARRAY['(0,2)']::tid[])";
    psql(&site.member(standby), kill).expect("the row is gone");
    let differs = wait_verified(&site, "it is found", |one| !one.equal);
    let said = differs.differences.join("; ");
    assert!(said.contains("\"public\".\"t\""), "{said}");
    assert!(said.contains("3 rows, the standby 2"), "{said}");
    // An operator decides: clients go on, and the standby stays one.
    run(&site, &client, "INSERT INTO t VALUES (4, 'b')");
    let status = primary(&site);
    assert!(
        status.has_standby && status.difference.is_none(),
        "{status:?}"
    );
    let status = site.status(standby).expect("it answers");
    assert!(status.difference.is_none(), "{status:?}");
    let metrics = site.ask_primary(Question::Metrics);
    assert!(metrics.contains("\nunderstudy_mirror_verified_equal 0\n"));
    assert!(metrics.contains("\nunderstudy_mirror_verified_timestamp_seconds 1"));
    // The same row is gone from both: they are equal again.
    run(&site, &client, "DELETE FROM t WHERE id <> 2");
    let at = site.who_serves();
    psql(&site.member(at), kill).expect("the row is gone");
    wait_verified(&site, "they are equal", |one| one.equal && one.rows == 0);
}

/// Writers would wait for whoever has forgotten to commit.
#[test]
fn a_comparison_by_schedule_gives_up_soon_and_says_why() {
    let mut site = Site::start("verify_every = '1s'");
    let (client, open) = (site.connect(), site.connect());
    run(&site, &client, "CREATE TABLE t (id int PRIMARY KEY)");
    wait_verified(&site, "it is compared", |_| true);
    run(&site, &open, "BEGIN; INSERT INTO t VALUES (0)");
    let says = |wanted: &str| {
        let why = site.primary().and_then(|at| site.status(at));
        let why = why.and_then(|status| status.unverified);
        why.is_some_and(|why| why.contains(wanted))
    };
    site.wait("it says why", || says("transactions are open"));
    // Writers waited for 2 s in each attempt, of which there was one each 3 s.
    let insert = |id: u32| {
        let began = Instant::now();
        run(&site, &client, &format!("INSERT INTO t VALUES ({id})"));
        std::thread::sleep(Duration::from_secs(1));
        began.elapsed() - Duration::from_secs(1)
    };
    let waited: Vec<Duration> = (1..10).map(insert).collect();
    let are_long = waited
        .iter()
        .filter(|took| **took > Duration::from_millis(900));
    assert!(are_long.count() < 2, "{waited:?}");
    run(&site, &open, "COMMIT");
    wait_verified(&site, "it is compared again", |one| one.rows == 10);
    assert_eq!(primary(&site).unverified, None);
    let before = site.who_serves();
    site.kill_manager(1 - before);
    let says = |wanted: &str| {
        let why = site.primary().and_then(|at| site.status(at));
        let why = why.and_then(|status| status.unverified);
        why.is_some_and(|why| why.contains(wanted))
    };
    site.wait("it says why", || says("there is no standby"));
    site.manage(1 - before);
    site.settle();
    run(&site, &site.connect(), "INSERT INTO t VALUES (10)");
    wait_verified(&site, "it is compared again", |one| one.rows == 11);
}

/// One that an operator asks for counts, and is the primary's.
#[test]
fn a_comparison_by_command_is_remembered() {
    let site = Site::start("");
    run(
        &site,
        &site.connect(),
        "CREATE TABLE t (id int PRIMARY KEY)",
    );
    assert_eq!(primary(&site).verified, None);
    let verdict = site.must_be_equal();
    let verified = primary(&site).verified.expect("it was compared");
    assert_eq!(
        (verified.equal, verified.transaction, verified.tables),
        (true, verdict.transaction, 1)
    );
    let standby = site.status(1 - site.who_serves()).expect("it answers");
    assert_eq!((standby.verified, standby.unverified), (None, None));
}

/// The locks of a comparison were kept until its end: whoever changed a table waited for it, and all others behind that one.
#[test]
fn whoever_changes_a_table_does_not_wait_for_a_comparison() {
    let mut site = Site::unmanaged("verify_every = '0s'", |_| {});
    let large = "CREATE TABLE a (id int); INSERT INTO a VALUES (1); \
        CREATE TABLE z AS SELECT n, repeat('x', 20) FROM generate_series(1, 4000000) n";
    psql(&site.member(0), large).expect("it is made");
    site.manage(0);
    site.manage(1);
    site.settle();
    let began = Instant::now();
    assert_eq!(site.must_be_equal().rows, 4_000_001);
    let alone = began.elapsed();
    let client = site.connect();
    let timed = |text: &str| {
        let began = Instant::now();
        run(&site, &client, text);
        began.elapsed()
    };
    let mut took = Vec::new();
    let verdict = std::thread::scope(|scope| {
        let verifying = scope.spawn(|| site.verify());
        std::thread::sleep(Duration::from_millis(500));
        took.push(timed("ALTER TABLE a ADD COLUMN b int"));
        took.push(timed("ALTER TABLE z ADD COLUMN b int"));
        verifying.join().expect("it is compared")
    });
    println!("{alone:?} alone; changes took {took:?}");
    assert!(took[0] < alone / 2, "{took:?}");
    assert!(
        took.iter().all(|took| *took < Duration::from_secs(5)),
        "{took:?}"
    );
    assert!(verdict.equal, "{verdict:?}");
    assert_eq!(verdict.rows, 4_000_001);
    let conninfo = site.conninfo();
    let asked = site.runtime.block_on(connect(&conninfo));
    run(
        &site,
        &asked.expect("lets in"),
        "INSERT INTO a VALUES (2, 2)",
    );
    site.must_be_equal();
}
