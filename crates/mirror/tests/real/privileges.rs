//! Nothing that clients define runs with the rights of the manager's superuser, on either member, whoever sets it off.

use std::time::Duration;

use tokio_postgres::Client;

use crate::server::psql;
use crate::site::{Site, connect, run};

/// A function of mallory's that tries every way out of its session's role, and becomes a superuser if one of them is open.
const CLIMB: &str = r#"
    CREATE FUNCTION climb() RETURNS void LANGUAGE plpgsql AS $f$
    DECLARE way text;
    BEGIN
      FOREACH way IN ARRAY ARRAY['SELECT 1', 'SELECT set_config(''role'', ''none'', true)', 'RESET ROLE',
          'RESET SESSION AUTHORIZATION', 'SET LOCAL ROLE postgres', 'SET LOCAL ROLE understudy_as_rows',
          'SELECT understudy_mirror.write(''?'', ''ALTER ROLE mallory SUPERUSER'')', 'SET LOCAL SESSION AUTHORIZATION postgres',
          'SELECT understudy_mirror.truncate(''public.mine; ALTER ROLE mallory SUPERUSER'', false)',
          'SET LOCAL session_replication_role = origin; SELECT understudy_mirror.truncate(ARRAY[''public.mine''::regclass], false)'] LOOP
        BEGIN
          EXECUTE way;
          EXECUTE 'COPY (SELECT 1) TO PROGRAM ''cat > climbed''';
          EXECUTE 'ALTER ROLE mallory SUPERUSER';
          RETURN;
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
      END LOOP;
    END $f$;
    CREATE FUNCTION evil(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM public.climb(); RETURN $1; END';
    CREATE FUNCTION climbs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM public.climb(); RETURN NULL; END';
    CREATE TABLE mine (id int PRIMARY KEY);
    CREATE TRIGGER climbs BEFORE TRUNCATE ON mine EXECUTE FUNCTION climbs();
    CREATE FUNCTION is_evil(text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM public.climb(); RETURN true; END';
    CREATE FUNCTION is_evil(int, int) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM public.climb(); RETURN $1 = $2; END'"#;

/// Makes mallory, who may define things in the database and nothing else; a session of hers.
fn mallory(site: &Site) -> Client {
    let admin = site.connect();
    run(
        site,
        &admin,
        "CREATE ROLE mallory LOGIN; CREATE ROLE friend; GRANT friend TO mallory; GRANT CREATE ON SCHEMA public TO mallory, friend",
    );
    let client = as_mallory(site);
    run(site, &client, CLIMB);
    client
}

fn as_mallory(site: &Site) -> Client {
    let conninfo = site.conninfo().replace("user=postgres", "user=mallory");
    site.runtime.block_on(connect(&conninfo)).expect("let in")
}

/// Nobody has become a superuser, on neither member.
#[track_caller]
fn nobody_has_climbed(site: &Site, by: &str) {
    for side in &site.sides {
        let more = "SELECT count(*) FROM pg_roles WHERE rolsuper AND rolname <> 'postgres'";
        assert_eq!(side.server.sql(&[more]), "0", "by {by}");
        let program = side.server.data().join("climbed");
        assert!(!program.exists(), "a program ran by {by}");
    }
}

/// The standby has executed everything.
fn level(site: &Site) {
    site.settle();
    site.level();
}

/// Ways for it to run when something is written, or defined: how it gets there, and what sets it off.
const WAYS: &[(&str, &str)] = &[
    (
        "a check",
        "CREATE TABLE a (id int PRIMARY KEY CHECK (evil(id) = id)); INSERT INTO a VALUES (1)",
    ),
    (
        "a value",
        "CREATE TABLE b (id int PRIMARY KEY); INSERT INTO b VALUES (evil(1))",
    ),
    (
        "a default",
        "CREATE TABLE c (id int PRIMARY KEY, b int DEFAULT evil(2)); INSERT INTO c VALUES (1)",
    ),
    (
        "a domain",
        "CREATE DOMAIN d1 AS text CHECK (is_evil(VALUE)); CREATE TABLE d (id d1 PRIMARY KEY); INSERT INTO d VALUES ('x')",
    ),
    (
        "a generated column",
        "CREATE TABLE e (id int PRIMARY KEY, g int GENERATED ALWAYS AS (evil(id)) STORED); INSERT INTO e VALUES (1)",
    ),
    (
        "an index",
        "CREATE TABLE f (id int PRIMARY KEY); CREATE INDEX ON f (evil(id)); INSERT INTO f VALUES (1)",
    ),
    (
        "an index's condition",
        "CREATE TABLE g (id int PRIMARY KEY); CREATE INDEX ON g (id) WHERE evil(id) > 0; INSERT INTO g VALUES (1)",
    ),
    (
        "an operator",
        "CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = is_evil); \
         CREATE TABLE h (id int PRIMARY KEY, a int); INSERT INTO h VALUES (1); UPDATE h SET a = 1 WHERE id === 1",
    ),
    (
        "a cast",
        "CREATE TYPE i1 AS ENUM ('x'); \
         CREATE FUNCTION evil(i1) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM public.climb();RETURN 1;END'; \
         CREATE CAST (i1 AS int) WITH FUNCTION evil(i1) AS ASSIGNMENT; \
         CREATE TABLE i (id int PRIMARY KEY); INSERT INTO i VALUES ('x'::i1)",
    ),
    (
        "a check of rows that are there",
        "CREATE TABLE j (id int PRIMARY KEY); INSERT INTO j VALUES (1); ALTER TABLE j ADD CHECK (evil(id) = id)",
    ),
    (
        "another type",
        "CREATE TABLE k (id int PRIMARY KEY, a int); INSERT INTO k VALUES (1, 1); \
         ALTER TABLE k ALTER a TYPE bigint USING evil(a)",
    ),
    (
        "a partition's key",
        "CREATE TABLE l (id int) PARTITION BY LIST (evil(id)); CREATE TABLE l1 PARTITION OF l FOR VALUES IN (1); \
         INSERT INTO l VALUES (1)",
    ),
    (
        "a trigger at the end of the transaction",
        "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM public.climb();RETURN NULL;END'; \
         CREATE TABLE m (id int PRIMARY KEY); CREATE CONSTRAINT TRIGGER late AFTER INSERT ON m DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION late(); INSERT INTO m VALUES (1)",
    ),
    (
        "a table made of a query",
        "CREATE TABLE n AS SELECT evil(1) AS a",
    ),
    (
        "types and tables of PostgreSQL's names in pg_temp",
        "CREATE DOMAIN pg_temp.xid AS pg_catalog.xid CHECK (public.is_evil(VALUE::pg_catalog.text)); \
         CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (public.is_evil(VALUE)); CREATE TEMP TABLE pg_roles (rolsuper boolean); \
         SELECT understudy_mirror.transaction(); SELECT understudy_mirror.committed('1-1'); SELECT understudy_mirror.has(1, '1-1'); \
         CREATE TABLE p (id int PRIMARY KEY); TRUNCATE p; DROP DOMAIN pg_temp.xid, pg_temp.text; DROP TABLE pg_temp.pg_roles",
    ),
    (
        "another role of hers",
        "SET ROLE friend; CREATE TABLE o (id int PRIMARY KEY CHECK (evil(id) = id)); INSERT INTO o VALUES (1); RESET ROLE; \
         INSERT INTO a VALUES (2)",
    ),
];

/// A role that could make a table became a superuser of the standby by a function that its check called, and ran a program there.
// hazard: MIRROR-58
// hazard: MIRROR-74
#[test]
fn what_rows_set_off_on_the_standby_makes_nobody_a_superuser() {
    let site = Site::start("");
    let client = mallory(&site);
    for (name, text) in WAYS {
        let done = site.runtime.block_on(client.batch_execute(text));
        if let Err(error) = done {
            assert_eq!(*name, "another type", "{error:?}");
        }
        level(&site);
        nobody_has_climbed(&site, name);
    }
    for at in 0..2 {
        assert_eq!(site.status(at).expect("it answers").difference, None);
    }
    site.must_be_equal();
}

/// Writes of what the manager goes by. With another floor, a standby took everything for executed.
const WAYS_TO_THE_MANAGERS: &[&str] = &[
    "UPDATE understudy_mirror.state SET floor = floor + 1000000",
    "DELETE FROM understudy_mirror.secret",
    "INSERT INTO understudy_mirror.secret VALUES ('x')",
    "INSERT INTO understudy_mirror.served VALUES (1000)",
    "SELECT understudy_mirror.truncate(ARRAY['understudy_mirror.applied'::regclass], false)",
    "SELECT understudy_mirror.truncate(ARRAY['pg_authid'::regclass], false)",
];

/// Code of clients runs as the role that writes rows, which may write those of all tables but these.
#[test]
fn who_writes_rows_writes_nothing_that_the_manager_goes_by() {
    let site = Site::start("");
    let client = mallory(&site);
    run(
        &site,
        &client,
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)",
    );
    level(&site);
    let standby = site.member(1 - site.who_serves());
    let as_writer = |text: &str| {
        let role = "SET ROLE understudy_as_rows; SET session_replication_role = 'replica'";
        psql(&standby, &format!("{role}; {text}"))
    };
    as_writer("SELECT FROM t").expect("it may read all rows");
    for way in WAYS_TO_THE_MANAGERS {
        let error = as_writer(way).expect_err(way);
        assert!(
            error.contains("only the manager")
                || error.contains("only tables of clients")
                || error.contains("permission denied"),
            "{way}: {error}"
        );
    }
    run(&site, &client, "TRUNCATE t; INSERT INTO t VALUES (2)");
    level(&site);
    site.must_be_equal();
}

/// Ways of mallory's to have something said in a superuser's name: her functions run in a superuser's session.
const WAYS_TO_LIE: &str = r#"
    CREATE FUNCTION lie() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $f$
    DECLARE way text; tag text := 'SHARED'; said text := 'ALTER ROLE mallory SUPERUSER'; settings text := '{}'; result text := '';
    BEGIN
      BEGIN
        INSERT INTO understudy_mirror.definitions VALUES (tag, said, '', '', settings, result);
      EXCEPTION WHEN OTHERS THEN NULL;
      END;
      FOREACH way IN ARRAY ARRAY[
          'INSERT INTO understudy_mirror.definitions VALUES (''SHARED'', ''ALTER ROLE mallory SUPERUSER'', ''postgres'', ''postgres'', ''{}'', '''')',
          'SELECT understudy_mirror.execute(''ALTER ROLE mallory SUPERUSER'')'] LOOP
        BEGIN
          EXECUTE way;
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
      END LOOP;
    END $f$"#;

/// Definitions are executed on the standby as whoever has said them, whoever has logged in.
#[test]
fn nobody_defines_anything_in_the_name_of_a_superuser_who_calls_them() {
    let site = Site::start("");
    let client = mallory(&site);
    run(&site, &client, WAYS_TO_LIE);
    let admin = site.connect();
    run(&site, &admin, "SELECT lie()");
    level(&site);
    nobody_has_climbed(&site, "a definition in another name");
    // What a superuser does as mallory could climb back to the superuser that the standby's session would be.
    run(
        &site,
        &admin,
        "SET ROLE mallory; CREATE TABLE z (id int PRIMARY KEY); INSERT INTO z VALUES (1); CREATE INDEX ON z (evil(id))",
    );
    level(&site);
    nobody_has_climbed(&site, "a superuser who was somebody else");
    site.must_be_equal();
}

/// `t::text` of a table's row is a cast that its owner may define.
// hazard: MIRROR-60
#[test]
fn comparing_the_members_runs_nothing_of_theirs() {
    let site = Site::start("");
    let client = mallory(&site);
    run(
        &site,
        &client,
        "CREATE TABLE t (id int PRIMARY KEY); \
         CREATE FUNCTION evil(t) RETURNS text IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM public.climb(); RETURN 1; END'",
    );
    run(
        &site,
        &client,
        "CREATE CAST (t AS text) WITH FUNCTION evil(t); INSERT INTO t VALUES (1)",
    );
    assert_eq!(site.must_be_equal().rows, 1);
    nobody_has_climbed(&site, "a cast");
}

/// Whoever owns the database says where its sessions look for operators.
// hazard: MIRROR-61
#[test]
fn the_owner_of_the_database_has_no_part_in_what_the_manager_asks() {
    let mut site = Site::start("");
    let client = mallory(&site);
    // Through the mirror: catalogs that are compared between two changes behind its back would differ.
    run(
        &site,
        &site.connect(),
        "ALTER DATABASE app OWNER TO mallory",
    );
    run(&site, &client, "CREATE SCHEMA traps");
    for (name, left, right) in [
        (">", "bigint", "int"),
        ("<", "bigint", "int"),
        ("<=", "bigint", "bigint"),
        ("=", "oid", "oid"),
        ("<>", "text", "text"),
    ] {
        let text = format!(
            "CREATE FUNCTION traps.\"{name}\"({left}, {right}) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM public.climb(); \
             RETURN $1 OPERATOR(pg_catalog.{name}) $2; END'"
        );
        run(&site, &client, &text);
        let text = format!(
            "CREATE OPERATOR traps.{name} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = traps.\"{name}\")"
        );
        run(&site, &client, &text);
    }
    level(&site);
    // On both members at the same place of the log: what differs for a moment only may be found in it.
    let text = "ALTER DATABASE app SET search_path = traps, pg_catalog, public";
    run(&site, &client, text);
    level(&site);
    for at in [1, 0] {
        site.kill_manager(at);
        site.manage(at);
        site.settle();
    }
    let client = as_mallory(&site);
    run(
        &site,
        &client,
        "CREATE TABLE public.t (id serial PRIMARY KEY)",
    );
    run(&site, &client, "INSERT INTO public.t DEFAULT VALUES");
    site.must_be_equal();
    // Numbers are forgotten, and the floor is written, now and then.
    std::thread::sleep(Duration::from_secs(8));
    nobody_has_climbed(&site, "an operator");
}

/// Definitions that a state transfer would have run as the superuser that fills the member.
const COPIED: &[(&str, &str, &str)] = &[
    (
        "a check",
        "CREATE TABLE a (id int PRIMARY KEY CHECK (evil(id) = id)); INSERT INTO a VALUES (1)",
        "DROP TABLE a",
    ),
    (
        "a generated column",
        "CREATE TABLE a (id int PRIMARY KEY, g int GENERATED ALWAYS AS (evil(id)) STORED); INSERT INTO a VALUES (1)",
        "DROP TABLE a",
    ),
    (
        "a domain in a view's text",
        "CREATE DOMAIN d AS text; CREATE VIEW v AS SELECT '{x}'::d[]; ALTER DOMAIN d ADD CHECK (is_evil(VALUE))",
        "DROP VIEW v; DROP DOMAIN d",
    ),
    (
        "a partition's key",
        "CREATE TABLE l (id int) PARTITION BY LIST (evil(id)); CREATE TABLE l1 PARTITION OF l FOR VALUES IN (1); \
         INSERT INTO l VALUES (1)",
        "DROP TABLE l",
    ),
    (
        "an operator",
        "CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = is_evil); \
         CREATE TABLE a (id int PRIMARY KEY CHECK (id === id)); INSERT INTO a VALUES (1)",
        "DROP TABLE a; DROP OPERATOR === (int, int)",
    ),
    (
        "a function of PostgreSQL's that executes a text",
        "CREATE TABLE a (id int PRIMARY KEY CHECK (query_to_xml('SELECT public.climb()', true, true, '') IS NOT NULL)); \
         INSERT INTO a VALUES (1)",
        "DROP TABLE a",
    ),
    (
        "a cast",
        "CREATE TYPE i1 AS ENUM ('x'); \
         CREATE FUNCTION evil(i1) RETURNS json IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM public.climb(); RETURN ''1''; END'; \
         CREATE CAST (i1 AS json) WITH FUNCTION evil(i1); \
         CREATE TABLE a (id i1 PRIMARY KEY CHECK (to_json(id) IS NOT NULL)); INSERT INTO a VALUES ('x')",
        "DROP TABLE a; DROP CAST (i1 AS json); DROP FUNCTION evil(i1); DROP TYPE i1",
    ),
];

/// `pg_restore` checks rows with the functions that clients have defined, as the superuser that it runs as.
// hazard: MIRROR-59
#[test]
fn a_copy_runs_nothing_of_clients_and_says_what_it_would_have_run() {
    let mut site = Site::start("");
    mallory(&site);
    level(&site);
    site.kill_manager(1);
    site.wait("the first serves", || site.primary() == Some(0));
    let member = site.member(0).replace("user=postgres", "user=mallory");
    for (name, text, undo) in COPIED {
        psql(&member, text).unwrap_or_else(|error| panic!("{name}: {error}"));
        site.sides[1]
            .server
            .sql(&["DROP DATABASE IF EXISTS app WITH (FORCE)"]);
        site.manage(1);
        // It is tried again and again, and something else may have kept it from being tried at first.
        site.wait("it says why, or does it", || {
            let status = site.status(1);
            status.is_some_and(|status| {
                let advice = status.advice.unwrap_or_default();
                advice.contains("mallory") || format!("{:?}", status.role) == "Standby"
            })
        });
        nobody_has_climbed(&site, name);
        assert!(
            site.status(1).is_some_and(|one| one.advice.is_some()),
            "{name}: it was copied"
        );
        site.kill_manager(1);
        psql(&member, undo).unwrap_or_else(|error| panic!("{undo}: {error}"));
    }
    psql(
        &member,
        "CREATE TABLE a (id int PRIMARY KEY CHECK (id > 0 AND abs(id) < 9), b timestamptz CHECK (b <= now())); INSERT INTO a VALUES (1)",
    )
    .expect("it is hers");
    site.manage(1);
    site.settle();
    site.must_be_equal();
    nobody_has_climbed(&site, "what is PostgreSQL's own");
}

/// Whoever made the manager's schema before it had what they liked run in it.
// hazard: MIRROR-62
#[test]
fn a_schema_that_somebody_else_has_made_is_not_the_managers() {
    let mut site = Site::unmanaged("", |_| {});
    for side in &site.sides {
        side.server.sql(&[
            "CREATE ROLE mallory LOGIN",
            "ALTER DATABASE app OWNER TO mallory",
        ]);
    }
    for at in 0..2 {
        psql(&site.member(at), "GRANT CREATE ON SCHEMA public TO mallory").expect("done");
        let member = site.member(at).replace("user=postgres", "user=mallory");
        for text in [
            CLIMB,
            "CREATE SCHEMA understudy_mirror",
            "CREATE TABLE understudy_mirror.state (one boolean PRIMARY KEY DEFAULT true, floor bigint NOT NULL CHECK \
             (public.is_evil(floor::text)), is_diverged boolean NOT NULL DEFAULT false)",
        ] {
            psql(&member, text).expect("she owns it");
        }
        site.manage(at);
    }
    site.wait("it says why, or serves", || {
        let status = site.status(0);
        status.is_some_and(|status| status.advice.is_some()) || site.primary().is_some()
    });
    nobody_has_climbed(&site, "a schema");
    let advice = site.status(0).and_then(|status| status.advice);
    assert!(advice.is_some_and(|advice| advice.contains("understudy_mirror")));
}
