//! From a text to what is done with each of its statements.

use std::collections::HashSet;

use pg_query::protobuf::{self, TransactionStmtKind, VariableSetKind, node::Node as Tree};
use protocol::frame::Refusal;

use super::calls;
use super::claims::{Where, lock_rows};
use super::facts::Table;
use super::find::{Call, Found, Named, USES_TIME, find};
use super::{Facts, Harmless, Result, Write, change, copy, definition, insert, parts, unmirrored};
use crate::core::class::{Claims, Class, Mode};

/// What a session is like, as far as its statements depend on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Session {
    /// Where names without a schema are looked for.
    pub search_path: Vec<String>,
    /// Its temporary tables, views and sequences, as far as they are what their names mean.
    pub temporary: HashSet<String>,
    /// `standard_conforming_strings` is off: PostgreSQL takes texts for other statements than the parser here does.
    pub has_backslashes: bool,
    /// `DateStyle` is not ISO: what is written as a time may be read as another one.
    pub has_other_times: bool,
    /// Its transaction sees what was there when it began, and not what the other member will see.
    pub has_snapshot: bool,
}

/// A statement that only moves its transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// `BEGIN`; whether its transaction sees what was there when it began.
    Begin {
        /// `REPEATABLE READ` or `SERIALIZABLE`.
        has_snapshot: bool,
        /// It says nothing else.
        is_plain: bool,
    },
    /// `COMMIT`.
    Commit,
    /// `ROLLBACK`.
    Rollback,
    /// `SAVEPOINT`.
    Savepoint(String),
    /// `ROLLBACK TO SAVEPOINT`.
    RollbackTo(String),
    /// `RELEASE SAVEPOINT`.
    Release(String),
}

/// What is done with a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// The primary executes it as it is, and nobody else does.
    Alone {
        /// The session's settings may be others after it.
        sets: bool,
        /// Its temporary relations may be others after it.
        creates: bool,
    },
    /// It moves the transaction.
    Step(Step),
    /// It is mirrored.
    Write(Box<Write>),
    /// It names a relation that is not known: the catalog must be read again.
    Unknown(String),
    /// It is answered with this.
    Refused(Box<Refusal>),
}

impl Plan {
    pub(super) fn alone() -> Plan {
        Plan::Alone {
            sets: false,
            creates: false,
        }
    }

    /// The same of what makes temporary relations, or changes them.
    pub(super) fn creates() -> Plan {
        Plan::Alone {
            sets: false,
            creates: true,
        }
    }

    fn sets() -> Plan {
        Plan::Alone {
            sets: true,
            creates: false,
        }
    }
}

/// What planning goes by.
pub(super) struct Context<'a> {
    pub facts: &'a Facts,
    pub session: &'a Session,
    pub harmless: &'a Harmless,
    /// A parameter has a value that may mean another time on the other member.
    pub ships: bool,
}

/// Why what each member has for itself is not determined.
const OWN: &str = "it reads what each member has for itself";

/// What a name means.
pub(super) enum Meaning<'a> {
    Temporary,
    System,
    Table(&'a Table),
    Unknown,
}

impl<'a> Context<'a> {
    /// What a relation's name means.
    pub fn meaning(&self, schema: &str, name: &str) -> Meaning<'a> {
        if schema == "pg_temp" || schema.is_empty() && self.session.temporary.contains(name) {
            return Meaning::Temporary;
        }
        if matches!(schema, "pg_catalog" | "information_schema") {
            return Meaning::System;
        }
        if !schema.is_empty() {
            return self.within(schema, name);
        }
        // PostgreSQL looks there first, unless the path says when.
        let path = self.session.search_path.iter().map(String::as_str);
        let is_named = path.clone().any(|schema| schema == "pg_catalog");
        let first = (!is_named).then_some("pg_catalog");
        let mut meanings = first
            .into_iter()
            .chain(path)
            .map(|schema| self.within(schema, name));
        let found = meanings.find(|meaning| !matches!(meaning, Meaning::Unknown));
        found.unwrap_or(Meaning::Unknown)
    }

    /// What a name means in a schema. One that begins with `pg_` may be anybody's.
    fn within(&self, schema: &str, name: &str) -> Meaning<'a> {
        if schema == "pg_catalog" && self.facts.system.contains(name) {
            return Meaning::System;
        }
        let table = self.facts.table(schema, name);
        table.map_or(Meaning::Unknown, Meaning::Table)
    }

    /// What was found, and what the views do that it reads.
    pub fn with_views(&self, found: &Found) -> Found {
        let mut all = found.clone();
        let mut seen = HashSet::new();
        let mut at = 0;
        while let Some(one) = all.relations.get(at).cloned() {
            at += 1;
            if let Meaning::Table(table) = self.meaning(&one.schema, &one.name)
                && let Some(definition) = &table.definition
                && seen.insert(table.class())
            {
                match parts::one(definition) {
                    Ok(Some(query)) => all.add_view(find(&query)),
                    _ => all.open("it reads a view that the mirror's parser does not understand"),
                }
            }
        }
        all
    }

    /// Why two members need not read the same from a relation, if so; what a view does is looked at by itself.
    fn is_private(&self, one: &Named) -> Option<&'static str> {
        if one.is_temporary {
            return Some(OWN);
        }
        match self.meaning(&one.schema, &one.name) {
            Meaning::Temporary | Meaning::System => Some(OWN),
            Meaning::Table(table) if table.has_row_security => {
                Some("it reads a table of which it depends on the reader which rows there are")
            }
            Meaning::Table(table) if table.is_unlogged => {
                Some("it reads an unlogged table, which a crash empties on one member")
            }
            Meaning::Table(table) => match (table.kind.as_str(), &table.definition) {
                ("m" | "f", _) => Some(
                    "it reads a materialized view or a foreign table, which each member has for itself",
                ),
                ("v", None) => Some("it reads a view that is not looked into"),
                _ => None,
            },
            Meaning::Unknown => None,
        }
    }

    /// Why not all members would do the same by what was found, if so; functions that cannot be mirrored are refused.
    pub fn differs(&self, found: &Found) -> Result<Option<&'static str>> {
        let found = &self.with_views(found);
        let mut open = found.open;
        for call in &found.calls {
            match calls::judge(call, self.facts, self.harmless) {
                calls::Judged::Same => {}
                calls::Judged::Constant | calls::Judged::Differs => {
                    open.get_or_insert("it calls a function whose value differs");
                }
                calls::Judged::Refused(why) => return Err(refused_call(&call.name, &why)),
            }
        }
        if !found.value_functions.is_empty() {
            open.get_or_insert(USES_TIME);
        }
        Ok(open.or_else(|| found.relations.iter().find_map(|one| self.is_private(one))))
    }
}

pub(super) fn refused_call(name: &str, why: &str) -> Box<Refusal> {
    let hint = format!(
        "If it does the same on every database and changes nothing else, name it in harmless.functions = [\"{name}\"] of the \
         mirror's configuration."
    );
    unmirrored(format!("function {name} cannot be mirrored"), why, hint)
}

/// What is done with each statement of `text`, in order, with its own text. `ships`: send rows in place of statements wherever that
/// can be done, because a parameter's value may mean another time on the other member.
pub fn plan(
    text: &str,
    facts: &Facts,
    session: &Session,
    harmless: &Harmless,
    ships: bool,
) -> Vec<(String, Plan)> {
    let cx = Context {
        facts,
        session,
        harmless,
        ships,
    };
    let sources = match parts::split(text) {
        Ok(sources) => sources,
        Err(message) => {
            let refusal = Refusal::error("42601", message)
                .detail("The mirror's parser does not understand the statement.");
            return vec![(text.to_owned(), Plan::Refused(Box::new(refusal)))];
        }
    };
    sources
        .into_iter()
        .map(|(source, node)| {
            let plan = plan_one(&cx, &source, &node);
            let plan = plan.unwrap_or_else(Plan::Refused);
            (source, plan)
        })
        .collect()
}

fn plan_one(cx: &Context<'_>, text: &str, node: &Tree) -> Result<Plan> {
    let is_of_session = matches!(
        node,
        Tree::TransactionStmt(_) | Tree::VariableSetStmt(_) | Tree::VariableShowStmt(_)
    );
    if cx.session.has_backslashes && !is_of_session {
        return Err(unmirrored(
            "no statement is executed while standard_conforming_strings is off",
            "A backslash in a string means something else then, and the mirror could take a statement for another one.",
            "SET standard_conforming_strings = on.",
        ));
    }
    let plan = match node {
        Tree::InsertStmt(statement) => insert::plan(cx, text, statement)?,
        Tree::UpdateStmt(_) | Tree::DeleteStmt(_) | Tree::MergeStmt(_) => {
            change::plan(cx, text, node)?
        }
        Tree::SelectStmt(select) => plan_select(cx, text, select, node)?,
        Tree::CopyStmt(copy) => copy::plan(cx, text, copy)?,
        Tree::TransactionStmt(statement) => Plan::Step(step(statement)?),
        Tree::VariableSetStmt(set) => plan_set(set)?,
        Tree::ExplainStmt(explain) => plan_explain(cx, explain, node)?,
        Tree::PrepareStmt(prepare) => plan_prepare(cx, text, prepare)?,
        Tree::DeclareCursorStmt(declare) => plan_declare(cx, text, declare)?,
        Tree::VariableShowStmt(_)
        | Tree::CheckPointStmt(_)
        | Tree::ListenStmt(_)
        | Tree::UnlistenStmt(_)
        | Tree::NotifyStmt(_)
        | Tree::DeallocateStmt(_)
        | Tree::ExecuteStmt(_)
        | Tree::ClosePortalStmt(_)
        | Tree::FetchStmt(_)
        | Tree::VacuumStmt(_) => Plan::alone(),
        // What the other member checks, it must check when the primary does.
        Tree::ConstraintsSetStmt(_) if !cx.session.has_snapshot => constraints(text, node),
        Tree::ConstraintsSetStmt(_) => Plan::alone(),
        Tree::DiscardStmt(_) => Plan::Alone {
            sets: true,
            creates: true,
        },
        other => definition::plan(cx, text, other)?,
    };
    if let Plan::Write(write) = &plan
        && cx.session.has_snapshot
        && write.is_logged
    {
        return Err(unmirrored(
            "a transaction above READ COMMITTED cannot write through the mirror",
            "It sees what was there when it began, and the other member would see what is there when it executes it.",
            "Use READ COMMITTED for transactions that write; the mirror lets those that conflict run one after the other.",
        ));
    }
    Ok(plan)
}

/// `SET CONSTRAINTS`, written as [`super::is_constraints`] knows it.
fn constraints(text: &str, node: &Tree) -> Plan {
    let plain = node.deparse(pg_query::DeparseOptions::default());
    let text = plain.unwrap_or_else(|_| text.to_owned());
    Plan::Write(Box::new(Write::new(&text, Claims::default())))
}

fn step(statement: &protobuf::TransactionStmt) -> Result<Step> {
    if statement.chain {
        let hint = "Send COMMIT or ROLLBACK, and then BEGIN.";
        return Err(unmirrored(
            "AND CHAIN cannot be mirrored",
            "The mirror has a transaction end by itself.",
            hint,
        ));
    }
    let name = statement.savepoint_name.clone();
    Ok(match statement.kind() {
        TransactionStmtKind::TransStmtBegin | TransactionStmtKind::TransStmtStart => Step::Begin {
            has_snapshot: statement.options.iter().any(has_snapshot),
            is_plain: statement.options.is_empty(),
        },
        TransactionStmtKind::TransStmtCommit => Step::Commit,
        TransactionStmtKind::TransStmtRollback => Step::Rollback,
        TransactionStmtKind::TransStmtSavepoint => Step::Savepoint(name),
        TransactionStmtKind::TransStmtRollbackTo => Step::RollbackTo(name),
        TransactionStmtKind::TransStmtRelease => Step::Release(name),
        _ => {
            return Err(unmirrored(
                "two-phase commit cannot be mirrored",
                "PREPARE TRANSACTION leaves the outcome of a transaction to somebody else.",
                "Use COMMIT.",
            ));
        }
    })
}

fn has_snapshot(option: &protobuf::Node) -> bool {
    let Some(Tree::DefElem(element)) = &option.node else {
        return false;
    };
    let text = serde_json::to_string(&element.arg).unwrap_or_default();
    element.defname == "transaction_isolation"
        && (text.contains("repeatable read") || text.contains("serializable"))
}

/// Settings that change what a value looks like as text, or what a text means, in a way that loses something.
fn plan_set(set: &protobuf::VariableSetStmt) -> Result<Plan> {
    let name = set.name.to_ascii_lowercase();
    let value = serde_json::to_string(&set.args)
        .unwrap_or_default()
        .to_ascii_lowercase();
    let sets = matches!(
        set.kind(),
        VariableSetKind::VarSetValue | VariableSetKind::VarSetMulti
    );
    let refused = match name.as_str() {
        "default_transaction_isolation"
        | "transaction_isolation"
        | "transaction"
        | "session characteristics" => {
            value.contains("repeatable read") || value.contains("serializable")
        }
        "session_replication_role" | "extra_float_digits" => {
            name == "session_replication_role"
                || value.contains("\"ival\":-")
                || value.contains("\"ival\":0")
        }
        "standard_conforming_strings" => {
            !matches!(first_value(set).as_str(), "on" | "true" | "yes" | "1")
        }
        "client_encoding" => !is_utf8(&first_value(set)),
        _ => false,
    };
    if sets && refused {
        let what = format!("{name} cannot have this value in a session of the mirror");
        let detail = "Statements would mean something else on the other member, or lose something on the way there.";
        return Err(unmirrored(what, detail, "Leave it as it is."));
    }
    Ok(Plan::sets())
}

/// What a setting is set to, in lower case.
fn first_value(set: &protobuf::VariableSetStmt) -> String {
    use protobuf::a_const::Val;
    let value = set.args.first().and_then(|value| value.node.as_ref());
    let value = match value {
        Some(Tree::AConst(constant)) => constant.val.as_ref(),
        _ => None,
    };
    match value {
        Some(Val::Sval(text)) => text.sval.to_ascii_lowercase(),
        Some(Val::Ival(number)) => number.ival.to_string(),
        _ => String::new(),
    }
}

/// True if an encoding is UTF-8, by any of its names.
fn is_utf8(name: &str) -> bool {
    let letters: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    matches!(letters.as_str(), "utf8" | "unicode")
}

fn plan_explain(cx: &Context<'_>, explain: &protobuf::ExplainStmt, node: &Tree) -> Result<Plan> {
    let executes = explain.options.iter().any(|option| {
        matches!(&option.node, Some(Tree::DefElem(element)) if element.defname == "analyze")
    });
    let query = explain.query.as_ref().and_then(|query| query.node.as_ref());
    // Of what is executed by name, or by a cursor, this was looked at when it was made.
    let is_read = match query {
        Some(Tree::SelectStmt(select)) => select.into_clause.is_none(),
        other => matches!(
            other,
            Some(Tree::ExecuteStmt(_) | Tree::DeclareCursorStmt(_))
        ),
    };
    if executes && !(is_read && is_read_only(cx, &find(node))) {
        let detail = "EXPLAIN ANALYZE executes the statement.";
        return Err(unmirrored(
            "EXPLAIN ANALYZE of this cannot be mirrored",
            detail,
            "Use EXPLAIN without ANALYZE.",
        ));
    }
    Ok(Plan::alone())
}

fn plan_prepare(cx: &Context<'_>, text: &str, prepare: &protobuf::PrepareStmt) -> Result<Plan> {
    let query = prepare.query.as_ref().and_then(|query| query.node.as_ref());
    let Some(query @ Tree::SelectStmt(select)) = query else {
        let hint = "Prepare it by the protocol, as drivers do.";
        return Err(unmirrored(
            "PREPARE of this cannot be mirrored",
            "It may write.",
            hint,
        ));
    };
    match plan_select(cx, text, select, query)? {
        alone @ Plan::Alone { .. } => Ok(alone),
        _ => {
            let hint = "Prepare it by the protocol, as drivers do.";
            Err(unmirrored(
                "PREPARE of this cannot be mirrored",
                "It may write or lock rows.",
                hint,
            ))
        }
    }
}

fn plan_declare(
    cx: &Context<'_>,
    text: &str,
    declare: &protobuf::DeclareCursorStmt,
) -> Result<Plan> {
    let query = declare.query.as_ref().and_then(|query| query.node.as_ref());
    match query {
        Some(query @ Tree::SelectStmt(select)) => plan_select(cx, text, select, query),
        _ => Ok(Plan::alone()),
    }
}

/// True if functions that are called within a read, or within the views that it reads, may run on the primary alone.
fn read_only(cx: &Context<'_>, found: &Found) -> Result<()> {
    for call in &cx.with_views(found).calls {
        calls::reads_only(call, cx.facts, cx.harmless)
            .map_err(|why| refused_call(&call.name, &why))?;
    }
    Ok(())
}

/// True if something has no effect at all that the other member must have, too.
pub(super) fn is_read_only(cx: &Context<'_>, found: &Found) -> bool {
    let advances = |call: &Call| matches!(call.name.as_str(), "nextval" | "setval");
    found.writes == 0
        && read_only(cx, found).is_ok()
        && !cx.with_views(found).calls.iter().any(advances)
}

/// What writes, with `own` of its parts, to what only the primary has, or makes that: it must do nothing else that the other member
/// must do, too.
pub(super) fn private(cx: &Context<'_>, text: &str, node: &Tree, own: usize) -> Result<Plan> {
    let found = cx.with_views(&find(node));
    let sets_sequence = found.calls.iter().any(|call| call.name == "setval");
    if found.writes > own || sets_sequence {
        return Err(unmirrored(
            "this statement cannot be mirrored",
            "It writes to something temporary, which only the primary has, and changes other things as well.",
            "Use several statements.",
        ));
    }
    read_only(cx, &found)?;
    let mut write = Write::new(text, Claims::default());
    write.is_logged = false;
    write.sequences = sequences_of(&found)?;
    if !write.sequences.is_empty() {
        return Ok(Plan::Write(Box::new(write)));
    }
    let sets = found.calls.iter().any(|call| call.name == "set_config");
    Ok(if sets { Plan::sets() } else { Plan::alone() })
}

/// The same of what makes something temporary, or changes what there is of it.
pub(super) fn creates(cx: &Context<'_>, text: &str, node: &Tree) -> Result<Plan> {
    match private(cx, text, node, 0)? {
        Plan::Alone { sets, .. } => Ok(Plan::Alone {
            sets,
            creates: true,
        }),
        _ => Err(unmirrored(
            "this statement cannot be mirrored",
            "It advances a sequence, and makes or changes something temporary, which only the primary has.",
            "Create the temporary table first, and fill it by INSERT.",
        )),
    }
}

fn plan_select(
    cx: &Context<'_>,
    text: &str,
    select: &protobuf::SelectStmt,
    node: &Tree,
) -> Result<Plan> {
    if select.into_clause.is_some() {
        return definition::plan_into(cx, text, select);
    }
    let found = cx.with_views(&find(node));
    if found.writes > 0 {
        return change::plan(cx, text, node);
    }
    let sets_sequence = found.calls.iter().any(|call| call.name == "setval");
    if sets_sequence {
        if let Some(why) = cx.differs_but(&found, "setval")? {
            let hint = "Use constants.";
            return Err(unmirrored(
                "this call of setval cannot be mirrored",
                format!("It is not determined: {why}."),
                hint,
            ));
        }
        let claims = Claims::default().with(Class::Database, Mode::Exclusive);
        return Ok(Plan::Write(Box::new(Write::new(text, claims))));
    }
    read_only(cx, &found)?;
    let sequences = sequences_of(&found)?;
    let mut write = Write::new(text, Claims::default());
    write.is_logged = false;
    write.sequences = sequences;
    if found.locks_rows {
        let conditions = Where::of_select(select);
        lock_rows(cx, &found, select, &conditions, &mut write)?;
    }
    let sets = found.calls.iter().any(|call| call.name == "set_config");
    if write.sequences.is_empty() && write.claims.is_empty() && write.keys.is_empty() {
        return Ok(if sets { Plan::sets() } else { Plan::alone() });
    }
    Ok(Plan::Write(Box::new(write)))
}

impl Context<'_> {
    /// As [`Context::differs`], but for one function.
    fn differs_but(&self, found: &Found, name: &str) -> Result<Option<&'static str>> {
        let calls = found
            .calls
            .iter()
            .filter(|call| call.name != name)
            .cloned()
            .collect();
        self.differs(&Found {
            calls,
            open: found.open,
            relations: found.relations.clone(),
            value_functions: found.value_functions.clone(),
            ..Found::default()
        })
    }
}

/// The sequences that calls of `nextval` advance.
pub(super) fn sequences_of(found: &Found) -> Result<Vec<String>> {
    let mut sequences = Vec::new();
    for call in found.calls.iter().filter(|call| call.name == "nextval") {
        match &call.first {
            Some(name) => sequences.push(name.clone()),
            None => {
                let hint = "Name the sequence by a constant: nextval('s').";
                let detail = "Which sequence it advances is not known before it is executed.";
                return Err(unmirrored(
                    "this call of nextval cannot be mirrored",
                    detail,
                    hint,
                ));
            }
        }
    }
    sequences.sort();
    sequences.dedup();
    Ok(sequences)
}
