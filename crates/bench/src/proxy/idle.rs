//! What clients cost that are connected and do nothing.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use cluster::Cluster;
use cluster::clients::schema::Server;
use nix::unistd::Pid;
use proxy::driver::descriptors;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Options;
use super::ways::{Open, Pooling, Way};
use crate::peers::footprint::memory_bytes;

/// Idle clients on one way.
#[derive(Debug, Clone, Serialize)]
pub struct Idle {
    /// Way on which the clients are connected.
    pub way: Way,
    /// Number of clients.
    pub clients: u32,
    /// The pooler's memory before they came, in bytes.
    pub before_bytes: u64,
    /// With them.
    pub with_bytes: u64,
    /// The difference, for each.
    pub client_bytes: u64,
    /// How long one new connection and its first answer took with all of them there, in milliseconds.
    pub next_ms: f64,
}

/// Files besides the clients' sockets.
const OTHER_FILES: u64 = 500;
/// The pooler's memory is read so long after the last has come.
const SETTLE: Duration = Duration::from_secs(2);

/// Measures both poolers.
pub(super) async fn measure(
    options: &Options,
    cluster: &Cluster,
    say: &impl Fn(&str),
) -> anyhow::Result<Vec<Idle>> {
    if options.idle == 0 {
        return Ok(Vec::new());
    }
    let files = u64::from(options.idle) + OTHER_FILES;
    if let Err(allowed) = descriptors::raise(files) {
        bail!(
            "{files} open files are needed, and {allowed} are allowed: raise the limit (ulimit -n {files}), or ask for \
             fewer clients (--idle)"
        );
    }
    let mut all = Vec::new();
    for way in [Way::PgBouncer, Way::Understudy] {
        let open = Open::new(way, cluster, Pooling::Transaction, &options.dir).await?;
        let pid = open.pid().context("a pooler is a process")?;
        let idle = hold(way, pid, &open.server, options.idle).await?;
        say(&format!(
            "{} idle clients of {way}: {:.1} MB, {:.1} kB each; the next is answered after {:.1} ms",
            idle.clients,
            idle.with_bytes as f64 / 1e6,
            idle.client_bytes as f64 / 1e3,
            idle.next_ms
        ));
        all.push(idle);
    }
    Ok(all)
}

async fn hold(way: Way, pooler: Pid, server: &Server, clients: u32) -> anyhow::Result<Idle> {
    let memory = || memory_bytes(pooler).context("the pooler has ended");
    // It has served somebody before: what it makes once is made.
    connect(server).await?;
    tokio::time::sleep(SETTLE).await;
    let before_bytes = memory()?;
    let mut held = Vec::new();
    for _ in 0..clients {
        held.push(connect(server).await?);
    }
    tokio::time::sleep(SETTLE).await;
    let with_bytes = memory()?;
    let began = std::time::Instant::now();
    let mut next = connect(server).await?;
    query(&mut next).await?;
    Ok(Idle {
        way,
        clients,
        before_bytes,
        with_bytes,
        client_bytes: with_bytes.saturating_sub(before_bytes) / u64::from(clients),
        next_ms: began.elapsed().as_secs_f64() * 1000.0,
    })
}

/// A session: so small on this side that thousands of them cost nothing.
async fn connect(server: &Server) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect((server.host.as_str(), server.port)).await?;
    let mut message = bytes::BytesMut::new();
    let parameters = [
        ("user", server.user.as_str()),
        ("database", &server.database),
    ];
    postgres_protocol::message::frontend::startup_message(parameters, &mut message)?;
    stream.write_all(&message).await?;
    until_ready(&mut stream).await?;
    Ok(stream)
}

async fn query(stream: &mut TcpStream) -> anyhow::Result<()> {
    let mut message = bytes::BytesMut::new();
    postgres_protocol::message::frontend::query("SELECT 1", &mut message)?;
    stream.write_all(&message).await?;
    until_ready(stream).await
}

/// Reads messages up to ReadyForQuery.
async fn until_ready(stream: &mut TcpStream) -> anyhow::Result<()> {
    loop {
        let tag = stream.read_u8().await?;
        let len = stream.read_u32().await?;
        ensure!((4..1 << 20).contains(&len), "not a message of PostgreSQL");
        let mut body = vec![0; len as usize - 4];
        stream.read_exact(&mut body).await?;
        match tag {
            b'Z' => return Ok(()),
            b'E' => bail!("refused: {}", String::from_utf8_lossy(&body)),
            _ => {}
        }
    }
}
