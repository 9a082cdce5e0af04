//! What transactions may conflict on: the database, a table, a row by its whole primary key.
//!
//! Invariant: whoever claims something has an intention on everything around it, so that two transactions conflict if and
//! only if two of their claims on one class do.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Something that transactions may conflict on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Everything.
    Database,
    /// A table, by its name with its schema.
    Table(Box<str>),
    /// The row of a table that has this primary key, or would have it.
    Key(Box<str>, Box<str>),
}

impl Class {
    /// What is around it.
    fn parent(&self) -> Option<Class> {
        match self {
            Class::Database => None,
            Class::Table(_) => Some(Class::Database),
            Class::Key(table, _) => Some(Class::Table(table.clone())),
        }
    }
}

/// How something is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Parts of it will be read.
    IntentShared,
    /// Parts of it will be written.
    IntentExclusive,
    /// All of it is read.
    Shared,
    /// All of it is read, and parts of it will be written.
    SharedIntentExclusive,
    /// All of it may be written.
    Exclusive,
}

impl Mode {
    /// All of them, weakest first.
    pub const ALL: [Mode; 5] = [
        Mode::IntentShared,
        Mode::IntentExclusive,
        Mode::Shared,
        Mode::SharedIntentExclusive,
        Mode::Exclusive,
    ];

    /// True if two transactions may have these at a time.
    pub fn allows(self, other: Mode) -> bool {
        use Mode::{Exclusive, IntentExclusive, IntentShared, Shared};
        match (self, other) {
            (Exclusive, _) | (_, Exclusive) => false,
            (IntentShared, _) | (_, IntentShared) => true,
            (IntentExclusive, IntentExclusive) | (Shared, Shared) => true,
            _ => false,
        }
    }

    /// The weakest mode that is as strong as both.
    pub fn and(self, other: Mode) -> Mode {
        use Mode::{Exclusive, IntentExclusive, IntentShared, Shared, SharedIntentExclusive};
        match (self, other) {
            (one, same) if one == same => one,
            (Exclusive, _) | (_, Exclusive) => Exclusive,
            (IntentShared, other) | (other, IntentShared) => other,
            (IntentExclusive | Shared | SharedIntentExclusive, _) => SharedIntentExclusive,
        }
    }

    /// What whoever claims this must have of what is around it.
    fn intention(self) -> Mode {
        match self {
            Mode::IntentShared | Mode::Shared => Mode::IntentShared,
            _ => Mode::IntentExclusive,
        }
    }

    /// Its place in [`Mode::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// What a statement or a transaction claims; everything around it included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims(BTreeMap<Class, Mode>);

impl Claims {
    /// Claims one thing more.
    pub fn add(&mut self, class: Class, mode: Mode) {
        if let Some(parent) = class.parent() {
            self.add(parent, mode.intention());
        }
        let entry = self.0.entry(class).or_insert(mode);
        *entry = entry.and(mode);
    }

    /// The same with one thing more.
    pub fn with(mut self, class: Class, mode: Mode) -> Claims {
        self.add(class, mode);
        self
    }

    /// What is claimed; what is around something comes before it.
    pub fn iter(&self) -> impl Iterator<Item = (&Class, Mode)> {
        self.0.iter().map(|(class, mode)| (class, *mode))
    }

    /// True if transactions with these claims must be in one order everywhere.
    pub fn conflicts_with(&self, other: &Claims) -> bool {
        self.iter().any(|(class, mode)| {
            other
                .0
                .get(class)
                .is_some_and(|theirs| !mode.allows(*theirs))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(table: &str, key: &str, mode: Mode) -> Claims {
        Claims::default().with(Class::Key(table.into(), key.into()), mode)
    }

    fn table(name: &str, mode: Mode) -> Claims {
        Claims::default().with(Class::Table(name.into()), mode)
    }

    #[test]
    fn keys_conflict_with_the_whole_table_and_with_themselves() {
        let one = key("t", "1", Mode::Exclusive);
        assert!(one.conflicts_with(&key("t", "1", Mode::Shared)));
        assert!(!one.conflicts_with(&key("t", "2", Mode::Exclusive)));
        assert!(!one.conflicts_with(&key("u", "1", Mode::Exclusive)));
        assert!(one.conflicts_with(&table("t", Mode::Shared)));
        assert!(!one.conflicts_with(&table("t", Mode::IntentExclusive)));
        assert!(!one.conflicts_with(&table("u", Mode::Exclusive)));
        assert!(one.conflicts_with(&Claims::default().with(Class::Database, Mode::Exclusive)));
        assert!(!key("t", "1", Mode::Shared).conflicts_with(&table("t", Mode::Shared)));
    }

    #[test]
    fn two_claims_are_as_strong_as_both() {
        let both =
            table("t", Mode::Shared).with(Class::Key("t".into(), "1".into()), Mode::Exclusive);
        assert!(both.conflicts_with(&key("t", "2", Mode::Exclusive)));
        assert!(!both.conflicts_with(&key("t", "2", Mode::Shared)));
        for one in Mode::ALL {
            for other in Mode::ALL {
                let both = one.and(other);
                assert_eq!(both, other.and(one));
                for third in Mode::ALL {
                    assert_eq!(
                        both.allows(third),
                        one.allows(third) && other.allows(third),
                        "{one:?} {other:?} {third:?}"
                    );
                }
            }
        }
    }
}
