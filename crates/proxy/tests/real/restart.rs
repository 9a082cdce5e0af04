//! Another process takes the place of a proxy's: what clients see of it, and what happens when it does not come to that.

use std::future::poll_fn;
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dax::tls::Stream;
use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, NoTls, SimpleQueryMessage};

use crate::input::STARTUP;
use crate::program::example;
use crate::server::{SLEEP, free_port};
use crate::service::{Service, ends};
use crate::tls::{READY, encrypt, new_certificate};

/// Clients at work, who count what goes wrong.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<Result<(), String>>>,
}

impl Load {
    async fn start(service: &Service) -> Load {
        let client = service.connect().await;
        let text = "CREATE TABLE log (who int, what int, PRIMARY KEY (who, what))";
        client.batch_execute(text).await.expect("a table");
        let (stop, done) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let mut tasks = Vec::new();
        for who in 0..6 {
            let (text, stop, done) = (service.text("postgres"), stop.clone(), done.clone());
            tasks.push(tokio::spawn(async move {
                let work = work(&text, who, &stop, &done).await;
                work.map_err(|error| format!("client {who}: {error:?}"))
            }));
        }
        Load { stop, done, tasks }
    }

    async fn more(&self, count: u64) {
        let goal = self.done.load(Ordering::Relaxed) + count;
        for _ in 0..3000 {
            if self.done.load(Ordering::Relaxed) >= goal {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the clients do nothing any more");
    }

    async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for task in join_all(self.tasks).await {
            task.expect("it does not panic")
                .expect("nothing went wrong");
        }
        self.done.load(Ordering::Relaxed)
    }
}

/// The first connects for each statement, the others write in transactions of one or of two statements.
async fn work(
    text: &str,
    who: i32,
    stop: &AtomicBool,
    done: &AtomicU64,
) -> Result<(), tokio_postgres::Error> {
    let connect = async || {
        let (client, connection) = tokio_postgres::connect(text, NoTls).await?;
        tokio::spawn(connection);
        Ok::<_, tokio_postgres::Error>(client)
    };
    let mut client = connect().await?;
    let insert = client.prepare("INSERT INTO log VALUES ($1, $2)").await?;
    let mut what = 0;
    while !stop.load(Ordering::Relaxed) {
        what += 1;
        match who {
            0 => {
                let client = connect().await?;
                client.simple_query("SELECT 1").await?;
            }
            1 | 2 => {
                let transaction = client.transaction().await?;
                transaction.execute(&insert, &[&who, &what]).await?;
                let text = format!("SELECT count(*) FROM log WHERE who = {who}");
                let row = transaction.query_one(&text, &[]).await?;
                assert_eq!(row.get::<_, i64>(0), i64::from(what));
                transaction.commit().await?;
            }
            3 | 4 => drop(client.execute(&insert, &[&who, &what]).await?),
            _ => {
                let text = format!("INSERT INTO log VALUES ({who}, {what})");
                client.batch_execute(&text).await?;
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    if who > 0 {
        let text = format!("SELECT count(*) FROM log WHERE who = {who}");
        let row = client.query_one(&text, &[]).await?;
        assert_eq!(row.get::<_, i64>(0), i64::from(what), "client {who}");
    }
    Ok(())
}

/// A session with everything that one can have, and nothing to do.
struct Idle {
    client: Client,
    statement: tokio_postgres::Statement,
    notified: Arc<AtomicU64>,
    pid: i32,
}

impl Idle {
    async fn start(service: &Service, number: i32) -> Idle {
        let text = service.text("postgres");
        let (client, mut connection) = tokio_postgres::connect(&text, NoTls).await.expect("in");
        let notified = Arc::new(AtomicU64::new(0));
        let counting = notified.clone();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                let is_one = matches!(message, AsyncMessage::Notification(_));
                counting.fetch_add(u64::from(is_one), Ordering::Relaxed);
            }
        });
        let text = format!(
            "SET application_name = 'idle {number}'; SET work_mem = '{}kB'; \
             CREATE TEMPORARY TABLE mine AS SELECT {number} AS n; LISTEN jobs; \
             SELECT pg_advisory_lock({number});",
            100 + number
        );
        client.batch_execute(&text).await.expect("a session");
        let statement = client
            .prepare("SELECT $1::int + 1")
            .await
            .expect("prepared");
        let row = client.query_one("SELECT pg_backend_pid()", &[]).await;
        Idle {
            pid: row.expect("answers").get(0),
            client,
            statement,
            notified,
        }
    }

    async fn check(&self, number: i32) {
        let one = async |text: &str| -> String {
            let row = self.client.query_one(text, &[]).await;
            row.unwrap_or_else(|error| panic!("{text}: {error:?}"))
                .get(0)
        };
        assert_eq!(one("SHOW application_name").await, format!("idle {number}"));
        assert_eq!(one("SHOW work_mem").await, format!("{}kB", 100 + number));
        assert_eq!(one("SELECT n::text FROM mine").await, number.to_string());
        assert_eq!(
            one("SELECT pg_backend_pid()::text").await,
            self.pid.to_string()
        );
        let row = self.client.query_one(&self.statement, &[&41]).await;
        assert_eq!(row.expect("it is prepared").get::<_, i32>(0), 42);
    }
}

/// Restarts under load, in both pool modes: nobody is refused, no statement fails, sessions have what they had, an open
/// transaction goes on, and so do cancel requests.
async fn goes_unnoticed(mode: &str) {
    let mut service = Service::start(&format!("pool_mode = \"{mode}\"")).await;
    let load = Load::start(&service).await;
    let idle = join_all((0..10).map(|number| Idle::start(&service, number))).await;
    let mut open = service.connect().await;
    let token = open.cancel_token();
    for round in 0..4 {
        load.more(200).await;
        let transaction = open.transaction().await.expect("begins");
        let text = format!("INSERT INTO log VALUES (-1, {round})");
        transaction.batch_execute(&text).await.expect("inserts");
        match round {
            0 => kill(service.mains[0], Signal::SIGUSR2).expect("it is asked"),
            _ => service.restart().await.expect("it restarts"),
        }
        let main = service.heed_manager();
        assert_eq!(service.mains.iter().filter(|one| **one == main).count(), 1);
        load.more(200).await;
        let sleep = transaction.batch_execute(SLEEP);
        let code = service.server.cancel(sleep, &token).await;
        assert_eq!(code, SqlState::QUERY_CANCELED);
        transaction.rollback().await.expect("ends");
        open.batch_execute("NOTIFY jobs").await.expect("tells");
        for (number, idle) in (0..).zip(&idle) {
            idle.check(number).await;
            assert_eq!(idle.notified.load(Ordering::Relaxed), round + 1);
        }
        // Of a client that is with the new process.
        let code = service
            .server
            .cancel(open.batch_execute(SLEEP), &token)
            .await;
        assert_eq!(code, SqlState::QUERY_CANCELED);
        // The process before has nobody left.
        let before = service.mains[service.mains.len() - 2];
        ends(&mut service, before);
    }
    let done = load.end().await;
    assert!(done > 1600, "{done}");
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(service.server.sql(&[locks]), "10");
}

// hazard: PROXY-23
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_is_not_noticed_in_transaction_mode() {
    goes_unnoticed("transaction").await;
}

// hazard: PROXY-31
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_is_not_noticed_in_session_mode() {
    goes_unnoticed("session").await;
}

/// The Unix socket is handed over as the other one is, and is there as long as somebody serves.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_clients_of_the_unix_socket() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path().to_owned();
    let configuration = format!(
        "pool_mode = \"transaction\"\nunix_socket_dir = \"{}\"",
        at.display()
    );
    let mut service = Service::start(&configuration).await;
    let port = service.address.port();
    let text = format!(
        "host={} port={port} user=postgres dbname=postgres",
        at.display()
    );
    let connect = async || {
        let (client, connection) = tokio_postgres::connect(&text, NoTls).await?;
        tokio::spawn(connection);
        Ok::<_, tokio_postgres::Error>(client)
    };
    let idle = connect().await.expect("it connects");
    let set = idle.batch_execute("SET application_name = 'kept'").await;
    set.expect("it is set");
    let token = idle.cancel_token();
    for _ in 0..2 {
        service.restart().await.expect("it restarts");
        service.heed_manager();
        let before = service.mains[service.mains.len() - 2];
        ends(&mut service, before);
        let row = idle.query_one("SHOW application_name", &[]).await;
        assert_eq!(row.expect("it is kept").get::<_, &str>(0), "kept");
        let sleep = idle.batch_execute(SLEEP);
        let code = service.server.cancel(sleep, &token).await;
        assert_eq!(code, SqlState::QUERY_CANCELED);
        let new = connect().await.expect("it connects");
        new.batch_execute("SELECT 1").await.expect("it answers");
    }
    // Another directory: who is there stays, and the old file goes with the old process.
    let elsewhere = at.join("new");
    std::fs::create_dir(&elsewhere).expect("a directory");
    let path = service.directory.path().join("proxy.toml");
    let file = std::fs::read_to_string(&path).expect("it is there");
    let other = file.replace(&*at.to_string_lossy(), &elsewhere.to_string_lossy());
    std::fs::write(&path, other).expect("it can be written");
    service.restart().await.expect("it restarts");
    service.heed_manager();
    idle.batch_execute("SELECT 1").await.expect("it is kept");
    let before = service.mains[service.mains.len() - 2];
    ends(&mut service, before);
    let name = format!(".s.PGSQL.{port}");
    for _ in 0..500 {
        if !at.join(&name).exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!at.join(&name).exists() && elsewhere.join(&name).exists());
    let last = *service.mains.last().expect("one");
    kill(last, Signal::SIGINT).expect("it is asked to end");
    ends(&mut service, last);
    assert!(!elsewhere.join(&name).exists(), "nobody listens there");
}

/// A new version that cannot run, and one that is no proxy at all: the process goes on, and the next restart works.
// hazard: PROXY-26
#[tokio::test(flavor = "multi_thread")]
async fn a_successor_that_cannot_run_changes_nothing() {
    let mut service = Service::start("pool_mode = \"transaction\"").await;
    let load = Load::start(&service).await;
    let idle = Idle::start(&service, 1).await;
    for script in ["#!/bin/sh\nexit 1\n", "#!/no/such/program\n"] {
        service.replace_program(|path| {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::write(path, script).expect("it can be written");
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(path, mode).expect("ours");
        });
        let refused = service.restart().await.expect_err("it cannot");
        assert!(
            refused.contains("the new process cannot be started"),
            "{refused}"
        );
        load.more(100).await;
        idle.check(1).await;
    }
    service.replace_program(|path| {
        std::fs::copy(example("serve"), path).expect("a program");
    });
    service.restart().await.expect("it restarts");
    service.heed_manager();
    load.more(100).await;
    idle.check(1).await;
    load.end().await;
}

/// Asks for a restart and kills the successor that long after it was started, unless that serves already. Whether it was killed.
async fn interrupt_restart(service: &Service, after: Duration) -> bool {
    let restarting = service.restart();
    tokio::pin!(restarting);
    let stopping = async {
        let pid = service.successor().await;
        tokio::time::sleep(after).await;
        // If it serves by now, its predecessor hears so before it is killed.
        kill(pid, Signal::SIGSTOP).expect("it is there");
        tokio::time::sleep(Duration::from_millis(300)).await;
        pid
    };
    tokio::select! {
        answered = &mut restarting => {
            answered.expect("it is not refused");
            return false;
        }
        pid = stopping => kill(pid, Signal::SIGKILL).expect("it is there"),
    }
    restarting.await.expect_err("it was killed");
    true
}

/// A successor is killed at whatever step it is: up to where it serves, that costs nobody anything.
// hazard: PROXY-24, PROXY-26
#[tokio::test(flavor = "multi_thread")]
async fn a_successor_that_dies_leaves_everything_as_it_was() {
    let configuration = "pool_mode = \"transaction\"\npool_size = 20";
    let mut service = Service::start(configuration).await;
    let load = Load::start(&service).await;
    let idle = join_all((0..300).map(|_| service.connect())).await;
    let mut died = 0;
    for round in 0..25 {
        if interrupt_restart(&service, Duration::from_millis(round)).await {
            died += 1;
        } else {
            let before = service.mains.last().copied().expect("one");
            let main = service.heed_manager();
            // It may have been stopped just then.
            kill(main, Signal::SIGCONT).expect("it serves");
            ends(&mut service, before);
        }
        load.more(20).await;
        for client in &idle {
            let served = client.simple_query("SELECT 1").await;
            served.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        }
        let client = service.connect().await;
        client.simple_query("SELECT 1").await.expect("let in");
    }
    assert!(died > 3, "{died} successors died");
    load.end().await;
}

/// Whoever was not asked to take over, or offers what this version does not read, is refused.
// hazard: PROXY-28
#[test]
fn another_format_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("proxy.toml");
    let text = format!(
        "listen = \"127.0.0.1:{}\"\ncluster_file = \"/no/such/file\"",
        free_port()
    );
    std::fs::write(&path, text).expect("it can be written");
    let name = format!("understudy-test-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a name");
    let meeting = UnixListener::bind_addr(&address).expect("a socket");
    let mut child = Command::new(example("serve"))
        .arg(&path)
        .env("UNDERSTUDY_PROXY_PREDECESSOR", &name)
        .spawn()
        .expect("it runs");
    let (mut successor, _) = meeting.accept().expect("it comes");
    let offer = b"\x01\0\0\0\x18understudy proxy\0\0\x03\xe7more";
    successor.write_all(offer).expect("offered");
    let mut answer = Vec::new();
    std::io::Read::read_to_end(&mut successor, &mut answer).expect("it ends");
    let text = String::from_utf8_lossy(&answer[5..]).into_owned();
    assert_eq!(answer[0], 2, "{text}");
    assert!(text.contains("format 999"), "{text}");
    assert!(!child.wait().expect("it ends").success());
}

/// What an operator is told.
async fn shown(operator: &Client, what: &str) -> Vec<String> {
    let rows = operator.simple_query(what).await.expect("shows");
    let text = |row: SimpleQueryMessage| match row {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
        _ => None,
    };
    rows.into_iter().filter_map(text).collect()
}

/// Clients keep their numbers and ages; a process whose predecessor has clients does not restart.
#[tokio::test(flavor = "multi_thread")]
async fn clients_are_the_same_to_an_operator() {
    let mut service = Service::start("pool_mode = \"transaction\"").await;
    let busy = service.connect().await;
    busy.batch_execute("BEGIN").await.expect("begins");
    let idle = service.connect().await;
    idle.batch_execute("SELECT 1").await.expect("answers");
    let operator = service.try_connect("understudy").await.expect("in");
    let before = shown(&operator, "SHOW CLIENTS").await;
    assert_eq!(before.len(), 2);
    service.restart().await.expect("it restarts");
    service.heed_manager();
    let operator = service.try_connect("understudy").await.expect("in");
    assert_eq!(shown(&operator, "SHOW CLIENTS").await, before[1..]);
    let refused = service.restart().await.expect_err("too early");
    assert!(refused.contains("still has clients"), "{refused}");
    busy.batch_execute("COMMIT").await.expect("commits");
    let first = service.mains[0];
    ends(&mut service, first);
    let mut after = shown(&operator, "SHOW CLIENTS").await;
    after.sort();
    let mut before = before;
    before.sort();
    assert_eq!(after, before);
    service.restart().await.expect("it restarts");
    service.heed_manager();
}

/// What is said on an encrypted connection up to the end of an answer, or of the connection.
async fn heard(stream: &mut Stream) -> String {
    let mut heard = Vec::new();
    let mut piece = [0; 4096];
    while !heard.ends_with(READY) {
        match tokio::time::timeout(Duration::from_secs(20), stream.read(&mut piece)).await {
            Ok(Ok(read)) if read > 0 => heard.extend_from_slice(&piece[..read]),
            Ok(_) => break,
            Err(_) => panic!("nothing is said, and no end"),
        }
    }
    String::from_utf8_lossy(&heard).into_owned()
}

/// They are served by the process before, which then tells them to connect again.
#[tokio::test(flavor = "multi_thread")]
async fn encrypted_clients_stay_until_their_time_is_over() {
    let directory = tempfile::tempdir().expect("a directory");
    let (certificate, key) = new_certificate(directory.path());
    let configuration = format!(
        "handover_timeout = \"2s\"\n[tls]\ncertificate = \"{}\"\nkey = \"{}\"",
        certificate.display(),
        key.display()
    );
    let mut service = Service::start_in(directory, &configuration).await;
    let socket = TcpSocket::new_v4().expect("a socket");
    let mut encrypted = encrypt(socket, service.address).await;
    encrypted.write_all(STARTUP).await.expect("sends");
    heard(&mut encrypted).await;
    let plain = service.connect().await;
    plain
        .batch_execute("SET work_mem = '1MB'")
        .await
        .expect("sets");
    service.restart().await.expect("it restarts");
    service.heed_manager();
    encrypted
        .write_all(b"Q\0\0\0\x0dSELECT 7\0")
        .await
        .expect("sends");
    let answer = heard(&mut encrypted).await;
    assert!(answer.contains("SELECT 1"), "{answer}");
    let told = heard(&mut encrypted).await;
    assert!(told.contains("57P01"), "{told}");
    let first = service.mains[0];
    ends(&mut service, first);
    let row = plain
        .query_one("SHOW work_mem", &[])
        .await
        .expect("it is served");
    assert_eq!(row.get::<_, String>(0), "1MB");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_proxy_is_not_restarted() {
    let service = Service::start("").await;
    let operator = service.try_connect("understudy").await.expect("in");
    operator.simple_query("PAUSE").await.expect("pauses");
    let refused = service.restart().await.expect_err("paused");
    assert!(refused.contains("RESUME"), "{refused}");
    operator.simple_query("RESUME").await.expect("resumes");
    service
        .connect()
        .await
        .simple_query("SELECT 1")
        .await
        .expect("goes on");
}
