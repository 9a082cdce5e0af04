//! When a standby takes over: whom it suspects, whom it lets go first, and what holds it back.

use std::time::Duration;

use super::{Cause, Decider, Decision, Evidence, Machine, Verdict};

/// What a standby thinks of its active.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Suspicion {
    /// Since when it is thought to be gone; later judgements keep that.
    since: Option<(Duration, Evidence)>,
    /// The active handed over to this node.
    chosen: bool,
}

impl Machine {
    /// The detector looked at the active.
    pub(super) fn judged(&mut self, verdict: Verdict, now: Duration) {
        if !self.state.is_candidate() {
            return;
        }
        let chosen = self.is_chosen();
        let since = match verdict {
            Verdict::Suspect { since, evidence } => Some((since, evidence)),
            // Who cannot tell waits, and begins anew when it can.
            Verdict::Alive | Verdict::Blind { .. } => None,
        };
        self.suspicion = Some(Suspicion { since, chosen });
        self.turn(now);
    }

    /// The active said that it no longer serves.
    pub(super) fn vacant(&mut self, to: Option<&dax::ids::NodeName>, now: Duration) {
        if !self.state.is_candidate() || to != Some(&self.me) {
            // Whoever is not named goes by the detector, which hears of it, too.
            return;
        }
        let before = self.suspicion.take().and_then(|s| s.since);
        self.suspicion = Some(Suspicion {
            since: before,
            chosen: true,
        });
        self.turn(now);
    }

    fn is_chosen(&self) -> bool {
        self.suspicion.as_ref().is_some_and(|s| s.chosen)
    }

    /// Takes over if it is time for that.
    pub(super) fn turn(&mut self, now: Duration) {
        if !self.state.is_candidate() {
            return;
        }
        if self.is_chosen() {
            // An operator's order to the old active.
            let decision = Decision {
                cause: Cause::Switchover,
                by: Decider::Operator,
            };
            return self.take_over(decision);
        }
        let Some(begin) = self.turn_at() else { return };
        if now < begin {
            return;
        }
        let evidence = self.suspicion.take().and_then(|s| s.since);
        let evidence = evidence.map(|(_, evidence)| evidence.to_string());
        self.take_over(Decision {
            cause: Cause::Failover {
                evidence: evidence.unwrap_or_default(),
            },
            by: Decider::Automatic,
        });
    }

    /// When this standby takes over by itself, as things are.
    fn turn_at(&self) -> Option<Duration> {
        let (since, _) = self.suspicion.as_ref()?.since.as_ref()?;
        let held = self.paused || self.tags.nofailover || !self.fits;
        (!held).then(|| *since + self.head_start())
    }

    /// How much later than the best one this node should take over.
    fn head_start(&self) -> Duration {
        (self.limits.head_start * u32::from(self.better)).min(self.limits.head_start_max)
    }

    /// When to look again whether it is time.
    pub(super) fn turn_begins(&self) -> Option<Duration> {
        self.state.is_candidate().then(|| self.turn_at()).flatten()
    }

    /// True if a better standby is given its head start: its success should be noticed soon.
    pub fn awaits_turn(&self) -> bool {
        self.turn_begins().is_some()
    }
}
