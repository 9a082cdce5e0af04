//! The statement that does to a member's table what a change of the log says.
//!
//! Invariant: a change is done to exactly one row, which its key or all of its values name; what the log does not say stays as it is,
//! and what the member computes by itself is left to it.

use std::collections::BTreeMap;

use postgres_protocol::escape::{escape_identifier, escape_literal};

use crate::core::rows::{Change, Relation, Row, Rows, Value};

/// A column, as the member's catalog has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Column {
    /// Its type, as SQL says it whatever the search path is.
    pub type_name: String,
    /// The operator that its key compares by, if it is part of one.
    pub equals: Option<String>,
    /// It is generated as an identity, and nobody may update it.
    pub is_always: bool,
}

/// The owner of a table, if clients' code runs when its rows are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeOwner {
    /// The number of the role at the member.
    pub oid: u32,
    /// Name of the role.
    pub name: String,
    /// Row security holds for the owner as well.
    pub is_forced: bool,
}

/// A table, as the member's catalog has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Described {
    /// Its columns, by their names.
    pub columns: BTreeMap<String, Column>,
    /// The owner as whom its rows are written, if not as the role that may write everything.
    pub code_of: Option<CodeOwner>,
}

/// A statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Its text.
    pub text: String,
    /// Values of its parameters, as text.
    pub parameters: Vec<Option<Vec<u8>>>,
    /// The answer that PostgreSQL must give.
    pub tag: &'static str,
}

/// Why a change cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unwritable(String);

/// Form of values in a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Parameters.
    Bound,
    /// Literals, for a function that executes a text.
    Literal,
}

/// The statement of a change of a row; a definition has none.
///
/// # Errors
/// If the member's table is another one.
pub fn statement(
    rows: &Rows,
    change: &Change,
    table: &Described,
    values: Values,
) -> Result<Option<Written>, Unwritable> {
    let relation = |at: &u32| {
        let relation = rows.relation(*at);
        relation.ok_or_else(|| Unwritable("a change is of no table".to_owned()))
    };
    let mut writer = Writer {
        table: &table.columns,
        values,
        parameters: Vec::new(),
    };
    let (text, tag) = match change {
        Change::Insert(at, new) => (writer.insert(relation(at)?, new)?, "INSERT 0 1"),
        Change::Update(at, old, new) => {
            let relation = relation(at)?;
            let sets = writer.sets(relation, old.as_ref(), new)?;
            let defaults = writer.defaults(relation, old.as_ref(), new)?;
            let which = writer.which(relation, old.as_ref().unwrap_or(new))?;
            let table = relation.quoted();
            (
                format!("UPDATE ONLY {table} SET {sets}{defaults} WHERE {which}"),
                "UPDATE 1",
            )
        }
        Change::Delete(at, old) => {
            let relation = relation(at)?;
            let which = writer.which(relation, old)?;
            (
                format!("DELETE FROM ONLY {} WHERE {which}", relation.quoted()),
                "DELETE 1",
            )
        }
        Change::Truncate {
            relations,
            restarts,
        } => {
            let names = relations
                .iter()
                .map(|at| relation(at).map(|one| element(&one.quoted())));
            let names = names.collect::<Result<Vec<_>, _>>()?.join(",");
            let names = writer.put(&Value::Text(format!("{{{names}}}").into_bytes()))?;
            (
                format!(
                    "SELECT understudy_mirror.truncate({names}::pg_catalog.regclass[], {restarts})"
                ),
                "SELECT 1",
            )
        }
        Change::Define(_) | Change::Catalog(_) => return Ok(None),
    };
    Ok(Some(Written {
        text,
        parameters: writer.parameters,
        tag,
    }))
}

/// A text as an element of an array's text.
fn element(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

struct Writer<'a> {
    table: &'a BTreeMap<String, Column>,
    values: Values,
    parameters: Vec<Option<Vec<u8>>>,
}

impl Writer<'_> {
    /// A value, or its place among the parameters.
    fn put(&mut self, value: &Value) -> Result<String, Unwritable> {
        let value = match value {
            Value::Text(text) => Some(text),
            Value::Null | Value::Unchanged => None,
        };
        if self.values == Values::Bound {
            self.parameters.push(value.cloned());
            return Ok(format!("${}", self.parameters.len()));
        }
        let Some(value) = value else {
            return Ok("NULL".to_owned());
        };
        let text = std::str::from_utf8(value).map_err(|error| Unwritable(error.to_string()))?;
        Ok(escape_literal(text))
    }

    fn column(&self, relation: &Relation, name: &str) -> Result<&Column, Unwritable> {
        let column = self.table.get(name);
        column
            .ok_or_else(|| Unwritable(format!("{} has no column {name} there", relation.quoted())))
    }

    fn insert(&mut self, relation: &Relation, new: &Row) -> Result<String, Unwritable> {
        let (mut names, mut values) = (Vec::new(), Vec::new());
        for ((name, _), value) in relation.columns.iter().zip(new) {
            names.push(escape_identifier(name));
            values.push(self.put(value)?);
        }
        let table = relation.quoted();
        Ok(match names.is_empty() {
            true => format!("INSERT INTO {table} DEFAULT VALUES"),
            false => format!(
                "INSERT INTO {table} ({}) OVERRIDING SYSTEM VALUE VALUES ({})",
                names.join(", "),
                values.join(", ")
            ),
        })
    }

    fn sets(
        &mut self,
        relation: &Relation,
        old: Option<&Row>,
        new: &Row,
    ) -> Result<String, Unwritable> {
        let mut sets = Vec::new();
        for (at, ((name, _), value)) in relation.columns.iter().zip(new).enumerate() {
            let is_always = self.column(relation, name)?.is_always;
            let is_other = old.is_some_and(|old| old.get(at) != Some(value));
            if *value == Value::Unchanged || is_always && !is_other {
                continue;
            }
            let value = match is_always {
                true => "DEFAULT".to_owned(),
                false => self.put(value)?,
            };
            sets.push(format!("{} = {value}", escape_identifier(name)));
        }
        if sets.is_empty() {
            // It was written without being changed, and is here as well.
            let free = relation
                .columns
                .iter()
                .find(|(name, _)| self.table.get(name).is_some_and(|column| !column.is_always));
            let (name, _) = free.or(relation.columns.first()).ok_or_else(|| {
                Unwritable(format!(
                    "{} has no columns, and a row of it was updated",
                    relation.quoted()
                ))
            })?;
            let is_always = self.column(relation, name)?.is_always;
            let name = escape_identifier(name);
            sets.push(match is_always {
                true => format!("{name} = DEFAULT"),
                false => format!("{name} = {name}"),
            });
        }
        Ok(sets.join(", "))
    }

    /// The values of identities that were set to their default, which nobody may set them to otherwise: their sequence returns them next.
    fn defaults(
        &mut self,
        relation: &Relation,
        old: Option<&Row>,
        new: &Row,
    ) -> Result<String, Unwritable> {
        let mut defaults = String::new();
        for (at, ((name, _), value)) in relation.columns.iter().zip(new).enumerate() {
            let is_other = old.is_some_and(|old| old.get(at) != Some(value));
            if !is_other || *value == Value::Unchanged || !self.column(relation, name)?.is_always {
                continue;
            }
            let (table, column) = (escape_literal(&relation.quoted()), escape_literal(name));
            defaults = format!(
                " FROM (SELECT pg_catalog.setval(pg_catalog.pg_get_serial_sequence({table}, {column})::pg_catalog.regclass, \
                 {}::pg_catalog.int8, false) OFFSET 0) understudy_mirror (understudy_mirror_next)",
                self.put(value)?
            );
        }
        Ok(defaults)
    }

    /// The condition that is true of one row.
    fn which(&mut self, relation: &Relation, old: &Row) -> Result<String, Unwritable> {
        let mut parts = Vec::new();
        let (mut names, mut values) = (Vec::new(), Vec::new());
        for ((name, is_key), value) in relation.columns.iter().zip(old) {
            let column = self.column(relation, name)?;
            let (type_name, equals) = (column.type_name.clone(), column.equals.clone());
            if relation.is_full {
                names.push(format!("x.{}", escape_identifier(name)));
                values.push(format!("{}::{type_name}", self.put(value)?));
            } else if *is_key {
                let equals = equals.unwrap_or_else(|| "OPERATOR(pg_catalog.=)".to_owned());
                let place = self.put(value)?;
                parts.push(format!(
                    "{} {equals} {place}::{type_name}",
                    escape_identifier(name)
                ));
            }
        }
        if relation.is_full {
            return Ok(format!(
                "ctid OPERATOR(pg_catalog.=) (SELECT x.ctid FROM ONLY {} x WHERE ROW({})::record OPERATOR(pg_catalog.*=) ROW({})::record LIMIT 1)",
                relation.quoted(),
                names.join(", "),
                values.join(", ")
            ));
        }
        match parts.is_empty() {
            true => Err(Unwritable(format!(
                "nothing says which row of {} is meant",
                relation.quoted()
            ))),
            false => Ok(parts.join(" AND ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(is_full: bool) -> Rows {
        let columns = [("id", true), ("v", false), ("long", false)];
        Rows {
            relations: vec![Relation {
                schema: "public".to_owned(),
                name: "t".to_owned(),
                is_full,
                is_by_key: false,
                columns: columns
                    .map(|(name, is_key)| (name.to_owned(), is_key))
                    .to_vec(),
            }],
            changes: Vec::new(),
        }
    }

    fn table(is_always: bool) -> Described {
        let column = |type_name: &str, equals: Option<&str>, is_always| Column {
            type_name: type_name.to_owned(),
            equals: equals.map(ToOwned::to_owned),
            is_always,
        };
        let columns = BTreeMap::from([
            (
                "id".to_owned(),
                column("integer", Some("OPERATOR(pg_catalog.=)"), is_always),
            ),
            ("v".to_owned(), column("public.mood", None, false)),
            ("long".to_owned(), column("text", None, false)),
        ]);
        Described {
            columns,
            code_of: None,
        }
    }

    fn row(values: [&str; 3]) -> Row {
        let of = |value: &str| match value {
            "~" => Value::Unchanged,
            "-" => Value::Null,
            text => Value::Text(text.as_bytes().to_vec()),
        };
        values.iter().map(|value| of(value)).collect()
    }

    fn text(change: Change, is_full: bool, is_always: bool) -> (String, usize) {
        let written = statement(&rows(is_full), &change, &table(is_always), Values::Bound);
        let written = written.expect("it can be written").expect("it is a row's");
        (written.text, written.parameters.len())
    }

    #[test]
    fn a_row_is_found_by_its_key() {
        let insert = Change::Insert(0, row(["1", "-", "x"]));
        let wanted = r#"INSERT INTO "public"."t" ("id", "v", "long") OVERRIDING SYSTEM VALUE VALUES ($1, $2, $3)"#;
        assert_eq!(text(insert, false, true), (wanted.to_owned(), 3));
        let update = Change::Update(0, None, row(["1", "sad", "~"]));
        let wanted = r#"UPDATE ONLY "public"."t" SET "id" = $1, "v" = $2 WHERE "id" OPERATOR(pg_catalog.=) $3::integer"#;
        assert_eq!(text(update.clone(), false, false), (wanted.to_owned(), 3));
        let wanted = r#"UPDATE ONLY "public"."t" SET "v" = $1 WHERE "id" OPERATOR(pg_catalog.=) $2::integer"#;
        assert_eq!(text(update, false, true), (wanted.to_owned(), 2));
        let moved = Change::Update(0, Some(row(["1", "-", "-"])), row(["2", "~", "~"]));
        let wanted = r#"UPDATE ONLY "public"."t" SET "id" = $1 WHERE "id" OPERATOR(pg_catalog.=) $2::integer"#;
        assert_eq!(text(moved, false, false), (wanted.to_owned(), 2));
        let nothing = Change::Update(0, None, row(["1", "~", "~"]));
        assert!(
            text(nothing, false, true)
                .0
                .contains(r#"SET "v" = "v" WHERE"#)
        );
        let delete = Change::Delete(0, row(["1", "-", "-"]));
        let wanted =
            r#"DELETE FROM ONLY "public"."t" WHERE "id" OPERATOR(pg_catalog.=) $1::integer"#;
        assert_eq!(text(delete, false, false), (wanted.to_owned(), 1));
    }

    /// An identity that is always generated was given a value, which PostgreSQL refuses.
    #[test]
    fn an_identity_gets_its_next_default() {
        let moved = Change::Update(0, Some(row(["1", "-", "-"])), row(["2", "sad", "~"]));
        let (text, count) = text(moved, false, true);
        assert!(
            text.contains(r#"SET "id" = DEFAULT, "v" = $1 FROM (SELECT"#),
            "{text}"
        );
        assert!(
            text.contains(r#"('"public"."t"', 'id')::pg_catalog.regclass, $2::"#),
            "{text}"
        );
        assert!(
            text.ends_with(r#" WHERE "id" OPERATOR(pg_catalog.=) $3::integer"#),
            "{text}"
        );
        assert_eq!(count, 3);
    }

    #[test]
    fn a_row_without_a_key_is_found_by_all_of_it() {
        let (text, count) = text(Change::Delete(0, row(["1", "-", "x"])), true, false);
        let wanted = "ctid OPERATOR(pg_catalog.=) (SELECT x.ctid FROM ONLY \"public\".\"t\" x WHERE \
            ROW(x.\"id\", x.\"v\", x.\"long\")::record OPERATOR(pg_catalog.*=) ROW($1::integer, $2::public.mood, $3::text)::record LIMIT 1)";
        assert!(text.ends_with(wanted), "{text}");
        assert_eq!(count, 3);
    }

    #[test]
    fn tables_are_emptied_together() {
        let truncate = Change::Truncate {
            relations: vec![0, 0],
            restarts: true,
        };
        let written = statement(
            &rows(false),
            &truncate,
            &Described::default(),
            Values::Bound,
        )
        .expect("it can")
        .expect("it is");
        let names = written.parameters[0].as_deref().unwrap_or_default();
        let table = element(&rows(false).relations[0].quoted());
        assert_eq!(
            table.matches('\\').count(),
            4,
            "each quote is escaped: {table}"
        );
        assert_eq!(names, format!("{{{table},{table}}}").as_bytes());
    }

    #[test]
    fn values_are_literals_where_a_text_is_executed() {
        let insert = Change::Insert(0, row(["1", "-", "it's a \\"]));
        let written = statement(&rows(false), &insert, &table(false), Values::Literal);
        let written = written.expect("it can").expect("it is");
        assert!(written.parameters.is_empty());
        let values = written.text.split(" VALUES ").nth(1);
        assert_eq!(values, Some("('1', NULL,  E'it''s a \\\\')"));
    }

    #[test]
    fn another_table_is_told() {
        let mut other = table(false);
        other.columns.remove("v");
        let update = Change::Update(0, None, row(["1", "sad", "x"]));
        assert!(statement(&rows(false), &update, &other, Values::Bound).is_err());
        let mut keyless = rows(false);
        keyless.relations[0].columns[0].1 = false;
        let delete = Change::Delete(0, row(["1", "-", "-"]));
        assert!(statement(&keyless, &delete, &table(false), Values::Bound).is_err());
    }
}
