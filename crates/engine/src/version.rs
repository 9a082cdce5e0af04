//! Versions of hosted servers: what a program prints of itself, and whether it may open what another one wrote.
//!
//! Invariant: a server of an older series never opens files that one of a newer series may have changed. MariaDB and
//! MySQL do not go back; a series is the first two numbers, within which both keep the format of their files.

use std::fmt;
use std::str::FromStr;

/// A version: `10.11.19`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(Vec<u32>);

/// What a server does with files that were last written by another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It is of the same series.
    Same,
    /// It is of a newer series: the older one cannot come back.
    Up,
    /// It is of an older series.
    Down,
}

impl Version {
    /// The first version in what a program prints: at least two numbers with a dot between them.
    pub fn find(text: &str) -> Option<Version> {
        let words = text.split(|c: char| !c.is_ascii_digit() && c != '.');
        words.into_iter().find_map(|word| word.parse().ok())
    }

    fn series(&self) -> (u32, u32) {
        let number = |at: usize| self.0.get(at).copied().unwrap_or_default();
        (number(0), number(1))
    }

    /// What it means if this server opens files that `before` wrote.
    pub fn after(&self, before: &Version) -> Step {
        match self.series().cmp(&before.series()) {
            std::cmp::Ordering::Less => Step::Down,
            std::cmp::Ordering::Equal => Step::Same,
            std::cmp::Ordering::Greater => Step::Up,
        }
    }
}

impl FromStr for Version {
    type Err = ();

    fn from_str(text: &str) -> Result<Version, ()> {
        let numbers = text.trim_end_matches('.').split('.');
        let numbers: Result<Vec<u32>, _> = numbers.map(str::parse).collect();
        match numbers {
            Ok(numbers) if numbers.len() >= 2 => Ok(Version(numbers)),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_what_servers_print() {
        for (text, expected) in [
            (
                "mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)",
                "10.11.19",
            ),
            (
                "/opt/mysql-8/mysqld  Ver 8.0.36 for Linux on x86_64 (MySQL Community Server - GPL)",
                "8.0.36",
            ),
            (
                "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0",
                "7.0.15",
            ),
            ("service 2.1", "2.1"),
        ] {
            assert_eq!(Version::find(text).unwrap().to_string(), expected);
        }
        for text in ["", "no version", "build 7", "1.", "..."] {
            assert_eq!(Version::find(text), None, "{text}");
        }
    }

    // hazard: ENGINE-4
    #[test]
    fn older_series_alone_is_a_step_down() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        let step = |now: &str, before: &str| version(now).after(&version(before));
        assert_eq!(step("10.11.5", "10.11.19"), Step::Same);
        assert_eq!(step("10.6.20", "10.11.3"), Step::Down);
        assert_eq!(step("11.4.5", "10.11.19"), Step::Up);
        assert_eq!(step("9.9", "10.0"), Step::Down);
        assert!(version("10.11.19") > version("10.11.5"));
    }
}
