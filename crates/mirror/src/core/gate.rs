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

/// Who may begin, and how many have.
#[derive(Debug, Default)]
pub struct Gate {
    is_closed: bool,
    inside: usize,
}

impl Gate {
    /// A session begins something, if it may.
    pub fn enter(&mut self) -> bool {
        if !self.is_closed {
            self.inside += 1;
        }
        !self.is_closed
    }

    /// A session is between transactions again, or gone.
    pub fn leave(&mut self) {
        self.inside = self.inside.saturating_sub(1);
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
        self.inside == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_begun_goes_on_and_nothing_else_begins() {
        let mut gate = Gate::default();
        assert!(gate.enter() && gate.enter());
        gate.close();
        assert!(!gate.enter() && !gate.is_quiet());
        gate.leave();
        gate.leave();
        assert!(gate.is_quiet() && !gate.enter());
        assert!(gate.is_quiet(), "who was refused is not inside");
        gate.open();
        assert!(gate.enter());
    }
}
