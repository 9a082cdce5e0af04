//! The undoing of commits that a member has and the log has not: it was primary, and its manager was not quick enough.
//!
//! Where old rows are there as a whole, changes are undone in reverse. Elsewhere it is known which keys they have touched: rows that were
//! made are deleted, and those that were there before are taken from the other member. That one may have changed them since; the log
//! changes them here as well then, until both are the same, if nothing else of the table is unique on the way.
//!
//! Invariant: afterwards everything that the log has after those commits can be executed, and leads to what the other member has. What
//! cannot be shown to be so is refused.

use std::collections::BTreeMap;

use super::rows::{Change, Relation, Row, Rows, Value};

/// More rows are not undone one by one.
const MOST_ROWS: usize = 50_000;

/// Why commits cannot be undone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(String);

fn refused<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(why.into()))
}

/// The values of a key's columns.
type Key = Vec<Vec<u8>>;

/// State of a row that was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Touched {
    /// It was there before.
    existed: bool,
    /// It is there now.
    is_here: bool,
}

/// A row of the other member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its columns.
    pub row: Row,
    /// It is as it was before that one became primary.
    pub is_untouched: bool,
    /// No value of the table is so long that the log leaves it out where it was not changed.
    pub is_short: bool,
}

/// Commits that are to be undone.
#[derive(Debug)]
pub struct Rewind {
    relations: Vec<Relation>,
    /// The undoing of changes of whole rows, the last one last.
    undo: Vec<Change>,
    keys: BTreeMap<(u32, Key), Touched>,
}

impl Rewind {
    /// Takes the rows of commits, in order.
    ///
    /// # Errors
    /// If they have done something else than change rows.
    pub fn of(commits: impl IntoIterator<Item = Rows>) -> Result<Rewind, Refused> {
        let mut rewind = Rewind {
            relations: Vec::new(),
            undo: Vec::new(),
            keys: BTreeMap::new(),
        };
        let mut count = 0;
        for rows in commits {
            count += rows.changes.len();
            if count > MOST_ROWS {
                return refused("there are too many rows");
            }
            let places = rows.relations.iter().map(|one| rewind.place(one));
            let places: Vec<u32> = places.collect::<Result<_, _>>()?;
            for change in rows.changes {
                rewind.take(change, &places)?;
            }
        }
        Ok(rewind)
    }

    /// The place of a table among those that were touched.
    fn place(&mut self, relation: &Relation) -> Result<u32, Refused> {
        let is_it = |one: &Relation| one.schema == relation.schema && one.name == relation.name;
        let at = self.relations.iter().position(is_it);
        let at = match at {
            Some(at) if self.relations[at] != *relation => {
                return refused(format!("{} was defined again", relation.quoted()));
            }
            Some(at) => at,
            None => {
                self.relations.push(relation.clone());
                self.relations.len() - 1
            }
        };
        u32::try_from(at).or_else(|_| refused("there are too many tables"))
    }

    fn take(&mut self, change: Change, places: &[u32]) -> Result<(), Refused> {
        let place = |at: u32| {
            let at = places.get(at as usize).copied();
            at.map_or_else(|| refused("a change is of no table"), Ok)
        };
        match change {
            Change::Insert(at, new) => {
                let at = place(at)?;
                match self.is_full(at) {
                    true => self.undo.push(Change::Delete(at, new)),
                    false => self.touch(at, &new, false, true)?,
                }
            }
            Change::Delete(at, old) => {
                let at = place(at)?;
                match self.is_full(at) {
                    true => self.undo.push(Change::Insert(at, old)),
                    false => self.touch(at, &old, true, false)?,
                }
            }
            Change::Update(at, old, new) => {
                let at = place(at)?;
                match (self.is_full(at), old) {
                    (true, Some(old)) => {
                        let new = filled(&old, new);
                        self.undo.push(Change::Update(at, Some(new), old));
                    }
                    (true, None) => return refused("an old row is not there as a whole"),
                    (false, Some(old)) if self.key(at, &old)? != self.key(at, &new)? => {
                        self.touch(at, &old, true, false)?;
                        self.touch(at, &new, false, true)?;
                    }
                    (false, _) => self.touch(at, &new, true, true)?,
                }
            }
            Change::Truncate { .. } => return refused("tables were emptied"),
            Change::Define(said) => {
                return refused(format!("something was defined ({})", said.tag));
            }
            Change::Catalog(_) => return refused("they are the log's own"),
        }
        Ok(())
    }

    fn is_full(&self, at: u32) -> bool {
        self.relations
            .get(at as usize)
            .is_some_and(|relation| relation.is_full)
    }

    /// A row was there before this if it `existed`, and `is_here` after it.
    fn touch(&mut self, at: u32, row: &Row, existed: bool, is_here: bool) -> Result<(), Refused> {
        let key = self.key(at, row)?;
        let first = Touched { existed, is_here };
        self.keys.entry((at, key)).or_insert(first).is_here = is_here;
        Ok(())
    }

    fn key(&self, at: u32, row: &Row) -> Result<Key, Refused> {
        let columns = self.relations.get(at as usize).map(|one| &one.columns);
        let values = columns.into_iter().flatten().zip(row);
        let key = values.filter(|((_, is_key), _)| *is_key).map(|(_, value)| {
            let Value::Text(text) = value else {
                return refused("a key is not said");
            };
            Ok(text.clone())
        });
        let key: Key = key.collect::<Result<_, _>>()?;
        match key.is_empty() {
            true => refused("a row has no key"),
            false => Ok(key),
        }
    }

    /// Tables with keys of which rows were there before: such rows are asked for.
    pub fn asked_tables(&self) -> impl Iterator<Item = &Relation> {
        let is_asked = |at: usize| {
            let mut keys = self.keys.iter();
            keys.any(|((of, _), touched)| *of as usize == at && touched.existed)
        };
        let relations = self.relations.iter().enumerate();
        relations.filter_map(move |(at, one)| is_asked(at).then_some(one))
    }

    /// Rows that were there before, by their tables and keys: what the other member has of each is wanted, in this order.
    pub fn asks(&self) -> impl Iterator<Item = (&Relation, &Key)> {
        let existed = self.keys.iter().filter(|(_, touched)| touched.existed);
        existed.filter_map(|((at, key), _)| Some((self.relations.get(*at as usize)?, key)))
    }

    /// The rows of the transaction that undoes it all, with what the other member has of those that were asked for.
    ///
    /// # Errors
    /// If something cannot be shown to be right afterwards.
    pub fn rows(self, found: Vec<Option<Found>>) -> Result<Rows, Refused> {
        let mut changes: Vec<Change> = self.undo.iter().rev().cloned().collect();
        let mut again = Vec::new();
        let mut found = found.into_iter();
        for ((at, key), touched) in &self.keys {
            let Some(relation) = self.relations.get(*at as usize) else {
                continue;
            };
            if touched.is_here {
                changes.push(Change::Delete(*at, keyed(relation, key)));
            }
            if !touched.existed {
                continue;
            }
            let Some(found) = found.next().flatten() else {
                let table = relation.quoted();
                return refused(format!("a row of {table} is gone from the other member"));
            };
            if self.key(*at, &found.row)? != *key {
                return refused(format!("a key of {} has two texts", relation.quoted()));
            }
            // The log writes all of it again. A long value that it leaves out may have been another row's meanwhile.
            if !(found.is_untouched || relation.is_by_key && found.is_short) {
                let table = relation.quoted();
                return refused(format!(
                    "a row of {table} was changed since, and its key is not all that is unique there, or values are long"
                ));
            }
            again.push(Change::Insert(*at, found.row));
        }
        changes.extend(again);
        Ok(Rows {
            relations: self.relations,
            changes,
        })
    }
}

/// A row of which nothing but the key is said.
fn keyed(relation: &Relation, key: &Key) -> Row {
    let mut key = key.iter();
    let columns = relation.columns.iter();
    columns
        .map(|(_, is_key)| match is_key {
            true => key
                .next()
                .map_or(Value::Null, |text| Value::Text(text.clone())),
            false => Value::Null,
        })
        .collect()
}

/// A new row with what it has kept of the old one.
fn filled(old: &Row, new: Row) -> Row {
    let values = new.into_iter().enumerate();
    let values = values.map(|(at, value)| match value {
        Value::Unchanged => old.get(at).cloned().unwrap_or(Value::Null),
        value => value,
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relation(name: &str, is_full: bool) -> Relation {
        Relation {
            schema: "public".to_owned(),
            name: name.to_owned(),
            is_full,
            is_by_key: true,
            columns: vec![("id".to_owned(), !is_full), ("v".to_owned(), false)],
        }
    }

    fn row(id: &str, v: &str) -> Row {
        let of = |text: &str| match text {
            "-" => Value::Null,
            "~" => Value::Unchanged,
            text => Value::Text(text.as_bytes().to_vec()),
        };
        vec![of(id), of(v)]
    }

    fn rows(is_full: bool, changes: Vec<Change>) -> Rows {
        Rows {
            relations: vec![relation("t", is_full)],
            changes,
        }
    }

    fn found(id: &str, v: &str, is_untouched: bool) -> Option<Found> {
        Some(Found {
            row: row(id, v),
            is_untouched,
            is_short: true,
        })
    }

    #[test]
    fn rows_that_are_there_as_a_whole_are_undone_in_reverse() {
        let surplus = [
            rows(
                true,
                vec![
                    Change::Insert(0, row("1", "a")),
                    Change::Update(0, Some(row("1", "a")), row("1", "~")),
                ],
            ),
            rows(true, vec![Change::Delete(0, row("2", "-"))]),
        ];
        let rewind = Rewind::of(surplus).expect("it can");
        assert_eq!(rewind.asks().count(), 0);
        let undone = rewind.rows(Vec::new()).expect("it can");
        let wanted = vec![
            Change::Insert(0, row("2", "-")),
            Change::Update(0, Some(row("1", "a")), row("1", "a")),
            Change::Delete(0, row("1", "a")),
        ];
        assert_eq!(undone, rows(true, wanted));
    }

    #[test]
    fn rows_with_keys_are_deleted_and_taken_from_the_other_member_if_they_were_there() {
        let surplus = [
            rows(
                false,
                vec![
                    Change::Insert(0, row("new", "a")),
                    Change::Update(0, None, row("changed", "b")),
                    Change::Delete(0, row("gone", "-")),
                    Change::Update(0, Some(row("moved", "-")), row("moved there", "c")),
                ],
            ),
            rows(
                false,
                vec![
                    Change::Delete(0, row("new", "-")),
                    Change::Insert(0, row("gone", "again")),
                ],
            ),
        ];
        let rewind = Rewind::of(surplus).expect("it can");
        let asked: Vec<String> = rewind
            .asks()
            .map(|(_, key)| String::from_utf8_lossy(&key[0]).into_owned())
            .collect();
        assert_eq!(asked, ["changed", "gone", "moved"]);
        let there = ["changed", "gone", "moved"].map(|id| found(id, "old", true));
        let undone = rewind.rows(there.to_vec()).expect("it can");
        let wanted = vec![
            Change::Delete(0, row("changed", "-")),
            Change::Delete(0, row("gone", "-")),
            Change::Delete(0, row("moved there", "-")),
            Change::Insert(0, row("changed", "old")),
            Change::Insert(0, row("gone", "old")),
            Change::Insert(0, row("moved", "old")),
        ];
        assert_eq!(undone.changes, wanted);
    }

    #[test]
    fn what_cannot_be_shown_to_be_right_is_refused() {
        let truncate = Change::Truncate {
            relations: vec![0],
            restarts: false,
        };
        for changes in [
            vec![truncate],
            vec![Change::Insert(0, row("-", "x"))],
            vec![Change::Insert(0, row("~", "x"))],
            vec![Change::Insert(7, row("1", "x"))],
        ] {
            assert!(
                Rewind::of([rows(false, changes.clone())]).is_err(),
                "{changes:?}"
            );
        }
        let many = vec![Change::Insert(0, row("1", "x")); MOST_ROWS + 1];
        assert!(Rewind::of([rows(true, many)]).is_err());
        let mut other = rows(false, vec![Change::Insert(0, row("1", "x"))]);
        other.relations[0].columns[1].0 = "w".to_owned();
        assert!(Rewind::of([rows(false, Vec::new()), other]).is_err());
        let update = |is_by_key| {
            let mut rows = rows(false, vec![Change::Update(0, None, row("1", "x"))]);
            rows.relations[0].is_by_key = is_by_key;
            Rewind::of([rows]).expect("it can")
        };
        assert!(update(true).rows(vec![None]).is_err());
        assert!(update(true).rows(vec![found("2", "x", true)]).is_err());
        assert!(update(false).rows(vec![found("1", "x", false)]).is_err());
        assert!(update(false).rows(vec![found("1", "x", true)]).is_ok());
        assert!(update(true).rows(vec![found("1", "x", false)]).is_ok());
        let long = found("1", "x", false).map(|found| Found {
            is_short: false,
            ..found
        });
        assert!(update(true).rows(vec![long]).is_err());
    }
}
