//! Definitions of all kinds: the members are equal afterwards, or it was refused; whatever nobody is told of is found.

use std::sync::Arc;
use std::time::Duration;

use crate::cases::{Case, Wants::*, go_through};
use crate::server::psql;
use crate::site::{Site, run, value};

const CASES: &[Case] = &[
    (
        "roles, memberships and settings of roles",
        &[
            "CREATE ROLE r1 LOGIN PASSWORD 'secret' VALID UNTIL '2030-01-01'; CREATE ROLE r2 NOINHERIT CREATEROLE",
            "GRANT r1 TO r2 WITH ADMIN OPTION; GRANT pg_monitor TO r2",
            "ALTER ROLE r1 SET search_path = a, \"B c\"; ALTER ROLE r2 IN DATABASE app SET work_mem = '8MB'",
            "ALTER ROLE r1 RENAME TO r3; ALTER ROLE r3 PASSWORD 'other' CONNECTION LIMIT 7; COMMENT ON ROLE r3 IS 'it''s'",
            "BEGIN; CREATE ROLE r4; ROLLBACK",
            "REVOKE ADMIN OPTION FOR r3 FROM r2; CREATE ROLE r5; DROP ROLE r5",
        ],
        Equal,
    ),
    (
        "settings, privileges, the owner and the comment of the database",
        &[
            "ALTER DATABASE app SET my.setting = 'a b'; ALTER DATABASE app CONNECTION LIMIT 150; COMMENT ON DATABASE app IS 'x'",
            "CREATE ROLE dbo; GRANT CREATE ON DATABASE app TO dbo WITH GRANT OPTION; ALTER DATABASE app OWNER TO dbo",
            "ALTER DATABASE app OWNER TO postgres; ALTER DATABASE app RESET my.setting",
        ],
        Equal,
    ),
    (
        "what belongs to a role",
        &[
            "CREATE ROLE o1; CREATE ROLE o2; CREATE TABLE ow (id int PRIMARY KEY); ALTER TABLE ow OWNER TO o1; GRANT SELECT ON ow TO o2",
            "REASSIGN OWNED BY o1 TO o2; ALTER DEFAULT PRIVILEGES FOR ROLE o2 GRANT SELECT ON TABLES TO o1",
            "DROP OWNED BY o1",
        ],
        Equal,
    ),
    (
        "event triggers",
        &[
            "CREATE TABLE ets (tag text); CREATE FUNCTION etf() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO ets VALUES (TG_TAG); END $$",
            "CREATE EVENT TRIGGER et1 ON ddl_command_end EXECUTE FUNCTION etf(); CREATE TABLE et2 (id int)",
            "ALTER EVENT TRIGGER et1 DISABLE; COMMENT ON EVENT TRIGGER et1 IS 'off'; CREATE TABLE et3 (id int)",
            "ALTER EVENT TRIGGER et1 ENABLE; CREATE TABLE et4 (id int); DROP EVENT TRIGGER et1",
        ],
        Equal,
    ),
    (
        "event triggers that fire twice",
        &[
            "CREATE FUNCTION etg() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN END $$; CREATE EVENT TRIGGER et5 ON sql_drop EXECUTE FUNCTION etg()",
            "ALTER EVENT TRIGGER et5 ENABLE ALWAYS",
        ],
        Refused("fire when rows are replicated"),
    ),
    (
        "a table like a temporary one",
        &[
            "CREATE TEMP TABLE tmp_a (id int, a text); CREATE TEMP TABLE tmp_b (LIKE tmp_a)",
            "CREATE TABLE like_tmp (LIKE tmp_a)",
        ],
        Refused("names something temporary"),
    ),
    (
        "a table made of a temporary one",
        &["CREATE TABLE of_tmp AS SELECT * FROM tmp_a"],
        Refused("names something temporary"),
    ),
    (
        "a table that is sorted",
        &[
            "DROP TABLE IF EXISTS tmp_a, tmp_b; CREATE TABLE clu (id int PRIMARY KEY); INSERT INTO clu VALUES (2), (1)",
            "CLUSTER clu USING clu_pkey",
            "ALTER TABLE clu ADD COLUMN tmp_a int",
        ],
        Equal,
    ),
    (
        "large objects",
        &["SELECT lo_create(0)"],
        Refused("large objects"),
    ),
    (
        "materialized views",
        &[
            "CREATE TABLE mt (id int PRIMARY KEY, v numeric); INSERT INTO mt SELECT n, n / 7.0 FROM generate_series(1, 50) n",
            "CREATE MATERIALIZED VIEW mv1 AS SELECT id % 5 AS k, sum(v) AS v FROM mt GROUP BY 1; CREATE UNIQUE INDEX ON mv1 (k)",
            "INSERT INTO mt VALUES (100, 1); REFRESH MATERIALIZED VIEW mv1; DELETE FROM mt WHERE id < 9",
            "REFRESH MATERIALIZED VIEW CONCURRENTLY mv1",
            "REFRESH MATERIALIZED VIEW mv1 WITH NO DATA",
        ],
        Equal,
    ),
    (
        "a materialized view of the time",
        &[
            "CREATE VIEW mv2 AS SELECT current_date AS d",
            "CREATE MATERIALIZED VIEW mv3 AS SELECT * FROM mv2",
        ],
        Refused("materialized view of what is evaluated"),
    ),
    (
        "a materialized view that is refreshed with random values",
        &[
            "CREATE MATERIALIZED VIEW mv4 AS SELECT random() WITH NO DATA",
            "REFRESH MATERIALIZED VIEW mv4",
        ],
        Refused("materialized view of what is evaluated"),
    ),
    (
        "a table that becomes unlogged",
        &["CREATE TABLE ul1 (id int)", "ALTER TABLE ul1 SET UNLOGGED"],
        Refused("evaluates something for each row"),
    ),
    (
        "an unlogged table that is made with its rows",
        &["CREATE UNLOGGED TABLE ul2 AS SELECT 1"],
        Refused("unlogged tables"),
    ),
    (
        "types that are changed, and rows with them",
        &[
            "CREATE TABLE ct (id int PRIMARY KEY, f float4, b bytea, t timestamptz, i interval); INSERT INTO ct SELECT n, n / 3.0, '\\x00ff', '2026-01-02 03:04:05+06', '1 mon' FROM generate_series(1, 9) n",
            "SET extra_float_digits = -3; SET bytea_output = 'escape'; SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German'; SET IntervalStyle = 'iso_8601'",
            "ALTER TABLE ct ALTER f TYPE text, ALTER b TYPE text, ALTER t TYPE text, ALTER i TYPE text",
            "RESET ALL; ALTER TABLE ct ALTER id TYPE bigint; UPDATE ct SET f = f || 'x'",
        ],
        Equal,
    ),
    (
        "a type that is changed by a cast of one's own",
        &[
            "CREATE TYPE pt AS (a float); CREATE FUNCTION topt(int) RETURNS pt LANGUAGE plpgsql AS $$ BEGIN RETURN ROW(random())::pt; END $$",
            "CREATE CAST (int AS pt) WITH FUNCTION topt(int) AS ASSIGNMENT; CREATE TABLE cc (id int PRIMARY KEY, v int); INSERT INTO cc VALUES (1, 1)",
            "ALTER TABLE cc ALTER v TYPE pt",
        ],
        Refused("evaluates something for each row"),
    ),
    (
        "a default that is another one at once",
        &[
            "CREATE TABLE dd (id int); INSERT INTO dd VALUES (1)",
            "ALTER TABLE dd ADD c timestamptz DEFAULT now(), ALTER c SET DEFAULT '2026-01-01'",
        ],
        Refused("default is changed by the same statement"),
    ),
    (
        "a domain's default that is evaluated",
        &[
            "CREATE DOMAIN dnow AS timestamptz DEFAULT now(); CREATE TABLE de (id int); INSERT INTO de VALUES (1)",
            "ALTER TABLE de ADD c dnow",
        ],
        Refused("evaluate"),
    ),
    (
        "tables without a replica identity",
        &[
            "CREATE TABLE ri (id int PRIMARY KEY, v int); ALTER TABLE ri REPLICA IDENTITY NOTHING; INSERT INTO ri VALUES (1, 1), (2, 2)",
            "UPDATE ri SET v = 3 WHERE id = 1; DELETE FROM ri WHERE id = 2; ALTER TABLE ri DROP CONSTRAINT ri_pkey; UPDATE ri SET id = 5",
            "CREATE TABLE ri2 (id int NOT NULL UNIQUE, v text); ALTER TABLE ri2 REPLICA IDENTITY USING INDEX ri2_id_key; INSERT INTO ri2 VALUES (1, 'a'); UPDATE ri2 SET id = 2",
        ],
        Equal,
    ),
    (
        "generated and identity columns that are changed",
        &[
            "CREATE TABLE gi (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a + 1) STORED); INSERT INTO gi (a) VALUES (1), (2)",
            "ALTER TABLE gi ALTER id SET GENERATED ALWAYS SET INCREMENT 5 RESTART WITH 100; INSERT INTO gi (a) VALUES (3)",
            "ALTER TABLE gi ALTER b DROP EXPRESSION; UPDATE gi SET b = 9; ALTER TABLE gi ALTER id DROP IDENTITY",
        ],
        Equal,
    ),
    (
        "domains and enums that are changed",
        &[
            "CREATE TYPE em AS ENUM ('b', 'd'); CREATE DOMAIN ed AS int; CREATE TABLE em1 (id em PRIMARY KEY, v ed); INSERT INTO em1 VALUES ('b', 1)",
            "ALTER TYPE em ADD VALUE 'a' BEFORE 'b'",
            "ALTER TYPE em ADD VALUE 'c' AFTER 'b'",
            "ALTER TYPE em RENAME VALUE 'd' TO 'e'; INSERT INTO em1 VALUES ('e', 2), ('a', 3); ALTER DOMAIN ed ADD CONSTRAINT pos CHECK (VALUE > 0); ALTER DOMAIN ed SET DEFAULT 4",
        ],
        Equal,
    ),
    (
        "hash partitions by a domain over an enum",
        &[
            "CREATE TYPE eh AS ENUM ('a'); CREATE DOMAIN ehd AS eh",
            "CREATE TABLE hd (h ehd) PARTITION BY HASH (h)",
        ],
        Refused("hash of an enum"),
    ),
    (
        "sequences that belong to no table",
        &[
            "CREATE SEQUENCE sq; CREATE SEQUENCE sd INCREMENT -3; SELECT nextval('sq'), nextval('sd'), nextval('sd')",
            "SELECT nextval('sq') FROM generate_series(1, 200)",
            "SELECT setval('sq', 5000); SELECT nextval('sd') FROM generate_series(1, 90)",
            "ALTER SEQUENCE sq RESTART WITH 10 INCREMENT 2; SELECT nextval('sq')",
        ],
        Equal,
    ),
    (
        "several statements in one text, some of which do nothing elsewhere",
        &[
            "CREATE TABLE s1 (id int); CREATE TABLE s2 (id int)",
            "DROP TABLE IF EXISTS s0; DROP TABLE IF EXISTS s1; CREATE TEMP TABLE s3 (id int); CREATE TABLE s4 (id int); DROP TABLE s3; GRANT TEMP ON DATABASE app TO PUBLIC; GRANT SELECT ON s4 TO PUBLIC",
            "CREATE TABLE IF NOT EXISTS s4 (id int); CREATE TABLE IF NOT EXISTS s5 (id int); DROP TABLE s2, s5",
        ],
        Equal,
    ),
    (
        "statements that are undone within a text",
        &["BEGIN; SAVEPOINT a; CREATE TABLE un1 (); ROLLBACK TO a; CREATE TABLE un2 (); COMMIT"],
        Refused("ROLLBACK TO"),
    ),
    (
        "definitions of two transactions in one text",
        &["BEGIN; CREATE TABLE tx1 (); COMMIT; CREATE TABLE tx2 ()"],
        Refused("several transactions"),
    ),
    (
        "definitions of one transaction in one text",
        &["BEGIN; CREATE TABLE tx3 (); CREATE TABLE tx4 (); COMMIT; SELECT 1"],
        Equal,
    ),
    (
        "a rule that fires twice",
        &[
            "CREATE TABLE rl (id int PRIMARY KEY); CREATE RULE twice AS ON INSERT TO rl DO ALSO SELECT 1",
            "ALTER TABLE rl ENABLE ALWAYS RULE twice",
        ],
        Refused("fire when rows are replicated"),
    ),
    (
        "a partition that is detached concurrently",
        &[
            "CREATE TABLE dc (id int, v int) PARTITION BY RANGE (id); CREATE TABLE dc1 PARTITION OF dc FOR VALUES FROM (0) TO (9)",
            "INSERT INTO dc VALUES (1, 1)",
            "ALTER TABLE dc DETACH PARTITION dc1 CONCURRENTLY",
        ],
        Refused("detached CONCURRENTLY"),
    ),
    (
        "an index on partitions, and one that is attached to it",
        &[
            "CREATE TABLE ip (id int, v int) PARTITION BY RANGE (id); CREATE TABLE ip1 PARTITION OF ip FOR VALUES FROM (0) TO (9)",
            "CREATE INDEX ipv ON ONLY ip (v)",
            "CREATE INDEX CONCURRENTLY ip1v ON ip1 (v)",
            "ALTER INDEX ipv ATTACH PARTITION ip1v",
        ],
        Equal,
    ),
    (
        "what the mirror hears by",
        &["ALTER PUBLICATION understudy_mirror SET (publish = 'insert')"],
        Refused("its own publication"),
    ),
    (
        "what definitions are noted by",
        &["ALTER EVENT TRIGGER understudy_mirror_end DISABLE"],
        Refused("its own publication"),
    ),
    (
        "a lock of a catalog",
        &["ROLLBACK", "LOCK pg_class"],
        Refused("lock of a system catalog"),
    ),
    (
        "VACUUM FULL of all",
        &["VACUUM FULL"],
        Refused("VACUUM FULL"),
    ),
    (
        "CLUSTER of a catalog",
        &["CLUSTER pg_class USING pg_class_oid_index"],
        Refused("CLUSTER"),
    ),
];

// hazard: MIRROR-66
#[test]
fn definitions_of_all_kinds_are_equal_on_both_members_or_refused() {
    let site = Site::start("");
    go_through(&site, &site.connect(), &CASES.iter().collect::<Vec<_>>());
}

/// Copied members have the same definitions as if they had executed all of them.
#[test]
fn a_copy_has_the_same_definitions() {
    let mut site = Site::start("");
    let client = site.connect();
    let all = CASES.iter().chain(crate::rows::CASES);
    let equal = all.filter(|(_, _, wants)| matches!(wants, Equal));
    for text in equal.flat_map(|(_, texts, _)| *texts) {
        run(&site, &client, text);
    }
    let before = site.must_be_equal();
    let standby = 1 - site.who_serves();
    site.kill_manager(standby);
    let dropped = "SELECT pg_drop_replication_slot('understudy_mirror')";
    site.wait("the slot is dropped", || {
        psql(&site.member(standby), dropped).is_ok()
    });
    site.manage(standby);
    site.settle();
    assert_eq!(site.kept(standby).len(), 1);
    assert_eq!(site.must_be_equal().rows, before.rows);
    run(&site, &site.connect(), "CREATE TABLE looked_at (id int)");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(
        site.status(standby).and_then(|status| status.difference),
        None
    );
    site.must_be_equal();
}

/// Commands of several transactions, each of which others see before the next, and before the command is logged.
const STEPWISE: &[&str] = &[
    "CREATE INDEX CONCURRENTLY ti ON t (v)",
    "REINDEX INDEX CONCURRENTLY ti",
    "REINDEX TABLE CONCURRENTLY t",
    "DROP INDEX CONCURRENTLY ti",
    // It fails, and leaves an index that is none.
    "CREATE UNIQUE INDEX CONCURRENTLY tu ON t (v)",
    "DROP INDEX CONCURRENTLY tu",
    "CREATE UNIQUE INDEX CONCURRENTLY tw ON t (v)",
    "DROP TABLE t",
];

/// Definitions that are read between the transactions of such a command are no difference: an index was visible that the log did not have.
// hazard: MIRROR-77
#[test]
fn a_definition_of_several_transactions_is_compared_when_it_is_whole() {
    let site = Site::start("");
    let defining = Arc::new(site.connect());
    let (holding, other) = (site.connect(), site.connect());
    run(
        &site,
        &other,
        "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (-1, 0), (-2, 0); CREATE TABLE other ()",
    );
    let is_no_difference = |text: &str| {
        for _ in 0..4 {
            run(
                &site,
                &other,
                &format!("COMMENT ON TABLE other IS $${text}$$"),
            );
            std::thread::sleep(Duration::from_millis(400));
            let status = site.status(1 - site.who_serves()).expect("it runs");
            assert_eq!(status.difference, None, "{text}");
        }
    };
    for (at, text) in STEPWISE.iter().enumerate() {
        run(&site, &holding, "BEGIN");
        let row = format!("INSERT INTO t VALUES ({at}, {at})");
        run(&site, &holding, &row);
        let definer = Arc::clone(&defining);
        let defined = site
            .runtime
            .spawn(async move { definer.batch_execute(text).await });
        std::thread::sleep(Duration::from_millis(300));
        is_no_difference(text);
        assert!(!defined.is_finished(), "{text} did not wait");
        run(&site, &holding, "COMMIT");
        let defined = site.runtime.block_on(defined).expect("no panic");
        assert_eq!(
            defined.is_err(),
            text.contains("UNIQUE"),
            "{text}: {defined:?}"
        );
        is_no_difference(text);
    }
    site.must_be_equal();
}

/// The same by the extended protocol, within a transaction; and no password is written down.
#[test]
fn a_role_is_made_by_a_prepared_statement_and_its_password_is_not_logged() {
    let site = Site::start("");
    let client = site.connect();
    let texts = [
        "BEGIN",
        "CREATE ROLE prepared LOGIN PASSWORD 'very secret'",
        "GRANT pg_monitor TO prepared",
        "CREATE SCHEMA AUTHORIZATION prepared",
        "COMMIT",
        "ALTER ROLE prepared ENCRYPTED PASSWORD 'very secret'",
    ];
    for text in texts {
        let done = site.runtime.block_on(client.execute(text, &[]));
        done.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    }
    site.must_be_equal();
    let told = "SELECT count(*) FROM understudy_mirror.definitions WHERE said LIKE '%secret%'";
    assert_eq!(value(&site, &client, told).as_deref(), Some("0"));
    let refused = site.runtime.block_on(client.execute("LOCK pg_class", &[]));
    let code = refused.expect_err("it is refused").code().cloned();
    assert_eq!(code.as_ref().map(|code| code.code()), Some("0A000"));
    run(&site, &client, "CREATE TABLE goes_on (id int)");
    site.must_be_equal();
}

/// Ways to change a member that no event trigger is told of, and what is said then.
const UNSEEN: &[(&str, &str)] = &[
    ("DO $$ BEGIN CREATE ROLE unseen; END $$", "role unseen"),
    (
        "DO $$ BEGIN PERFORM lo_create(0); END $$",
        "large objects all",
    ),
    (
        "UPDATE pg_proc SET provolatile = 's' WHERE proname = 'seen'",
        "function public.seen()",
    ),
];

/// A standby that lacks what nobody was told of is set aside, and it is named.
#[test]
fn a_change_that_no_event_trigger_is_told_of_is_found_and_named() {
    for (text, wanted) in UNSEEN {
        let site = Site::start("");
        let client = site.connect();
        run(
            &site,
            &client,
            "CREATE FUNCTION seen() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        );
        site.must_be_equal();
        run(&site, &client, text);
        run(&site, &client, "CREATE TABLE looked_at (id int)");
        is_aside(&site, wanted);
    }
}

/// The same of somebody who changes the standby's roles.
#[test]
fn a_role_that_only_the_standby_has_is_found_and_named() {
    let site = Site::start("");
    let client = site.connect();
    site.must_be_equal();
    let member = site.member(1 - site.who_serves());
    psql(
        &member,
        "SET synchronous_commit = local; CREATE ROLE mine SUPERUSER",
    )
    .expect("it is made");
    run(&site, &client, "CREATE TABLE looked_at (id int)");
    is_aside(&site, "role mine (only here)");
}

#[track_caller]
fn is_aside(site: &Site, wanted: &str) {
    let standby = 1 - site.who_serves();
    site.wait("the difference is found", || {
        site.status(standby)
            .is_some_and(|status| status.aside_since.is_some())
    });
    let told = site.status(standby).and_then(|status| status.difference);
    let told = told.expect("it is told");
    assert!(told.contains(wanted), "{told}");
}
