//! Checks the engine's journals before the engine reads them, because it takes the first batch it
//! cannot read for the end, silently, or refuses to open at all.
//!
//! The newest journal is synced at checkpoints only: a crash can leave anything behind the last one, so it
//! is cut off where it becomes unreadable. Whether something was lost by that, the numbers of the
//! commits tell, which the [commit log](crate::log) continues. An older journal was synced whole
//! before the next was begun: what is unreadable in it was acknowledged and is damage; the zone must not
//! serve, or it would have forgotten what it acknowledged.
//!
//! ```text
//! batch   1 | u32 items | u64 seqno        items        3 | u64 xxh3 of the items | "FJL" 3
//! item    2 | u8 type | u8 compression | u64 keyspace | u16 key length | u32 length | u32 stored length | key | value
//! clear   4 | u64 keyspace                                                       all little endian
//! ```
//!
//! This is the format of fjall 3.1.13 (`journal/entry.rs`), which is no part of its interface: so the workspace's
//! manifest takes exactly that version. The tests write journals with the real engine, compare one byte by byte, and
//! fail when the version changes.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use xxhash_rust::xxh3::xxh3_64;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: &[u8] = b"FJL\x03";
const START_BYTES: usize = 13;
const ITEM_HEAD_BYTES: usize = 21;
const END_BYTES: usize = 13;
const CLEAR_BYTES: usize = 9;

/// Acknowledged data in a journal is damaged.
#[derive(Debug, thiserror::Error)]
#[error("{} is unreadable at byte {at}, and a newer journal follows", path.display())]
pub(crate) struct Damage {
    path: PathBuf,
    at: usize,
}

/// What was cut off the newest journal.
#[derive(Debug)]
pub(crate) struct Cut(Option<(PathBuf, Vec<u8>)>);

impl Cut {
    /// Leaves what was cut off beside its journal, for whoever looks into it: it was needed.
    pub fn keep(&self) {
        let Some((journal, bytes)) = &self.0 else {
            return;
        };
        let path = journal.with_extension("cut");
        match std::fs::write(&path, bytes) {
            Ok(()) => {
                tracing::warn!(path = %path.display(), "kept the unreadable end of a journal")
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot keep the end of a journal");
            }
        }
    }
}

/// Checks all journals in `dir` and cuts off what is unreadable at the end of the newest.
///
/// # Errors
/// I/O errors; `InvalidData` with a [`Damage`] inside.
pub(crate) fn check(dir: &Path) -> io::Result<Cut> {
    let journals = journals(dir)?;
    for (i, path) in journals.iter().enumerate() {
        let bytes = std::fs::read(path)?;
        let at = sound_bytes(&bytes);
        if is_end(&bytes[at..]) {
            continue;
        }
        if i + 1 < journals.len() {
            let damage = Damage {
                path: path.clone(),
                at,
            };
            return Err(io::Error::new(io::ErrorKind::InvalidData, damage));
        }
        tracing::debug!(journal = %path.display(), at, "cut off what is unreadable");
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(at as u64)?;
        file.sync_all()?;
        return Ok(Cut(Some((path.clone(), bytes[at..].to_vec()))));
    }
    Ok(Cut(None))
}

/// Makes durable what the engine has handed to the system of its newest journal.
pub(crate) fn sync_newest(dir: &Path) -> io::Result<()> {
    match journals(dir)?.last() {
        Some(path) => match OpenOptions::new().write(true).open(path) {
            // The engine is done with it already.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other?.sync_data(),
        },
        None => Ok(()),
    }
}

/// Has the system read the journals from the disk. After a sync that failed it has pages that it takes for written and that never were; what
/// was read from those would be taken for durable, and the log that has it as well be written over. Pages that are still to be written stay.
pub(crate) fn forget_cached(dir: &Path) -> io::Result<()> {
    for path in journals(dir)? {
        let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
        posix_fadvise(File::open(path)?, 0, 0, advice)?;
    }
    Ok(())
}

/// The journals, oldest first.
pub(crate) fn journals(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found: Vec<(u64, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let number = path.file_stem().and_then(|s| s.to_str()?.parse().ok());
        if let (Some(number), Some("jnl")) = (number, path.extension().and_then(|e| e.to_str())) {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// True if nothing was written here: the rest of a file made larger in advance, or its end.
fn is_end(rest: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    rest.chunks(ZEROS.len()).all(|c| c == &ZEROS[..c.len()])
}

/// How many bytes at the front are whole, sound batches.
pub(crate) fn sound_bytes(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(len) = sound_batch(&bytes[at..]) {
        at += len;
    }
    at
}

/// The length of the batch at the front, if it is whole and sound.
fn sound_batch(bytes: &[u8]) -> Option<usize> {
    if *bytes.first()? != START {
        return None;
    }
    let items = u32::from_le_bytes(array(bytes, 1)?);
    let mut at = START_BYTES;
    for _ in 0..items {
        at = at.checked_add(item_bytes(bytes.get(at..)?)?)?;
    }
    let end = bytes.get(at..at.checked_add(END_BYTES)?)?;
    let checksum = u64::from_le_bytes(array(end, 1)?);
    let sound =
        end[0] == END && &end[9..] == TRAILER && xxh3_64(&bytes[START_BYTES..at]) == checksum;
    sound.then_some(at + END_BYTES)
}

fn item_bytes(item: &[u8]) -> Option<usize> {
    match *item.first()? {
        CLEAR => Some(CLEAR_BYTES),
        ITEM => {
            let key = usize::from(u16::from_le_bytes(array(item, 11)?));
            let value = u32::from_le_bytes(array(item, 17)?) as usize;
            (ITEM_HEAD_BYTES + key).checked_add(value)
        }
        _ => None,
    }
}

/// The `N` bytes at `at`, if there are so many.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Batch, DiskEngine, Engine};
    use crate::error::OpenError;
    use crate::keys::{Slot, VolumeId, encode_block};
    use crate::tests::client::{data, key, v};
    use dax::ids::Generation;
    use dax::wire::checksum;
    use tempfile::TempDir;

    fn slot(block: u64) -> Slot {
        Slot {
            volume: VolumeId(1),
            key: key(1, block),
            generation: Generation::SINGLE,
        }
    }

    /// A store with three batches of four blocks, closed, and its journal.
    fn store() -> (TempDir, PathBuf, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let engine = DiskEngine::open(dir.path(), 1 << 20).unwrap();
        for first in [0, 4, 8] {
            let mut batch = Batch::default();
            for block in first..first + 4 {
                let (slot, version) = (slot(block), v(1, block + 1));
                let data = data(version);
                let sum = checksum(slot.key, slot.generation, version, &data);
                batch.put(&slot, encode_block(version, sum, &data));
            }
            batch.put_meta(b"x", bytes::Bytes::from(vec![0; 9000]));
            engine.commit(batch).unwrap();
            engine.settle_all().unwrap();
        }
        drop(engine);
        let journals = journals(dir.path()).unwrap();
        assert_eq!(journals.len(), 1);
        let mut bytes = std::fs::read(&journals[0]).unwrap();
        bytes.truncate(sound_bytes(&bytes) + 100); // of 64 MiB made in advance
        (dir, journals[0].clone(), bytes)
    }

    /// Where the sound batches end.
    fn ends(bytes: &[u8]) -> Vec<usize> {
        let mut ends = vec![0];
        while let Some(len) = sound_batch(&bytes[ends[ends.len() - 1]..]) {
            ends.push(ends[ends.len() - 1] + len);
        }
        ends
    }

    #[test]
    fn journals_of_the_engine_are_understood() {
        let (dir, path, bytes) = store();
        let ends = ends(&bytes);
        assert_eq!(ends.len(), 4, "three batches: {ends:?}");
        assert!(is_end(&bytes[ends[3]..]));
        let before = std::fs::read(&path).unwrap();
        let cut = check(dir.path()).unwrap();
        assert!(cut.0.is_none());
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    /// Another version of the engine may write its journal in another way, and this file would take whatever it does not
    /// understand for the end. Before this number is changed: read `journal/entry.rs`, `journal/writer.rs` and
    /// `journal/batch_reader.rs` of the new version, and see all tests of this file and of `tests::power` pass.
    // hazard: ZONE-41
    #[test]
    fn the_engine_is_of_the_version_whose_journal_this_file_understands() {
        let lock = include_str!("../../../Cargo.lock");
        let version_of = |name: &str| {
            let entry = lock.split("[[package]]").find(|entry| {
                let mut lines = entry.lines();
                lines.any(|line| line == format!("name = \"{name}\""))
            });
            let line = entry.unwrap().lines().find(|l| l.starts_with("version"));
            line.unwrap().to_owned()
        };
        assert_eq!(version_of("fjall"), "version = \"3.1.13\"");
        assert_eq!(version_of("lsm-tree"), "version = \"3.1.10\"");
        let manifest = include_str!("../../../Cargo.toml");
        assert!(manifest.contains("fjall = { version = \"=3.1.13\""));
    }

    /// One batch of one item, as the engine writes it.
    // hazard: ZONE-41
    #[test]
    fn a_journal_is_what_it_was_byte_by_byte() {
        let dir = tempfile::tempdir().unwrap();
        let engine = DiskEngine::open(dir.path(), 1 << 20).unwrap();
        let mut batch = Batch::default();
        batch.put_meta(b"key", bytes::Bytes::from_static(b"value"));
        engine.commit(batch).unwrap();
        engine.settle_all().unwrap();
        drop(engine);
        let journals = journals(dir.path()).unwrap();
        let bytes = std::fs::read(&journals[0]).unwrap();
        let mut expected = Vec::new();
        let items = [
            (2u64, &b"key"[..], &b"value"[..]),
            (1, b"log", &1u64.to_be_bytes()),
            (2, b"log", &1u64.to_be_bytes()),
        ];
        for (keyspace, key, value) in items {
            expected.extend([ITEM, 0, 0]);
            expected.extend(keyspace.to_le_bytes());
            expected.extend((key.len() as u16).to_le_bytes());
            expected.extend((value.len() as u32).to_le_bytes());
            expected.extend((value.len() as u32).to_le_bytes());
            expected.extend([key, value].concat());
        }
        let mut batch = vec![START];
        batch.extend((items.len() as u32).to_le_bytes());
        let head = batch.len();
        batch.extend([0; 8]); // the sequence number, which counts what the engine itself has done before
        batch.extend(&expected);
        batch.push(END);
        batch.extend(xxh3_64(&expected).to_le_bytes());
        batch.extend(TRAILER);
        let mut written = bytes[..sound_bytes(&bytes)].to_vec();
        assert_eq!(written.len(), batch.len());
        written[head..head + 8].fill(0);
        assert_eq!(written, batch);
    }

    #[test]
    fn unreadable_end_is_cut_off_the_newest_journal() {
        let (dir, path, bytes) = store();
        let ends = ends(&bytes);
        for at in (ends[1]..ends[3]).step_by(4003).chain([ends[3] - 1]) {
            // Cut short, never reached the disk from here on, or only this place did not.
            let mut zeros = bytes.clone();
            zeros[at..].fill(0);
            let mut hole = bytes.clone();
            hole[at..(at + 512).min(ends[3])].fill(0);
            for torn in [bytes[..at].to_vec(), zeros, hole] {
                let sound = sound_bytes(&torn);
                std::fs::write(&path, &torn).unwrap();
                let cut = check(dir.path()).unwrap();
                let left = std::fs::read(&path).unwrap();
                assert!(is_end(&left[sound..]), "at {at}");
                if let Some((_, cut)) = &cut.0 {
                    assert_eq!([left, cut.clone()].concat(), torn);
                }
                cut.keep();
                let kept = std::fs::read(path.with_extension("cut")).ok();
                assert_eq!(kept, cut.0.map(|(_, bytes)| bytes));
                let _ = std::fs::remove_file(path.with_extension("cut"));
            }
        }
    }

    #[test]
    fn damage_in_an_older_journal_is_refused() {
        let (dir, path, bytes) = store();
        let ends = ends(&bytes);
        std::fs::write(dir.path().join("999.jnl"), &bytes).unwrap();
        for at in (0..ends[3]).step_by(2003) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            if sound_bytes(&damaged) == ends[3] {
                continue; // a sequence number, which nothing covers
            }
            std::fs::write(&path, &damaged).unwrap();
            let error = DiskEngine::open(dir.path(), 1 << 20).err().expect("damage");
            assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
            assert_eq!(std::fs::read(&path).unwrap(), damaged, "left as it is");
        }
    }
}
