//! Names of relation files: a relation's fork is kept in segments of (by default) 1 GiB, each a file
//! `<number>[_<fork>][.<segment>]` in the directory of its database.
//!
//! Invariant: `RelationFile::parse(&f.to_string()) == Some(f)`, and only names that PostgreSQL itself
//! could make are parsed.

use std::fmt;

/// The object id of the default tablespace, kept in `base`.
pub const DEFAULT_TABLESPACE: u32 = 1663;
/// The object id of the tablespace of shared catalogs, kept in `global`.
pub const GLOBAL_TABLESPACE: u32 = 1664;

/// One of a relation's parallel block sequences; the values are those of log records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fork {
    /// Fork with the relation's contents.
    Main,
    /// The free-space map.
    FreeSpace,
    /// The visibility map.
    Visibility,
    /// What an unlogged relation becomes after a crash.
    Init,
}

impl Fork {
    /// From the number in a log record.
    pub fn from_number(number: u8) -> Option<Fork> {
        Some(match number {
            0 => Fork::Main,
            1 => Fork::FreeSpace,
            2 => Fork::Visibility,
            3 => Fork::Init,
            _ => return None,
        })
    }

    fn suffix(self) -> &'static str {
        match self {
            Fork::Main => "",
            Fork::FreeSpace => "_fsm",
            Fork::Visibility => "_vm",
            Fork::Init => "_init",
        }
    }

    fn from_suffix(text: &str) -> Option<Fork> {
        [Fork::FreeSpace, Fork::Visibility, Fork::Init]
            .into_iter()
            .find(|fork| &fork.suffix()[1..] == text)
    }
}

/// Which relation, as log records name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Relation {
    /// Object id of the tablespace.
    pub tablespace: u32,
    /// Object id of the database; 0 for shared catalogs.
    pub database: u32,
    /// The relation's file number.
    pub number: u32,
}

/// A block of a relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelationBlock {
    /// The relation.
    pub relation: Relation,
    /// Its fork.
    pub fork: Fork,
    /// The block's number in the fork.
    pub block: u32,
}

impl RelationBlock {
    /// The file that holds the block, relative to the data directory, and the block's index in it,
    /// given the blocks per segment (`ControlFile::blocks_per_segment`). `None` for relations in
    /// tablespaces, which a volume does not hold (H11).
    pub fn location(&self, blocks_per_segment: u32) -> Option<(String, u64)> {
        let per_segment = blocks_per_segment.max(1);
        let file = RelationFile {
            temporary: None,
            number: self.relation.number,
            fork: self.fork,
            segment: self.block / per_segment,
        };
        let path = match self.relation.tablespace {
            DEFAULT_TABLESPACE => format!("base/{}/{file}", self.relation.database),
            GLOBAL_TABLESPACE => format!("global/{file}"),
            _ => return None,
        };
        Some((path, u64::from(self.block % per_segment)))
    }
}

/// The name of one segment of one fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelationFile {
    /// For a temporary relation, the backend that made it.
    pub temporary: Option<u32>,
    /// The relation's file number.
    pub number: u32,
    /// The fork.
    pub fork: Fork,
    /// The segment; 0 has no suffix.
    pub segment: u32,
}

impl RelationFile {
    /// Parses a file name (without directories).
    pub fn parse(name: &str) -> Option<RelationFile> {
        let (stem, segment) = match name.split_once('.') {
            Some((stem, digits)) => (stem, decimal(digits).filter(|n| *n > 0)?),
            None => (name, 0),
        };
        let (temporary, stem) = match stem.strip_prefix('t') {
            Some(rest) => {
                let (backend, rest) = rest.split_once('_')?;
                (Some(decimal(backend)?), rest)
            }
            None => (None, stem),
        };
        let (number, fork) = match stem.split_once('_') {
            Some((number, suffix)) => (number, Fork::from_suffix(suffix)?),
            None => (stem, Fork::Main),
        };
        Some(RelationFile {
            temporary,
            number: decimal(number)?,
            fork,
            segment,
        })
    }
}

impl fmt::Display for RelationFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(backend) = self.temporary {
            write!(f, "t{backend}_")?;
        }
        write!(f, "{}{}", self.number, self.fork.suffix())?;
        match self.segment {
            0 => Ok(()),
            segment => write!(f, ".{segment}"),
        }
    }
}

/// A path of a relation file, relative to the data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelationPath {
    /// Object id of the tablespace.
    pub tablespace: u32,
    /// Object id of the database; 0 for shared catalogs.
    pub database: u32,
    /// File within that directory.
    pub file: RelationFile,
}

impl RelationPath {
    /// Parses `base/<db>/<file>` and `global/<file>`.
    pub fn parse(path: &str) -> Option<RelationPath> {
        if let Some(name) = path.strip_prefix("global/") {
            let file = RelationFile::parse(name)?;
            return Some(RelationPath {
                tablespace: GLOBAL_TABLESPACE,
                database: 0,
                file,
            });
        }
        let (database, name) = path.strip_prefix("base/")?.split_once('/')?;
        let file = RelationFile::parse(name)?;
        Some(RelationPath {
            tablespace: DEFAULT_TABLESPACE,
            database: decimal(database)?,
            file,
        })
    }

    /// The number in its fork of block `index` of this file.
    pub fn block(&self, index: u64, blocks_per_segment: u32) -> Option<u32> {
        let first = u64::from(self.file.segment) * u64::from(blocks_per_segment);
        u32::try_from(first.checked_add(index)?).ok()
    }
}

/// A decimal number without sign or leading zeros, as PostgreSQL makes them (`0` itself is one).
fn decimal(digits: &str) -> Option<u32> {
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    let canonical = digits == "0" || !digits.starts_with('0');
    (plain && canonical).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_file() -> impl Strategy<Value = RelationFile> {
        (
            proptest::option::of(any::<u32>()),
            any::<u32>(),
            0u8..4,
            any::<u32>(),
        )
            .prop_map(|(temporary, number, fork, segment)| RelationFile {
                temporary,
                number,
                fork: Fork::from_number(fork).unwrap(),
                segment,
            })
    }

    proptest! {
        #[test]
        fn names_survive_a_round_trip(file in any_file()) {
            prop_assert_eq!(RelationFile::parse(&file.to_string()), Some(file));
        }

        #[test]
        fn parsed_paths_are_printed_the_same(name in "t?[0-9]{0,3}_?[a-z0-9_.]{0,8}") {
            if let Some(file) = RelationFile::parse(&name) {
                prop_assert_eq!(file.to_string(), name);
            }
        }

        #[test]
        fn a_blocks_path_leads_back_to_it(
            database in 1u32.., number in any::<u32>(), fork in 0u8..4, block in any::<u32>(),
        ) {
            let at = RelationBlock {
                relation: Relation { tablespace: DEFAULT_TABLESPACE, database, number },
                fork: Fork::from_number(fork).unwrap(),
                block,
            };
            let (path, index) = at.location(131_072).unwrap();
            let parsed = RelationPath::parse(&path).unwrap();
            prop_assert_eq!(parsed.database, database);
            prop_assert_eq!(parsed.file.number, number);
            prop_assert_eq!(parsed.file.fork, at.fork);
            prop_assert_eq!(parsed.block(index, 131_072), Some(block));
        }
    }

    #[test]
    fn names_that_are_no_relations_are_refused() {
        for name in [
            "",
            "PG_VERSION",
            "pg_filenode.map",
            "16384_",
            "16384_xx",
            "16384.",
            "16384.0",
            "0123",
            "t3",
            "t_5",
            "16384.1.2",
            "16384_fsm_vm",
            "-1",
            "pg_control",
        ] {
            assert_eq!(RelationFile::parse(name), None, "{name}");
        }
    }

    #[test]
    fn blocks_are_found_in_their_segment() {
        let relation = Relation {
            tablespace: GLOBAL_TABLESPACE,
            database: 0,
            number: 1260,
        };
        let at = |fork, block| {
            RelationBlock {
                relation,
                fork,
                block,
            }
            .location(131_072)
            .unwrap()
        };
        assert_eq!(at(Fork::Main, 5), ("global/1260".into(), 5));
        assert_eq!(
            at(Fork::Visibility, 131_073),
            ("global/1260_vm.1".into(), 1)
        );
        let elsewhere = Relation {
            tablespace: 16_999,
            ..relation
        };
        let block = RelationBlock {
            relation: elsewhere,
            fork: Fork::Main,
            block: 0,
        };
        assert_eq!(block.location(131_072), None);
    }
}
