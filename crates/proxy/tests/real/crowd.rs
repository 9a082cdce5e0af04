//! As many clients as the proxy lets in, and those among them who mean harm: others are served meanwhile, and memory stays
//! within bounds.

use std::net::SocketAddr;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dax::tls::Stream;
use proxy::driver::descriptors;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

use crate::input::{STARTUP, resident_kib_of};
use crate::program::example;
use crate::server::{Server, free_port};
use crate::tls::{READY, SSL_REQUEST, encrypted, new_certificate};

/// `max_clients`
const CLIENTS: usize = 10_000;
/// Of each kind that says nothing, or nothing sensible.
const HARMFUL: usize = 300;
/// Who ask for a lot and do not read it. Each holds up a server.
const SLOW: usize = 10;
/// Encrypted clients, which need more memory.
const ENCRYPTED: usize = 1000;
/// What a client may cost that does nothing.
const CLIENT_KIB: u64 = 12;
/// And an encrypted one.
const ENCRYPTED_KIB: u64 = 40;
/// What else may grow: the slow readers', and what the allocator keeps.
const OTHER_KIB: u64 = 64 << 10;

/// A proxy in a process of its own, so that its memory is its own.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    fn start(directory: &std::path::Path) -> Process {
        let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let (certificate, key) = new_certificate(directory);
        let text = format!(
            "listen = \"{address}\"\ncluster_file = \"{}\"\nauth = \"trust\"\n\
             pool_mode = \"transaction\"\npool_size = {}\nmax_clients = {CLIENTS}\n\
             login_timeout = \"10s\"\n[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n",
            directory.join("cluster.toml").display(),
            SLOW + 10,
            certificate.display(),
            key.display(),
        );
        let path = directory.join("proxy.toml");
        std::fs::write(&path, text).expect("it can be written");
        let program = example("serve");
        let child = Command::new(&program).arg(&path).spawn();
        let child = child.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        Process { child, address }
    }

    fn resident_kib(&self) -> u64 {
        resident_kib_of(&self.child.id().to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This process has a socket for each client.
fn allow_files(count: u64) {
    if let Err(allowed) = descriptors::raise(count) {
        panic!(
            "{count} open files are needed, and {allowed} are allowed: raise the limit (ulimit -Hn {count}), or run as root"
        );
    }
}

/// Reads an answer up to its end.
async fn read_answer(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    while !answer.ends_with(READY) {
        let mut buffer = [0; 1024];
        match stream.read(&mut buffer).await {
            Ok(read) if read > 0 => answer.extend_from_slice(&buffer[..read]),
            _ => break,
        }
    }
    answer
}

async fn say(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("it connects");
    stream.write_all(bytes).await.expect("sends");
    stream
}

fn query(text: &str) -> Vec<u8> {
    let len = u32::try_from(text.len() + 5).expect("short").to_be_bytes();
    [b"Q", &len[..], text.as_bytes(), b"\0"].concat()
}

/// A client that was let in.
async fn enter(address: SocketAddr) -> TcpStream {
    let mut stream = say(address, STARTUP).await;
    let answer = read_answer(&mut stream).await;
    let text = String::from_utf8_lossy(&answer);
    assert!(answer.ends_with(READY), "it was not let in: {text}");
    stream
}

async fn enter_encrypted(address: SocketAddr) -> Stream {
    let mut stream = encrypted(address).await;
    stream.write_all(STARTUP).await.expect("sends");
    stream.flush().await.expect("sends");
    let mut first = [0];
    stream.read_exact(&mut first).await.expect("answers");
    assert_eq!(first[0], b'R', "it was not let in");
    stream
}

/// So many at once, not more than some at a time.
async fn all<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    count: usize,
    at_a_time: usize,
    one: impl Fn(usize) -> F,
) -> Vec<T> {
    let turns = Arc::new(Semaphore::new(at_a_time));
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let (turn, future) = (turns.clone(), one(number));
        tasks.spawn(async move {
            let _turn = turn.acquire_owned().await.expect("it is never closed");
            future.await
        });
    }
    tasks.join_all().await
}

/// Asks all the time: how often it was answered, and how long the longest answer took.
async fn ask_until(address: SocketAddr, is_over: Arc<AtomicBool>) -> (u64, Duration) {
    let port = address.port();
    let text = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    let (client, connection) = tokio_postgres::connect(&text, NoTls).await.expect("enters");
    tokio::spawn(connection);
    let (mut answers, mut longest) = (0, Duration::ZERO);
    while !is_over.load(Ordering::Acquire) {
        let began = Instant::now();
        client
            .query_one("SELECT 1", &[])
            .await
            .expect("it is served");
        longest = longest.max(began.elapsed());
        answers += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (answers, longest)
}

/// Everybody who is refused, and everybody who says nothing and should not be served.
async fn harm(address: SocketAddr) -> Vec<TcpStream> {
    let mut held = Vec::new();
    held.extend(all(HARMFUL, 50, move |_| say(address, b"")).await);
    let half_encrypted = move |_| async move {
        let mut stream = say(address, SSL_REQUEST).await;
        assert_eq!(stream.read_u8().await.expect("answers"), b'S');
        let begun = b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03";
        stream.write_all(begun).await.expect("sends");
        stream
    };
    held.extend(all(HARMFUL, 50, half_encrypted).await);
    for (noise, code) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "08P01"),
        (b"\0\x01\x86\xa0\0\x03\0\0".to_vec(), "08P01"),
        ([STARTUP, b"Q\x7f\xff\xff\xff"].concat(), "54000"),
    ] {
        let told = all(HARMFUL, 50, move |_| {
            let noise = noise.clone();
            async move {
                let mut stream = say(address, &noise).await;
                let mut told = Vec::new();
                // A reset is an end as well.
                let _ = stream.read_to_end(&mut told).await;
                told
            }
        });
        for told in told.await {
            let told = String::from_utf8_lossy(&told).into_owned();
            assert!(told.contains(code), "{told}");
        }
    }
    held
}

// hazard: PROXY-36
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "opens 10,000 connections; run by make test-crowd"]
async fn ten_thousand_clients_are_served_beside_those_who_mean_harm() {
    allow_files(CLIENTS as u64 + 5000);
    let server = Server::init("fsync = off");
    server.start();
    let directory = tempfile::tempdir().expect("a directory");
    let text = format!("epoch = 1\nactive = \"{}\"\n", server.address());
    std::fs::write(directory.path().join("cluster.toml"), text).expect("it can be written");
    let proxy = Process::start(directory.path());
    let address = proxy.address;
    while TcpStream::connect(address).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(all(100, 50, move |_| enter(address)).await);
    let began = proxy.resident_kib();
    let encrypted = all(ENCRYPTED, 50, move |_| enter_encrypted(address)).await;
    let grown = proxy.resident_kib().saturating_sub(began);
    println!("{ENCRYPTED} encrypted clients took {grown} KiB, in addition to {began} KiB");
    assert!(grown < ENCRYPTED as u64 * ENCRYPTED_KIB);
    drop(encrypted);
    let before = proxy.resident_kib();

    let is_over = Arc::new(AtomicBool::new(false));
    let asking = tokio::spawn(ask_until(address, is_over.clone()));
    let held = harm(address).await;
    let large = query("SELECT repeat('x', 1000) FROM generate_series(1, 200000)");
    let mut slow = all(SLOW, SLOW, move |_| enter(address)).await;
    for stream in &mut slow {
        stream.write_all(&large).await.expect("sends");
    }
    let began = Instant::now();
    let mut clients = all(CLIENTS - SLOW - 1, 50, move |_| enter(address)).await;
    let entered = began.elapsed();
    let mut refused = say(address, STARTUP).await;
    let told = String::from_utf8_lossy(&read_answer(&mut refused).await).into_owned();
    assert!(told.contains("53300"), "{told}");
    let idle = proxy.resident_kib();

    let began = Instant::now();
    for client in &mut clients {
        client.write_all(&query("SELECT 1")).await.expect("sends");
    }
    for client in &mut clients {
        let answer = read_answer(client).await;
        let text = String::from_utf8_lossy(&answer);
        assert!(text.contains("SELECT 1"), "{text}");
    }
    let answered = began.elapsed();
    let after = proxy.resident_kib();
    println!(
        "{} clients entered in {entered:?} and were all answered in {answered:?}; the proxy had {before} KiB before, \
         {idle} KiB with them, {after} KiB when they had asked",
        clients.len()
    );
    let bound = before + CLIENTS as u64 * CLIENT_KIB + OTHER_KIB;
    assert!(idle.max(after) < bound, "more than {bound} KiB");

    // Whoever said nothing was sent away.
    for mut stream in held {
        let mut told = Vec::new();
        let read = stream.read_to_end(&mut told);
        let ended = tokio::time::timeout(Duration::from_secs(60), read).await;
        assert!(ended.is_ok(), "it is still there");
    }
    drop((clients, slow));
    is_over.store(true, Ordering::Release);
    let (answers, longest) = asking.await.expect("it was always served");
    println!(
        "another client was answered {answers} times meanwhile, after {longest:?} at the longest"
    );
}
