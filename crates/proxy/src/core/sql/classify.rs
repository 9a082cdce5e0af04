//! From a parse tree to what the statement does.

use pg_query::protobuf::{
    self, DiscardMode, TransactionStmtKind, VariableSetKind, node::Node as Tree,
};
use serde_json::Value;

use super::super::settings::Change;
use super::calls;
use super::kept;
use super::uses::{Found, OF_TRANSACTION, Uses, is_temporary};
use super::visit::visit;
use super::{Begin, Effect, Kind, ProxyQuery, ServerAffinity, SingleStatement, Statement};

/// What `text` does. `None` if the parser does not understand it.
pub fn classify(text: &str) -> Option<Statement> {
    let tree = pg_query::parse(text, pg_query::ParserOptions::DEFAULT)
        .ok()?
        .protobuf;
    let mut parts = Vec::with_capacity(tree.stmts.len());
    let mut proxy_query = None;
    for raw in &tree.stmts {
        let node = raw.stmt.as_ref()?.node.as_ref()?;
        proxy_query = proxy_query.or(proxy_query_of(node));
        parts.push(part(node, source(text, raw)));
    }
    // A question to us is answered by us only if nothing else is asked.
    let proxy_query = proxy_query.filter(|_| parts.len() == 1);
    Some(Statement {
        parts,
        has_parameters: false,
        hint: None,
        proxy_query,
    })
}

/// Looks at every node of a statement's tree: `see` is given each field's name and value, outer ones first.
pub fn walk(node: &impl serde::Serialize, see: &mut impl FnMut(&str, &Value)) {
    let tree = serde_json::to_value(node).unwrap_or(Value::Null);
    walk_value(&tree, see);
}

fn walk_value(value: &Value, see: &mut impl FnMut(&str, &Value)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| walk_value(item, see)),
        Value::Object(fields) => {
            for (name, inner) in fields {
                see(name, inner);
                walk_value(inner, see);
            }
        }
        _ => {}
    }
}

/// The text of one statement, of which `text` may have several.
pub fn source<'a>(text: &'a str, raw: &protobuf::RawStmt) -> &'a str {
    let start = usize::try_from(raw.stmt_location).unwrap_or(0);
    let len = usize::try_from(raw.stmt_len).unwrap_or(0);
    let end = if len == 0 { text.len() } else { start + len };
    text.get(start..end).unwrap_or(text).trim()
}

fn proxy_query_of(node: &Tree) -> Option<ProxyQuery> {
    match node {
        Tree::VariableShowStmt(show) if show.name == "understudy.version" => {
            Some(ProxyQuery::Version)
        }
        _ => None,
    }
}

fn part(node: &Tree, text: &str) -> SingleStatement {
    let mut part = SingleStatement {
        kind: Kind::Write,
        calls: Vec::new(),
        uses: Uses::default(),
        effects: Vec::new(),
        runs_unseen: runs_unseen(node),
        may_act_outside: acts_outside(node),
        has_large_objects: false,
        defines: defines(node),
        commits_async: commits_async(node),
        keeps_values: kept::keeps(node),
    };
    part.kind = kind(node, text, &mut part.effects);
    let executed = executed(node).map(|name| Effect::Execute(name.into()));
    part.effects.extend(executed);
    let mut found = Found::default();
    visit(node, &mut found);
    found.settle();
    if matches!(part.kind, Kind::Read | Kind::CopyOut) && found.writes {
        part.kind = Kind::Write;
    }
    if found.into_temporary {
        part.effects
            .push(Effect::Affinity(ServerAffinity::Temporary));
    }
    let is_certain = certain_calls(node) == found.calls.len();
    for name in &found.calls {
        part.has_large_objects |= calls::touches_large_objects(name);
        if calls::takes_advisory_lock(name) {
            part.effects
                .push(Effect::Affinity(ServerAffinity::Advisory));
        }
        if name.as_ref() == UNLOCKS_ALL && is_certain {
            part.effects
                .push(Effect::NoAffinity(ServerAffinity::Advisory));
        }
    }
    if is_certain {
        part.effects.append(&mut found.effects);
    } else if !found.effects.is_empty() {
        part.effects.push(Effect::Affinity(ServerAffinity::Unknown));
    }
    part.uses = found.uses;
    part.calls = found.calls;
    if matches!(node, Tree::NotifyStmt(_)) {
        part.calls.push(calls::NOTIFIES.into());
    }
    part
}

/// Gives all advisory locks of the session back.
const UNLOCKS_ALL: &str = "pg_advisory_unlock_all";

/// How many calls that change the session are executed for certain, and once, if the statement succeeds: they stand by themselves
/// in the list of a `SELECT` of one row. Any other may find no row, or one of several, or what it is compared with.
fn certain_calls(node: &Tree) -> usize {
    let Tree::SelectStmt(select) = node else {
        return 0;
    };
    let has_one_row = select.from_clause.is_empty()
        && select.where_clause.is_none()
        && select.group_clause.is_empty()
        && select.having_clause.is_none()
        && select.limit_count.is_none()
        && select.limit_offset.is_none()
        && select.op() == protobuf::SetOperation::SetopNone;
    let targets = select.target_list.iter().filter(|_| has_one_row);
    targets.filter(|target| is_call_for_session(target)).count()
}

fn is_call_for_session(target: &protobuf::Node) -> bool {
    let Some(Tree::ResTarget(target)) = &target.node else {
        return false;
    };
    let value = target.val.as_ref().and_then(|value| value.node.as_ref());
    let Some(Tree::FuncCall(call)) = value else {
        return false;
    };
    let name = call.funcname.last().and_then(|name| name.node.as_ref());
    matches!(name, Some(Tree::String(name)) if calls::sets(&name.sval) || name.sval == UNLOCKS_ALL)
}

fn kind(node: &Tree, text: &str, effects: &mut Vec<Effect>) -> Kind {
    match node {
        Tree::SelectStmt(_) => Kind::Read,
        Tree::ExplainStmt(explain) => kind_of_explain(explain),
        Tree::TransactionStmt(statement) => kind_of_transaction(statement),
        Tree::VariableSetStmt(set) => {
            effects.extend(changes(set, text).into_iter().map(Effect::Set));
            Kind::Session
        }
        Tree::VariableShowStmt(_) | Tree::ConstraintsSetStmt(_) | Tree::CheckPointStmt(_) => {
            Kind::Session
        }
        Tree::ListenStmt(listen) => {
            effects.push(Effect::Listen(listen.conditionname.as_str().into()));
            Kind::Session
        }
        Tree::UnlistenStmt(unlisten) => {
            let name = unlisten.conditionname.as_str();
            effects.push(Effect::Unlisten((!name.is_empty()).then(|| name.into())));
            Kind::Session
        }
        Tree::PrepareStmt(prepare) => {
            effects.push(Effect::Prepare(prepare.name.as_str().into(), text.into()));
            Kind::Session
        }
        Tree::DeallocateStmt(statement) => {
            let name = statement.name.as_str();
            let name = (!statement.isall && !name.is_empty()).then(|| name.into());
            effects.push(Effect::Deallocate(name));
            Kind::Session
        }
        Tree::DeclareCursorStmt(declare) => {
            // CURSOR_OPT_HOLD of PostgreSQL's parsenodes.h.
            if declare.options & 0x0020 != 0 {
                effects.push(Effect::Affinity(ServerAffinity::HeldCursor));
            }
            Kind::Session
        }
        Tree::ClosePortalStmt(close) => {
            if close.portalname.is_empty() {
                effects.push(Effect::NoAffinity(ServerAffinity::HeldCursor));
            }
            Kind::Session
        }
        Tree::DiscardStmt(discard) => kind_of_discard(discard.target(), effects),
        Tree::CopyStmt(copy) => kind_of_copy(copy),
        Tree::CreateStmt(create) => {
            // ON COMMIT DROP: it does not outlive its transaction.
            let is_dropped = create.oncommit == protobuf::OnCommitAction::OncommitDrop as i32;
            if !is_dropped {
                effects.extend(affinity_of(create.relation.as_ref()));
            }
            Kind::Write
        }
        Tree::CreateSeqStmt(create) => {
            effects.extend(affinity_of(create.sequence.as_ref()));
            Kind::Write
        }
        Tree::CreateForeignTableStmt(create) => {
            let table = create.base_stmt.as_ref();
            effects.extend(affinity_of(table.and_then(|table| table.relation.as_ref())));
            Kind::Write
        }
        Tree::CompositeTypeStmt(create) => {
            effects.extend(affinity_of(create.typevar.as_ref()));
            Kind::Write
        }
        Tree::ViewStmt(view) => {
            effects.extend(affinity_of(view.view.as_ref()));
            Kind::Write
        }
        Tree::LoadStmt(_) => {
            effects.push(Effect::Affinity(ServerAffinity::Unknown));
            Kind::Alone
        }
        node if is_alone(node, text) => Kind::Alone,
        _ => Kind::Write,
    }
}

/// True if it does what its text does not say: it runs code, or a statement that was prepared before.
fn runs_unseen(node: &Tree) -> bool {
    let node = innermost(node);
    matches!(
        node,
        Tree::DoStmt(_) | Tree::CallStmt(_) | Tree::LoadStmt(_)
    ) || executed(node).is_some()
}

/// The name of the prepared statement that it executes.
fn executed(node: &Tree) -> Option<&str> {
    match innermost(node) {
        Tree::ExecuteStmt(execute) => Some(&execute.name),
        _ => None,
    }
}

/// The statement that is explained or makes a table; the statement itself if it does neither.
fn innermost(node: &Tree) -> &Tree {
    let within = match node {
        Tree::ExplainStmt(explain) => inner(explain.query.as_deref()),
        Tree::CreateTableAsStmt(create) => inner(create.query.as_deref()),
        _ => None,
    };
    within.map_or(node, innermost)
}

/// True if it acts outside of the database: on a file or by a program of the server.
fn acts_outside(node: &Tree) -> bool {
    matches!(node, Tree::CopyStmt(copy) if copy.is_program || !copy.filename.is_empty())
}

/// True if it sets that commits do not wait, be it for a transaction only.
fn commits_async(node: &Tree) -> bool {
    let Tree::VariableSetStmt(set) = node else {
        return false;
    };
    let mut values = set
        .args
        .iter()
        .filter_map(|arg| constant(arg.node.as_ref()?));
    set.name == "synchronous_commit"
        && values.any(|value| {
            matches!(
                value.to_ascii_lowercase().as_str(),
                "off" | "false" | "no" | "0"
            )
        })
}

/// True if it changes what the catalog says of functions and whatever calls them.
fn defines(node: &Tree) -> bool {
    !matches!(
        node,
        Tree::SelectStmt(_)
            | Tree::InsertStmt(_)
            | Tree::UpdateStmt(_)
            | Tree::DeleteStmt(_)
            | Tree::MergeStmt(_)
            | Tree::TransactionStmt(_)
            | Tree::VariableSetStmt(_)
            | Tree::VariableShowStmt(_)
            | Tree::ConstraintsSetStmt(_)
            | Tree::CheckPointStmt(_)
            | Tree::ListenStmt(_)
            | Tree::UnlistenStmt(_)
            | Tree::NotifyStmt(_)
            | Tree::PrepareStmt(_)
            | Tree::ExecuteStmt(_)
            | Tree::DeallocateStmt(_)
            | Tree::DeclareCursorStmt(_)
            | Tree::FetchStmt(_)
            | Tree::ClosePortalStmt(_)
            | Tree::DiscardStmt(_)
            | Tree::CopyStmt(_)
            | Tree::ExplainStmt(_)
            | Tree::LockStmt(_)
            | Tree::VacuumStmt(_)
            | Tree::TruncateStmt(_)
            | Tree::CallStmt(_)
            | Tree::DoStmt(_)
            | Tree::LoadStmt(_)
    )
}

fn inner(node: Option<&protobuf::Node>) -> Option<&Tree> {
    node?.node.as_ref()
}

fn affinity_of(relation: Option<&protobuf::RangeVar>) -> Option<Effect> {
    let relation = relation?;
    let is_temporary = is_temporary(&relation.relpersistence, &relation.schemaname);
    is_temporary.then_some(Effect::Affinity(ServerAffinity::Temporary))
}

/// Statements that refuse a transaction block, at least in some form, or that may commit by themselves.
fn is_alone(node: &Tree, text: &str) -> bool {
    match node {
        Tree::IndexStmt(index) => index.concurrent,
        Tree::DropStmt(drop) => drop.concurrent,
        Tree::AlterTableStmt(_) => text.to_ascii_uppercase().contains("CONCURRENTLY"),
        Tree::VacuumStmt(_)
        | Tree::ReindexStmt(_)
        | Tree::ClusterStmt(_)
        | Tree::CreatedbStmt(_)
        | Tree::DropdbStmt(_)
        | Tree::AlterDatabaseStmt(_)
        | Tree::CreateTableSpaceStmt(_)
        | Tree::DropTableSpaceStmt(_)
        | Tree::AlterSystemStmt(_)
        | Tree::CreateSubscriptionStmt(_)
        | Tree::AlterSubscriptionStmt(_)
        | Tree::DropSubscriptionStmt(_)
        | Tree::LockStmt(_)
        | Tree::FetchStmt(_)
        | Tree::CallStmt(_)
        | Tree::DoStmt(_) => true,
        _ => false,
    }
}

fn kind_of_explain(explain: &protobuf::ExplainStmt) -> Kind {
    let executes = explain.options.iter().any(|option| {
        matches!(&option.node, Some(Tree::DefElem(element)) if element.defname == "analyze")
    });
    if executes { Kind::Write } else { Kind::Session }
}

fn kind_of_transaction(statement: &protobuf::TransactionStmt) -> Kind {
    let name = || statement.savepoint_name.as_str().into();
    let chain = statement.chain;
    match statement.kind() {
        TransactionStmtKind::TransStmtBegin | TransactionStmtKind::TransStmtStart => {
            Kind::Begin(modes(&statement.options))
        }
        TransactionStmtKind::TransStmtCommit => Kind::Commit { chain },
        TransactionStmtKind::TransStmtRollback => Kind::Rollback { chain },
        TransactionStmtKind::TransStmtSavepoint => Kind::Savepoint(name()),
        TransactionStmtKind::TransStmtRelease => Kind::Release(name()),
        TransactionStmtKind::TransStmtRollbackTo => Kind::RollbackTo(name()),
        TransactionStmtKind::TransStmtPrepare => Kind::PrepareTransaction,
        _ => Kind::Alone,
    }
}

fn modes(options: &[protobuf::Node]) -> Begin {
    let mut begin = Begin::default();
    for option in options {
        let Some(Tree::DefElem(element)) = &option.node else {
            continue;
        };
        let value = element
            .arg
            .as_ref()
            .and_then(|arg| constant(arg.node.as_ref()?));
        match element.defname.as_str() {
            "transaction_read_only" => {
                begin.read_only = value.map(|value| matches!(value.as_str(), "1" | "true"));
            }
            "transaction_isolation" => {
                begin.is_serializable = value.as_deref() == Some("serializable");
            }
            _ => {}
        }
    }
    begin
}

fn kind_of_discard(mode: DiscardMode, effects: &mut Vec<Effect>) -> Kind {
    match mode {
        DiscardMode::DiscardAll => {
            effects.push(Effect::DiscardAll);
            Kind::Alone
        }
        DiscardMode::DiscardTemp => {
            effects.push(Effect::NoAffinity(ServerAffinity::Temporary));
            Kind::Write
        }
        _ => Kind::Session,
    }
}

fn kind_of_copy(copy: &protobuf::CopyStmt) -> Kind {
    match (copy.is_from, copy.filename.is_empty() && !copy.is_program) {
        (true, true) => Kind::CopyIn,
        (false, true) => Kind::CopyOut,
        // A file or a program on the server: an effect outside of the database.
        _ => Kind::Alone,
    }
}

/// What `SET` or `RESET` changes; nothing that outlives the transaction if it is local.
fn changes(set: &protobuf::VariableSetStmt, text: &str) -> Vec<Change> {
    let name: Box<str> = set.name.to_ascii_lowercase().into();
    if set.is_local || OF_TRANSACTION.contains(&&*name) {
        return Vec::new();
    }
    match set.kind() {
        VariableSetKind::VarSetMulti if &*name == "session characteristics" => {
            let modes = set.args.iter().filter_map(|arg| arg.node.as_ref());
            modes.filter_map(default_mode).collect()
        }
        VariableSetKind::VarSetValue
        | VariableSetKind::VarSetCurrent
        | VariableSetKind::VarSetMulti => {
            let value = match set.args.as_slice() {
                [one] => one.node.as_ref().and_then(constant),
                _ => None,
            };
            vec![Change::Set {
                name,
                statement: text.into(),
                value: value.map(Into::into),
            }]
        }
        VariableSetKind::VarSetDefault | VariableSetKind::VarReset => vec![Change::Reset(name)],
        VariableSetKind::VarResetAll => vec![Change::ResetAll],
        VariableSetKind::Undefined => Vec::new(),
    }
}

/// What one mode of `SET SESSION CHARACTERISTICS AS TRANSACTION` sets.
fn default_mode(mode: &Tree) -> Option<Change> {
    let Tree::DefElem(element) = mode else {
        return None;
    };
    let value = constant(element.arg.as_ref()?.node.as_ref()?)?;
    let is_switch = element.defname != "transaction_isolation";
    let value = match value.as_str() {
        "1" | "true" if is_switch => "on",
        "0" | "false" if is_switch => "off",
        other => other,
    };
    Some(Change::to_value(
        &format!("default_{}", element.defname),
        value,
    ))
}

/// A constant, or a word that stands for one, as text.
fn constant(node: &Tree) -> Option<String> {
    use protobuf::a_const::Val;
    match node {
        Tree::AConst(constant) => match constant.val.as_ref()? {
            Val::Sval(text) => Some(text.sval.clone()),
            Val::Ival(number) => Some(number.ival.to_string()),
            Val::Fval(number) => Some(number.fval.clone()),
            Val::Boolval(truth) => Some(truth.boolval.to_string()),
            Val::Bsval(_) => None,
        },
        _ => None,
    }
}

#[cfg(test)]
#[path = "classify/tests.rs"]
mod tests;
