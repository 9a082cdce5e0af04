//! Members that nobody but an operator may have replaced, and what becomes of them.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use mirror::driver::Status;
use mirror::driver::peer::Question;

use crate::server::psql;
use crate::site::{Site, run, value};

const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'a'), (2, 'a'), (3, 'a')";
const WRONG: &str = "UPDATE t SET a = 'wrong' WHERE id = 2";
const OTHERS: &str = "SELECT string_agg(id || a, ' ' ORDER BY id) FROM t";

/// A mirror of which the standby differs, and is set aside; which one that is.
fn differing() -> (Site, usize) {
    let site = Site::start("");
    let client = site.connect();
    run(&site, &client, SCHEMA);
    site.must_be_equal();
    let standby = 1 - site.who_serves();
    psql(&site.member(standby), WRONG).expect("it is done behind the manager's back");
    site.wait("it is found", || {
        let status = site.status(standby);
        status.is_some_and(|status| status.difference.is_some())
    });
    run(&site, &client, "DELETE FROM t WHERE a = 'a' AND id < 3");
    (site, standby)
}

/// A manager says that its member waits for a decision, and leaves it alone.
#[track_caller]
fn waits(site: &Site, at: usize) -> Status {
    site.wait("it is set aside", || {
        let status = site.status(at);
        status.is_some_and(|status| status.aside_since.is_some())
    });
    std::thread::sleep(Duration::from_secs(3));
    let status = site.status(at).expect("it answers");
    assert!(!status.is_filling, "{status:?}");
    let advice = status.advice.as_deref().unwrap_or_default();
    assert!(advice.contains("resolve --keep"), "{status:?}");
    assert!(site.kept(at).is_empty());
    status
}

/// It was dropped and made anew from the primary's, whichever of both was right.
// hazard: MIRROR-40
#[test]
fn a_member_that_differs_is_replaced_when_an_operator_says_so_and_kept() {
    let (mut site, standby) = differing();
    let status = waits(&site, standby);
    let difference = status.difference.expect("it says what");
    assert!(difference.contains("wrong"), "{difference}");
    // Also after its manager has begun again.
    site.kill_manager(standby);
    site.manage(standby);
    let again = waits(&site, standby);
    assert_eq!(again.difference, Some(difference));
    // The member notes it a moment after its manager has.
    let since = |status: Option<u64>| status.expect("it says since when");
    let apart_ms = since(again.aside_since).abs_diff(since(status.aside_since));
    assert!(apart_ms < 5_000, "{apart_ms}");
    assert_eq!(
        psql(&site.member(standby), OTHERS).as_deref(),
        Ok("1a 2wrong 3a")
    );
    let resolved = site.keep(1 - standby);
    assert!(!resolved.adopted);
    site.settle();
    site.must_be_equal();
    assert_eq!(psql(&site.member(standby), OTHERS).as_deref(), Ok("3a"));
    let kept = site.kept(standby);
    assert_eq!(kept.len(), 1);
    site.wait("status says so", || {
        site.status(standby)
            .is_some_and(|status| status.kept == kept)
    });
    let old = site
        .member(standby)
        .replace("dbname=app", &format!("dbname={}", kept[0]));
    assert_eq!(psql(&old, OTHERS).as_deref(), Ok("1a 2wrong 3a"));
}

/// The good copy was dropped, because it differed from the one that was wrong.
// hazard: MIRROR-35
#[test]
fn the_member_that_differs_may_be_the_right_one() {
    let (site, standby) = differing();
    let client = site.connect();
    run(
        &site,
        &client,
        "BEGIN; INSERT INTO t VALUES (9, 'only here')",
    );
    let lost = value(&site, &client, "SHOW understudy.transaction");
    let lost = lost.expect("it has a name");
    run(&site, &client, "COMMIT");
    waits(&site, standby);
    let resolved = site.keep(standby);
    assert!(resolved.adopted);
    site.wait("it serves", || site.primary() == Some(standby));
    site.settle();
    assert_eq!(site.primary(), Some(standby));
    for at in 0..2 {
        assert_eq!(
            psql(&site.member(at), OTHERS).as_deref(),
            Ok("1a 2wrong 3a")
        );
    }
    let kept = site.kept(1 - standby);
    assert_eq!(kept.len(), 1);
    let old = site
        .member(1 - standby)
        .replace("dbname=app", &format!("dbname={}", kept[0]));
    assert_eq!(psql(&old, OTHERS).as_deref(), Ok("3a 9only here"));
    // It may have committed: nobody says that it has not.
    let asked = format!("SELECT understudy_mirror.committed('{lost}') IS NULL");
    assert_eq!(psql(&site.conninfo(), &asked).as_deref(), Ok("t"));
    run(&site, &site.connect(), "INSERT INTO t VALUES (4, 'b')");
    site.must_be_equal();
}

/// Whatever was in the second database was dropped when a mirror was made.
#[test]
fn a_database_that_has_something_is_not_filled() {
    let mut site = Site::unmanaged("", |_| {});
    for (text, undo) in [
        ("CREATE TABLE precious (id int)", "DROP TABLE precious"),
        ("CREATE SCHEMA own", "DROP SCHEMA own"),
        ("SELECT lo_create(1)", "SELECT lo_unlink(1)"),
        (
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "SELECT 1",
        ),
    ] {
        for at in 0..2 {
            site.kill_manager(at);
        }
        psql(&site.member(1), text).expect("done");
        site.manage(0);
        site.manage(1);
        waits(&site, 1);
        psql(&site.member(1), undo).expect("done");
    }
    site.who_serves();
    site.keep(0);
    site.settle();
    assert_eq!(site.kept(1).len(), 1);
    // One that is merely behind has nothing that the log has not had: nothing is left of it.
    let client = site.connect();
    run(&site, &client, SCHEMA);
    site.must_be_equal();
    assert_eq!(site.kept(1).len(), 1);
}

/// Directs the managers to programs of which one is another.
fn with_program(directory: &Path, name: &str, script: &str) {
    for program in ["pg_dump", "pg_dumpall", "pg_restore", "psql"] {
        let path = directory.join(program);
        let _ = std::fs::remove_file(&path);
        if program == name {
            std::fs::write(&path, script).expect("ours");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("ours");
        } else {
            symlink(format!("/usr/lib/postgresql/15/bin/{program}"), path).expect("ours");
        }
    }
}

/// A manager that ends in the middle goes on where it was, and what was there before is kept once, under a name that is free.
// hazard: MIRROR-42
#[test]
fn a_replacement_that_is_ended_in_the_middle_goes_on() {
    let (mut site, standby) = differing();
    waits(&site, standby);
    let directory = tempfile::tempdir().expect("a directory");
    site.bin = directory.path().into();
    let half = "#!/bin/sh\npsql -X -d template1 -c 'CREATE DATABASE app TEMPLATE template0'\npsql -X -d app -c 'CREATE TABLE half (id int)'\nsleep 60\n";
    with_program(directory.path(), "pg_restore", half);
    // The name of this minute is taken, and that of the next one.
    let minute = "SELECT to_char(now() AT TIME ZONE 'UTC' + interval '1 minute' * $N, 'YYYYMMDD\"T\"HH24MI')";
    let server = &site.sides[standby].server;
    let mut taken = Vec::new();
    for number in ["0", "1"] {
        let name = server.sql(&[&minute.replace("$N", number)]);
        let name = format!("app_replaced_{name}");
        server.sql(&[&format!("CREATE DATABASE \"{name}\" TEMPLATE template0")]);
        taken.push(name);
    }
    site.kill_manager(standby);
    site.manage(standby);
    site.wait("it is set aside", || {
        let status = site.status(standby);
        status.is_some_and(|status| status.aside_since.is_some())
    });
    site.keep(1 - standby);
    let is_half = "SELECT count(*) FROM half";
    site.wait("it is half made", || {
        psql(&site.member(standby), is_half).is_ok()
    });
    site.kill_manager(standby);
    with_program(directory.path(), "none", "");
    site.manage(standby);
    // Nobody has to decide again: what is there is half a copy.
    site.settle();
    site.must_be_equal();
    let mut kept = site.kept(standby);
    kept.retain(|name| !taken.contains(name));
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(kept[0].ends_with("_2"), "{kept:?}");
    let old = site
        .member(standby)
        .replace("dbname=app", &format!("dbname={}", kept[0]));
    assert_eq!(psql(&old, OTHERS).as_deref(), Ok("1a 2wrong 3a"));
    site.ask_primary(Question::Verify);
}
