//! What a session must know of a connection to a server.

use std::collections::{BTreeMap, HashMap};

use dax::ids::Epoch;
use volume::lsn::Lsn;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::super::settings::Settings;
use super::super::topology::{Address, NodeName, ServerRun};

/// Which server it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// The active of this epoch.
    Active(Epoch),
    /// A standby.
    Standby(NodeName),
}

/// What a server has reported by `ParameterStatus`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reported {
    values: BTreeMap<Box<str>, Box<str>>,
    /// A sum of all of it, whatever the order, so that most comparisons are short.
    sum: u64,
    /// The same of what texts are read by.
    reading: u64,
}

/// How the names begin of statements that sessions share, and of the proxy's own.
pub(super) const SHARED: &str = "understudy_";

/// By these PostgreSQL reads texts, and makes values of their literals, when it prepares a statement. (It reads them once more
/// when the search path has changed.)
const READING: [&str; 5] = [
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "client_encoding",
    "standard_conforming_strings",
];

/// The prepared statements that a server has, by their names there, and in which order they were used last.
#[derive(Debug, Clone, Default)]
pub struct Held {
    used: HashMap<Box<str>, u64>,
    uses: u64,
    /// Some may have the name of a client.
    may_lend: bool,
}

/// A session on a server, as its connection goes from client to client.
#[derive(Debug)]
pub struct Server {
    /// Which server it is on.
    pub role: Role,
    /// Settings that it was given.
    pub settings: Settings,
    /// Prepared statements that it has.
    pub prepared: Held,
    /// The unnamed statement that it has, by its shared name.
    pub unnamed: Option<Box<str>>,
    /// What it has reported.
    pub reported: Reported,
    /// A standby: how far it had replayed when the connection was made.
    pub replayed: Lsn,
    /// Which run of it this is.
    pub run: Option<ServerRun>,
    /// Where it is.
    pub address: Option<Address>,
    /// An active: its epoch is certain, as it was told of this run of it. Otherwise it may be that of a later one.
    pub is_vouched_for: bool,
    /// The number of its process, by which others hear of it.
    pub process: Option<i32>,
    /// It was given what its session keeps beside settings.
    pub is_restored: bool,
    /// Something opaque has run on it since its server was asked what it has.
    pub is_unasked: bool,
    /// The same, of the users' own: what it has done may be missed.
    pub has_run_own: bool,
    /// Something opaque has run on it since its session got it.
    pub is_changed: bool,
    /// It may have something that no reset takes away: what an extension keeps.
    pub is_tainted: bool,
    /// Another session had it and may have left something: it must be reset first.
    pub must_reset: bool,
}

impl Server {
    /// A new connection.
    pub fn new(role: Role, reported: Reported) -> Server {
        Server {
            role,
            settings: Settings::default(),
            prepared: Held::default(),
            unnamed: None,
            reported,
            replayed: Lsn::ZERO,
            run: None,
            address: None,
            is_vouched_for: false,
            process: None,
            is_restored: false,
            is_unasked: false,
            has_run_own: false,
            is_changed: false,
            is_tainted: false,
            must_reset: false,
        }
    }

    /// The text that gives it these settings, and takes away what others have left; `None` if it has them.
    pub fn set_up_text(&self, wanted: &Settings) -> Option<String> {
        if !self.must_reset {
            return self.settings.statements_to(wanted);
        }
        let settings = Settings::default().statements_to(wanted);
        let all = std::iter::once(super::state::RESET.to_owned()).chain(settings);
        Some(super::super::settings::join(&all.collect::<Vec<_>>()))
    }

    /// It has these settings now, and nothing else.
    pub fn is_set_up(&mut self, settings: &Settings) {
        self.settings = settings.clone();
        self.must_reset = false;
    }

    /// The epoch for whose active it is taken, if it may be that of a later one.
    pub fn uncertain_epoch(&self) -> Option<Epoch> {
        self.epoch().filter(|_| !self.is_vouched_for)
    }

    /// The epoch whose active it is.
    pub fn epoch(&self) -> Option<Epoch> {
        match self.role {
            Role::Active(epoch) => Some(epoch),
            Role::Standby(_) => None,
        }
    }
}

impl Held {
    /// The statement is used; whether the server has it from now on only.
    pub fn insert(&mut self, name: &str) -> bool {
        self.uses += 1;
        match self.used.get_mut(name) {
            Some(used) => {
                *used = self.uses;
                false
            }
            None => {
                self.may_lend |= !is_shared(name);
                self.used.insert(name.into(), self.uses).is_none()
            }
        }
    }

    /// Those that have a client's name on a server that sessions share: nobody else must meet them there.
    pub fn lent(&mut self) -> Vec<Box<str>> {
        if !std::mem::take(&mut self.may_lend) {
            return Vec::new();
        }
        let all = self.used.keys();
        all.filter(|name| !is_shared(name)).cloned().collect()
    }

    /// Notes that the statement of this name was closed.
    pub fn remove(&mut self, name: &str) {
        self.used.remove(name);
    }

    /// All are closed.
    pub fn clear(&mut self) {
        self.used.clear();
    }

    /// True if the server has it.
    pub fn contains(&self, name: &str) -> bool {
        self.used.contains_key(name)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.used.keys().map(AsRef::as_ref)
    }

    /// What to close if there are more than `max`: those that were used longest ago, a quarter of `max` more than need be,
    /// so that it is not done all the time.
    pub fn surplus(&self, max: usize) -> Vec<Box<str>> {
        if self.used.len() <= max {
            return Vec::new();
        }
        let mut all: Vec<_> = self.used.iter().collect();
        all.sort_unstable_by_key(|(_, used)| **used);
        let closed = self.used.len() - (max - max / 4);
        let names = all.into_iter().take(closed);
        names.map(|(name, _)| name.clone()).collect()
    }
}

impl<'a> FromIterator<&'a str> for Held {
    fn from_iter<I: IntoIterator<Item = &'a str>>(names: I) -> Held {
        let mut held = Held::default();
        for name in names {
            held.insert(name);
        }
        held
    }
}

/// True if all sessions know a statement by this name.
fn is_shared(name: &str) -> bool {
    name.starts_with(SHARED)
}

fn sum_of(name: &str, value: &str) -> u64 {
    xxh3_64_with_seed(value.as_bytes(), xxh3_64_with_seed(name.as_bytes(), 0))
}

impl Reported {
    /// Another report; whether it is news.
    pub fn put(&mut self, name: &str, value: &str) -> bool {
        if self.get(name) == Some(value) {
            return false;
        }
        if let Some(old) = self.values.insert(name.into(), value.into()) {
            self.add(name, sum_of(name, &old).wrapping_neg());
        }
        self.add(name, sum_of(name, value));
        true
    }

    fn add(&mut self, name: &str, sum: u64) {
        self.sum = self.sum.wrapping_add(sum);
        if READING.contains(&name) {
            self.reading = self.reading.wrapping_add(sum);
        }
    }

    /// Tells servers apart on which the same text is another statement.
    pub fn reading(&self) -> u64 {
        self.reading
    }

    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(AsRef::as_ref)
    }

    /// All of it.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(name, value)| (&**name, &**value))
    }

    /// What is here that `other` does not have so.
    pub fn news_to<'a>(&'a self, other: &'a Reported) -> impl Iterator<Item = (&'a str, &'a str)> {
        let is_equal = self.sum == other.sum && self.values.len() == other.values.len();
        let all = (!is_equal).then(|| self.iter());
        all.into_iter()
            .flatten()
            .filter(|(name, value)| *name != "in_hot_standby" && other.get(name) != Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_used_longest_ago_is_closed() {
        let mut held: Held = ["a", "b", "c", "d"].into_iter().collect();
        assert!(held.surplus(4).is_empty());
        assert!(!held.insert("a"), "it is there");
        assert!(held.insert("e"));
        assert_eq!(held.surplus(4), ["b".into(), "c".into()]);
        assert_eq!(held.surplus(0).len(), 5);
    }

    #[test]
    fn parameter_status_is_sent_when_it_changes() {
        let mut server = Reported::default();
        assert!(server.put("TimeZone", "UTC"));
        assert!(!server.put("TimeZone", "UTC"));
        let client = server.clone();
        assert_eq!(server.news_to(&client).count(), 0);
        server.put("TimeZone", "CET");
        server.put("in_hot_standby", "on");
        assert_eq!(
            server.news_to(&client).collect::<Vec<_>>(),
            [("TimeZone", "CET")]
        );
    }
}
