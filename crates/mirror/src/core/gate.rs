//! The gate that sessions pass when they begin something, so that a handover finds nothing under way.
//!
//! ```text
//!   between transactions ── enter ──▶ inside ── leave ──▶ between transactions
//!            │  closed: waits
//!            ▼
//!      begins when the gate opens, or goes on at the other manager
//! ```
//!
//! Invariant: while the gate is closed nothing begins, so once it is quiet it stays quiet.

use std::collections::BTreeMap;

/// Turn of a session that has begun something.
pub type Turn = u64;

/// A gate that sessions pass to begin something, with the turns of those inside.
#[derive(Debug, Default)]
pub struct Gate {
    is_closed: bool,
    next: Turn,
    /// Milliseconds of the manager's clock; later turns began later.
    inside: BTreeMap<Turn, u64>,
}

impl Gate {
    /// A session begins something, if it may.
    pub fn enter(&mut self, now_ms: u64) -> Option<Turn> {
        if self.is_closed {
            return None;
        }
        self.next += 1;
        self.inside.insert(self.next, now_ms);
        Some(self.next)
    }

    /// A session is between transactions again, or gone.
    pub fn leave(&mut self, turn: Turn) {
        self.inside.remove(&turn);
    }

    /// Nobody begins anything any more; what has begun goes on.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Whoever waits may begin.
    pub fn open(&mut self) {
        self.is_closed = false;
    }

    /// Nothing is under way.
    pub fn is_quiet(&self) -> bool {
        self.inside.is_empty()
    }

    /// Time for which the oldest of what is under way has been that; nothing if nothing is.
    pub fn oldest_ms(&self, now_ms: u64) -> Option<u64> {
        let (_, since) = self.inside.first_key_value()?;
        Some(now_ms.saturating_sub(*since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_begun_goes_on_and_nothing_else_begins() {
        let mut gate = Gate::default();
        let turns = [gate.enter(0), gate.enter(0)].map(|turn| turn.expect("it is open"));
        gate.close();
        assert!(gate.enter(1).is_none() && !gate.is_quiet());
        gate.leave(turns[0]);
        gate.leave(turns[1]);
        assert!(gate.is_quiet() && gate.enter(1).is_none());
        assert!(gate.is_quiet(), "who was refused is not inside");
        gate.open();
        assert!(gate.enter(1).is_some());
    }

    #[test]
    fn oldest_is_whoever_has_not_left() {
        let mut gate = Gate::default();
        assert_eq!(gate.oldest_ms(5), None);
        let first = gate.enter(5).expect("it is open");
        let second = gate.enter(20).expect("it is open");
        assert_eq!(gate.oldest_ms(30), Some(25));
        gate.leave(first);
        assert_eq!(gate.oldest_ms(30), Some(10));
        gate.leave(second);
        assert_eq!(gate.oldest_ms(30), None);
    }
}
