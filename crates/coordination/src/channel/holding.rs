//! Holding the proxies' transactions while the active is about to stop: the agent's side.
//!
//! ```text
//!            hold                  all have drained, or the time to drain is over
//!   Open ──────────▶ Draining ──────────────────────────────────────────────────▶ Quiet
//!    ▲                  │ resume                                                     │ resume
//!    └──────────────────┴────────────────────────────────────────────────────────────┘
//! ```
//!
//! A proxy is asked to let no transaction begin, and says when its open ones have ended. Nothing depends on that: what is open
//! when PostgreSQL stops ends with it, as ever. A hold ends by itself at the proxy ([`super::held`]), whatever becomes of
//! this agent.
//!
//! Invariant: no proxy is waited for longer than the time to drain, and none that is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use dax::ids::Epoch;
use serde::{Deserialize, Serialize};

/// Time since some start; never goes back.
pub(super) type Time = Duration;

/// A connection of a proxy.
pub(super) type ProxyNumber = u64;

/// What a proxy is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldOrder {
    /// The epoch of the active that is about to stop.
    pub epoch: Epoch,
    /// Which hold of this agent it is.
    pub number: u64,
    /// Open transactions may go on for so long, in milliseconds.
    pub drain_ms: u64,
    /// Whatever happens, the hold ends after so long, in milliseconds.
    pub at_most_ms: u64,
}

/// True if proxies hold. Pure; see the module.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// The number of the last hold.
    number: u64,
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    epoch: Epoch,
    drain_until: Time,
    ends_at: Time,
    /// Who has not said that it has drained.
    waited_for: BTreeSet<ProxyNumber>,
}

impl Holding {
    /// The active of `epoch` begins a hold of these proxies. Who holds already for an earlier one goes on holding.
    pub(super) fn hold(
        &mut self,
        epoch: Epoch,
        proxies: impl IntoIterator<Item = ProxyNumber>,
        drain: Duration,
        at_most: Duration,
        now: Time,
    ) {
        self.number += 1;
        self.held = Some(Held {
            epoch,
            drain_until: now + drain,
            ends_at: now + at_most,
            waited_for: proxies.into_iter().collect(),
        });
    }

    /// What a proxy is to be told now, if there is a hold.
    pub(super) fn order(&self, now: Time) -> Option<HoldOrder> {
        let held = self.held.as_ref().filter(|held| now < held.ends_at)?;
        let ms = |until: Time| until.saturating_sub(now).as_millis() as u64;
        Some(HoldOrder {
            epoch: held.epoch,
            number: self.number,
            drain_ms: ms(held.drain_until),
            at_most_ms: ms(held.ends_at),
        })
    }

    /// A proxy came: it is told of a hold, and waited for like the others.
    pub(super) fn joined(&mut self, proxy: ProxyNumber) {
        if let Some(held) = &mut self.held {
            held.waited_for.insert(proxy);
        }
    }

    /// A proxy has no open transaction any more.
    pub(super) fn drained(&mut self, proxy: ProxyNumber, number: u64) {
        if let Some(held) = self.held.as_mut().filter(|_| number == self.number) {
            held.waited_for.remove(&proxy);
        }
    }

    /// A proxy is gone, and its transactions with it.
    pub(super) fn left(&mut self, proxy: ProxyNumber) {
        if let Some(held) = &mut self.held {
            held.waited_for.remove(&proxy);
        }
    }

    /// Transactions may begin again. The number of the hold that ended.
    pub(super) fn resume(&mut self) -> Option<u64> {
        self.held.take().map(|_| self.number)
    }

    /// True if nobody is waited for any more.
    pub(super) fn is_quiet(&self, now: Time) -> bool {
        let waits = |held: &Held| now < held.drain_until && !held.waited_for.is_empty();
        !self.held.as_ref().is_some_and(waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAIN: Duration = Duration::from_secs(5);
    const AT_MOST: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    fn holding(proxies: &[ProxyNumber]) -> Holding {
        let mut holding = Holding::default();
        holding.hold(Epoch(3), proxies.iter().copied(), DRAIN, AT_MOST, at(100));
        holding
    }

    #[test]
    fn everybody_drains_or_is_waited_for_no_longer() {
        let mut holding = holding(&[1, 2, 3]);
        assert!(!holding.is_quiet(at(100)));
        holding.drained(1, 1);
        holding.left(2);
        assert!(!holding.is_quiet(at(104)));
        assert!(holding.is_quiet(at(105)), "the time is over");
        holding.drained(3, 1);
        assert!(holding.is_quiet(at(101)));
    }

    #[test]
    fn without_proxies_nothing_is_waited_for() {
        assert!(holding(&[]).is_quiet(at(100)));
        assert!(Holding::default().is_quiet(at(0)));
    }

    #[test]
    fn an_answer_to_an_earlier_hold_does_not_count() {
        let mut holding = holding(&[1]);
        assert_eq!(holding.resume(), Some(1));
        assert_eq!(holding.resume(), None);
        holding.hold(Epoch(3), [1], DRAIN, AT_MOST, at(200));
        holding.drained(1, 1);
        assert!(!holding.is_quiet(at(201)));
        holding.drained(1, 2);
        assert!(holding.is_quiet(at(201)));
    }

    #[test]
    fn late_subscribers_get_the_remaining_time() {
        let mut holding = holding(&[]);
        holding.joined(4);
        assert!(!holding.is_quiet(at(103)));
        let order = HoldOrder {
            epoch: Epoch(3),
            number: 1,
            drain_ms: 2_000,
            at_most_ms: 27_000,
        };
        assert_eq!(holding.order(at(103)), Some(order));
        assert_eq!(holding.order(at(130)), None, "it is over everywhere");
    }
}
