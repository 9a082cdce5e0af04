//! `UPDATE`, `DELETE`, `MERGE`, and whatever has one of them within.

use pg_query::protobuf::{self, node::Node as Tree};

use super::claims::{self, Action, Where};
use super::facts::Table;
use super::find::{Found, end_of_call, find, splice};
use super::plan::{Context, Meaning, Plan, private, sequences_of};
use super::rows::Ship;
use super::template::Template;
use super::{Result, Write, calls, parts, unmirrored};

/// Why rows are sent because of what a parameter has.
pub const SHIPS: &str = "a parameter may mean something else on the other member";

/// A text whose calls like `now()` have become holes, and what goes into them.
pub struct Held {
    pub text: String,
    pub needs: Vec<String>,
    pub node: Tree,
}

/// Puts holes in place of calls that have one value for the whole statement.
pub fn hold_constants(cx: &Context<'_>, text: &str, node: &Tree) -> Result<Held> {
    let found = find(node);
    let mut starts = found.value_functions.clone();
    for call in &found.calls {
        if !call.has_arguments
            && calls::judge(call, cx.facts, cx.harmless) == calls::Judged::Constant
        {
            starts.push(call.location);
        }
    }
    starts.sort_unstable();
    starts.dedup();
    let plain = Held {
        text: text.to_owned(),
        needs: Vec::new(),
        node: node.clone(),
    };
    if starts.is_empty() || Template::clashes(text) {
        return Ok(plain);
    }
    let stretches: Option<Vec<(usize, usize)>> = starts
        .iter()
        .map(|start| end_of_call(text, *start).map(|end| (*start, end)))
        .collect();
    let Some(stretches) = stretches else {
        return Ok(plain);
    };
    let needs = stretches
        .iter()
        .map(|(start, end)| text[*start..*end].to_owned())
        .collect();
    let held = splice(text, &stretches, 0);
    // A hole where the grammar wants a call cannot be filled: it is not determined then.
    match parts::one(&held) {
        Ok(Some(node)) => Ok(Held {
            text: held,
            needs,
            node,
        }),
        _ => Ok(plain),
    }
}

fn columns_of(targets: &[protobuf::Node]) -> Vec<String> {
    let names = targets.iter().filter_map(|target| match &target.node {
        Some(Tree::ResTarget(target)) => Some(target.name.clone()),
        _ => None,
    });
    names.collect()
}

/// What the statement calls its table.
fn called(relation: &protobuf::RangeVar) -> String {
    use proxy::core::settings::quote_identifier;
    match &relation.alias {
        Some(alias) => quote_identifier(&alias.aliasname),
        None => quote_identifier(&relation.relname),
    }
}

/// Adds to what a statement returns.
pub fn return_more(text: &str, has_returning: bool, more: &str) -> String {
    // A comment may be at the end.
    match has_returning {
        true => format!("{text}\n, {more}"),
        false => format!("{text}\n RETURNING {more}"),
    }
}

/// One of the changes that are looked into.
struct Change<'a> {
    relation: &'a protobuf::RangeVar,
    condition: Option<&'a protobuf::Node>,
    /// The columns that change; none for `DELETE`.
    columns: Option<Vec<String>>,
    joins: bool,
    returns: bool,
}

fn change(node: &Tree) -> Option<Change<'_>> {
    match node {
        Tree::UpdateStmt(update) => Some(Change {
            relation: update.relation.as_ref()?,
            condition: update.where_clause.as_deref(),
            columns: Some(columns_of(&update.target_list)),
            joins: !update.from_clause.is_empty(),
            returns: update.returning_clause.is_some(),
        }),
        Tree::DeleteStmt(delete) => Some(Change {
            relation: delete.relation.as_ref()?,
            condition: delete.where_clause.as_deref(),
            columns: None,
            joins: !delete.using_clause.is_empty(),
            returns: delete.returning_clause.is_some(),
        }),
        _ => None,
    }
}

/// Plans it.
pub fn plan(cx: &Context<'_>, text: &str, node: &Tree) -> Result<Plan> {
    let held = hold_constants(cx, text, node)?;
    let found = find(&held.node);
    match change(&held.node).filter(|_| found.writes == 1) {
        Some(change) => {
            let relation = change.relation;
            match cx.meaning(&relation.schemaname, &relation.relname) {
                Meaning::Temporary => private(cx, text, node, 1),
                Meaning::Table(table) => plan_change(cx, table, &held, &found, &change),
                Meaning::System => Err(claims::of_catalog()),
                Meaning::Unknown => Ok(Plan::Unknown(relation.relname.clone())),
            }
        }
        None => plan_many(cx, &held, &found),
    }
}

/// Several changes in one statement, or a `MERGE`: the statement itself, or nothing.
fn plan_many(cx: &Context<'_>, held: &Held, found: &Found) -> Result<Plan> {
    if let Some(why) = cx.differs(found)?.or(cx.ships.then_some(SHIPS)) {
        let hint = "Use several statements.";
        let what = "this statement cannot be mirrored";
        return Err(unmirrored(
            what,
            format!("It changes several things, and {why}."),
            hint,
        ));
    }
    let mut write = Write::new(&held.text, Default::default());
    write.template = Template::of_marked(&held.text);
    write.needs.clone_from(&held.needs);
    if let Some(name) = claims::claim_all(cx, found, &mut write)? {
        return Ok(Plan::Unknown(name));
    }
    for one in &found.relations {
        if let Meaning::Table(table) = cx.meaning(&one.schema, &one.name)
            && super::insert::has_open_defaults(cx, table)?
        {
            let detail = format!(
                "New rows of \"{}\" have defaults that differ.",
                table.class()
            );
            return Err(unmirrored(
                "this statement cannot be mirrored",
                detail,
                "Use several statements.",
            ));
        }
    }
    Ok(Plan::Write(Box::new(write)))
}

fn plan_change(
    cx: &Context<'_>,
    table: &Table,
    held: &Held,
    found: &Found,
    change: &Change<'_>,
) -> Result<Plan> {
    let relation = change.relation;
    claims::check_table(cx, table)?;
    let mut why = cx.differs(found)?;
    if cx.ships {
        why.get_or_insert(SHIPS);
    }
    let mut sequences = sequences_of(&cx.with_views(found))?;
    let conditions = Where::of(change.condition);
    let key = conditions.key(table, crate::core::class::Mode::Exclusive);
    let key = key.filter(|_| !change.joins).map(|key| vec![key]);
    if let Some(columns) = &change.columns {
        if change.joins {
            why.get_or_insert("a row may be joined with several, and either of them may win");
        }
        if sets_default(&held.node)
            && let Some(of_defaults) = super::insert::open_defaults(cx, table, columns)?
        {
            sequences.extend(of_defaults);
            why.get_or_insert("a default differs");
        }
        if why.is_none() && key.is_none() && may_collide(table, &held.node, columns) {
            why = Some("whether its new values collide depends on the order of rows");
        }
        if why.is_some() && columns.iter().any(|column| table.key.contains(column)) {
            return Err(cannot_ship(table, why, "It changes the primary key."));
        }
        if let Some(why) = why {
            check_shippable(table, why, columns)?;
        }
    }
    let mut write = Write::new(&held.text, Default::default());
    write.needs.clone_from(&held.needs);
    write.template = Template::of_marked(&held.text);
    sequences.sort();
    sequences.dedup();
    write.sequences = sequences;
    if let Some(why) = why {
        if table.key.is_empty() {
            return Err(cannot_ship(
                table,
                Some(why),
                "The table has no primary key.",
            ));
        }
        let ship = match &change.columns {
            Some(columns) => Ship::update(table, columns),
            None => Ship::delete(table),
        };
        let text = return_more(
            &held.text,
            change.returns,
            &ship.returning(&called(relation), cx.session.has_other_times),
        );
        write.template = Template::of_marked(&text);
        write.ship = Some(ship);
    }
    let action = match &change.columns {
        Some(columns) => Action::Update(columns),
        None => Action::Delete,
    };
    claims::claim(cx, table, action, key, &mut write);
    if write.ship.is_none() && (change.joins || found.has_queries || found.relations.len() > 1) {
        // Its own table is among them: claimed already, and no weaker.
        let mut others = find(&held.node);
        let mut is_first = true;
        others.relations.retain(|one| {
            let is_own =
                one.schema == relation.schemaname && one.name == relation.relname && is_first;
            is_first &= !is_own;
            !is_own
        });
        if let Some(name) = claims::claim_reads(cx, &others, &mut write)? {
            return Ok(Plan::Unknown(name));
        }
    }
    Ok(Plan::Write(Box::new(write)))
}

/// True if `DEFAULT` is in it.
pub fn sets_default(node: &impl serde::Serialize) -> bool {
    let text = serde_json::to_string(node).unwrap_or_default();
    text.contains("\"SetToDefault\"")
}

/// True if an `UPDATE` of several rows may fail or not by their order: each row's new values are compared with those of rows that
/// it comes to later. Rows that are sent come in the order in which it went well.
fn may_collide(table: &Table, node: &Tree, columns: &[String]) -> bool {
    let Tree::UpdateStmt(update) = node else {
        return false;
    };
    let is_unique = |name: &String| {
        let mut others = table.others.iter().flatten();
        others.any(|one| one == name || one == "*")
    };
    let is_constant = |target: &protobuf::ResTarget| {
        let value = target.val.as_ref().and_then(|value| value.node.as_ref());
        matches!(value, Some(Tree::AConst(_) | Tree::ParamRef(_)))
    };
    let computes = update.target_list.iter().any(|target| {
        matches!(&target.node, Some(Tree::ResTarget(target)) if is_unique(&target.name) && !is_constant(target))
    });
    let is_sendable = !table.key.is_empty() && !columns.iter().any(|one| table.key.contains(one));
    computes && is_sendable
}

/// True if these columns of rows can be changed to values.
pub fn check_shippable(table: &Table, why: &str, columns: &[String]) -> Result<()> {
    let mut changed = table
        .columns
        .iter()
        .filter(|one| columns.contains(&one.name));
    match changed.any(|column| column.identity == "a") {
        true => Err(cannot_ship(
            table,
            Some(why),
            "It changes an identity that is always generated.",
        )),
        false => Ok(()),
    }
}

/// Rows would have to be sent, and cannot be.
pub fn cannot_ship(
    table: &Table,
    why: Option<&str>,
    because: &str,
) -> Box<protocol::frame::Refusal> {
    let why = why.unwrap_or("its rows are not determined");
    unmirrored(
        format!(
            "this statement on table \"{}\" cannot be mirrored",
            table.class()
        ),
        format!(
            "It is not determined: {why}. Its rows cannot be sent in place of it either. {because}"
        ),
        "Add a primary key, name rows and values by constants or parameters, or use several statements.",
    )
}
