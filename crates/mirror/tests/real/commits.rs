//! A client that asks whether a transaction has committed is never told a wrong no.

use std::time::Duration;

use mirror::driver::peer::Question;
use tokio_postgres::Client;

use crate::returns::is_rewound;
use crate::server::psql;
use crate::site::{Site, connect, run, value};

const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, a text)";

/// A client with a transaction that has written this row, and the transaction's name.
fn begun(site: &Site, id: i32) -> (Client, String) {
    let client = site.connect();
    run(
        site,
        &client,
        &format!("BEGIN; INSERT INTO t VALUES ({id}, 'a')"),
    );
    let token = value(site, &client, "SHOW understudy.transaction");
    (client, token.expect("it has a name"))
}

/// A client's commit that is under way.
type Committing = tokio::task::JoinHandle<Result<(), tokio_postgres::Error>>;

fn commits(site: &Site, client: Client) -> Committing {
    let commit = async move { client.batch_execute("COMMIT").await };
    site.runtime.spawn(commit)
}

fn ends(site: &Site, committing: Committing) {
    let ended = site.runtime.block_on(committing);
    ended.expect("no panic").expect("it commits");
}

/// Begins to ask; it is answered later.
fn asks(site: &Site, token: &str) -> tokio::task::JoinHandle<Option<bool>> {
    let (conninfo, token) = (site.conninfo(), token.to_owned());
    let asking = site.runtime.spawn(async move {
        let client = connect(&conninfo).await.expect("let in");
        let text = "SELECT understudy_mirror.committed($1)";
        let row = client.query_one(text, &[&token]).await;
        row.expect("it is answered").get(0)
    });
    std::thread::sleep(Duration::from_millis(700));
    assert!(!asking.is_finished(), "it is under way");
    asking
}

fn told(site: &Site, asking: tokio::task::JoinHandle<Option<bool>>) -> Option<bool> {
    let answered = async { tokio::time::timeout(Duration::from_secs(20), asking).await };
    let answered = site.runtime.block_on(answered);
    answered.expect("it is answered").expect("no panic")
}

/// Asks about a transaction that waits for the log, and commits then. Returns its name.
fn asked_before_the_log_has_it(site: &Site, id: i32) -> String {
    let (client, token) = begun(site, id);
    site.hold_log(true);
    let committing = commits(site, client);
    let asking = asks(site, &token);
    site.hold_log(false);
    assert_eq!(told(site, asking), Some(true));
    ends(site, committing);
    token
}

/// Asks about one whose client goes away while it waits for the log. Returns its name.
fn asked_when_the_client_is_gone(site: &Site, id: i32) -> String {
    let (client, token) = begun(site, id);
    site.hold_log(true);
    let committing = commits(site, client);
    std::thread::sleep(Duration::from_millis(300));
    committing.abort();
    let asking = asks(site, &token);
    site.hold_log(false);
    assert_eq!(told(site, asking), Some(true));
    token
}

const COMMITTED: &str = "SELECT understudy_mirror.committed('NAME')";

/// The answer of the primary about a transaction.
fn committed(site: &Site, token: &str) -> Option<String> {
    value(site, &site.connect(), &COMMITTED.replace("NAME", token))
}

/// The answer was no while the transaction was open or on its way into the log, and it committed afterwards.
// hazard: MIRROR-41
#[test]
fn who_asks_about_rows_is_told_yes_or_no_or_waits() {
    let site = Site::start("");
    run(&site, &site.connect(), SCHEMA);
    // One that is rolled back.
    let (client, token) = begun(&site, 1);
    let asking = asks(&site, &token);
    let own = value(&site, &client, &COMMITTED.replace("NAME", &token));
    assert_eq!(own, None, "its own");
    run(&site, &client, "ROLLBACK");
    assert_eq!(told(&site, asking), Some(false));
    // One that commits, and waits for the log.
    let token = asked_before_the_log_has_it(&site, 2);
    // One whose client goes away meanwhile.
    let token_of_lost = asked_when_the_client_is_gone(&site, 3);
    // The other member says the same, and so does a copy of it, or nothing.
    let (client, back) = begun(&site, 4);
    run(&site, &client, "ROLLBACK");
    site.settle();
    site.ask_primary(Question::Switchover);
    let before = site.who_serves();
    for (token, wanted) in [(&token, "t"), (&token_of_lost, "t"), (&back, "f")] {
        assert_eq!(committed(&site, token).as_deref(), Some(wanted));
    }
    site.settle();
    site.switch_to(1 - before);
    for (token, wanted) in [(&token, "t"), (&back, "f")] {
        assert_eq!(committed(&site, token).as_deref(), Some(wanted));
    }
    for unknown in ["999-5", "1-99999999999", "x", ""] {
        assert_eq!(committed(&site, unknown), None, "{unknown}");
    }
    assert_eq!(site.must_be_equal().rows, 2);
}

/// A commit that was visible at a member and that the log never got has not happened, whoever is asked, also where it was made.
#[test]
fn a_commit_that_was_undone_has_not_happened() {
    let site = Site::start("");
    run(&site, &site.connect(), SCHEMA);
    let (client, logged) = begun(&site, 1);
    run(&site, &client, "COMMIT");
    site.must_be_equal();
    let before = site.who_serves();
    let (client, token) = begun(&site, 2);
    site.cut_off(before, true);
    let committing = commits(&site, client);
    let ended = site.runtime.block_on(committing).expect("no panic");
    ended.expect_err("it is in doubt");
    site.wait("the other one is primary", || {
        site.primary() == Some(1 - before)
    });
    assert_eq!(committed(&site, &token).as_deref(), Some("f"));
    assert_eq!(committed(&site, &logged).as_deref(), Some("t"));
    site.cut_off(before, false);
    is_rewound(&site, before, 1);
    site.settle();
    site.switch_to(before);
    assert_eq!(committed(&site, &token).as_deref(), Some("f"));
    assert_eq!(committed(&site, &logged).as_deref(), Some("t"));
    assert_eq!(site.must_be_equal().rows, 1);
}

/// The warning of a cancelled wait was not among the messages of such a session, and its client was told of a commit that the log lacked.
#[test]
fn a_cancelled_wait_is_noticed_where_the_client_sees_no_warnings() {
    let site = Site::start("");
    let client = site.connect();
    run(&site, &client, SCHEMA);
    let quiet =
        "CREATE ROLE quiet LOGIN SUPERUSER; ALTER ROLE quiet SET client_min_messages = error";
    run(&site, &client, quiet);
    let as_quiet = site.conninfo().replace("user=postgres", "user=quiet");
    let quiet = site.runtime.block_on(connect(&as_quiet)).expect("let in");
    let member = site.member(site.who_serves());
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query = 'COMMIT'";
    // By the client, and by a setting of its role.
    for (at, client, set) in [
        (1, client, "SET client_min_messages = error"),
        (2, quiet, ""),
    ] {
        let begin = format!("{set}; BEGIN; INSERT INTO t VALUES ({at}, 'a')");
        run(&site, &client, &begin);
        site.hold_log(true);
        let committing = commits(&site, client);
        site.wait("it waits, and is cancelled", || {
            psql(&member, cancel).as_deref() == Ok("1")
        });
        std::thread::sleep(Duration::from_millis(500));
        assert!(!committing.is_finished(), "{at}: the log does not have it");
        site.hold_log(false);
        ends(&site, committing);
    }
    site.must_be_equal();
}
