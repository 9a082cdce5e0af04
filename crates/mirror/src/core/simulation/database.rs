//! A model of a member: two tables of lists, and statements that append to them.
//!
//! `append T K V` puts V at the end of the list K of T, and answers how long that is; `fold T U V` puts V and a sum over all of U at
//! the end of every list of T. As in PostgreSQL at READ COMMITTED, a statement sees what has committed and what its own
//! transaction did. Commits reach the disk later, in their order: a server that crashes has lost the last of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::core::class::{Claims, Class, Mode};
use crate::core::ledger::Ledger;
use crate::core::log::Identity;
use crate::core::record::{Digest, Number, Statement};

pub const TABLES: u64 = 2;
pub const KEYS: u64 = 3;

pub type Lists = BTreeMap<(u64, u64), Vec<u64>>;

/// What a statement does.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    Append(u64, u64, u64),
    Fold(u64, u64, u64),
}

impl Op {
    pub fn text(self) -> String {
        match self {
            Op::Append(table, key, value) => format!("append {table} {key} {value}"),
            Op::Fold(table, other, value) => format!("fold {table} {other} {value}"),
        }
    }

    fn parse(text: &str) -> Op {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |at: usize| words[at].parse().expect("a number");
        let (one, two, three) = (number(1), number(2), number(3));
        match words[0] {
            "append" => Op::Append(one, two, three),
            _ => Op::Fold(one, two, three),
        }
    }

    pub fn claims(self) -> Claims {
        let table = |table: u64| Class::Table(table.to_string().into());
        match self {
            Op::Append(of, key, _) => {
                let key = Class::Key(of.to_string().into(), key.to_string().into());
                Claims::default().with(key, Mode::Exclusive)
            }
            Op::Fold(of, other, _) => Claims::default()
                .with(table(of), Mode::Exclusive)
                .with(table(other), Mode::Shared),
        }
    }
}

/// What a transaction has done and not committed.
#[derive(Debug, Clone, Default)]
pub struct Session(Vec<((u64, u64), u64)>);

/// A member.
#[derive(Debug, Clone, Default)]
pub struct Database {
    pub is_alive: bool,
    pub lists: Lists,
    pub numbers: BTreeSet<Number>,
    /// What is on its disk.
    pub disk: (Lists, BTreeSet<Number>),
    /// What was committed since.
    pub unsaved: Vec<(Session, Number)>,
    /// Everything up to here was saved, as it says itself.
    pub floor: Number,
    /// Which log it belongs to, as it says itself.
    pub log: Option<Identity>,
    pub is_marked: bool,
    /// Something in it is wrong.
    pub is_corrupt: bool,
    /// Which life of its server this is.
    pub life: u32,
}

impl Database {
    fn list(&self, session: &Session, at: (u64, u64)) -> Vec<u64> {
        let mut list = self.lists.get(&at).cloned().unwrap_or_default();
        let own = session.0.iter().filter(|(key, _)| *key == at);
        list.extend(own.map(|(_, value)| *value));
        list
    }

    /// Executes a statement, and says what it answered.
    pub fn execute(&self, session: &mut Session, text: &str) -> Digest {
        let mut digest = Digest::default();
        match Op::parse(text) {
            Op::Append(table, key, value) => {
                let list = self.list(session, (table, key));
                digest.row(format!("{} {:?}", list.len(), list.last()).as_bytes());
                session.0.push(((table, key), value));
            }
            Op::Fold(table, other, value) => {
                let sum: u64 = (0..KEYS)
                    .flat_map(|key| self.list(session, (other, key)))
                    .fold(0, |sum, one| sum.wrapping_mul(31).wrapping_add(one));
                for key in 0..KEYS {
                    // Values are told apart by what is above the sum.
                    let value = (value << 16) | (key << 14) | (sum & 0x3fff);
                    session.0.push(((table, key), value));
                }
                digest.row(&sum.to_le_bytes());
            }
        }
        digest.tag(b"done");
        digest
    }

    /// Commits, with a number that must not be there yet.
    pub fn commit(&mut self, session: Session, number: Number) -> bool {
        if self.numbers.contains(&number) {
            return false;
        }
        self.unsaved.push((session.clone(), number));
        self.add(session, number);
        true
    }

    fn add(&mut self, session: Session, number: Number) {
        self.numbers.insert(number);
        for (at, value) in session.0 {
            self.lists.entry(at).or_default().push(value);
        }
    }

    /// Everything that it has is on its disk now.
    pub fn save(&mut self) {
        self.disk = (self.lists.clone(), self.numbers.clone());
        self.unsaved.clear();
    }

    /// The server crashes: of the commits that were not saved, it has the first ones.
    pub fn crash(&mut self, kept: usize) {
        (self.lists, self.numbers) = self.disk.clone();
        let unsaved = std::mem::take(&mut self.unsaved);
        for (session, number) in unsaved.into_iter().take(kept) {
            self.add(session, number);
        }
        self.save();
        self.is_alive = false;
        self.life += 1;
    }

    pub fn ledger(&self) -> Ledger {
        Ledger::new(Number(0), self.numbers.iter().copied())
    }
}

/// What the log says, executed in its order.
pub fn replay<'a>(
    transactions: impl IntoIterator<Item = (Number, &'a [Statement])>,
) -> Result<Lists, String> {
    let mut database = Database::default();
    for (number, statements) in transactions {
        let mut session = Session::default();
        for statement in statements {
            let digest = database.execute(&mut session, &statement.text);
            if statement.digest != Some(digest) {
                let text = &statement.text;
                return Err(format!(
                    "the order of the log is another than the primary's: {number}: {text}"
                ));
            }
        }
        database.commit(session, number);
    }
    Ok(database.lists)
}
