//! `INSERT` and `COPY ... FROM`.

use pg_query::protobuf::{self, OnConflictAction, OverridingKind, node::Node as Tree};

use super::change::{
    Held, SHIPS, cannot_ship, check_shippable, hold_constants, return_more, sets_default,
};
use super::claims::{self, Action, Given, key, value_of};
use super::facts::{Column, Table};
use super::find::{Found, NUMBER_OF_OBJECT, find};
use super::plan::{Context, Meaning, Plan, private, sequences_of};
use super::rows::Ship;
use super::template::{FIRST_HOLE, Template};
use super::{KeyClaim, Result, Write, parts, unmirrored};
use crate::core::class::{Claims, Mode};

/// Values that are evaluated one by one; for more of them rows are sent.
const MOST_NEEDS: usize = 1_000;
/// Keys that are claimed one by one; for more of them the whole table is.
const MOST_KEYS: usize = 64;

/// What a default means for two databases.
pub(super) enum Default {
    /// None, or the same on both.
    Same,
    /// It is evaluated by the primary.
    Open {
        text: String,
        sequences: Vec<String>,
    },
}

pub(super) fn default_of(cx: &Context<'_>, column: &Column) -> Result<Default> {
    if let Some(sequence) = &column.sequence {
        let name = sequence.replace('\'', "''");
        return Ok(Default::Open {
            text: format!("pg_catalog.nextval('{name}'::pg_catalog.regclass)"),
            sequences: vec![sequence.clone()],
        });
    }
    if !column.identity.is_empty() {
        return Err(unmirrored(
            format!(
                "column \"{}\" cannot be given a value by the mirror",
                column.name
            ),
            "It is an identity, and its sequence is not known.",
            "Write to the table that has the sequence.",
        ));
    }
    let Some(text) = &column.default else {
        return Ok(Default::Same);
    };
    if column.is_generated {
        return Ok(Default::Same);
    }
    let node = parts::one(&format!("SELECT {text}")).ok().flatten();
    let mut found = find(&node);
    forgive_sequences(&mut found)?;
    Ok(match cx.differs(&found)? {
        None => Default::Same,
        Some(_) => Default::Open {
            text: text.clone(),
            sequences: sequences_of(&found)?,
        },
    })
}

/// The number of a sequence is only used to find it.
fn forgive_sequences(found: &mut Found) -> Result<()> {
    if found.open == Some(NUMBER_OF_OBJECT) && !sequences_of(found)?.is_empty() {
        found.open = None;
    }
    Ok(())
}

/// True if new rows have values that differ when they are not given.
pub fn has_open_defaults(cx: &Context<'_>, table: &Table) -> Result<bool> {
    for column in &table.columns {
        if let Default::Open { .. } = default_of(cx, column)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The sequences of the defaults of these columns, if one of the defaults differs.
pub fn open_defaults(
    cx: &Context<'_>,
    table: &Table,
    names: &[String],
) -> Result<Option<Vec<String>>> {
    let mut open: Option<Vec<String>> = None;
    for column in table
        .columns
        .iter()
        .filter(|column| names.contains(&column.name))
    {
        if let Default::Open { sequences, .. } = default_of(cx, column)? {
            open.get_or_insert_default().extend(sequences);
        }
    }
    Ok(open)
}

/// Plans it.
pub fn plan(cx: &Context<'_>, text: &str, statement: &protobuf::InsertStmt) -> Result<Plan> {
    let Some(relation) = &statement.relation else {
        return Ok(Plan::alone());
    };
    let table = match cx.meaning(&relation.schemaname, &relation.relname) {
        Meaning::Table(table) => table,
        Meaning::Temporary => {
            let node = Tree::InsertStmt(Box::new(statement.clone()));
            return private(cx, text, &node, 1);
        }
        Meaning::System => return Err(claims::of_catalog()),
        Meaning::Unknown => return Ok(Plan::Unknown(relation.relname.clone())),
    };
    claims::check_table(cx, table)?;
    let node = Tree::InsertStmt(Box::new(statement.clone()));
    let held = hold_constants(cx, text, &node)?;
    let Tree::InsertStmt(statement) = &held.node else {
        return Ok(Plan::alone());
    };
    if find(&held.node).writes > 1 {
        return super::change::plan(cx, text, &node);
    }
    let mut insert = Insert {
        cx,
        table,
        held: &held,
        statement: (**statement).clone(),
        needs: held.needs.clone(),
        sequences: Vec::new(),
        why: cx.ships.then_some(SHIPS),
        is_changed: false,
    };
    insert.look()?;
    insert.finish()
}

/// An `INSERT` that is being made the same for both members.
struct Insert<'a> {
    cx: &'a Context<'a>,
    table: &'a Table,
    held: &'a Held,
    statement: protobuf::InsertStmt,
    needs: Vec<String>,
    sequences: Vec<String>,
    /// Why its rows must be sent, if so.
    why: Option<&'static str>,
    /// The text does not say what the tree says.
    is_changed: bool,
}

fn hole(number: usize) -> protobuf::Node {
    let number = i32::try_from(FIRST_HOLE + number).unwrap_or(i32::MAX);
    let parameter = protobuf::ParamRef {
        number,
        location: -1,
    };
    protobuf::Node {
        node: Some(Tree::ParamRef(parameter)),
    }
}

impl Insert<'_> {
    fn must_ship(&mut self, why: &'static str) {
        self.why.get_or_insert(why);
    }

    /// The columns that values are given for, in order.
    fn columns(&self) -> Vec<String> {
        let named = self
            .statement
            .cols
            .iter()
            .filter_map(|column| match &column.node {
                Some(Tree::ResTarget(target)) => Some(target.name.clone()),
                _ => None,
            });
        let named: Vec<String> = named.collect();
        match named.is_empty() {
            true => self
                .table
                .columns
                .iter()
                .map(|column| column.name.clone())
                .collect(),
            false => named,
        }
    }

    fn values(&mut self) -> Option<&mut Vec<protobuf::Node>> {
        match self.statement.select_stmt.as_mut()?.node.as_mut()? {
            Tree::SelectStmt(select) if !select.values_lists.is_empty() => {
                Some(&mut select.values_lists)
            }
            _ => None,
        }
    }

    /// Looks at everything in it.
    fn look(&mut self) -> Result<()> {
        let rest = self.rest();
        if let Some(why) = self.cx.differs(&rest)? {
            self.must_ship(why);
        }
        self.sequences
            .extend(sequences_of(&self.cx.with_views(&rest))?);
        self.look_at_conflict()?;
        if self.statement.select_stmt.is_none() {
            return self.look_at_defaults_alone();
        }
        if self.values().is_some() {
            return self.look_at_values();
        }
        if self.statement.on_conflict_clause.is_some() {
            self.must_ship("two of its rows may conflict, and either of them may win");
        }
        let given = self.columns();
        for column in &self.table.columns {
            if !given.contains(&column.name) || self.statement.cols.is_empty() {
                let is_given = given.contains(&column.name) && column.identity.is_empty();
                self.look_at_default(column, is_given && !self.statement.cols.is_empty())?;
            }
        }
        Ok(())
    }

    /// `ON CONFLICT DO UPDATE SET x = DEFAULT`.
    fn look_at_conflict(&mut self) -> Result<()> {
        let Some(conflict) = &self.statement.on_conflict_clause else {
            return Ok(());
        };
        let sets = sets_default(&conflict.target_list);
        if sets
            && let Some(sequences) =
                open_defaults(self.cx, self.table, &names(&conflict.target_list))?
        {
            self.sequences.extend(sequences);
            self.must_ship("a default differs");
        }
        Ok(())
    }

    fn look_at_default(&mut self, column: &Column, is_given: bool) -> Result<()> {
        if let Default::Open { sequences, .. } = default_of(self.cx, column)?
            && !is_given
        {
            self.sequences.extend(sequences);
            self.must_ship("a default differs in every row");
        }
        Ok(())
    }

    fn look_at_defaults_alone(&mut self) -> Result<()> {
        for column in &self.table.columns {
            self.look_at_default(column, false)?;
        }
        Ok(())
    }

    /// All but the values.
    fn rest(&mut self) -> Found {
        let mut statement = self.statement.clone();
        let is_values = self.values().is_some();
        if is_values {
            statement.select_stmt = None;
        }
        statement.relation = None;
        let mut found = find(&Tree::InsertStmt(Box::new(statement)));
        found.writes = 0;
        found
    }

    fn look_at_values(&mut self) -> Result<()> {
        let given = self.columns();
        let width = self
            .values()
            .and_then(|rows| rows.first())
            .map_or(0, |row| items(row).len());
        let given: Vec<String> = given.into_iter().take(width.max(1)).collect();
        let mut rows = self.values().cloned().unwrap_or_default();
        for row in &mut rows {
            let Some(Tree::List(list)) = &mut row.node else {
                continue;
            };
            for (item, name) in list.items.iter_mut().zip(&given) {
                if self.ignores(name) {
                    item.node = Some(Tree::SetToDefault(Box::default()));
                }
                self.look_at_value(item, name)?;
            }
        }
        if self.overrides_user_values() {
            // What is given now must not be.
            self.statement.r#override = OverridingKind::OverridingSystemValue as i32;
        }
        let missing: Vec<Column> = self
            .table
            .columns
            .iter()
            .filter(|column| !given.contains(&column.name))
            .cloned()
            .collect();
        for column in missing {
            self.add_default(&column, &given, &mut rows)?;
        }
        if let Some(values) = self.values() {
            *values = rows;
        }
        if self.needs.len() > MOST_NEEDS {
            self.must_ship("it has very many values that differ");
        }
        Ok(())
    }

    /// Evaluates one value first, if it differs.
    fn look_at_value(&mut self, item: &mut protobuf::Node, name: &str) -> Result<()> {
        if matches!(item.node, Some(Tree::SetToDefault(_))) {
            let column = self.table.column(name).cloned().unwrap_or_default();
            if let Default::Open { text, sequences } = default_of(self.cx, &column)? {
                self.need(item, text, sequences);
                self.override_identity(&column);
            }
            return Ok(());
        }
        let mut found = find(item);
        forgive_sequences(&mut found)?;
        if self.cx.differs(&found)?.is_none() {
            return Ok(());
        }
        let text = super::parts::expression(item);
        match text.filter(|_| !found.has_parameters && !found.has_queries && found.open.is_none()) {
            Some(text) => {
                let sequences = sequences_of(&found)?;
                self.need(item, text, sequences);
            }
            None => {
                self.sequences
                    .extend(sequences_of(&self.cx.with_views(&found))?);
                self.must_ship(
                    found
                        .open
                        .unwrap_or("a value differs, and depends on more than itself"),
                );
            }
        }
        Ok(())
    }

    fn need(&mut self, item: &mut protobuf::Node, text: String, sequences: Vec<String>) {
        *item = hole(self.needs.len());
        self.needs.push(text);
        self.sequences.extend(sequences);
        self.is_changed = true;
    }

    fn overrides_user_values(&self) -> bool {
        self.statement.r#override == OverridingKind::OverridingUserValue as i32
    }

    /// True if what is given for a column is not used.
    fn ignores(&self, name: &str) -> bool {
        let column = self.table.column(name);
        self.overrides_user_values() && column.is_some_and(|column| !column.identity.is_empty())
    }

    fn override_identity(&mut self, column: &Column) {
        if column.identity == "a" && !self.overrides_user_values() {
            self.statement.r#override = OverridingKind::OverridingSystemValue as i32;
        }
    }

    /// Gives every row a value for a column that it has none for.
    fn add_default(
        &mut self,
        column: &Column,
        given: &[String],
        rows: &mut [protobuf::Node],
    ) -> Result<()> {
        let Default::Open { text, sequences } = default_of(self.cx, column)? else {
            return Ok(());
        };
        if self.statement.cols.is_empty() {
            self.statement.cols = given.iter().map(|name| target(name)).collect();
        }
        self.statement.cols.push(target(&column.name));
        for row in rows {
            let Some(Tree::List(list)) = &mut row.node else {
                continue;
            };
            let mut item = hole(0);
            self.need(&mut item, text.clone(), sequences.clone());
            list.items.push(item);
        }
        self.override_identity(column);
        Ok(())
    }

    /// The keys of its rows, if all are known.
    fn keys(&mut self) -> Option<Vec<KeyClaim>> {
        if self.table.key.is_empty() {
            // Rows that nobody can mean conflict with nothing but the table.
            return Some(Vec::new());
        }
        let columns = self.columns();
        let table = self.table;
        let rows = self.values()?;
        if rows.len() > MOST_KEYS {
            return None;
        }
        let value = |row: &protobuf::Node, name: &str| -> Option<Given> {
            let at = columns.iter().position(|column| column == name)?;
            value_of(items(row).get(at)?)
        };
        rows.iter()
            .map(|row| key(table, Mode::Exclusive, |name| value(row, name)))
            .collect()
    }

    fn finish(mut self) -> Result<Plan> {
        let conflict = self.statement.on_conflict_clause.clone();
        let updates = conflict
            .as_ref()
            .is_some_and(|clause| clause.action() == OnConflictAction::OnconflictUpdate);
        let text = match self.is_changed && self.why.is_none() {
            true => deparse(&self.statement),
            false => Some(self.held.text.clone()),
        };
        if text.is_none() {
            self.must_ship("the parser cannot write it down again");
        }
        let text = text.unwrap_or_else(|| self.held.text.clone());
        let mut write = Write::new(&text, Claims::default());
        write.sequences = std::mem::take(&mut self.sequences);
        write.sequences.sort();
        write.sequences.dedup();
        let keys = self.keys();
        if let Some(why) = self.why {
            let sets_key = conflict.iter().flat_map(|clause| &clause.target_list).any(|target| {
                matches!(&target.node, Some(Tree::ResTarget(target)) if self.table.key.contains(&target.name))
            });
            if updates && (self.table.key.is_empty() || sets_key) {
                return Err(cannot_ship(
                    self.table,
                    Some(why),
                    "It changes rows without a key, or their keys.",
                ));
            }
            let changed = conflict
                .iter()
                .flat_map(|clause| names(&clause.target_list));
            check_shippable(self.table, why, &changed.collect::<Vec<_>>())?;
            let ship = Ship::insert(self.table, updates);
            let relation = self.statement.relation.clone().unwrap_or_default();
            let called = relation
                .alias
                .map_or(relation.relname, |alias| alias.aliasname);
            let called = proxy::core::settings::quote_identifier(&called);
            let text = return_more(
                &self.held.text,
                self.statement.returning_clause.is_some(),
                &ship.returning(&called, self.cx.session.has_other_times),
            );
            write.template = Template::of_marked(&text);
            write.needs.clone_from(&self.held.needs);
            write.ship = Some(ship);
        } else {
            write.template = Template::of_marked(&text);
            write.needs = std::mem::take(&mut self.needs);
        }
        let keys =
            keys.filter(|keys| write.ship.is_none() || keys.iter().all(KeyClaim::needs_nothing));
        claims::claim(self.cx, self.table, Action::Insert, keys, &mut write);
        if updates {
            // What is there already may be what somebody else claims.
            let columns: Vec<String> = self
                .table
                .columns
                .iter()
                .map(|column| column.name.clone())
                .collect();
            let keys = write.keys.clone();
            let keys = (!keys.is_empty()).then_some(keys);
            let changed = conflict.map_or(columns, |clause| names(&clause.target_list));
            claims::claim(
                self.cx,
                self.table,
                Action::Update(&changed),
                keys,
                &mut write,
            );
        }
        if write.ship.is_none() {
            let rest = self.rest_with_values();
            if let Some(name) = claims::claim_reads(self.cx, &rest, &mut write)? {
                return Ok(Plan::Unknown(name));
            }
        }
        Ok(Plan::Write(Box::new(write)))
    }

    /// All that it reads.
    fn rest_with_values(&self) -> Found {
        let mut statement = self.statement.clone();
        statement.relation = None;
        find(&Tree::InsertStmt(Box::new(statement)))
    }
}

fn names(targets: &[protobuf::Node]) -> Vec<String> {
    let names = targets.iter().filter_map(|target| match &target.node {
        Some(Tree::ResTarget(target)) => Some(target.name.clone()),
        _ => None,
    });
    names.collect()
}

fn items(row: &protobuf::Node) -> &[protobuf::Node] {
    match &row.node {
        Some(Tree::List(list)) => &list.items,
        _ => &[],
    }
}

fn target(name: &str) -> protobuf::Node {
    let target = protobuf::ResTarget {
        name: name.to_owned(),
        location: -1,
        ..protobuf::ResTarget::default()
    };
    protobuf::Node {
        node: Some(Tree::ResTarget(Box::new(target))),
    }
}

fn deparse(statement: &protobuf::InsertStmt) -> Option<String> {
    let tree = Tree::InsertStmt(Box::new(statement.clone()));
    tree.deparse(pg_query::DeparseOptions::default()).ok()
}
