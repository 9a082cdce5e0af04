//! Which statements may leave something with their session: settings, prepared statements, locks.

/// One of these is in every text that may, besides those of `SET` and `RESET`. In doubt a text is looked at.
const MARKS: &[&str] = &[
    "advisory",
    "close",
    "deallocate",
    "discard",
    "hold",
    "listen",
    "load",
    "prepare",
    "set_config",
    "temp",
    // An identifier that may be spelled in any way.
    "u&\"",
];

/// True if executing `text` may leave something with the session; `SET` and `RESET` are told by their plan.
pub fn may_leave_something(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    MARKS.iter().any(|mark| text.contains(mark))
}

#[cfg(test)]
mod tests {
    use proxy::core::sql::Statements;

    use super::*;

    #[test]
    fn whatever_leaves_something_is_looked_at() {
        let texts = [
            "LISTEN c",
            "unlisten *",
            "Prepare p AS SELECT 1",
            "DEALLOCATE ALL",
            "DISCARD ALL",
            "SELECT pg_advisory_lock(1)",
            "SELECT pg_try_advisory_lock_shared(1, 2)",
            "SELECT set_config('a.b', 'c', false)",
            "CREATE TEMP TABLE t (a int)",
            "CREATE TABLE pg_temp.t (a int)",
            "SELECT 1 INTO TEMPORARY t",
            "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
            "CLOSE ALL",
            "LOAD 'x'",
            "SELECT U&\"pg_adv\\0069sory_lock\"(1)",
        ];
        let known = Statements::default();
        for text in texts {
            let effects = known.look(text.as_bytes()).parts[0].effects.len();
            assert!(effects > 0, "the test is wrong: {text}");
            assert!(may_leave_something(text), "{text}");
        }
        assert!(!may_leave_something("SELECT a FROM t WHERE id = 5"));
        assert!(!may_leave_something("UPDATE t SET a = 1"));
    }
}
