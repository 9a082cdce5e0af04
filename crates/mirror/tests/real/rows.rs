//! Transactions that are logged as the rows that they have changed: whatever a client does is the same on both members, or refused.

use crate::cases::{Case, Wants::*, go_through};
use crate::server::psql;
use crate::site::{Site, connect, run, value};

/// The kinds of transactions that made members differ when statements were executed twice, and what applications do all day. Each is a
/// few texts, one after the other, each of which is what a client sends at once.
pub const CASES: &[Case] = &[
    (
        "triggers of children by ON DELETE CASCADE and SET NULL",
        &[
            "CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE seen (id serial PRIMARY KEY, what text, at timestamptz DEFAULT clock_timestamp())",
            "CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES parent ON DELETE CASCADE, q int REFERENCES parent ON DELETE SET NULL)",
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen (what) VALUES (TG_OP || random()); RETURN NULL; END $$",
            "CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON child FOR EACH ROW EXECUTE FUNCTION note()",
            "INSERT INTO parent SELECT generate_series(1, 9); INSERT INTO child SELECT n, n, 10 - n FROM generate_series(1, 9) n",
            "DELETE FROM parent WHERE id < 4",
        ],
        Equal,
    ),
    (
        "SET DEFAULT random() of a cascade",
        &[
            "CREATE TABLE dp (id int PRIMARY KEY); INSERT INTO dp VALUES (0), (1), (2)",
            "CREATE TABLE dc (id int PRIMARY KEY, p int DEFAULT (random() * 0)::int REFERENCES dp ON DELETE SET DEFAULT, r float DEFAULT random())",
            "INSERT INTO dc (id, p) VALUES (1, 1), (2, 2)",
            "DELETE FROM dp WHERE id > 0",
        ],
        Equal,
    ),
    (
        "TRUNCATE CASCADE, with a trigger, and RESTART IDENTITY",
        &[
            "CREATE TABLE tp (id serial PRIMARY KEY); CREATE TABLE tc (id serial, p int REFERENCES tp); CREATE TABLE tseen (at timestamptz)",
            "CREATE FUNCTION tnote() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO tseen VALUES (clock_timestamp()); RETURN NULL; END $$",
            "CREATE TRIGGER tnote AFTER TRUNCATE ON tc EXECUTE FUNCTION tnote()",
            "INSERT INTO tp DEFAULT VALUES; INSERT INTO tc (p) VALUES (1)",
            "TRUNCATE tp RESTART IDENTITY CASCADE",
            "INSERT INTO tp DEFAULT VALUES",
        ],
        Equal,
    ),
    (
        "triggers on leaves of a partitioned table, and a row that moves",
        &[
            "CREATE TABLE pt (id int, at timestamptz DEFAULT clock_timestamp(), PRIMARY KEY (id)) PARTITION BY RANGE (id)",
            "CREATE TABLE pt1 PARTITION OF pt FOR VALUES FROM (0) TO (10); CREATE TABLE pt2 PARTITION OF pt FOR VALUES FROM (10) TO (20)",
            "CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.at := clock_timestamp(); RETURN NEW; END $$",
            "CREATE TRIGGER stamp BEFORE INSERT OR UPDATE ON pt2 FOR EACH ROW EXECUTE FUNCTION stamp()",
            "INSERT INTO pt SELECT generate_series(1, 12)",
            "UPDATE pt SET id = id + 6 WHERE id BETWEEN 8 AND 9",
            "TRUNCATE pt1",
        ],
        Equal,
    ),
    (
        "event triggers of one's own",
        &[
            "CREATE TABLE etseen (tag text, at timestamptz)",
            "CREATE FUNCTION et() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO etseen VALUES (TG_TAG, clock_timestamp()); END $$",
            "CREATE EVENT TRIGGER et ON ddl_command_end EXECUTE FUNCTION et()",
            "CREATE TABLE et1 (id int)",
            "DROP EVENT TRIGGER et",
        ],
        Equal,
    ),
    (
        "WITH d AS (DELETE ... RETURNING *) INSERT ... ON CONFLICT DO NOTHING",
        &[
            "CREATE TABLE w1 (id int, v int); CREATE TABLE w2 (k int PRIMARY KEY, v int)",
            "INSERT INTO w1 SELECT n % 3, n FROM generate_series(1, 30) n ORDER BY random()",
            "WITH d AS (DELETE FROM w1 RETURNING *) INSERT INTO w2 SELECT * FROM d ON CONFLICT DO NOTHING",
        ],
        Equal,
    ),
    (
        "WITH u AS (UPDATE ... FROM ...)",
        &[
            "CREATE TABLE u1 (id int PRIMARY KEY, v int); CREATE TABLE u2 (id int, v int)",
            "INSERT INTO u1 SELECT n FROM generate_series(1, 5) n; INSERT INTO u2 SELECT n % 5 + 1, n FROM generate_series(1, 50) n",
            "WITH u AS (UPDATE u1 SET v = u2.v FROM u2 WHERE u1.id = u2.id RETURNING u1.*) INSERT INTO u2 SELECT * FROM u",
        ],
        Equal,
    ),
    (
        "an aggregate of one's own that depends on the order, and one that writes",
        &[
            "CREATE TABLE ag (v int); CREATE TABLE agseen (v text)",
            "CREATE FUNCTION first_of(int, int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO agseen VALUES ($2 || ' ' || random()); RETURN coalesce($1, $2); END $$",
            "CREATE AGGREGATE first_one(int) (SFUNC = first_of, STYPE = int)",
            "INSERT INTO ag SELECT n FROM generate_series(1, 20) n ORDER BY random()",
            "INSERT INTO ag SELECT first_one(v) FROM ag",
        ],
        Equal,
    ),
    (
        "values that are equal and look different",
        &[
            "CREATE TABLE nu (v numeric); CREATE TABLE nu2 (v numeric, n int)",
            "INSERT INTO nu VALUES (1.0), (1.00), (1), (2.50), (2.5)",
            "INSERT INTO nu2 SELECT v, count(*) FROM nu GROUP BY v; INSERT INTO nu2 SELECT max(v) FROM nu; INSERT INTO nu2 SELECT DISTINCT v FROM nu",
            "UPDATE nu SET v = v + 1.000 WHERE v = 1; DELETE FROM nu WHERE v = 2.5",
        ],
        Equal,
    ),
    (
        "SQL's EXECUTE, and EXPLAIN ANALYZE of it",
        &[
            "CREATE TABLE ex (v float)",
            "PREPARE s1 AS INSERT INTO ex VALUES (random())",
            "EXECUTE s1",
            "EXPLAIN ANALYZE EXECUTE s1",
        ],
        Equal,
    ),
    (
        "functions named like built-in ones, IMMUTABLE ones that are not, and STABLE wrappers that write",
        &[
            "CREATE SCHEMA mine; CREATE TABLE fn (v text)",
            "CREATE FUNCTION mine.lower(text) RETURNS text LANGUAGE sql AS 'SELECT $1 || random()'",
            "CREATE FUNCTION im() RETURNS float IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN random(); END $$",
            "CREATE FUNCTION wr(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN INSERT INTO fn VALUES ($1 || random()); RETURN $1; END $$",
            "CREATE FUNCTION st(text) RETURNS text STABLE LANGUAGE sql AS 'SELECT wr($1)'",
            "SET search_path = mine, public, pg_catalog; INSERT INTO fn VALUES (lower('A'))",
            "RESET search_path",
            "INSERT INTO fn VALUES (im()::text)",
            "SELECT wr('x')",
        ],
        Equal,
    ),
    (
        "CHECKs of domains that write",
        &[
            "CREATE TABLE dseen (v text); CREATE FUNCTION dcheck(int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN INSERT INTO dseen VALUES ($1 || ' ' || random()); RETURN true; END $$",
            "CREATE DOMAIN dom AS int CHECK (dcheck(VALUE)); CREATE TABLE dt (id int PRIMARY KEY, v text)",
            "INSERT INTO dt VALUES (1, 5::dom::text)",
        ],
        Equal,
    ),
    (
        "the session: time zone, custom settings, who it is",
        &[
            "CREATE TABLE se (at timestamptz, v text, b bytea, i interval, m money)",
            "SET TimeZone = 'Asia/Tokyo'; SET timezone_abbreviations = 'Australia'; SET quote_all_identifiers = on; SET my.own = 'x'; SET DateStyle = 'German, DMY'; SET IntervalStyle = 'iso_8601'; SET bytea_output = 'escape'",
            "INSERT INTO se VALUES ('2026-01-02 03:04:05 EST', current_setting('my.own') || session_user || quote_ident('a'), '\\x00ff', '1 mon -3 days 04:05:06.789', 12.34)",
            "UPDATE se SET v = now()::text; RESET ALL",
        ],
        Equal,
    ),
    (
        "a definition between a plan and its execution",
        &[
            "CREATE TABLE pl (id int PRIMARY KEY, v int); PREPARE p1 AS INSERT INTO pl VALUES ($1, 1)",
            "ALTER TABLE pl ADD w int DEFAULT 7; ALTER TABLE pl ALTER v TYPE bigint",
            "EXECUTE p1(1); ALTER TABLE pl DROP w; EXECUTE p1(2); DEALLOCATE p1",
        ],
        Equal,
    ),
    (
        "DO and CALL, with transactions of their own",
        &[
            "CREATE TABLE dc1 (v float)",
            "DO $$ BEGIN FOR n IN 1..5 LOOP INSERT INTO dc1 VALUES (random()); COMMIT; END LOOP; END $$",
            "CREATE PROCEDURE pr() LANGUAGE plpgsql AS $$ BEGIN INSERT INTO dc1 VALUES (random()); COMMIT; INSERT INTO dc1 VALUES (random()); ROLLBACK; END $$",
            "CALL pr()",
        ],
        Equal,
    ),
    (
        "definitions in DO and functions, and several in one text",
        &[
            "DO $$ BEGIN CREATE TABLE do1 (id int PRIMARY KEY); EXECUTE 'CREATE INDEX do1_i ON do1 (id)'; INSERT INTO do1 VALUES (1); END $$",
            "BEGIN; CREATE TABLE mu1 (id serial PRIMARY KEY, v text); INSERT INTO mu1 (v) VALUES (random()); ALTER TABLE mu1 ADD w int; INSERT INTO mu1 (w) VALUES (3); COMMIT",
            "CREATE FUNCTION mk(name text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE format('CREATE TABLE %I (v int)', name); END $$",
            "SELECT mk('made1'), mk('made2')",
            "INSERT INTO made2 VALUES (1), (1); DELETE FROM made2 WHERE ctid = (SELECT min(ctid) FROM made2)",
        ],
        Equal,
    ),
    (
        "tables that are made with their rows",
        &[
            "CREATE TABLE ct1 AS SELECT n AS id, random() AS v FROM generate_series(1, 20) n",
            "SELECT id, v + random() AS v INTO ct2 FROM ct1",
            "CREATE TEMP TABLE tmp1 AS SELECT * FROM ct1; INSERT INTO ct2 SELECT * FROM tmp1; DROP TABLE tmp1",
            "CREATE TEMP TABLE tmp2 (id serial PRIMARY KEY); INSERT INTO tmp2 DEFAULT VALUES; ALTER TABLE tmp2 ADD v int",
            "DELETE FROM ct1 WHERE v < 0.5",
        ],
        Equal,
    ),
    (
        "identity and generated columns, and keys that are moved",
        &[
            "CREATE TABLE id1 (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) STORED)",
            "INSERT INTO id1 (a) SELECT generate_series(1, 5); INSERT INTO id1 (id, a) OVERRIDING SYSTEM VALUE VALUES (100, 1)",
            "UPDATE id1 SET a = a + 1; DELETE FROM id1 WHERE b = 4",
            "CREATE TABLE mv (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text); INSERT INTO mv SELECT n, n FROM generate_series(1, 9) n ORDER BY random()",
            "UPDATE mv SET id = id + 1",
        ],
        Equal,
    ),
    (
        "rows without a key, exactly one each, with long values that stay",
        &[
            "CREATE TABLE nk (v text, w text); ALTER TABLE nk ALTER w SET STORAGE EXTERNAL; INSERT INTO nk SELECT 'a', repeat('x', 9000) FROM generate_series(1, 4)",
            "UPDATE nk SET v = 'b' WHERE ctid = (SELECT min(ctid) FROM nk); DELETE FROM nk WHERE ctid = (SELECT max(ctid) FROM nk)",
            "CREATE TABLE lv (id int PRIMARY KEY, v int, w text); ALTER TABLE lv ALTER w SET STORAGE EXTERNAL; INSERT INTO lv VALUES (1, 1, repeat('y', 9000))",
            "UPDATE lv SET v = 2; UPDATE lv SET id = 7",
        ],
        Equal,
    ),
    (
        "types: enums, arrays of composites, ranges, JSON, time zones",
        &[
            "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE pair AS (a int, b text); CREATE TABLE ty (m mood PRIMARY KEY, p pair[], r tstzrange, j jsonb, f float8, t time with time zone, n numeric)",
            "INSERT INTO ty VALUES ('sad', ARRAY[(1, 'x,\"y'), NULL]::pair[], '[2026-01-01, infinity)', '{\"a\": [1, null]}', 'NaN', '03:04+05', 'Infinity'), ('ok', '{}', 'empty', 'null', -0.0, NULL, 1e-20)",
            "UPDATE ty SET f = f + 1; ALTER TYPE mood ADD VALUE 'happy'",
            "INSERT INTO ty (m) VALUES ('happy')",
        ],
        Equal,
    ),
    (
        "serializable transactions, savepoints, and what is rolled back",
        &[
            "CREATE TABLE sz (v float)",
            "BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO sz SELECT coalesce(max(v), 0) + random() FROM sz; SAVEPOINT s; INSERT INTO sz VALUES (1); ROLLBACK TO s; INSERT INTO sz VALUES (2); COMMIT",
            "BEGIN; INSERT INTO sz VALUES (9); ROLLBACK",
            "BEGIN ISOLATION LEVEL REPEATABLE READ; UPDATE sz SET v = v + random(); COMMIT",
        ],
        Equal,
    ),
    (
        "rules, views, row security and functions with SECURITY DEFINER",
        &[
            "CREATE TABLE ru (id int, v float); CREATE TABLE ru2 (id int, v float); CREATE RULE r AS ON INSERT TO ru DO ALSO INSERT INTO ru2 VALUES (NEW.id, random())",
            "INSERT INTO ru VALUES (1, random()); CREATE VIEW vi AS SELECT * FROM ru WHERE id > 0; INSERT INTO vi VALUES (2, random())",
            "ALTER TABLE ru2 ENABLE ROW LEVEL SECURITY; ALTER TABLE ru2 FORCE ROW LEVEL SECURITY; UPDATE ru2 SET v = 1 WHERE id = 2",
        ],
        Equal,
    ),
    (
        "MERGE, INSERT ... ON CONFLICT, COPY FROM a text",
        &[
            "CREATE TABLE me (id int PRIMARY KEY, v float); INSERT INTO me VALUES (1, 1)",
            "MERGE INTO me USING (SELECT generate_series(1, 3) AS id) s ON me.id = s.id WHEN MATCHED THEN UPDATE SET v = random() WHEN NOT MATCHED THEN INSERT VALUES (s.id, random())",
            "INSERT INTO me VALUES (2, random()), (7, random()) ON CONFLICT (id) DO UPDATE SET v = excluded.v + random()",
        ],
        Equal,
    ),
    (
        "materialized views, comments, privileges, schemas that are dropped with all they have",
        &[
            "CREATE TABLE mb (id int PRIMARY KEY); INSERT INTO mb VALUES (1); CREATE MATERIALIZED VIEW mw AS SELECT * FROM mb; INSERT INTO mb VALUES (2)",
            "REFRESH MATERIALIZED VIEW mw; COMMENT ON TABLE mb IS 'it''s'; GRANT SELECT ON mb TO PUBLIC",
            "CREATE SCHEMA gone; CREATE TABLE gone.t (id int); INSERT INTO gone.t VALUES (1)",
            "DROP SCHEMA gone CASCADE; DROP TABLE IF EXISTS nothing",
            "CREATE INDEX CONCURRENTLY mbi ON mb (id)",
            "DROP INDEX CONCURRENTLY mbi",
        ],
        Equal,
    ),
    (
        "a column whose default is evaluated",
        &[
            "CREATE TABLE nd (id int); INSERT INTO nd VALUES (1)",
            "ALTER TABLE nd ADD at timestamptz DEFAULT now()",
        ],
        Refused("default is evaluated"),
    ),
    (
        "a volatile default, and a type that is computed",
        &[
            "CREATE TABLE vd (id int); INSERT INTO vd VALUES (1)",
            "ALTER TABLE vd ADD v float DEFAULT random()",
        ],
        Refused("evaluates something for each row"),
    ),
    (
        "a type that is computed",
        &[
            "CREATE TABLE vt (id int); INSERT INTO vt VALUES (1)",
            "ALTER TABLE vt ALTER id TYPE float USING random()",
        ],
        Refused("evaluates something for each row"),
    ),
    (
        "hash partitions by an enum",
        &[
            "CREATE TYPE hue AS ENUM ('red', 'blue')",
            "CREATE TABLE hp (h hue) PARTITION BY HASH (h)",
        ],
        Refused("hash of an enum"),
    ),
    (
        "an unlogged table",
        &["CREATE UNLOGGED TABLE ul (id int)"],
        Refused("unlogged tables"),
    ),
    (
        "a foreign table as a leaf",
        &[
            "CREATE FOREIGN DATA WRAPPER no_one; CREATE SERVER elsewhere FOREIGN DATA WRAPPER no_one; CREATE TABLE fp (id int) PARTITION BY LIST (id)",
            "CREATE FOREIGN TABLE fp1 PARTITION OF fp FOR VALUES IN (1) SERVER elsewhere",
        ],
        Refused("foreign table"),
    ),
    (
        "triggers that fire where rows are replicated",
        &[
            "CREATE TABLE al (id int); CREATE FUNCTION al() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
            "CREATE TRIGGER al BEFORE INSERT ON al FOR EACH ROW EXECUTE FUNCTION al()",
            "ALTER TABLE al ENABLE ALWAYS TRIGGER al",
        ],
        Refused("fire when rows are replicated"),
    ),
];

#[test]
fn every_kind_of_transaction_is_equal_on_both_members_or_refused() {
    let site = Site::start("");
    go_through(&site, &site.connect(), &CASES.iter().collect::<Vec<_>>());
}

/// Cases that only a superuser may try.
const SUPERUSERS: &[&str] = &["EVENT TRIGGER", "FOREIGN DATA WRAPPER"];

/// The same as a role that may make schemas and tables, and nothing else.
#[test]
fn an_ordinary_role_defines_and_writes_the_same_on_both_members() {
    let site = Site::start("");
    let made = "CREATE ROLE app LOGIN; GRANT CREATE, TEMP ON DATABASE app TO app; GRANT CREATE ON SCHEMA public TO app";
    run(&site, &site.connect(), made);
    let conninfo = site.conninfo().replace("user=postgres", "user=app");
    let client = site.runtime.block_on(connect(&conninfo)).expect("let in");
    let is_for_all = |(_, texts, _): &&Case| {
        let needs = |text: &&str| SUPERUSERS.iter().any(|word| text.contains(word));
        !texts.iter().any(needs)
    };
    let cases: Vec<&Case> = CASES.iter().filter(is_for_all).collect();
    assert!(cases.len() > 20, "there are {}", cases.len());
    go_through(&site, &client, &cases);
}

/// Somebody who writes to the standby's member is found out at once, with the rows.
#[test]
fn a_write_to_the_standby_is_told_with_its_rows() {
    let site = Site::start("");
    let client = site.connect();
    run(
        &site,
        &client,
        "CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t SELECT n, 'a' FROM generate_series(1, 9) n",
    );
    site.must_be_equal();
    let standby = 1 - site.who_serves();
    let began = std::time::Instant::now();
    psql(
        &site.member(standby),
        "UPDATE t SET a = 'wrong' WHERE id = 5",
    )
    .expect("it is done");
    site.wait("the difference is found", || {
        site.status(standby)
            .is_some_and(|status| status.aside_since.is_some())
    });
    assert!(
        began.elapsed() < std::time::Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    let told = site.status(standby).and_then(|status| status.difference);
    let told = told.expect("it is told");
    for part in ["\"public\".\"t\"", "id = 5", "a = wrong"] {
        assert!(told.contains(part), "{told}");
    }
    // The primary goes on, and an operator decides.
    run(&site, &client, "DELETE FROM t WHERE id = 1");
    site.keep(1 - standby);
    site.settle();
    site.must_be_equal();
    assert_eq!(site.kept(standby).len(), 1);
}

/// A transaction that is longer than anything is logged at once, in pieces; and a value that fills one alone.
#[test]
fn a_long_transaction_has_no_limit() {
    let site = Site::start("");
    let client = site.connect();
    run(
        &site,
        &client,
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
    );
    run(
        &site,
        &client,
        "INSERT INTO t SELECT n, repeat(md5(n::text), 30) FROM generate_series(1, 40000) n",
    );
    run(
        &site,
        &client,
        "INSERT INTO t VALUES (0, repeat('x', 5000000)); UPDATE t SET a = 'b' WHERE id % 2 = 0",
    );
    let verdict = site.must_be_equal();
    assert_eq!(verdict.rows, 40001);
}

/// A commit is not told, and nobody sees it, before the log has it; whoever cancels it then changes nothing.
#[test]
fn a_commit_waits_for_the_log_and_cannot_be_cancelled_then() {
    let site = Site::start("");
    let client = site.connect();
    run(&site, &client, "CREATE TABLE t (id int PRIMARY KEY)");
    site.must_be_equal();
    site.hold_log(true);
    let cancel = client.cancel_token();
    let inserting = site
        .runtime
        .spawn(async move { client.batch_execute("INSERT INTO t VALUES (1)").await });
    let member = site.member(site.who_serves());
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    site.wait("the commit waits", || {
        psql(&member, waits).as_deref() == Ok("1")
    });
    site.runtime
        .block_on(cancel.cancel_query(tokio_postgres::NoTls))
        .expect("it is heard");
    std::thread::sleep(std::time::Duration::from_millis(300));
    if inserting.is_finished() {
        panic!("{:?}", site.runtime.block_on(inserting));
    }
    assert_eq!(psql(&member, "SELECT count(*) FROM t").as_deref(), Ok("0"));
    site.hold_log(false);
    let done = site.runtime.block_on(inserting).expect("it ends");
    done.expect("it has committed");
    assert_eq!(
        value(&site, &site.connect(), "SELECT count(*) FROM t").as_deref(),
        Some("1")
    );
    site.must_be_equal();
}
