//! Definitions that PostgreSQL's own regression suite has shown to leave different members, or a standby that is set aside.

use crate::cases::{Case, Wants::*, go_through};
use crate::server::psql;
use crate::site::{Site, run};

const CASES: &[Case] = &[
    (
        "temporary views that are dropped, by themselves and with what they read",
        &[
            "CREATE SCHEMA tvs; CREATE TABLE tvs.t (id int PRIMARY KEY); CREATE TEMP VIEW tv1 AS SELECT * FROM tvs.t",
            "DROP VIEW tv1",
            "CREATE TEMP VIEW tv2 AS SELECT * FROM tvs.t; CREATE VIEW tvs.v AS SELECT * FROM tvs.t",
            "DROP SCHEMA tvs CASCADE",
        ],
        Equal,
    ),
    (
        "functions whose bodies name a temporary table",
        &[
            "CREATE TEMP TABLE passing (id int); CREATE FUNCTION pass() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM passing'",
            "CREATE PROCEDURE pass_2() LANGUAGE plpgsql AS $$ DECLARE one passing%ROWTYPE; BEGIN one.id := 1; END $$; CALL pass_2()",
        ],
        Equal,
    ),
    (
        "a function of a temporary table's type",
        &["CREATE FUNCTION passes(passing) RETURNS int LANGUAGE sql AS 'SELECT 1'"],
        Refused("names something temporary"),
    ),
    (
        "a function whose body was bound to a temporary table",
        &["CREATE FUNCTION bound() RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM passing; END"],
        Refused("names something temporary"),
    ),
    (
        "an identity that is always generated, and set to its default",
        &[
            "CREATE TABLE idd (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, setval text)",
            "INSERT INTO idd (setval) VALUES ('a'), ('b'), ('c'); UPDATE idd SET id = DEFAULT, setval = 'd' WHERE setval = 'a'",
            "UPDATE idd SET id = DEFAULT; INSERT INTO idd DEFAULT VALUES",
            "CREATE TABLE idf (id int GENERATED ALWAYS AS IDENTITY (INCREMENT BY -5), v int); INSERT INTO idf (v) VALUES (1), (1)",
            "UPDATE idf SET id = DEFAULT",
        ],
        Equal,
    ),
    (
        "rows of a catalog that PostgreSQL does not read",
        &["CREATE TABLE nodes AS SELECT * FROM pg_class"],
        Refused("values that PostgreSQL writes and does not read"),
    ),
    (
        "constraints that are checked later, of partitions",
        &[
            "CREATE TABLE later (id int UNIQUE DEFERRABLE) PARTITION BY LIST (id); CREATE TABLE later_1 PARTITION OF later FOR VALUES IN (1)",
            "DROP TABLE later",
        ],
        Equal,
    ),
    (
        "a table made of a prepared statement",
        &[
            "PREPARE made AS SELECT 1 AS a",
            "CREATE TABLE of_prepared AS EXECUTE made",
        ],
        Refused("a table that is made of a prepared statement"),
    ),
    (
        "another database of the server",
        &[
            "CREATE DATABASE elsewhere",
            "ALTER DATABASE elsewhere SET my.setting = 'x'; COMMENT ON DATABASE elsewhere IS 'x'; CREATE ROLE ehr",
            "ALTER ROLE ehr IN DATABASE elsewhere SET work_mem = '8MB'; GRANT CREATE ON DATABASE elsewhere TO ehr",
            "ALTER DATABASE elsewhere OWNER TO ehr",
            "ALTER DATABASE elsewhere RENAME TO elsewhere_2",
            "DROP DATABASE elsewhere_2",
            "DROP ROLE ehr",
        ],
        Equal,
    ),
];

#[test]
fn definitions_of_the_regression_suite_are_equal_on_both_members_or_refused() {
    let site = Site::start("");
    let client = site.connect();
    go_through(&site, &client, &CASES.iter().collect::<Vec<_>>());
}

/// A table that nobody was told of let the standby wait for ever.
#[test]
fn a_row_of_a_table_that_the_standby_lacks_is_a_difference() {
    let site = Site::start("");
    let client = site.connect();
    run(
        &site,
        &client,
        "DO $$ BEGIN EXECUTE 'EXPLAIN ANALYZE CREATE TABLE unseen AS SELECT 1 AS a'; END $$",
    );
    let standby = 1 - site.who_serves();
    site.wait("it is set aside", || {
        let difference = site.status(standby).and_then(|status| status.difference);
        difference.is_some_and(|difference| difference.contains("unseen"))
    });
}

/// A standby whose writer lacked a right to the code of a superuser's table was set aside for good.
#[test]
fn a_superusers_table_waits_until_its_writer_may_call_its_code() {
    let site = Site::start("");
    let client = site.connect();
    run(
        &site,
        &client,
        "CREATE FUNCTION hidden(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1'; REVOKE ALL ON FUNCTION hidden FROM PUBLIC; \
         CREATE ROLE caller; GRANT EXECUTE ON FUNCTION hidden TO caller; \
         CREATE TABLE t (id int PRIMARY KEY, v int GENERATED ALWAYS AS (hidden(id)) STORED)",
    );
    run(&site, &client, "INSERT INTO t VALUES (1)");
    let standby = 1 - site.who_serves();
    site.wait("it is told what is missing", || {
        let advice = site.status(standby).and_then(|status| status.advice);
        advice.is_some_and(|advice| advice.contains("TO understudy_as_rows"))
    });
    let member = site.member(standby);
    psql(&member, "GRANT caller TO understudy_as_rows").expect("it is granted");
    site.settle();
    assert_eq!(site.must_be_equal().rows, 1);
}
