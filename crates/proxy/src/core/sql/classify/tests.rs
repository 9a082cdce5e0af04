use super::*;

fn only(text: &str) -> SingleStatement {
    let statement = classify(text).expect("it parses");
    statement.only().expect("one statement").clone()
}

#[test]
fn plain_reads() {
    for text in [
        "SELECT 1",
        "select * from t where a = (select max(b) from u)",
        "VALUES (1), (2)",
        "TABLE t",
        "WITH a AS (SELECT 1) SELECT * FROM a UNION SELECT 2",
    ] {
        assert_eq!(only(text).kind, Kind::Read, "{text}");
    }
}

#[test]
fn selects_that_write() {
    for text in [
        "SELECT * FROM t FOR UPDATE",
        "SELECT * INTO u FROM t",
        "WITH gone AS (DELETE FROM t RETURNING *) SELECT * FROM gone",
        "SELECT * FROM (SELECT * FROM t FOR SHARE) x",
        "SELECT 1 UNION (SELECT a FROM t FOR UPDATE)",
    ] {
        assert_eq!(only(text).kind, Kind::Write, "{text}");
    }
}

/// `COPY` runs the statement in its brackets, whatever it is.
// hazard: PROXY-5
#[test]
fn copies_that_write() {
    for text in [
        "COPY (INSERT INTO t VALUES (1) RETURNING *) TO STDOUT",
        "COPY (UPDATE t SET a = 1 RETURNING a) TO STDOUT",
        "COPY (DELETE FROM t RETURNING a) TO STDOUT (FORMAT binary)",
        "COPY (WITH gone AS (DELETE FROM t RETURNING *) SELECT * FROM gone) TO STDOUT",
    ] {
        assert_eq!(only(text).kind, Kind::Write, "{text}");
    }
    let read = only("COPY (SELECT f(a) FROM t) TO STDOUT");
    assert_eq!((read.kind, read.calls.len()), (Kind::CopyOut, 1));
    assert_eq!(only("COPY t TO STDOUT").kind, Kind::CopyOut);
}

#[test]
fn calls_are_found_wherever_they_are() {
    let calls = |text: &str| only(text).calls;
    assert_eq!(calls("SELECT pg_catalog.NextVal('s')"), ["nextval".into()]);
    assert_eq!(
        calls("SELECT 1 FROM t WHERE a IN (SELECT f(b) FROM u ORDER BY g(c)) LIMIT h()").len(),
        3
    );
    assert_eq!(
        calls("SELECT CASE WHEN f() THEN ARRAY[g()] END FROM h(1) AS x, LATERAL (SELECT k()) y")
            .len(),
        4
    );
    assert_eq!(
        calls("SELECT sum(a) FILTER (WHERE f()) OVER (PARTITION BY g()) FROM t").len(),
        3
    );
    assert_eq!(
        calls("SELECT COALESCE(f(), GREATEST(g(), 1)), ROW(h()), (i()).x, JSON_ARRAY(j())").len(),
        5
    );
}

#[test]
fn transactions() {
    assert_eq!(only("COMMIT").kind, Kind::Commit { chain: false });
    assert_eq!(only("end").kind, Kind::Commit { chain: false });
    assert_eq!(only("ABORT AND CHAIN").kind, Kind::Rollback { chain: true });
    assert_eq!(only("ROLLBACK TO a").kind, Kind::RollbackTo("a".into()));
    assert_eq!(only("BEGIN").kind, Kind::Begin(Begin::default()));
    let begin = |text: &str| match only(text).kind {
        Kind::Begin(begin) => begin,
        other => panic!("{other:?}"),
    };
    assert_eq!(begin("BEGIN READ ONLY").read_only, Some(true));
    assert_eq!(begin("START TRANSACTION READ WRITE").read_only, Some(false));
    let both = begin("BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY");
    assert_eq!(both.read_only, Some(true));
    assert!(both.is_serializable);
}

#[test]
fn statements_that_run_alone() {
    for text in [
        "VACUUM t",
        "CREATE INDEX CONCURRENTLY i ON t (a)",
        "CREATE DATABASE d",
        "CALL p()",
        "DO $$ BEGIN COMMIT; END $$",
        "COPY t FROM PROGRAM 'x'",
        "COMMIT PREPARED 'a'",
        "ALTER SYSTEM SET work_mem = '1MB'",
    ] {
        assert_eq!(only(text).kind, Kind::Alone, "{text}");
    }
}

/// They were run again with their transaction, although what they had done elsewhere was done.
// hazard: PROXY-55
#[test]
fn statements_that_act_outside_of_the_transaction() {
    let acts = |text: &str| {
        let part = only(text);
        part.may_act_outside || part.runs_unseen || part.has_large_objects
    };
    for text in [
        "DO $$ BEGIN PERFORM dblink_exec('', ''); END $$",
        "CALL p()",
        "COPY t TO PROGRAM 'mail'",
        "COPY t TO '/tmp/t'",
        "EXECUTE p(1)",
        "EXPLAIN ANALYZE EXECUTE p",
        "CREATE TABLE t AS EXECUTE p",
        "SELECT lo_open(1, 2)",
    ] {
        assert!(acts(text), "{text}");
    }
    for text in [
        "FETCH 1 FROM c",
        "LOCK TABLE t",
        "COPY t TO STDOUT",
        "COPY t FROM STDIN",
        "CREATE TABLE t AS SELECT 1",
        "INSERT INTO t VALUES (1)",
    ] {
        assert!(!acts(text), "{text}");
    }
    assert!(super::super::Statement::opaque().parts[0].runs_unseen);
}

// hazard: PROXY-41
#[test]
fn settings() {
    let effects = |text: &str| only(text).effects;
    let set = |name: &str, statement: &str, value: Option<&str>| {
        vec![Effect::Set(Change::Set {
            name: name.into(),
            statement: statement.into(),
            value: value.map(Into::into),
        })]
    };
    assert_eq!(
        effects("SET Work_Mem = '1MB'"),
        set("work_mem", "SET Work_Mem = '1MB'", Some("1MB"))
    );
    assert_eq!(
        effects("SET search_path TO a, b"),
        set("search_path", "SET search_path TO a, b", None)
    );
    assert_eq!(effects("SET LOCAL work_mem = '1MB'"), []);
    assert_eq!(effects("SET TRANSACTION READ ONLY"), []);
    assert_eq!(
        effects("RESET work_mem"),
        [Effect::Set(Change::Reset("work_mem".into()))]
    );
    assert_eq!(effects("RESET ALL"), [Effect::Set(Change::ResetAll)]);
    assert_eq!(
        effects("SELECT set_config('a.b', 'it''s', false)"),
        set(
            "a.b",
            "SELECT pg_catalog.set_config('a.b', 'it''s', false)",
            Some("it's")
        )
    );
    assert_eq!(effects("SELECT set_config('a.b', 'c', true)"), []);
    assert_eq!(
        effects("SELECT set_config('a.b', x, false) FROM t"),
        [Effect::Affinity(ServerAffinity::Unknown)]
    );
}

/// Nothing was set on the server, and the session was given it on the next one.
// hazard: PROXY-53
#[test]
fn setting_counts_if_it_is_executed_for_certain() {
    let effects = |text: &str| only(text).effects;
    let set = |text: &str| matches!(effects(text).as_slice(), [Effect::Set(_)]);
    assert!(set("SELECT set_config('a.b', 'c', false)"));
    assert!(set("SELECT pg_catalog.Set_Config('a.b', 'c', false) AS x"));
    for text in [
        "SELECT set_config('a.b', 'c', false) FROM t WHERE a = 1",
        "SELECT set_config('a.b', 'c', false) WHERE false",
        "SELECT set_config('a.b', 'c', false) LIMIT 0",
        "SELECT set_config('a.b', 'c', false) HAVING false",
        "SELECT 1 UNION SELECT set_config('a.b', 'c', false)",
        "SELECT CASE WHEN a THEN set_config('a.b', 'c', false) END",
        "SELECT COALESCE('x', set_config('a.b', 'c', false))",
        "SELECT (SELECT set_config('a.b', 'c', false))",
        "SELECT set_config('a.b', 'c', false), generate_series(1, 0) + 1",
        "INSERT INTO t SELECT set_config('a.b', 'c', false)",
        "EXPLAIN ANALYZE SELECT set_config('a.b', 'c', false)",
        "DECLARE c CURSOR FOR SELECT set_config('a.b', 'c', false)",
    ] {
        assert_eq!(
            effects(text),
            [Effect::Affinity(ServerAffinity::Unknown)],
            "{text}"
        );
    }
    let unlocks = [Effect::NoAffinity(ServerAffinity::Advisory)];
    assert_eq!(effects("SELECT pg_advisory_unlock_all()"), unlocks);
    for text in [
        "SELECT pg_advisory_unlock_all() WHERE false",
        "SELECT COALESCE(1, pg_advisory_unlock_all())",
        "SELECT pg_advisory_unlock_all() FROM t",
    ] {
        assert_eq!(effects(text), [], "{text}");
    }
}

// hazard: PROXY-52
#[test]
fn statements_that_a_session_keeps() {
    let effects = |text: &str| only(text).effects;
    let temporary = vec![Effect::Affinity(ServerAffinity::Temporary)];
    assert_eq!(effects("CREATE TEMP TABLE t (a int)"), temporary);
    assert_eq!(effects("CREATE TABLE pg_temp.t (a int)"), temporary);
    assert_eq!(effects("CREATE TEMP TABLE t AS SELECT 1"), temporary);
    assert_eq!(effects("SELECT 1 INTO TEMP t"), temporary);
    for text in [
        "CREATE TABLE pg_temp.t AS SELECT 1",
        "CREATE TABLE pg_temp_3.t (a int)",
        "CREATE TYPE pg_temp.t AS (a int)",
        "CREATE TYPE pg_temp.t AS ENUM ('a')",
        "CREATE FOREIGN TABLE pg_temp.t (a int) SERVER s",
    ] {
        assert_eq!(effects(text), temporary, "{text}");
    }
    assert_eq!(effects("SELECT 1 INTO pg_temp.t"), temporary);
    let execute = Effect::Execute("p".into());
    assert!(effects("CREATE TABLE pg_temp.t AS EXECUTE p").contains(&temporary[0]));
    for text in [
        "EXECUTE p (1)",
        "EXPLAIN ANALYZE EXECUTE p",
        "CREATE TABLE t AS EXECUTE p",
        "EXPLAIN CREATE TABLE pg_temp.t AS EXECUTE p",
    ] {
        assert!(effects(text).contains(&execute), "{text}");
    }
    assert_eq!(effects("SELECT * FROM pg_temp.t"), []);
    assert_eq!(
        effects("CREATE STATISTICS pg_temp.s ON a, b FROM t"),
        temporary
    );
    let function = "FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'";
    let in_schema = function.replace("f()", "pg_temp.f()");
    assert_eq!(effects(&format!("CREATE {in_schema}")), temporary);
    let set = "SET search_path = pg_catalog, pg_temp";
    assert_eq!(effects(&format!("CREATE {function} {set}")), []);
    assert_eq!(effects("INSERT INTO t VALUES ('pg_temp')"), []);
    assert_eq!(effects("CREATE TEMP TABLE t (a int) ON COMMIT DROP"), []);
    assert_eq!(
        effects("SELECT pg_try_advisory_lock(1)"),
        [Effect::Affinity(ServerAffinity::Advisory)]
    );
    assert_eq!(
        effects("DECLARE c CURSOR WITH HOLD FOR SELECT 1"),
        [Effect::Affinity(ServerAffinity::HeldCursor)]
    );
    assert_eq!(effects("DECLARE c CURSOR FOR SELECT 1"), []);
    assert_eq!(effects("LISTEN Jobs"), [Effect::Listen("jobs".into())]);
    assert_eq!(effects("UNLISTEN *"), [Effect::Unlisten(None)]);
    assert_eq!(
        effects("PREPARE p AS SELECT $1"),
        [Effect::Prepare("p".into(), "PREPARE p AS SELECT $1".into())]
    );
}

#[test]
fn several_statements_keep_their_texts() {
    let statement = classify("BEGIN; SET a.b = 'c' ; COMMIT").expect("it parses");
    assert_eq!(statement.parts.len(), 3);
    let Effect::Set(Change::Set { statement, .. }) = &statement.parts[1].effects[0] else {
        panic!("a change");
    };
    assert_eq!(statement.as_ref(), "SET a.b = 'c'");
}

#[test]
fn our_own_question() {
    let own = |text: &str| classify(text).expect("it parses").proxy_query;
    assert_eq!(own("SHOW understudy.version"), Some(ProxyQuery::Version));
    assert_eq!(own("SHOW understudy.version; SELECT 1"), None);
    assert_eq!(own("SHOW work_mem"), None);
}

#[test]
fn nonsense_is_not_understood() {
    assert!(classify("SELEC 1").is_none());
}

/// pgjdbc says so in `setReadOnly` and `setTransactionIsolation`. There is no setting of that name to be reset, and the
/// second would take the place of the first.
// hazard: PROXY-41
#[test]
fn modes_of_all_transactions_are_settings() {
    let changes = |text: &str| -> Vec<(String, String)> {
        let effects = only(text).effects.into_iter();
        let pairs = effects.filter_map(|effect| match effect {
            Effect::Set(Change::Set { name, value, .. }) => Some((name.into(), value?.into())),
            _ => None,
        });
        pairs.collect()
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        changes("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"),
        [pair("default_transaction_read_only", "on")]
    );
    assert_eq!(
        changes(
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE"
        ),
        [
            pair("default_transaction_isolation", "repeatable read"),
            pair("default_transaction_read_only", "off")
        ]
    );
    assert_eq!(changes("SET transaction_isolation = 'serializable'"), []);
    assert_eq!(changes("SET transaction_read_only = on"), []);
    assert_eq!(
        changes("SELECT set_config('transaction_read_only', 'on', false)"),
        []
    );
}
