//! What becomes of a few hundred statements.

mod differences;

use super::plan::{Plan, Session, Step, plan};
use super::{Facts, Harmless, KeyValue, Write};

const CATALOG: &str = r#"{
  "tables": [
    {"schema": "public", "name": "t", "kind": "r", "key": ["id"], "columns": [
      {"name": "id", "type_name": "integer", "has_plain_texts": true}, {"name": "a", "type_name": "text"},
      {"name": "b", "type_name": "integer"}]},
    {"schema": "public", "name": "u", "kind": "r", "key": ["id"], "columns": [
      {"name": "id", "type_name": "integer", "has_plain_texts": true}, {"name": "a", "type_name": "text"}]},
    {"schema": "public", "name": "s", "kind": "r", "key": ["id"], "columns": [
      {"name": "id", "type_name": "integer", "has_plain_texts": true, "default": "nextval('s_id_seq'::regclass)"},
      {"name": "a", "type_name": "text", "default": "'new'::text"},
      {"name": "at", "type_name": "timestamp with time zone", "default": "now()"}]},
    {"schema": "public", "name": "i", "kind": "r", "key": ["id"], "columns": [
      {"name": "id", "type_name": "bigint", "has_plain_texts": true, "identity": "a", "sequence": "public.i_id_seq"},
      {"name": "a", "type_name": "text"}]},
    {"schema": "public", "name": "g", "kind": "r", "key": ["id"], "columns": [
      {"name": "id", "type_name": "uuid", "has_plain_texts": true, "default": "gen_random_uuid()"},
      {"name": "a", "type_name": "text"}, {"name": "c", "type_name": "text", "is_generated": true, "default": "lower(a)"}]},
    {"schema": "public", "name": "log", "kind": "r", "columns": [
      {"name": "a", "type_name": "text"}, {"name": "b", "type_name": "integer"}]},
    {"schema": "public", "name": "two", "kind": "r", "key": ["x", "y"], "columns": [
      {"name": "x", "type_name": "integer", "has_plain_texts": true}, {"name": "y", "type_name": "text", "has_plain_texts": true},
      {"name": "z", "type_name": "integer"}]},
    {"schema": "public", "name": "mail", "kind": "r", "key": ["id"], "others": [["address"]], "columns": [
      {"name": "id", "type_name": "integer", "has_plain_texts": true}, {"name": "address", "type_name": "text"},
      {"name": "n", "type_name": "integer"}]},
    {"schema": "public", "name": "parent", "kind": "r", "key": ["id"], "columns": [
      {"name": "id", "type_name": "integer", "has_plain_texts": true}, {"name": "a", "type_name": "text"}],
      "referred": [{"table": "public.child", "columns": ["id"], "others": ["of"]}]},
    {"schema": "public", "name": "child", "kind": "r", "key": ["id"], "columns": [
      {"name": "id", "type_name": "integer", "has_plain_texts": true}, {"name": "of", "type_name": "integer"},
      {"name": "a", "type_name": "text"}],
      "refers": [{"table": "public.parent", "columns": ["of"], "others": ["id"]}]},
    {"schema": "public", "name": "watched", "kind": "r", "key": ["id"], "triggers": ["watch"], "columns": [
      {"name": "id", "type_name": "integer", "has_plain_texts": true}]},
    {"schema": "public", "name": "ruled", "kind": "r", "key": ["id"], "has_rules": true, "columns": [
      {"name": "id", "type_name": "integer", "has_plain_texts": true}]},
    {"schema": "public", "name": "part", "kind": "p", "is_related": true, "key": ["id"], "columns": [
      {"name": "id", "type_name": "integer", "has_plain_texts": true}]},
    {"schema": "public", "name": "v", "kind": "v", "columns": [{"name": "id", "type_name": "integer"}],
      "definition": "SELECT t.id, t.a, t.b FROM public.t"},
    {"schema": "public", "name": "recent", "kind": "v", "definition": "SELECT s.id, s.a FROM public.s WHERE s.at > now()"},
    {"schema": "public", "name": "outer_recent", "kind": "v", "definition": "SELECT recent.id, recent.a FROM public.recent"},
    {"schema": "public", "name": "next_id", "kind": "v", "definition": "SELECT nextval('public.s_id_seq'::regclass) AS id"},
    {"schema": "public", "name": "writes", "kind": "v", "definition": "SELECT public.mine() AS mine"},
    {"schema": "public", "name": "of_extension", "kind": "v"},
    {"schema": "public", "name": "refreshed", "kind": "m"},
    {"schema": "public", "name": "elsewhere", "kind": "f"},
    {"schema": "public", "name": "secured", "kind": "r", "has_rules": true, "has_row_security": true, "columns": [
      {"name": "id", "type_name": "integer"}]},
    {"schema": "public", "name": "fast", "kind": "r", "is_unlogged": true, "key": ["id"], "columns": [
      {"name": "id", "type_name": "integer", "has_plain_texts": true}]},
    {"schema": "public", "name": "lost", "kind": "r", "is_related": true, "columns": [
      {"name": "id", "type_name": "integer", "identity": "a"}, {"name": "a", "type_name": "text"}]},
    {"schema": "public", "name": "sure", "kind": "r", "key": ["id"], "columns": [
      {"name": "id", "type_name": "integer", "has_plain_texts": true}, {"name": "n", "type_name": "integer", "identity": "a",
        "sequence": "public.sure_n_seq"}, {"name": "a", "type_name": "text"}]},
    {"schema": "public", "name": "pg_mine", "kind": "r", "key": ["id"], "columns": [
      {"name": "id", "type_name": "integer", "has_plain_texts": true}, {"name": "a", "type_name": "text"}]},
    {"schema": "other", "name": "t", "kind": "r", "key": ["id"], "columns": [
      {"name": "id", "type_name": "integer", "has_plain_texts": true}]}],
  "system": ["pg_class", "pg_cast"], "domains": [["moment", "now()"], ["small", "5"]],
  "builtin": {"now": "s", "statement_timestamp": "s", "transaction_timestamp": "s", "to_char": "s", "random": "v", "nextval": "v",
    "setval": "v", "currval": "v", "gen_random_uuid": "v", "clock_timestamp": "v", "pg_sleep": "v", "lo_import": "v", "lo_create": "v",
    "current_setting": "s", "age": "s", "pg_notify": "v", "current_schema": "s", "date_trunc": "s", "set_config": "v",
    "pg_reload_conf": "v", "pg_advisory_xact_lock": "v", "current_database": "s", "concat": "s"},
  "own": {"mine": "v", "mine_too": "s"}, "has_deferrable": false}"#;

fn facts() -> Facts {
    Facts::parse(CATALOG).expect("as PostgreSQL answers it")
}

fn session() -> Session {
    Session {
        search_path: vec!["postgres".to_owned(), "public".to_owned()],
        temporary: ["tmp".to_owned()].into(),
        ..Session::default()
    }
}

fn planned(text: &str) -> Vec<Plan> {
    let plans = plan(text, &facts(), &session(), &Harmless::default(), false);
    plans.into_iter().map(|(_, plan)| plan).collect()
}

fn one(text: &str) -> Plan {
    let mut plans = planned(text);
    assert_eq!(plans.len(), 1, "{text}");
    plans.remove(0)
}

fn write(text: &str) -> Write {
    match one(text) {
        Plan::Write(write) => *write,
        other => panic!("{text}: {other:?}"),
    }
}

/// The kind of a plan, in one word.
fn kind(plan: &Plan) -> &'static str {
    match plan {
        Plan::Alone { .. } => "alone",
        Plan::Step(_) => "step",
        Plan::Unknown(_) => "unknown",
        Plan::Refused(_) => "refused",
        Plan::Write(write) if write.ship.is_some() => "rows",
        Plan::Write(write) if !write.is_logged => "locks",
        Plan::Write(write) if !write.needs.is_empty() => "values",
        Plan::Write(_) => "same",
    }
}

/// What a write claims, as one text: classes in order, then keys.
fn claims(text: &str) -> String {
    let write = write(text);
    let mut told: Vec<String> = Vec::new();
    for (class, mode) in write.claims.iter() {
        use crate::core::class::{Class, Mode};
        let mode = match mode {
            Mode::IntentShared => "is",
            Mode::IntentExclusive => "ix",
            Mode::Shared => "s",
            Mode::SharedIntentExclusive => "six",
            Mode::Exclusive => "x",
        };
        match class {
            Class::Database if mode == "x" => told.push("all:x".to_owned()),
            Class::Database => {}
            Class::Table(table) => {
                told.push(format!("{}:{mode}", table.trim_start_matches("public.")))
            }
            Class::Key(table, key) => told.push(format!("{table}[{key}]:{mode}")),
        }
    }
    for key in &write.keys {
        let parts: Vec<String> = key
            .parts
            .iter()
            .map(|part| match &part.value {
                KeyValue::Constant(value) => value.clone(),
                KeyValue::Parameter(number) => format!("${number}"),
                KeyValue::Need(number) => format!("?{number}"),
            })
            .collect();
        told.push(format!(
            "{}[{}]:{:?}",
            key.table.trim_start_matches("public."),
            parts.join(","),
            key.mode
        ));
    }
    told.join(" ")
}

#[track_caller]
fn all(wanted: &str, texts: &[&str]) {
    let mut wrong = Vec::new();
    for text in texts {
        let plan = one(text);
        if kind(&plan) != wanted {
            wrong.push(format!("{text}: {} {plan:?}", kind(&plan)));
        }
    }
    assert!(wrong.is_empty(), "not {wanted}:\n{}", wrong.join("\n"));
}

#[test]
fn reads_and_the_session_are_the_primarys_alone() {
    all(
        "alone",
        &[
            "SELECT 1",
            "SELECT * FROM t",
            "SELECT * FROM t LIMIT 1",
            "SELECT now(), random(), gen_random_uuid()",
            "SELECT * FROM unheard_of",
            "WITH x AS (SELECT 1) SELECT * FROM x",
            "SELECT a FROM t UNION SELECT a FROM u ORDER BY 1",
            "TABLE t",
            "VALUES (1), (2)",
            "SELECT count(*) FROM t WHERE a = 'now'",
            "SELECT mine_too()",
            "SELECT current_user",
            "SELECT pg_sleep(1)",
            "SELECT pg_notify('a', 'b')",
            "SELECT pg_advisory_xact_lock(1)",
            "SELECT currval('s_id_seq')",
            "SHOW search_path",
            "SET search_path = a, b",
            "SET LOCAL timezone = 'UTC'",
            "RESET ALL",
            "SET ROLE bob",
            "SELECT set_config('a.b', 'c', false)",
            "SET extra_float_digits = 3",
            "SET TRANSACTION READ ONLY",
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
            "LISTEN a",
            "UNLISTEN *",
            "NOTIFY a, 'b'",
            "DISCARD ALL",
            "DEALLOCATE ALL",
            "PREPARE p AS SELECT * FROM t WHERE id = $1",
            "EXECUTE p(1)",
            "DECLARE c CURSOR FOR SELECT * FROM t",
            "FETCH 10 FROM c",
            "CLOSE c",
            "EXPLAIN SELECT 1",
            "EXPLAIN UPDATE t SET a = 'b'",
            "EXPLAIN ANALYZE SELECT * FROM t",
            "VACUUM t",
            "ANALYZE",
            "COPY t TO STDOUT",
            "COPY (SELECT 1) TO STDOUT",
            "CHECKPOINT",
            "CREATE TEMP TABLE x (a int)",
            "CREATE TEMPORARY TABLE x AS SELECT random()",
            "SELECT random() INTO TEMP x",
            "CREATE TEMP SEQUENCE q",
            "CREATE TEMP VIEW w AS SELECT 1",
            "INSERT INTO tmp SELECT random() FROM t",
            "UPDATE tmp SET a = random()",
            "DELETE FROM tmp",
            "TRUNCATE tmp",
            "DROP TABLE tmp",
            "COPY tmp FROM STDIN",
            "ALTER TABLE tmp ADD x float DEFAULT random()",
            "CREATE INDEX ON tmp (a)",
            "INSERT INTO pg_temp.x VALUES (1)",
            "SELECT * FROM t FOR UPDATE SKIP LOCKED",
            "SELECT * FROM t WHERE id = 1 FOR UPDATE NOWAIT",
        ],
    );
}

#[test]
fn steps_move_the_transaction() {
    all(
        "step",
        &[
            "BEGIN",
            "START TRANSACTION",
            "BEGIN READ ONLY",
            "COMMIT",
            "END",
            "ROLLBACK",
            "ABORT",
            "SAVEPOINT a",
            "ROLLBACK TO a",
            "RELEASE a",
            "ROLLBACK TO SAVEPOINT a",
            "BEGIN ISOLATION LEVEL SERIALIZABLE",
        ],
    );
    assert_eq!(
        one("BEGIN ISOLATION LEVEL REPEATABLE READ"),
        Plan::Step(Step::Begin {
            has_snapshot: true,
            is_plain: false
        })
    );
    assert_eq!(
        one("BEGIN ISOLATION LEVEL READ COMMITTED"),
        Plan::Step(Step::Begin {
            has_snapshot: false,
            is_plain: false
        })
    );
    assert_eq!(
        one("SAVEPOINT a"),
        Plan::Step(Step::Savepoint("a".to_owned()))
    );
}

#[test]
fn what_is_determined_is_executed_as_it_is() {
    all(
        "same",
        &[
            "INSERT INTO t VALUES (1, 'a', 2)",
            "INSERT INTO t (id) VALUES (1), (2), (3)",
            "INSERT INTO t (id, a) VALUES ($1, $2)",
            "INSERT INTO t VALUES (1, lower('A'), 1 + 2) RETURNING id",
            "INSERT INTO t SELECT * FROM u",
            "INSERT INTO log SELECT a, b FROM t",
            "INSERT INTO t (id, a) VALUES (1, 'a') ON CONFLICT DO NOTHING",
            "INSERT INTO t VALUES (1) ON CONFLICT (id) DO UPDATE SET b = t.b + 1",
            "INSERT INTO s VALUES (1, 'a', '2026-01-01')",
            "INSERT INTO s (id, at) VALUES (1, NULL)",
            "INSERT INTO g (id) VALUES ($1)",
            "INSERT INTO i (id, a) OVERRIDING SYSTEM VALUE VALUES (1, 'a')",
            "INSERT INTO log DEFAULT VALUES",
            "INSERT INTO log VALUES (to_char(1.5, '9.9'), 1)",
            "UPDATE t SET b = b + 1 WHERE id = 1",
            "UPDATE t SET b = $1 WHERE id = $2",
            "UPDATE t SET a = 'x'",
            "UPDATE t SET (a, b) = ('x', 2) WHERE id = 1",
            "UPDATE t SET b = (SELECT max(id) FROM u) WHERE id = 1",
            "UPDATE t SET a = 'x' WHERE b IN (SELECT b FROM log)",
            "DELETE FROM t",
            "DELETE FROM t WHERE id = 1",
            "DELETE FROM t USING log WHERE t.b = log.b",
            "DELETE FROM t WHERE id = $1 RETURNING *",
            "UPDATE t SET id = 2 WHERE id = 1",
            "UPDATE t SET a = concat(a, 'b')",
            "UPDATE t SET b = CASE WHEN b > 1 THEN 2 ELSE 3 END",
            "MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN UPDATE SET a = u.a WHEN NOT MATCHED THEN INSERT (id) VALUES (u.id)",
            "WITH d AS (DELETE FROM t WHERE b = 1 RETURNING *) INSERT INTO log SELECT a, b FROM d",
            "WITH d AS (DELETE FROM t RETURNING id) SELECT count(*) FROM d",
            "UPDATE log SET a = 'b' WHERE b = 1",
            "TRUNCATE t",
            "TRUNCATE t, u CASCADE",
            "COPY t FROM STDIN",
            "COPY t (id, a) FROM STDIN WITH (FORMAT csv)",
            "COPY s FROM STDIN",
            "SELECT setval('s_id_seq', 5)",
            "INSERT INTO parent VALUES (1)",
            "INSERT INTO child VALUES (1, 1)",
            "DELETE FROM parent WHERE id = 1",
            "INSERT INTO part VALUES (1)",
            "INSERT INTO t VALUES (1, 'a''b', -1)",
            "INSERT INTO t (id, a) VALUES (1, DEFAULT)",
            "INSERT INTO s (id, a, at) VALUES (1, DEFAULT, '2026-01-01')",
            "INSERT INTO other.t VALUES (1)",
            "UPDATE ONLY t SET a = 'b'",
            "INSERT INTO log SELECT 'x', count(*) FROM t",
            "INSERT INTO log SELECT a, max(b) FROM t GROUP BY a",
            "INSERT INTO log (SELECT a, b FROM t EXCEPT SELECT a, b FROM log)",
            "DELETE FROM log WHERE EXISTS (SELECT FROM t WHERE t.a = log.a)",
        ],
    );
}

#[test]
fn definitions_are_executed_as_they_are() {
    all(
        "same",
        &[
            "CREATE TABLE x (id serial PRIMARY KEY, at timestamptz DEFAULT now())",
            "CREATE TABLE IF NOT EXISTS x (a int)",
            "DROP TABLE t",
            "DROP TABLE IF EXISTS x",
            "ALTER TABLE t ADD COLUMN c int",
            "ALTER TABLE t ADD COLUMN c int DEFAULT 5",
            "ALTER TABLE t DROP COLUMN a",
            "ALTER TABLE t ALTER a SET DEFAULT now()",
            "ALTER TABLE t ALTER a TYPE varchar(10)",
            "ALTER TABLE t ADD CONSTRAINT c CHECK (b > 0)",
            "ALTER TABLE t RENAME TO x",
            "CREATE INDEX ON t (a)",
            "CREATE UNIQUE INDEX x ON t (a)",
            "DROP INDEX x",
            "CREATE VIEW w AS SELECT now()",
            "CREATE SCHEMA x",
            "CREATE SEQUENCE q",
            "ALTER SEQUENCE q RESTART",
            "CREATE TYPE e AS ENUM ('a', 'b')",
            "ALTER TYPE e ADD VALUE 'c'",
            "CREATE DOMAIN d AS int CHECK (VALUE > 0)",
            "COMMENT ON TABLE t IS 'x'",
            "GRANT SELECT ON t TO bob",
            "REVOKE ALL ON t FROM bob",
            "CREATE ROLE bob LOGIN",
            "ALTER ROLE bob NOLOGIN",
            "DROP ROLE bob",
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "DROP FUNCTION f",
            "CREATE TRIGGER x AFTER INSERT ON t EXECUTE FUNCTION f()",
            "DROP TRIGGER x ON t",
            "CREATE EXTENSION pg_trgm",
            "CREATE TABLE x AS SELECT a FROM t",
            "SELECT a INTO x FROM t",
            "ALTER TABLE t OWNER TO bob",
            "ALTER SCHEMA a RENAME TO b",
            "CREATE POLICY p ON t USING (true)",
            "CREATE STATISTICS x ON a, b FROM t",
            "CREATE RULE r AS ON INSERT TO t DO NOTHING",
            "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO bob",
            "CREATE TABLE x (LIKE t INCLUDING ALL)",
            "CREATE TABLE x PARTITION OF part FOR VALUES FROM (1) TO (2)",
            "CREATE AGGREGATE g (int) (SFUNC = int4pl, STYPE = int)",
            "CREATE TABLE x (id int GENERATED ALWAYS AS IDENTITY)",
            "ALTER TABLE t SET SCHEMA other",
            "DROP SCHEMA x CASCADE",
            "REASSIGN OWNED BY bob TO postgres",
        ],
    );
}

#[test]
fn time_chance_and_sequences_are_evaluated_by_the_primary() {
    all(
        "values",
        &[
            "INSERT INTO t VALUES (1, now()::text, 2)",
            "INSERT INTO log VALUES (CURRENT_TIMESTAMP::text, 1)",
            "INSERT INTO log VALUES (current_user, 1)",
            "INSERT INTO log VALUES (random()::text, (random() * 10)::int)",
            "INSERT INTO log VALUES (gen_random_uuid()::text), (gen_random_uuid()::text)",
            "INSERT INTO log VALUES (clock_timestamp()::text)",
            "INSERT INTO s (a) VALUES ('x')",
            "INSERT INTO s VALUES (DEFAULT, 'x', DEFAULT)",
            "INSERT INTO s VALUES (DEFAULT)",
            "INSERT INTO i (a) VALUES ('x'), ('y')",
            "INSERT INTO i VALUES (DEFAULT, 'x')",
            "INSERT INTO g (a) VALUES ($1)",
            "INSERT INTO t VALUES (nextval('s_id_seq'), 'a')",
            "UPDATE t SET a = now()::text WHERE id = 1",
            "UPDATE t SET a = LOCALTIME(0)::text",
            "DELETE FROM s WHERE at < now() - interval '1 day'",
            "DELETE FROM s WHERE at < CURRENT_DATE",
            "INSERT INTO log SELECT a, 1 FROM t WHERE a < now()::text",
            "UPDATE s SET at = statement_timestamp() WHERE id = $1",
            "INSERT INTO s (id, a) VALUES (1, 'x')",
            "CREATE TABLE x AS SELECT now() AS at, a FROM t",
            "INSERT INTO log VALUES (current_setting('a.b'), 1)",
            "INSERT INTO log VALUES (current_schema(), 1)",
            "INSERT INTO log VALUES (pg_catalog.now()::text, 1)",
            "INSERT INTO t VALUES (1, 'a') ON CONFLICT (id) DO UPDATE SET a = now()::text",
        ],
    );
    let text = write("INSERT INTO s (a) VALUES ('x'), ('y')");
    assert_eq!(text.sequences, ["s_id_seq"]);
    assert_eq!(text.needs.len(), 4);
    let values: Vec<String> = (0..4).map(|at| format!("<{at}>")).collect();
    assert_eq!(
        text.template.fill(&values),
        "INSERT INTO s (a, id, at) VALUES ('x', <0>, <2>), ('y', <1>, <3>)"
    );
    let identity = write("INSERT INTO i (a) VALUES ('x')");
    assert_eq!(
        identity.template.fill(&["7".to_owned()]),
        "INSERT INTO i (a, id) OVERRIDING SYSTEM VALUE VALUES ('x', 7)"
    );
    // What is given is not used, but was on the second member.
    let ignored = write("INSERT INTO i (id, a) OVERRIDING USER VALUE VALUES (1, 'x')");
    assert_eq!(
        ignored.template.fill(&["7".to_owned()]),
        "INSERT INTO i (id, a) OVERRIDING SYSTEM VALUE VALUES (7, 'x')"
    );
    let time = write("DELETE FROM s WHERE at < now() - interval '1 day' /* old */");
    assert_eq!(
        time.template.fill(&["N".to_owned()]),
        "DELETE FROM s WHERE at < N - interval '1 day' /* old */"
    );
    let twice = write("INSERT INTO log VALUES (CURRENT_TIMESTAMP(3)::text || now()::text, 1)");
    assert_eq!(twice.needs, ["CURRENT_TIMESTAMP(3)", "now()"]);
}

#[test]
fn rows_are_sent_where_they_are_not_determined() {
    all(
        "rows",
        &[
            "UPDATE t SET b = random() * 10",
            "UPDATE t SET a = gen_random_uuid()::text",
            "DELETE FROM t WHERE random() < 0.5",
            "DELETE FROM t WHERE id IN (SELECT id FROM t ORDER BY b LIMIT 1)",
            "DELETE FROM t WHERE id = (SELECT id FROM t LIMIT 1 FOR UPDATE SKIP LOCKED)",
            "UPDATE t SET a = u.a FROM u WHERE t.id = u.id",
            "UPDATE t SET a = x.a FROM (VALUES ('b')) x (a)",
            "INSERT INTO s (a) SELECT a FROM t",
            "INSERT INTO g (a) SELECT a FROM t",
            "INSERT INTO i (a) SELECT a FROM t",
            "INSERT INTO log SELECT a, b FROM t LIMIT 5",
            "INSERT INTO log SELECT a, random() FROM t",
            "INSERT INTO log SELECT a, b FROM tmp",
            "INSERT INTO log SELECT DISTINCT ON (a) a, b FROM t",
            "INSERT INTO log SELECT string_agg(a, ','), 1 FROM t",
            "INSERT INTO log SELECT a, row_number() OVER () FROM t",
            "INSERT INTO log SELECT a, b FROM t TABLESAMPLE SYSTEM (10)",
            "INSERT INTO log SELECT relname, 1 FROM pg_class",
            "INSERT INTO log SELECT table_name, 1 FROM information_schema.tables",
            "UPDATE t SET a = 'x' WHERE CURRENT OF c",
            "DELETE FROM t WHERE CURRENT OF c",
            "DELETE FROM t WHERE ctid = '(0,1)'",
            "UPDATE t SET a = 'now'",
            "INSERT INTO log VALUES ('today', 1)",
            "INSERT INTO s DEFAULT VALUES",
            "UPDATE s SET at = DEFAULT",
            "INSERT INTO t SELECT id, a, 1 FROM u ON CONFLICT DO NOTHING",
            "INSERT INTO t VALUES (1, 'a') ON CONFLICT (id) DO UPDATE SET b = random()",
            "INSERT INTO log VALUES ($1 || random()::text, 1)",
            "INSERT INTO log VALUES ((SELECT a FROM t LIMIT 1), 1)",
            "INSERT INTO s (a) VALUES ('x') RETURNING random()",
            "INSERT INTO log SELECT a, avg(b) FROM t GROUP BY a",
            "UPDATE t SET b = nextval('s_id_seq')",
            "INSERT INTO log VALUES ('t'::regclass::text, 1)",
            "INSERT INTO t VALUES ($1::int + random()::int)",
            "DELETE FROM t WHERE b > (SELECT sum(b) FROM u)",
            "INSERT INTO log SELECT a, 1 FROM t FETCH FIRST 1 ROW ONLY",
            "UPDATE t SET b = 1 WHERE age(a::timestamp) > interval '1 day'",
            "WITH x AS (SELECT random() r) UPDATE t SET b = r FROM x",
            "INSERT INTO log SELECT a, lag(b) OVER (ORDER BY a) FROM t",
        ],
    );
    let sent = write("DELETE FROM t AS x WHERE random() < 0.5 -- some");
    assert_eq!(
        sent.template.text(),
        Some("DELETE FROM t AS x WHERE random() < 0.5 -- some\n RETURNING \"x\".\"id\"::text")
    );
    let sent = write("UPDATE t SET b = random() RETURNING a");
    assert_eq!(
        sent.template.text(),
        Some("UPDATE t SET b = random() RETURNING a\n, \"t\".\"id\"::text, \"t\".\"b\"::text")
    );
    let sent = write("INSERT INTO g (a) SELECT a FROM t");
    assert_eq!(
        sent.template.text(),
        Some("INSERT INTO g (a) SELECT a FROM t\n RETURNING \"g\".\"id\"::text, \"g\".\"a\"::text")
    );
    assert_eq!(
        write("INSERT INTO s (a) SELECT a FROM t").sequences,
        ["s_id_seq"]
    );
}

#[test]
fn what_cannot_be_mirrored_is_refused() {
    all("refused", &[
        "SELECT mine()", "INSERT INTO log VALUES (mine()::text, 1)", "UPDATE t SET b = mine_too()", "INSERT INTO v VALUES (1)",
        "INSERT INTO watched VALUES (1)", "UPDATE watched SET id = 2", "DELETE FROM ruled", "COPY watched FROM STDIN", "DO $$ BEGIN END $$",
        "CALL p()", "VACUUM FULL; SELECT 1", "PREPARE TRANSACTION 'a'", "COMMIT PREPARED 'a'", "ROLLBACK PREPARED 'a'", "COMMIT AND CHAIN",
        "ROLLBACK AND CHAIN", "CREATE INDEX CONCURRENTLY ON t (a)", "DROP INDEX CONCURRENTLY x", "CREATE DATABASE x", "DROP DATABASE x",
        "ALTER SYSTEM SET a = 1", "CREATE TABLESPACE x LOCATION '/x'", "REINDEX TABLE t", "CLUSTER t", "COPY t FROM '/tmp/x'",
        "COPY t TO PROGRAM 'cat'", "COPY s (a) FROM STDIN", "COPY g (a) FROM STDIN", "UPDATE log SET b = random()",
        "DELETE FROM log WHERE random() < 0.5", "UPDATE t SET id = random()", "SELECT lo_create(0)", "SELECT lo_import('/etc/passwd')",
        "ALTER TABLE t ADD COLUMN c float DEFAULT random()", "ALTER TABLE t ADD COLUMN c timestamptz DEFAULT now()",
        "ALTER TABLE t ADD COLUMN c serial", "ALTER TABLE t ADD COLUMN c int GENERATED ALWAYS AS IDENTITY",
        "CREATE TABLE x AS SELECT random()", "CREATE TABLE x AS SELECT * FROM t LIMIT 5", "SELECT random() INTO x",
        "CREATE MATERIALIZED VIEW m AS SELECT 1", "REFRESH MATERIALIZED VIEW m", "SELECT nextval(a) FROM t",
        "SELECT setval('s_id_seq', (random() * 5)::int)", "EXPLAIN ANALYZE DELETE FROM t", "PREPARE p AS DELETE FROM t",
        "PREPARE p AS SELECT mine()", "SET default_transaction_isolation = 'serializable'", "SET session_replication_role = replica",
        "SET extra_float_digits = 0", "SET standard_conforming_strings = off", "DROP TABLE tmp, t", "CREATE SUBSCRIPTION x CONNECTION '' PUBLICATION y",
        "INSERT INTO pg_class VALUES (1)", "WITH d AS (DELETE FROM t WHERE random() < 1 RETURNING *) INSERT INTO log SELECT a, b FROM d",
        "WITH d AS (INSERT INTO s (a) VALUES ('x') RETURNING id) SELECT * FROM d", "SELEC 1",
        "MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN UPDATE SET a = random()", "SELECT pg_catalog.lo_create(0)",
        "INSERT INTO log SELECT mine()::text, 1", "INSERT INTO t VALUES (1) ON CONFLICT (id) DO UPDATE SET id = random()",
        "TRUNCATE watched", "DECLARE c CURSOR FOR SELECT mine()", "LOAD 'x'", "UPDATE v SET id = 1", "SECURITY LABEL ON TABLE t IS 'x'",
    ].iter().filter(|text| !text.contains(';')).copied().collect::<Vec<_>>());
    let Plan::Refused(refusal) = one("UPDATE log SET b = random()") else {
        panic!("it is refused");
    };
    assert_eq!(refusal.code, "0A000");
    assert!(
        refusal
            .detail
            .as_deref()
            .is_some_and(|detail| detail.contains("no primary key")),
        "{refusal:?}"
    );
    assert!(
        refusal
            .hint
            .as_deref()
            .is_some_and(|hint| hint.contains("Add a primary key")),
        "{refusal:?}"
    );
}

#[test]
fn unknown_relations_are_looked_for() {
    all(
        "unknown",
        &[
            "INSERT INTO x VALUES (1)",
            "UPDATE x SET a = 1",
            "DELETE FROM x",
            "COPY x FROM STDIN",
            "TRUNCATE x",
            "DELETE FROM t USING x",
            "INSERT INTO t SELECT * FROM x",
            "INSERT INTO other.u VALUES (1)",
        ],
    );
}

#[test]
fn claims_are_as_narrow_as_they_may_be() {
    for (text, wanted) in [
        ("INSERT INTO t VALUES (1)", "t:ix t[1]:Exclusive"),
        ("INSERT INTO t VALUES ($1)", "t:ix t[$1]:Exclusive"),
        (
            "INSERT INTO t VALUES ('1'), (2)",
            "t:ix t[1]:Exclusive t[2]:Exclusive",
        ),
        ("INSERT INTO s (a) VALUES ('x')", "s:ix s[?0]:Exclusive"),
        ("INSERT INTO log VALUES ('a')", "log:ix"),
        ("INSERT INTO t SELECT * FROM u", "t:x u:s"),
        ("INSERT INTO log SELECT a, b FROM t", "log:ix t:s"),
        ("INSERT INTO s (a) SELECT a FROM t", "s:x"),
        ("INSERT INTO mail VALUES (1, 'a')", "mail:x"),
        ("UPDATE t SET b = 1 WHERE id = 5", "t:ix t[5]:Exclusive"),
        (
            "UPDATE t SET b = 1 WHERE t.id = $1 AND b > 2",
            "t:ix t[$1]:Exclusive",
        ),
        ("UPDATE t SET b = 1 WHERE id = 5 OR b = 1", "t:x"),
        ("UPDATE t SET b = 1 WHERE id > 5", "t:x"),
        ("UPDATE t SET b = 1", "t:x"),
        ("UPDATE t SET id = 6 WHERE id = 5", "t:x"),
        (
            "UPDATE t SET b = (SELECT max(b) FROM u) WHERE id = 5",
            "t:ix u:s t[5]:Exclusive",
        ),
        (
            "UPDATE t SET b = (SELECT max(b) FROM t) WHERE id = 5",
            "t:six t[5]:Exclusive",
        ),
        (
            "UPDATE mail SET n = 1 WHERE id = 5",
            "mail:ix mail[5]:Exclusive",
        ),
        ("UPDATE mail SET address = 'b' WHERE id = 5", "mail:x"),
        ("DELETE FROM mail WHERE id = 5", "mail:x"),
        ("DELETE FROM t WHERE id = 5", "t:ix t[5]:Exclusive"),
        (
            "UPDATE two SET z = 1 WHERE x = 1 AND y = 'a'",
            "two:ix two[1,a]:Exclusive",
        ),
        ("UPDATE two SET z = 1 WHERE x = 1", "two:x"),
        (
            "INSERT INTO child VALUES (1, 2)",
            "child:ix parent:s child[1]:Exclusive",
        ),
        (
            "UPDATE child SET a = 'b' WHERE id = 1",
            "child:ix child[1]:Exclusive",
        ),
        (
            "UPDATE child SET of = 2 WHERE id = 1",
            "child:ix parent:s child[1]:Exclusive",
        ),
        (
            "DELETE FROM child WHERE id = 1",
            "child:ix child[1]:Exclusive",
        ),
        (
            "UPDATE parent SET a = 'b' WHERE id = 1",
            "parent:ix parent[1]:Exclusive",
        ),
        (
            "DELETE FROM parent WHERE id = 1",
            "child:x parent:ix parent[1]:Exclusive",
        ),
        ("INSERT INTO part VALUES (1)", "all:x"),
        ("TRUNCATE t", "all:x"),
        ("DROP TABLE t", "all:x"),
        ("LOCK TABLE t", "all:x"),
        ("SELECT * FROM t WHERE id = 1 FOR UPDATE", "t[1]:Exclusive"),
        ("SELECT * FROM t WHERE id = 1 FOR SHARE", "t[1]:Shared"),
        ("SELECT * FROM t WHERE b = 1 FOR UPDATE", "t:x"),
        ("COPY t FROM STDIN", "t:x"),
        ("COPY log FROM STDIN", "log:ix"),
        ("DELETE FROM t USING log WHERE t.b = log.b", "log:s t:x"),
        ("UPDATE other.t SET id = id", "other.t:x"),
        (
            "INSERT INTO t VALUES (1) ON CONFLICT (id) DO UPDATE SET b = 2",
            "t:ix t[1]:Exclusive t[1]:Exclusive",
        ),
    ] {
        assert_eq!(claims(text), wanted, "{text}");
    }
}

#[test]
fn several_statements_are_several_plans() {
    let kinds: Vec<&str> =
        planned("BEGIN; UPDATE t SET a = now()::text WHERE id = 1; ; SELECT 1; COMMIT")
            .iter()
            .map(kind)
            .collect();
    assert_eq!(kinds, ["step", "values", "alone", "step"]);
    assert!(planned(" ; -- nothing").is_empty());
}

#[test]
fn what_the_operator_vouches_for_is_mirrored() {
    let harmless = Harmless {
        functions: vec!["mine".to_owned()],
        triggers: vec!["watch".to_owned()],
    };
    for text in [
        "INSERT INTO log VALUES (mine()::text, 1)",
        "INSERT INTO watched VALUES (1)",
    ] {
        let plan = plan(text, &facts(), &session(), &harmless, false)
            .remove(0)
            .1;
        assert_eq!(kind(&plan), "same", "{text}");
    }
}

#[test]
fn a_transaction_with_a_snapshot_does_not_write() {
    let session = Session {
        has_snapshot: true,
        ..session()
    };
    let kinds = |text: &str| {
        kind(
            &plan(text, &facts(), &session, &Harmless::default(), false)
                .remove(0)
                .1,
        )
    };
    assert_eq!(kinds("UPDATE t SET b = 1"), "refused");
    assert_eq!(kinds("SELECT * FROM t"), "alone");
}

#[test]
fn parameters_that_may_be_the_time_send_rows() {
    let plans = |text: &str| {
        kind(
            &plan(text, &facts(), &session(), &Harmless::default(), true)
                .remove(0)
                .1,
        )
    };
    assert_eq!(plans("INSERT INTO t (id, a) VALUES ($1, $2)"), "rows");
    assert_eq!(plans("UPDATE t SET a = $1 WHERE id = $2"), "rows");
    assert_eq!(plans("UPDATE log SET a = $1"), "refused");
    assert!(super::find::may_be_a_time("Today 12:00") && !super::find::may_be_a_time("known"));
}

#[test]
fn what_needs_nothing_but_the_time_runs_as_it_is() {
    let runs = |text: &str| write(text).runs_as_it_is(text, &session());
    for text in [
        "UPDATE t SET b = b + $1 WHERE id = $2",
        "INSERT INTO t (id, a, b) VALUES ($1, $2, 3)",
        "INSERT INTO log (a, b) VALUES (current_timestamp::text, $1)",
        "UPDATE t SET a = now()::text WHERE id = 1",
        "INSERT INTO s (id, a) VALUES (1, 'x')",
        "DELETE FROM t WHERE id = $1",
        "CREATE TABLE n (id int PRIMARY KEY)",
    ] {
        assert!(runs(text), "{text}");
    }
    for text in [
        "INSERT INTO s (a) VALUES ('x')",
        "INSERT INTO g (a) VALUES ('x')",
        "UPDATE t SET a = statement_timestamp()::text WHERE id = 1",
        "UPDATE t SET a = current_date::text WHERE id = 1",
        "UPDATE t SET a = random()::text",
        "UPDATE t SET a = current_user WHERE id = 1",
        "COPY t FROM STDIN",
    ] {
        assert!(!runs(text), "{text}");
    }
    let elsewhere = Session {
        search_path: vec!["public".to_owned(), "pg_catalog".to_owned()],
        ..session()
    };
    let text = "UPDATE t SET a = now()::text WHERE id = 1";
    assert!(!write(text).runs_as_it_is(text, &elsewhere));
}
