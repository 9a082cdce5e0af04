//! Everything that a statement names, whatever it may call by that.
//!
//! PostgreSQL calls functions where no text says so: behind operators, casts, domains, views, policies and attribute notation
//! (`o.pay`). Owns [`Uses`]: the names by which the catalog tells what a statement may call. Invariant: each name in the statement
//! that the server resolves to something that may call a function is here, or in the calls.

use super::super::settings::Change;
use super::calls;
use super::visit::Visitor;
use super::{Effect, ServerAffinity};

/// What a statement names, without schemas. Names come once, in order.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Uses {
    /// Operators, also those behind `IN`, `BETWEEN`, `JOIN` and `CASE`.
    pub operators: Vec<Box<str>>,
    /// Types, as of casts and columns.
    pub types: Vec<Box<str>>,
    /// What stands behind a dot: a column, or a function of what is in front of it.
    pub attributes: Vec<Box<str>>,
    /// Tables, views and the like.
    pub relations: Vec<Box<str>>,
    /// Names that the statement itself makes: of subqueries, columns, and tables that are made.
    pub own: Vec<Box<str>>,
}

impl Uses {
    fn settle(&mut self) {
        for names in [
            &mut self.operators,
            &mut self.types,
            &mut self.attributes,
            &mut self.relations,
            &mut self.own,
        ] {
            names.sort_unstable();
            names.dedup();
        }
    }
}

/// A constant.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Constant {
    Text(String),
    Truth(bool),
}

/// A node that is being looked at.
struct Frame {
    node: &'static str,
    field: &'static str,
    item: usize,
    /// The last identifier of a list in it, and how many there were.
    last: Option<Box<str>>,
    count: usize,
    constants: Vec<(usize, Constant)>,
    schema: Box<str>,
    persistence: Box<str>,
}

/// What a look at every node of a statement finds.
#[derive(Default)]
pub struct Found {
    frames: Vec<Frame>,
    /// Something in it writes.
    pub writes: bool,
    /// It makes something that is the session's own.
    pub into_temporary: bool,
    /// The functions that it calls by name.
    pub calls: Vec<Box<str>>,
    /// What calls of `set_config` do.
    pub effects: Vec<Effect>,
    /// What else it names.
    pub uses: Uses,
}

/// True if a schema is the session's own. (One with a number is that of some session: this one's, or nothing can be made in it.)
fn is_temporary_schema(name: &str) -> bool {
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    name == "pg_temp" || name.strip_prefix("pg_temp_").is_some_and(is_number)
}

/// True if a relation is the session's own, by its persistence or the schema that it is made in.
pub fn is_temporary(persistence: &str, schema: &str) -> bool {
    persistence == "t" || is_temporary_schema(schema)
}

impl Found {
    /// All of it, once the whole statement was passed.
    pub fn settle(&mut self) {
        self.uses.settle();
    }

    /// The node that a name or constant belongs to, apart from what only wraps it.
    fn owner(&mut self) -> Option<&mut Frame> {
        let mut frames = self.frames.iter_mut().rev().skip(1);
        frames.find(|frame| !matches!(frame.node, "Node" | "List"))
    }

    fn identifier(&mut self, text: &str) {
        let Some(owner) = self.owner() else {
            return;
        };
        if owner.node == "AConst" {
            self.constant(Constant::Text(text.to_owned()));
            return;
        }
        owner.last = Some(text.into());
        owner.count += 1;
        let is_first = owner.count == 1;
        match (owner.node, owner.field) {
            ("ColumnRef", "fields") if !is_first => self.uses.attributes.push(text.into()),
            ("AIndirection", "indirection") => self.uses.attributes.push(text.into()),
            ("Alias", "colnames") | ("CommonTableExpr", "aliascolnames") => {
                self.uses.own.push(text.into());
            }
            ("SortBy", "use_op") => self.uses.operators.push(text.into()),
            _ => {}
        }
        // The name of a schema, for whatever is made there.
        self.into_temporary |= is_temporary_schema(text);
    }

    /// A constant is an argument of the call around it, if it is one at all.
    fn constant(&mut self, value: Constant) {
        let mut frames = self.frames.iter_mut().rev();
        let Some(at) = frames.position(|frame| frame.node == "AConst") else {
            return;
        };
        let end = self.frames.len() - at - 1;
        let around = self.frames[..end].iter_mut().rev();
        let mut around = around.filter(|frame| frame.node != "Node");
        if let Some(call) = around.next()
            && (call.node, call.field) == ("FuncCall", "args")
        {
            let item = call.item;
            call.constants.push((item, value));
        }
    }

    fn call(&mut self, frame: &Frame) {
        let Some(name) = &frame.last else {
            self.writes = true;
            return;
        };
        let name = name.to_ascii_lowercase();
        if calls::sets(&name) {
            self.effects.extend(set_config(&frame.constants));
        }
        self.calls.push(name.into());
    }
}

impl Visitor for Found {
    fn open(&mut self, node: &'static str) {
        match node {
            "InsertStmt" | "UpdateStmt" | "DeleteStmt" | "MergeStmt" | "LockingClause"
            | "IntoClause" => self.writes = true,
            // They compare by it, unless it says otherwise.
            "CaseExpr" | "JoinExpr" | "SubLink" => self.uses.operators.push("=".into()),
            _ => {}
        }
        self.frames.push(Frame {
            node,
            field: "",
            item: 0,
            last: None,
            count: 0,
            constants: Vec::new(),
            schema: "".into(),
            persistence: "".into(),
        });
    }

    fn field(&mut self, name: &'static str) {
        if let Some(frame) = self.frames.last_mut() {
            frame.field = name;
        }
    }

    fn item(&mut self, at: usize) {
        if let Some(frame) = self.frames.last_mut() {
            frame.item = at;
        }
    }

    fn text(&mut self, value: &str) {
        let Some(frame) = self.frames.last_mut() else {
            return;
        };
        match (frame.node, frame.field) {
            ("String", "sval") => self.identifier(value),
            ("RangeVar", "schemaname") => frame.schema = value.into(),
            ("RangeVar", "relpersistence") => frame.persistence = value.into(),
            ("RangeVar", "relname") => frame.last = Some(value.into()),
            ("CommonTableExpr", "ctename")
            | ("ResTarget", "name")
            | ("Alias", "aliasname")
            | ("ColumnDef", "colname")
                if !value.is_empty() =>
            {
                self.uses.own.push(value.into());
            }
            _ => {}
        }
    }

    fn number(&mut self, value: i64) {
        let frame = self.frames.last().map(|frame| (frame.node, frame.field));
        if frame == Some(("Boolean", "boolval")) {
            self.constant(Constant::Truth(value != 0));
        }
    }

    fn close(&mut self) {
        let Some(frame) = self.frames.pop() else {
            return;
        };
        match frame.node {
            "FuncCall" => self.call(&frame),
            "TypeName" => self.uses.types.extend(frame.last),
            "SubLink" => self.uses.operators.extend(frame.last),
            "AExpr" => match frame.last.as_deref() {
                Some(between) if between.contains("BETWEEN") => {
                    let both = ["<=", ">="].map(Into::into);
                    self.uses.operators.extend(both);
                }
                _ => self.uses.operators.extend(frame.last),
            },
            "RangeVar" => {
                let is_into = |one: &Frame| !matches!(one.node, "Node" | "List");
                let mut around = self.frames.iter().rev().filter(|one| is_into(one));
                let is_made = around.next().is_some_and(|one| one.node == "IntoClause");
                if is_made {
                    self.into_temporary |= is_temporary(&frame.persistence, &frame.schema);
                }
                self.uses.relations.extend(frame.last);
            }
            _ => {}
        }
    }
}

/// `set_config(name, value, is_local)` with constants is `SET`; otherwise nobody knows what it sets.
fn set_config(constants: &[(usize, Constant)]) -> Option<Effect> {
    let argument = |at: usize| {
        let mut all = constants.iter().filter(|(of, _)| *of == at);
        all.next().map(|(_, constant)| constant)
    };
    let text = |at: usize| match argument(at) {
        Some(Constant::Text(text)) => Some(text.as_str()),
        _ => None,
    };
    if argument(2) == Some(&Constant::Truth(true)) {
        return None;
    }
    let is_for_session = argument(2) == Some(&Constant::Truth(false));
    let (Some(name), Some(value), true) = (text(0), text(1), is_for_session) else {
        return Some(Effect::Affinity(ServerAffinity::Unknown));
    };
    if OF_TRANSACTION.contains(&name.to_ascii_lowercase().as_str()) {
        return None;
    }
    Some(Effect::Set(Change::to_value(name, value)))
}

/// Settings of the transaction that is open, or of none.
pub const OF_TRANSACTION: &[&str] = &[
    "transaction",
    "transaction snapshot",
    "transaction_isolation",
    "transaction_read_only",
    "transaction_deferrable",
];

#[cfg(test)]
mod tests {
    use super::super::classify::classify;
    use super::*;

    fn uses(text: &str) -> Uses {
        let statement = classify(text).expect("it parses");
        statement.only().expect("one statement").uses.clone()
    }

    fn names(all: &[Box<str>]) -> String {
        all.join(" ")
    }

    #[test]
    fn operators_are_found_wherever_they_are() {
        for (text, found) in [
            ("SELECT a OPERATOR(my.<+>) b", "<+>"),
            ("SELECT - a", "-"),
            ("SELECT 1 FROM t WHERE a IN (1, 2)", "="),
            ("SELECT 1 FROM t WHERE a NOT IN (1, 2)", "<>"),
            ("SELECT 1 FROM t WHERE a BETWEEN 1 AND 2", "<= >="),
            ("SELECT 1 FROM t WHERE a LIKE 'x'", "~~"),
            ("SELECT 1 FROM t WHERE a = ANY (SELECT 1)", "="),
            ("SELECT 1 FROM t WHERE a <+> ALL (SELECT 1)", "<+> ="),
            ("SELECT a FROM t ORDER BY a USING <<", "<<"),
            ("SELECT 1 FROM t JOIN u USING (a)", "="),
            ("SELECT CASE a WHEN 1 THEN 2 END", "="),
            ("SELECT a IS DISTINCT FROM b", "="),
            ("SELECT NULLIF(a, b)", "="),
        ] {
            assert_eq!(names(&uses(text).operators), found, "{text}");
        }
    }

    #[test]
    fn casts_and_attributes_are_found() {
        assert_eq!(
            names(&uses("SELECT '1'::my.d, CAST(a AS e[])").types),
            "d e"
        );
        assert_eq!(names(&uses("SELECT o.pay FROM t AS o").attributes), "pay");
        assert_eq!(names(&uses("SELECT (f(1)).pay, a").attributes), "pay");
        assert_eq!(
            names(&uses("SELECT ('s'::regclass).nextval").attributes),
            "nextval"
        );
        assert_eq!(names(&uses("SELECT a FROM t").attributes), "");
        let rows = uses("SELECT * FROM json_to_record('{}') AS x(a d)");
        assert_eq!(names(&rows.types), "d");
    }

    #[test]
    fn tables_are_found_and_what_the_statement_names_itself() {
        let uses = uses("WITH c AS (SELECT 1 AS n) SELECT c.n FROM c, s.t AS u");
        assert_eq!(names(&uses.relations), "c t");
        assert_eq!(names(&uses.own), "c n u");
    }
}
