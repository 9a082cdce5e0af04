//! Pieces of PostgreSQL's syntax tree: reading them, and making new ones.

use pg_query::protobuf::{self, Node, ResTarget, SelectStmt, node::Node as Tree};

pub fn target(node: &Node) -> Option<&ResTarget> {
    match node.node.as_ref()? {
        Tree::ResTarget(target) => Some(target),
        _ => None,
    }
}

pub fn last_name(names: &[Node]) -> Option<&str> {
    match names.last()?.node.as_ref()? {
        Tree::String(name) => Some(&name.sval),
        _ => None,
    }
}

/// True of a cast that shows a value as PostgreSQL writes it, and would read it.
pub fn is_text(cast: &protobuf::TypeCast) -> bool {
    let of = cast.type_name.as_ref();
    of.is_some_and(|of| of.array_bounds.is_empty() && last_name(&of.names) == Some("text"))
}

/// Expression within its casts.
pub fn innermost(mut node: &mut Node) -> Option<&mut Node> {
    while matches!(node.node, Some(Tree::TypeCast(_))) {
        let Some(Tree::TypeCast(cast)) = &mut node.node else {
            return None;
        };
        node = cast.arg.as_deref_mut()?;
    }
    Some(node)
}

pub fn node(node: Tree) -> Node {
    Node { node: Some(node) }
}

pub fn values_of(rows: Vec<Vec<Node>>) -> Node {
    let list = |items| node(Tree::List(protobuf::List { items }));
    node(Tree::SelectStmt(Box::new(SelectStmt {
        values_lists: rows.into_iter().map(list).collect(),
        limit_option: protobuf::LimitOption::Default.into(),
        op: protobuf::SetOperation::SetopNone.into(),
        ..SelectStmt::default()
    })))
}

/// The tree of an expression.
pub fn expression(text: &str) -> Option<Node> {
    let parsed =
        pg_query::parse(&format!("SELECT {text}"), pg_query::ParserOptions::DEFAULT).ok()?;
    let Tree::SelectStmt(select) = parsed.protobuf.stmts.into_iter().next()?.stmt?.node? else {
        return None;
    };
    match select.target_list.into_iter().next()?.node? {
        Tree::ResTarget(target) => target.val.map(|value| *value),
        _ => None,
    }
}
