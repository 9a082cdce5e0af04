//! What a request costs: the mount over a view in memory, next to a directory on tmpfs.
//!
//! `cargo run --release -p mount --example cost [directory on tmpfs [part of a case's name]]`
#![allow(clippy::unwrap_used, reason = "a measurement may end by panicking")]

#[path = "../tests/common/ram.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod ram;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mount::{Mount, MountOptions};
use ram::{Caching, RamView};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const BLOCK: usize = 8192;
const BLOCKS: u64 = 8192; // 64 MiB
const SLICES: u32 = 10;
const SLICE: Duration = Duration::from_millis(50);

fn main() {
    let tmpfs = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm".into());
    let local = tempfile::tempdir_in(tmpfs).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mounted = |caching| {
        let place = tempfile::tempdir().unwrap();
        let options = MountOptions::new(place.path());
        let view = Arc::new(RamView::new(caching));
        let mount = Mount::start(view, options, runtime.handle().clone()).unwrap();
        (mount, place)
    };
    let (cached, _cached_at) = mounted(Caching::All);
    let (direct, _direct_at) = mounted(Caching::Nothing);
    let places: [&Path; 3] = [local.path(), cached.path(), direct.path()];
    println!(
        "{:32}{:>12}{:>12}{:>12}",
        "microseconds each", "tmpfs", "cached", "direct"
    );
    let cases: [(&str, Case); 9] = [
        ("8 KiB write", |at| Box::new(write(at, false))),
        ("8 KiB write and fdatasync", |at| Box::new(write(at, true))),
        ("8 KiB random read", |at| Box::new(read(at, 1))),
        ("same, 4 threads, per read", |at| Box::new(read(at, 4))),
        ("fdatasync", sync),
        ("1 MiB write", |at| Box::new(write_much(at))),
        ("stat", stat),
        ("open and close", open),
        ("create and unlink", create),
    ];
    let wanted = std::env::args().nth(2).unwrap_or_default();
    for (name, case) in cases.into_iter().filter(|(name, _)| name.contains(&wanted)) {
        print!("{name:32}");
        for place in places {
            let mut act = case(place);
            act(); // once, to warm up
            let best = (0..SLICES)
                .map(|_| slice(&mut act))
                .fold(f64::MAX, f64::min);
            print!("{best:12.2}");
        }
        println!();
    }
}

/// Microseconds per act over a short while. The best of many says what a request costs when nobody
/// else wants the processors.
fn slice(act: &mut dyn FnMut() -> u32) -> f64 {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < SLICE {
        count += act();
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(count)
}

/// Sets up in a directory; what is returned acts and says how often.
type Case = fn(&Path) -> Box<dyn FnMut() -> u32>;

fn full(at: &Path) -> (File, PathBuf) {
    let path = at.join("file");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.open(&path).unwrap();
    if file.metadata().unwrap().len() == 0 {
        for block in 0..BLOCKS {
            file.write_all_at(&[block as u8; BLOCK], block * BLOCK as u64)
                .unwrap();
        }
    }
    (file, path)
}

fn random_offset(random: &mut SmallRng) -> u64 {
    random.random_range(0..BLOCKS) * BLOCK as u64
}

fn write(at: &Path, sync: bool) -> impl FnMut() -> u32 + use<> {
    let (file, _) = full(at);
    let mut random = SmallRng::seed_from_u64(1);
    move || {
        file.write_all_at(&[7; BLOCK], random_offset(&mut random))
            .unwrap();
        if sync {
            file.sync_data().unwrap();
        }
        1
    }
}

fn write_much(at: &Path) -> impl FnMut() -> u32 + use<> {
    let (file, _) = full(at);
    let data = vec![7; 1 << 20];
    move || {
        file.write_all_at(&data, 0).unwrap();
        1
    }
}

fn read(at: &Path, threads: u64) -> impl FnMut() -> u32 + use<> {
    const EACH: u32 = 200;
    let (file, _) = full(at);
    let mut round = 0;
    move || {
        round += threads;
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let file = &file;
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(round + thread);
                    let mut block = [0; BLOCK];
                    for _ in 0..EACH {
                        file.read_exact_at(&mut block, random_offset(&mut random))
                            .unwrap();
                    }
                });
            }
        });
        EACH * threads as u32
    }
}

fn sync(at: &Path) -> Box<dyn FnMut() -> u32> {
    let (file, _) = full(at);
    Box::new(move || {
        file.sync_data().unwrap();
        1
    })
}

fn stat(at: &Path) -> Box<dyn FnMut() -> u32> {
    let (_, path) = full(at);
    Box::new(move || {
        fs::metadata(&path).unwrap();
        1
    })
}

fn open(at: &Path) -> Box<dyn FnMut() -> u32> {
    let (_, path) = full(at);
    Box::new(move || {
        File::open(&path).unwrap();
        1
    })
}

fn create(at: &Path) -> Box<dyn FnMut() -> u32> {
    let path = at.join("new");
    Box::new(move || {
        File::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
        1
    })
}
