//! What clients do with a connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tokio_postgres::error::SqlState;

use crate::server::{SLEEP, Server};
use crate::site::{Serving, Site};

#[tokio::test(flavor = "multi_thread")]
async fn passwords_are_proved_and_open_the_server() {
    let site = Site::start("").await;
    site.primary.sql(&["CREATE ROLE r LOGIN PASSWORD 'right'"]);
    let hba = site.primary.data().join("pg_hba.conf");
    let text = std::fs::read_to_string(&hba).expect("it is there");
    let asked = format!("local all r scram-sha-256\n{text}");
    std::fs::write(&hba, asked).expect("it can be written");
    site.primary.sql(&["SELECT pg_reload_conf()"]);
    let client = site
        .try_connect("r", "password=right")
        .await
        .expect("it is let in");
    let row = client
        .query_one("SELECT current_user::text", &[])
        .await
        .expect("answers");
    assert_eq!(row.get::<_, &str>(0), "r");
    let wrong = site
        .try_connect("r", "password=wrong")
        .await
        .expect_err("refused");
    assert_eq!(wrong.code(), Some(&SqlState::INVALID_PASSWORD));
    let nobody = site
        .try_connect("nobody", "password=wrong")
        .await
        .expect_err("refused");
    assert_eq!(nobody.code(), Some(&SqlState::INVALID_PASSWORD));
}

/// A session for each would cost more than all the rest of a login.
#[tokio::test(flavor = "multi_thread")]
async fn passwords_are_looked_up_by_one_session() {
    // Without the session that asks for proof, which has the same name.
    let site = Site::start("[takeover]\nlease = \"0s\"").await;
    site.primary.sql(&["CREATE ROLE r LOGIN PASSWORD 'right'"]);
    let started = "SELECT count(*) || ' since ' || min(backend_start) FROM pg_stat_activity
                   WHERE application_name = 'understudy proxy' AND datname = 'postgres'";
    let log_in = || site.try_connect("r", "password=right");
    log_in().await.expect("it is let in");
    // The one that has looked functions up ends.
    let mut first = site.primary.sql(&[started]);
    while !first.starts_with("1 ") {
        tokio::time::sleep(Duration::from_millis(10)).await;
        first = site.primary.sql(&[started]);
    }
    for _ in 0..20 {
        log_in().await.expect("it is let in");
    }
    assert_eq!(site.primary.sql(&[started]), first);
    // Whether PostgreSQL's farewell or the closed connection is seen first is a matter of moments.
    for _ in 0..50 {
        let before = site.primary.sql(&[started]);
        site.primary.sql(&[
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'understudy proxy'",
        ]);
        log_in().await.expect("another session takes its place");
        assert_ne!(site.primary.sql(&[started]), before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_follow_a_client_from_server_to_server() {
    let site = Site::start("auth = \"trust\"\npool_mode = \"transaction\"\npool_size = 2").await;
    let (one, two) = (site.connect().await, site.connect().await);
    let first = one.prepare("SELECT $1::int + 1").await.expect("prepares");
    let second = two.prepare("SELECT $1::int + 2").await.expect("prepares");
    one.batch_execute("SET application_name = 'one'")
        .await
        .expect("sets");
    for _ in 0..20 {
        let (a, b) = tokio::join!(one.query_one(&first, &[&1]), two.query_one(&second, &[&1]));
        assert_eq!(a.expect("answers").get::<_, i32>(0), 2);
        assert_eq!(b.expect("answers").get::<_, i32>(0), 3);
        let name = two
            .query_one("SHOW application_name", &[])
            .await
            .expect("shows");
        assert_ne!(name.get::<_, &str>(0), "one");
    }
    let name = one
        .query_one("SHOW application_name", &[])
        .await
        .expect("shows");
    assert_eq!(name.get::<_, &str>(0), "one");
}

/// The proxy's own question about a failed transaction fails as well, maybe after the client has sent its `COMMIT`.
// hazard: PROXY-38
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_transaction_ends_without_another_error() {
    let site = Site::start("auth = \"trust\"").await;
    let client = site.connect().await;
    client
        .batch_execute("CREATE TABLE t (a int)")
        .await
        .expect("creates");
    for _ in 0..500 {
        client.batch_execute("BEGIN").await.expect("begins");
        let fails = client.batch_execute("INSERT INTO t VALUES (1 / 0)");
        fails.await.expect_err("it divides by zero");
        client.batch_execute("COMMIT").await.expect("it rolls back");
    }
}

/// What a client asked for when it connected is what `RESET` goes back to, on whatever server.
// hazard: PROXY-39
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_goes_back_to_what_the_startup_message_said() {
    let site = Site::start("auth = \"trust\"\npool_mode = \"transaction\"\npool_size = 1").await;
    let startup = "application_name=one options='-c search_path=s -c datestyle=Postgres,DMY'";
    let client = site.try_connect("postgres", startup).await;
    let client = client.expect("it connects");
    let show = async |name: &str| {
        let row = client.query_one(&format!("SHOW {name}"), &[]).await;
        row.expect("shows").get::<_, String>(0)
    };
    for reset in [
        "RESET search_path",
        "SET search_path TO DEFAULT",
        "RESET ALL",
        "DISCARD ALL",
        "BEGIN; RESET search_path; COMMIT",
    ] {
        let set = "SET search_path TO t; SET datestyle TO ymd; RESET datestyle";
        client.batch_execute(set).await.expect("sets");
        client.batch_execute(reset).await.expect(reset);
        assert_eq!(show("search_path").await, "s", "{reset}");
        assert_eq!(show("datestyle").await, "Postgres, DMY", "{reset}");
        assert_eq!(show("application_name").await, "one", "{reset}");
    }
}

/// Whom a session is taken for, and its role, stay with it, also if `SET SESSION AUTHORIZATION` took the role away.
#[tokio::test(flavor = "multi_thread")]
async fn identity_of_a_session_stays_with_it() {
    let site = Site::start("auth = \"trust\"\npool_mode = \"transaction\"\npool_size = 1").await;
    site.primary
        .sql(&["CREATE ROLE one", "CREATE ROLE two", "GRANT two TO one"]);
    let (first, second) = (site.connect().await, site.connect().await);
    let who = async |client: &tokio_postgres::Client| {
        let text = "SELECT session_user || ' as ' || current_user";
        let row = client.query_one(text, &[]).await.expect("answers");
        row.get::<_, String>(0)
    };
    let steps = [
        ("SET ROLE two", "postgres as two"),
        ("SET SESSION AUTHORIZATION one", "one as one"),
        ("SET ROLE two", "one as two"),
        ("RESET SESSION AUTHORIZATION", "postgres as postgres"),
    ];
    for (statement, expected) in steps {
        first.batch_execute(statement).await.expect(statement);
        assert_eq!(who(&second).await, "postgres as postgres", "{statement}");
        assert_eq!(who(&first).await, expected, "{statement}");
        assert_eq!(who(&second).await, "postgres as postgres", "{statement}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_is_cancelled() {
    let site = Site::start("auth = \"trust\"").await;
    let client = site.connect().await;
    let token = client.cancel_token();
    let code = site
        .primary
        .cancel(client.batch_execute(SLEEP), &token)
        .await;
    assert_eq!(code, SqlState::QUERY_CANCELED);
}

/// Passes connections to a server on, and each cancel request twice, the second time after a while: so PostgreSQL signals a
/// session (the process, and its group) when the machine gives its attention to others in between.
async fn signal_twice(listener: tokio::net::TcpListener, socket: std::path::PathBuf) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    while let Ok((mut client, _)) = listener.accept().await {
        let socket = socket.clone();
        tokio::spawn(async move {
            let mut head = [0; 8];
            client.read_exact(&mut head).await?;
            let is_cancel = head[4..] == (80_877_102_u32).to_be_bytes();
            if !is_cancel {
                let mut server = tokio::net::UnixStream::connect(&socket).await?;
                server.write_all(&head).await?;
                return tokio::io::copy_bidirectional(&mut client, &mut server).await;
            }
            let mut request = head.to_vec();
            request.resize(16, 0);
            client.read_exact(&mut request[8..]).await?;
            for after_ms in [0, 500] {
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
                let mut server = tokio::net::UnixStream::connect(&socket).await?;
                server.write_all(&request).await?;
                // It closes the connection when it has signalled, some way or other.
                let _ = server.read_to_end(&mut Vec::new()).await;
            }
            Ok((0, 0))
        });
    }
}

/// The one connection to the server goes from a client whose statement was cancelled to the next only when the request has
/// been carried out. (What it may strike otherwise was seen as an INSERT of another client that was cancelled.)
// hazard: PROXY-30
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_request_strikes_nobody_else() {
    let server = Server::init("fsync = off");
    server.start();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let address = listener.local_addr().expect("an address");
    let port = server
        .address()
        .rsplit_once(':')
        .expect("a port")
        .1
        .to_owned();
    let socket = server.directory().join(format!(".s.PGSQL.{port}"));
    tokio::spawn(signal_twice(listener, socket));
    let directory = tempfile::tempdir().expect("a directory");
    let text = format!("epoch = 1\nactive = \"{address}\"\n");
    std::fs::write(directory.path().join("cluster.toml"), text).expect("it can be written");
    let configuration = "auth = \"trust\"\npool_mode = \"transaction\"\npool_size = 1\n\
        [server_tls]\nmode = \"disable\"";
    let serving = Serving::start(directory.path(), configuration);
    serving.wait_until_served().await.expect("it serves");
    let first = serving.connect().await;
    let second = serving.connect().await;
    let token = first.cancel_token();
    let cancelled = server.cancel(first.batch_execute(SLEEP), &token);
    let working = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        second.batch_execute("SELECT pg_sleep(1)").await
    };
    let (code, worked) = tokio::join!(cancelled, working);
    assert_eq!(code, SqlState::QUERY_CANCELED);
    worked.expect("nobody has cancelled it");
}

#[tokio::test(flavor = "multi_thread")]
async fn data_is_copied_both_ways() {
    use bytes::Bytes;
    use futures_util::{SinkExt, StreamExt};
    for mode in ["session", "transaction"] {
        let site = Site::start(&format!("auth = \"trust\"\npool_mode = \"{mode}\"")).await;
        let client = site.connect().await;
        client
            .batch_execute("CREATE TABLE t (a int)")
            .await
            .expect("creates");
        let sink = client
            .copy_in::<_, Bytes>("COPY t FROM STDIN")
            .await
            .expect("begins");
        let mut sink = std::pin::pin!(sink);
        for value in 0..1000 {
            sink.send(Bytes::from(format!("{value}\n")))
                .await
                .expect("sends");
        }
        assert_eq!(sink.finish().await.expect("ends"), 1000);
        let stream = client.copy_out("COPY t TO STDOUT").await.expect("begins");
        let mut stream = std::pin::pin!(stream);
        let mut bytes = 0;
        while let Some(piece) = stream.next().await {
            bytes += piece.expect("a piece").len();
        }
        assert_eq!(bytes, 3890);
        let wrong = client
            .batch_execute("COPY nothing FROM STDIN")
            .await
            .expect_err("refused");
        assert_eq!(wrong.code(), Some(&SqlState::UNDEFINED_TABLE));
        client
            .batch_execute("SELECT 1")
            .await
            .expect("the connection goes on");
    }
}

/// Says a startup message of this version by hand; the answers up to `ReadyForQuery`.
fn start_by_hand(site: &Site, version: u32) -> Vec<u8> {
    let mut stream = TcpStream::connect(site.address).expect("it connects");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a timeout");
    let body = b"user\0postgres\0database\0postgres\0\0";
    let len = u32::try_from(body.len() + 8).expect("short");
    let message = [&len.to_be_bytes()[..], &version.to_be_bytes(), body].concat();
    stream.write_all(&message).expect("sends");
    let mut answers = Vec::new();
    let mut buffer = [0; 4096];
    while !answers.ends_with(b"Z\0\0\0\x05I") {
        let read = stream.read(&mut buffer).expect("answers");
        assert!(read > 0, "the connection ended after {answers:?}");
        answers.extend_from_slice(&buffer[..read]);
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_protocols_have_longer_keys() {
    let site = Site::start("auth = \"trust\"").await;
    let key = |answers: &[u8]| {
        let mut at = 0;
        while answers[at] != b'K' {
            let len = u32::from_be_bytes(answers[at + 1..at + 5].try_into().expect("four"));
            at += len as usize + 1;
        }
        answers[at + 4]
    };
    let (old, new) = tokio::task::block_in_place(|| {
        (
            start_by_hand(&site, 3 << 16),
            start_by_hand(&site, (3 << 16) + 2),
        )
    });
    assert_eq!(key(&old), 12);
    assert_eq!(key(&new), 40);
    let newer = tokio::task::block_in_place(|| start_by_hand(&site, (3 << 16) + 9999));
    assert!(
        newer.starts_with(b"v\0\0\0\x0c\0\x03\0\x02"),
        "it is told of 3.2"
    );
}

/// Two clients take turns on one connection: each finds what it has set, and nothing else.
// hazard: PROXY-41
#[tokio::test(flavor = "multi_thread")]
async fn settings_are_made_again_as_they_were() {
    let site = Site::start("auth = \"trust\"\npool_mode = \"transaction\"\npool_size = 1").await;
    site.primary.sql(&[
        "CREATE SCHEMA one",
        "CREATE SCHEMA two",
        "CREATE TABLE two.here (a int)",
        "CREATE ROLE limited",
    ]);
    let startup = "options='-c search_path=one,two'";
    let client = site.try_connect("postgres", startup).await;
    let client = client.expect("it connects");
    let other = site.connect().await;
    let text = "SELECT set_config('a.list', 'one, two', false)";
    other.batch_execute(text).await.expect("sets");
    for set in [
        "SET a.b = 1 -- why",
        "SET ROLE limited -- for now",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    ] {
        other.batch_execute(set).await.expect("sets");
    }
    let show = "SELECT concat_ws(' ', current_setting('a.list', true), current_setting('a.b', true), current_user, \
                current_setting('transaction_read_only'), current_setting('transaction_isolation'))";
    for _ in 0..3 {
        let found = client.batch_execute("TABLE here").await;
        found.expect("the schema of the startup message is looked into");
        let shown = client.query_one(show, &[]).await.expect("shows");
        let shown: &str = shown.get(0);
        assert!(shown.ends_with("postgres off read committed"), "{shown}");
        let shown = other.query_one(show, &[]).await.expect("shows");
        assert_eq!(
            shown.get::<_, &str>(0),
            "one, two 1 limited on serializable"
        );
    }
}

/// What a text has committed stays on the connection, whatever fails after it: the next client must not have it.
#[tokio::test(flavor = "multi_thread")]
async fn state_of_one_client_never_reaches_another() {
    let site = Site::start("auth = \"trust\"\npool_mode = \"transaction\"\npool_size = 1").await;
    let one = site.connect().await;
    let other = site.connect().await;
    let show = "SELECT coalesce(nullif(current_setting('app.tenant', true), ''), 'none')";
    for text in [
        "BEGIN; SET app.tenant = 'one'; COMMIT; SELECT 1 / 0",
        "BEGIN; ROLLBACK; SET app.tenant = 'one'",
        "SET app.tenant = 'one'; COMMIT; BEGIN; DISCARD ALL",
    ] {
        // It may fail, as it is meant to.
        let _ = one.batch_execute(text).await;
        let _ = one.batch_execute("ROLLBACK").await;
        let row = other.query_one(show, &[]).await.expect("shows");
        assert_eq!(row.get::<_, &str>(0), "none", "{text}");
        let row = one.query_one(show, &[]).await.expect("shows");
        assert_eq!(row.get::<_, &str>(0), "one", "{text}");
        one.batch_execute("RESET app.tenant").await.expect("resets");
    }
}

/// The client closes the statement and prepares it again, as drivers do. All others have it under the same name.
// hazard: PROXY-43
#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_statement_outlives_a_change_of_its_table() {
    let site = Site::start("auth = \"trust\"\npool_mode = \"transaction\"\npool_size = 1").await;
    let client = site.connect().await;
    client
        .batch_execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
        .await
        .expect("creates");
    let text = "SELECT * FROM t";
    let before = client.prepare(text).await.expect("prepares");
    client.query_one(&before, &[]).await.expect("answers");
    client
        .batch_execute("ALTER TABLE t ADD b int DEFAULT 2")
        .await
        .expect("alters");
    let error = client.query_one(&before, &[]).await.expect_err("it fails");
    assert_eq!(error.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED));
    drop(before);
    for _ in 0..3 {
        let after = client.prepare(text).await.expect("prepares");
        let row = client.query_one(&after, &[]).await.expect("answers");
        assert_eq!(row.get::<_, i32>(1), 2);
        let other = site.connect().await;
        let after = other.prepare(text).await.expect("prepares");
        other.query_one(&after, &[]).await.expect("answers");
    }
}

/// A client that asked for something else was told the date style of whoever had had the connection before; drivers that
/// depend on one end the connection then.
// hazard: PROXY-58
#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_greeted_with_its_own_settings() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let site = Site::start("auth = \"trust\"\npool_mode = \"transaction\"\npool_size = 1").await;
    let one = site.connect().await;
    let set = "SET datestyle = 'German'; SET application_name = 'one'";
    one.batch_execute(set).await.expect("sets");
    let greeted = async |parameters: &str| {
        let mut stream = tokio::net::TcpStream::connect(site.address)
            .await
            .expect("it connects");
        let body = format!("\0\x03\0\0user\0postgres\0database\0postgres\0{parameters}\0");
        let len = u32::try_from(body.len() + 4).expect("short").to_be_bytes();
        let packet = [&len[..], body.as_bytes()].concat();
        stream.write_all(&packet).await.expect("sends");
        let mut greeting = Vec::new();
        while !greeting.ends_with(b"Z\0\0\0\x05I")
            && stream.read_buf(&mut greeting).await.expect("reads") > 0
        {}
        String::from_utf8_lossy(&greeting).into_owned()
    };
    let plain = greeted("").await;
    assert!(plain.contains("DateStyle\0ISO, MDY\0"), "{plain:?}");
    let asking = greeted("datestyle\0SQL, DMY\0application_name\0two\0").await;
    assert!(asking.contains("DateStyle\0SQL, DMY\0"), "{asking:?}");
    assert!(asking.contains("application_name\0two\0"), "{asking:?}");
    // What is invalid is told when it is said, and the connection is as good as before.
    let refused = greeted("datestyle\0nonsense\0").await;
    assert!(
        refused.starts_with('E') && refused.contains("FATAL"),
        "{refused:?}"
    );
    one.batch_execute("SELECT 1").await.expect("it is served");
    let row = one.query_one("SHOW datestyle", &[]).await.expect("shows");
    assert_eq!(row.get::<_, &str>(0), "German, DMY");
}
