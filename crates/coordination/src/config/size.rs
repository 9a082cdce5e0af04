//! Amounts of memory as operators write them: `64MiB`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes; written as a whole number with one of `B`, `KiB`, `MiB`, `GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

impl ByteSize {
    /// `n` MiB.
    pub const fn mib(n: u64) -> ByteSize {
        ByteSize(n << 20)
    }

    /// The number of bytes, for APIs that count in `usize`.
    pub fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = UNITS
            .iter()
            .find(|(_, n)| self.0 >= *n && self.0.is_multiple_of(*n));
        let (unit, n) = fits.unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / n)
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<ByteSize, String> {
        let refuse = || format!("{text:?} is no amount of memory; write for example \"256MiB\"");
        let (unit, n) = UNITS
            .iter()
            .find(|(unit, _)| text.ends_with(unit))
            .ok_or_else(refuse)?;
        let count = text[..text.len() - unit.len()].trim();
        let count: u64 = count.parse().map_err(|_| refuse())?;
        count.checked_mul(*n).map(ByteSize).ok_or_else(refuse)
    }
}

impl TryFrom<String> for ByteSize {
    type Error = String;
    fn try_from(text: String) -> Result<ByteSize, String> {
        text.parse()
    }
}

impl From<ByteSize> for String {
    fn from(size: ByteSize) -> String {
        size.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for (text, bytes) in [
            ("64MiB", 64 << 20),
            ("3KiB", 3072),
            ("1GiB", 1 << 30),
            ("7B", 7),
        ] {
            assert_eq!(text.parse::<ByteSize>(), Ok(ByteSize(bytes)));
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
        assert!("64".parse::<ByteSize>().is_err());
        assert!("64MB".parse::<ByteSize>().is_err());
        assert!("99999999999999GiB".parse::<ByteSize>().is_err());
    }
}
