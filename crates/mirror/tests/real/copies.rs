//! State transfers: what a copy has, and what becomes of the member that it takes the place of; and logs that are lost.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use mirror::driver::peer::Question;
use tokio_postgres::Client;

use crate::server::psql;
use crate::site::{Site, connect};

const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'a')";

fn run(site: &Site, client: &Client, text: &str) {
    let done = site.runtime.block_on(client.batch_execute(text));
    done.unwrap_or_else(|error| panic!("{text}: {error:?}"));
}

fn value(site: &Site, client: &Client, text: &str) -> Option<String> {
    let rows = site.runtime.block_on(client.simple_query(text));
    let rows = rows.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    rows.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(ToOwned::to_owned),
        _ => None,
    })
}

fn committed(site: &Site, client: &Client, token: &str) -> Option<String> {
    let text = format!("SELECT understudy_mirror.committed('{token}')");
    value(site, client, &text)
}

/// Its owner, settings and privileges were lost, so that what the owner did next failed there; transactions could not be asked about
/// any more; and the manager's own password was overwritten.
#[test]
fn a_copy_has_what_the_database_has_and_knows_what_has_committed() {
    let mut site = Site::start("");
    let admin = site.connect();
    run(&site, &admin, SCHEMA);
    let token = value(&site, &admin, "SHOW understudy.transaction").expect("it has written");
    let at = site.who_serves();
    site.kill_manager(1 - at);
    for text in [
        "CREATE ROLE app LOGIN PASSWORD 'secret'",
        "ALTER DATABASE app OWNER TO app",
        "ALTER DATABASE app SET work_mem = '5MB'",
        "ALTER ROLE app IN DATABASE app SET statement_timeout = '50s'",
        "REVOKE TEMP ON DATABASE app FROM PUBLIC",
        "ALTER ROLE postgres PASSWORD 'theirs'",
    ] {
        site.sides[at].server.sql(&[text]);
    }
    let server = &site.sides[1 - at].server;
    server.sql(&["ALTER ROLE postgres PASSWORD 'own'"]);
    let password = "SELECT rolpassword FROM pg_authid WHERE rolname = 'postgres'";
    let own = server.sql(&[password]);
    server.sql(&["DROP DATABASE app WITH (FORCE)"]);
    site.manage(1 - at);
    site.settle();
    let described = "SELECT datdba::regrole, (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(datacl) a), datcollate, \
        (SELECT array_agg(setconfig ORDER BY setrole) FROM pg_db_role_setting WHERE setdatabase = d.oid) \
        FROM pg_database d WHERE datname = 'app'";
    let here = site.sides[at].server.sql(&[described]);
    assert!(here.starts_with("app|") && here.contains("50s"), "{here}");
    let server = &site.sides[1 - at].server;
    assert_eq!(server.sql(&[described]), here);
    assert_eq!(server.sql(&[password]), own);
    let conninfo = site.conninfo().replace("user=postgres", "user=app");
    let app = site.runtime.block_on(connect(&conninfo)).expect("let in");
    run(
        &site,
        &app,
        "CREATE TABLE own (id int PRIMARY KEY); INSERT INTO own VALUES (1)",
    );
    site.must_be_equal();
    assert_eq!(site.status(1 - at).expect("it answers").difference, None);
    // The copy remembers, and knows what it may have forgotten.
    site.ask_primary(Question::Switchover);
    site.wait("the copy is primary", || site.primary() == Some(1 - at));
    assert_eq!(committed(&site, &admin, &token).as_deref(), Some("t"));
    assert_eq!(committed(&site, &admin, "999-1").as_deref(), Some("f"));
    psql(
        &site.member(1 - at),
        "UPDATE understudy_mirror.state SET forgotten_epoch = 1, forgotten_count = 1000000",
    )
    .expect("it is done");
    assert_eq!(committed(&site, &admin, "1-999999"), None);
    assert_eq!(committed(&site, &admin, "nonsense"), None);
    assert_eq!(committed(&site, &admin, &token).as_deref(), Some("t"));
    assert_eq!(committed(&site, &admin, "2-1000000").as_deref(), Some("f"));
}

/// Marks a member as one that differs, and starts its manager again, changed by `change`; what it has of `t` some seconds later.
fn after_a_transfer_that_fails(change: impl FnOnce(&mut Site, usize)) -> String {
    let mut site = Site::start("");
    run(&site, &site.connect(), SCHEMA);
    site.must_be_equal();
    let standby = 1 - site.who_serves();
    site.kill_manager(standby);
    psql(
        &site.member(standby),
        "UPDATE understudy_mirror.state SET is_diverged = true",
    )
    .expect("it is done");
    change(&mut site, standby);
    site.wait("it tries", || {
        site.status(standby).is_some_and(|status| status.is_filling)
    });
    std::thread::sleep(Duration::from_secs(4));
    psql(&site.member(standby), "SELECT a FROM t").expect("it is there")
}

/// The member was dropped first, and was the only copy if the other one was lost then.
#[test]
fn what_a_member_has_stays_until_there_is_something_in_its_place() {
    let directory = tempfile::tempdir().expect("a directory");
    let bin = directory.path();
    for program in ["pg_dumpall", "pg_restore", "psql"] {
        let from = format!("/usr/lib/postgresql/15/bin/{program}");
        symlink(from, bin.join(program)).expect("ours");
    }
    std::fs::write(bin.join("pg_dump"), "#!/bin/sh\nexit 1\n").expect("ours");
    std::fs::set_permissions(bin.join("pg_dump"), PermissionsExt::from_mode(0o755)).expect("ours");
    let kept = after_a_transfer_that_fails(|site, standby| {
        site.bin = bin.into();
        site.manage(standby);
    });
    assert_eq!(kept, "a");
}

/// Both connection strings lead to one server: it was dropped to be copied from itself.
#[test]
fn a_member_is_not_copied_from_itself() {
    let kept = after_a_transfer_that_fails(|site, standby| site.manage_with(standby, standby));
    assert_eq!(kept, "a");
}

/// Commits got numbers that the members had already: they were acknowledged, and executed nowhere.
#[test]
fn nobody_serves_with_a_log_that_lacks_what_members_have() {
    let mut site = Site::start("");
    run(&site, &site.connect(), SCHEMA);
    site.must_be_equal();
    for at in 0..2 {
        site.kill_manager(at);
    }
    site.lose_log();
    for at in 0..2 {
        site.manage(at);
    }
    let is_ahead = |at| {
        let status = site.status(at);
        status.is_some_and(|status| format!("{:?}", status.role).contains("Ahead"))
    };
    site.wait("both say why", || is_ahead(0) && is_ahead(1));
    std::thread::sleep(Duration::from_secs(3));
    assert!(is_ahead(0) && is_ahead(1) && site.primary().is_none());
    for at in 0..2 {
        let kept = psql(&site.member(at), "SELECT a FROM t");
        assert_eq!(kept.as_deref(), Ok("a"));
    }
}
