//! State transfers: what a copy has, and what becomes of the member that it takes the place of.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use tokio_postgres::Client;

use crate::returns::counted;
use crate::server::psql;
use crate::site::{Site, connect, conninfo, run, value};

const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'a')";

fn committed(site: &Site, client: &Client, token: &str) -> Option<String> {
    let text = format!("SELECT understudy_mirror.committed('{token}')");
    value(site, client, &text)
}

/// Its owner, settings and privileges were lost, so that what the owner did next failed there; transactions could not be asked about
/// any more; and the manager's own password was overwritten.
// hazard: MIRROR-9
#[test]
fn a_copy_has_what_the_database_has_and_knows_what_has_committed() {
    let mut site = Site::start("");
    let admin = site.connect();
    run(&site, &admin, SCHEMA);
    run(&site, &admin, "BEGIN; INSERT INTO t VALUES (2, 'b')");
    let token = value(&site, &admin, "SHOW understudy.transaction").expect("it has written");
    run(&site, &admin, "COMMIT");
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
    site.switch_to(1 - at);
    // Sessions that move have tests of their own (`moving`).
    let admin = site.connect();
    for token in [token.as_str(), "999-1", "nonsense"] {
        // Of what its source had committed it is not told by which name.
        let told = committed(&site, &admin, token);
        assert_ne!(told.as_deref(), Some("f"), "{token}");
    }
    run(&site, &admin, "BEGIN; INSERT INTO t VALUES (3, 'c')");
    let own = value(&site, &admin, "SHOW understudy.transaction");
    run(&site, &admin, "COMMIT");
    let own = own.expect("it has a name");
    assert_eq!(committed(&site, &admin, &own).as_deref(), Some("t"));
}

/// Marks a member as one that differs.
fn mark(site: &Site, at: usize) {
    let text = "UPDATE understudy_mirror.state SET is_diverged = true";
    psql(&site.member(at), text).expect("it is done");
}

/// Lets a member that differs be replaced.
fn decide(site: &Site, at: usize) {
    site.wait("it is set aside", || {
        let status = site.status(at);
        status.is_some_and(|status| status.aside_since.is_some())
    });
    site.keep(1 - at);
}

/// Marks a member as one that differs, and starts its manager again, changed by `change`; what it has of `t` some seconds later.
fn after_a_transfer_that_fails(change: impl FnOnce(&mut Site, usize)) -> String {
    let mut site = Site::start("");
    run(&site, &site.connect(), SCHEMA);
    site.must_be_equal();
    let standby = 1 - site.who_serves();
    site.kill_manager(standby);
    mark(&site, standby);
    change(&mut site, standby);
    decide(&site, standby);
    site.wait("it tries", || {
        site.status(standby).is_some_and(|status| status.is_filling)
    });
    std::thread::sleep(Duration::from_secs(4));
    psql(&site.member(standby), "SELECT a FROM t").expect("it is there")
}

/// The member was dropped first, and was the only copy if the other one was lost then.
// hazard: MIRROR-10
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

/// A copy was made once more whenever half a second passed before anybody looked at it, and on a busy machine again and again: each time
/// what was there was dropped or kept beside it.
// hazard: MIRROR-76
#[test]
fn a_copy_is_made_once_however_long_its_slot_waits() {
    let mut site = Site::start("");
    run(&site, &site.connect(), SCHEMA);
    site.must_be_equal();
    let standby = 1 - site.who_serves();
    site.kill_manager(standby);
    let server = &site.sides[standby].server;
    server.sql(&["DROP DATABASE app WITH (FORCE)"]);
    // Its slot waits until everybody who has begun something before has ended that.
    let elsewhere = format!("{} dbname=postgres", conninfo(&site.sides[standby].server));
    let holder = site.runtime.block_on(connect(&elsewhere)).expect("lets in");
    let begun = holder.batch_execute("BEGIN; SELECT pg_current_xact_id()");
    site.runtime.block_on(begun).expect("it begins");
    site.manage(standby);
    site.wait("the copy's slot waits", || {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'SELECT pg_catalog.pg_create_logical' AND wait_event_type = 'Lock'";
        site.sides[standby].server.sql(&[waits]) == "1"
    });
    std::thread::sleep(Duration::from_secs(4));
    site.runtime
        .block_on(holder.batch_execute("COMMIT"))
        .expect("it ends");
    site.settle();
    site.must_be_equal();
    assert_eq!(counted(&site, standby, "transfers_total"), 1);
    assert_eq!(site.kept(standby), Vec::<String>::new());
}

/// TRUNCATE empties a table for older snapshots as well, and so does a definition that writes it anew: the copy had none of its rows, and
/// the first DELETE of one that came later in the log set the member aside.
// hazard: MIRROR-75
#[test]
fn a_copy_has_the_rows_of_a_table_that_is_emptied_while_it_begins() {
    for change in [
        "DELETE FROM whole WHERE a = 1; TRUNCATE whole",
        "ALTER TABLE whole ALTER a TYPE bigint",
    ] {
        let mut site = Site::start("");
        let admin = site.connect();
        run(&site, &admin, SCHEMA);
        let whole = "CREATE TABLE whole (a int); INSERT INTO whole SELECT generate_series(1, 100)";
        run(&site, &admin, whole);
        site.must_be_equal();
        let primary = site.who_serves();
        site.kill_manager(1 - primary);
        mark(&site, 1 - primary);

        // pg_dumpall runs after the snapshot and before pg_dump.
        let directory = tempfile::tempdir().expect("a directory");
        let (bin, own) = (directory.path(), site.bin.clone());
        for program in ["pg_dump", "pg_restore", "psql"] {
            symlink(own.join(program), bin.join(program)).expect("ours");
        }
        let script = format!(
            "#!/bin/sh\nif mkdir {here}/once 2>/dev/null; then\n  env -u PGOPTIONS {own}/psql -X -q -d '{conninfo}' -c '{change}' >&2 || exit 1\nfi\n\
             exec {own}/pg_dumpall \"$@\"\n",
            here = bin.display(),
            own = own.display(),
            conninfo = site.conninfo(),
        );
        std::fs::write(bin.join("pg_dumpall"), script).expect("ours");
        let executable = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(bin.join("pg_dumpall"), executable).expect("ours");
        site.bin = bin.into();
        site.manage(1 - primary);
        decide(&site, 1 - primary);
        site.settle();
        assert!(bin.join("once").exists(), "nothing was changed meanwhile");
        run(&site, &admin, "INSERT INTO whole VALUES (0)");
        site.must_be_equal();
        let status = site.status(1 - primary).expect("it answers");
        assert_eq!(status.difference, None, "{change}");
    }
}

/// Both connection strings lead to one server: it was dropped to be copied from itself.
// hazard: MIRROR-10
#[test]
fn a_member_is_not_copied_from_itself() {
    let kept = after_a_transfer_that_fails(|site, standby| site.manage_with(standby, standby));
    assert_eq!(kept, "a");
}

/// Whoever was dropped, or was no member any more, could log in, and was one, after the next takeover.
// hazard: MIRROR-16
#[test]
fn roles_that_went_while_a_member_was_away_are_not_there_after_it_was_made_anew() {
    let mut site = Site::start("drop_roles = true");
    let admin = site.connect();
    run(&site, &admin, SCHEMA);
    run(
        &site,
        &admin,
        "CREATE ROLE mallory LOGIN; CREATE ROLE team; CREATE ROLE app LOGIN; GRANT team TO app; ALTER ROLE app SET work_mem = '5MB'",
    );
    site.must_be_equal();
    let standby = 1 - site.who_serves();
    let described = "SELECT array_agg(rolname::text ORDER BY rolname), (SELECT array_agg(m.roleid::regrole::text) FROM pg_auth_members m \
        WHERE m.member >= 16384 AND m.member::regrole::text !~ '^understudy_as_'), (SELECT array_agg(setconfig) FROM pg_db_role_setting \
        WHERE setrole <> 0 AND setrole::regrole::text !~ '^understudy_as_') \
        FROM pg_roles WHERE oid >= 16384 AND rolname !~ '^understudy_as_'";
    let before = site.sides[standby].server.sql(&[described]);
    assert_eq!(before, "{app,mallory,team}|{team}|{{work_mem=5MB}}");
    site.kill_manager(standby);
    run(
        &site,
        &admin,
        "DROP ROLE mallory; REVOKE team FROM app; ALTER ROLE app RESET work_mem; CREATE ROLE late",
    );
    mark(&site, standby);
    site.manage(standby);
    decide(&site, standby);
    site.settle();
    site.must_be_equal();
    let after = site.sides[standby].server.sql(&[described]);
    assert_eq!(after, "{app,late,team}||");
}

/// `pg_dump` has inherited columns first, so that a copy had another order where a column was added to the parent later: each row of it
/// counted as a difference.
#[test]
fn a_copy_of_a_table_whose_parent_was_given_a_column_goes_on() {
    let mut site = Site::start("");
    let client = site.connect();
    run(
        &site,
        &client,
        "CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (own text) INHERITS (parent); \
         ALTER TABLE parent ADD COLUMN added numeric; INSERT INTO child VALUES (1, 'a', 2)",
    );
    site.must_be_equal();
    let at = site.who_serves();
    site.kill_manager(1 - at);
    let server = &site.sides[1 - at].server;
    server.sql(&["DROP DATABASE app WITH (FORCE)"]);
    site.manage(1 - at);
    site.settle();
    for text in [
        "INSERT INTO child VALUES (2, 'b', 3)",
        "UPDATE parent SET added = 4 WHERE id = 1",
        "ALTER TABLE parent ALTER COLUMN added TYPE int",
        "UPDATE child SET own = 'c'",
        "DELETE FROM parent WHERE id = 2",
    ] {
        run(&site, &client, text);
    }
    // Definitions are compared a moment later.
    run(&site, &client, "CREATE TABLE looked_at (id int)");
    let verdict = site.must_be_equal();
    assert_eq!(verdict.rows, 1);
    std::thread::sleep(Duration::from_secs(1));
    site.level();
    let status = site.status(1 - site.who_serves()).expect("it runs");
    assert_eq!(status.difference, None);
    let found = site.check(at).findings;
    let is_told = found
        .iter()
        .any(|one| one.what.starts_with("columns that were added"));
    assert!(is_told, "{found:?}");
}
