//! The zone's commit log: what makes a commit durable, before the engine has it.
//!
//! The engine's own journal grows with every commit, so syncing it writes the file system's metadata as
//! well, which costs twice the processor time and, where several zones share a disk, ten times the
//! latency at the 90th percentile (docs/understand/kv-choice.md). This log is one file, filled with zeros when it is
//! made and written over and over since: to sync it writes the record and nothing else.
//!
//! Invariants: an appended record is durable when [`CommitLog::append`] returns; a record is written
//! over only once it was released, which the engine does when its own files are durable up to it;
//! records are numbered without gaps, each durable before the next is written; a commit that the engine
//! makes durable itself leaves a record without changes. So of the records that the engine does not
//! have, only the last can be torn, and nobody was told about that one: any other gap is damage, here
//! or in the engine's files.
//!
//! ```text
//! commits.log   4 KiB: "understudy-log 1" | u64 capacity | u64 secret | u64 checksum
//!               the ring: records, each at a multiple of 4 KiB
//! ```

mod file;
mod record;
mod ring;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use file::SyncedFile;
pub(crate) use record::{Change, Draft, Kind, Record, Sequence};
pub(crate) use ring::Position;
use ring::{ALIGN, Ring};

use crate::journal::array;

const FILE: &str = "commits.log";
/// What a crash leaves of a log that was being made.
const NEW_FILE: &str = "commits.log.new";
const TITLE: &[u8; 16] = b"understudy-log 1";
const HEAD_BYTES: usize = 40;

/// What is wrong with a log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// Its file cannot be used.
    #[error("the zone's commit log")]
    Io(#[from] io::Error),
    /// It is not a log.
    #[error("the head of the zone's commit log is damaged")]
    Head,
    /// It is a log of another version.
    #[error("the zone's commit log is {0:?}, which this program does not read")]
    Version(String),
    /// The engine has commits, and there is no log.
    #[error("the zone's commit log is missing")]
    Missing,
    /// An acknowledged commit is neither in the engine nor in the log.
    #[error("commit {missing} is neither in the engine's files nor in the commit log")]
    Gap { missing: u64 },
    /// A sound record holds what no version writes.
    #[error("commit {0} in the zone's commit log is intact but has unknown contents")]
    Nonsense(u64),
}

/// The log of one zone.
#[derive(Debug)]
pub(crate) struct CommitLog {
    file: SyncedFile,
    ring: Ring,
    secret: u64,
    last: Sequence,
}

impl CommitLog {
    /// Opens the log in `dir`, or makes one for `capacity` bytes (a multiple of 4 KiB) if there is none.
    /// Gives the records that an engine which has everything up to `applied` still has to take, in order.
    pub fn open(
        dir: &Path,
        capacity: u64,
        applied: Sequence,
    ) -> Result<(CommitLog, Vec<Record>), LogError> {
        let path = dir.join(FILE);
        if !path.try_exists()? {
            if applied != Sequence::default() {
                return Err(LogError::Missing);
            }
            create(dir, capacity)?;
        }
        let bytes = Bytes::from(std::fs::read(&path)?);
        let (capacity, secret) = head(&bytes).ok_or_else(|| no_log(&bytes))?;
        let records = missing(find_all(secret, &bytes, capacity), applied)?;
        let log = CommitLog {
            file: SyncedFile::open(&path)?,
            ring: Ring::new(capacity),
            secret,
            last: records.last().map_or(applied, |record| record.sequence),
        };
        Ok((log, records))
    }

    /// The number of the next commit.
    pub fn next(&self) -> Sequence {
        self.last.next()
    }

    /// Behind the last record.
    pub fn head(&self) -> Position {
        self.ring.head()
    }

    /// Bytes of records that it has room for.
    pub fn capacity(&self) -> u64 {
        self.ring.capacity()
    }

    /// True if a record of `bytes` fits without waiting for a release.
    pub fn has_room(&self, bytes: usize, released: Position) -> bool {
        self.ring.has_room(aligned(bytes), released)
    }

    /// Makes a commit durable, or, with an empty draft, notes one that the engine has made durable.
    /// `released`: what may be written over; see [`has_room`](Self::has_room).
    ///
    /// # Errors
    /// Whatever the file says: nothing more may be appended then. `StorageFull` if there is no room.
    pub fn append(&mut self, draft: Draft, released: Position) -> io::Result<()> {
        let place = self.ring.place(aligned(draft.bytes()), released);
        let offset = place.ok_or(io::ErrorKind::StorageFull)?;
        let record = draft.seal(self.secret, self.next());
        self.file.write(&record, ALIGN + offset)?;
        self.last = self.next();
        Ok(())
    }
}

fn aligned(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(ALIGN)
}

/// Makes an empty log, whole or not at all.
fn create(dir: &Path, capacity: u64) -> io::Result<()> {
    let new = dir.join(NEW_FILE);
    let mut file = File::create(&new)?;
    let mut block = vec![0; ALIGN as usize];
    block[..HEAD_BYTES].copy_from_slice(&encode_head(capacity, rand::random()));
    file.write_all(&block)?;
    // Zeros that are written, not a hole: so that no later write has to find room.
    let zeros = vec![0; 1 << 20];
    let mut left = capacity;
    while left > 0 {
        let piece = left.min(zeros.len() as u64);
        file.write_all(&zeros[..piece as usize])?;
        left -= piece;
    }
    file.sync_all()?;
    std::fs::rename(&new, dir.join(FILE))?;
    File::open(dir)?.sync_all()
}

fn encode_head(capacity: u64, secret: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..16].copy_from_slice(TITLE);
    head[16..24].copy_from_slice(&capacity.to_le_bytes());
    head[24..32].copy_from_slice(&secret.to_le_bytes());
    let checksum = xxh3_64(&head[..32]);
    head[32..].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// The capacity and the secret of a whole log.
fn head(bytes: &[u8]) -> Option<(u64, u64)> {
    let number = |at: usize| array(bytes, at).map(u64::from_le_bytes);
    let (capacity, secret) = (number(16)?, number(24)?);
    let sound = bytes.get(..HEAD_BYTES)? == encode_head(capacity, secret);
    let whole = capacity.checked_add(ALIGN)? == bytes.len() as u64;
    (sound && whole && capacity.is_multiple_of(ALIGN)).then_some((capacity, secret))
}

/// Explains bytes that are no log of this version.
fn no_log(bytes: &[u8]) -> LogError {
    match bytes.get(..TITLE.len()) {
        Some(title) if title != TITLE && title.starts_with(&TITLE[..TITLE.len() - 1]) => {
            LogError::Version(String::from_utf8_lossy(title).into_owned())
        }
        _ => LogError::Head,
    }
}

/// Every sound record in the ring, wherever it lies.
fn find_all(secret: u64, bytes: &Bytes, capacity: u64) -> Vec<Record> {
    let places = (ALIGN..=capacity).step_by(ALIGN as usize);
    let at = |place: u64| Record::find(secret, &bytes.slice(place as usize..));
    places.filter_map(at).collect()
}

/// The last commit that all keyspaces of the engine have, given the last one of `blocks` and of `meta`: each makes its
/// own durable when it likes, so nothing is known behind the smaller one. In a directory of a format before, `meta` has
/// the only number.
pub(crate) fn in_all_of([blocks, meta]: [Option<Sequence>; 2], in_meta_alone: bool) -> Sequence {
    match (blocks, meta) {
        (None, Some(meta)) if in_meta_alone => meta,
        (blocks, meta) => blocks.min(meta).unwrap_or_default(),
    }
}

/// The records behind `applied`, in order and without a gap.
fn missing(mut records: Vec<Record>, applied: Sequence) -> Result<Vec<Record>, LogError> {
    records.retain(|record| record.sequence > applied);
    records.sort_by_key(|record| record.sequence);
    let numbers = records.iter().map(|r| (r.sequence, r.is_elsewhere()));
    check_gap(applied, numbers)?;
    Ok(records)
}

/// True if records continue what an engine has up to `applied`; those that are `elsewhere` only say that the engine has
/// them.
pub(crate) fn check_gap(
    applied: Sequence,
    records: impl IntoIterator<Item = (Sequence, bool)>,
) -> Result<(), LogError> {
    let mut expected = applied;
    for (sequence, elsewhere) in records {
        expected = expected.next();
        if sequence != expected || elsewhere {
            let missing = expected.0;
            return Err(LogError::Gap { missing });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const CAPACITY: u64 = 8 * ALIGN;

    fn draft(fill: u8, bytes: usize) -> Draft {
        let mut draft = Draft::new();
        draft.push(Kind::PutBlock, b"key", &vec![fill; bytes]);
        draft
    }

    fn open(dir: &TempDir, applied: u64) -> Result<(CommitLog, Vec<u64>), LogError> {
        let (log, records) = CommitLog::open(dir.path(), CAPACITY, Sequence(applied))?;
        Ok((log, records.iter().map(|r| r.sequence.0).collect()))
    }

    /// A log that `count` records of one block were appended to, each released at once.
    fn written(count: u64) -> (TempDir, CommitLog) {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(&dir, 0).unwrap();
        for number in 0..count {
            let released = log.head();
            log.append(draft(number as u8, 100), released).unwrap();
        }
        (dir, log)
    }

    fn path(dir: &TempDir) -> std::path::PathBuf {
        dir.path().join(FILE)
    }

    #[test]
    fn records_are_found_again_behind_what_the_engine_has() {
        let (dir, log) = written(5);
        assert_eq!(log.next(), Sequence(6));
        for applied in 0..=5 {
            let (log, found) = open(&dir, applied).unwrap();
            assert_eq!(found, (applied + 1..=5).collect::<Vec<_>>());
            assert_eq!(log.next(), Sequence(6));
        }
        // Whatever the engine has more is no matter of the log.
        let (log, found) = open(&dir, 7).unwrap();
        assert!(found.is_empty());
        assert_eq!(log.next(), Sequence(8));
    }

    #[test]
    fn a_ring_that_went_round_holds_the_last_records_only() {
        let (dir, _) = written(21);
        let (_, found) = open(&dir, 13).unwrap();
        assert_eq!(found, (14..=21).collect::<Vec<_>>());
        let error = open(&dir, 12).unwrap_err();
        assert!(matches!(error, LogError::Gap { missing: 13 }), "{error}");
    }

    #[test]
    fn a_commit_that_the_engine_had_and_has_lost_is_a_gap() {
        let (dir, mut log) = written(2);
        log.append(Draft::new(), log.head()).unwrap();
        log.append(draft(4, 100), log.head()).unwrap();
        let error = open(&dir, 2).unwrap_err();
        assert!(matches!(error, LogError::Gap { missing: 3 }), "{error}");
        let (_, found) = open(&dir, 3).unwrap();
        assert_eq!(found, [4]);
    }

    #[test]
    fn torn_record_must_be_the_last() {
        let (dir, _) = written(5);
        let bytes = std::fs::read(path(&dir)).unwrap();
        for (record, expected) in [(4, Ok(vec![3, 4])), (3, Err(4)), (2, Err(3))] {
            let mut torn = bytes.clone();
            torn[(ALIGN * (record + 1)) as usize + 60] ^= 1;
            std::fs::write(path(&dir), torn).unwrap();
            match open(&dir, 2) {
                Ok((_, found)) => assert_eq!(Ok(found), expected),
                Err(LogError::Gap { missing }) => assert_eq!(expected, Err(missing)),
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn a_number_that_was_torn_is_given_again() {
        let (dir, _) = written(5);
        let mut torn = std::fs::read(path(&dir)).unwrap();
        torn[(ALIGN * 5) as usize + 60] ^= 1;
        std::fs::write(path(&dir), torn).unwrap();
        let (mut log, found) = open(&dir, 0).unwrap();
        assert_eq!(found, [1, 2, 3, 4]);
        log.append(draft(99, 100), log.head()).unwrap();
        let (_, records) = CommitLog::open(dir.path(), CAPACITY, Sequence(4)).unwrap();
        let change = records[0].changes().next().flatten().unwrap();
        assert_eq!((records.len(), change.value[0]), (1, 99));
    }

    #[test]
    fn a_full_log_takes_nothing_more() {
        let (_dir, mut log) = written(0);
        let released = log.head();
        for _ in 0..8 {
            log.append(draft(1, 100), released).unwrap();
        }
        assert!(!log.has_room(100, released));
        let error = log.append(draft(1, 100), released).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(log.has_room(100, log.head()));
    }

    #[test]
    fn a_log_that_is_damaged_or_gone_is_refused() {
        let (dir, _) = written(3);
        let bytes = std::fs::read(path(&dir)).unwrap();
        let mut damaged = bytes.clone();
        damaged[20] ^= 1;
        for wrong in [damaged, bytes[..bytes.len() - 1].to_vec(), Vec::new()] {
            std::fs::write(path(&dir), wrong).unwrap();
            assert!(matches!(open(&dir, 0), Err(LogError::Head)));
        }
        let newer = [b"understudy-log 2", &bytes[16..]].concat();
        std::fs::write(path(&dir), newer).unwrap();
        assert!(matches!(open(&dir, 0), Err(LogError::Version(_))));
        std::fs::remove_file(path(&dir)).unwrap();
        assert!(matches!(open(&dir, 3), Err(LogError::Missing)));
    }

    #[test]
    fn a_crash_while_the_log_is_made_leaves_none() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NEW_FILE), b"half").unwrap();
        let (_, found) = open(&dir, 0).unwrap();
        assert!(found.is_empty());
        assert!(!dir.path().join(NEW_FILE).exists());
    }
}
