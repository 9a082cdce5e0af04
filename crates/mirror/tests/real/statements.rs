//! Statements of all kinds, and what both members have of them.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::site::Site;

const SCHEMA: &str = "
    CREATE TABLE t (id int PRIMARY KEY, a text, b int);
    CREATE TABLE s (id serial PRIMARY KEY, a text DEFAULT 'new', at timestamptz DEFAULT now(), u uuid DEFAULT gen_random_uuid());
    CREATE TABLE i (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, r float8 DEFAULT random());
    CREATE TABLE log (a text, b int, at timestamptz);
    CREATE TABLE child (id int PRIMARY KEY, of int REFERENCES t ON DELETE CASCADE);
    CREATE TYPE mood AS ENUM ('well', 'ill');
    CREATE TABLE m (id int PRIMARY KEY, mood mood, n numeric, d date, j jsonb, bs bytea, xs int[])";

fn run(site: &Site, client: &Client, texts: &[&str]) {
    for text in texts {
        let done = site.runtime.block_on(client.batch_execute(text));
        done.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    }
}

#[test]
fn what_is_written_is_on_both_members() {
    let site = Site::start("");
    let client = site.connect();
    run(&site, &client, &[SCHEMA]);
    run(
        &site,
        &client,
        &[
            "INSERT INTO t SELECT n, 'a' || n, n FROM generate_series(1, 100) n",
            "INSERT INTO s (a) VALUES ('x'), ('y')",
            "INSERT INTO s SELECT FROM generate_series(1, 5)",
            "INSERT INTO s (a) SELECT a FROM t WHERE id < 10",
            "INSERT INTO i DEFAULT VALUES",
            "INSERT INTO i (r) VALUES (DEFAULT), (random()), (5)",
            "INSERT INTO log VALUES (now()::text, 1, clock_timestamp()), ('today', 2, 'now')",
            "INSERT INTO log SELECT a, b, now() FROM t ORDER BY id LIMIT 3",
            "UPDATE t SET b = random() * 1000 WHERE id < 20",
            "UPDATE t SET a = gen_random_uuid()::text WHERE id BETWEEN 20 AND 30",
            "UPDATE t SET b = b + 1 WHERE id = 7",
            "UPDATE t SET a = log.a FROM log WHERE t.id = log.b",
            "DELETE FROM t WHERE id IN (SELECT id FROM t ORDER BY random() LIMIT 5)",
            "INSERT INTO child SELECT id, id FROM t",
            "DELETE FROM t WHERE id > 90",
            "BEGIN; UPDATE t SET a = 'p' WHERE id = 50; SAVEPOINT x; UPDATE t SET a = 'q'; ROLLBACK TO x; UPDATE t SET b = 1 WHERE id = 51; COMMIT",
            "BEGIN; DELETE FROM t; ROLLBACK",
            "INSERT INTO m VALUES (1, 'well', 1.50, 'today', '{\"a\": 1}', '\\xdead', '{1,2}')",
            "SET TimeZone = 'Asia/Tokyo'; INSERT INTO log (at) VALUES ('2026-01-01 00:00'); RESET TimeZone",
            "SET search_path = pg_catalog, public; INSERT INTO log (a) VALUES ('path'); RESET search_path",
            "CREATE TEMP TABLE mine AS SELECT random() AS r FROM t; INSERT INTO log (a) SELECT r::text FROM mine",
            "ALTER TABLE t ADD COLUMN c int DEFAULT 5; UPDATE t SET c = id WHERE id < 10",
            "CREATE TABLE late (id serial PRIMARY KEY, at timestamptz DEFAULT now()); INSERT INTO late DEFAULT VALUES",
            "BEGIN; CREATE TABLE within (id int PRIMARY KEY, a text DEFAULT random()::text); INSERT INTO within (id) VALUES (1); COMMIT",
            "TRUNCATE log",
            "INSERT INTO t (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET a = now()::text, b = t.b + 1",
            "SELECT nextval('s_id_seq')",
            "WITH d AS (DELETE FROM child WHERE id < 5 RETURNING id) INSERT INTO log (b) SELECT id FROM d",
            "CREATE ROLE bob LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO bob",
            "SET ROLE bob; INSERT INTO log (a) VALUES (current_user); RESET ROLE",
        ],
    );
    site.runtime.block_on(async {
        let id: i32 = 7;
        let text: Option<&str> = None;
        client
            .execute("UPDATE t SET a = $2 WHERE id = $1", &[&id, &text])
            .await
            .expect("by parameters");
        let row = client
            .query_one(
                "INSERT INTO s (a) VALUES ($1) RETURNING id, a, u::text",
                &[&"p"],
            )
            .await
            .expect("returns");
        assert_eq!(row.get::<_, &str>(1), "p");
        let rows = client
            .query(
                "UPDATE t SET b = random() * 5 WHERE id < $1 RETURNING id",
                &[&10_i32],
            )
            .await
            .expect("rows are sent");
        assert!(
            rows.iter()
                .all(|row| row.len() == 1 && row.get::<_, i32>(0) < 10)
        );
        let sink = client
            .copy_in("COPY log (a, b) FROM STDIN")
            .await
            .expect("copies");
        futures_util::pin_mut!(sink);
        use futures_util::SinkExt;
        sink.send(bytes::Bytes::from_static(b"one\t1\ntwo\t2\n"))
            .await
            .expect("data");
        assert_eq!(sink.finish().await.expect("ends"), 2);
        let count: i64 = client
            .query_one("SELECT count(*) FROM log WHERE a IN ('one', 'two')", &[])
            .await
            .expect("reads")
            .get(0);
        assert_eq!(count, 2);
    });
    let verdict = site.must_be_equal();
    assert!(verdict.tables == 8 && verdict.rows > 150, "{verdict:?}");
}

#[test]
fn what_cannot_be_mirrored_is_refused_and_the_transaction_fails() {
    let site = Site::start("");
    let client = site.connect();
    run(
        &site,
        &client,
        &[
            SCHEMA,
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        ],
    );
    let told = |text: &str| {
        let error = site
            .runtime
            .block_on(client.batch_execute(text))
            .expect_err(text);
        let error = error.as_db_error().expect("the manager says so").clone();
        (
            error.code().clone(),
            error.hint().unwrap_or_default().to_owned(),
        )
    };
    let (code, hint) = told("SELECT f()");
    assert_eq!(code, SqlState::FEATURE_NOT_SUPPORTED);
    assert!(hint.contains("harmless.functions"), "{hint}");
    assert_eq!(
        told("INSERT INTO nowhere VALUES (1)").0,
        SqlState::UNDEFINED_TABLE
    );
    run(&site, &client, &["BEGIN", "INSERT INTO t VALUES (1)"]);
    assert_eq!(
        told("DO $$ BEGIN END $$").0,
        SqlState::FEATURE_NOT_SUPPORTED
    );
    assert_eq!(told("SELECT 1").0, SqlState::IN_FAILED_SQL_TRANSACTION);
    run(&site, &client, &["ROLLBACK"]);
    let rows = site
        .runtime
        .block_on(client.query("SELECT FROM t", &[]))
        .expect("reads");
    assert!(rows.is_empty());
    // Prepared statements are refused when they are executed.
    let error = site
        .runtime
        .block_on(client.execute("DELETE FROM log WHERE random() < $1", &[&0.5_f64]));
    assert!(
        error
            .expect_err("no primary key")
            .to_string()
            .contains("db error")
    );
    run(&site, &client, &["INSERT INTO t VALUES (2)"]);
    site.must_be_equal();
}
