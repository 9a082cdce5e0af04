//! The acts: statements for the active, and what is asked afterwards.

/// A kind of change.
pub struct Act {
    /// What it is about.
    pub name: &'static str,
    /// Statements for the active, one after the other, each committed by itself.
    pub changes: &'static [&'static str],
    /// Asked of the active, the standby, and the new active, by index where there is one: all must say
    /// the same line.
    pub question: &'static str,
    /// The database asked, if not `postgres`.
    pub database: Option<&'static str>,
    /// What the new active says instead, where a crash takes something away.
    pub after: Option<&'static str>,
    /// True if a standby can be asked.
    pub on_standby: bool,
    /// Statements for the new active: it must be able to go on.
    pub goes_on: &'static [&'static str],
}

const PLAIN: Act = Act {
    name: "",
    changes: &[],
    question: "",
    database: None,
    after: None,
    on_standby: true,
    goes_on: &[],
};

pub const ACTS: &[Act] = &[
    // H5: pages copied on the standby are those of the moment, not later ones of the source.
    Act {
        name: "a database copied by files, whose source goes on",
        changes: &[
            "CREATE TABLE source_only (n int)",
            "CREATE DATABASE by_files TEMPLATE theatre_source STRATEGY FILE_COPY",
            "CHECKPOINT",
        ],
        question: "SELECT count(*) || ' ' || sum(n) FROM kept WHERE n > 0",
        database: Some("by_files"),
        goes_on: &["INSERT INTO kept SELECT generate_series(9001, 9100)", "VACUUM kept"],
        ..PLAIN
    },
    Act {
        name: "a database copied by log",
        changes: &["CREATE DATABASE by_log TEMPLATE theatre_source STRATEGY WAL_LOG"],
        question: "SELECT count(*) || ' ' || sum(n) FROM kept WHERE n > 0",
        database: Some("by_log"),
        goes_on: &["INSERT INTO kept SELECT generate_series(9001, 9100)", "VACUUM kept"],
        ..PLAIN
    },
    Act {
        name: "tables rewritten whole",
        changes: &[
            "CREATE TABLE rewritten AS SELECT g AS id, md5(g::text) AS word FROM generate_series(1, 20000) g",
            "ALTER TABLE rewritten ADD PRIMARY KEY (id)",
            "CREATE INDEX rewritten_word ON rewritten (word)",
            "DELETE FROM rewritten WHERE id % 3 = 0",
            "VACUUM FULL rewritten",
            "UPDATE rewritten SET word = word || 'x' WHERE id % 5 = 0",
            "CLUSTER rewritten USING rewritten_word",
            "CHECKPOINT",
            "REINDEX TABLE CONCURRENTLY rewritten",
            "ALTER TABLE rewritten ALTER COLUMN id TYPE bigint",
            "REINDEX INDEX CONCURRENTLY rewritten_word",
            "DELETE FROM rewritten WHERE id % 7 = 0",
            "VACUUM (ANALYZE) rewritten",
        ],
        question: "SELECT count(*) || ' ' || sum(id) || ' ' || md5(string_agg(word, '' ORDER BY word))
                   FROM rewritten WHERE word > ''",
        goes_on: &["VACUUM FULL rewritten", "REINDEX TABLE CONCURRENTLY rewritten"],
        ..PLAIN
    },
    // H6, N6: the standby never has the pages, and the names must not be in the way.
    Act {
        name: "unlogged tables",
        changes: &[
            "CREATE UNLOGGED TABLE forgotten (id serial PRIMARY KEY, word text)",
            "INSERT INTO forgotten (word) SELECT md5(g::text) FROM generate_series(1, 5000) g",
            "VACUUM forgotten",
            "CHECKPOINT",
            "UPDATE forgotten SET word = 'y' WHERE id % 2 = 0",
            "VACUUM forgotten",
        ],
        question: "SELECT count(*)::text FROM forgotten",
        after: Some("0"),
        on_standby: false,
        goes_on: &[
            "INSERT INTO forgotten (word) SELECT 'z' FROM generate_series(1, 3000)",
            "VACUUM forgotten",
            "ALTER TABLE forgotten SET LOGGED",
        ],
        ..PLAIN
    },
    Act {
        name: "large objects",
        changes: &[
            "CREATE TABLE objects AS SELECT n, lo_from_bytea(0, convert_to(repeat(md5(n::text), 2000), 'UTF8')) AS object
             FROM generate_series(1, 20) n",
            "SELECT lo_put(object, 100000, '\\xdeadbeef') FROM objects WHERE n % 2 = 0",
            "SELECT lo_unlink(object) FROM objects WHERE n % 5 = 0",
            "DELETE FROM objects WHERE n % 5 = 0",
        ],
        question: "SELECT count(*) || ' ' || md5(string_agg(md5(lo_get(object)), '' ORDER BY n)) FROM objects",
        goes_on: &["SELECT lo_put(object, 0, '\\x00') FROM objects"],
        ..PLAIN
    },
    Act {
        name: "tables emptied again and again",
        changes: &[
            "CREATE TABLE emptied (n int PRIMARY KEY, word text)",
            "DO $$ BEGIN FOR i IN 1..30 LOOP
                 INSERT INTO emptied SELECT g, repeat('w', 100) FROM generate_series(1, 400) g;
                 COMMIT;
                 TRUNCATE emptied;
                 IF i % 10 = 0 THEN INSERT INTO emptied VALUES (1, 'only'); END IF;
                 COMMIT;
                 TRUNCATE emptied;
             END LOOP; END $$",
            "CHECKPOINT",
            "TRUNCATE emptied",
            "INSERT INTO emptied SELECT g, 'kept' FROM generate_series(1, 77) g",
        ],
        question: "SELECT count(*) || ' ' || sum(n) FROM emptied WHERE n > 0",
        goes_on: &["TRUNCATE emptied"],
        ..PLAIN
    },
    // A table cut by vacuum and grown again, around checkpoints.
    Act {
        name: "tables cut short and grown again",
        changes: &[
            "CREATE TABLE cut (n int PRIMARY KEY, word text)",
            "INSERT INTO cut SELECT g, repeat('a', 300) FROM generate_series(1, 8000) g",
            "CHECKPOINT",
            "DELETE FROM cut WHERE n > 1000",
            "VACUUM cut",
            "INSERT INTO cut SELECT g, repeat('b', 300) FROM generate_series(1001, 4000) g",
            "CHECKPOINT",
            "DELETE FROM cut WHERE n > 500",
            "VACUUM cut",
            "INSERT INTO cut SELECT g, repeat('c', 300) FROM generate_series(501, 2500) g",
        ],
        question: "SELECT count(*) || ' ' || sum(n) || ' ' || md5(string_agg(word, '' ORDER BY n)) FROM cut",
        goes_on: &["DELETE FROM cut", "VACUUM cut"],
        ..PLAIN
    },
    Act {
        name: "hundreds of subtransactions",
        changes: &[
            "CREATE TABLE nested (n int)",
            "DO $$ BEGIN FOR i IN 1..300 LOOP
                 BEGIN
                     INSERT INTO nested VALUES (i);
                     IF i % 4 = 0 THEN RAISE EXCEPTION 'undo'; END IF;
                 EXCEPTION WHEN raise_exception THEN NULL;
                 END;
             END LOOP; END $$",
        ],
        question: "SELECT count(*) || ' ' || sum(n) FROM nested",
        ..PLAIN
    },
    Act {
        name: "every kind of index, changed and vacuumed",
        changes: &[
            "CREATE TABLE kinds (id int PRIMARY KEY, words text[], spot point, area int4range, word text, at int)",
            "CREATE INDEX kinds_gin ON kinds USING gin (words)",
            "CREATE INDEX kinds_gist ON kinds USING gist (area)",
            "CREATE INDEX kinds_spgist ON kinds USING spgist (spot)",
            "CREATE INDEX kinds_hash ON kinds USING hash (word)",
            "CREATE INDEX kinds_brin ON kinds USING brin (at) WITH (pages_per_range = 4)",
            "CREATE PROCEDURE more_kinds(first int, last int) LANGUAGE sql AS $$
                 INSERT INTO kinds SELECT g, ARRAY['w' || g % 50, 'v' || g % 7], point(g % 100, g / 100),
                     int4range(g, g + 10), md5((g % 500)::text), g FROM generate_series(first, last) g $$",
            "CALL more_kinds(1, 6000)",
            "CHECKPOINT",
            "DELETE FROM kinds WHERE id % 3 = 0",
            "VACUUM kinds",
            "CALL more_kinds(6001, 9000)",
            "UPDATE kinds SET words = words || 'u'::text, word = md5(word) WHERE id % 10 = 1",
            "CHECKPOINT",
            "DELETE FROM kinds WHERE id BETWEEN 2000 AND 4000",
            "VACUUM kinds",
            "SELECT brin_summarize_new_values('kinds_brin')",
            "CALL more_kinds(9001, 10000)",
            "SELECT gin_clean_pending_list('kinds_gin')",
        ],
        question: "SELECT (SELECT count(*) || ':' || sum(id) FROM kinds WHERE words @> ARRAY['w7'])
                     || ' ' || (SELECT count(*) || ':' || sum(id) FROM kinds WHERE area && int4range(5000, 5100))
                     || ' ' || (SELECT count(*) || ':' || sum(id) FROM kinds WHERE spot <@ box '(10,10),(30,60)')
                     || ' ' || (SELECT count(*) || ':' || sum(id) FROM kinds WHERE word = md5('7'))
                     || ' ' || (SELECT count(*) || ':' || sum(id) FROM kinds WHERE at BETWEEN 100 AND 300)
                     || ' ' || (SELECT count(*) || ':' || sum(id) FROM kinds WHERE id > 0)",
        goes_on: &["CALL more_kinds(10001, 11000)", "VACUUM kinds", "REINDEX TABLE kinds"],
        ..PLAIN
    },
    // H1: bits of the visibility map that a delete clears do not move the page's position in the log.
    Act {
        name: "rows deleted from pages that were all-visible",
        changes: &[
            "CREATE TABLE seen (n int PRIMARY KEY)",
            "INSERT INTO seen SELECT generate_series(1, 10000)",
            "VACUUM (FREEZE) seen",
            "CHECKPOINT",
            "DELETE FROM seen WHERE n % 2 = 0",
        ],
        question: "SELECT count(*)::text FROM seen WHERE n > 0",
        goes_on: &["DELETE FROM seen WHERE n % 3 = 0", "VACUUM seen"],
        ..PLAIN
    },
    // H8: what decoding has on disk goes with its slots. The one that was not dropped is left after a takeover, and works.
    Act {
        name: "logical slots",
        changes: &[
            "CREATE TABLE decoded (n int)",
            "SELECT pg_create_logical_replication_slot('dropped', 'test_decoding')",
            "SELECT pg_create_logical_replication_slot('left', 'test_decoding')",
            "INSERT INTO decoded SELECT generate_series(1, 1000)",
            "CHECKPOINT",
            "SELECT count(*) FROM pg_logical_slot_get_changes('dropped', NULL, NULL)",
            "SELECT pg_drop_replication_slot('dropped')",
            "CHECKPOINT",
        ],
        question: "SELECT string_agg(slot_name, ' ') FROM pg_replication_slots",
        on_standby: false,
        goes_on: &[
            "SELECT pg_create_logical_replication_slot('made', 'test_decoding')",
            "SELECT pg_drop_replication_slot('made')",
            "INSERT INTO decoded VALUES (1)",
            "SELECT count(*) FROM pg_logical_slot_get_changes('left', NULL, NULL)",
            "SELECT pg_drop_replication_slot('left')",
        ],
        ..PLAIN
    },
];
