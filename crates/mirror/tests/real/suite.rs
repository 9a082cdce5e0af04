//! Definitions that PostgreSQL's own regression suite has shown to leave different members, or a standby that is set aside.

use crate::cases::{Case, Wants::*, go_through};
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
