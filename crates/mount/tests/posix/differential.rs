//! The same random operations on the mount and on a local directory: results and trees must agree.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, FallocateFlags, RenameFlags, fallocate, renameat2};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const ROUNDS: u64 = 3;
const STEPS: usize = 400;

/// One operation; paths are below either root.
#[derive(Debug, Clone)]
enum Step {
    Write(PathBuf, u64, Vec<u8>),
    Append(PathBuf, Vec<u8>),
    Read(PathBuf, u64, usize),
    Truncate(PathBuf, u64),
    Zero(PathBuf, u64, u64, bool),
    Create(PathBuf),
    Mkdir(PathBuf),
    Symlink(PathBuf, PathBuf),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf, u32),
    Unlink(PathBuf),
    Rmdir(PathBuf),
    /// Opens a handle into a slot and keeps it, whatever happens to its name.
    Keep(usize, PathBuf),
    WriteKept(usize, u64, Vec<u8>),
    ReadKept(usize, u64, usize),
    Fsync(PathBuf),
}

fn path(random: &mut SmallRng) -> PathBuf {
    let mut path = PathBuf::new();
    for _ in 0..random.random_range(0..3) {
        path.push(["x", "y"][random.random_range(0..2)]);
    }
    path.push(["a", "b", "c", "x", "y"][random.random_range(0..5)]);
    path
}

fn offset(random: &mut SmallRng) -> u64 {
    match random.random_range(0..3) {
        0 => random.random_range(0..6) * 8192,
        1 => random.random_range(0..50_000),
        _ => (random.random_range(1..6) * 8192) - random.random_range(0..3),
    }
}

fn bytes(random: &mut SmallRng) -> Vec<u8> {
    let len = match random.random_range(0..3) {
        0 => 8192,
        1 => random.random_range(1..100),
        _ => random.random_range(1..30_000),
    };
    let fill = random.random_range(1..=255);
    (0..len).map(|i: usize| (i as u8) ^ fill).collect()
}

fn step(random: &mut SmallRng) -> Step {
    let slot = random.random_range(0..3);
    match random.random_range(0..22) {
        0..=3 => Step::Write(path(random), offset(random), bytes(random)),
        4 => Step::Append(path(random), bytes(random)),
        5..=6 => Step::Read(path(random), offset(random), 20_000),
        7..=8 => Step::Truncate(path(random), offset(random)),
        9 => Step::Zero(
            path(random),
            offset(random),
            offset(random) + 1,
            random.random(),
        ),
        10 => Step::Create(path(random)),
        11..=12 => Step::Mkdir(path(random)),
        13 => Step::Symlink(path(random), path(random)),
        14 => Step::Link(path(random), path(random)),
        15..=16 => Step::Rename(path(random), path(random), random.random_range(0..3)),
        17 => Step::Unlink(path(random)),
        18 => Step::Rmdir(path(random)),
        19 => Step::Keep(slot, path(random)),
        20 => Step::WriteKept(slot, offset(random), bytes(random)),
        _ => match random.random() {
            true => Step::ReadKept(slot, offset(random), 20_000),
            false => Step::Fsync(path(random)),
        },
    }
}

/// One of the two sides.
struct Side {
    root: PathBuf,
    kept: Vec<Option<File>>,
}

impl Side {
    fn new(root: PathBuf) -> Side {
        let kept = vec![None, None, None];
        Side { root, kept }
    }

    fn open(&self, path: &Path) -> std::io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).open(self.root.join(path))
    }

    /// What the step returned: bytes read, or an errno.
    fn run(&mut self, step: &Step) -> Result<Vec<u8>, i32> {
        self.try_run(step).map_err(|e| e.raw_os_error().unwrap())
    }

    fn try_run(&mut self, step: &Step) -> std::io::Result<Vec<u8>> {
        let at = |path: &Path| self.root.join(path);
        let read = |file: &File, offset, len| {
            let mut buffer = vec![0; len];
            let n = file.read_at(&mut buffer, offset)?;
            buffer.truncate(n);
            Ok(buffer)
        };
        match step {
            Step::Write(path, offset, data) => self.open(path)?.write_all_at(data, *offset)?,
            Step::Append(path, data) => {
                let mut file = OpenOptions::new().append(true).open(at(path))?;
                std::io::Write::write_all(&mut file, data)?;
            }
            Step::Read(path, offset, len) => return read(&self.open(path)?, *offset, *len),
            Step::Truncate(path, size) => self.open(path)?.set_len(*size)?,
            Step::Zero(path, offset, len, keep) => {
                let mut flags = FallocateFlags::FALLOC_FL_ZERO_RANGE;
                flags.set(FallocateFlags::FALLOC_FL_KEEP_SIZE, *keep);
                let file = self.open(path)?;
                fallocate(&file, flags, *offset as i64, *len as i64)?;
            }
            Step::Create(path) => drop(
                OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(at(path))?,
            ),
            Step::Mkdir(path) => fs::create_dir(at(path))?,
            Step::Symlink(target, path) => symlink(target, at(path))?,
            Step::Link(from, to) => fs::hard_link(at(from), at(to))?,
            Step::Rename(from, to, flags) => {
                let flags = RenameFlags::from_bits_truncate(*flags);
                renameat2(AT_FDCWD, &at(from), AT_FDCWD, &at(to), flags)?;
            }
            Step::Unlink(path) => fs::remove_file(at(path))?,
            Step::Rmdir(path) => fs::remove_dir(at(path))?,
            Step::Keep(slot, path) => self.kept[*slot] = Some(self.open(path)?),
            Step::WriteKept(slot, offset, data) => {
                if let Some(file) = &self.kept[*slot] {
                    file.write_all_at(data, *offset)?;
                }
            }
            Step::ReadKept(slot, offset, len) => {
                if let Some(file) = &self.kept[*slot] {
                    return read(file, *offset, *len);
                }
            }
            Step::Fsync(path) => File::open(at(path))?.sync_all()?,
        }
        Ok(vec![])
    }

    /// Everything that can be seen, by path.
    fn tree(&self) -> BTreeMap<PathBuf, (u64, Vec<u8>)> {
        let mut tree = BTreeMap::new();
        let mut left = vec![PathBuf::new()];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(self.root.join(&directory)).unwrap() {
                let path = directory.join(entry.unwrap().file_name());
                let full = self.root.join(&path);
                let meta = fs::symlink_metadata(&full).unwrap();
                let contents = if meta.is_dir() {
                    left.push(path.clone());
                    b"directory".to_vec()
                } else if meta.is_symlink() {
                    fs::read_link(&full)
                        .unwrap()
                        .into_os_string()
                        .into_encoded_bytes()
                } else {
                    fs::read(&full).unwrap()
                };
                let links = if meta.is_dir() { 0 } else { meta.nlink() };
                tree.insert(path, (links, contents));
            }
        }
        tree
    }
}

pub fn same_as_a_local_directory(root: &Path) {
    for round in 0..ROUNDS {
        let seed = match std::env::var("SEED") {
            Ok(seed) => seed.parse().unwrap(),
            Err(_) => rand::random(),
        };
        let name = format!("round-{round}");
        fs::create_dir(root.join(&name)).unwrap();
        let local = tempfile::tempdir().unwrap();
        let mut here = Side::new(root.join(&name));
        let mut there = Side::new(local.path().to_path_buf());
        let mut random = SmallRng::seed_from_u64(seed);
        for number in 0..STEPS {
            let step = step(&mut random);
            let (got, expected) = (here.run(&step), there.run(&step));
            assert!(
                got == expected,
                "SEED={seed} step {number} {:?}: {:?} instead of {:?}",
                brief(&step),
                got.map(|bytes| bytes.len()),
                expected.map(|bytes| bytes.len()),
            );
        }
        assert!(here.tree() == there.tree(), "SEED={seed}: trees differ");
    }
}

/// A step without its bytes.
fn brief(step: &Step) -> Step {
    match step.clone() {
        Step::Write(path, offset, data) => Step::Write(path, offset, vec![data.len() as u8]),
        Step::Append(path, data) => Step::Append(path, vec![data.len() as u8]),
        Step::WriteKept(slot, offset, data) => {
            Step::WriteKept(slot, offset, vec![data.len() as u8])
        }
        other => other,
    }
}
