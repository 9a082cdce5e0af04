//! Requests to cancel that may end a commit's wait for the log.
//!
//! ```text
//!   request ── sent to the member ──▶ may arrive at any moment ── the member has passed it on ──▶ arrived
//!                                                                                                   │ all that was asked is answered
//!   the next statement is not meant ◀───────────────────────────────────────────────────────────────┘
//! ```
//!
//! PostgreSQL forgets a request that arrives between statements, whichever statement the client meant. Invariant: as long as a statement
//! of the session may be hit, its answer waits until the log has what it has committed: the server's warning may not be among the messages
//! that the client wants.

/// Requests to cancel what a session does.
#[derive(Debug, Default)]
pub struct Cancelled {
    /// Requests that the member may not have passed on yet.
    under_way: usize,
    /// A statement that is not answered yet may have been hit.
    may_be_hit: bool,
}

impl Cancelled {
    /// A request is about to be sent.
    pub fn sent(&mut self) {
        self.under_way += 1;
    }

    /// The member has passed a request on to the session's process.
    pub fn arrived(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        self.may_be_hit = true;
    }

    /// True if a commit may not have waited for the log.
    pub fn is_possible(&self) -> bool {
        self.under_way > 0 || self.may_be_hit
    }

    /// The session has answered all that it was asked: what it is asked next is not hit by a request that has arrived.
    pub fn answered(&mut self) {
        self.may_be_hit = false;
    }
}

/// True if a text may keep a session's client from seeing warnings, as that of a commit which has not waited. Whoever may cancel a
/// statement with SQL does so without a request.
pub fn hides_warnings(text: &str) -> bool {
    let has = |word: &str| {
        let mut places = text.as_bytes().windows(word.len());
        places.any(|place| place.eq_ignore_ascii_case(word.as_bytes()))
    };
    // The level may be a parameter.
    has("client_min_messages") && ["error", "fatal", "panic", "$"].into_iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_hit_without_a_request() {
        let mut cancelled = Cancelled::default();
        assert!(!cancelled.is_possible());
        cancelled.answered();
        assert!(!cancelled.is_possible());
    }

    /// A request that came after its statement had ended was forgotten with that, and hit the next commit's wait.
    #[test]
    fn a_request_that_is_late_may_hit_the_next_statement() {
        let mut cancelled = Cancelled::default();
        cancelled.sent();
        // The statement that was meant.
        cancelled.answered();
        assert!(cancelled.is_possible(), "it has not arrived");
        cancelled.answered();
        cancelled.arrived();
        assert!(cancelled.is_possible(), "the next one may be hit");
        cancelled.answered();
        assert!(!cancelled.is_possible());
    }

    #[test]
    fn levels_that_hide_warnings_are_known_by_their_texts() {
        for text in [
            "SET client_min_messages = error",
            "set Client_Min_Messages to 'FATAL'",
            "SELECT set_config('client_min_messages', $1, false)",
        ] {
            assert!(hides_warnings(text), "{text}");
        }
        for text in ["SET client_min_messages TO warning", "SELECT 'error'", ""] {
            assert!(!hides_warnings(text), "{text}");
        }
    }

    #[test]
    fn several_requests_are_known_apart() {
        let mut cancelled = Cancelled::default();
        cancelled.sent();
        cancelled.sent();
        cancelled.arrived();
        cancelled.answered();
        assert!(cancelled.is_possible(), "the second has not arrived");
        cancelled.arrived();
        cancelled.answered();
        assert!(!cancelled.is_possible());
    }
}
