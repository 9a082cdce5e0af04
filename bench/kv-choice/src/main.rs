//! Compares embedded key-value stores under the load of a zone: 8 KiB values under 24-byte keys,
//! random overwrites in group commits with fsync, random reads while writing.
//!
//! `cargo run --release [-- <directory> [<seconds per measurement>]]` (add `--features rocksdb` for
//! RocksDB). Engines alternate inside each of three rounds; medians over the rounds are reported.

mod engines;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engines::{Kv, open};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

const KEYS: u64 = 100_000;
const VALUE: usize = 8192;
const ROUNDS: u64 = 3;
const BATCHES: [usize; 3] = [1, 16, 128];

/// What one engine did in one round.
#[derive(Clone, Default)]
struct Round {
    load_per_s: f64,
    /// Per batch size: writes per second, p50 and p99 of a commit in ms.
    writes: Vec<(f64, f64, f64)>,
    reads_per_s: f64,
    read_p99_us: f64,
    writes_beside_reads: f64,
    amplification: f64,
    disk_mib: f64,
}

fn key(i: u64) -> [u8; 24] {
    let mut key = [0; 24];
    key[4..12].copy_from_slice(&(i / 1000).to_be_bytes());
    key[12..20].copy_from_slice(&(i % 1000).to_be_bytes());
    key
}

/// Bytes this process handed to the kernel to write (every engine here writes by system call).
fn written_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = io.lines().find_map(|l| l.strip_prefix("wchar: "));
    line.unwrap().trim().parse().unwrap()
}

fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    let sizes = entries.map(|e| match e.metadata() {
        Ok(m) if m.is_dir() => disk_bytes(&e.path()),
        Ok(m) => m.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

fn percentile(sorted: &[Duration], p: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * p) as usize].as_secs_f64()
}

/// Overwrites random keys, `batch` per commit, for `time`.
fn overwrite(
    kv: &dyn Kv,
    rng: &mut SmallRng,
    batch: usize,
    time: Duration,
) -> (f64, f64, f64, u64) {
    let mut values = vec![vec![0; VALUE]; batch];
    let (start, mut commits) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let items = values.iter_mut().map(|v| {
            rng.fill_bytes(v);
            (key(rng.random_range(0..KEYS)), v.as_slice())
        });
        let items: Vec<_> = items.collect();
        let begun = Instant::now();
        kv.commit(&items);
        commits.push(begun.elapsed());
    }
    let n = (commits.len() * batch) as u64;
    let rate = n as f64 / start.elapsed().as_secs_f64();
    commits.sort();
    (
        rate,
        percentile(&commits, 0.5) * 1e3,
        percentile(&commits, 0.99) * 1e3,
        n,
    )
}

fn round(name: &str, dir: &Path, seed: u64, time: Duration) -> Round {
    let _ = std::fs::remove_dir_all(dir);
    std::fs::create_dir_all(dir).unwrap();
    let kv = open(name, dir);
    let kv = &*kv;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut out = Round::default();
    let mut value = vec![0; VALUE];
    let (start, io) = (Instant::now(), written_bytes());
    for first in (0..KEYS).step_by(100) {
        rng.fill_bytes(&mut value);
        let items: Vec<_> = (first..first + 100)
            .map(|i| (key(i), value.as_slice()))
            .collect();
        kv.commit(&items);
    }
    out.load_per_s = KEYS as f64 / start.elapsed().as_secs_f64();
    let mut user = KEYS;
    for batch in BATCHES {
        let (rate, p50, p99, n) = overwrite(kv, &mut rng, batch, time);
        out.writes.push((rate, p50, p99));
        user += n;
    }
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let reader = s.spawn(|| {
            let mut rng = SmallRng::seed_from_u64(seed ^ 1);
            let mut times = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                assert_eq!(kv.get(&key(rng.random_range(0..KEYS))), VALUE);
                times.push(begun.elapsed());
            }
            reads.store(times.len() as u64, Ordering::Relaxed);
            times.sort();
            percentile(&times, 0.99) * 1e6
        });
        let begun = Instant::now();
        let (rate, .., n) = overwrite(kv, &mut rng, 16, time);
        stop.store(true, Ordering::Relaxed);
        out.read_p99_us = reader.join().unwrap();
        out.reads_per_s = reads.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
        out.writes_beside_reads = rate;
        user += n;
    });
    out.amplification = (written_bytes() - io) as f64 / (user * VALUE as u64) as f64;
    out.disk_mib = disk_bytes(dir) as f64 / (1 << 20) as f64;
    out
}

fn median(rounds: &[Round], f: impl Fn(&Round) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(f).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(
        args.next()
            .unwrap_or_else(|| "target/kv-choice-data".into()),
    );
    let seconds: f64 = args.next().map_or(3.0, |s| s.parse().unwrap());
    let time = Duration::from_secs_f64(seconds);
    let mut results = vec![Vec::new(); engines::NAMES.len()];
    for seed in 0..ROUNDS {
        for (name, rounds) in engines::NAMES.iter().zip(&mut results) {
            eprintln!("round {seed}: {name}");
            let dir = dir.join(format!("{name}-{seed}"));
            rounds.push(round(name, &dir, seed, time));
            let _ = std::fs::remove_dir_all(&dir);
        }
    }
    println!(
        "| engine | load/s | writes/s (1) | p50/p99 ms | writes/s (16) | p50/p99 ms | writes/s (128) \
         | p50/p99 ms | reads/s beside writes | p99 us | writes/s beside reads | write ampl. | disk MiB |"
    );
    println!("|{}", "---|".repeat(13));
    for (name, r) in engines::NAMES.iter().zip(&results) {
        print!("| {name} | {:.0} ", median(r, |r| r.load_per_s));
        for b in 0..BATCHES.len() {
            let rate = median(r, |r| r.writes[b].0);
            let (p50, p99) = (median(r, |r| r.writes[b].1), median(r, |r| r.writes[b].2));
            print!("| {rate:.0} | {p50:.2} / {p99:.2} ");
        }
        print!("| {:.0} ", median(r, |r| r.reads_per_s));
        print!("| {:.0} ", median(r, |r| r.read_p99_us));
        print!("| {:.0} ", median(r, |r| r.writes_beside_reads));
        print!("| {:.2} ", median(r, |r| r.amplification));
        println!("| {:.0} |", median(r, |r| r.disk_mib));
    }
}
