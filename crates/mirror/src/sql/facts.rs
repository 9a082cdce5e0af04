//! What a manager knows of its database's catalog.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;

/// Reads [`Facts`] as one JSON value. Works on PostgreSQL 15 and later, with anybody's rights and with any search path: names within
/// texts have their schemas.
pub const CATALOG: &str = include_str!("catalog.sql");

/// A column.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type, without a modifier.
    pub type_name: String,
    /// Its default, or that of its domain.
    pub default: Option<String>,
    /// `a` if it is always generated as identity, `d` if by default.
    pub identity: String,
    /// The sequence of its identity, as `nextval` wants it.
    pub sequence: Option<String>,
    /// It is computed from other columns.
    pub is_generated: bool,
    /// A text may mean a time in it: `now`.
    pub may_be_a_time: bool,
    /// Two texts of a value of this type are equal only if the values are.
    pub has_plain_texts: bool,
}

/// A foreign key, as seen from either side.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ForeignKey {
    /// The other table, with its schema.
    pub table: String,
    /// Our columns.
    pub columns: Vec<String>,
    /// Theirs, in the same order.
    pub others: Vec<String>,
}

/// A table, or something like one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Table {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// As in `pg_class.relkind`.
    pub kind: String,
    /// In order.
    pub columns: Vec<Column>,
    /// The columns of its primary key.
    pub key: Vec<String>,
    /// The columns of other unique indexes and of exclusion constraints, also those that their expressions and conditions read; `*`
    /// stands for all.
    pub others: Vec<Vec<String>>,
    /// Its triggers that are not PostgreSQL's own.
    pub triggers: Vec<String>,
    /// It has rules, or row security.
    pub has_rules: bool,
    /// Who reads it decides which rows there are.
    pub has_row_security: bool,
    /// A crash of its server empties it.
    pub is_unlogged: bool,
    /// The query of a view; none of an extension's.
    pub definition: Option<String>,
    /// It is a partition or has some, or inherits, or is inherited from.
    pub is_related: bool,
    /// What its rows refer to.
    pub refers: Vec<ForeignKey>,
    /// What refers to its rows.
    pub referred: Vec<ForeignKey>,
}

impl Table {
    /// Its name with its schema, as classes are called.
    pub fn class(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    /// A column of it.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// What is known of a database.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// All tables but PostgreSQL's own.
    pub tables: Vec<Table>,
    /// The names of PostgreSQL's own relations.
    pub system: HashSet<String>,
    /// Domains that have defaults, and these.
    pub domains: Vec<(String, String)>,
    /// PostgreSQL's own functions that are not immutable: `s` or `v`, the worst of a name.
    pub builtin: HashMap<String, String>,
    /// All others that are not immutable.
    pub own: HashMap<String, String>,
    /// There are constraints that may be checked at the end of a transaction.
    pub has_deferrable: bool,
    #[serde(skip)]
    by_name: HashMap<(String, String), usize>,
}

impl Facts {
    /// From what [`CATALOG`] answers.
    ///
    /// # Errors
    /// If that is not what it should be.
    pub fn parse(json: &str) -> serde_json::Result<Facts> {
        let facts: Facts = serde_json::from_str(json)?;
        Ok(facts.indexed())
    }

    /// Makes tables be found.
    pub fn indexed(mut self) -> Facts {
        let names = self.tables.iter().enumerate();
        self.by_name = names
            .map(|(at, table)| ((table.schema.clone(), table.name.clone()), at))
            .collect();
        self
    }

    /// A table by its name.
    pub fn table(&self, schema: &str, name: &str) -> Option<&Table> {
        let at = self.by_name.get(&(schema.to_owned(), name.to_owned()))?;
        self.tables.get(*at)
    }

    /// A table by its name with its schema.
    pub fn of_class(&self, class: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.class() == class)
    }
}
