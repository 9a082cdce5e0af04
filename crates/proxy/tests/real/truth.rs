//! What the proxy asks its servers in place of reading it in a text: nothing is done twice, and nothing leaks.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::server::psql;
use crate::site::Site;

pub const MODES: [&str; 2] = ["session", "transaction"];

async fn number(client: &Client, text: &str) -> i64 {
    client.query_one(text, &[]).await.expect(text).get(0)
}

pub async fn text(client: &Client, text: &str) -> String {
    let value: Option<String> = client.query_one(text, &[]).await.expect(text).get(0);
    value.unwrap_or_default()
}

/// A database that no proxy has asked about yet.
pub async fn database(site: &Site, statements: &[&str]) -> String {
    site.primary.sql(&["CREATE DATABASE d"]);
    let directory = site.primary.directory().display().to_string();
    let conninfo = format!("host={directory} port=5432 user=postgres dbname=d");
    for statement in statements {
        tokio::task::block_in_place(|| psql(&conninfo, statement)).expect(statement);
    }
    conninfo
}

pub async fn connect(site: &Site) -> Client {
    site.try_connect("postgres", "dbname=d")
        .await
        .expect("it connects")
}

const WRITES: &[&str] = &[
    "CREATE TABLE t (a int)",
    "CREATE TABLE one (a int, b int)",
    "INSERT INTO one VALUES (1, 1)",
    "CREATE FUNCTION w(int, int) RETURNS int LANGUAGE sql AS 'INSERT INTO t VALUES ($1); SELECT 1 FROM pg_sleep(0)'",
    "CREATE OPERATOR <+> (FUNCTION = w, LEFTARG = int, RIGHTARG = int)",
    "CREATE FUNCTION check_it(int) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN INSERT INTO t VALUES ($1); RETURN true; END'",
    "CREATE DOMAIN d AS int CHECK (check_it(value))",
    "CREATE TYPE pair AS (x int)",
    "CREATE FUNCTION to_pair(int) RETURNS pair LANGUAGE sql AS 'INSERT INTO t VALUES ($1); SELECT ROW($1)::pair'",
    "CREATE CAST (int AS pair) WITH FUNCTION to_pair(int)",
    "CREATE FUNCTION pay(one) RETURNS int LANGUAGE sql AS 'INSERT INTO t VALUES (($1).a) RETURNING a'",
    "CREATE FUNCTION add_up(int, int) RETURNS int LANGUAGE sql AS 'INSERT INTO t VALUES ($2) RETURNING a'",
    "CREATE AGGREGATE total(int) (SFUNC = add_up, STYPE = int, INITCOND = '0')",
    "CREATE SEQUENCE s",
    "CREATE VIEW v AS SELECT w(1, 2)",
    "CREATE VIEW counts AS SELECT nextval('s')",
    "CREATE VIEW above AS SELECT 1 <+> 2 AS x",
];

/// Each of them wrote, and was run again after a takeover, because no function was named.
// hazard: PROXY-65
#[tokio::test(flavor = "multi_thread")]
async fn statements_that_write_ask_for_their_id() {
    let site = Site::start("auth = \"trust\"").await;
    site.primary.sql(&[
        "ALTER SYSTEM SET log_statement = 'all'",
        "SELECT pg_reload_conf()",
    ]);
    database(&site, WRITES).await;
    let client = connect(&site).await;
    let begun = || site.primary.log().matches("statement: BEGIN").count();
    for (text, writes) in [
        ("SELECT a OPERATOR(public.<+>) b FROM one", true),
        ("SELECT a <+> b FROM one", true),
        ("SELECT a::d FROM one", true),
        ("SELECT CAST(a AS pair) FROM one", true),
        ("SELECT one.pay FROM one", true),
        ("SELECT (one).pay FROM one", true),
        ("SELECT total(a) FROM one", true),
        ("SELECT * FROM v", true),
        ("SELECT * FROM above", true),
        ("SELECT * FROM counts", true),
        (
            "SELECT query_to_xml('SELECT w(1, 2)', true, true, '')",
            true,
        ),
        (
            "SELECT jsonb_populate_record(null::pair, '{\"x\": 1}')",
            true,
        ),
        (
            "SELECT a + b, lower('X'), now() FROM one WHERE a IN (1, 2) ORDER BY 1",
            false,
        ),
        ("SELECT x.n FROM (SELECT count(*) AS n FROM one) x", false),
        (
            "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace",
            false,
        ),
    ] {
        let before = begun();
        let answered = client.simple_query(text).await;
        if let Err(error) = answered {
            assert!(text.contains("xml"), "{text}: {error:?}");
        }
        assert_eq!(begun() > before, writes, "{text}");
    }
}

/// A function of its own sets what row security depends on. The next client of the connection read its rows.
// hazard: PROXY-67
#[tokio::test(flavor = "multi_thread")]
async fn row_security_holds_whatever_sets_the_tenant() {
    for pool_mode in MODES {
        for read in ["active", "strong", "session", "any"] {
            let site = Site::start(&format!(
                "auth = \"trust\"\npool_mode = \"{pool_mode}\"\npool_size = 2\n[reads]\nmode = \"{read}\"\nwait = \"5s\""
            ))
            .await;
            database(
                &site,
                &[
                    "CREATE TABLE t (tenant int, a int)",
                    "INSERT INTO t SELECT n % 10, n FROM generate_series(1, 100) n",
                    "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
                    "CREATE POLICY p ON t USING (tenant::text = current_setting('app.tenant', true))",
                    "CREATE FUNCTION set_tenant(int) RETURNS void LANGUAGE plpgsql \
                     AS $$ BEGIN PERFORM set_config('app.tenant', $1::text, false); END $$",
                    "CREATE FUNCTION set_stable(int) RETURNS void LANGUAGE plpgsql STABLE \
                     AS $$ BEGIN PERFORM set_config('app.tenant', $1::text, false); END $$",
                    "CREATE FUNCTION set_any(text, text) RETURNS void LANGUAGE plpgsql STABLE \
                     AS $$ BEGIN PERFORM set_config($1, $2, false); END $$",
                    "CREATE ROLE app LOGIN",
                    "GRANT SELECT ON t TO app",
                ],
            )
            .await;
            let connect = || site.try_connect("app", "dbname=d");
            for (set, is_kept) in [
                ("BEGIN READ ONLY; SELECT set_tenant(7); COMMIT", true),
                ("SELECT set_tenant(7)", true),
                ("SELECT set_stable(7)", true),
                ("BEGIN READ ONLY; SELECT set_stable(7); COMMIT", true),
                (
                    "DO $$ BEGIN PERFORM set_config('app.tenant', '7', false); END $$",
                    true,
                ),
                (
                    "DO $$ BEGIN EXECUTE 'SET app.' || 'tenant = 7'; END $$",
                    false,
                ),
                ("SELECT set_any('app.tenant', '7')", true),
            ] {
                let (one, other) = (connect().await.expect("in"), connect().await.expect("in"));
                let name = format!("{pool_mode}, {read}, {set}");
                for _ in 0..2 {
                    for statement in set.split("; ").map(str::to_owned) {
                        let statement = match set.starts_with("DO") {
                            true => set.to_owned(),
                            false => statement,
                        };
                        one.batch_execute(&statement).await.expect(&name);
                        if set.starts_with("DO") {
                            break;
                        }
                    }
                    for _ in 0..3 {
                        let found = number(&other, "SELECT count(*) FROM t").await;
                        assert_eq!(found, 0, "{name}: rows of another tenant");
                        let found = number(&other, "SELECT count(*) FROM t WHERE a > 0").await;
                        assert_eq!(found, 0, "{name}: rows of another tenant");
                    }
                    if is_kept {
                        let found = number(&one, "SELECT count(*) FROM t").await;
                        assert_eq!(found, 10, "{name}: its own tenant");
                    }
                }
            }
        }
    }
}

const MAKES: &[&str] = &[
    "CREATE FUNCTION lock_it() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN pg_try_advisory_lock(5); END $$",
    "CREATE FUNCTION temporary_it() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CREATE TEMP TABLE mine (a int); END $$",
    "CREATE FUNCTION set_it() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('work_mem', '7MB', false); \
     PERFORM set_config('app.own', 'x', false); END $$",
    "CREATE PROCEDURE lock_by_call() LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_lock(6); END $$",
];

/// Two leaders had the lock, each on a server of its own, and neither was told.
// hazard: PROXY-72
#[tokio::test(flavor = "multi_thread")]
async fn objects_made_by_a_function_bind_the_session_or_go_along() {
    for mode in MODES {
        let site = Site::start(&format!("auth = \"trust\"\npool_mode = \"{mode}\"")).await;
        database(&site, MAKES).await;
        let bound = [
            "SELECT lock_it()",
            "SELECT temporary_it()",
            "CALL lock_by_call()",
            "DO $$ BEGIN PERFORM pg_advisory_lock(8); END $$",
        ];
        let mut clients = Vec::new();
        for statement in bound {
            let client = connect(&site).await;
            client.batch_execute(statement).await.expect(statement);
            client.batch_execute("SELECT 1").await.expect("goes on");
            clients.push((statement, client));
        }
        let other = connect(&site).await;
        let has = number(&other, "SELECT pg_try_advisory_lock(5)::int::bigint").await;
        assert_eq!(has, 0, "{mode}: both have the lock");
        let free = connect(&site).await;
        free.batch_execute("SELECT set_it()").await.expect("sets");
        free.batch_execute("BEGIN; SELECT lock_it(); ROLLBACK")
            .await
            .expect("asks");
        site.take_over();
        for (statement, client) in clients {
            let lost = client.batch_execute("SELECT 1").await.expect_err(statement);
            let is_told = lost.is_closed() || lost.code() == Some(&SqlState::ADMIN_SHUTDOWN);
            assert!(is_told, "{mode}, {statement}: {lost:?}");
        }
        assert_eq!(text(&free, "SHOW work_mem").await, "7MB", "{mode}");
        let own = text(&free, "SELECT current_setting('app.own', true)").await;
        assert_eq!(own, "x", "{mode}");
    }
}

/// The remote server had two rows, or a client was told to try again.
// hazard: PROXY-66
#[tokio::test(flavor = "multi_thread")]
async fn statement_that_reaches_out_is_not_run_again_and_the_client_is_told() {
    let site = Site::start("auth = \"trust\"").await;
    let directory = site.primary.directory().display().to_string();
    database(
        &site,
        &[
            "CREATE TABLE plain (a int)",
            "CREATE EXTENSION postgres_fdw",
            "CREATE EXTENSION dblink",
        ],
    )
    .await;
    let server = format!(
        "CREATE SERVER r FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{directory}', dbname 'postgres')"
    );
    let conninfo = format!("host={directory} port=5432 user=postgres dbname=d");
    for statement in [
        server.as_str(),
        "CREATE USER MAPPING FOR postgres SERVER r",
        "CREATE FOREIGN TABLE ft (a int) SERVER r OPTIONS (table_name 'remote')",
        "CREATE TABLE pt (a int) PARTITION BY LIST (a)",
        "CREATE FOREIGN TABLE pt1 PARTITION OF pt FOR VALUES IN (1) SERVER r OPTIONS (table_name 'remote')",
        "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         PERFORM dblink_exec('host=' || TG_ARGV[0] || ' user=postgres dbname=postgres', 'INSERT INTO remote VALUES (1)'); RETURN new; END $$",
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int REFERENCES parent ON DELETE CASCADE)",
    ] {
        tokio::task::block_in_place(|| psql(&conninfo, statement)).expect(statement);
    }
    let trigger = format!(
        "CREATE TRIGGER t AFTER INSERT OR DELETE ON child FOR EACH ROW EXECUTE FUNCTION tell('{directory}')"
    );
    tokio::task::block_in_place(|| psql(&conninfo, &trigger)).expect("a trigger");
    for statement in [
        "INSERT INTO parent VALUES (1), (2)",
        "INSERT INTO plain VALUES (1)",
    ] {
        tokio::task::block_in_place(|| psql(&conninfo, statement)).expect(statement);
    }
    site.primary.sql(&["CREATE TABLE remote (a int)"]);
    let exec = format!(
        "SELECT dblink_exec('host={directory} user=postgres dbname=postgres', 'INSERT INTO remote VALUES (1)')"
    );
    let mut clients = Vec::new();
    for (statement, reaches) in [
        ("INSERT INTO ft VALUES (1)", true),
        ("INSERT INTO pt VALUES (1)", true),
        ("INSERT INTO child VALUES (1)", true),
        ("DELETE FROM parent WHERE id = 2", true),
        (exec.as_str(), true),
        ("INSERT INTO plain VALUES (2)", false),
    ] {
        let client = connect(&site).await;
        client.batch_execute("BEGIN").await.expect("begins");
        client.batch_execute(statement).await.expect(statement);
        clients.push((statement, reaches, client));
    }
    site.take_over();
    for (statement, reaches, client) in clients {
        let next = client.batch_execute("SELECT 1").await;
        match reaches {
            true => {
                let error = next.expect_err(statement);
                let code = error.code().map(SqlState::code);
                assert_eq!(code, Some("08007"), "{statement}: {error:?}");
            }
            false => next.expect(statement),
        }
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// One process of the server is killed, as by the kernel when memory is short: PostgreSQL ends all sessions and recovers. Nobody
/// hears of it.
// hazard: PROXY-73
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_in_its_own_words_is_lost() {
    for mode in MODES {
        let site = Site::start(&format!("auth = \"trust\"\npool_mode = \"{mode}\"")).await;
        database(&site, &["CREATE TABLE t (a int)"]).await;
        let client = connect(&site).await;
        let mut open = connect(&site).await;
        let transaction = open.transaction().await.expect("begins");
        transaction
            .execute("INSERT INTO t VALUES (1)", &[])
            .await
            .expect("inserts");
        let pids = site
            .primary
            .sql(&["SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"]);
        let pid: i32 = pids.trim().parse().expect("a number");
        let running = client.query_one("SELECT count(*) FROM t, pg_sleep(1)", &[]);
        let killed = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(pid),
                nix::sys::signal::Signal::SIGKILL,
            )
            .expect("it is there");
        };
        let (answered, ()) = tokio::join!(running, killed);
        answered.unwrap_or_else(|error| panic!("{mode}: {error:?}"));
        transaction
            .execute("INSERT INTO t VALUES (2)", &[])
            .await
            .expect(mode);
        transaction.commit().await.expect(mode);
        assert_eq!(number(&client, "SELECT count(*) FROM t").await, 2, "{mode}");
    }
}

/// Files are gone, as if the mount below PostgreSQL had died: no client hears of it, and what it did goes on after the takeover.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_its_files_is_lost() {
    let site = Site::start("auth = \"trust\"").await;
    database(
        &site,
        &[
            "CREATE TABLE t AS SELECT generate_series(1, 1000)::bigint AS a",
            "CHECKPOINT",
        ],
    )
    .await;
    let client = connect(&site).await;
    let path = text(&client, "SELECT pg_relation_filepath('t')").await;
    // A session that has not opened it yet, and finds it gone.
    let file = site.primary.data().join(&path);
    let hidden = file.with_extension("hidden");
    let other = connect(&site).await;
    assert_eq!(number(&other, "SELECT 1::bigint").await, 1);
    // The server is restarted, so that nothing of it is in memory.
    tokio::task::block_in_place(|| site.primary.stop("fast"));
    std::fs::rename(&file, &hidden).expect("it is there");
    tokio::task::block_in_place(|| site.primary.start());
    let failed = other
        .query_one("SELECT count(*) FROM t", &[])
        .await
        .expect_err("it is well otherwise");
    assert_eq!(failed.code(), Some(&SqlState::UNDEFINED_FILE), "{failed:?}");
    assert_eq!(
        number(&other, "SELECT 1::bigint").await,
        1,
        "the session goes on"
    );
}

/// Its own notifications have the number by which it knows itself, as libpq's clients expect.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ends_itself_is_told() {
    for mode in MODES {
        let site = Site::start(&format!("auth = \"trust\"\npool_mode = \"{mode}\"")).await;
        let client = site.connect().await;
        let ended = client
            .simple_query("SELECT pg_terminate_backend(pg_backend_pid())")
            .await
            .expect_err("it ends");
        assert_eq!(
            ended.code(),
            Some(&SqlState::ADMIN_SHUTDOWN),
            "{mode}: {ended:?}"
        );
    }
}

/// A login during a takeover waits as a statement does.
#[tokio::test(flavor = "multi_thread")]
async fn logins_by_scram_wait_for_a_takeover() {
    let site = Site::start("").await;
    site.primary
        .sql(&["CREATE ROLE app LOGIN PASSWORD 'secret'"]);
    let connect = || site.try_connect("app", "password=secret");
    connect().await.expect("it is let in");
    let before = connect().await.expect("it is let in");
    drop(before);
    tokio::task::block_in_place(|| site.primary.stop("immediate"));
    let late = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        tokio::task::block_in_place(|| site.promote());
    };
    let (one, two, ()) = tokio::join!(connect(), connect(), late);
    for client in [one, two] {
        let client = client.expect("it has waited");
        assert_eq!(number(&client, "SELECT 1::bigint").await, 1);
    }
}

/// `bounded` counts from the active, also where one standby is all there is.
#[tokio::test(flavor = "multi_thread")]
async fn a_bound_counts_from_the_active() {
    let site =
        Site::start("auth = \"trust\"\n[reads]\nmode = \"bounded:1000\"\nwait = \"0ms\"").await;
    site.primary.sql(&[
        "ALTER SYSTEM SET synchronous_commit = local",
        "SELECT pg_reload_conf()",
    ]);
    let client = site.connect().await;
    client
        .batch_execute("CREATE TABLE t (a int)")
        .await
        .expect("creates");
    site.standby.sql(&["SELECT pg_wal_replay_pause()"]);
    client
        .batch_execute("INSERT INTO t SELECT generate_series(1, 100000)")
        .await
        .expect("inserts");
    for _ in 0..5 {
        assert_eq!(number(&client, "SELECT count(*) FROM t").await, 100_000);
    }
}

/// What a standby would tell of itself is asked of the active.
#[tokio::test(flavor = "multi_thread")]
async fn state_outside_of_the_log_is_read_on_the_active() {
    let site = Site::start("auth = \"trust\"\n[reads]\nmode = \"strong\"\nwait = \"5s\"").await;
    database(&site, &["CREATE SEQUENCE s", "CREATE TABLE t (a int)"]).await;
    let client = connect(&site).await;
    for expected in 1..=3 {
        assert_eq!(number(&client, "SELECT nextval('s')").await, expected);
        assert_eq!(number(&client, "SELECT last_value FROM s").await, expected);
    }
    client
        .batch_execute("SELECT pg_advisory_lock(3)")
        .await
        .expect("locks");
    let other = connect(&site).await;
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(number(&other, locks).await, 1);
    let seen = number(&other, "SELECT count(*) FROM pg_stat_activity WHERE pid = pg_backend_pid() AND backend_xmin IS NOT NULL").await;
    assert_eq!(seen, 1);
    site.primary.sql(&[
        "ALTER SYSTEM SET wal_writer_delay = '10s'",
        "SELECT pg_reload_conf()",
    ]);
    let writer = connect(&site).await;
    writer
        .batch_execute("SET synchronous_commit = off")
        .await
        .expect("sets");
    let more = "dbname=d options='-c synchronous_commit=off'";
    let begun = site.try_connect("postgres", more).await.expect("connects");
    // Without knowing, each read would wait for standbys, which have it seconds later.
    let began = Instant::now();
    for (first, writer) in [(1, writer), (21, begun)] {
        for round in first..first + 20 {
            writer
                .execute("INSERT INTO t VALUES (1)", &[])
                .await
                .expect("inserts");
            assert_eq!(number(&writer, "SELECT count(*) FROM t").await, round);
        }
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(40), "{took:?}");
}
