//! Values that a client was told, in the place of those that a second run of the same statement would make (R15).
//!
//! Sequences go on and random numbers differ when a transaction is run again on another server. Owns how a statement is
//! written so that it makes the same rows: `INSERT INTO t (a) VALUES ($1) RETURNING id` becomes
//! `INSERT INTO t (a, id) OVERRIDING SYSTEM VALUE VALUES ($1, $2) RETURNING id`, and `SELECT nextval('s')` becomes
//! `SELECT CAST($1 AS int8) AS nextval`. Invariant: a statement that is not certain to make the same rows is not rewritten; its
//! answer is then compared, and differs.

mod moves;
mod trees;

use bytes::Bytes;
use pg_query::protobuf::{
    self, InsertStmt, Node, OverridingKind, ResTarget, SelectStmt, node::Node as Tree,
};

use super::super::settings::{quote_literal, quote_name};
use moves::{Moved, moves, relation_name};
use trees::{expression, innermost, is_text, last_name, node, target, values_of};

/// Longer texts, or more rows, are not rewritten.
const LIMIT_BYTES: usize = 64 << 10;
const LIMIT_ROWS: usize = 1000;

/// A row as it was told: its columns.
pub type Row = Vec<Option<Bytes>>;

/// A column of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// By which name it is told.
    pub name: String,
    /// The number of its type.
    pub type_oid: u32,
}

/// How values get into the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// As literals: they were told as text.
    Text,
    /// As parameters behind so many of the client's own, in the form in which they were told.
    Parameters(usize),
}

/// A statement that makes the rows again that were told.
#[derive(Debug, PartialEq, Eq)]
pub struct Again {
    pub text: String,
    /// Values of the parameters behind the client's own, each with the column in whose form it is; none for text.
    pub parameters: Vec<(Option<usize>, Option<Bytes>)>,
    /// Moves sequences past the values.
    pub moves: Option<String>,
}

/// True if the rows that a statement tells have to be kept, to run it once more.
pub fn keeps(node: &Tree) -> bool {
    match node {
        Tree::InsertStmt(insert) => is_plain_insert(insert),
        Tree::SelectStmt(select) => {
            let is_call = |target| called(target).is_some();
            is_one_row(select) && select.target_list.iter().any(is_call)
        }
        _ => false,
    }
}

/// `text` with the values of `rows`. `None` if it is not certain that it makes them.
pub fn again(text: &str, rows: &[Row], columns: Option<&[Column]>, place: Place) -> Option<Again> {
    if text.len() > LIMIT_BYTES || rows.len() > LIMIT_ROWS {
        return None;
    }
    let mut parsed = pg_query::parse(text, pg_query::ParserOptions::DEFAULT).ok()?;
    let [raw] = parsed.protobuf.stmts.as_mut_slice() else {
        return None;
    };
    let mut writer = Writer {
        place,
        parameters: Vec::new(),
        told_as_text: Vec::new(),
        moved: Vec::new(),
    };
    match raw.stmt.as_mut()?.node.as_mut()? {
        Tree::InsertStmt(insert) if is_plain_insert(insert) => {
            writer.insert(insert, rows, columns)?;
        }
        Tree::SelectStmt(select) if is_one_row(select) => writer.select(select, rows)?,
        _ => return None,
    }
    Some(Again {
        text: pg_query::deparse(&parsed.protobuf, pg_query::DeparseOptions::default()).ok()?,
        moves: moves(&writer.moved),
        parameters: writer.parameters,
    })
}

/// True if each row of the answer is one that it inserts, in order.
fn is_plain_insert(insert: &InsertStmt) -> bool {
    insert.with_clause.is_none()
        && insert.on_conflict_clause.is_none()
        && insert.relation.is_some()
        && returned(insert).is_some_and(|all| !all.is_empty())
}

fn returned(insert: &InsertStmt) -> Option<&[Node]> {
    Some(&insert.returning_clause.as_ref()?.exprs)
}

/// True of a `SELECT` of values, without tables.
fn is_one_row(select: &SelectStmt) -> bool {
    let plain = SelectStmt {
        target_list: select.target_list.clone(),
        limit_option: select.limit_option,
        op: select.op,
        ..SelectStmt::default()
    };
    *select == plain && select.op() == protobuf::SetOperation::SetopNone
}

/// The name and the type of a function whose value is told once, of an item of a `SELECT`, or within its casts.
fn called(item: &Node) -> Option<(&str, &'static str)> {
    called_by(target(item)?.val.as_deref()?)
}

/// The same of an expression.
fn called_by(mut node: &Node) -> Option<(&str, &'static str)> {
    while let Some(Tree::TypeCast(cast)) = &node.node {
        node = cast.arg.as_deref()?;
    }
    let Some(Tree::FuncCall(call)) = &node.node else {
        return None;
    };
    let name = last_name(&call.funcname)?;
    let of_type = match name {
        "nextval" if constant(&call.args).is_some() => "int8",
        "currval" | "lastval" => "int8",
        "gen_random_uuid" | "uuid_generate_v1" | "uuid_generate_v1mc" | "uuid_generate_v4"
        | "uuidv4" | "uuidv7" => "uuid",
        "now" | "clock_timestamp" | "statement_timestamp" | "transaction_timestamp" => {
            "timestamptz"
        }
        "random" if call.args.is_empty() => "float8",
        _ => return None,
    };
    Some((name, of_type))
}

/// The text of a call's only argument, if it is a constant.
fn constant(arguments: &[Node]) -> Option<&str> {
    let [argument] = arguments else {
        return None;
    };
    let mut node = argument;
    while let Some(Tree::TypeCast(cast)) = &node.node {
        node = cast.arg.as_deref()?;
    }
    match node.node.as_ref()? {
        Tree::AConst(constant) => match constant.val.as_ref()? {
            protobuf::a_const::Val::Sval(text) => Some(&text.sval),
            _ => None,
        },
        _ => None,
    }
}

struct Writer {
    place: Place,
    parameters: Vec<(Option<usize>, Option<Bytes>)>,
    /// Columns of the answer that are the text of a column of the table.
    told_as_text: Vec<usize>,
    moved: Vec<Moved>,
}

impl Writer {
    /// A value that was told in a column, as an expression.
    fn value(&mut self, row: &Row, column: usize, of_type: Option<&str>) -> Option<Node> {
        let value = row.get(column)?;
        let text = match (self.place, value) {
            (Place::Parameters(own), value) => {
                let form = (!self.told_as_text.contains(&column)).then_some(column);
                self.parameters.push((form, value.clone()));
                format!("${}", own + self.parameters.len())
            }
            (Place::Text, None) => "NULL".to_owned(),
            (Place::Text, Some(value)) => quote_literal(std::str::from_utf8(value).ok()?),
        };
        expression(&match of_type {
            Some(of_type) => format!("CAST({text} AS {of_type})"),
            None => text,
        })
    }

    /// The highest number that was told in a column, if that has numbers.
    fn highest(&self, rows: &[Row], column: usize) -> Option<i64> {
        let number = |row: &Row| {
            let value = row.get(column)?.as_ref()?;
            std::str::from_utf8(value)
                .ok()
                .and_then(|text| text.parse().ok())
                .or_else(|| binary(value).filter(|_| self.place != Place::Text))
        };
        rows.iter().filter_map(number).max()
    }

    fn select(&mut self, select: &mut SelectStmt, rows: &[Row]) -> Option<()> {
        let [row] = rows else {
            return None;
        };
        for (at, item) in select.target_list.iter_mut().enumerate() {
            let Some((name, of_type)) = called(item) else {
                continue;
            };
            let name = name.to_owned();
            let Some(Tree::ResTarget(target)) = &mut item.node else {
                return None;
            };
            let item = target.val.as_deref_mut()?;
            self.note_sequence(innermost(item)?, rows, at)?;
            match &mut item.node {
                // What was told is of the type of the cast.
                Some(Tree::TypeCast(cast)) => **cast.arg.as_mut()? = self.value(row, at, None)?,
                _ => *item = self.value(row, at, Some(of_type))?,
            }
            if target.name.is_empty() {
                target.name = name;
            }
        }
        Some(())
    }

    /// If this is a call of `nextval`, its sequence has to be past what was told in a column.
    fn note_sequence(&mut self, call: &Node, rows: &[Row], column: usize) -> Option<()> {
        let Some(Tree::FuncCall(call)) = &call.node else {
            return Some(());
        };
        if last_name(&call.funcname)? == "nextval" {
            let sequence = constant(&call.args)?.to_owned();
            let told = self.highest(rows, column)?;
            self.moved.push(Moved::Sequence(sequence, told));
        }
        Some(())
    }

    fn insert(
        &mut self,
        insert: &mut InsertStmt,
        rows: &[Row],
        columns: Option<&[Column]>,
    ) -> Option<()> {
        let told = told_columns(returned(insert)?, columns)?;
        self.told_as_text = told
            .iter()
            .filter_map(|told| told.2.then_some(told.0))
            .collect();
        let told: Vec<(usize, String)> = told.into_iter().map(|(at, name, _)| (at, name)).collect();
        let relation = relation_name(insert.relation.as_ref()?);
        let source = match insert.select_stmt.as_deref_mut() {
            Some(node) => match node.node.as_mut()? {
                Tree::SelectStmt(select) => Some(select.as_mut()),
                _ => return None,
            },
            None => None,
        };
        if source.is_some() && insert.cols.is_empty() {
            return None;
        }
        let listed: Vec<String> = insert
            .cols
            .iter()
            .filter_map(target)
            .map(|t| t.name.clone())
            .collect();
        // A column whose value the client has not given.
        let is_new = |name: &String| !listed.contains(name);
        let mut added: Vec<(usize, String)> = Vec::new();
        for (at, name) in &told {
            if is_new(name) && !added.iter().any(|(_, one)| one == name) {
                added.push((*at, name.clone()));
            }
        }
        let mut kept: Vec<String> = added.iter().map(|(_, name)| name.clone()).collect();
        let mut is_changed = false;
        match source {
            None => {
                let [row] = rows else {
                    return None;
                };
                let mut items = Vec::new();
                for (at, _) in &added {
                    items.push(self.value(row, *at, None)?);
                }
                insert.select_stmt = Some(Box::new(values_of(vec![items])));
            }
            Some(select) if !select.values_lists.is_empty() => {
                let (replaced, has_calls) = self.rows(select, &listed, &told, &added, rows)?;
                is_changed = has_calls;
                kept.extend(replaced);
            }
            Some(select) => self.selected_rows(select, &added, rows, columns?)?,
        }
        if kept.is_empty() && !is_changed {
            return None;
        }
        for (at, name) in told.iter().filter(|(_, name)| kept.contains(name)) {
            if let Some(highest) = self.highest(rows, *at) {
                let moved = Moved::Column(relation.clone(), name.clone(), highest);
                self.moved.push(moved);
            }
        }
        for (_, name) in added {
            let column = ResTarget {
                name,
                ..ResTarget::default()
            };
            insert.cols.push(node(Tree::ResTarget(Box::new(column))));
        }
        insert.set_override(OverridingKind::OverridingSystemValue);
        Some(())
    }

    /// `VALUES (...), (...)`: the columns that are new behind the others, and values in the place of `DEFAULT` and of calls.
    /// Returns the names of the columns that said `DEFAULT`, and whether there were calls.
    fn rows(
        &mut self,
        select: &mut SelectStmt,
        listed: &[String],
        told: &[(usize, String)],
        added: &[(usize, String)],
        rows: &[Row],
    ) -> Option<(Vec<String>, bool)> {
        if select.values_lists.len() != rows.len() {
            return None;
        }
        let (mut replaced, mut has_calls) = (Vec::new(), false);
        for (list, row) in select.values_lists.iter_mut().zip(rows) {
            let Some(Tree::List(list)) = &mut list.node else {
                return None;
            };
            if list.items.len() != listed.len() {
                return None;
            }
            for (item, name) in list.items.iter_mut().zip(listed) {
                let Some((at, _)) = told.iter().find(|(_, one)| one == name) else {
                    continue;
                };
                if matches!(item.node, Some(Tree::SetToDefault(_))) {
                    *item = self.value(row, *at, None)?;
                    replaced.push(name.clone());
                } else if called_by(item).is_some() {
                    self.note_sequence(innermost(item)?, rows, *at)?;
                    *item = self.value(row, *at, None)?;
                    has_calls = true;
                }
            }
            for (at, _) in added {
                list.items.push(self.value(row, *at, None)?);
            }
        }
        Some((replaced, has_calls))
    }

    /// `SELECT p0::text FROM (VALUES (...), (...)) AS v(p0, n) ORDER BY n`, as SQLAlchemy writes it.
    fn selected_rows(
        &mut self,
        select: &mut SelectStmt,
        added: &[(usize, String)],
        rows: &[Row],
        columns: &[Column],
    ) -> Option<()> {
        let [from] = select.from_clause.as_mut_slice() else {
            return None;
        };
        let Some(Tree::RangeSubselect(from)) = &mut from.node else {
            return None;
        };
        let Some(Tree::SelectStmt(values)) = &mut from.subquery.as_mut()?.node else {
            return None;
        };
        let alias = from.alias.as_mut()?;
        let is_filtered = select.where_clause.is_some() || select.limit_count.is_some();
        if is_filtered || alias.colnames.is_empty() || values.values_lists.len() != rows.len() {
            return None;
        }
        for (number, (at, _)) in added.iter().enumerate() {
            if self.told_as_text.contains(at) {
                return None;
            }
            let of_type = type_name(columns.get(*at)?.type_oid)?;
            for (list, row) in values.values_lists.iter_mut().zip(rows) {
                let Some(Tree::List(list)) = &mut list.node else {
                    return None;
                };
                list.items.push(self.value(row, *at, Some(of_type))?);
            }
            let name = format!("understudy_kept_{number}");
            let item = expression(&format!("{}.{name}", quote_name(&alias.aliasname)))?;
            let item = ResTarget {
                val: Some(Box::new(item)),
                ..ResTarget::default()
            };
            select
                .target_list
                .push(node(Tree::ResTarget(Box::new(item))));
            let name = protobuf::String { sval: name };
            alias.colnames.push(node(Tree::String(name)));
        }
        Some(())
    }
}

/// The columns of the table that are told, each with its place in the answer, and whether it is told as text.
fn told_columns(
    returned: &[Node],
    columns: Option<&[Column]>,
) -> Option<Vec<(usize, String, bool)>> {
    let mut told = Vec::new();
    for (at, item) in returned.iter().enumerate() {
        let mut value = target(item)?.val.as_deref()?;
        let mut is_as_text = false;
        if let Some(Tree::TypeCast(cast)) = &value.node
            && is_text(cast)
        {
            value = cast.arg.as_deref()?;
            is_as_text = true;
        }
        let Some(Tree::ColumnRef(column)) = &value.node else {
            continue;
        };
        match column.fields.last()?.node.as_ref()? {
            Tree::String(name) => told.push((at, name.sval.clone(), is_as_text)),
            Tree::AStar(_) if returned.len() == 1 => {
                let names = columns?.iter().map(|column| column.name.clone());
                let names = names.enumerate();
                return Some(names.map(|(at, name)| (at, name, false)).collect());
            }
            _ => return None,
        }
    }
    Some(told)
}

/// Types that PostgreSQL has under the same number everywhere.
fn type_name(oid: u32) -> Option<&'static str> {
    Some(match oid {
        16 => "bool",
        20 => "int8",
        21 => "int2",
        23 => "int4",
        25 => "text",
        700 => "float4",
        701 => "float8",
        1043 => "varchar",
        1082 => "date",
        1114 => "timestamp",
        1184 => "timestamptz",
        1700 => "numeric",
        2950 => "uuid",
        _ => return None,
    })
}

/// A number in PostgreSQL's binary form.
fn binary(value: &[u8]) -> Option<i64> {
    match value.len() {
        2 => Some(i16::from_be_bytes(value.try_into().ok()?).into()),
        4 => Some(i32::from_be_bytes(value.try_into().ok()?).into()),
        8 => Some(i64::from_be_bytes(value.try_into().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
