//! The definitions that a member has, as both members write them, and the snapshot that they were read in.
//!
//! Invariant: definitions of a primary are logged at a place of the log where every transaction before it that has defined something was
//! visible when they were read, and none after it was. So a standby that has executed everything before that place has the same.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// So many differences are named.
const MOST_NAMED: usize = 5;
/// Of so many definitions each is logged; of more, only sums.
const MOST_LOGGED: usize = 1_000;

/// Definitions of a member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalog {
    /// How they are written: the number of a server's version and of the query.
    pub version: u32,
    /// Their number and their sum, for each kind.
    pub sums: Vec<(String, String)>,
    /// Each with its sum, by kind and name, unless there are too many.
    pub names: Vec<(String, String)>,
}

impl Catalog {
    /// Written in the way of `version`, with these sums; all definitions have a kind and a name, and a sum.
    pub fn new(version: u32, sums: Vec<(String, String)>, names: Vec<(String, String)>) -> Catalog {
        let names = match names.len() > MOST_LOGGED {
            true => Vec::new(),
            false => names,
        };
        Catalog {
            version,
            sums,
            names,
        }
    }

    /// The difference between the log's definitions, which these are, and those of a member; nothing if versions differ, because the same
    /// definition may be written in another way there.
    pub fn difference(&self, member: &Catalog) -> Option<String> {
        if self.version != member.version || self.sums == member.sums {
            return None;
        }
        let mut named = differing(&self.names, &member.names);
        if named.is_empty() {
            named = differing(&self.sums, &member.sums);
        }
        let more = named.len().saturating_sub(MOST_NAMED);
        named.truncate(MOST_NAMED);
        let more = match more {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        Some(format!(
            "what is defined differs: {}{more}",
            named.join(", ")
        ))
    }
}

/// Names of what differs, with where it is missing.
fn differing(log: &[(String, String)], member: &[(String, String)]) -> Vec<String> {
    let of = |all: &[(String, String)]| all.iter().cloned().collect::<BTreeMap<_, _>>();
    let (log, member) = (of(log), of(member));
    let names: BTreeSet<&String> = log.keys().chain(member.keys()).collect();
    let told = names
        .into_iter()
        .filter_map(|name| match (log.get(name), member.get(name)) {
            (Some(one), Some(other)) if one == other => None,
            (Some(_), None) => Some(format!("{name} (missing here)")),
            (None, _) => Some(format!("{name} (only here)")),
            _ => Some(name.clone()),
        });
    told.collect()
}

/// A snapshot, as `pg_current_snapshot()` says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    next: u64,
    open: BTreeSet<u64>,
}

impl Snapshot {
    /// Reads it.
    pub fn parse(text: &str) -> Option<Snapshot> {
        let mut parts = text.split(':');
        let (_, next) = (parts.next()?, parts.next()?.parse().ok()?);
        let open = parts.next()?.split(',').filter(|one| !one.is_empty());
        let open = open.map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Snapshot { next, open })
    }

    /// The lower halves of the numbers of transactions that are under way.
    pub fn open(&self) -> impl Iterator<Item = u32> + '_ {
        self.open.iter().map(|whole| *whole as u32)
    }

    /// True if a transaction is visible that has committed since, of which the number's lower half is known.
    pub fn sees(&self, xid: u32) -> bool {
        const HALF: u64 = 1 << 31;
        let mut whole = self.next & !u64::from(u32::MAX) | u64::from(xid);
        if whole > self.next + HALF {
            whole = whole.saturating_sub(1 << 32);
        } else if whole + HALF < self.next {
            whole += 1 << 32;
        }
        whole < self.next && !self.open.contains(&whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter()
            .map(|(name, sum)| ((*name).to_owned(), (*sum).to_owned()))
            .collect()
    }

    #[test]
    fn what_differs_is_named() {
        let of = |version, names: &[(&str, &str)]| {
            let sum = format!("{names:?}");
            Catalog::new(version, all(&[("relation", &sum)]), all(names))
        };
        let log = of(15, &[("role a", "1"), ("role b", "2"), ("role c", "3")]);
        assert_eq!(log.difference(&log.clone()), None);
        let member = of(15, &[("role b", "9"), ("role c", "3"), ("role d", "4")]);
        let wanted = "what is defined differs: role a (missing here), role b, role d (only here)";
        assert_eq!(log.difference(&member).as_deref(), Some(wanted));
        assert_eq!(
            log.difference(&Catalog {
                version: 16,
                ..member
            }),
            None
        );
        let many: Vec<String> = (0..MOST_LOGGED).map(|n| n.to_string()).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "")).collect();
        let more = [many, vec![("x", "")]].concat();
        let told = of(15, &more).difference(&log);
        assert_eq!(
            told.as_deref(),
            Some(
                "what is defined differs: role a (only here), role b (only here), role c (only here)"
            )
        );
    }

    #[test]
    fn a_snapshot_sees_what_has_ended_before_it() {
        let snapshot = Snapshot::parse("100:105:101,103").expect("valid");
        let seen: Vec<u32> = (98..108).filter(|xid| snapshot.sees(*xid)).collect();
        assert_eq!(seen, [98, 99, 100, 102, 104]);
        let late = Snapshot::parse("4294967290:4294967300:4294967297").expect("valid");
        assert!(late.sees(u32::MAX) && late.sees(0) && !late.sees(1) && late.sees(3));
        assert!(!late.sees(4) && !late.sees(9));
        for wrong in ["", "1", "1:2", "1:x:", "1:2:x"] {
            assert_eq!(Snapshot::parse(wrong), None, "{wrong}");
        }
    }
}
