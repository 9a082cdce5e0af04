//! Code of clients that runs while the standby's rows are written has the rights of the table's owner, and leaves nothing behind.

use std::time::Duration;

use tokio_postgres::Client;

use crate::server::psql;
use crate::site::{Site, connect, run};

/// A function that on the standby fails if it may do what its owner may not, and leaves what a later statement could fall into.
const REACH: &str = r#"
    CREATE FUNCTION late() RETURNS int LANGUAGE plpgsql AS $f$
    BEGIN
      INSERT INTO public.vault VALUES (667);
      RETURN 1;
    EXCEPTION WHEN OTHERS THEN RETURN 0;
    END $f$;
    CREATE FUNCTION reach(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $f$
    DECLARE
      way text;
      reached text;
      stack text;
    BEGIN
      IF session_user !~ '^understudy' THEN
        RETURN $1;
      END IF;
      GET DIAGNOSTICS stack = PG_CONTEXT;
      IF stack ~ 'parameters' THEN
        RAISE EXCEPTION 'it reads parameters: %', stack;
      END IF;
      FOREACH way IN ARRAY ARRAY['SELECT FROM pg_authid', 'SELECT FROM public.vault', 'INSERT INTO public.vault VALUES (666)',
          'UPDATE public.other SET id = id', 'INSERT INTO understudy_mirror.applied VALUES (1000000000, ''1-1'')',
          'INSERT INTO understudy_mirror.undone VALUES (1, 1)', 'DELETE FROM understudy_mirror.applied',
          'ALTER FUNCTION understudy_mirror.write_as_' || 'mallory'::regrole::oid || '_code(text, text) SECURITY INVOKER',
          'SELECT understudy_mirror.write(''?'', ''?'')',
          'SET LOCAL ROLE understudy_as_rows', 'SET LOCAL session_replication_role = origin'] LOOP
        BEGIN
          EXECUTE way;
          reached := way;
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
        IF reached IS NOT NULL THEN
          RAISE EXCEPTION 'as %, for %: reached %', current_user, session_user, reached;
        END IF;
      END LOOP;
      FOREACH way IN ARRAY ARRAY['DECLARE left_here CURSOR WITH HOLD FOR SELECT public.late()', 'SET DateStyle = ''German''',
          'SET search_path = public', 'SET statement_timeout = ''1ms''', 'SET default_transaction_read_only = on',
          'SET log_parameter_max_length_on_error = -1', 'CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (public.late() >= 0)',
          'CREATE TEMP TABLE vault (id int, at date)', 'DEALLOCATE ALL'] LOOP
        BEGIN
          EXECUTE way;
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
      END LOOP;
      FOR n IN 1..60 LOOP
        BEGIN
          EXECUTE 'PREPARE understudy_' || n || ' AS INSERT INTO public.vault VALUES (668)';
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
      END LOOP;
      RETURN $1;
    END $f$"#;

/// Tables of mallory's whose rows run her code, one for each way.
const TABLES: &[&str] = &[
    "CREATE TABLE checked (id int PRIMARY KEY CHECK (reach(id) = id))",
    "CREATE TABLE generated (id int PRIMARY KEY, g int GENERATED ALWAYS AS (reach(id)) STORED)",
    "CREATE DOMAIN reached AS int CHECK (reach(VALUE) = VALUE); CREATE TYPE pair AS (one reached, two int); \
     CREATE TABLE of_domain (id int PRIMARY KEY, p pair)",
    "CREATE TABLE indexed (id int PRIMARY KEY); CREATE INDEX ON indexed (reach(id))",
    "CREATE TABLE parted (id int) PARTITION BY LIST (reach(id)); CREATE TABLE parted_1 PARTITION OF parted DEFAULT",
    "CREATE TABLE casting (id int PRIMARY KEY CHECK (id::reached = id))",
    "CREATE TABLE queried (id int PRIMARY KEY CHECK (query_to_xml('SELECT public.reach(1)', true, true, '') IS NOT NULL))",
    "CREATE TABLE forced (id int PRIMARY KEY CHECK (reach(id) = id)); ALTER TABLE forced ENABLE ROW LEVEL SECURITY; \
     ALTER TABLE forced FORCE ROW LEVEL SECURITY; CREATE POLICY below ON forced USING (id < 0) WITH CHECK (true)",
];

fn as_role(site: &Site, role: &str) -> Client {
    let conninfo = site
        .conninfo()
        .replace("user=postgres", &format!("user={role}"));
    site.runtime.block_on(connect(&conninfo)).expect("let in")
}

/// A check's function read passwords and all rows, wrote down that transactions were executed, and exchanged the manager's statements.
// hazard: MIRROR-69
#[test]
fn code_that_rows_run_on_the_standby_reaches_what_its_owner_may() {
    let site = Site::start("");
    let admin = site.connect();
    run(
        &site,
        &admin,
        "CREATE ROLE mallory LOGIN; CREATE ROLE eve LOGIN; GRANT CREATE ON SCHEMA public TO mallory, eve; \
         CREATE TABLE vault (id int PRIMARY KEY, at date); CREATE TABLE other (id int PRIMARY KEY)",
    );
    let mallory = as_role(&site, "mallory");
    run(&site, &mallory, REACH);
    for table in TABLES {
        run(&site, &mallory, table);
    }
    let eve = as_role(&site, "eve");
    run(
        &site,
        &eve,
        "CREATE FUNCTION is_even(int) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT $1 % 2 = 0'; \
         CREATE TABLE evens (id int PRIMARY KEY CHECK (is_even(id)))",
    );
    // Of one owner, of two, and of a superuser as well; each twice, in sessions that were used before.
    for n in 1..=3 {
        let of_mallory = format!(
            "INSERT INTO checked VALUES ({n}); INSERT INTO generated VALUES ({n}); INSERT INTO of_domain VALUES ({n}, ({n}, 1)); \
             INSERT INTO indexed VALUES ({n}); INSERT INTO parted VALUES ({n}); INSERT INTO forced VALUES ({n}); \
             INSERT INTO casting VALUES ({n}); INSERT INTO queried VALUES ({n}); \
             UPDATE of_domain SET p = ({n}, 2); UPDATE indexed SET id = id + 10 WHERE id = {n}; DELETE FROM checked WHERE id = {n} - 1"
        );
        run(&site, &mallory, &of_mallory);
        run(
            &site,
            &admin,
            &format!(
                "BEGIN; INSERT INTO evens VALUES ({n} * 2); INSERT INTO checked VALUES ({n} + 100); \
                 INSERT INTO vault VALUES ({n}, '2026-02-0{n}'); UPDATE forced SET id = id + 1000 WHERE id = {n}; INSERT INTO evens VALUES ({n} * 20); COMMIT"
            ),
        );
        run(
            &site,
            &admin,
            &format!("INSERT INTO vault VALUES ({n} + 10, '2026-02-0{n}')"),
        );
        // Rows and a definition of one transaction.
        run(
            &site,
            &mallory,
            &format!(
                "BEGIN; CREATE TABLE own_{n} (id int CHECK (reach(id) = id)); INSERT INTO own_{n} VALUES (1); \
                 INSERT INTO checked VALUES ({n} + 200); COMMIT"
            ),
        );
    }
    site.settle();
    site.level();
    std::thread::sleep(Duration::from_millis(500));
    for at in 0..2 {
        assert_eq!(site.status(at).expect("it answers").difference, None);
    }
    site.must_be_equal();
}

/// A row that a superuser had written lost the standby: its check runs as the table's owner there, who may not call it.
#[test]
fn rows_whose_owner_lacks_a_right_wait_until_somebody_grants_it() {
    let site = Site::start("");
    let admin = site.connect();
    run(
        &site,
        &admin,
        "CREATE ROLE app; CREATE ROLE lib; CREATE TABLE t (id int PRIMARY KEY); \
         CREATE FUNCTION is_ok(int) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN true; END'; \
         ALTER FUNCTION is_ok(int) OWNER TO lib; REVOKE EXECUTE ON FUNCTION is_ok(int) FROM PUBLIC; \
         ALTER TABLE t ADD CHECK (is_ok(id)); ALTER TABLE t OWNER TO app",
    );
    site.settle();
    site.level();
    let found = site.check(site.who_serves());
    let names = found.findings.iter().flat_map(|one| one.names.iter());
    let called: Vec<&String> = names
        .filter(|name| name.contains("is_ok(integer)"))
        .collect();
    assert!(!called.is_empty() && !found.ok, "{found:?}");
    run(&site, &admin, "INSERT INTO t VALUES (1)");
    let standby = 1 - site.who_serves();
    let waits = || {
        let status = site.status(standby).expect("it answers");
        assert_eq!(status.difference, None);
        status.advice.filter(|why| why.contains("lacks a right"))
    };
    site.wait("it says what is missing", || waits().is_some());
    let why = waits().unwrap_or_default();
    let role = why
        .split_whitespace()
        .find(|word| word.starts_with("understudy_as_"));
    let role = role.unwrap_or_else(|| panic!("no role: {why}"));
    psql(&site.member(standby), &format!("GRANT lib TO {role}")).expect("it is granted");
    site.settle();
    site.must_be_equal();
    run(&site, &admin, "INSERT INTO t VALUES (2)");
    site.must_be_equal();
}
