//! A model of a member: two tables of rows with keys, of which transactions change some.
//!
//! As in PostgreSQL, a commit that the server has made itself is on its disk, and waits, with its locks, until the manager confirms its
//! position; a crash makes it visible. Transactions of the log reach the disk later, in their order: a server that crashes has lost the
//! last of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::core::ledger::Ledger;
use crate::core::log::Identity;
use crate::core::record::{Number, Record};
use crate::core::rows::{Change, Lsn, Relation, Row, Rows, Value};

pub const TABLES: u64 = 2;
pub const KEYS: u64 = 4;

/// Values by tables and keys.
pub type Content = BTreeMap<(u64, u64), u64>;

/// Operation of a client.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    /// The row of this key has this value from now on.
    Put(u64, u64, u64),
    /// There is no such row any more.
    Delete(u64, u64),
    /// There are no rows in this table any more.
    Empty(u64),
}

impl Op {
    fn keys(self) -> Vec<(u64, u64)> {
        match self {
            Op::Put(table, key, _) | Op::Delete(table, key) => vec![(table, key)],
            Op::Empty(table) => (0..KEYS).map(|key| (table, key)).collect(),
        }
    }
}

fn relation(table: u64) -> Relation {
    Relation {
        schema: "public".to_owned(),
        name: table.to_string(),
        is_full: false,
        is_by_key: true,
        columns: vec![("id".to_owned(), true), ("v".to_owned(), false)],
    }
}

fn row(values: [Option<u64>; 2]) -> Row {
    let of = |value: Option<u64>| {
        value.map_or(Value::Null, |value| {
            Value::Text(value.to_string().into_bytes())
        })
    };
    values.map(of).to_vec()
}

fn number(row: &Row, at: usize) -> u64 {
    let Value::Text(text) = &row[at] else {
        panic!("it has a value");
    };
    let text = std::str::from_utf8(text).expect("digits");
    text.parse().expect("a number")
}

/// The rows that these change, and the content then.
pub fn changes(content: &Content, ops: &[Op]) -> (Rows, Content) {
    let mut content = content.clone();
    let mut rows = Rows {
        relations: (0..TABLES).map(relation).collect(),
        changes: Vec::new(),
    };
    for op in ops {
        match *op {
            Op::Put(table, key, value) => {
                let new = row([Some(key), Some(value)]);
                let place = u32::try_from(table).expect("few");
                rows.changes
                    .push(match content.insert((table, key), value) {
                        None => Change::Insert(place, new),
                        Some(_) => Change::Update(place, None, new),
                    });
            }
            Op::Delete(table, key) => {
                let place = u32::try_from(table).expect("few");
                if content.remove(&(table, key)).is_some() {
                    let old = row([Some(key), None]);
                    rows.changes.push(Change::Delete(place, old));
                }
            }
            Op::Empty(table) => {
                content.retain(|(of, _), _| *of != table);
                rows.changes.push(Change::Truncate {
                    relations: vec![u32::try_from(table).expect("few")],
                    restarts: false,
                });
            }
        }
    }
    (rows, content)
}

/// Does what rows say; why not, if one of them does not find its row.
pub fn execute(content: &mut Content, rows: &Rows) -> Result<(), String> {
    let table = |at: u32| {
        let name = rows.relation(at).map(|relation| relation.name.clone());
        name.and_then(|name| name.parse::<u64>().ok())
            .expect("it is one of the tables")
    };
    for change in &rows.changes {
        let fits = match change {
            Change::Insert(at, new) => content
                .insert((table(*at), number(new, 0)), number(new, 1))
                .is_none(),
            Change::Update(at, _, new) => content
                .insert((table(*at), number(new, 0)), number(new, 1))
                .is_some(),
            Change::Delete(at, old) => content.remove(&(table(*at), number(old, 0))).is_some(),
            Change::Truncate { relations, .. } => {
                let tables: Vec<u64> = relations.iter().map(|at| table(*at)).collect();
                content.retain(|(of, _), _| !tables.contains(of));
                true
            }
            _ => true,
        };
        if !fits {
            return Err(format!("{change:?} does not find what it must"));
        }
    }
    Ok(())
}

/// A commit that the server has made itself.
#[derive(Debug, Clone)]
pub struct Own {
    pub end: Lsn,
    pub xid: u64,
    pub rows: Rows,
    /// It is logged in so many pieces.
    pub pieces: u32,
    /// Its client waits, and nobody else gets at these.
    pub holds: BTreeSet<(u64, u64)>,
}

/// A member.
#[derive(Debug, Clone, Default)]
pub struct Database {
    pub is_alive: bool,
    pub content: Content,
    pub numbers: BTreeSet<Number>,
    /// What is on its disk.
    pub disk: (Content, BTreeSet<Number>),
    /// Transactions of the log that were committed since.
    pub unsaved: Vec<(Rows, Vec<Number>)>,
    /// Everything up to here was saved, as it says itself.
    pub floor: Number,
    /// Which log it belongs to, as it says itself.
    pub log: Option<Identity>,
    pub is_marked: bool,
    /// Something in it is wrong.
    pub is_corrupt: bool,
    /// Which life of its server this is.
    pub life: u32,
    /// Its server.
    pub system: u64,
    /// Commits that the server has made itself, in order.
    pub wal: Vec<Own>,
    /// Up to where the stream of it was dealt with, as the slot remembers.
    pub slot: Lsn,
    /// Up to where the log has that, as it says itself.
    pub logged: Lsn,
    /// The server that it is a copy of, and up to where it has the commits of that.
    pub copied: Option<(u64, Lsn)>,
}

impl Database {
    /// The end of the last commit that the server has made itself.
    pub fn end(&self) -> Lsn {
        self.wal.last().map_or(Lsn(0), |own| own.end)
    }

    /// True if somebody has locked what these need.
    pub fn is_locked(&self, ops: &[Op]) -> bool {
        let mut keys = ops.iter().flat_map(|op| op.keys());
        keys.any(|key| self.wal.iter().any(|own| own.holds.contains(&key)))
    }

    /// A client commits. Whatever was committed before is on the disk then as well.
    pub fn commit_own(&mut self, xid: u64, ops: &[Op], pieces: u32) -> bool {
        let (rows, content) = changes(&self.content, ops);
        if rows.changes.is_empty() {
            return false;
        }
        self.content = content;
        self.save();
        self.wal.push(Own {
            end: Lsn(self.end().0 + 10),
            xid,
            rows,
            pieces,
            holds: ops.iter().flat_map(|op| op.keys()).collect(),
        });
        true
    }

    /// Nobody waits any more for what the server has committed up to there: who has waited.
    pub fn release(&mut self, up_to: Lsn) -> Vec<u64> {
        let waiting = self.wal.iter_mut();
        let waiting = waiting.filter(|own| own.end <= up_to && !own.holds.is_empty());
        let released = waiting.map(|own| {
            own.holds.clear();
            own.xid
        });
        released.collect()
    }

    /// Commits a transaction of the log, with the numbers of its pieces.
    pub fn apply(&mut self, rows: &Rows, numbers: &[Number]) -> Result<(), String> {
        let mut content = self.content.clone();
        execute(&mut content, rows)?;
        self.content = content;
        self.numbers.extend(numbers);
        self.unsaved.push((rows.clone(), numbers.to_vec()));
        Ok(())
    }

    /// Everything that it has is on its disk now.
    pub fn save(&mut self) {
        self.disk = (self.content.clone(), self.numbers.clone());
        self.unsaved.clear();
    }

    /// The server crashes: of the transactions that were not saved, it has the first ones.
    pub fn crash(&mut self, kept: usize) {
        (self.content, self.numbers) = self.disk.clone();
        let unsaved = std::mem::take(&mut self.unsaved);
        for (rows, numbers) in unsaved.into_iter().take(kept) {
            // What is wrong in it was wrong before.
            let _ = self.apply(&rows, &numbers);
        }
        self.save();
        let end = self.end();
        self.release(end);
        self.is_alive = false;
        self.life += 1;
    }

    pub fn ledger(&self) -> Ledger {
        Ledger::new(self.floor, self.numbers.iter().copied())
    }
}

/// What the log says, executed in its order.
pub fn replay<'a>(records: impl IntoIterator<Item = &'a Record>) -> Result<Content, String> {
    let mut content = Content::new();
    let mut pieces: Vec<Rows> = Vec::new();
    for record in records {
        let header = record.draft.header;
        if header.piece == 0 {
            pieces.clear();
        }
        if pieces.len() == header.piece as usize {
            pieces.push(record.draft.rows().expect("they are ours"));
        } else {
            pieces.clear();
        }
        if header.is_last {
            for rows in pieces.drain(..) {
                execute(&mut content, &rows).map_err(|why| {
                    let number = record.number;
                    format!("the order of the log is another than the primary's: {number}: {why}")
                })?;
            }
        }
    }
    Ok(content)
}
