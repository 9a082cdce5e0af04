//! The log as a row of blocks: batches of records, each of which begins a block.
//!
//! ```text
//!   block 0        block 1                    block 3
//!   ┌────────────┐ ┌────────────┬───────────┐ ┌─────
//!   │head records│ │head records│ records   │ │head ...
//!   └────────────┘ └────────────┴───────────┘ └─────
//!        batch 1                batch 2
//! ```
//!
//! A batch is what is made durable at once. Invariant: each batch names the sum of the one before it. A batch that was written
//! by an owner whose epoch is over and that nobody found when the next owner began cannot follow on what that one wrote, so
//! reading ends where the last owner's log ends.

use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::record::{Number, Record};

const MAGIC: [u8; 8] = *b"USmirr02";
/// Magic number of versions that logged statements.
const EARLIER: [u8; 8] = *b"USmirr01";
const HEAD_BYTES: usize = 48;

/// Which log it is: a random number that it keeps for as long as it lasts. Members say which one they belong to, so that another
/// log is not taken for theirs because it has the numbers that they lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity(pub u128);

impl Identity {
    /// Reads what [`fmt::Display`] writes, as PostgreSQL's type `uuid` does.
    pub fn parse(text: &str) -> Option<Identity> {
        let digits: String = text.chars().filter(|letter| *letter != '-').collect();
        let is_whole = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = u128::from_str_radix(&digits, 16).ok();
        number.filter(|_| is_whole).map(Identity)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.0);
        let parts = [
            &digits[..8],
            &digits[8..12],
            &digits[12..16],
            &digits[16..20],
            &digits[20..],
        ];
        f.write_str(&parts.join("-"))
    }
}

/// Where a log goes on: after everything before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Position {
    /// The block that the next batch begins.
    pub block: u64,
    /// The number of its first record.
    pub number: Number,
    /// The sum of the batch before it.
    pub chain: u64,
}

impl Position {
    /// The beginning of a log.
    pub const BEGINNING: Position = Position {
        block: 0,
        number: Number(1),
        chain: 0,
    };
}

/// What a batch's first block says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    number: Number,
    before: u64,
    bytes: u64,
    sum: u64,
}

impl Head {
    fn write(&self) -> [u8; HEAD_BYTES] {
        let mut out = [0; HEAD_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        for (at, value) in [
            (8, self.number.0),
            (16, self.before),
            (24, self.bytes),
            (32, self.sum),
        ] {
            out[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let sum = crc32c::crc32c(&out[..40]);
        out[40..44].copy_from_slice(&sum.to_le_bytes());
        out
    }

    fn read(block: &[u8]) -> Option<Head> {
        let head = block.get(..HEAD_BYTES)?;
        let word = |at: usize| {
            let bytes = head[at..at + 8].try_into();
            u64::from_le_bytes(bytes.expect("eight bytes of a slice"))
        };
        let sum = crc32c::crc32c(&head[..40]).to_le_bytes();
        let is_whole = head[..8] == MAGIC && head[40..44] == sum;
        is_whole.then(|| Head {
            number: Number(word(8)),
            before: word(16),
            bytes: word(24),
            sum: word(32),
        })
    }
}

/// A log cannot be read, although it is there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The contents of a batch are whole, and are not what this version writes.
    #[error("record {0} of the log has a format that this version does not know")]
    Format(Number),
    /// It has statements, which nobody executes any more.
    #[error("{EARLIER_LOG}")]
    Earlier,
    /// A transaction is longer than the log can have.
    #[error("a transaction of {0} bytes is too long for the log")]
    TooLong(usize),
}

/// Instructions for an operator whose log has statements.
pub const EARLIER_LOG: &str = "the log was written by an earlier version of the mirror, which logged statements: make a volume of another \
    name (understudy mirror create-log), give it to both managers, start them, and have one member kept (understudy mirror resolve --keep NAME); \
    the other one is filled again";

/// Fails if a block that a log goes on with is of an earlier version.
///
/// # Errors
/// `Earlier`.
pub fn check_version(block: &[u8]) -> Result<(), LogError> {
    match block.starts_with(&EARLIER) {
        true => Err(LogError::Earlier),
        false => Ok(()),
    }
}

/// The blocks of a batch that begins at `at`, and where the log goes on after it. The records must not be empty, and their
/// numbers must follow on.
///
/// # Errors
/// `TooLong` if a record cannot be encoded.
pub fn write(
    at: Position,
    records: &[Record],
    block_bytes: usize,
) -> Result<(Vec<Vec<u8>>, Position), LogError> {
    let payload = postcard::to_allocvec(records).map_err(|_| LogError::TooLong(records.len()))?;
    let sum = xxh3_64_with_seed(&payload, at.chain ^ at.number.0);
    let head = Head {
        number: at.number,
        before: at.chain,
        bytes: payload.len() as u64,
        sum,
    };
    let mut stream = head.write().to_vec();
    stream.extend_from_slice(&payload);
    let blocks: Vec<Vec<u8>> = stream
        .chunks(block_bytes)
        .map(|chunk| {
            let mut block = chunk.to_vec();
            block.resize(block_bytes, 0);
            block
        })
        .collect();
    let next = Position {
        block: at.block + blocks.len() as u64,
        number: Number(at.number.0 + records.len() as u64),
        chain: sum,
    };
    Ok((blocks, next))
}

/// How many blocks the batch takes that may begin at `at`, by its first block; `None` if the log ends there.
pub fn blocks_of_batch(at: Position, first: &[u8]) -> Option<u64> {
    let head = Head::read(first)?;
    let follows = head.number == at.number && head.before == at.chain;
    let bytes = HEAD_BYTES as u64 + head.bytes;
    follows.then(|| bytes.div_ceil(first.len() as u64))
}

/// The records of the batch that begins at `at`, from all of its blocks, and where the log goes on; `None` if the log ends
/// there.
///
/// # Errors
/// `Format` if another version wrote it.
pub fn read(
    at: Position,
    blocks: &[impl AsRef<[u8]>],
) -> Result<Option<(Vec<Record>, Position)>, LogError> {
    let stream: Vec<u8> = blocks
        .iter()
        .flat_map(|block| block.as_ref())
        .copied()
        .collect();
    let Some(head) =
        Head::read(&stream).filter(|head| head.number == at.number && head.before == at.chain)
    else {
        return Ok(None);
    };
    let end = HEAD_BYTES + usize::try_from(head.bytes).unwrap_or(usize::MAX - HEAD_BYTES);
    let Some(payload) = stream.get(HEAD_BYTES..end) else {
        return Ok(None);
    };
    if xxh3_64_with_seed(payload, at.chain ^ at.number.0) != head.sum {
        return Ok(None);
    }
    let records: Vec<Record> =
        postcard::from_bytes(payload).map_err(|_| LogError::Format(at.number))?;
    let next = Position {
        block: at.block + blocks.len() as u64,
        number: Number(at.number.0 + records.len() as u64),
        chain: head.sum,
    };
    Ok(Some((records, next)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::class::Claims;

    fn record(number: u64, bytes: usize) -> Record {
        Record::of(number, Claims::default(), bytes)
    }

    #[test]
    fn an_identity_is_written_as_postgresql_does() {
        let text = "00000000-0000-00ab-cdef-000000000001";
        let identity = Identity::parse(text).expect("it is one");
        assert_eq!(identity, Identity(0x00ab_cdef_0000_0000_0001));
        assert_eq!(identity.to_string(), text);
        assert_eq!(Identity::parse(&text[1..]), None);
        assert_eq!(Identity::parse(&text.replace('a', "+")), None);
    }

    #[test]
    fn a_batch_is_read_as_it_was_written() {
        let records = vec![record(1, 1000), record(2, 1)];
        let (blocks, next) = write(Position::BEGINNING, &records, 512).expect("short");
        assert_eq!((blocks.len(), next.block, next.number), (3, 3, Number(3)));
        assert_eq!(blocks_of_batch(Position::BEGINNING, &blocks[0]), Some(3));
        let read_back = read(Position::BEGINNING, &blocks).expect("this version");
        assert_eq!(read_back, Some((records, next)));
    }

    // hazard: MIRROR-1
    // hazard: MIRROR-67
    #[test]
    fn the_log_ends_where_something_does_not_follow() {
        let (first, after) = write(Position::BEGINNING, &[record(1, 1)], 512).expect("short");
        let (other, after_other) = write(Position::BEGINNING, &[record(1, 2)], 512).expect("short");
        let (second, _) = write(after, &[record(2, 3)], 512).expect("short");
        assert!(read(after, &second).expect("this version").is_some());
        // The second batch followed on another first one.
        assert_eq!(read(after_other, &second), Ok(None));
        assert_eq!(blocks_of_batch(after_other, &second[0]), None);
        // Damage, and nothing at all.
        let mut damaged = first[0].clone();
        damaged[HEAD_BYTES + 3] ^= 1;
        assert_eq!(read(Position::BEGINNING, &[damaged]), Ok(None));
        assert_eq!(read(Position::BEGINNING, &[vec![0; 512]]), Ok(None));
        assert_eq!(read(Position::BEGINNING, &other[..0]), Ok(None));
        // Nothing is overwritten of what another version has written.
        assert_eq!(check_version(&other[0]), Ok(()));
        let mut earlier = other[0].clone();
        earlier[..8].copy_from_slice(&EARLIER);
        assert_eq!(check_version(&earlier), Err(LogError::Earlier));
    }
}
