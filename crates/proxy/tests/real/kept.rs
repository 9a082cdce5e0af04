//! Transactions that were told values which a second run would not make again: numbers of sequences, UUIDs, times.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::site::Site;

const TABLES: &str = "
CREATE TABLE serials (id serial PRIMARY KEY, a text);
CREATE TABLE identities (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a text,
    key uuid DEFAULT gen_random_uuid(), at timestamptz DEFAULT clock_timestamp());
CREATE SEQUENCE numbers INCREMENT 50;
CREATE TABLE children (of int, a text)";

/// The first column of the first row that a simple query tells.
async fn told(client: &Client, text: &str) -> String {
    let messages = client.simple_query(text).await.expect(text);
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    row.expect("a row").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_were_told_are_kept() {
    for mode in ["session", "transaction"] {
        let site = Site::start(&format!("auth = \"trust\"\npool_mode = \"{mode}\"")).await;
        let admin = site.connect().await;
        admin.batch_execute(TABLES).await.expect("tables");
        admin
            .batch_execute("INSERT INTO serials (a) VALUES ('before')")
            .await
            .expect("a row");

        // As psycopg2 does: simple queries.
        let simple = site.connect().await;
        simple.batch_execute("BEGIN").await.expect("begins");
        let text = "INSERT INTO serials (a) VALUES ('x'), ('it''s') RETURNING id";
        let first = told(&simple, text).await;
        let fetched = told(&simple, "SELECT nextval('numbers')").await;
        let key = told(&simple, "SELECT gen_random_uuid()::text").await;
        let now = told(&simple, "SELECT CURRENT_TIMESTAMP(3) IS NULL, now()").await;

        // As asyncpg and pgjdbc do: bound, and told in binary form.
        let mut bound = site.connect().await;
        let bound = bound.transaction().await.expect("begins");
        let insert = "INSERT INTO identities (a) VALUES ($1) RETURNING id, key, at";
        let prepared = bound.prepare(insert).await.expect("prepares");
        let one = bound.query_one(&prepared, &[&"y"]).await.expect("a row");
        let two = bound.query_one(&prepared, &[&"z"]).await.expect("a row");
        let many = "INSERT INTO identities (a) SELECT p0::text FROM (VALUES ($1, 0), ($2, 1)) AS imp_sen(p0, sen_counter) \
                    ORDER BY sen_counter RETURNING identities.id, identities.id AS id__1";
        let many = bound.query(many, &[&"m", &"n"]).await.expect("rows");
        let ids: Vec<i64> = [&one, &two]
            .into_iter()
            .chain(&many)
            .map(|row| row.get(0))
            .collect();

        site.take_over();

        simple
            .batch_execute(&format!(
                "INSERT INTO children VALUES ({first}, 'child'), ({fetched}, '{key}'); COMMIT"
            ))
            .await
            .unwrap_or_else(|error| panic!("{mode}, {now}: {error:?}"));
        bound
            .commit()
            .await
            .unwrap_or_else(|error| panic!("{mode}: {error:?}"));

        let found = told(
            &admin,
            "SELECT string_agg(id || a, ',' ORDER BY id) FROM serials WHERE a <> 'before'",
        )
        .await;
        let second = first.parse::<i32>().expect("a number") + 1;
        assert_eq!(found, format!("{first}x,{second}it's"), "{mode}");
        let rows = admin
            .query(
                "SELECT id, key::text, at::text, a FROM identities ORDER BY id",
                &[],
            )
            .await
            .expect("rows");
        let found: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(found, ids, "{mode}");
        let texts: Vec<&str> = rows.iter().map(|row| row.get(3)).collect();
        assert_eq!(texts, ["y", "z", "m", "n"]);
        let same = admin
            .query_one(
                "SELECT count(*) FROM identities WHERE id = $1 AND at = $2",
                &[&ids[0], &one.get::<_, std::time::SystemTime>(2)],
            )
            .await
            .expect("a count");
        assert_eq!(same.get::<_, i64>(0), 1, "{mode}: the time that was told");
        // Nobody gets a value a second time.
        for (table, last) in [("serials", i64::from(second)), ("identities", ids[3])] {
            let text = format!("INSERT INTO {table} (a) VALUES ('after') RETURNING id");
            let next: i64 = told(&admin, &text).await.parse().expect("a number");
            assert!(next > last, "{mode}: {next} after {last}");
        }
        let next: i64 = told(&admin, "SELECT nextval('numbers')")
            .await
            .parse()
            .expect("a number");
        assert!(next > fetched.parse().expect("a number"));
    }
}

/// `currval` would be the number of another row than in the first run, and nothing in the answers would tell.
#[tokio::test(flavor = "multi_thread")]
async fn statement_with_currval_is_not_run_again_with_another_number() {
    let site = Site::start("auth = \"trust\"").await;
    let client = site.connect().await;
    client.batch_execute(TABLES).await.expect("tables");
    client
        .batch_execute("BEGIN; INSERT INTO serials (a) VALUES ('not told')")
        .await
        .expect("begins");
    told(
        &client,
        "INSERT INTO serials (a) VALUES ('told') RETURNING id",
    )
    .await;
    client
        .batch_execute("INSERT INTO children VALUES (currval('serials_id_seq'), 'child')")
        .await
        .expect("a child");
    site.take_over();
    let lost = client
        .batch_execute("SELECT 1")
        .await
        .expect_err("it is lost");
    assert_eq!(
        lost.code(),
        Some(&SqlState::T_R_SERIALIZATION_FAILURE),
        "{lost:?}"
    );
    client.batch_execute("ROLLBACK").await.expect("rolls back");
    assert_eq!(told(&client, "SELECT count(*) FROM children").await, "0");
}
