//! The rows that a transaction has changed, as PostgreSQL says them and as the log keeps them.
//!
//! Invariant: rows are in the order in which the transaction has changed them, and say which commit they are of ([`Origin`]): a member
//! that has the commit, because it has made it or is a copy of one that had, does not get its rows a second time.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::catalog::Catalog;
use super::class::{Claims, Class, Mode};
pub use super::origin::{Header, Lsn, Origin};
use super::record::{Draft, Token};

/// A transaction that changes more rows claims their tables.
const MOST_CLAIMED: usize = 1_000;

/// A table, as the rows of one record need it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relation {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Old rows are there as a whole.
    pub is_full: bool,
    /// Rows conflict only if the texts of their keys are the same: nothing else of the table is unique.
    pub is_by_key: bool,
    /// Its columns, without those that are generated; true if one is part of the key.
    pub columns: Vec<(String, bool)>,
}

impl Relation {
    /// Its name, quoted, with its schema.
    pub fn quoted(&self) -> String {
        let quote = postgres_protocol::escape::escape_identifier;
        format!("{}.{}", quote(&self.schema), quote(&self.name))
    }

    /// The key of a row as a text that no other key has; nothing if rows conflict in other ways, or the row does not say it.
    fn key(&self, row: &Row) -> Option<String> {
        let columns = self
            .columns
            .iter()
            .zip(row)
            .filter(|((_, is_key), _)| *is_key);
        let mut key = String::new();
        for (_, value) in columns.filter(|_| self.is_by_key) {
            let Value::Text(text) = value else {
                return None;
            };
            let text = std::str::from_utf8(text).ok()?;
            key.push_str(&format!("{}:{text}", text.len()));
        }
        (!key.is_empty()).then_some(key)
    }
}

/// A column's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    /// Nothing.
    Null,
    /// A long value that the transaction has not changed, and of which the WAL says nothing.
    Unchanged,
    /// As PostgreSQL writes it.
    Text(#[serde(with = "super::raw")] Vec<u8>),
}

impl Value {
    fn bytes(&self) -> usize {
        match self {
            Value::Text(text) => text.len() + 4,
            _ => 1,
        }
    }
}

/// The columns of a row, in order.
pub type Row = Vec<Value>;

/// A definition, as whoever said it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// The command, such as `CREATE TABLE`.
    pub tag: String,
    /// The text in which it was said.
    pub text: String,
    /// The role that has logged in.
    pub login: String,
    /// The role that has said it.
    pub role: String,
    /// Settings that its meaning depends on, as a JSON object; empty if there is nothing to be defined elsewhere.
    pub settings: String,
    /// Outcome, as far as it must be the same on both members.
    pub result: String,
}

impl Definition {
    /// True if there is nothing to be defined elsewhere.
    pub fn is_nothing(&self) -> bool {
        self.settings.is_empty()
    }
}

/// A change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A new row.
    Insert(u32, Row),
    /// A row that is another one: the old key or row, if it is not the new one's, and the new row.
    Update(u32, Option<Row>, Row),
    /// A row that is gone: its key, or all of it.
    Delete(u32, Row),
    /// Tables that are emptied together.
    Truncate {
        /// The tables.
        relations: Vec<u32>,
        /// Their sequences begin again.
        restarts: bool,
    },
    /// Something was defined.
    Define(Definition),
    /// All definitions, as they are after everything that the log has before.
    Catalog(Catalog),
}

impl Change {
    /// About how long it is.
    pub fn bytes(&self) -> usize {
        let of = |row: &Row| row.iter().map(Value::bytes).sum::<usize>();
        8 + match self {
            Change::Insert(_, row) | Change::Delete(_, row) => of(row),
            Change::Update(_, old, new) => old.as_ref().map_or(0, of) + of(new),
            Change::Truncate { relations, .. } => relations.len() * 4,
            Change::Define(said) => said.text.len() + said.settings.len(),
            Change::Catalog(all) => all.names.len() * 64,
        }
    }
}

/// The rows of one record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// The tables that changes are of, by their place here.
    pub relations: Vec<Relation>,
    /// The changes, in order.
    pub changes: Vec<Change>,
}

/// Rows of the log cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rows of a record cannot be read by this version: {0}")]
pub struct RowsError(String);

impl Rows {
    /// The table of a change.
    pub fn relation(&self, at: u32) -> Option<&Relation> {
        self.relations.get(at as usize)
    }

    /// True if something is defined.
    pub fn defines(&self) -> bool {
        self.changes
            .iter()
            .any(|change| matches!(change, Change::Define(_)))
    }

    /// True if sequences are elsewhere once these are executed.
    pub fn resets_sequences(&self) -> bool {
        let resets = |change: &Change| matches!(change, Change::Truncate { restarts: true, .. });
        self.defines() || self.changes.iter().any(resets)
    }

    /// Roles that have logged in, and the roles as which they have defined something.
    pub fn said_by(&self) -> BTreeSet<(String, String)> {
        let said = self.changes.iter().filter_map(|change| match change {
            Change::Define(said) => Some((said.login.clone(), said.role.clone())),
            _ => None,
        });
        said.collect()
    }

    /// The definitions that the log says are there.
    pub fn catalog(&self) -> Option<&Catalog> {
        self.changes.iter().find_map(|change| match change {
            Change::Catalog(all) => Some(all),
            _ => None,
        })
    }

    /// Leaves out what changes nothing elsewhere.
    pub fn drop_nothing(&mut self) {
        self.changes.retain(|change| match change {
            Change::Define(said) => !said.is_nothing(),
            Change::Catalog(_) => false,
            _ => true,
        });
    }

    /// Claims: everything if something is defined, the keys of rows where nothing else is unique, and tables otherwise. Rows that are
    /// only added to a table do not conflict with each other.
    pub fn claims(&self, sequences: &[(String, i64)]) -> Claims {
        let mut claims = Claims::default();
        if self.defines() || self.catalog().is_some() {
            claims.add(Class::Database, Mode::Exclusive);
            return claims;
        }
        for (name, _) in sequences {
            claims.add(Class::Table(name.as_str().into()), Mode::Exclusive);
        }
        if self.changes.len() > MOST_CLAIMED {
            let tables = self.relations.iter().map(Relation::quoted);
            tables.for_each(|name| claims.add(Class::Table(name.into()), Mode::Exclusive));
            return claims;
        }
        let tables: Vec<Box<str>> = self
            .relations
            .iter()
            .map(|one| one.quoted().into())
            .collect();
        for change in &self.changes {
            self.claim(change, &tables, &mut claims);
        }
        claims
    }

    fn claim(&self, change: &Change, tables: &[Box<str>], claims: &mut Claims) {
        let table = |at: u32| tables.get(at as usize).cloned().unwrap_or_default();
        let mut claim = |at: u32, row: &Row, otherwise: Mode| {
            let key = self.relation(at).and_then(|relation| relation.key(row));
            match key {
                Some(key) => claims.add(Class::Key(table(at), key.into()), Mode::Exclusive),
                None => claims.add(Class::Table(table(at)), otherwise),
            }
        };
        match change {
            Change::Insert(at, new) => claim(*at, new, Mode::IntentExclusive),
            Change::Update(at, old, new) => {
                claim(*at, old.as_ref().unwrap_or(new), Mode::Exclusive);
                claim(*at, new, Mode::Exclusive);
            }
            Change::Delete(at, old) => claim(*at, old, Mode::Exclusive),
            // Sequences that begin again may be those of whatever comes after.
            Change::Truncate { restarts: true, .. } => {
                claims.add(Class::Database, Mode::Exclusive);
            }
            Change::Truncate { relations, .. } => {
                let names = relations.iter().map(|at| table(*at));
                names.for_each(|name| claims.add(Class::Table(name), Mode::Exclusive));
            }
            Change::Define(_) | Change::Catalog(_) => {}
        }
    }

    /// Goes on with the rows of the next piece.
    pub fn append(&mut self, next: Rows) {
        let before = u32::try_from(self.relations.len()).unwrap_or(u32::MAX);
        self.relations.extend(next.relations);
        self.changes
            .extend(next.changes.into_iter().map(|change| match change {
                Change::Insert(at, row) => Change::Insert(at + before, row),
                Change::Update(at, old, new) => Change::Update(at + before, old, new),
                Change::Delete(at, row) => Change::Delete(at + before, row),
                Change::Truncate {
                    relations,
                    restarts,
                } => Change::Truncate {
                    relations: relations.iter().map(|at| at + before).collect(),
                    restarts,
                },
                same @ (Change::Define(_) | Change::Catalog(_)) => same,
            }));
    }

    /// The record of a transaction with these rows.
    pub fn draft(&self, header: &Header, token: Token, sequences: Vec<(String, i64)>) -> Draft {
        Draft {
            token,
            claims: self.claims(&sequences),
            header: *header,
            // Nothing in them fails to be written.
            rows: postcard::to_allocvec(self).unwrap_or_default(),
            sequences,
        }
    }
}

impl Draft {
    /// Its rows.
    ///
    /// # Errors
    /// If another version has written them.
    pub fn rows(&self) -> Result<Rows, RowsError> {
        postcard::from_bytes(&self.rows).map_err(|error| RowsError(error.to_string()))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn relation(name: &str) -> Relation {
        Relation {
            schema: "public".to_owned(),
            name: name.to_owned(),
            is_full: false,
            is_by_key: false,
            columns: vec![("id".to_owned(), true), ("v".to_owned(), false)],
        }
    }

    pub(crate) fn row(values: [&str; 2]) -> Row {
        let text = |value: &str| match value {
            "~" => Value::Unchanged,
            value => Value::Text(value.as_bytes().to_vec()),
        };
        values.iter().map(|value| text(value)).collect()
    }

    pub(crate) fn rows(changes: Vec<Change>) -> Rows {
        Rows {
            relations: vec![relation("a"), relation("b")],
            changes,
        }
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let written = rows(vec![
            Change::Insert(0, row(["1", "~"])),
            Change::Truncate {
                relations: vec![1, 0],
                restarts: true,
            },
        ]);
        let header = Header {
            origin: Origin {
                system: 7,
                timeline: 1,
                xid: 9,
                end: Lsn(80),
            },
            piece: 2,
            is_last: true,
        };
        let token = Token { epoch: 1, count: 1 };
        let draft = written.draft(&header, token, Vec::new());
        assert_eq!(draft.rows(), Ok(written));
        let other = Draft {
            rows: vec![255; 3],
            ..draft
        };
        assert!(other.rows().is_err());
    }

    #[test]
    fn pieces_are_one_transaction() {
        let mut first = rows(vec![Change::Insert(0, row(["1", "x"]))]);
        let second = Rows {
            relations: vec![relation("c")],
            changes: vec![Change::Delete(0, row(["1", "x"]))],
        };
        first.append(second);
        assert_eq!(first.changes[1], Change::Delete(2, row(["1", "x"])));
        assert_eq!(first.relation(2), Some(&relation("c")));
    }

    #[test]
    fn definitions_claim_everything_and_rows_their_tables() {
        let emptied = Change::Truncate {
            relations: vec![0, 1],
            restarts: false,
        };
        let claims = rows(vec![emptied]).claims(&[("public.s".to_owned(), 1)]);
        let names: Vec<_> = claims.iter().map(|(class, _)| class.clone()).collect();
        assert!(names.contains(&Class::Table(r#""public"."b""#.into())));
        assert!(names.contains(&Class::Table("public.s".into())));
        let said = Definition {
            tag: "CREATE TABLE".to_owned(),
            text: String::new(),
            login: String::new(),
            role: String::new(),
            settings: String::new(),
            result: String::new(),
        };
        let everything = Claims::default().with(Class::Database, Mode::Exclusive);
        assert_eq!(rows(vec![Change::Define(said)]).claims(&[]), everything);
    }

    #[test]
    fn rows_conflict_by_their_keys_or_their_tables() {
        let of = |is_by_key: bool, changes: Vec<Change>| {
            let mut rows = rows(changes);
            rows.relations[0].is_by_key = is_by_key;
            rows.claims(&[])
        };
        let insert = |id: &str| Change::Insert(0, row([id, "x"]));
        let update = |id: &str| Change::Update(0, None, row([id, "x"]));
        let moved = Change::Update(0, Some(row(["1", "~"])), row(["2", "x"]));
        let conflict = |is_by_key, one: Change, other: Change| {
            of(is_by_key, vec![one]).conflicts_with(&of(is_by_key, vec![other]))
        };
        assert!(conflict(true, insert("1"), update("1")));
        assert!(!conflict(true, insert("1"), update("2")));
        assert!(conflict(true, moved.clone(), update("1")));
        assert!(conflict(true, moved.clone(), insert("2")));
        assert!(!conflict(true, moved, insert("3")));
        assert!(!conflict(false, insert("1"), insert("2")));
        assert!(conflict(false, insert("1"), update("2")));
        assert!(conflict(false, update("1"), update("2")));
        let many = (0..=MOST_CLAIMED).map(|_| insert("1")).collect();
        assert!(of(true, many).conflicts_with(&of(true, vec![insert("2")])));
    }
}
