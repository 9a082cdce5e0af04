//! The steps of a move of the base, in their order (pure: no clock, no I/O).
//!
//! ```text
//!                    ┌───────────── nothing new ──────────────┐
//!                    ▼                                        │
//!   ┌──────────▶ Resting ── sealed, or some time passed ──▶ Looking ── not of our line ─▶ Over
//!   │                │ ▲                                      │ a newer seal
//!   │    claim stale │ │ done, failed                         ▼
//!   │                ▼ │                                   Claiming ── claim lost ──────▶ Over
//!   │            Narrowing ◀──────── moved ───────┐           │ claimed, and still there
//!   │                                             │           ▼
//!   │                                             │        Loading
//!   │                                             │           │ loaded
//!   │                          applied reached P  │           ▼
//!   └── failed, from anywhere ─┐              Settling     Waiting    until the replay limit is ≥ W
//!                              │        held at P ▲ │ quiet   │
//!                              │                  │ ▼         ▼
//!                              └──────────────  Ready ◀──── Planning
//!                                     until applied ≥ W
//! ```
//!
//! P is the replay limit at the moment when the log is held: the end of a record, so redo that has applied it is
//! at rest. (Not the replay limit when redo last told where it is: more log may have been shown since.)
//! Holding stops nothing before redo comes there, and ends when redo stands still for
//! [`QUIET`]: an operator may have paused it, and then it tries again later.
//!
//! Invariants: the log is held in `Settling` only, and whoever leaves it moves or releases; one piece
//! of work is under way in `Looking`, `Claiming`, `Loading`, `Planning` and `Narrowing`, none in the
//! other steps; a base is moved to only with applied ≥ P ≥ W.

use std::time::Duration;

use dax::ids::Generation;
use volume::lsn::Lsn;

/// How often the seals are looked at when nobody tells of a new one.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(15);
/// After something failed.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// How long redo may stand still below P before the log is released. Longer than queries may hold it
/// up by default (`standby.max_streaming_delay`): what redo does not read yet it does not miss.
pub(super) const QUIET: Duration = Duration::from_secs(2);
/// How often redo is asked where it is while the log is held.
pub(super) const ASK_EVERY: Duration = Duration::from_millis(3);

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// Somebody tells that a generation was sealed.
    Sealed(Generation),
    /// The seals were looked at: there is a newer one of our line, with this end (W).
    Newer(Lsn),
    /// The seals were looked at: there is none.
    NothingNew,
    /// The active seals a line that the base is not part of.
    OtherLine,
    /// The new image is claimed and still there.
    Claimed,
    /// The new image is not kept any more: it was claimed too late.
    Gone,
    /// This standby's claim was given up.
    ClaimLost,
    /// The new image is loaded.
    Loaded,
    /// It is known what a move does.
    Planned,
    /// The base moved to the seal of this generation.
    Moved(Generation),
    /// What is claimed differs from what is used.
    Stale,
    /// The claim is what is used.
    Narrowed,
    /// The work under way failed.
    Failed,
    /// How far redo is.
    Progress(Lsn),
    /// Time passed.
    Time,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Look at the seals.
    Look,
    /// Claim the new image besides the old, then look whether it is still kept.
    Claim,
    /// Load the new image.
    Load,
    /// Find out what the move will do.
    Plan,
    /// Show no more log.
    Hold,
    /// Ask PostgreSQL how far redo is.
    Ask,
    /// Move the base now: redo is at rest.
    Move,
    /// Show the log that came meanwhile.
    Release,
    /// Claim what is used, no more.
    Narrow,
    /// Attach afresh.
    AttachAfresh,
}

/// Where in the diagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Resting { look_at: Duration },
    Looking,
    Claiming,
    Loading,
    Waiting,
    Planning,
    Ready { hold_at: Duration },
    Settling(Settling),
    Narrowing,
    Over,
}

/// The log is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Settling {
    /// P.
    to: Lsn,
    /// How far redo was when it was last seen to advance.
    applied: Lsn,
    /// Given up then, unless it advances.
    until: Duration,
    ask_at: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Steps {
    step: Step,
    /// The generation of the base.
    base: Generation,
    /// The newest seal that somebody told of.
    told: Generation,
    /// W of the seal to move to.
    end: Lsn,
    applied: Lsn,
    /// The log that is shown.
    replay_limit: Lsn,
}

impl Steps {
    /// Begins to look for seals after `base`, some time after `now`: when a standby attaches there is
    /// none.
    pub fn new(base: Generation, now: Duration) -> Steps {
        Steps {
            step: Step::Resting {
                look_at: now + LOOK_EVERY,
            },
            base,
            told: base,
            end: Lsn::ZERO,
            applied: Lsn::ZERO,
            replay_limit: Lsn::ZERO,
        }
    }

    /// True if the log must not be shown further.
    pub fn is_holding(&self) -> bool {
        matches!(self.step, Step::Settling(_))
    }

    /// When [`Input::Time`] is due, if nothing happens before.
    pub fn wake_at(&self) -> Option<Duration> {
        match self.step {
            Step::Resting { look_at } => Some(look_at),
            Step::Ready { hold_at } if self.applied >= self.end => Some(hold_at),
            Step::Settling(settling) => Some(settling.ask_at.min(settling.until)),
            _ => None,
        }
    }

    /// Reacts; what comes out is to be done in this order. `replay_limit` is the end of the log that is shown at
    /// this moment.
    pub fn on(&mut self, input: Input, replay_limit: Lsn, now: Duration) -> Vec<Effect> {
        self.replay_limit = self.replay_limit.max(replay_limit);
        match input {
            Input::Sealed(generation) => self.told = self.told.max(generation),
            Input::Progress(applied) => self.applied = self.applied.max(applied),
            _ => {}
        }
        let mut effects = Vec::new();
        self.react(input, now, &mut effects);
        effects
    }

    fn react(&mut self, input: Input, now: Duration, out: &mut Vec<Effect>) {
        use Input as In;
        let enter = |step, effect| (Some(step), Some(effect));
        let (next, effect) = match (self.step, input) {
            (Step::Over, _) => (None, None),
            (Step::Resting { .. }, In::Sealed(_)) => (Some(self.rest_until_told(now)), None),
            (Step::Resting { .. }, In::Stale) => enter(Step::Narrowing, Effect::Narrow),
            (Step::Looking, In::Newer(end)) => {
                self.end = end;
                enter(Step::Claiming, Effect::Claim)
            }
            (Step::Looking, In::NothingNew) => {
                // Whatever was told of, the record does not have it (any more).
                self.told = self.base;
                (Some(rest(now + LOOK_EVERY)), None)
            }
            (Step::Looking, In::OtherLine) | (Step::Claiming | Step::Narrowing, In::ClaimLost) => {
                enter(Step::Over, Effect::AttachAfresh)
            }
            (Step::Claiming, In::Claimed) => enter(Step::Loading, Effect::Load),
            // There is a newer one, or else this one would be kept.
            (Step::Claiming, In::Gone) => enter(Step::Looking, Effect::Look),
            (Step::Loading, In::Loaded) => (Some(Step::Waiting), None),
            (Step::Planning, In::Planned) => (Some(Step::Ready { hold_at: now }), None),
            (Step::Settling(_), In::Moved(generation)) => {
                self.base = generation;
                out.push(Effect::Release);
                enter(Step::Narrowing, Effect::Narrow)
            }
            (Step::Narrowing, In::Narrowed) => (Some(self.rest_until_told(now)), None),
            (Step::Settling(_), In::Failed) => (Some(rest(now + RETRY)), Some(Effect::Release)),
            (_, In::Failed) => (Some(rest(now + RETRY)), None),
            _ => (None, None),
        };
        self.step = next.unwrap_or(self.step);
        out.extend(effect);
        self.go_on(now, out);
    }

    /// Rests until the next look, which is now if somebody told of a newer seal.
    fn rest_until_told(&self, now: Duration) -> Step {
        match self.told > self.base {
            true => rest(now),
            false => rest(now + LOOK_EVERY),
        }
    }

    /// Steps that the clock, a seal or progress takes.
    fn go_on(&mut self, now: Duration, out: &mut Vec<Effect>) {
        match self.step {
            Step::Resting { look_at } if now >= look_at => {
                self.step = Step::Looking;
                out.push(Effect::Look);
            }
            Step::Waiting if self.replay_limit >= self.end => {
                self.step = Step::Planning;
                out.push(Effect::Plan);
            }
            Step::Ready { hold_at } if now >= hold_at && self.applied >= self.end => {
                self.step = Step::Settling(Settling {
                    to: self.replay_limit,
                    applied: self.applied,
                    until: now + QUIET,
                    ask_at: now,
                });
                out.push(Effect::Hold);
                self.settle(now, out);
            }
            Step::Settling(_) => self.settle(now, out),
            _ => {}
        }
    }

    fn settle(&mut self, now: Duration, out: &mut Vec<Effect>) {
        let Step::Settling(settling) = &mut self.step else {
            return;
        };
        if self.applied >= settling.to {
            out.push(Effect::Move);
            return;
        }
        if self.applied > settling.applied {
            settling.applied = self.applied;
            settling.until = now + QUIET;
        }
        if now >= settling.until {
            self.step = Step::Ready {
                hold_at: now + RETRY,
            };
            out.push(Effect::Release);
        } else if now >= settling.ask_at {
            settling.ask_at = now + ASK_EVERY;
            out.push(Effect::Ask);
        }
    }
}

fn rest(look_at: Duration) -> Step {
    Step::Resting { look_at }
}

#[cfg(test)]
mod tests;
