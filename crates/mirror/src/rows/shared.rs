//! Statements for which PostgreSQL fires no event trigger: those that say nothing of the database, and those of objects that a server's
//! databases share.
//!
//! ```text
//!   CREATE ROLE app PASSWORD 'x' ──▶ DO ... understudy_mirror.execute('CREATE ROLE app PASSWORD ''SCRAM-SHA-256$...''')
//! ```
//!
//! Invariant: a statement that defines something for the members is noted by an event trigger, noted by that function, or refused.

use pg_query::protobuf::{
    self, ObjectType, TransactionStmtKind as Transaction, node::Node as Tree,
};
use postgres_protocol::escape::escape_literal;
use postgres_protocol::password::scram_sha_256;
use protocol::frame::Refusal;
use protocol::scram::Verifier;

/// Words without which a text has nothing that is shared, refused, or undone within it.
const WORDS: &[&str] = &[
    "role", "user", "group", "grant", "revoke", "database", "event", "owned", "comment", "label",
    "explain", "lock", "vacuum", "cluster", "rollback", "commit", "end;", "abort", "lo_",
    "lowrite", "execute",
];

/// True if PostgreSQL fires event triggers for it.
pub fn fires(node: &Tree) -> bool {
    match node {
        Tree::SelectStmt(select) => select.into_clause.is_some(),
        Tree::InsertStmt(_)
        | Tree::UpdateStmt(_)
        | Tree::DeleteStmt(_)
        | Tree::MergeStmt(_)
        | Tree::TransactionStmt(_)
        | Tree::VariableSetStmt(_)
        | Tree::VariableShowStmt(_)
        | Tree::CopyStmt(_)
        | Tree::ExecuteStmt(_)
        | Tree::PrepareStmt(_)
        | Tree::DeallocateStmt(_)
        | Tree::DoStmt(_)
        | Tree::CallStmt(_)
        | Tree::TruncateStmt(_)
        | Tree::ExplainStmt(_)
        | Tree::LockStmt(_)
        | Tree::NotifyStmt(_)
        | Tree::ListenStmt(_)
        | Tree::UnlistenStmt(_)
        | Tree::DeclareCursorStmt(_)
        | Tree::FetchStmt(_)
        | Tree::ClosePortalStmt(_)
        | Tree::ConstraintsSetStmt(_)
        | Tree::DiscardStmt(_)
        | Tree::VacuumStmt(_)
        | Tree::ClusterStmt(_)
        | Tree::CheckPointStmt(_)
        | Tree::LoadStmt(_)
        | Tree::ReindexStmt(_) => false,
        other => !is_shared(other) && !is_of_server(other),
    }
}

/// True if it is of the server, and no part of what is mirrored.
fn is_of_server(node: &Tree) -> bool {
    match node {
        Tree::CreatedbStmt(_)
        | Tree::DropdbStmt(_)
        | Tree::AlterDatabaseRefreshCollStmt(_)
        | Tree::CreateTableSpaceStmt(_)
        | Tree::DropTableSpaceStmt(_)
        | Tree::AlterTableSpaceOptionsStmt(_)
        | Tree::AlterSystemStmt(_) => true,
        other => object_of(other) == Some(ObjectType::ObjectTablespace),
    }
}

/// True if it defines something for both members and fires no event trigger.
fn is_shared(node: &Tree) -> bool {
    match node {
        Tree::CreateRoleStmt(_)
        | Tree::AlterRoleStmt(_)
        | Tree::AlterRoleSetStmt(_)
        | Tree::DropRoleStmt(_)
        | Tree::GrantRoleStmt(_)
        | Tree::ReassignOwnedStmt(_)
        | Tree::AlterDatabaseStmt(_)
        | Tree::AlterDatabaseSetStmt(_)
        | Tree::CreateEventTrigStmt(_)
        | Tree::AlterEventTrigStmt(_) => true,
        other => matches!(
            object_of(other),
            Some(
                ObjectType::ObjectDatabase
                    | ObjectType::ObjectRole
                    | ObjectType::ObjectEventTrigger
                    | ObjectType::ObjectParameterAcl
            )
        ),
    }
}

/// The databases that a statement is of, if it is of any.
fn databases(node: &Tree) -> Vec<&str> {
    let is_of_database = object_of(node) == Some(ObjectType::ObjectDatabase);
    fn name(object: Option<&protobuf::Node>) -> &str {
        match object.and_then(|node| node.node.as_ref()) {
            Some(Tree::String(name)) => &name.sval,
            _ => "",
        }
    }
    let names = match node {
        Tree::AlterDatabaseStmt(one) => vec![one.dbname.as_str()],
        Tree::AlterDatabaseSetStmt(one) => vec![one.dbname.as_str()],
        Tree::AlterRoleSetStmt(one) => vec![one.database.as_str()],
        Tree::RenameStmt(one) if is_of_database => vec![one.subname.as_str()],
        Tree::CommentStmt(one) if is_of_database => vec![name(one.object.as_deref())],
        Tree::SecLabelStmt(one) if is_of_database => vec![name(one.object.as_deref())],
        Tree::AlterOwnerStmt(one) if is_of_database => vec![name(one.object.as_deref())],
        Tree::GrantStmt(one) if is_of_database => {
            one.objects.iter().map(|one| name(Some(one))).collect()
        }
        _ => Vec::new(),
    };
    names.into_iter().filter(|name| !name.is_empty()).collect()
}

/// True if it is of other databases, which the other server need not have.
fn is_elsewhere(node: &Tree, database: &str) -> bool {
    let databases = databases(node);
    !databases.is_empty() && !databases.contains(&database)
}

/// The kind of object that a statement which is said of any kind is of.
fn object_of(node: &Tree) -> Option<ObjectType> {
    let kind = match node {
        Tree::GrantStmt(one) => one.objtype,
        Tree::CommentStmt(one) => one.objtype,
        Tree::SecLabelStmt(one) => one.objtype,
        Tree::DropStmt(one) => one.remove_type,
        Tree::RenameStmt(one) => one.rename_type,
        Tree::AlterOwnerStmt(one) => one.object_type,
        _ => return None,
    };
    ObjectType::try_from(kind).ok()
}

/// Why a statement is not executed.
fn refused(node: &Tree) -> Option<Refusal> {
    let says = |what: &str, hint: &'static str| {
        let text = format!("the mirror does not carry {what}");
        Some(Refusal::error("0A000", text).hint(hint))
    };
    const BY_HAND: &str = "Do it at each member, in a session with synchronous_commit = local.";
    match node {
        Tree::RenameStmt(one) if one.rename_type == ObjectType::ObjectDatabase as i32 => {
            says("another name of a database", BY_HAND)
        }
        Tree::AlterEventTrigStmt(one) if matches!(one.tgenabled.as_str(), "A" | "R") => says(
            "event triggers that fire when rows are replicated",
            "They would fire twice: leave out ALWAYS and REPLICA.",
        ),
        Tree::LockStmt(lock) if lock.relations.iter().any(is_catalog) => says(
            "a lock of a system catalog, which whoever decodes commits would wait for",
            "Lock a table of your own, or use pg_advisory_xact_lock.",
        ),
        Tree::ExplainStmt(one) if makes_a_table(one) => says(
            "a table that EXPLAIN makes",
            "Explain its query, and make the table by itself.",
        ),
        Tree::CreateTableAsStmt(one) if is_of_prepared(one) => says(
            "a table that is made of a prepared statement",
            "Make the table of the query itself.",
        ),
        Tree::ClusterStmt(one) if one.relation.as_ref().is_none_or(is_in_catalog) => {
            says("CLUSTER of system catalogs, or of every table", BY_HAND)
        }
        Tree::VacuumStmt(one) if is_full(one) && reaches_catalogs(one) => {
            says("VACUUM FULL of system catalogs, or of every table", BY_HAND)
        }
        _ => None,
    }
}

/// True if it makes a table, which is not temporary, of a statement that the client's session alone knows.
fn is_of_prepared(made: &protobuf::CreateTableAsStmt) -> bool {
    let query = made.query.as_ref().and_then(|query| query.node.as_ref());
    let table = made.into.as_ref().and_then(|into| into.rel.as_ref());
    matches!(query, Some(Tree::ExecuteStmt(_))) && !is_temporary(table)
}

/// True if a table is named as a temporary one.
pub(super) fn is_temporary(relation: Option<&protobuf::RangeVar>) -> bool {
    relation.is_some_and(|one| one.relpersistence == "t" || one.schemaname.starts_with("pg_temp"))
}

fn makes_a_table(explain: &protobuf::ExplainStmt) -> bool {
    let query = explain.query.as_ref().and_then(|query| query.node.as_ref());
    matches!(query, Some(Tree::CreateTableAsStmt(_)))
}

fn is_catalog(node: &protobuf::Node) -> bool {
    matches!(&node.node, Some(Tree::RangeVar(name)) if is_in_catalog(name))
}

fn is_in_catalog(name: &protobuf::RangeVar) -> bool {
    match name.schemaname.as_str() {
        "" => name.relname.starts_with("pg_"),
        schema => schema == "pg_catalog" || schema == "pg_toast",
    }
}

fn is_full(vacuum: &protobuf::VacuumStmt) -> bool {
    vacuum.is_vacuumcmd
        && vacuum.options.iter().any(|option| {
            matches!(&option.node, Some(Tree::DefElem(one)) if one.defname.eq_ignore_ascii_case("full"))
        })
}

fn reaches_catalogs(vacuum: &protobuf::VacuumStmt) -> bool {
    let is_one = |node: &protobuf::Node| match &node.node {
        Some(Tree::VacuumRelation(one)) => one.relation.as_ref().is_some_and(is_in_catalog),
        _ => false,
    };
    vacuum.rels.is_empty() || vacuum.rels.iter().any(is_one)
}

/// A text as the member is to execute it, whose mirrored database has this name; nothing if that is the text itself.
///
/// # Errors
/// The refusal of what the mirror does not carry.
pub fn carried(text: &str, database: &str) -> Result<Option<String>, Box<Refusal>> {
    let lower = text.to_ascii_lowercase();
    if !WORDS.iter().any(|word| lower.contains(word)) {
        return Ok(None);
    }
    // PostgreSQL says what is wrong with others.
    let Ok(parsed) = pg_query::parse(text, pg_query::ParserOptions::DEFAULT) else {
        return Ok(None);
    };
    let statements = &parsed.protobuf.stmts;
    let nodes = || {
        let nodes = statements.iter().filter_map(|raw| raw.stmt.as_ref());
        nodes.filter_map(|node| node.node.as_ref())
    };
    let called = parsed.call_functions();
    if called.iter().any(|name| writes_large_objects(name)) {
        let text = "the mirror does not carry large objects";
        let refusal = Refusal::error("0A000", text).hint("Use a column of the type bytea.");
        return Err(Box::new(refusal));
    }
    let is_shared = |node: &Tree| is_shared(node) && !is_elsewhere(node, database);
    let mut here = nodes().filter(|node| !is_elsewhere(node, database));
    if let Some(refusal) = here.find_map(refused) {
        return Err(Box::new(refusal));
    }
    let defines = |node: &&Tree| fires(node) || is_shared(node);
    // Each definition of a text is found by its turn among those of its transaction.
    let first = nodes().position(|node| defines(&node));
    let mut behind = nodes().skip(first.map_or(usize::MAX, |first| first + 1));
    let defines_behind_an_end = behind.any(ends) && behind.any(|node| defines(&node));
    if defines_behind_an_end || nodes().any(goes_back) && first.is_some() {
        let text = "the mirror does not carry definitions of several transactions, or with ROLLBACK TO, in one text";
        let refusal =
            Refusal::error("0A000", text).hint("Send the statements one after the other.");
        return Err(Box::new(refusal));
    }
    if !nodes().any(&is_shared) {
        return Ok(None);
    }
    let mut all = Vec::new();
    for raw in statements {
        let start = usize::try_from(raw.stmt_location).unwrap_or(0);
        let length = usize::try_from(raw.stmt_len).unwrap_or(0);
        let rest = text.get(start..).unwrap_or_default();
        let own = match length {
            0 => rest,
            length => rest.get(..length).unwrap_or_default(),
        };
        let node = raw.stmt.as_ref().and_then(|node| node.node.as_ref());
        all.push(match node {
            Some(node) if is_shared(node) => executed(own, node)?,
            _ => own.to_owned(),
        });
    }
    Ok(Some(all.join(";")))
}

/// True if a function of this name makes or changes large objects, whose contents nobody decodes.
fn writes_large_objects(name: &str) -> bool {
    let name = name.strip_prefix("pg_catalog.").unwrap_or(name);
    matches!(
        name,
        "lo_create"
            | "lo_creat"
            | "lo_import"
            | "lo_from_bytea"
            | "lo_put"
            | "lo_truncate"
            | "lo_truncate64"
            | "lowrite"
            | "lo_unlink"
    )
}

/// True if a transaction ends by it.
fn ends(node: &Tree) -> bool {
    is_transaction(
        node,
        &[Transaction::TransStmtCommit, Transaction::TransStmtRollback],
    )
}

/// True if it undoes a part of a transaction.
fn goes_back(node: &Tree) -> bool {
    is_transaction(node, &[Transaction::TransStmtRollbackTo])
}

fn is_transaction(node: &Tree, kinds: &[Transaction]) -> bool {
    matches!(node, Tree::TransactionStmt(one) if kinds.contains(&one.kind()))
}

/// The statement that executes another one and notes it.
fn executed(text: &str, node: &Tree) -> Result<String, Box<Refusal>> {
    let kept = without_password(node).map_err(|why| {
        let refusal = Refusal::error("0A000", format!("this password cannot be mirrored: {why}"));
        Box::new(refusal.hint("Use \\password of psql, which sends what servers keep of it."))
    })?;
    Ok(executing(kept.as_deref().unwrap_or(text.trim())))
}

/// The tag of a definition for which no event trigger fires: its text is that of one statement.
pub const SHARED: &str = "SHARED";

/// A statement that has a member execute another one for which no event trigger fires, and note it.
pub fn executing(text: &str) -> String {
    let said = escape_literal(text);
    let call = format!("BEGIN PERFORM understudy_mirror.execute({said}); END");
    format!("DO {}", escape_literal(&call))
}

/// The text of a statement with what servers keep of its password; nothing if it has none.
fn without_password(node: &Tree) -> Result<Option<String>, String> {
    let mut node = node.clone();
    let options = match &mut node {
        Tree::CreateRoleStmt(role) => &mut role.options,
        Tree::AlterRoleStmt(role) => &mut role.options,
        _ => return Ok(None),
    };
    let mut has_one = false;
    for option in options {
        let Some(Tree::DefElem(element)) = &mut option.node else {
            continue;
        };
        let value = element.arg.as_mut().and_then(|arg| arg.node.as_mut());
        if let ("password", Some(Tree::String(password))) = (element.defname.as_str(), value)
            && !is_kept(&password.sval)
        {
            password.sval = scram_sha_256(password.sval.as_bytes());
            has_one = true;
        }
    }
    if !has_one {
        return Ok(None);
    }
    let text = node.deparse(pg_query::DeparseOptions::default());
    text.map(Some).map_err(|error| error.to_string())
}

/// True if a password is what servers keep of one.
fn is_kept(password: &str) -> bool {
    password.is_empty()
        || Verifier::parse(password).is_some()
        || password.len() == 35 && password.starts_with("md5")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str) -> Option<String> {
        carried(text, "a").expect("it is carried")
    }

    #[test]
    fn shared_objects_are_defined_by_a_function() {
        let wanted = "DO 'BEGIN PERFORM understudy_mirror.execute(''GRANT a TO b''); END'";
        assert_eq!(made("GRANT a TO b").as_deref(), Some(wanted));
        let several = made("CREATE TABLE t (id int); GRANT a TO b ; SELECT 'user'");
        let wanted = format!("CREATE TABLE t (id int);{wanted};SELECT 'user'");
        assert_eq!(several.as_deref(), Some(wanted.as_str()));
        for text in [
            "CREATE EVENT TRIGGER e ON sql_drop EXECUTE FUNCTION f()",
            "DROP EVENT TRIGGER e",
            "ALTER DATABASE a SET a.b = 'x'",
            "COMMENT ON ROLE a IS 'x'",
            "GRANT CREATE ON DATABASE d, a TO a",
            "REASSIGN OWNED BY a TO b",
            "ALTER ROLE a RENAME TO b",
        ] {
            assert!(made(text).is_some(), "{text}");
        }
        for text in [
            "SELECT * FROM users",
            "GRANT SELECT ON t TO a",
            "COMMENT ON TABLE t IS 'x'",
            "DROP OWNED BY a",
            "CREATE DATABASE d",
            "ALTER DATABASE d SET a.b = 'x'",
            "ALTER DATABASE d RENAME TO a",
            "ALTER DATABASE d OWNER TO a",
            "COMMENT ON DATABASE d IS 'x'",
            "GRANT CREATE ON DATABASE d, e TO a",
            "ALTER ROLE a IN DATABASE d SET a.b = 'x'",
            "VACUUM FULL t",
            "ROLLBACK TO s",
            "CREATE TEMP TABLE a AS EXECUTE b",
            "not even SQL of a role",
        ] {
            assert_eq!(made(text), None, "{text}");
        }
    }

    #[test]
    fn no_password_leaves_the_manager() {
        let text = made("ALTER ROLE a PASSWORD 'secret'").expect("it is another one");
        assert!(
            !text.contains("secret") && text.contains("SCRAM-SHA-256$"),
            "{text}"
        );
    }

    #[test]
    fn a_text_that_would_wait_for_ever_or_is_undone_within_is_refused() {
        for text in [
            "LOCK pg_class",
            "BEGIN; LOCK TABLE pg_catalog.pg_attribute IN ACCESS EXCLUSIVE MODE; COMMIT",
            "VACUUM FULL",
            "VACUUM (FULL, ANALYZE) pg_class",
            "CLUSTER",
            "CLUSTER pg_class USING pg_class_oid_index",
            "ALTER DATABASE a RENAME TO b",
            "SELECT lo_create(0)",
            "SELECT pg_catalog.lo_put(1, 0, 'x') FROM t",
            "ALTER EVENT TRIGGER e ENABLE ALWAYS",
            "EXPLAIN ANALYZE CREATE TABLE a AS SELECT 1",
            "CREATE TABLE a AS EXECUTE b",
            "SAVEPOINT s; CREATE TABLE a (); ROLLBACK TO s; CREATE TABLE b ()",
        ] {
            let refusal = carried(text, "a").expect_err(text);
            assert_eq!(refusal.code, "0A000", "{text}");
            assert!(refusal.hint.is_some(), "{text}");
        }
    }
}
