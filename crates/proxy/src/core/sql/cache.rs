//! Remembers what texts do, by their shape.

use std::sync::Arc;

use quick_cache::sync::Cache;
use xxhash_rust::xxh3::xxh3_128;

use super::calls;
use super::classify::classify;
use super::scan::{Shape, Words, shape};
use super::shrink::{depth, shrink};
use super::{Effect, Kind, ServerAffinity, Statement};

/// Statements that are remembered. One is a few hundred bytes with its key.
const REMEMBERED: usize = 10_000;
/// Longer texts are not remembered by their shape: a key would be as long as they are.
const LONGEST_KEY_BYTES: usize = 4 << 10;
/// Longer texts are not read at all.
const LONGEST_PARSED_BYTES: usize = 1 << 20;
/// Texts from this length on are known by a sum of them, and read without what repeats in them.
const LONG_BYTES: usize = 16 << 10;
/// What is left of one is parsed if it is no longer than this: the parser needs a multiple of it in memory.
const LONGEST_SHRUNK_BYTES: usize = 256 << 10;
/// One whose literals count is parsed as it is if it is no longer than this.
const LONGEST_WHOLE_BYTES: usize = 64 << 10;
/// So deep any thread may go.
const SHALLOW: usize = 100;
/// PostgreSQL goes no deeper than this, with the stack that it has by default.
const DEEPEST: usize = 20_000;
/// What a tree as deep as that needs at most; it is taken as far as it is used.
const STACK_BYTES: usize = 512 << 20;

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
        if text.len() >= LONG_BYTES {
            let key = xxh3_128(text).to_be_bytes();
            if let Some(Known::Same(statement)) = self.by_shape.get(&key[..]) {
                return statement;
            }
            return Arc::new(read_long(text));
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

    /// True if reading `text` takes so long that it had better be done elsewhere first ([`Statements::learn`]).
    pub fn is_long(&self, text: &[u8]) -> bool {
        text.len() >= LONG_BYTES && {
            let key = xxh3_128(text).to_be_bytes();
            !matches!(self.by_shape.get(&key[..]), Some(Known::Same(_)))
        }
    }

    /// Reads a long text, so that it is known when it is looked at.
    pub fn learn(&self, text: &[u8]) {
        let key = xxh3_128(text).to_be_bytes();
        let known = Known::Same(Arc::new(read_long(text)));
        self.by_shape.insert(Box::from(&key[..]), known);
    }
}

/// What a long text does: its shape without its repetitions is read in place of it, as far as no literal counts.
fn read_long(text: &[u8]) -> Statement {
    if text.len() > LONGEST_PARSED_BYTES {
        return unread(&text[..LONGEST_PARSED_BYTES.min(text.len())], true);
    }
    let Some(shape) = shape(text) else {
        return unread(text, false);
    };
    let mut statement = None;
    let short = shrink(&shape.key);
    if !short.is_empty() && short.len() <= LONGEST_SHRUNK_BYTES {
        statement = classify_apart(&short);
    }
    let counts = |one: &Statement| depends_on_literals(one);
    if statement.as_ref().is_none_or(counts) {
        let all = std::str::from_utf8(text)
            .ok()
            .filter(|_| text.len() <= LONGEST_WHOLE_BYTES);
        statement = all.and_then(classify_apart);
    }
    let mut statement = statement.unwrap_or_else(|| unread(text, false));
    statement.has_parameters = shape.has_parameters;
    statement.hint = shape.hint;
    statement
}

/// Reads a text on a stack that is deep enough for whatever nests in it. PostgreSQL itself refuses what nests deeper than that.
fn classify_apart(text: &str) -> Option<Statement> {
    match depth(text.as_bytes()) {
        0..=SHALLOW => classify(text),
        deep if deep > DEEPEST => None,
        _ => std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            let reading = thread.spawn_scoped(scope, || classify(text)).ok()?;
            reading.join().ok().flatten()
        }),
    }
}

/// A text that is not parsed. Where words end and literals begin can be told nevertheless.
///
/// Of one that is not all there nobody knows whether it ends a transaction.
fn unread(text: &[u8], is_cut: bool) -> Statement {
    let words = Words::of(text);
    let mut effects = Vec::new();
    if words.have(LOCKS) {
        effects.push(Effect::Affinity(ServerAffinity::Advisory));
    }
    if words.begin_with(CHANGE_SESSION) || words.have(LEAVE_SOMETHING) {
        effects.push(Effect::Affinity(ServerAffinity::Unknown));
    }
    Statement::unread(is_cut || words.have(ENDS), effects)
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
        .and_then(classify_apart)
        .unwrap_or_else(|| unread(text, false));
    statement.has_parameters = shape.has_parameters;
    statement.hint = shape.hint;
    statement
}

/// True if another text of the same shape may do something else.
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

    /// 47 operators, or 20 nested selects, were not understood.
    #[test]
    fn deep_nesting_is_understood() {
        let statements = Statements::default();
        let kind = |text: &str| statements.look(text.as_bytes()).parts[0].kind.clone();
        for levels in [47, 150, 4000] {
            let sum = vec!["1"; levels].join(" + ");
            assert_eq!(kind(&format!("SELECT {sum}")), Kind::Read, "{levels}");
        }
        for levels in [20, 300] {
            let nested = format!("{}1{}", "SELECT (".repeat(levels), ")".repeat(levels));
            assert_eq!(kind(&nested), Kind::Read, "{levels}");
        }
        let joins = " JOIN t USING (a)".repeat(200);
        assert_eq!(kind(&format!("SELECT * FROM t{joins}")), Kind::Read);
        let endless = "+1".repeat(400_000);
        assert!(matches!(
            kind(&format!("SELECT 1{endless}")),
            Kind::Opaque { .. }
        ));
    }

    /// Two hundred thousand rows took seconds and gigabytes.
    #[test]
    fn many_rows_are_read_as_few() {
        let statements = Statements::default();
        let rows: Vec<String> = (0..40_000).map(|n| format!("({n}, f({n}))")).collect();
        let text = format!("INSERT INTO t VALUES {}", rows.join(","));
        assert!(statements.is_long(text.as_bytes()));
        let began = std::time::Instant::now();
        statements.learn(text.as_bytes());
        assert!(
            began.elapsed() < std::time::Duration::from_millis(500),
            "{:?}",
            began.elapsed()
        );
        assert!(!statements.is_long(text.as_bytes()));
        let statement = statements.look(text.as_bytes());
        assert_eq!(statement.parts[0].kind, Kind::Write);
        assert!(statement.parts[0].calls.iter().all(|name| &**name == "f"));
        let set = format!("SET a.b = '{}'", "x".repeat(20_000));
        let effects = statements.look(set.as_bytes()).parts[0].effects.clone();
        assert!(matches!(&effects[..], [Effect::Set(_)]), "{effects:?}");
    }

    #[test]
    fn parse_serves_all_texts_of_a_shape() {
        let statements = Statements::default();
        let one = statements.look(b"SELECT a FROM t WHERE b = 1");
        let other = statements.look(b"SELECT a FROM t WHERE b = 2");
        assert!(Arc::ptr_eq(&one, &other));
    }

    /// A text with a hint was taken for all of its shape, in whatever session.
    // hazard: PROXY-10
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
    fn unparsed_text_is_opaque() {
        let statements = Statements::default();
        let opaque = Kind::Opaque { may_end: false };
        assert_eq!(statements.look(b"SELEC").parts[0].kind, opaque);
        assert_eq!(statements.look(b"SELECT '\xff'").parts[0].kind, opaque);
        assert!(statements.look(b" ; ").parts.is_empty());
    }

    /// In transaction mode the next client had the setting or the table, and in session mode it was gone after a takeover
    /// without a word.
    // hazard: PROXY-54
    #[test]
    fn unparsed_text_may_leave_something() {
        let statements = Statements::default();
        let effects = |text: &[u8]| statements.look(text).parts[0].effects.clone();
        let unknown = [Effect::Affinity(ServerAffinity::Unknown)];
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
        let lock = [Effect::Affinity(ServerAffinity::Advisory)];
        assert_eq!(effects(b"SELECT pg_advisory_lock(5), '\xfc'"), lock);
        let long = [&b"SET a.b = '"[..], &vec![b'a'; LONGEST_PARSED_BYTES], b"'"].concat();
        assert_eq!(effects(&long), unknown);
    }

    /// A text that is too long to be parsed, or no UTF-8, may have a `COMMIT` in it all the same.
    #[test]
    fn unparsed_text_may_end_a_transaction() {
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
