//! Rows that are sent in place of a statement.
//!
//! The primary's statement gets a `RETURNING` of what the other member needs, behind whatever the client wants returned. The other
//! member then does to exactly these rows what was done to them.

use proxy::core::settings::{quote_identifier, quote_literal};

use super::facts::Table;
use super::template::as_text;

/// What is done with the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Insert,
    /// Inserted, or changed because they were there.
    Upsert,
    Update,
    Delete,
}

/// Which rows are sent, and what is done with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ship {
    deed: Deed,
    table: String,
    key: Vec<String>,
    columns: Vec<String>,
    /// What of a row that is there already is set to the same of the one that is sent.
    sets: Vec<String>,
}

/// The values of a row's columns, in the order of what is returned; `None` for null.
pub type Row = Vec<Option<String>>;

/// Rows of one `INSERT`.
const INSERT_ROWS: usize = 200;

fn quoted(table: &Table) -> String {
    format!(
        "{}.{}",
        quote_identifier(&table.schema),
        quote_identifier(&table.name)
    )
}

fn literal(value: &Option<String>) -> String {
    value
        .as_deref()
        .map_or_else(|| "NULL".to_owned(), quote_literal)
}

impl Ship {
    fn new(deed: Deed, table: &Table, columns: Vec<String>) -> Ship {
        Ship {
            deed,
            table: quoted(table),
            key: table.key.clone(),
            columns,
            sets: Vec::new(),
        }
    }

    /// New rows.
    pub fn insert(table: &Table, is_upsert: bool) -> Ship {
        let columns = table.columns.iter().filter(|column| !column.is_generated);
        let columns = columns.map(|column| column.name.clone()).collect();
        let deed = if is_upsert {
            Deed::Upsert
        } else {
            Deed::Insert
        };
        let mut ship = Ship::new(deed, table, columns);
        // A key is the same; an identity that is always generated as well, and may not be set.
        let may_be_set = |name: &&String| {
            let is_identity = table
                .column(name)
                .is_some_and(|column| column.identity == "a");
            !is_identity && !table.key.contains(name)
        };
        ship.sets = ship.columns.iter().filter(may_be_set).cloned().collect();
        ship
    }

    /// Rows of which `changed` columns change.
    pub fn update(table: &Table, changed: &[String]) -> Ship {
        let mut columns = table.key.clone();
        columns.extend(
            changed
                .iter()
                .filter(|name| !table.key.contains(name))
                .cloned(),
        );
        Ship::new(Deed::Update, table, columns)
    }

    /// Rows that go.
    pub fn delete(table: &Table) -> Ship {
        Ship::new(Deed::Delete, table, table.key.clone())
    }

    /// How many columns are returned for it.
    pub fn width(&self) -> usize {
        self.columns.len()
    }

    /// What is to be returned, each as text; `of` is what the statement calls the table.
    pub fn returning(&self, of: &str, has_other_times: bool) -> String {
        let columns = self.columns.iter().map(|name| {
            let column = format!("{of}.{}", quote_identifier(name));
            as_text(&column, has_other_times)
        });
        columns.collect::<Vec<_>>().join(", ")
    }

    /// The statements that do the same to these rows, each with the tag that it must answer.
    pub fn statements(&self, rows: &[Row]) -> Vec<(String, String)> {
        match self.deed {
            Deed::Insert | Deed::Upsert => rows
                .chunks(INSERT_ROWS)
                .map(|rows| self.insertion(rows))
                .collect(),
            Deed::Update => rows
                .iter()
                .map(|row| (self.change(row), "UPDATE 1".to_owned()))
                .collect(),
            Deed::Delete => rows
                .iter()
                .map(|row| (self.removal(row), "DELETE 1".to_owned()))
                .collect(),
        }
    }

    fn insertion(&self, rows: &[Row]) -> (String, String) {
        let names: Vec<String> = self
            .columns
            .iter()
            .map(|name| quote_identifier(name))
            .collect();
        let values: Vec<String> = rows
            .iter()
            .map(|row| {
                format!(
                    "({})",
                    row.iter().map(literal).collect::<Vec<_>>().join(", ")
                )
            })
            .collect();
        let mut text = format!(
            "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES {}",
            self.table,
            names.join(", "),
            values.join(", ")
        );
        if self.deed == Deed::Upsert {
            let key: Vec<String> = self.key.iter().map(|name| quote_identifier(name)).collect();
            let sets = self.sets.iter().map(|name| quote_identifier(name));
            let sets: Vec<String> = sets
                .map(|name| format!("{name} = EXCLUDED.{name}"))
                .collect();
            text.push_str(&format!(
                " ON CONFLICT ({}) DO UPDATE SET {}",
                key.join(", "),
                sets.join(", ")
            ));
        }
        (text, format!("INSERT 0 {}", rows.len()))
    }

    fn condition(&self, row: &Row) -> String {
        let parts = self.key.iter().zip(row);
        let parts =
            parts.map(|(name, value)| format!("{} = {}", quote_identifier(name), literal(value)));
        parts.collect::<Vec<_>>().join(" AND ")
    }

    fn change(&self, row: &Row) -> String {
        let changed = self.columns.iter().zip(row).skip(self.key.len());
        let sets =
            changed.map(|(name, value)| format!("{} = {}", quote_identifier(name), literal(value)));
        let sets = sets.collect::<Vec<_>>().join(", ");
        format!(
            "UPDATE {} SET {sets} WHERE {}",
            self.table,
            self.condition(row)
        )
    }

    fn removal(&self, row: &Row) -> String {
        format!("DELETE FROM {} WHERE {}", self.table, self.condition(row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::facts::Column;

    fn table() -> Table {
        let column = |name: &str| Column {
            name: name.to_owned(),
            ..Column::default()
        };
        Table {
            schema: "public".to_owned(),
            name: "t".to_owned(),
            columns: vec![column("id"), column("a")],
            key: vec!["id".to_owned()],
            ..Table::default()
        }
    }

    fn row(values: &[Option<&str>]) -> Row {
        values
            .iter()
            .map(|value| value.map(str::to_owned))
            .collect()
    }

    /// PostgreSQL refuses to set an identity that is always generated, whatever to.
    #[test]
    fn what_is_always_generated_is_not_set() {
        let mut table = table();
        table.columns.push(Column {
            name: "n".to_owned(),
            identity: "a".to_owned(),
            ..Column::default()
        });
        table.columns[0].identity = "a".to_owned();
        let sent = Ship::insert(&table, true).statements(&[row(&[Some("1"), None, Some("2")])]);
        let (text, _) = &sent[0];
        assert!(
            text.ends_with(r#"("id") DO UPDATE SET "a" = EXCLUDED."a""#),
            "{text}"
        );
    }

    /// An abbreviation of a time zone may stand for several.
    #[test]
    fn times_are_sent_as_every_member_reads_them() {
        let ship = Ship::delete(&table());
        assert_eq!(ship.returning("x", false), "x.\"id\"::text");
        let plain = "understudy_mirror.plain(x.\"id\")";
        assert_eq!(ship.returning("x", true), plain);
    }

    #[test]
    fn rows_become_statements() {
        let told = |ship: Ship, values: &[Option<&str>]| ship.statements(&[row(values)]).remove(0);
        assert_eq!(
            told(Ship::insert(&table(), false), &[Some("1"), Some("it's")]),
            (
                r#"INSERT INTO "public"."t" ("id", "a") OVERRIDING SYSTEM VALUE VALUES ('1', 'it''s')"#.to_owned(),
                "INSERT 0 1".to_owned()
            )
        );
        assert_eq!(
            told(
                Ship::update(&table(), &["a".to_owned()]),
                &[Some("1"), None]
            )
            .0,
            r#"UPDATE "public"."t" SET "a" = NULL WHERE "id" = '1'"#
        );
        assert_eq!(
            told(Ship::delete(&table()), &[Some("1")]).0,
            r#"DELETE FROM "public"."t" WHERE "id" = '1'"#
        );
        let upsert = told(Ship::insert(&table(), true), &[Some("1"), None]).0;
        assert!(
            upsert.ends_with(r#"ON CONFLICT ("id") DO UPDATE SET "a" = EXCLUDED."a""#),
            "{upsert}"
        );
    }
}
