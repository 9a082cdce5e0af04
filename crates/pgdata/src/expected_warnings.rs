//! Lines of PostgreSQL's log at WARNING or above that are expected, so that tests and operators can
//! tell the others.
//!
//! Invariant: a line is expected only for a reason given in the hazards (H14) or because someone
//! outside stopped a server or a connection, which is the situation's doing, not the volume's.

/// How bad a log line says it is, from WARNING up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// WARNING
    Warning,
    /// ERROR
    Error,
    /// FATAL
    Fatal,
    /// PANIC
    Panic,
}

const SEVERITIES: [(&str, Severity); 4] = [
    ("WARNING:  ", Severity::Warning),
    ("ERROR:  ", Severity::Error),
    ("FATAL:  ", Severity::Fatal),
    ("PANIC:  ", Severity::Panic),
];

/// What was going on when a line was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Situation {
    /// A standby that follows, or a server that serves, and nobody interferes.
    Quiet,
    /// A takeover, a stop, or the start after one: connections end, and new ones are turned away.
    Takeover,
}

/// Beginnings of messages that are always expected (H14), each with the words it also has.
const ALWAYS: [(Severity, &str, &str); 9] = [
    // A client cancels a commit that waits for the ordered log to be durable.
    (
        Severity::Warning,
        "canceling wait for synchronous replication due to user request",
        "",
    ),
    // Autovacuum gives way to a session that wants a lock it holds.
    (Severity::Error, "canceling autovacuum task", ""),
    (
        Severity::Warning,
        "xlog min recovery request ",
        " is past current point ",
    ),
    (Severity::Warning, "removing future two-phase state ", ""),
    (Severity::Warning, "removing stale two-phase state ", ""),
    (
        Severity::Warning,
        "could not recover two-phase state file for transaction ",
        "",
    ),
    // Queries on a standby give way to redo (N13).
    (
        Severity::Error,
        "canceling statement due to conflict with recovery",
        "",
    ),
    // The same in a session that is just being set up.
    (
        Severity::Fatal,
        "canceling statement due to conflict with recovery",
        "",
    ),
    (
        Severity::Fatal,
        "terminating connection due to conflict with recovery",
        "",
    ),
];

/// Beginnings of messages that are expected around a takeover.
const AT_TAKEOVER: [(Severity, &str); 27] = [
    (
        Severity::Warning,
        "canceling the wait for synchronous replication and terminating connection due to administrator command",
    ),
    (
        Severity::Fatal,
        "terminating connection due to administrator command",
    ),
    (
        Severity::Fatal,
        "terminating connection due to unexpected postmaster exit",
    ),
    (
        Severity::Fatal,
        "terminating walreceiver process due to administrator command",
    ),
    (
        Severity::Fatal,
        "terminating autovacuum process due to administrator command",
    ),
    (Severity::Fatal, "terminating background worker "),
    (Severity::Fatal, "connection to client lost"),
    // The agent ends sessions, and one ends by itself just then: "PID 7 is not a PostgreSQL backend
    // process".
    (Severity::Warning, "PID "),
    // While the zones are away nothing moves: who logs in, or starts to vacuum, waits too long.
    (Severity::Fatal, "canceling authentication due to timeout"),
    (
        Severity::Warning,
        "autovacuum worker took too long to start",
    ),
    // Everybody comes back at once, before the sessions of those who left have ended.
    (Severity::Fatal, "sorry, too many clients already"),
    (Severity::Fatal, "terminating walreceiver due to timeout"),
    (Severity::Fatal, "could not receive data from WAL stream: "),
    (Severity::Fatal, "could not send data to WAL stream: "),
    (
        Severity::Fatal,
        "could not send end-of-streaming message to primary: ",
    ),
    (Severity::Fatal, "could not connect to the primary server: "),
    (Severity::Fatal, "streaming replication receiver "),
    (Severity::Error, "requested starting point "),
    (Severity::Fatal, "could not start WAL streaming: "),
    (Severity::Fatal, "the database system is starting up"),
    (
        Severity::Fatal,
        "the database system is not yet accepting connections",
    ),
    (
        Severity::Fatal,
        "the database system is not accepting connections",
    ),
    (Severity::Fatal, "the database system is shutting down"),
    (Severity::Fatal, "the database system is in recovery mode"),
    (
        Severity::Warning,
        "terminating connection because of crash of another server process",
    ),
    (Severity::Error, "canceling statement due to user request"),
    (Severity::Error, "cannot execute "),
];

/// How bad a line says it is, and its message; `None` below WARNING.
pub fn severity(line: &str) -> Option<(Severity, &str)> {
    let found = SEVERITIES.iter().filter_map(|(mark, severity)| {
        let at = line.find(mark)?;
        Some((at, *severity, &line[at + mark.len()..]))
    });
    // A message may quote another line's mark; its own comes first.
    found
        .min_by_key(|(at, _, _)| *at)
        .map(|(_, severity, message)| (severity, message))
}

/// True if a log line may be there: below WARNING, or expected in the situation.
pub fn is_expected(line: &str, situation: Situation) -> bool {
    let Some((severity, message)) = severity(line) else {
        return true;
    };
    let always = ALWAYS.iter().any(|(level, begins, has)| {
        *level == severity && message.starts_with(begins) && message.contains(has)
    });
    let now = situation == Situation::Takeover
        && AT_TAKEOVER
            .iter()
            .any(|(level, begins)| *level == severity && message.starts_with(begins));
    always || now
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "2026-01-02 03:04:05.678 UTC [4711] ";

    fn expected(line: &str, situation: Situation) -> bool {
        is_expected(&format!("{PREFIX}{line}"), situation)
    }

    // hazard: H14
    #[test]
    fn the_noise_of_the_review_is_expected() {
        for line in [
            "LOG:  invalid record length at 0/3000060: wanted 24, got 0",
            "WARNING:  xlog min recovery request 0/5000060 is past current point 0/4000000",
            "WARNING:  removing future two-phase state file for transaction 731",
            "WARNING:  removing stale two-phase state from memory for transaction 731",
            "ERROR:  canceling autovacuum task",
        ] {
            assert!(expected(line, Situation::Quiet), "{line}");
        }
    }

    // hazard: H14
    #[test]
    fn real_trouble_is_not() {
        for line in [
            "WARNING:  page 5 of relation base/5/16384 is uninitialized",
            "PANIC:  WAL contains references to invalid pages",
            "FATAL:  could not create file \"base/5/16384\": File exists",
            "ERROR:  could not recover two-phase state file for transaction 7",
            "ERROR:  invalid page in block 3 of relation base/5/16384",
            "WARNING:  unexpected data beyond EOF in block 3 of relation base/5/16384",
        ] {
            assert!(!expected(line, Situation::Quiet), "{line}");
            assert!(!expected(line, Situation::Takeover), "{line}");
        }
    }

    #[test]
    fn ended_connections_are_expected_around_a_takeover_only() {
        let line = "FATAL:  terminating connection due to administrator command";
        assert!(expected(line, Situation::Takeover) && !expected(line, Situation::Quiet));
    }

    #[test]
    fn a_quoted_mark_does_not_hide_the_lines_own() {
        let line =
            format!("{PREFIX}PANIC:  log said \"WARNING:  removing stale two-phase state \"");
        assert_eq!(severity(&line).unwrap().0, Severity::Panic);
        assert!(!is_expected(&line, Situation::Takeover));
    }
}
