//! Sequences are moved past values that were told, by calls of `nextval`: others may use them meanwhile.

use pg_query::protobuf::RangeVar;

use super::super::super::settings::{quote_literal, quote_name};

/// A sequence, or the column that has one, and the highest value of it that was told.
#[derive(Debug)]
pub enum Moved {
    /// A sequence by its name.
    Sequence(String, i64),
    /// A column of a table, by the names of both.
    Column(String, String, i64),
}

/// A statement that calls `nextval` until each sequence is past what was told: after a takeover it is as a rule, as
/// PostgreSQL logs 32 values ahead. It fails where one cannot be moved: values that go down, and columns of views.
pub fn moves(moved: &[Moved]) -> Option<String> {
    if moved.is_empty() {
        return None;
    }
    let list = |rows: Vec<String>, none: &str| match rows.is_empty() {
        true => none.to_owned(),
        false => format!("VALUES {}", rows.join(", ")),
    };
    let columns = moved.iter().filter_map(|one| match one {
        Moved::Column(relation, name, value) => Some(format!(
            "({}::pg_catalog.regclass, {}, {value}::pg_catalog.int8)",
            quote_literal(relation),
            quote_literal(name)
        )),
        Moved::Sequence(..) => None,
    });
    let sequences = moved.iter().filter_map(|one| match one {
        Moved::Sequence(name, value) => Some(format!(
            "({}::pg_catalog.regclass::pg_catalog.oid, {value}::pg_catalog.int8)",
            quote_literal(name)
        )),
        Moved::Column(..) => None,
    });
    Some(format!(
        include_str!("moves.sql"),
        columns = list(
            columns.collect(),
            "SELECT 0::pg_catalog.oid::pg_catalog.regclass, ''::pg_catalog.text, 0::pg_catalog.int8 WHERE false"
        ),
        sequences = list(
            sequences.collect(),
            "SELECT 0::pg_catalog.oid, 0::pg_catalog.int8 WHERE false"
        ),
    ))
}

/// A table's name as SQL has it.
pub fn relation_name(relation: &RangeVar) -> String {
    let name = quote_name(&relation.relname);
    match relation.schemaname.as_str() {
        "" => name,
        schema => format!("{}.{name}", quote_name(schema)),
    }
}
