//! One commit as the log keeps it, and how it is told from everything else that a block may hold.
//!
//! ```text
//! head    u32 "UNDL" | u64 checksum | u64 sequence | u32 bytes of changes
//! change  u8 kind | u16 bytes of the key | u32 bytes of the value | key | value     all little endian
//! ```
//!
//! The checksum covers all behind it and is keyed with the log's own secret number: blocks hold what
//! tenants write, and a tenant could write what looks like a record.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ring::ALIGN;
use crate::journal::array;

const MAGIC: u32 = u32::from_le_bytes(*b"UNDL");
const CHECKSUM_AT: usize = 4;
const SEQUENCE_AT: usize = 12;
const LENGTH_AT: usize = 20;
const HEAD_BYTES: usize = 24;
const CHANGE_HEAD_BYTES: usize = 7;

/// Few commits are larger, on a volume whose blocks are packed.
const USUAL_BYTES: usize = 16 << 10;

/// The number of a commit: one more than the one before it. 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Sequence(pub u64);

impl Sequence {
    /// The one after it.
    pub fn next(self) -> Sequence {
        Sequence(self.0 + 1)
    }
}

/// What happens to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    PutBlock,
    RemoveBlock,
    PutMeta,
    RemoveMeta,
}

/// Every kind, at the number that stands for it.
const KINDS: [Kind; 4] = [
    Kind::PutBlock,
    Kind::RemoveBlock,
    Kind::PutMeta,
    Kind::RemoveMeta,
];

/// One change of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub kind: Kind,
    pub key: Bytes,
    /// Empty where a key is removed.
    pub value: Bytes,
}

/// Changes on their way into the log.
#[derive(Debug)]
pub(crate) struct Draft {
    bytes: Vec<u8>,
}

impl Draft {
    /// No changes yet.
    pub fn new() -> Draft {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        bytes.resize(HEAD_BYTES, 0);
        Draft { bytes }
    }

    /// These changes, if they take no more than so many bytes.
    pub fn of(changes: &[Change], bytes_max: usize) -> Option<Draft> {
        let bytes = changes
            .iter()
            .map(|c| CHANGE_HEAD_BYTES + c.key.len() + c.value.len());
        if HEAD_BYTES + bytes.sum::<usize>() > bytes_max {
            return None;
        }
        let mut draft = Draft::new();
        for change in changes {
            draft.push(change.kind, &change.key, &change.value);
        }
        Some(draft)
    }

    /// How large the record will be, without what fills up its last block.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a change.
    pub fn push(&mut self, kind: Kind, key: &[u8], value: &[u8]) {
        let key_bytes = u16::try_from(key.len()).expect("the engine's keys are shorter");
        let value_bytes = u32::try_from(value.len()).expect("a value is a block or a record");
        self.bytes.push(kind as u8);
        self.bytes.extend(key_bytes.to_le_bytes());
        self.bytes.extend(value_bytes.to_le_bytes());
        self.bytes.extend(key);
        self.bytes.extend(value);
    }

    /// The record, filled up to whole blocks.
    pub fn seal(mut self, secret: u64, sequence: Sequence) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len() - HEAD_BYTES).expect("bounded by the ring");
        self.bytes[..CHECKSUM_AT].copy_from_slice(&MAGIC.to_le_bytes());
        self.bytes[SEQUENCE_AT..LENGTH_AT].copy_from_slice(&sequence.0.to_le_bytes());
        self.bytes[LENGTH_AT..HEAD_BYTES].copy_from_slice(&length.to_le_bytes());
        let checksum = xxh3_64_with_seed(&self.bytes[SEQUENCE_AT..], secret);
        self.bytes[CHECKSUM_AT..SEQUENCE_AT].copy_from_slice(&checksum.to_le_bytes());
        let whole = self.bytes.len().next_multiple_of(ALIGN as usize);
        self.bytes.resize(whole, 0);
        self.bytes
    }
}

/// A record that was found.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub sequence: Sequence,
    changes: Bytes,
}

impl Record {
    /// The record at the front of `bytes`, if there is a sound one.
    pub fn find(secret: u64, bytes: &Bytes) -> Option<Record> {
        if u32::from_le_bytes(array(bytes, 0)?) != MAGIC {
            return None;
        }
        let length = u32::from_le_bytes(array(bytes, LENGTH_AT)?) as usize;
        let end = HEAD_BYTES.checked_add(length)?;
        let covered = bytes.get(SEQUENCE_AT..end)?;
        let checksum = u64::from_le_bytes(array(bytes, CHECKSUM_AT)?);
        (xxh3_64_with_seed(covered, secret) == checksum).then_some(Record {
            sequence: Sequence(u64::from_le_bytes(array(bytes, SEQUENCE_AT)?)),
            changes: bytes.slice(HEAD_BYTES..end),
        })
    }

    /// True if it only says that the engine has made this commit durable.
    pub fn is_elsewhere(&self) -> bool {
        self.changes.is_empty()
    }

    /// Its changes, in order; `None` in place of one that is invalid, which ends them.
    pub fn changes(&self) -> impl Iterator<Item = Option<Change>> {
        let mut rest = self.changes.clone();
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let change = take_change(&mut rest);
            if change.is_none() {
                rest.clear();
            }
            Some(change)
        })
    }
}

fn take_change(rest: &mut Bytes) -> Option<Change> {
    let kind = *KINDS.get(usize::from(*rest.first()?))?;
    let key = usize::from(u16::from_le_bytes(array(rest, 1)?));
    let value = u32::from_le_bytes(array(rest, 3)?) as usize;
    let whole = CHANGE_HEAD_BYTES.checked_add(key)?.checked_add(value)?;
    if rest.len() < whole {
        return None;
    }
    let mut change = rest.split_to(whole).slice(CHANGE_HEAD_BYTES..);
    Some(Change {
        kind,
        key: change.split_to(key),
        value: change,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: u64 = 0x1234_5678_9abc_def0;

    fn sealed() -> Vec<u8> {
        let mut draft = Draft::new();
        draft.push(Kind::PutBlock, b"key", &[7; 5000]);
        draft.push(Kind::RemoveMeta, b"other", b"");
        draft.seal(SECRET, Sequence(9))
    }

    #[test]
    fn a_record_gives_back_what_was_put_into_it() {
        let bytes = sealed();
        assert_eq!(bytes.len(), 8192);
        let record = Record::find(SECRET, &bytes.into()).expect("sound");
        assert_eq!(record.sequence, Sequence(9));
        let changes: Option<Vec<Change>> = record.changes().collect();
        let change = |kind, key: &'static [u8], value: Vec<u8>| Change {
            kind,
            key: key.into(),
            value: value.into(),
        };
        let expected = [
            change(Kind::PutBlock, b"key", vec![7; 5000]),
            change(Kind::RemoveMeta, b"other", vec![]),
        ];
        assert_eq!(changes.as_deref(), Some(expected.as_slice()));
    }

    #[test]
    fn every_kind_is_read_as_it_was_written() {
        for kind in KINDS {
            let mut draft = Draft::new();
            draft.push(kind, b"k", b"v");
            let record = Record::find(SECRET, &draft.seal(SECRET, Sequence(1)).into()).unwrap();
            assert_eq!(record.changes().next().flatten().unwrap().kind, kind);
        }
    }

    #[test]
    fn a_record_that_is_torn_or_changed_anywhere_is_none() {
        let bytes = sealed();
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        for at in 0..=end {
            let mut changed = bytes.clone();
            changed[at] ^= 0x20;
            assert!(Record::find(SECRET, &changed.into()).is_none(), "{at}");
            let mut torn = bytes.clone();
            torn[at..].fill(0);
            // A part that is zeros anyway is not missing.
            if torn != bytes {
                assert!(Record::find(SECRET, &torn.into()).is_none(), "{at}");
            }
            assert!(Record::find(SECRET, &bytes[..at].to_vec().into()).is_none());
        }
    }

    #[test]
    fn forged_record_of_a_tenant_is_none() {
        let forged = Draft::new().seal(0, Sequence(u64::MAX));
        assert!(Record::find(SECRET, &forged.into()).is_none());
    }

    #[test]
    fn changes_that_make_no_sense_are_said_to() {
        for nonsense in [&[9, 0, 0, 0, 0, 0, 0][..], &[0, 255, 255, 0, 0, 0, 0], &[0]] {
            let mut draft = Draft::new();
            draft.bytes.extend(nonsense);
            let record = Record::find(SECRET, &draft.seal(SECRET, Sequence(1)).into()).unwrap();
            assert_eq!(record.changes().collect::<Vec<_>>(), [None]);
        }
    }
}
