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

pub fn run(site: &Site, client: &Client, texts: &[&str]) {
    for text in texts {
        let done = site.runtime.block_on(client.batch_execute(text));
        done.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    }
}

// hazard: MIRROR-45
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
            // It is another one then, and sessions that execute the log must not be the one before.
            "REVOKE ALL ON ALL TABLES IN SCHEMA public FROM bob; DROP ROLE bob",
            "CREATE ROLE bob LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO bob",
            "SET ROLE bob; INSERT INTO log (a) VALUES ('anew'); RESET ROLE",
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
fn prepared_statements_are_the_same_on_both_members() {
    let site = Site::start("");
    let mut client = site.connect();
    run(&site, &client, &[SCHEMA]);
    site.runtime.block_on(async {
        let dated = client
            .prepare("INSERT INTO log (a, b, at) VALUES ($1, $2, CURRENT_TIMESTAMP) RETURNING at = now(), at")
            .await
            .expect("prepares");
        let defaults = client
            .prepare("INSERT INTO s (id, a, u) VALUES ($1, $2, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11') RETURNING at")
            .await
            .expect("prepares");
        let update = client
            .prepare("UPDATE t SET b = b + $1, a = now()::text WHERE id = $2")
            .await
            .expect("prepares");
        client
            .batch_execute("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
            .await
            .expect("writes");
        for (round, settings) in [
            "RESET ALL",
            "SET TimeZone = 'Asia/Kolkata'",
            "SET DateStyle = 'SQL, DMY'; SET TimeZone = 'America/New_York'",
        ]
        .into_iter()
        .enumerate()
        {
            client.batch_execute(settings).await.expect("sets");
            let number = i32::try_from(round).expect("small");
            let transaction = client.transaction().await.expect("begins");
            let began: std::time::SystemTime = transaction
                .query_one("SELECT now()", &[])
                .await
                .expect("reads")
                .get(0);
            let row = transaction
                .query_one(&dated, &[&"x", &number])
                .await
                .expect("writes");
            assert!(row.get::<_, bool>(0));
            assert_eq!(row.get::<_, std::time::SystemTime>(1), began);
            transaction
                .execute(&update, &[&5, &1])
                .await
                .expect("writes");
            transaction
                .query_one(&defaults, &[&(100 + number), &"y"])
                .await
                .expect("writes");
            transaction.commit().await.expect("commits");
            // By itself, and in a transaction that is rolled back.
            assert_eq!(client.execute(&update, &[&1, &2]).await.expect("writes"), 1);
            let transaction = client.transaction().await.expect("begins");
            transaction
                .execute(&update, &[&7, &2])
                .await
                .expect("writes");
            let taken = transaction.query(&defaults, &[&(100 + number), &"y"]).await;
            assert_eq!(
                taken.expect_err("there").code(),
                Some(&SqlState::UNIQUE_VIOLATION)
            );
            transaction.rollback().await.expect("rolls back");
        }
        let row = client
            .query_one("SELECT (SELECT sum(b) FROM t), (SELECT count(*) FROM log)", &[])
            .await
            .expect("reads");
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (3 + 15 + 3, 3));
    });
    site.must_be_equal();
}

/// A statement of its own connection: what drivers never do.
pub struct Raw(std::net::TcpStream);

impl Raw {
    pub fn connect(site: &Site) -> Raw {
        Raw::connect_to(site.client_address(site.who_serves()))
    }

    /// At this manager.
    pub fn connect_to(address: std::net::SocketAddr) -> Raw {
        use postgres_protocol::message::frontend::startup_message;
        let mut raw = Raw::dial(address);
        let mut out = bytes::BytesMut::new();
        let parameters = [
            ("user", "postgres"),
            ("database", "app"),
            ("client_encoding", "UTF8"),
        ];
        startup_message(parameters, &mut out).expect("short");
        raw.ask(&out);
        raw
    }

    /// A connection on which nothing was said yet.
    pub fn dial(address: std::net::SocketAddr) -> Raw {
        Raw(std::net::TcpStream::connect(address).expect("it listens"))
    }

    /// Sends messages, and returns the kinds of those that come up to `ReadyForQuery`.
    pub fn ask(&mut self, messages: &[u8]) -> String {
        self.ask_until(messages, 'Z')
    }

    /// The same up to another kind.
    pub fn ask_until(&mut self, messages: &[u8], last: char) -> String {
        self.send(messages);
        let mut kinds = String::new();
        while !kinds.ends_with(last) {
            kinds.push(self.next().expect("it answers").0);
        }
        kinds
    }

    pub fn send(&mut self, messages: &[u8]) {
        use std::io::Write;
        let patience = Some(std::time::Duration::from_secs(20));
        self.0.set_read_timeout(patience).expect("it is there");
        self.0.write_all(messages).expect("it is there");
    }

    /// The next message: its kind, and what it says. Nothing if the connection has ended.
    pub fn next(&mut self) -> Option<(char, Vec<u8>)> {
        use std::io::Read;
        let mut head = [0; 5];
        match self.0.read_exact(&mut head) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return None,
            read => read.expect("it answers"),
        }
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize - 4;
        let mut body = vec![0; len];
        self.0.read_exact(&mut body).expect("all of it");
        Some((char::from(head[0]), body))
    }
}

/// The name of a statement stood for a text that the member had refused: another was logged than was executed.
#[test]
fn a_name_stands_for_what_the_member_has() {
    use postgres_protocol::message::frontend::{bind, close, execute, parse, sync};
    let site = Site::start("");
    let client = site.connect();
    run(&site, &client, &[SCHEMA]);
    let mut raw = Raw::connect(&site);
    let batch = |steps: &[(char, &str)]| {
        let mut out = bytes::BytesMut::new();
        for (step, text) in steps {
            match step {
                'P' => parse("s", text, [], &mut out).expect("short"),
                'B' => bind(
                    "",
                    "s",
                    [],
                    std::iter::empty::<()>(),
                    |(), _| unreachable!(),
                    [],
                    &mut out,
                )
                .unwrap_or_else(|_| panic!("short")),
                'E' => execute("", 0, &mut out).expect("short"),
                'C' => close(b'S', "s", &mut out).expect("short"),
                _ => parse("bad", text, [], &mut out).expect("short"),
            }
        }
        sync(&mut out);
        out
    };
    let one = "INSERT INTO log (a) VALUES ('one')";
    let other = "INSERT INTO log (b) VALUES (2)";
    assert_eq!(raw.ask(&batch(&[('P', one), ('B', ""), ('E', "")])), "12CZ");
    assert_eq!(raw.ask(&batch(&[('P', other), ('B', ""), ('E', "")])), "EZ");
    assert_eq!(raw.ask(&batch(&[('B', ""), ('E', "")])), "2CZ");
    // It is not closed, because what comes before fails.
    assert_eq!(raw.ask(&batch(&[('x', "SELEC"), ('C', "")])), "EZ");
    assert_eq!(raw.ask(&batch(&[('B', ""), ('E', "")])), "2CZ");
    assert_eq!(
        raw.ask(&batch(&[('C', ""), ('P', other), ('B', ""), ('E', "")])),
        "312CZ"
    );
    assert_eq!(raw.ask(&batch(&[('C', "")])), "3Z");
    assert_eq!(raw.ask(&batch(&[('B', ""), ('E', "")])), "EZ");
    let row = site
        .runtime
        .block_on(client.query_one("SELECT count(a), count(b) FROM log", &[]))
        .expect("reads");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (3, 1));
    site.must_be_equal();
}

/// What is put together for the session of [`Raw`]: each step, and up to `Sync`.
fn batch(steps: &[(char, &str)]) -> bytes::BytesMut {
    use postgres_protocol::message::frontend::{bind, execute, parse, sync};
    let mut out = bytes::BytesMut::new();
    for (step, text) in steps {
        let none = std::iter::empty::<()>();
        match step {
            'B' => bind("", text, [], none, |(), _| unreachable!(), [], &mut out)
                .unwrap_or_else(|_| panic!("short")),
            'E' => execute("", 0, &mut out).expect("short"),
            name => parse(&name.to_string(), text, [], &mut out).expect("short"),
        }
    }
    sync(&mut out);
    out
}

/// A driver did not know that a name was taken, and took it again and again in vain.
// hazard: MIRROR-64
#[test]
fn what_has_come_before_a_failure_is_told() {
    let site = Site::start("");
    let client = site.connect();
    run(
        &site,
        &client,
        &["CREATE TABLE t (id serial PRIMARY KEY, a text)"],
    );
    let mut raw = Raw::connect(&site);
    // What is refused is a statement that fails, under the name that was taken.
    let refused = [('l', "LOCK pg_class"), ('B', "l"), ('E', "")];
    assert_eq!(raw.ask(&batch(&refused)), "12EZ");
    assert_eq!(raw.ask(&batch(&refused[1..])), "2EZ");
    // What was done before in the same batch is undone, but not the name.
    let short = "INSERT INTO t (id, a) VALUES (2, 'y')";
    let failed = [('s', short), ('B', "s"), ('E', ""), ('x', "SELEC")];
    assert_eq!(raw.ask(&batch(&failed)), "12CEZ");
    assert_eq!(raw.ask(&batch(&failed[1..3])), "2CZ");
    assert_eq!(site.must_be_equal().rows, 1);
}

/// A time was written with the abbreviation of its zone, which stands for another one to a member, or to both.
// hazard: MIRROR-19
#[test]
fn times_of_any_style_are_the_same_on_both_members() {
    let site = Site::start("");
    let standby = 1 - site.who_serves();
    site.sides[standby].server.sql(&[
        "ALTER SYSTEM SET timezone_abbreviations = 'India'",
        "SELECT pg_reload_conf()",
    ]);
    let client = site.connect();
    run(
        &site,
        &client,
        &[
            "CREATE TABLE t (id serial PRIMARY KEY, at timestamptz, many timestamptz[])",
            "SET TimeZone = 'Asia/Kolkata'; SET DateStyle = 'SQL, DMY'",
            "INSERT INTO t (at) VALUES (clock_timestamp())",
            "INSERT INTO t (at, many) SELECT at, ARRAY[at] FROM t ORDER BY random() LIMIT 1",
            "UPDATE t SET at = at + random() * interval '1 second' WHERE id > 1",
        ],
    );
    let late = "SELECT count(*) FROM t WHERE abs(extract(epoch FROM now() - at)) > 600";
    let row = site.runtime.block_on(client.query_one(late, &[]));
    assert_eq!(row.expect("reads").get::<_, i64>(0), 0);
    assert_eq!(site.must_be_equal().rows, 2);
}
