//! PostgreSQL's major version.

use std::fmt;

/// A major version that is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MajorVersion(u8);

/// A version that is not supported.
#[derive(Debug, thiserror::Error)]
#[error("PostgreSQL version {0:?} is not supported; 13 to 18 are")]
pub struct VersionError(String);

impl MajorVersion {
    /// All that are supported.
    pub const SUPPORTED: [MajorVersion; 6] = [
        MajorVersion(13),
        MajorVersion(14),
        MajorVersion(15),
        MajorVersion(16),
        MajorVersion(17),
        MajorVersion(18),
    ];

    /// From its number.
    ///
    /// # Errors
    /// If it is not supported.
    pub fn new(number: u8) -> Result<MajorVersion, VersionError> {
        let version = MajorVersion(number);
        let supported = Self::SUPPORTED.contains(&version);
        supported
            .then_some(version)
            .ok_or_else(|| VersionError(number.to_string()))
    }

    /// From the contents of `PG_VERSION`, or what `postgres --version` prints.
    ///
    /// # Errors
    /// If it is not supported, or no version at all.
    pub fn parse(text: &str) -> Result<MajorVersion, VersionError> {
        let unknown = || VersionError(text.trim().to_owned());
        let words = text.split_whitespace();
        let number = words
            .map(|word| {
                word.split(|c: char| !c.is_ascii_digit())
                    .next()
                    .unwrap_or_default()
            })
            .find(|digits| !digits.is_empty())
            .and_then(|digits| digits.parse().ok());
        MajorVersion::new(number.ok_or_else(unknown)?).map_err(|_| unknown())
    }

    /// The version as a number, such as 15.
    pub fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for MajorVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_postgresql_says() {
        for (text, number) in [
            ("15\n", 15),
            ("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)", 15),
            ("postgres (PostgreSQL) 18.1", 18),
            ("postgres (PostgreSQL) 17beta2", 17),
        ] {
            assert_eq!(
                MajorVersion::parse(text).unwrap().number(),
                number,
                "{text}"
            );
        }
        for text in ["", "12", "19", "9.6", "postgres"] {
            assert!(MajorVersion::parse(text).is_err(), "{text}");
        }
    }
}
