//! Statements that define things: both members execute them as they are, while nobody else writes.

use pg_query::protobuf::{self, AlterTableType, ObjectType, node::Node as Tree};

use super::change::hold_constants;
use super::find::{Found, Named, find};
use super::plan::{Context, Meaning, Plan, creates};
use super::template::Template;
use super::{Result, Write, parts, roles, unmirrored};
use crate::core::class::{Claims, Class, Mode};

fn everything() -> Claims {
    Claims::default().with(Class::Database, Mode::Exclusive)
}

/// Both execute it as it is, and what is known of the catalog is read again.
pub fn definition(text: &str) -> Plan {
    let mut write = Write::new(text, everything());
    write.changes_catalog = true;
    Plan::Write(Box::new(write))
}

/// The same of a statement about what is there, unless that is temporary: then only the primary has it.
fn shared(cx: &Context<'_>, text: &str, node: &Tree) -> Result<Plan> {
    let found = find(node);
    match found
        .relations
        .iter()
        .filter(|one| is_there_alone(cx, one))
        .count()
    {
        0 => Ok(definition(text)),
        all if all == found.relations.len() => creates(cx, text, node),
        _ => Err(mixed("this statement", "it names")),
    }
}

/// The same of what makes `made`, which nothing is called yet, and may name others.
fn makes(
    cx: &Context<'_>,
    text: &str,
    node: &Tree,
    made: Option<&protobuf::RangeVar>,
) -> Result<Plan> {
    check_logged(made)?;
    let mut others = find(node).relations;
    let is_made = |one: &Named| {
        made.is_some_and(|made| one.schema == made.schemaname && one.name == made.relname)
    };
    if let Some(at) = others.iter().position(is_made) {
        others.remove(at);
    }
    match others.iter().any(|one| is_there_alone(cx, one)) {
        false => Ok(definition(text)),
        true => Err(mixed("this statement", "it names")),
    }
}

/// True if only the primary has a relation.
fn is_there_alone(cx: &Context<'_>, one: &Named) -> bool {
    one.is_temporary || matches!(cx.meaning(&one.schema, &one.name), Meaning::Temporary)
}

fn mixed(statement: &str, names: &str) -> Box<protocol::frame::Refusal> {
    unmirrored(
        format!("{statement} cannot be mirrored"),
        format!("Some of what {names} is temporary, which only the primary has."),
        "Use one statement for what is temporary, and another for the rest.",
    )
}

/// A crash empties an unlogged table, on one member only, and nothing tells the other.
fn check_logged(relation: Option<&protobuf::RangeVar>) -> Result<()> {
    match relation {
        Some(relation) if relation.relpersistence == "u" => Err(unlogged()),
        _ => Ok(()),
    }
}

fn unlogged() -> Box<protocol::frame::Refusal> {
    unmirrored(
        "what is unlogged cannot be mirrored",
        "A server that crashes empties it, and the other member keeps it.",
        "Leave UNLOGGED out.",
    )
}

/// A view of what is temporary is so by itself.
fn reads_temporary(cx: &Context<'_>, view: &protobuf::ViewStmt) -> bool {
    let found = find(&view.query);
    found.relations.iter().any(|one| is_there_alone(cx, one))
}

/// True if a comment is on something temporary, or a column of it.
fn comments_on_temporary(cx: &Context<'_>, comment: &protobuf::CommentStmt) -> bool {
    let object = comment.object.as_ref().and_then(|one| one.node.as_ref());
    let Some(Tree::List(list)) = object else {
        return false;
    };
    let mut names: Vec<&str> = parts::names(&list.items).collect();
    match comment.objtype() {
        ObjectType::ObjectColumn | ObjectType::ObjectTabconstraint => drop(names.pop()),
        ObjectType::ObjectTable
        | ObjectType::ObjectView
        | ObjectType::ObjectIndex
        | ObjectType::ObjectSequence => {}
        _ => return false,
    }
    let (schema, name) = match names.as_slice() {
        [name] => ("", *name),
        [.., schema, name] => (*schema, *name),
        [] => return false,
    };
    matches!(cx.meaning(schema, name), Meaning::Temporary)
}

/// Plans what is no query and no step of a transaction.
pub fn plan(cx: &Context<'_>, text: &str, node: &Tree) -> Result<Plan> {
    match node {
        Tree::CreateStmt(create) => {
            if is_temporary(cx, create.relation.as_ref()) {
                return creates(cx, text, node);
            }
            makes(cx, text, node, create.relation.as_ref())
        }
        Tree::CreateSeqStmt(create) if is_temporary(cx, create.sequence.as_ref()) => {
            creates(cx, text, node)
        }
        Tree::CreateSeqStmt(create) => makes(cx, text, node, create.sequence.as_ref()),
        Tree::ViewStmt(view)
            if is_temporary(cx, view.view.as_ref()) || reads_temporary(cx, view) =>
        {
            creates(cx, text, node)
        }
        Tree::CreateTableAsStmt(create) => plan_as(cx, text, create, node),
        Tree::CommentStmt(comment) if comments_on_temporary(cx, comment) => Ok(Plan::alone()),
        Tree::AlterTableStmt(alter) => plan_alter(cx, text, alter, node),
        Tree::IndexStmt(index) if index.concurrent => {
            Err(not_in_a_transaction("CREATE INDEX CONCURRENTLY"))
        }
        Tree::IndexStmt(index) if is_private(cx, index.relation.as_ref()) => Ok(Plan::alone()),
        Tree::DropStmt(drop) if drop.concurrent => {
            Err(not_in_a_transaction("DROP INDEX CONCURRENTLY"))
        }
        Tree::DropStmt(drop) => plan_drop(cx, text, drop),
        Tree::TruncateStmt(_) => plan_truncate(cx, text, node),
        Tree::LockStmt(_) => {
            let mut write = Write::new(text, everything());
            write.is_logged = false;
            Ok(Plan::Write(Box::new(write)))
        }
        Tree::CreateRoleStmt(role) => roles::plan(text, &role.options),
        Tree::AlterRoleStmt(role) => roles::plan(text, &role.options),
        Tree::RefreshMatViewStmt(_) => Err(unmirrored(
            "REFRESH MATERIALIZED VIEW cannot be mirrored",
            "What the view's query calls is not looked into.",
            "Use a table that is filled by INSERT ... SELECT.",
        )),
        Tree::CreateFunctionStmt(_)
        | Tree::AlterFunctionStmt(_)
        | Tree::ViewStmt(_)
        | Tree::IndexStmt(_)
        | Tree::CreateSchemaStmt(_)
        | Tree::CommentStmt(_)
        | Tree::GrantRoleStmt(_)
        | Tree::AlterRoleSetStmt(_)
        | Tree::DropRoleStmt(_)
        | Tree::CreateEnumStmt(_)
        | Tree::AlterEnumStmt(_)
        | Tree::CreateDomainStmt(_)
        | Tree::AlterDomainStmt(_)
        | Tree::CompositeTypeStmt(_)
        | Tree::CreateRangeStmt(_)
        | Tree::AlterTypeStmt(_)
        | Tree::DefineStmt(_)
        | Tree::CreateExtensionStmt(_)
        | Tree::AlterExtensionStmt(_)
        | Tree::AlterExtensionContentsStmt(_)
        | Tree::CreateCastStmt(_)
        | Tree::CreateConversionStmt(_)
        | Tree::CreateTransformStmt(_)
        | Tree::AlterStatsStmt(_)
        | Tree::CreateOpClassStmt(_)
        | Tree::CreateOpFamilyStmt(_)
        | Tree::AlterOpFamilyStmt(_)
        | Tree::AlterOperatorStmt(_)
        | Tree::AlterCollationStmt(_)
        | Tree::AlterDefaultPrivilegesStmt(_)
        | Tree::AlterTsconfigurationStmt(_)
        | Tree::AlterTsdictionaryStmt(_)
        | Tree::DropOwnedStmt(_)
        | Tree::ReassignOwnedStmt(_) => Ok(definition(text)),
        Tree::RenameStmt(_)
        | Tree::GrantStmt(_)
        | Tree::AlterOwnerStmt(_)
        | Tree::AlterObjectSchemaStmt(_)
        | Tree::AlterObjectDependsStmt(_)
        | Tree::AlterSeqStmt(_)
        | Tree::CreateTrigStmt(_)
        | Tree::RuleStmt(_)
        | Tree::CreatePolicyStmt(_)
        | Tree::AlterPolicyStmt(_)
        | Tree::CreateStatsStmt(_) => shared(cx, text, node),
        _ => Err(refuse(node)),
    }
}

/// Statements that are never mirrored, with the reason.
fn refuse(node: &Tree) -> Box<protocol::frame::Refusal> {
    let (what, why, hint) = match node {
        Tree::DoStmt(_) => (
            "DO",
            "Nobody knows what it does.",
            "Send its statements by themselves.",
        ),
        Tree::CallStmt(_) => (
            "CALL",
            "Nobody knows what a procedure does, and it may commit by itself.",
            "Send its statements by themselves.",
        ),
        Tree::CreatedbStmt(_)
        | Tree::DropdbStmt(_)
        | Tree::AlterDatabaseStmt(_)
        | Tree::AlterDatabaseSetStmt(_) => (
            "this statement about databases",
            "A mirror has one database.",
            "Execute it on each member.",
        ),
        Tree::ReindexStmt(_) | Tree::ClusterStmt(_) => (
            "this statement",
            "It changes no rows, and each member looks after its own files.",
            "Execute it on each member.",
        ),
        _ => (
            "this statement",
            "It concerns a server and not its rows, or is not known to do the same on every server.",
            "Execute it on each member.",
        ),
    };
    unmirrored(format!("{what} cannot be mirrored"), why, hint)
}

fn not_in_a_transaction(what: &str) -> Box<protocol::frame::Refusal> {
    let hint = "Leave CONCURRENTLY out, or execute it on each member.";
    unmirrored(
        format!("{what} cannot be mirrored"),
        "It does not run in a transaction.",
        hint,
    )
}

/// True if what is made by this name is temporary.
fn is_temporary(cx: &Context<'_>, relation: Option<&protobuf::RangeVar>) -> bool {
    let is_first = |path: &[String]| path.first().is_some_and(|one| one.starts_with("pg_temp"));
    relation.is_some_and(|relation| match relation.schemaname.as_str() {
        "" => relation.relpersistence == "t" || is_first(&cx.session.search_path),
        schema => relation.relpersistence == "t" || schema.starts_with("pg_temp"),
    })
}

fn is_private(cx: &Context<'_>, relation: Option<&protobuf::RangeVar>) -> bool {
    relation.is_some_and(|relation| {
        matches!(
            cx.meaning(&relation.schemaname, &relation.relname),
            Meaning::Temporary
        )
    })
}

/// `SELECT ... INTO`.
pub fn plan_into(cx: &Context<'_>, text: &str, select: &protobuf::SelectStmt) -> Result<Plan> {
    let into = select
        .into_clause
        .as_ref()
        .and_then(|into| into.rel.as_ref());
    let node = Tree::SelectStmt(Box::new(select.clone()));
    if is_temporary(cx, into) {
        return creates(cx, text, &node);
    }
    check_logged(into)?;
    let mut query = select.clone();
    query.into_clause = None;
    plan_filled(cx, text, &node, find(&Tree::SelectStmt(Box::new(query))))
}

/// `CREATE TABLE ... AS`, `CREATE MATERIALIZED VIEW`.
fn plan_as(
    cx: &Context<'_>,
    text: &str,
    create: &protobuf::CreateTableAsStmt,
    node: &Tree,
) -> Result<Plan> {
    let into = create.into.as_ref().and_then(|into| into.rel.as_ref());
    if is_temporary(cx, into) {
        return creates(cx, text, node);
    }
    check_logged(into)?;
    let query = create.query.as_ref().and_then(|query| query.node.as_ref());
    if let Some(Tree::ExecuteStmt(_)) = query {
        return Err(unmirrored(
            "a table from EXECUTE cannot be mirrored",
            "Only the primary's session has what was prepared.",
            "Use the query itself.",
        ));
    }
    if matches!(create.objtype(), ObjectType::ObjectMatview) {
        let hint = "Use a table that is filled by INSERT ... SELECT.";
        return Err(unmirrored(
            "a materialized view cannot be mirrored",
            "Refreshing it is not.",
            hint,
        ));
    }
    plan_filled(cx, text, node, find(&create.query))
}

/// A table that is made and filled by a query.
fn plan_filled(cx: &Context<'_>, text: &str, node: &Tree, query: Found) -> Result<Plan> {
    let held = hold_constants(cx, text, node)?;
    let open = match held.needs.is_empty() {
        true => query,
        // What was found are the holes now.
        false => parts::one(&held.text)
            .ok()
            .flatten()
            .map_or_else(Found::default, |node| query_of(&node)),
    };
    if let Some(why) = cx.differs(&open)? {
        let detail = format!("It is not determined: {why}.");
        let hint = "Create the table first, and fill it by INSERT ... SELECT.";
        return Err(unmirrored(
            "this statement cannot be mirrored",
            detail,
            hint,
        ));
    }
    let mut write = Write::new(&held.text, everything());
    write.template = Template::of_marked(&held.text);
    write.needs = held.needs;
    write.changes_catalog = true;
    Ok(Plan::Write(Box::new(write)))
}

fn query_of(node: &Tree) -> Found {
    match node {
        Tree::CreateTableAsStmt(create) => find(&create.query),
        Tree::SelectStmt(select) => {
            let mut query = (**select).clone();
            query.into_clause = None;
            find(&Tree::SelectStmt(Box::new(query)))
        }
        other => find(other),
    }
}

/// `ALTER TABLE`: values that it computes for rows that are there must be the same.
fn plan_alter(
    cx: &Context<'_>,
    text: &str,
    alter: &protobuf::AlterTableStmt,
    node: &Tree,
) -> Result<Plan> {
    if is_private(cx, alter.relation.as_ref()) {
        return creates(cx, text, node);
    }
    if text.to_ascii_uppercase().contains("CONCURRENTLY") {
        return Err(not_in_a_transaction("DETACH PARTITION CONCURRENTLY"));
    }
    for command in &alter.cmds {
        let Some(Tree::AlterTableCmd(command)) = &command.node else {
            continue;
        };
        if command.subtype() == AlterTableType::AtSetUnLogged {
            return Err(unlogged());
        }
        let computes = matches!(
            command.subtype(),
            AlterTableType::AtAddColumn | AlterTableType::AtAlterColumnType
        );
        if !computes {
            continue;
        }
        let found = find(&command.def);
        let is_numbered = is_numbered(command.def.as_deref());
        let why = match is_numbered {
            true => Some("rows that are there are numbered in the order in which they are found"),
            false => match cx.differs(&found)? {
                None => domain_differs(cx, command.def.as_deref())?,
                why => why,
            },
        };
        if let Some(why) = why {
            let detail = format!("The values of rows that are there are not determined: {why}.");
            let hint =
                "Add the column without a default, fill it by UPDATE, and then set the default.";
            return Err(unmirrored(
                "this ALTER TABLE cannot be mirrored",
                detail,
                hint,
            ));
        }
    }
    Ok(definition(text))
}

/// Why the default of a column's domain is not determined, if so.
fn domain_differs(
    cx: &Context<'_>,
    definition: Option<&protobuf::Node>,
) -> Result<Option<&'static str>> {
    let Some(Tree::ColumnDef(column)) = definition.and_then(|node| node.node.as_ref()) else {
        return Ok(None);
    };
    let names = column.type_name.iter().flat_map(|name| &name.names);
    let Some(Tree::String(name)) = names.last().and_then(|name| name.node.as_ref()) else {
        return Ok(None);
    };
    let mut domains = cx.facts.domains.iter();
    let Some((_, default)) = domains.find(|(domain, _)| *domain == name.sval) else {
        return Ok(None);
    };
    let default = parts::one(&format!("SELECT {default}")).ok().flatten();
    cx.differs(&find(&default))
}

/// True if a column numbers rows.
fn is_numbered(definition: Option<&protobuf::Node>) -> bool {
    let Some(Tree::ColumnDef(column)) = definition.and_then(|node| node.node.as_ref()) else {
        return false;
    };
    let names = column.type_name.iter().flat_map(|name| &name.names);
    let is_serial = names
        .into_iter()
        .any(|name| matches!(&name.node, Some(Tree::String(name)) if name.sval.contains("serial")));
    let is_identity = column.constraints.iter().any(|one| {
        matches!(&one.node, Some(Tree::Constraint(one)) if one.contype() == protobuf::ConstrType::ConstrIdentity)
    });
    is_serial || is_identity
}

fn plan_drop(cx: &Context<'_>, text: &str, drop: &protobuf::DropStmt) -> Result<Plan> {
    if !matches!(
        drop.remove_type(),
        ObjectType::ObjectTable
            | ObjectType::ObjectView
            | ObjectType::ObjectSequence
            | ObjectType::ObjectIndex
    ) {
        return Ok(definition(text));
    }
    let mut private = 0;
    for object in &drop.objects {
        let Some(Tree::List(list)) = &object.node else {
            continue;
        };
        let names: Vec<&str> = parts::names(&list.items).collect();
        let (schema, name) = match names.as_slice() {
            [name] => ("", *name),
            [.., schema, name] => (*schema, *name),
            [] => continue,
        };
        private += usize::from(matches!(cx.meaning(schema, name), Meaning::Temporary));
    }
    match private {
        0 => Ok(definition(text)),
        all if all == drop.objects.len() => Ok(Plan::creates()),
        _ => Err(mixed("this DROP", "it drops")),
    }
}

fn plan_truncate(cx: &Context<'_>, text: &str, node: &Tree) -> Result<Plan> {
    let found = find(node);
    let is_private = |one: &Named| is_there_alone(cx, one);
    if found.relations.iter().all(is_private) {
        return Ok(Plan::alone());
    }
    if found.relations.iter().any(is_private) {
        return Err(mixed("this TRUNCATE", "it empties"));
    }
    for one in &found.relations {
        match cx.meaning(&one.schema, &one.name) {
            Meaning::Table(table) => super::claims::check_table(cx, table)?,
            Meaning::Unknown => return Ok(Plan::Unknown(one.name.clone())),
            Meaning::Temporary | Meaning::System => {}
        }
    }
    Ok(Plan::Write(Box::new(Write::new(text, everything()))))
}
