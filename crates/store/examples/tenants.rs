//! What do tenants cost a zone server, and what do they cost each other?
//!
//! `cargo run --release -p store --example tenants -- [--json] [fairness | cost | tls]...`
//!
//! - `fairness`: how long a quiet tenant's sync of one block and its read of one take, alone and
//!   beside tenants that write as fast as they can.
//! - `cost`: processor time of the server for each 1,000 blocks, and bytes kept, for 1 to 8 tenants.
//! - `tls`: blocks a second, and processor time of both sides, over TCP with and without TLS in turn.
//!
//! The server is a process of its own (this program again), so that its processor time is its own.
//! With `--json` each result is one JSON object on one line.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dax::client::{Client, ClientConfig, create_volume};
use dax::ids::{BlockKey, FileId, Generation, NodeName, VolumeName};
use dax::storage::{Storage, SyncScope, Usage, VolumeSettings};
use dax::tls::{Files, Tls, new_identity};
use futures_util::future::join_all;
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};
use store::{StoreConfig, Zone};
use tokio::task::JoinSet;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Blocks of each tenant.
const BLOCKS: u64 = 8_192;
const BLOCK_BYTES: usize = 8192;
/// What a quiet tenant does, so often.
const QUIET_ROUNDS: usize = 400;
/// Rounds with and without TLS.
const TLS_ROUNDS: usize = 5;
/// Blocks written between two syncs, and read at the same time, with and without TLS.
const TLS_BATCH: u64 = 64;
/// Between two of its syncs.
const QUIET_PAUSE: Duration = Duration::from_millis(5);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [serve, how, dir] = &args[..]
        && serve == "serve"
    {
        let how = How::parse(how)?;
        return tokio::task::block_in_place(|| serve_zone(how, Path::new(dir)));
    }
    let json = args.iter().any(|a| a == "--json");
    let all = args.iter().all(|a| a == "--json");
    let wanted = |what: &str| all || args.iter().any(|a| a == what);
    if wanted("fairness") {
        for noisy in [0, 1, 4] {
            print(json, &fairness(noisy).await?);
        }
    }
    if wanted("cost") {
        for tenants in [1, 2, 4, 8] {
            print(json, &cost(tenants).await?);
        }
    }
    if wanted("tls") {
        for round in 1..=TLS_ROUNDS {
            for how in [How::Tcp, How::Tls] {
                print(json, &protection(how, round).await?);
            }
        }
    }
    Ok(())
}

fn print(json: bool, result: &Value) {
    if json {
        println!("{result}");
        return;
    }
    let fields = result.as_object().into_iter().flatten();
    let fields: Vec<String> = fields
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    println!("{}", fields.join(", "));
}

/// How a server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Unix,
    Tcp,
    Tls,
}

impl How {
    fn parse(name: &str) -> Result<How> {
        match name {
            "unix" => Ok(How::Unix),
            "tcp" => Ok(How::Tcp),
            "tls" => Ok(How::Tls),
            other => Err(format!("no such transport: {other}").into()),
        }
    }

    fn name(self) -> &'static str {
        match self {
            How::Unix => "unix",
            How::Tcp => "tcp",
            How::Tls => "tls",
        }
    }

    /// What protects connections to the server in `dir`.
    fn tls(self, dir: &Path) -> Result<Option<Tls>> {
        let identity = Files::Identity(dir.join("cluster.pem"));
        Ok((self == How::Tls)
            .then(|| Tls::load(identity))
            .transpose()?)
    }
}

/// Serves a zone in `dir` until standard input ends; answers each line with the processor time that
/// was used, in microseconds.
fn serve_zone(how: How, dir: &Path) -> Result<()> {
    let config = StoreConfig {
        tls: how.tls(dir)?,
        ..StoreConfig::default()
    };
    let zone = Zone::open(dir.join("zone"), config)?;
    let address = match how {
        How::Unix => zone.serve(&format!("unix:{}", dir.join("socket").display()))?,
        How::Tcp | How::Tls => zone.serve("127.0.0.1:0")?,
    };
    let mut out = std::io::stdout();
    writeln!(out, "{address}")?;
    for line in std::io::stdin().lines() {
        line?;
        writeln!(out, "{}", own_cpu_us()?)?;
    }
    zone.stop()?;
    Ok(())
}

/// Processor time that this process used so far, in microseconds.
fn own_cpu_us() -> Result<u64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let (user, system) = (usage.user_time(), usage.system_time());
    let micros = (user.tv_sec() + system.tv_sec()) * 1_000_000 + user.tv_usec() + system.tv_usec();
    Ok(u64::try_from(micros)?)
}

/// A zone server in a process and directory of its own.
struct Server {
    child: Child,
    asked: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    address: String,
    tls: Option<Tls>,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start(how: How) -> Result<Server> {
        let dir = tempfile::tempdir_in(".")?;
        let dir_path: PathBuf = std::path::absolute(dir.path())?;
        new_identity(&dir_path.join("cluster.pem"))?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", how.name()])
            .arg(&dir_path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let answers = child.stdout.take().ok_or("no standard output")?;
        let mut server = Server {
            asked: child.stdin.take(),
            answers: BufReader::new(answers),
            child,
            address: String::new(),
            tls: how.tls(&dir_path)?,
            _dir: dir,
        };
        server.address = server.line()?;
        Ok(server)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Microseconds of processor time that it used so far.
    fn cpu_us(&mut self) -> Result<u64> {
        writeln!(self.asked.as_mut().ok_or("it was stopped")?)?;
        Ok(self.line()?.parse()?)
    }

    /// A tenant with one copy of each block on this server, owning its epoch.
    async fn tenant(&self, name: &str) -> Result<Arc<Client>> {
        let (addresses, volume) = (vec![self.address.clone()], VolumeName::new(name)?);
        let mut config = ClientConfig::new(volume, addresses, name);
        config.tls = self.tls.clone();
        create_volume(&config, &VolumeSettings::spread(1, 1)).await?;
        let client = Client::connect(config).await?;
        client.own_epoch(&NodeName::new(name)?).await?;
        Ok(client)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.asked.take());
        let _ = self.child.wait(); // its directory goes next, whatever it says
    }
}

fn block(at: u64) -> BlockKey {
    // A walk that visits blocks in no order.
    BlockKey::new(FileId(7), at.wrapping_mul(3_011) % BLOCKS)
}

fn noise() -> Bytes {
    let noise = (0..BLOCK_BYTES as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8);
    noise.collect::<Vec<u8>>().into()
}

/// Writes `count` blocks, waiting for room only.
async fn write(client: &Client, from: u64, count: u64, data: &Bytes) -> dax::Result<()> {
    for at in from..from + count {
        client.write_room(data.len()).await?;
        client.write(block(at), Generation::SINGLE, data.clone())?;
    }
    Ok(())
}

async fn fairness(noisy: usize) -> Result<Value> {
    let server = Server::start(How::Unix)?;
    let quiet = server.tenant("quiet").await?;
    let data = noise();
    let (stop, written) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut writers: JoinSet<dax::Result<()>> = JoinSet::new();
    for number in 0..noisy {
        let client = server.tenant(&format!("noisy-{number}")).await?;
        let (stop, written, data) = (stop.clone(), written.clone(), data.clone());
        writers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let from = written.fetch_add(64, Ordering::Relaxed);
                write(&client, from, 64, &data).await?;
            }
            Ok(())
        });
    }
    // The noise is there before the quiet tenant begins.
    tokio::time::sleep(Duration::from_secs(u64::from(noisy > 0))).await;
    let begun = (Instant::now(), written.load(Ordering::Relaxed));
    let (mut syncs, mut reads) = (Vec::new(), Vec::new());
    for round in 0..QUIET_ROUNDS as u64 {
        tokio::time::sleep(QUIET_PAUSE).await;
        write(&quiet, round, 1, &data).await?;
        let at = Instant::now();
        quiet.csync(SyncScope::Volume).await?;
        syncs.push(at.elapsed());
        let at = Instant::now();
        quiet.read(block(round), Generation::SINGLE).await?;
        reads.push(at.elapsed());
    }
    let noise_blocks = written.load(Ordering::Relaxed) - begun.1;
    let noise_rate = noise_blocks as f64 / begun.0.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    while let Some(writer) = writers.join_next().await {
        writer??;
    }
    let ms = |times: &mut Vec<Duration>, percent: usize| {
        times.sort();
        let micros = times[times.len() * percent / 100].as_micros();
        micros as f64 / 1000.0
    };
    Ok(json!({
        "test": "fairness",
        "noisy_tenants": noisy,
        "sync_p50_ms": ms(&mut syncs, 50),
        "sync_p99_ms": ms(&mut syncs, 99),
        "read_p50_ms": ms(&mut reads, 50),
        "read_p99_ms": ms(&mut reads, 99),
        "noise_blocks_per_second": noise_rate.round(),
    }))
}

/// What a share of the work took the server.
async fn cost(tenants: usize) -> Result<Value> {
    let mut server = Server::start(How::Unix)?;
    let data = noise();
    let mut clients = Vec::new();
    for number in 0..tenants {
        clients.push(server.tenant(&format!("tenant-{number}")).await?);
    }
    let each = BLOCKS / tenants as u64;
    let before = server.cpu_us()?;
    let mut writers: JoinSet<dax::Result<()>> = JoinSet::new();
    for client in &clients {
        let (client, data) = (client.clone(), data.clone());
        writers.spawn(async move {
            for from in (0..each).step_by(16) {
                write(&client, from, 16, &data).await?;
                client.csync(SyncScope::Volume).await?;
            }
            Ok(())
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer??;
    }
    let written = server.cpu_us()?;
    let mut readers: JoinSet<dax::Result<()>> = JoinSet::new();
    for client in &clients {
        let client = client.clone();
        readers.spawn(async move {
            for at in 0..each {
                client.read(block(at), Generation::SINGLE).await?;
            }
            Ok(())
        });
    }
    while let Some(reader) = readers.join_next().await {
        reader??;
    }
    let read = server.cpu_us()?;
    let per_thousand = |us: u64| (us as f64 * 1000.0 / (each * tenants as u64) as f64).round();
    let mut kept = Usage::default();
    for client in &clients {
        for (_, usage) in client.usage().await? {
            kept.used_bytes += usage.used_bytes;
            kept.since_start.add(&usage.since_start);
        }
    }
    Ok(json!({
        "test": "cost",
        "tenants": tenants,
        "write_cpu_us_per_1000_blocks": per_thousand(written - before),
        "read_cpu_us_per_1000_blocks": per_thousand(read - written),
        "blocks_written": kept.since_start.writes,
        "bytes_written": kept.since_start.write_bytes,
        "blocks_read": kept.since_start.reads,
        "bytes_read": kept.since_start.read_bytes,
        "syncs": kept.since_start.syncs,
        "bytes_kept_per_tenant": kept.used_bytes / tenants as u64,
    }))
}

/// What one client writes and reads in a second, and what that takes both sides.
async fn protection(how: How, round: usize) -> Result<Value> {
    let mut server = Server::start(how)?;
    let client = server.tenant("tenant").await?;
    let data = noise();
    let mut at = (Instant::now(), server.cpu_us()?, own_cpu_us()?);
    let mut syncs = Vec::new();
    for from in (0..BLOCKS).step_by(TLS_BATCH as usize) {
        write(&client, from, TLS_BATCH, &data).await?;
        let asked = Instant::now();
        client.csync(SyncScope::Volume).await?;
        syncs.push(asked.elapsed());
    }
    let mut measured = |server: &mut Server| -> Result<[f64; 3]> {
        let now = (Instant::now(), server.cpu_us()?, own_cpu_us()?);
        let per_thousand = |us: u64| (us as f64 * 1000.0 / BLOCKS as f64).round();
        let rate = BLOCKS as f64 / (now.0 - at.0).as_secs_f64();
        let costs = [per_thousand(now.1 - at.1), per_thousand(now.2 - at.2)];
        at = now;
        Ok([rate.round(), costs[0], costs[1]])
    };
    let written = measured(&mut server)?;
    for from in (0..BLOCKS).step_by(TLS_BATCH as usize) {
        let reads = (from..from + TLS_BATCH).map(|at| client.read(block(at), Generation::SINGLE));
        for read in join_all(reads).await {
            read?;
        }
    }
    let read = measured(&mut server)?;
    syncs.sort();
    Ok(json!({
        "test": "tls",
        "transport": how.name(),
        "round": round,
        "writes_per_second": written[0],
        "write_server_cpu_us_per_1000_blocks": written[1],
        "write_client_cpu_us_per_1000_blocks": written[2],
        "sync_p50_ms": syncs[syncs.len() / 2].as_micros() as f64 / 1000.0,
        "reads_per_second": read[0],
        "read_server_cpu_us_per_1000_blocks": read[1],
        "read_client_cpu_us_per_1000_blocks": read[2],
    }))
}
