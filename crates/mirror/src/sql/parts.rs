//! The statements of a text, each with its own text and tree.

use pg_query::protobuf::{self, node::Node as Tree};
use proxy::core::sql::source;

/// The statements of `text`, in order. Locations in each tree are those in the statement's own text.
///
/// # Errors
/// What the parser says.
pub fn split(text: &str) -> Result<Vec<(String, Tree)>, String> {
    let tree = pg_query::parse(text, pg_query::ParserOptions::DEFAULT)
        .map_err(|error| said(&error))?
        .protobuf;
    let mut parts = Vec::with_capacity(tree.stmts.len());
    for raw in &tree.stmts {
        let source = source(text, raw);
        let node = raw.stmt.as_ref().and_then(|node| node.node.as_ref());
        let Some(node) = node else {
            continue;
        };
        // The tree of a text that begins elsewhere has other locations.
        if source.as_ptr() == text.as_ptr() {
            parts.push((source.to_owned(), node.clone()));
        } else {
            parts.extend(one(source)?.map(|node| (source.to_owned(), node)));
        }
    }
    Ok(parts)
}

/// The tree of a text that has one statement.
pub fn one(text: &str) -> Result<Option<Tree>, String> {
    let tree = pg_query::parse(text, pg_query::ParserOptions::DEFAULT)
        .map_err(|error| said(&error))?
        .protobuf;
    let first = tree.stmts.into_iter().next().and_then(|raw| raw.stmt);
    Ok(first.and_then(|node| node.node))
}

fn said(error: &pg_query::Error) -> String {
    match error {
        pg_query::Error::Parse(message) => message.clone(),
        other => other.to_string(),
    }
}

/// The names in a list of them.
pub fn names(list: &[protobuf::Node]) -> impl Iterator<Item = &str> {
    list.iter().filter_map(|name| match &name.node {
        Some(Tree::String(name)) => Some(name.sval.as_str()),
        _ => None,
    })
}

/// An expression, written down.
pub fn expression(node: &protobuf::Node) -> Option<String> {
    let target = protobuf::ResTarget {
        val: Some(Box::new(node.clone())),
        location: -1,
        ..protobuf::ResTarget::default()
    };
    let select = protobuf::SelectStmt {
        target_list: vec![protobuf::Node {
            node: Some(Tree::ResTarget(Box::new(target))),
        }],
        limit_option: protobuf::LimitOption::Default as i32,
        op: protobuf::SetOperation::SetopNone as i32,
        ..protobuf::SelectStmt::default()
    };
    let tree = Tree::SelectStmt(Box::new(select));
    let text = tree.deparse(pg_query::DeparseOptions::default()).ok()?;
    text.strip_prefix("SELECT ").map(str::to_owned)
}
