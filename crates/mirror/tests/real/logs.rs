//! Logs that are lost, and members that belong to another one.

use std::time::Duration;

use mirror::core::record::{Number, Record, Token};
use mirror::core::rows::{Header, Rows};

use crate::server::psql;
use crate::site::Site;
use crate::statements::run;

const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'a')";
/// What an operator does with a member that is to forget which log it belongs to.
const FORGET: &str = "DROP SCHEMA understudy_mirror CASCADE";

/// A mirror with a table, and its managers stopped.
fn stopped() -> Site {
    let mut site = Site::start("");
    run(&site, &site.connect(), &[SCHEMA]);
    site.must_be_equal();
    for at in 0..2 {
        site.kill_manager(at);
    }
    site
}

fn is(site: &Site, at: usize, what: &str) -> bool {
    let status = site.status(at);
    status.is_some_and(|status| format!("{:?}", status.role).contains(what))
}

fn of_member(site: &Site, at: usize, text: &str) -> String {
    psql(&site.member(at), text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Commits got numbers that the members had already: they were acknowledged, and executed nowhere.
// hazard: MIRROR-2
#[test]
fn nobody_serves_with_a_log_that_lacks_what_members_have() {
    let mut site = stopped();
    site.lose_log();
    for at in 0..2 {
        site.manage(at);
    }
    let both_are = |site: &Site| is(site, 0, "Foreign") && is(site, 1, "Foreign");
    site.wait("both say why", || both_are(&site));
    std::thread::sleep(Duration::from_secs(3));
    assert!(both_are(&site) && site.primary().is_none());
    for at in 0..2 {
        assert_eq!(of_member(&site, at, "SELECT a FROM t"), "a");
    }
    // An operator says which of both is right.
    of_member(&site, 1, "UPDATE t SET a = 'right'");
    site.keep(1);
    site.settle();
    assert_eq!(site.primary(), Some(1));
    assert_eq!(of_member(&site, 0, "SELECT a FROM t"), "right");
    run(&site, &site.connect(), &["INSERT INTO t VALUES (2, 'b')"]);
    assert_eq!(site.must_be_equal().rows, 2);
}

/// A new log had grown past what a member of the one before had: it was taken for the member's own, and the member for a standby
/// that has all of it.
#[test]
fn a_member_of_another_log_is_left_alone_until_an_operator_gives_it_up() {
    let mut site = stopped();
    site.lose_log();
    of_member(&site, 0, FORGET);
    site.manage(0);
    site.wait("one is kept", || site.primary() == Some(0));
    let client = site.connect();
    for number in 10..60 {
        let text = format!("INSERT INTO t VALUES ({number}, 'b')");
        run(&site, &client, &[&text]);
    }
    let has = of_member(&site, 1, "SELECT floor FROM understudy_mirror.state");
    assert!(has.parse::<u64>().expect("a number") < 50, "{has}");
    site.manage(1);
    site.wait("it says why", || is(&site, 1, "Foreign"));
    std::thread::sleep(Duration::from_secs(3));
    let status = site.status(1).expect("it answers");
    assert!(is(&site, 1, "Foreign") && !status.is_filling);
    let advice = status.advice.expect("something is to be done");
    assert!(advice.contains("belongs to the log"), "{advice}");
    assert_eq!(of_member(&site, 1, "SELECT count(*) FROM t"), "1");
    assert!(!site.status(0).expect("it answers").has_standby);
    site.keep(0);
    site.settle();
    assert_eq!(site.must_be_equal().rows, 51);
    let log = "SELECT log FROM understudy_mirror.state";
    assert_eq!(of_member(&site, 0, log), of_member(&site, 1, log));
}

/// Two different databases counted as equal, because nothing had been written to either yet.
// hazard: MIRROR-14
#[test]
fn of_two_members_that_were_made_for_a_new_log_one_is_left_alone() {
    let mut site = stopped();
    site.lose_log();
    for at in 0..2 {
        of_member(&site, at, FORGET);
    }
    of_member(&site, 1, "UPDATE t SET a = 'other'");
    for at in 0..2 {
        site.manage_as(at, 1 - at, true);
    }
    let at = site.who_serves();
    site.wait("the other one says why", || is(&site, 1 - at, "Foreign"));
    run(
        &site,
        &site.connect(),
        &["INSERT INTO t VALUES (2, 'only there')"],
    );
    std::thread::sleep(Duration::from_secs(2));
    assert!(is(&site, 1 - at, "Foreign"));
    assert_eq!(of_member(&site, 1 - at, "SELECT count(*) FROM t"), "1");
    let kept = of_member(&site, 1 - at, "SELECT a FROM t");
    assert_eq!(kept, if at == 0 { "other" } else { "a" });
}

/// It was taken for the transaction that got the number later, which was acknowledged and executed nowhere.
// hazard: MIRROR-15
#[test]
fn a_number_that_somebody_has_written_to_a_member_is_no_transaction() {
    let site = Site::start("");
    let client = site.connect();
    run(&site, &client, &[SCHEMA]);
    site.must_be_equal();
    let standby = 1 - site.who_serves();
    let next = site.status(standby).expect("it answers").logged + 1;
    let text = format!("INSERT INTO understudy_mirror.applied VALUES ({next}, 'x')");
    of_member(&site, standby, &text);
    run(&site, &client, &["INSERT INTO t VALUES (2, 'b')"]);
    site.wait("it is found", || {
        let status = site.status(standby);
        status.is_some_and(|status| status.difference.is_some())
    });
    site.keep(1 - standby);
    site.settle();
    assert_eq!(site.must_be_equal().rows, 2);
}

/// Whoever executes rows took its records for nothing, or for what its member differs by.
// hazard: MIRROR-1
#[test]
fn a_log_of_statements_is_refused() {
    let mut site = stopped();
    let log = of_member(&site, 0, "SELECT log FROM understudy_mirror.state");
    let floor = of_member(&site, 0, "SELECT floor FROM understudy_mirror.state");
    let token = Token { epoch: 1, count: 1 };
    let record = Record {
        number: Number(floor.parse::<u64>().expect("a number") + 1),
        draft: Rows::default()
            .draft(&Header::default(), token, Vec::new())
            .into(),
    };
    site.give_earlier_log(&log, record);
    for at in 0..2 {
        site.manage(at);
    }
    site.wait("it says what to do", || {
        let advice = site.status(0).and_then(|status| status.advice);
        advice.is_some_and(|advice| advice.contains("logged statements"))
    });
    assert!(site.primary().is_none());
    // Another volume, as it says.
    for at in 0..2 {
        site.kill_manager(at);
    }
    site.lose_log();
    for at in 0..2 {
        site.manage(at);
    }
    site.wait("both say which log they had", || {
        is(&site, 0, "Foreign") && is(&site, 1, "Foreign")
    });
    site.keep(0);
    site.settle();
    run(&site, &site.connect(), &["INSERT INTO t VALUES (2, 'b')"]);
    assert_eq!(site.must_be_equal().rows, 2);
}
