//! Statements that once did something else on each member, and nobody noticed.

use super::*;

#[test]
fn what_writes_to_something_temporary_does_nothing_else() {
    all(
        "refused",
        &[
            "WITH m AS (DELETE FROM log WHERE b < 9 RETURNING *) INSERT INTO tmp SELECT * FROM m",
            "CREATE TEMP TABLE m AS WITH d AS (DELETE FROM log RETURNING *) SELECT * FROM d",
            "WITH d AS (UPDATE t SET a = 'x' RETURNING *) SELECT * INTO TEMP m FROM d",
            "WITH d AS (UPDATE t SET a = 'x' RETURNING *) UPDATE tmp SET a = 'x'",
            "CREATE TEMP TABLE m AS SELECT mine()",
            "CREATE TEMP TABLE m AS SELECT nextval('s_id_seq')",
            "CREATE TEMP VIEW m AS SELECT mine()",
            "INSERT INTO tmp SELECT mine()",
            "INSERT INTO tmp SELECT setval('s_id_seq', 5)",
            "UPDATE tmp SET a = mine()",
            "DELETE FROM tmp WHERE mine() > 1",
            "COPY tmp FROM STDIN WHERE mine() > 1",
            "ALTER TABLE tmp ADD x int DEFAULT mine()",
            "INSERT INTO tmp SELECT * FROM writes",
        ],
    );
    all(
        "locks",
        &[
            "INSERT INTO tmp SELECT nextval('s_id_seq')",
            "UPDATE tmp SET a = nextval('s_id_seq')",
            "INSERT INTO tmp SELECT id FROM next_id",
        ],
    );
    assert_eq!(
        write("INSERT INTO tmp SELECT nextval('s_id_seq')").sequences,
        ["s_id_seq"]
    );
}

#[test]
fn views_are_looked_into() {
    all(
        "same",
        &[
            "INSERT INTO log SELECT a, b FROM v",
            "UPDATE t SET b = (SELECT count(*) FROM v) WHERE id = 1",
        ],
    );
    all(
        "rows",
        &[
            "INSERT INTO log SELECT a, 1 FROM recent",
            "INSERT INTO log SELECT a, 1 FROM outer_recent",
            "UPDATE t SET b = (SELECT count(*) FROM recent) WHERE id = 1",
            "INSERT INTO log (b) SELECT id FROM next_id",
            "INSERT INTO log (b) SELECT id FROM of_extension",
            "INSERT INTO log (b) SELECT 1 FROM refreshed",
            "INSERT INTO log (b) SELECT 1 FROM elsewhere",
            "INSERT INTO log (b) SELECT id FROM secured",
            "INSERT INTO log (b) SELECT id FROM fast",
            "INSERT INTO log VALUES ('a', (SELECT id FROM next_id))",
        ],
    );
    all(
        "alone",
        &[
            "SELECT * FROM v",
            "SELECT * FROM outer_recent",
            "SELECT * FROM of_extension",
        ],
    );
    all("locks", &["SELECT id FROM next_id"]);
    all(
        "refused",
        &[
            "SELECT * FROM writes",
            "UPDATE log SET b = (SELECT count(*) FROM recent)",
            "INSERT INTO log SELECT mine::text, 1 FROM writes",
            "CREATE TABLE x AS SELECT * FROM recent",
            "COPY (SELECT * FROM writes) TO STDOUT",
        ],
    );
    for text in [
        "SELECT id FROM next_id",
        "INSERT INTO log (b) SELECT id FROM next_id",
        "INSERT INTO log VALUES ('a', (SELECT id FROM next_id))",
    ] {
        assert_eq!(write(text).sequences, ["public.s_id_seq"], "{text}");
    }
}

#[test]
fn a_name_that_begins_as_the_catalogs_may_be_anybodys() {
    all(
        "same",
        &[
            "INSERT INTO pg_mine VALUES (1, 'a')",
            "UPDATE pg_mine SET a = 'x' WHERE id = 1",
            "DELETE FROM pg_mine",
            "COPY pg_mine FROM STDIN",
            "INSERT INTO log SELECT a, id FROM pg_mine",
        ],
    );
    all(
        "refused",
        &[
            "UPDATE pg_cast SET castfunc = 0",
            "DELETE FROM pg_catalog.pg_cast",
            "COPY pg_class FROM STDIN",
        ],
    );
    all("unknown", &["UPDATE pg_nothing SET a = 1"]);
    assert_eq!(claims("DELETE FROM pg_mine"), "pg_mine:x");
}

#[test]
fn a_default_that_differs_is_not_evaluated_by_each_member() {
    let conflict = "INSERT INTO s (id, at) VALUES (1, '2020-01-01') ON CONFLICT (id) DO UPDATE SET";
    all(
        "rows",
        &[
            &format!("{conflict} at = DEFAULT"),
            &format!("{conflict} (a, at) = (DEFAULT, DEFAULT)"),
        ],
    );
    all(
        "same",
        &[
            &format!("{conflict} a = DEFAULT"),
            "UPDATE s SET a = DEFAULT",
        ],
    );
    assert_eq!(
        write(
            "INSERT INTO t (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET b = nextval('s_id_seq')"
        )
        .sequences,
        ["s_id_seq"]
    );
    all(
        "refused",
        &[
            // Its own number is drawn, and may not be set.
            "UPDATE sure SET n = DEFAULT",
            "INSERT INTO sure (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET n = DEFAULT",
            // Nobody knows by which sequence.
            "INSERT INTO lost (a) VALUES ('x')",
            "ALTER TABLE t ADD COLUMN c moment",
        ],
    );
    all(
        "same",
        &[
            "ALTER TABLE t ADD COLUMN c small",
            "ALTER TABLE t ADD COLUMN c timestamptz",
        ],
    );
}

#[test]
fn what_depends_on_the_order_of_rows_is_sent() {
    all(
        "rows",
        &[
            "INSERT INTO log VALUES (ARRAY(SELECT id FROM u)::text, 1)",
            "UPDATE t SET a = ARRAY(SELECT id FROM u ORDER BY a)::text",
            "INSERT INTO log SELECT string_agg(a, ',' ORDER BY b), 1 FROM t",
            "INSERT INTO log SELECT any_value(a), 1 FROM t",
            "INSERT INTO log SELECT JSON_ARRAYAGG(a)::text, 1 FROM t",
            "INSERT INTO log SELECT JSON_OBJECTAGG(a VALUE b)::text, 1 FROM t",
            // Whether it fails depends on which row comes first.
            "UPDATE mail SET address = lower(address)",
            "UPDATE mail SET address = lower(address) WHERE n = 1",
        ],
    );
    all(
        "same",
        &[
            "INSERT INTO log SELECT a, percentile_disc(0.5) WITHIN GROUP (ORDER BY b) FROM t GROUP BY a",
            "UPDATE mail SET address = lower(address) WHERE id = 1",
            "UPDATE mail SET address = $1 WHERE n = 1",
            "UPDATE mail SET n = n + 1",
            "UPDATE t SET id = id + 1000",
        ],
    );
}

#[test]
fn copied_data_and_what_is_explained_is_looked_into() {
    all(
        "refused",
        &[
            "COPY s FROM STDIN (DEFAULT '\\D')",
            "COPY t FROM STDIN WHERE random() < 0.5",
            "COPY s FROM STDIN WHERE at > now()",
            "COPY (SELECT mine()) TO STDOUT",
            "COPY (SELECT nextval('s_id_seq')) TO STDOUT",
            "COPY (DELETE FROM t RETURNING *) TO STDOUT",
            "EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1",
            "EXPLAIN ANALYZE SELECT 1 INTO x",
            "EXPLAIN ANALYZE SELECT nextval('s_id_seq')",
        ],
    );
    all(
        "same",
        &[
            "COPY t FROM STDIN (DEFAULT '\\D')",
            "COPY t FROM STDIN WHERE b > 5",
        ],
    );
    all(
        "alone",
        &[
            "EXPLAIN CREATE TABLE x AS SELECT 1",
            "EXPLAIN ANALYZE EXECUTE p",
            "COPY (SELECT now()) TO STDOUT",
        ],
    );
}

#[test]
fn nothing_is_unlogged() {
    all(
        "refused",
        &[
            "CREATE UNLOGGED TABLE x (a int)",
            "CREATE UNLOGGED TABLE x AS SELECT a FROM t",
            "SELECT a INTO UNLOGGED x FROM t",
            "CREATE UNLOGGED SEQUENCE x",
            "ALTER TABLE t SET UNLOGGED",
            "INSERT INTO fast VALUES (1)",
            "DELETE FROM fast",
        ],
    );
    all("same", &["ALTER TABLE fast SET LOGGED", "DROP TABLE fast"]);
}

#[test]
fn what_only_the_primary_has_is_defined_there_alone() {
    all(
        "alone",
        &[
            "ALTER TABLE tmp RENAME COLUMN a TO b",
            "CREATE VIEW x AS SELECT * FROM tmp",
            "COMMENT ON TABLE tmp IS 'x'",
            "COMMENT ON COLUMN tmp.a IS 'x'",
            "GRANT SELECT ON tmp TO bob",
            "ALTER TABLE tmp OWNER TO bob",
            "DROP INDEX tmp",
        ],
    );
    all(
        "refused",
        &[
            "CREATE TABLE x (LIKE tmp)",
            "TRUNCATE tmp, t",
            "CREATE TABLE x AS EXECUTE p",
            "GRANT SELECT ON tmp, t TO bob",
            "CREATE RULE r AS ON INSERT TO t DO DELETE FROM tmp",
        ],
    );
    all(
        "same",
        &[
            // Whatever is called so already.
            "CREATE TABLE tmp (a int)",
            "CREATE SEQUENCE tmp",
            "CREATE VIEW tmp AS SELECT a FROM t",
            "CREATE TYPE tmp AS (a int)",
            "COMMENT ON COLUMN t.a IS 'x'",
            "SET CONSTRAINTS ALL DEFERRED",
        ],
    );
    let first = Session {
        search_path: vec!["pg_temp_3".to_owned(), "public".to_owned()],
        ..session()
    };
    let plan = |text: &str| {
        plan(text, &facts(), &first, &Harmless::default(), false)
            .remove(0)
            .1
    };
    assert_eq!(plan("CREATE TABLE x (a int)"), Plan::creates());
    assert_eq!(kind(&plan("CREATE TABLE public.x (a int)")), "same");
}

#[test]
fn a_query_with_the_name_of_a_table_does_not_hide_it() {
    for (text, wanted) in [
        (
            "WITH u AS (SELECT * FROM u WHERE id > 5) UPDATE t SET b = (SELECT count(*) FROM u) WHERE id = 1",
            "t:ix u:s t[1]:Exclusive",
        ),
        (
            "WITH x AS (SELECT * FROM u) UPDATE t SET b = (SELECT count(*) FROM x) WHERE id = 1",
            "t:ix u:s t[1]:Exclusive",
        ),
        (
            "WITH x AS (SELECT 1) SELECT * FROM t WHERE id = 1 AND EXISTS (SELECT FROM x) FOR UPDATE",
            "t[1]:Exclusive",
        ),
    ] {
        assert_eq!(claims(text), wanted, "{text}");
    }
    all(
        "rows",
        &["WITH tmp AS (SELECT * FROM tmp) INSERT INTO log SELECT a, 1 FROM tmp"],
    );
}

#[test]
fn a_cast_may_make_another_key_of_a_value() {
    for (text, wanted) in [
        (
            "UPDATE t SET b = 1 WHERE id = $1::int",
            "t:ix t[$1]:Exclusive",
        ),
        (
            "UPDATE t SET b = 1 WHERE id = '5'::bigint",
            "t:ix t[5]:Exclusive",
        ),
        ("UPDATE t SET b = 1 WHERE id = $1::text::int", "t:x"),
        ("UPDATE t SET b = 1 WHERE id = $1::float8", "t:x"),
        (
            "UPDATE two SET z = 1 WHERE x = 1 AND y = 'abc'::varchar(2)",
            "two:x",
        ),
        (
            "UPDATE two SET z = 1 WHERE x = 1 AND y = '2020-1-1'::date::text",
            "two:x",
        ),
        (
            "UPDATE two SET z = 1 WHERE x = 1 AND y = 'a'::text",
            "two:ix two[1,a]:Exclusive",
        ),
        ("INSERT INTO t VALUES ('5'::float8)", "t:x"),
    ] {
        assert_eq!(claims(text), wanted, "{text}");
    }
}

#[test]
fn with_other_strings_than_the_parsers_nothing_is_executed() {
    let session = Session {
        has_backslashes: true,
        ..session()
    };
    let kinds = |text: &str| {
        let plan = plan(text, &facts(), &session, &Harmless::default(), false);
        kind(&plan[0].1)
    };
    assert_eq!(kinds("SELECT 'a'"), "refused");
    assert_eq!(kinds("SET standard_conforming_strings = on"), "alone");
    assert_eq!(kinds("ROLLBACK"), "step");
    all(
        "refused",
        &[
            "SET standard_conforming_strings = no",
            "SET NAMES 'latin1'",
            "SET client_encoding = 'SQL_ASCII'",
        ],
    );
    all(
        "alone",
        &[
            "SET NAMES 'utf-8'",
            "RESET client_encoding",
            "SET client_encoding = UNICODE",
        ],
    );
}
