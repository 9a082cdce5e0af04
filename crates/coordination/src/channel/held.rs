//! Holding transactions while an active is about to stop: the proxy's side.
//!
//! ```text
//!            Hold{number}                      Resume{number}, a newer active, or the time is over
//!   Free ──────────────────▶ Held{until} ──────────────────────────────────────────────────────────▶ Free
//! ```
//!
//! Invariant: a hold always ends by itself, whatever becomes of who asked for it; and only the active of the newest epoch can
//! begin one.

use dax::ids::Epoch;

use super::holding::{HoldOrder, Time};

/// True if transactions may begin. Pure.
#[derive(Debug, Default)]
pub(super) struct Held {
    hold: Option<Hold>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hold {
    epoch: Epoch,
    number: u64,
    until: Time,
}

/// What changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// No transaction may begin; open ones have until this moment.
    Held { drain_until: Time },
    /// Transactions may begin.
    Free,
}

impl Held {
    /// An active asks for a hold. A second one replaces the first.
    pub(super) fn ordered(&mut self, order: HoldOrder, now: Time) -> Option<Change> {
        let HoldOrder { epoch, number, .. } = order;
        if self.hold.is_some_and(|hold| hold.epoch > epoch) {
            return None;
        }
        self.hold = Some(Hold {
            epoch,
            number,
            until: now + Time::from_millis(order.at_most_ms),
        });
        Some(Change::Held {
            drain_until: now + Time::from_millis(order.drain_ms),
        })
    }

    /// The hold that is to be answered when no transaction is open any more.
    pub(super) fn number(&self) -> Option<u64> {
        self.hold.map(|hold| hold.number)
    }

    /// The active of `epoch` says that it is over.
    pub(super) fn resumed(&mut self, epoch: Epoch, number: u64) -> Option<Change> {
        self.end(|hold| hold.epoch == epoch && hold.number == number)
    }

    /// Somebody serves in `epoch`.
    pub(super) fn serves(&mut self, epoch: Epoch) -> Option<Change> {
        self.end(|hold| hold.epoch < epoch)
    }

    /// Time passes.
    pub(super) fn passed(&mut self, now: Time) -> Option<Change> {
        self.end(|hold| hold.until <= now)
    }

    /// When it ends by itself.
    pub(super) fn wakes_at(&self) -> Option<Time> {
        self.hold.map(|hold| hold.until)
    }

    fn end(&mut self, over: impl FnOnce(Hold) -> bool) -> Option<Change> {
        let ends = self.hold.is_some_and(over);
        ends.then(|| {
            self.hold = None;
            Change::Free
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    fn order(epoch: u32, number: u64) -> HoldOrder {
        HoldOrder {
            epoch: Epoch(epoch),
            number,
            drain_ms: 5_000,
            at_most_ms: 30_000,
        }
    }

    fn held() -> Held {
        let mut held = Held::default();
        let drain_until = at(105);
        let change = held.ordered(order(3, 1), at(100));
        assert_eq!(change, Some(Change::Held { drain_until }));
        held
    }

    #[test]
    fn hold_ends_when_the_active_says_so() {
        let mut held = held();
        assert_eq!(held.resumed(Epoch(3), 0), None, "an earlier one");
        assert_eq!(held.resumed(Epoch(2), 1), None, "another one's");
        assert_eq!(held.number(), Some(1));
        assert_eq!(held.resumed(Epoch(3), 1), Some(Change::Free));
        assert_eq!(held.resumed(Epoch(3), 1), None);
    }

    #[test]
    fn hold_ends_when_another_active_serves() {
        let mut held = held();
        assert_eq!(held.serves(Epoch(3)), None);
        assert_eq!(held.serves(Epoch(4)), Some(Change::Free));
    }

    #[test]
    fn hold_ends_by_itself() {
        let mut held = held();
        assert_eq!(held.wakes_at(), Some(at(130)));
        assert_eq!(held.passed(at(129)), None);
        assert_eq!(held.passed(at(130)), Some(Change::Free));
        assert_eq!(held.wakes_at(), None);
    }

    #[test]
    fn an_old_active_cannot_hold() {
        let mut held = held();
        assert_eq!(held.ordered(order(2, 9), at(101)), None);
        assert!(held.ordered(order(3, 2), at(101)).is_some());
        assert_eq!(held.resumed(Epoch(3), 1), None, "replaced by the second");
        assert_eq!(held.resumed(Epoch(3), 2), Some(Change::Free));
    }
}
