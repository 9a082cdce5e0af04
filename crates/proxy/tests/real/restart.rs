//! Another process takes the place of a proxy's: what clients see of it, and what happens when it does not come to that.

use std::future::poll_fn;
use std::io::Write;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dax::tls::Stream;
use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, NoTls, SimpleQueryMessage};

use crate::input::STARTUP;
use crate::program::example;
use crate::server::{SLEEP, Server, free_port};
use crate::tls::{READY, encrypt, new_certificate};

/// A proxy of its own process, and of whatever processes take its place.
struct Service {
    server: Server,
    directory: tempfile::TempDir,
    address: SocketAddr,
    first: Child,
    /// What a service manager would be told.
    manager: UnixDatagram,
    /// The processes that were said to be the main one.
    mains: Vec<Pid>,
}

impl Service {
    async fn start(configuration: &str) -> Service {
        let directory = tempfile::tempdir().expect("a directory");
        Service::start_in(directory, configuration).await
    }

    async fn start_in(directory: tempfile::TempDir, configuration: &str) -> Service {
        let server = Server::init("fsync = off\nmax_connections = 100");
        server.start();
        let path = |name: &str| directory.path().join(name);
        let text = format!("epoch = 1\nactive = \"{}\"\n", server.address());
        std::fs::write(path("cluster.toml"), text).expect("it can be written");
        let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let text = format!(
            "listen = \"{address}\"\ncluster_file = \"{}\"\nauth = \"trust\"\n{configuration}",
            path("cluster.toml").display()
        );
        std::fs::write(path("proxy.toml"), text).expect("it can be written");
        // Not by us: a child of another test's could keep the file open for writing, and it could not be run.
        let copied = Command::new("cp")
            .arg(example("serve"))
            .arg(path("serve"))
            .status();
        assert!(copied.expect("it runs").success(), "a program of its own");
        let manager = UnixDatagram::bind(path("notify")).expect("a socket");
        manager
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a timeout");
        let first = Command::new(path("serve"))
            .arg(path("proxy.toml"))
            .env("NOTIFY_SOCKET", path("notify"))
            .spawn()
            .expect("it runs");
        let mains = vec![Pid::from_raw(first.id().cast_signed())];
        let service = Service {
            server,
            directory,
            address,
            first,
            manager,
            mains,
        };
        for _ in 0..1000 {
            if service.try_connect("postgres").await.is_ok() {
                return service;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("nobody is served");
    }

    fn text(&self, database: &str) -> String {
        let port = self.address.port();
        format!("host=127.0.0.1 port={port} user=postgres dbname={database}")
    }

    async fn try_connect(&self, database: &str) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(&self.text(database), NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    async fn connect(&self) -> Client {
        self.try_connect("postgres").await.expect("it connects")
    }

    /// Asks for a restart, and waits until it is answered.
    async fn restart(&self) -> Result<(), String> {
        let operator = self.try_connect("understudy").await.expect("it connects");
        let answered = operator.simple_query("RESTART").await;
        answered.map(drop).map_err(|error| {
            let told = error.as_db_error().map(ToString::to_string);
            told.unwrap_or_else(|| error.to_string())
        })
    }

    /// The process that the service manager was told of.
    fn heed_manager(&mut self) -> Pid {
        let mut told = [0; 64];
        let len = self.manager.recv(&mut told).expect("it is told");
        let told = String::from_utf8_lossy(&told[..len]).into_owned();
        let pid = told.strip_prefix("MAINPID=").expect("the main process");
        let pid = Pid::from_raw(pid.parse().expect("a number"));
        self.mains.push(pid);
        pid
    }

    /// The process that is being started, once it is there.
    async fn successor(&self) -> Pid {
        let main = self.mains.last().expect("one");
        let path = format!("/proc/{main}/task/{main}/children");
        for _ in 0..10_000 {
            let children = std::fs::read_to_string(&path).unwrap_or_default();
            if let Some(child) = children.split_whitespace().next() {
                return Pid::from_raw(child.parse().expect("a number"));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("no process is started");
    }

    fn program(&self) -> PathBuf {
        self.directory.path().join("serve")
    }

    /// As an upgrade does it: the file is another one, under the same name.
    fn replace_program(&self, with: impl FnOnce(&PathBuf)) {
        let new = self.directory.path().join("serve.new");
        with(&new);
        std::fs::rename(&new, self.program()).expect("it can be renamed");
    }
}

impl Service {
    /// All processes of its program, by their ids.
    fn processes(&self) -> Vec<Pid> {
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let is_ours = |entry: &std::fs::DirEntry| {
            let program = std::fs::read_link(entry.path().join("exe"));
            program.is_ok_and(|program| program.starts_with(self.directory.path()))
        };
        let ours = all.filter(is_ours);
        ours.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw))
            .collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        for pid in self.processes() {
            // It may have ended meanwhile.
            let _ = kill(pid, Signal::SIGKILL);
        }
        let _ = self.first.wait();
    }
}

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

/// Waits for the end of a process.
fn ends(service: &mut Service, pid: Pid) {
    for _ in 0..1000 {
        let is_first = pid.as_raw() == service.first.id().cast_signed();
        let has_ended = match is_first {
            true => service.first.try_wait().expect("a child").is_some(),
            // Ended, or waited for by nobody here.
            false => std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .map_or(true, |stat| stat.contains(") Z ")),
        };
        if has_ended {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("process {pid} does not end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_is_not_noticed_in_transaction_mode() {
    goes_unnoticed("transaction").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_is_not_noticed_in_session_mode() {
    goes_unnoticed("session").await;
}

/// A new version that cannot run, and one that is no proxy at all: the process goes on, and the next restart works.
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
