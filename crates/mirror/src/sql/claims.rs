//! What statements claim: keys where they are named, whole tables otherwise.
//!
//! A key is enough only if nothing but the row itself can make two statements conflict. Another unique column can, and so can what a
//! foreign key refers to.

use pg_query::protobuf::{self, AExprKind, BoolExprType, a_const::Val, node::Node as Tree};
use protocol::frame::Refusal;

use super::facts::{ForeignKey, Table};
use super::find::{Found, Named};
use super::plan::{Context, Meaning};
use super::template::FIRST_HOLE;
use super::{KeyClaim, KeyPart, KeyValue, Result, Write, unmirrored};
use crate::core::class::{Class, Mode};

/// A constant or a parameter, and the types that it is cast to.
#[derive(Debug, Clone)]
pub struct Given {
    value: KeyValue,
    casts: Vec<String>,
}

impl Given {
    /// The value as one of a key's column, unless a cast may make another one of it.
    fn of(self, type_name: &str) -> Option<KeyValue> {
        let keeps = |cast: &String| match type_name {
            "smallint" | "integer" | "bigint" => matches!(cast.as_str(), "int2" | "int4" | "int8"),
            "text" | "character varying" => matches!(cast.as_str(), "text" | "varchar"),
            "uuid" => cast == "uuid",
            _ => false,
        };
        self.casts.iter().all(keeps).then_some(self.value)
    }
}

/// The equalities with constants and parameters that all rows of a condition have.
#[derive(Debug, Default)]
pub struct Where(Vec<(String, Given)>);

/// A constant or a parameter.
pub fn value_of(node: &protobuf::Node) -> Option<Given> {
    let given = |value| Given {
        value,
        casts: Vec::new(),
    };
    match node.node.as_ref()? {
        Tree::AConst(constant) => match constant.val.as_ref()? {
            Val::Ival(number) => Some(given(KeyValue::Constant(number.ival.to_string()))),
            Val::Fval(number) => Some(given(KeyValue::Constant(number.fval.clone()))),
            Val::Sval(text) => Some(given(KeyValue::Constant(text.sval.clone()))),
            _ => None,
        },
        Tree::ParamRef(parameter) => {
            let number = usize::try_from(parameter.number).ok()?;
            Some(given(match number.checked_sub(FIRST_HOLE) {
                Some(hole) => KeyValue::Need(hole),
                None => KeyValue::Parameter(number),
            }))
        }
        Tree::TypeCast(cast) => {
            let mut given = value_of(cast.arg.as_ref()?)?;
            given.casts.push(type_of(cast.type_name.as_ref()?)?);
            Some(given)
        }
        _ => None,
    }
}

/// A type's name, if there is nothing else to it.
fn type_of(name: &protobuf::TypeName) -> Option<String> {
    let is_plain = name.typmods.is_empty() && name.array_bounds.is_empty();
    let last = name.names.last().and_then(|name| name.node.as_ref());
    match last {
        Some(Tree::String(name)) if is_plain => Some(name.sval.clone()),
        _ => None,
    }
}

impl Where {
    /// Of a condition.
    pub fn of(condition: Option<&protobuf::Node>) -> Where {
        let mut equalities = Where::default();
        equalities.add(condition);
        equalities
    }

    /// Of a query over one relation.
    pub fn of_select(select: &protobuf::SelectStmt) -> Where {
        Where::of(select.where_clause.as_deref())
    }

    fn add(&mut self, condition: Option<&protobuf::Node>) {
        match condition.and_then(|node| node.node.as_ref()) {
            Some(Tree::BoolExpr(expression)) if expression.boolop() == BoolExprType::AndExpr => {
                expression.args.iter().for_each(|one| self.add(Some(one)));
            }
            Some(Tree::AExpr(expression)) if expression.kind() == AExprKind::AexprOp => {
                let [name] = expression.name.as_slice() else {
                    return;
                };
                let is_equal = matches!(&name.node, Some(Tree::String(name)) if name.sval == "=");
                let (Some(left), Some(right)) = (&expression.lexpr, &expression.rexpr) else {
                    return;
                };
                if is_equal {
                    self.equal(left, right);
                    self.equal(right, left);
                }
            }
            _ => {}
        }
    }

    fn equal(&mut self, column: &protobuf::Node, value: &protobuf::Node) {
        if let Some(Tree::ColumnRef(column)) = &column.node
            && let Some(Tree::String(name)) =
                column.fields.last().and_then(|field| field.node.as_ref())
            && let Some(value) = value_of(value)
        {
            self.0.push((name.sval.clone(), value));
        }
    }

    fn value(&self, column: &str) -> Option<Given> {
        let found = self.0.iter().find(|(name, _)| name == column);
        found.map(|(_, value)| value.clone())
    }

    /// The key of a table that these equalities name.
    pub fn key(&self, table: &Table, mode: Mode) -> Option<KeyClaim> {
        key(table, mode, |column| self.value(column))
    }
}

/// The key of a table whose columns have these values.
pub fn key(table: &Table, mode: Mode, value: impl Fn(&str) -> Option<Given>) -> Option<KeyClaim> {
    let part = |name: &String| {
        let column = table.column(name)?;
        let value = value(name).filter(|_| column.has_plain_texts)?;
        let value = value.of(&column.type_name)?;
        Some(KeyPart {
            value,
            type_name: column.type_name.clone(),
        })
    };
    let parts: Option<Vec<KeyPart>> = table.key.iter().map(part).collect();
    let parts = parts.filter(|parts| !parts.is_empty())?;
    Some(KeyClaim {
        table: table.class(),
        parts,
        mode,
    })
}

/// What is done to a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<'a> {
    /// New rows.
    Insert,
    /// These columns of rows change.
    Update(&'a [String]),
    /// Rows go.
    Delete,
}

impl Action<'_> {
    fn touches(self, columns: &[String]) -> bool {
        match self {
            Action::Insert | Action::Delete => true,
            Action::Update(changed) => columns
                .iter()
                .any(|one| one == "*" || changed.contains(one)),
        }
    }
}

fn class(name: &str) -> Class {
    Class::Table(name.into())
}

/// A refusal of what writes to PostgreSQL's own tables.
pub fn of_catalog() -> Box<Refusal> {
    unmirrored(
        "the catalog cannot be written through the mirror",
        "Each member has its own.",
        "Use the commands that are made for it.",
    )
}

/// True if a table can be written at all.
pub fn check_table(cx: &Context<'_>, table: &Table) -> Result<()> {
    let name = table.class();
    if table.kind == "v" || table.kind == "f" || table.kind == "m" {
        let what = format!("\"{name}\" cannot be written through the mirror");
        return Err(unmirrored(
            what,
            "It is a view or a foreign table.",
            "Write to the tables themselves.",
        ));
    }
    let unknown = table
        .triggers
        .iter()
        .find(|trigger| !cx.harmless.triggers.contains(trigger));
    if let Some(trigger) = unknown {
        let hint = format!(
            "If it does the same on every database, name it in harmless.triggers = [\"{trigger}\"] of the mirror's configuration."
        );
        let what = format!("table \"{name}\" cannot be written through the mirror");
        return Err(unmirrored(
            what,
            format!("Nobody knows what its trigger {trigger} does."),
            hint,
        ));
    }
    if table.is_unlogged {
        return Err(unmirrored(
            format!("table \"{name}\" cannot be written through the mirror"),
            "It is unlogged: a server that crashes empties it, and the other member keeps it.",
            format!("ALTER TABLE {name} SET LOGGED."),
        ));
    }
    if table.has_rules {
        let what = format!("table \"{name}\" cannot be written through the mirror");
        return Err(unmirrored(
            what,
            "It has rules or row security, which are not looked into.",
            "Drop them.",
        ));
    }
    Ok(())
}

/// Claims what an action on a table needs: of `keys` only, if they are known and enough. `value` tells the values of new rows' columns.
pub fn claim(
    cx: &Context<'_>,
    table: &Table,
    action: Action<'_>,
    keys: Option<Vec<KeyClaim>>,
    write: &mut Write,
) {
    if table.is_related || !table.triggers.is_empty() {
        write.claims.add(Class::Database, Mode::Exclusive);
        return;
    }
    let name = table.class();
    let others_matter = table.others.iter().any(|columns| action.touches(columns));
    let changes_key = matches!(action, Action::Update(_)) && action.touches(&table.key);
    match keys {
        Some(keys) if !others_matter && !changes_key => {
            write.claims.add(class(&name), Mode::IntentExclusive);
            write.keys.extend(keys);
        }
        _ => write.claims.add(class(&name), Mode::Exclusive),
    }
    claim_references(cx, table, action, write);
}

/// What foreign keys on both sides read or change.
fn claim_references(cx: &Context<'_>, table: &Table, action: Action<'_>, write: &mut Write) {
    for key in &table.refers {
        if action != Action::Delete && action.touches(&key.columns) {
            write.claims.add(class(&key.table), Mode::Shared);
        }
    }
    if action == Action::Insert {
        return;
    }
    let mut seen = vec![table.class()];
    let mut next: Vec<&ForeignKey> = table
        .referred
        .iter()
        .filter(|key| action.touches(&key.columns))
        .collect();
    while let Some(key) = next.pop() {
        // What becomes of the rows that refer to it is one of: nothing, an error, a change, and then what refers to those.
        write.claims.add(class(&key.table), Mode::Exclusive);
        if !seen.contains(&key.table) {
            seen.push(key.table.clone());
            next.extend(
                cx.facts
                    .of_class(&key.table)
                    .into_iter()
                    .flat_map(|table| &table.referred),
            );
        }
    }
}

/// Claims relations that are read, all of them.
pub fn claim_reads(cx: &Context<'_>, found: &Found, write: &mut Write) -> Result<Option<String>> {
    for one in &found.relations {
        match cx.meaning(&one.schema, &one.name) {
            Meaning::Table(table)
                if matches!(table.kind.as_str(), "r" | "p") && !table.is_related =>
            {
                write.claims.add(class(&table.class()), Mode::Shared);
            }
            Meaning::Table(_) => write.claims.add(Class::Database, Mode::Exclusive),
            Meaning::Unknown if one.is_made_up => {}
            Meaning::Unknown => return Ok(Some(one.name.clone())),
            Meaning::Temporary | Meaning::System => {}
        }
    }
    Ok(None)
}

/// What `SELECT ... FOR UPDATE` and the like claim, so that nobody waits within PostgreSQL for somebody who waits here.
pub fn lock_rows(
    cx: &Context<'_>,
    found: &Found,
    select: &protobuf::SelectStmt,
    conditions: &Where,
    write: &mut Write,
) -> Result<()> {
    let shares = select.locking_clause.iter().all(|clause| {
        use protobuf::LockClauseStrength::{LcsForkeyshare, LcsForshare};
        matches!(&clause.node, Some(Tree::LockingClause(clause)) if matches!(clause.strength(), LcsForshare | LcsForkeyshare))
    });
    let mode = if shares {
        Mode::Shared
    } else {
        Mode::Exclusive
    };
    let skips = select.locking_clause.iter().any(|clause| {
        use protobuf::LockWaitPolicy::{LockWaitError, LockWaitSkip};
        matches!(&clause.node, Some(Tree::LockingClause(clause)) if matches!(clause.wait_policy(), LockWaitError | LockWaitSkip))
    });
    if skips {
        // It waits for nobody.
        return Ok(());
    }
    let is_meant = |one: &&Named| {
        !one.is_made_up || !matches!(cx.meaning(&one.schema, &one.name), Meaning::Unknown)
    };
    let meant = found.relations.iter().filter(is_meant).count();
    for one in &found.relations {
        let Meaning::Table(table) = cx.meaning(&one.schema, &one.name) else {
            continue;
        };
        let key = conditions
            .key(table, mode)
            .filter(|_| meant == 1 && !table.is_related);
        match key {
            Some(key) => write.keys.push(key),
            None if table.kind == "r" && !table.is_related => {
                write.claims.add(class(&table.class()), mode)
            }
            None => write.claims.add(Class::Database, Mode::Exclusive),
        }
    }
    Ok(())
}

/// Claims every relation that was found, for writing.
pub fn claim_all(cx: &Context<'_>, found: &Found, write: &mut Write) -> Result<Option<String>> {
    for one in &found.relations {
        match cx.meaning(&one.schema, &one.name) {
            Meaning::Table(table) => {
                check_table(cx, table)?;
                claim(cx, table, Action::Delete, None, write);
                claim(cx, table, Action::Insert, None, write);
            }
            Meaning::Unknown if one.is_made_up => {}
            Meaning::Unknown => return Ok(Some(one.name.clone())),
            Meaning::Temporary | Meaning::System => {}
        }
    }
    Ok(None)
}
