//! Remembers what texts do, by their shape.

use std::sync::Arc;

use quick_cache::sync::Cache;

use super::calls;
use super::classify::classify;
use super::scan::{Shape, Words, shape};
use super::{Bond, Effect, Kind, Statement};

/// Statements that are remembered. One is a few hundred bytes with its key.
const REMEMBERED: usize = 10_000;
/// Longer texts are not remembered by their shape: a key would be as long as they are.
const LONGEST_KEY_BYTES: usize = 4 << 10;
/// Longer texts are not parsed at all: the parser needs a multiple of it in memory.
const LONGEST_PARSED_BYTES: usize = 1 << 20;

/// What is known of a shape.
#[derive(Clone)]
enum Known {
    /// All texts of this shape do this.
    Same(Arc<Statement>),
    /// What a text of this shape does depends on its literals.
    Differs,
}

/// What texts do; shared by all sessions.
pub struct Statements {
    by_shape: Cache<Box<[u8]>, Known>,
}

impl Default for Statements {
    fn default() -> Statements {
        Statements {
            by_shape: Cache::new(REMEMBERED),
        }
    }
}

impl Statements {
    /// What `text` does.
    pub fn look(&self, text: &[u8]) -> Arc<Statement> {
        if text.len() > LONGEST_PARSED_BYTES {
            return Arc::new(unread(text));
        }
        let Some(shape) = shape(text).filter(|shape| shape.key.len() <= LONGEST_KEY_BYTES) else {
            return Arc::new(parse(text, &Shape::default()));
        };
        match self.by_shape.get(shape.key.as_slice()) {
            Some(Known::Same(statement)) => return statement,
            Some(Known::Differs) => return Arc::new(parse(text, &shape)),
            None => {}
        }
        let statement = Arc::new(parse(text, &shape));
        let known = if depends_on_literals(&statement) {
            Known::Differs
        } else {
            Known::Same(statement.clone())
        };
        self.by_shape.insert(shape.key.into(), known);
        statement
    }
}

/// A text that is not parsed. Where words end and literals begin can be told nevertheless.
fn unread(text: &[u8]) -> Statement {
    let words = Words::of(text);
    let mut effects = Vec::new();
    if words.have(LOCKS) {
        effects.push(Effect::Bond(Bond::Advisory));
    }
    if words.begin_with(CHANGE_SESSION) || words.have(LEAVE_SOMETHING) {
        effects.push(Effect::Bond(Bond::Unknown));
    }
    Statement::unread(words.have(ENDS), effects)
}

/// End transactions.
const ENDS: &[&str] = &["ABORT", "COMMIT", "END", "PREPARE", "ROLLBACK"];
/// Take locks that the session keeps.
const LOCKS: &[&str] = &[
    "PG_ADVISORY_LOCK",
    "PG_ADVISORY_LOCK_SHARED",
    "PG_TRY_ADVISORY_LOCK",
    "PG_TRY_ADVISORY_LOCK_SHARED",
];
/// Begin statements that change the session. (`UPDATE` has `SET` in it.)
const CHANGE_SESSION: &[&str] = &["LISTEN", "LOAD", "PREPARE", "RESET", "SET"];
/// Are part of those that leave something on the connection.
const LEAVE_SOMETHING: &[&str] = &["HOLD", "PG_TEMP", "SET_CONFIG", "TEMP", "TEMPORARY"];

fn parse(text: &[u8], shape: &Shape) -> Statement {
    let mut statement = std::str::from_utf8(text)
        .ok()
        .and_then(classify)
        .unwrap_or_else(|| unread(text));
    statement.has_parameters = shape.has_parameters;
    statement.hint = shape.hint;
    statement
}

/// Whether another text of the same shape may do something else.
fn depends_on_literals(statement: &Statement) -> bool {
    statement.parts.iter().any(|part| {
        let keeps_text = part
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::Set(_) | Effect::Prepare(..)));
        keeps_text
            || matches!(part.kind, Kind::Opaque { .. })
            || part.calls.iter().any(|name| calls::sets(name))
    })
}

#[cfg(test)]
mod tests {
    use super::super::Hint;
    use super::*;

    #[test]
    fn one_parse_serves_all_of_a_shape() {
        let statements = Statements::default();
        let one = statements.look(b"SELECT a FROM t WHERE b = 1");
        let other = statements.look(b"SELECT a FROM t WHERE b = 2");
        assert!(Arc::ptr_eq(&one, &other));
    }

    /// A text with a hint was taken for all of its shape, in whatever session.
    #[test]
    fn a_hint_counts_for_those_who_give_it() {
        let statements = Statements::default();
        let hint = |text: &[u8]| statements.look(text).hint;
        let active = b"/* understudy.read = active */ SELECT 1";
        assert_eq!(hint(active), Some(Hint::Active));
        assert_eq!(hint(b"/* what for */ SELECT 2"), None);
        let standby = b"/* understudy.read = standby */ SELECT 3";
        assert_eq!(hint(standby), Some(Hint::Standby));
        assert_eq!(hint(active), Some(Hint::Active));
    }

    #[test]
    fn settings_are_read_each_time() {
        let statements = Statements::default();
        let value = |text: &[u8]| format!("{:?}", statements.look(text).parts[0].effects);
        assert!(value(b"SET a.b = 'one'").contains("one"));
        assert!(value(b"SET a.b = 'two'").contains("two"));
        assert!(value(b"SELECT set_config('a.b', 'one', false)").contains("one"));
        assert!(value(b"SELECT set_config('a.b', 'two', true)").contains("[]"));
        assert!(value(b"SELECT set_config('a.b', 'two', false)").contains("two"));
    }

    #[test]
    fn what_is_not_understood_is_opaque() {
        let statements = Statements::default();
        let opaque = Kind::Opaque { may_end: false };
        assert_eq!(statements.look(b"SELEC").parts[0].kind, opaque);
        assert_eq!(statements.look(b"SELECT '\xff'").parts[0].kind, opaque);
        assert!(statements.look(b" ; ").parts.is_empty());
    }

    /// In transaction mode the next client had the setting or the table, and in session mode it was gone after a takeover
    /// without a word.
    #[test]
    fn what_is_not_understood_may_leave_something() {
        let statements = Statements::default();
        let effects = |text: &[u8]| statements.look(text).parts[0].effects.clone();
        let unknown = [Effect::Bond(Bond::Unknown)];
        for text in [
            &b"SET app.user = 'M\xfcller'"[..],
            b"/* understudy.read = active */ reset \xfc",
            b"SELECT '\xfc'; SET a.b = 1",
            b"SELECT set_config('app.user', 'M\xfcller', false)",
            b"CREATE TEMP TABLE t AS VALUES ('\xfc')",
            b"DECLARE c CURSOR WITH HOLD FOR SELECT '\xfc'",
            b"SELECT '\xfc' \\ '; SET a.b = 1",
        ] {
            assert_eq!(effects(text), unknown, "{}", String::from_utf8_lossy(text));
        }
        for text in [
            &b"UPDATE t SET a = '\xfc'"[..],
            b"INSERT INTO t VALUES ('SET \xfc; SET TEMP')",
            b"SELECT '\xfc', load, reset FROM t",
        ] {
            assert_eq!(effects(text), [], "{}", String::from_utf8_lossy(text));
        }
        let lock = [Effect::Bond(Bond::Advisory)];
        assert_eq!(effects(b"SELECT pg_advisory_lock(5), '\xfc'"), lock);
        let long = [&b"SET a.b = '"[..], &vec![b'a'; LONGEST_PARSED_BYTES], b"'"].concat();
        assert_eq!(effects(&long), unknown);
    }

    /// A text that is too long to be parsed, or no UTF-8, may have a `COMMIT` in it all the same.
    #[test]
    fn what_is_not_understood_may_end_a_transaction() {
        let statements = Statements::default();
        let kind = |text: &[u8]| statements.look(text).parts[0].kind.clone();
        for (text, may_end) in [
            (&b"INSERT INTO t VALUES ('\xe9'); commit; begin"[..], true),
            (b"SELECT '\xe9'; End", true),
            (b"SELECT '\xe9' \\ '; ROLLBACK", true),
            (
                b"INSERT INTO t VALUES ('\xe9 and no end, no commit')",
                false,
            ),
            (b"SELECT \xe9commit, endless FROM \"end\xe9\"", false),
        ] {
            let text_of = String::from_utf8_lossy(text);
            assert_eq!(kind(text), Kind::Opaque { may_end }, "{text_of}");
        }
        let long = [
            &b"SELECT '"[..],
            &vec![b'a'; LONGEST_PARSED_BYTES],
            b"'; COMMIT",
        ]
        .concat();
        assert_eq!(kind(&long), Kind::Opaque { may_end: true });
    }
}
