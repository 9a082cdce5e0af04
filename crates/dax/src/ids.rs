//! The nouns of the block protocol, each its own type so that two of them cannot be swapped.
//!
//! Owns: [`Epoch`], [`Version`], [`Generation`], [`FileId`], [`BlockIndex`], [`BlockKey`], [`ZoneId`], [`ReplicaId`],
//! [`StoreId`], [`VolumeName`] and [`NodeName`]. Everything here is plain data.

use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// One writer's reign over a volume (DAX 4.3: each failure of the hosted DBMS bounds an epoch).
///
/// At most one client ever owns an epoch. Epochs stay below 2^23, so that `(epoch, seq)` also fits
/// a 64-bit timestamp.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u32);

impl Epoch {
    /// No writer yet.
    pub const NONE: Epoch = Epoch(0);
    /// The largest epoch that can be owned.
    pub const MAX: Epoch = Epoch((1 << 23) - 1);

    /// The next higher epoch.
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

/// A block's version: the writer's epoch, then a counter inside the epoch.
///
/// Compared lexicographically. DAX 5 compares timestamps alone (`V2 > V1 iff t2 > t1`), which lets a
/// late write of a dead epoch overtake a promoted version; comparing the epoch first closes that.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Version {
    /// The epoch of the writer that made this version.
    pub epoch: Epoch,
    /// Counts the versions that this writer made; below 2^40.
    pub seq: u64,
}

impl Version {
    /// Older than every version that was ever written.
    pub const ZERO: Version = Version {
        epoch: Epoch::NONE,
        seq: 0,
    };
}

/// A stretch of data writes between two checkpoints of the hosted database.
///
/// A replica keeps one version of a data block per generation. Ordered by epoch, then number, so a
/// successor's first generation lies above any that its predecessor can have opened.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Generation {
    /// The epoch that opened the generation.
    pub epoch: Epoch,
    /// Counts the generations of that epoch.
    pub number: u32,
}

impl Generation {
    /// Where blocks live that keep one version only (log, journal, live files).
    pub const SINGLE: Generation = Generation {
        epoch: Epoch::NONE,
        number: 0,
    };
    /// Above every generation: reads the latest version.
    pub const MAX: Generation = Generation {
        epoch: Epoch(u32::MAX),
        number: u32::MAX,
    };

    /// The generation after this one, in the same epoch.
    pub fn next(self) -> Generation {
        Generation {
            epoch: self.epoch,
            number: self.number + 1,
        }
    }
}

/// A file of a volume. Never used twice inside a volume: the upper bits carry the epoch that made it.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct FileId(pub u64);

impl FileId {
    /// Low bits that count files inside an epoch.
    pub const COUNTER_BITS: u32 = 36;

    /// The `counter`-th file that `epoch` makes.
    pub fn new(epoch: Epoch, counter: u64) -> FileId {
        assert!(
            counter < 1 << Self::COUNTER_BITS,
            "more files in one epoch than ids"
        );
        FileId(u64::from(epoch.0) << Self::COUNTER_BITS | counter)
    }
}

/// A block's place in its file, in blocks.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct BlockIndex(pub u64);

/// Which block of which file.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct BlockKey {
    /// File that the block is part of.
    pub file: FileId,
    /// The block in it.
    pub block: BlockIndex,
}

impl BlockKey {
    /// Block `block` of `file`.
    pub fn new(file: FileId, block: u64) -> BlockKey {
        BlockKey {
            file,
            block: BlockIndex(block),
        }
    }
}

/// A zone's (data centre's) place in the list of zones that a client was configured with.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ZoneId(pub u8);

/// A replica's place among all replicas of the volume, counted zone by zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaId(pub u8);

/// Which store: the identity of the directory that one `understudy store` keeps its replicas in, whatever it
/// is reached as. Random, made with the directory and never changed; written as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StoreId(NonZeroU64);

impl StoreId {
    /// The id with this number; none for 0, which no store has.
    pub fn new(number: u64) -> Option<StoreId> {
        NonZeroU64::new(number).map(StoreId)
    }

    /// An id that no other store has.
    ///
    /// # Errors
    /// `Unavailable` if the system has no random numbers.
    pub fn random() -> Result<StoreId> {
        loop {
            let mut bytes = [0; 8];
            crate::entropy::fill(&mut bytes)?;
            if let Some(id) = StoreId::new(u64::from_le_bytes(bytes)) {
                return Ok(id);
            }
        }
    }

    /// The id as a number, for encodings.
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl TryFrom<String> for StoreId {
    type Error = Error;
    fn try_from(text: String) -> Result<StoreId> {
        let number = u64::from_str_radix(&text, 16).ok();
        let id = number.filter(|_| text.len() == 16).and_then(StoreId::new);
        let invalid = || format!("store id {text:?}: 16 hexadecimal digits are one");
        id.ok_or_else(|| Error::new(ErrorKind::Invalid, invalid()))
    }
}

impl From<StoreId> for String {
    fn from(id: StoreId) -> String {
        id.to_string()
    }
}

macro_rules! display {
    ($($t:ty => $format:literal;)*) => {$(
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    )*};
}
display! {
    Epoch => "e{}";
    FileId => "f{:x}";
    BlockIndex => "b{}";
    ZoneId => "zone {}";
    ReplicaId => "replica {}";
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.seq)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/g{}", self.epoch, self.number)
    }
}

impl fmt::Display for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.block)
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $t:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $t(String);

        impl $t {
            /// Accepts 1 to 63 of `a-z`, `0-9`, `-` and `_`.
            ///
            /// # Errors
            /// [`ErrorKind::Invalid`] for anything else.
            pub fn new(name: impl Into<String>) -> Result<$t> {
                let name = name.into();
                let fits = (1..=63).contains(&name.len())
                    && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'));
                if fits {
                    return Ok($t(name));
                }
                Err(Error::new(
                    ErrorKind::Invalid,
                    format!(concat!($what, " {:?}: use 1 to 63 of a-z, 0-9, '-' and '_'"), name),
                ))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $t {
            type Error = Error;
            fn try_from(name: String) -> Result<$t> {
                $t::new(name)
            }
        }

        impl From<$t> for String {
            fn from(name: $t) -> String {
                name.0
            }
        }

        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}
name!(
    /// A volume: one tenant's storage, isolated from every other.
    VolumeName,
    "volume name"
);
name!(
    /// A node of the cluster, as operators call it.
    NodeName,
    "node name"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_id_is_written_and_read_as_sixteen_digits() {
        let id = StoreId::new(0xab).unwrap();
        assert_eq!(id.to_string(), "00000000000000ab");
        assert_eq!(StoreId::try_from(id.to_string()).unwrap(), id);
        for text in ["", "ab", "0000000000000000", "00000000000000xy"] {
            assert!(StoreId::try_from(text.to_owned()).is_err(), "{text:?}");
        }
        assert_ne!(StoreId::random().unwrap(), StoreId::random().unwrap());
    }
}
