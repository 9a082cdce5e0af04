//! The comparison of the rows that a member has committed with those of the log.
//!
//! Invariant: what the WAL does not say is no difference; everything else is, also the order.

use super::rows::{Change, Relation, Row, Rows, Value};

impl Rows {
    /// The first difference between what the log says and what a member has done.
    pub fn difference(&self, done: &Rows) -> Option<String> {
        for (at, change) in self.changes.iter().enumerate() {
            let Some(other) = done.changes.get(at) else {
                return Some(format!(
                    "{}: the log has it, and the member has not done it",
                    self.say(change)
                ));
            };
            if !self.is_same(change, done, other) {
                return Some(format!(
                    "the log has {}, and the member has done {}",
                    self.say(change),
                    done.say(other)
                ));
            }
        }
        let more = done.changes.get(self.changes.len())?;
        Some(format!(
            "{}: the member has done it, and the log does not have it",
            done.say(more)
        ))
    }

    fn is_same(&self, change: &Change, done: &Rows, other: &Change) -> bool {
        let is_table = |one: &u32, other: &u32| {
            let (one, other) = (self.relation(*one), done.relation(*other));
            let name = |relation: &Relation| (relation.schema.clone(), relation.name.clone());
            one.map(name) == other.map(name)
        };
        let is_row = |at: &u32, one: &Row, of: &u32, other: &Row| {
            // A copy of a table that inherits has its columns in another order.
            let places = self.relation(*at).zip(done.relation(*of));
            let places = places.filter(|(one, other)| one.columns != other.columns);
            let of_name = |place: usize| match places {
                None => other.get(place),
                Some((here, there)) => {
                    let (name, _) = here.columns.get(place)?;
                    let place = there.columns.iter().position(|(other, _)| other == name)?;
                    other.get(place)
                }
            };
            let mut values = one.iter().enumerate();
            let is_same = |(place, value): (usize, &Value)| {
                of_name(place).is_some_and(|one| may_be(value, one))
            };
            one.len() == other.len() && values.all(is_same)
        };
        match (change, other) {
            (Change::Insert(table, row), Change::Insert(of, done))
            | (Change::Delete(table, row), Change::Delete(of, done)) => {
                is_table(table, of) && is_row(table, row, of, done)
            }
            (Change::Update(table, old, new), Change::Update(of, done_old, done)) => {
                let is_old = match (old, done_old) {
                    (Some(old), Some(done)) => is_row(table, old, of, done),
                    (None, None) => true,
                    _ => false,
                };
                is_table(table, of) && is_old && is_row(table, new, of, done)
            }
            (
                Change::Truncate { relations, .. },
                Change::Truncate {
                    relations: done, ..
                },
            ) => {
                relations.len() == done.len()
                    && relations
                        .iter()
                        .zip(done)
                        .all(|(one, of)| is_table(one, of))
            }
            // The text is another one where it was made to fit.
            (Change::Define(said), Change::Define(done)) => {
                said.tag == done.tag && said.result == done.result
            }
            _ => false,
        }
    }

    /// A change, for a person.
    fn say(&self, change: &Change) -> String {
        let table = |at: &u32| {
            self.relation(*at)
                .map_or_else(String::new, Relation::quoted)
        };
        let row = |at: &u32, row: &Row| {
            let columns = self.relation(*at).map_or(&[][..], |one| &one.columns);
            let said: Vec<String> = columns
                .iter()
                .zip(row)
                .map(|((name, _), value)| match value {
                    Value::Null => format!("{name} = null"),
                    Value::Unchanged => format!("{name} = (unchanged)"),
                    Value::Text(text) => {
                        let text: String = String::from_utf8_lossy(text).chars().take(60).collect();
                        format!("{name} = {text}")
                    }
                })
                .collect();
            format!("({})", said.join(", "))
        };
        match change {
            Change::Insert(at, new) => format!("an insert into {} of {}", table(at), row(at, new)),
            Change::Update(at, None, new) => {
                format!("an update of {} to {}", table(at), row(at, new))
            }
            Change::Update(at, Some(old), new) => format!(
                "an update of {} from {} to {}",
                table(at),
                row(at, old),
                row(at, new)
            ),
            Change::Delete(at, old) => format!("a delete from {} of {}", table(at), row(at, old)),
            Change::Truncate { relations, .. } => {
                let names: Vec<String> = relations.iter().map(table).collect();
                format!("a truncation of {}", names.join(", "))
            }
            Change::Catalog(_) => "all definitions".to_owned(),
            Change::Define(said) => {
                let text: String = said.text.chars().take(200).collect();
                format!("a definition ({}: {text})", said.tag)
            }
        }
    }
}

/// True if a value may be the same as another one: what is not said may be anything.
fn may_be(one: &Value, other: &Value) -> bool {
    matches!((one, other), (Value::Unchanged, _) | (_, Value::Unchanged)) || one == other
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::rows::tests::{row, rows};

    #[test]
    fn a_difference_names_the_table_and_both_values() {
        let log = rows(vec![Change::Insert(0, row(["1", "x"]))]);
        assert_eq!(log.difference(&log), None);
        // The tables have other places there.
        let mut done = log.clone();
        done.relations.reverse();
        done.changes = vec![Change::Insert(1, row(["1", "x"]))];
        assert_eq!(log.difference(&done), None);
        done.changes = vec![Change::Insert(1, row(["1", "y"]))];
        let told = log.difference(&done).expect("it differs");
        assert!(
            told.contains(r#""public"."a""#) && told.contains("v = x") && told.contains("v = y")
        );
        assert!(log.difference(&rows(Vec::new())).is_some());
        assert!(rows(Vec::new()).difference(&log).is_some());
        let other_table = rows(vec![Change::Insert(1, row(["1", "x"]))]);
        assert!(log.difference(&other_table).is_some());
        let gone = rows(vec![Change::Delete(0, row(["1", "x"]))]);
        assert!(log.difference(&gone).is_some());
    }

    #[test]
    fn what_the_wal_does_not_say_is_no_difference() {
        let log = rows(vec![Change::Update(0, None, row(["1", "~"]))]);
        let done = rows(vec![Change::Update(0, None, row(["1", "long"]))]);
        assert_eq!(log.difference(&done), None);
        assert_eq!(done.difference(&log), None);
        let moved = rows(vec![Change::Update(
            0,
            Some(row(["2", "~"])),
            row(["1", "~"]),
        )]);
        assert!(log.difference(&moved).is_some());
    }
}
