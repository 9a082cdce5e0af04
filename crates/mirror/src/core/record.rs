//! What the log says of a transaction.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::class::Claims;
use super::origin::Header;

/// A transaction's place in the log: 1 for the first, and no number is left out.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Number(pub u64);

impl Number {
    /// The one after it.
    pub fn next(self) -> Number {
        Number(self.0 + 1)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Name of a transaction, by which a client can ask about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Token {
    /// The epoch that it began in.
    pub epoch: u32,
    /// Its number at the member that has made it.
    pub count: u64,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.count)
    }
}

/// A transaction, or a piece of a long one, that is about to be logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draft {
    /// What its client can ask by.
    pub token: Token,
    /// What it conflicts on.
    pub claims: Claims,
    /// The commit that it is of.
    pub header: Header,
    /// Its rows, as they are in the log: whoever passes them on does not look into them.
    #[serde(with = "super::raw")]
    pub(super) rows: Vec<u8>,
    /// How far it has advanced sequences: their names, and the last values.
    pub sequences: Vec<(String, i64)>,
}

/// A transaction in the log: it has committed as soon as this is durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its place in the log.
    pub number: Number,
    /// What it is. Records are passed on in many directions, and never change.
    #[serde(with = "shared")]
    pub draft: Arc<Draft>,
}

impl Record {
    /// The first number of a long transaction, of which this record is the end, with all of its pieces.
    pub fn first(&self) -> Number {
        let piece = u64::from(self.draft.header.piece);
        Number(self.number.0.saturating_sub(piece))
    }

    /// True if the rest of its transaction follows in other records.
    pub fn is_piece(&self) -> bool {
        !self.draft.header.is_last
    }

    /// About how long it is in memory, and on its way.
    pub fn bytes(&self) -> usize {
        self.draft.rows.len()
    }
}

/// In the log, and between managers, what is shared is as what is not.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Draft;

    pub fn serialize<S: Serializer>(draft: &Arc<Draft>, to: S) -> Result<S::Ok, S::Error> {
        draft.as_ref().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Draft>, D::Error> {
        Draft::deserialize(from).map(Arc::new)
    }
}

#[cfg(test)]
impl Record {
    /// A transaction with this number and rows of so many bytes, which nobody reads, as tests need one.
    pub fn of(number: u64, claims: Claims, bytes: usize) -> Record {
        let header = Header {
            is_last: true,
            ..Header::default()
        };
        Record {
            number: Number(number),
            draft: Arc::new(Draft {
                token: Token {
                    epoch: 1,
                    count: number,
                },
                claims,
                header,
                rows: vec![0; bytes],
                sequences: Vec::new(),
            }),
        }
    }
}
