//! The transitions, entered through [`Machine::on`].

use std::time::Duration;

use dax::ids::Epoch;

use super::protection::{NodesSeen, Protection};
use super::{Effect, Event, Failure, Machine, Phase, State};

type Effects = Vec<Effect>;

impl Machine {
    /// Takes an event in and says what must be done at once. Events that mean nothing in the present
    /// state have no effect.
    pub fn on(&mut self, event: Event, now: Duration) -> Effects {
        match event {
            Event::Tick => self.tick(now),
            Event::Seen(registry) => return self.seen(&registry, now),
            Event::Control {
                paused,
                standbys,
                fits,
            } => {
                self.fits = fits;
                self.control(paused, standbys);
            }
            Event::Judged(verdict) => self.judged(verdict, now),
            Event::Vacant { to } => self.vacant(to.as_ref(), now),
            Event::Better(better) => self.better = better,
            Event::Attached => self.attached(),
            Event::Level(level) => self.level(level),
            Event::MustReattach(_) => self.discard_if(self.state.is_candidate()),
            Event::RedoWorked => self.redo_failed = false,
            Event::EpochOwned(epoch) => self.epoch_owned(epoch),
            Event::PhaseDone(phase) => self.phase_done(phase),
            Event::Failed(failure) => return self.failed(&failure, now),
            Event::Superseded => self.superseded(),
            Event::StoreLost => return self.store_lost(),
            Event::StoreBack => self.store_back(),
            Event::Restarted => self.restarted(),
            Event::PostgresExited {
                redo_failed,
                report,
            } => return self.postgres_exited(redo_failed, &report, now),
            Event::Asked(ask) => return self.asked(ask),
            Event::Cleared => self.cleared(now),
            Event::NodesSeen(nodes_seen) => return self.nodes_seen(nodes_seen, now),
            Event::Stop => self.stop(),
        }
        Vec::new()
    }

    /// When the machine wants a [`Event::Tick`] at the latest.
    pub fn wake_at(&self) -> Option<Duration> {
        match self.state {
            State::BackingOff => Some(self.retry_at),
            _ => self.turn_begins(),
        }
    }

    pub(super) fn go(&mut self, state: State) {
        if state == State::Looking {
            // A new look, unless a spare goes on with what it saw.
            self.look = self.look.take().filter(|_| self.state == State::Spare);
        }
        if !state.is_candidate() {
            self.suspicion = None;
        }
        self.state = state;
    }

    fn tick(&mut self, now: Duration) {
        match self.state {
            State::BackingOff if now >= self.retry_at => self.go(State::Looking),
            _ => self.turn(now),
        }
    }

    fn control(&mut self, paused: bool, standbys: Option<usize>) {
        (self.paused, self.wanted) = (paused, standbys);
        // Nothing was changed yet, and nobody asked for it: this is what the pause is for, and the check of libraries.
        let by_itself = self.decision.as_ref().is_some_and(|d| d.is_failover());
        if (paused || !self.fits) && by_itself && self.state == State::TakingOver(Phase::Fence) {
            self.decision = None;
            self.go(State::CatchingUp);
        }
    }

    // ---- standby ----------------------------------------------------------------------------

    fn attached(&mut self) {
        if self.state == State::Attaching {
            (self.lived, self.stands) = (true, true);
            self.better = 0;
            self.go(State::CatchingUp);
        }
    }

    fn level(&mut self, level: bool) {
        match self.state {
            State::CatchingUp if level => {
                self.failures = 0;
                self.go(State::Warm);
            }
            State::Warm if !level => self.go(State::CatchingUp),
            _ => {}
        }
    }

    fn discard_if(&mut self, holds: bool) {
        if holds {
            self.go(State::Discarding);
        }
    }

    // ---- takeover ---------------------------------------------------------------------------

    fn epoch_owned(&mut self, epoch: Epoch) {
        if self.state == State::TakingOver(Phase::Fence) {
            self.epoch = Some(epoch);
            self.go(State::TakingOver(Phase::LogTail));
        }
    }

    fn phase_done(&mut self, phase: Phase) {
        if self.state != State::TakingOver(phase) {
            return;
        }
        let next = match phase {
            // Owning an epoch says so itself.
            Phase::Fence => return,
            Phase::LogTail => State::TakingOver(Phase::Replay),
            Phase::Replay => State::TakingOver(Phase::Promote),
            Phase::Promote => State::Serving,
        };
        if next == State::Serving {
            (self.lived, self.failures, self.redo_failed) = (true, 0, false);
            self.successor = None;
            self.protection = Protection::default();
        }
        self.go(next);
    }

    // ---- active -----------------------------------------------------------------------------

    fn store_lost(&mut self) -> Effects {
        if self.state != State::Serving {
            return Vec::new();
        }
        self.go(State::Stalled);
        vec![Effect::Alarm(
            "too few zones answer: writes wait until they do".to_owned(),
        )]
    }

    fn store_back(&mut self) {
        if self.state == State::Stalled {
            self.go(State::Serving);
        }
    }

    fn restarted(&mut self) {
        if self.state == State::Restarting {
            self.go(State::Serving);
        }
    }

    fn nodes_seen(&mut self, nodes_seen: NodesSeen, now: Duration) -> Effects {
        if !self.state.is_active() {
            return Vec::new();
        }
        let (me, wanted, limits) = (&self.me, self.wanted, &self.limits);
        let spare = self.protection.count(me, nodes_seen, wanted, limits, now);
        spare.map(Effect::Enlist).into_iter().collect()
    }

    // ---- the end of a life -------------------------------------------------------------------

    /// Somebody owns a higher epoch.
    fn superseded(&mut self) {
        match self.state {
            // What it holds is part of the next active's history as well: it goes on with that one.
            State::CatchingUp | State::Warm => self.go(State::CatchingUp),
            // Nothing was changed yet.
            State::TakingOver(Phase::Fence) if self.stands => self.lost(State::CatchingUp),
            State::TakingOver(_) => self.lost(State::Discarding),
            State::Serving | State::Stalled | State::Restarting | State::HandingOver => {
                self.epoch = None;
                self.go(State::Fenced);
            }
            _ => {}
        }
    }

    /// A takeover is over because somebody else was first.
    fn lost(&mut self, next: State) {
        self.epoch = None;
        self.decision = None;
        self.go(next);
    }

    fn failed(&mut self, failure: &Failure, now: Duration) -> Effects {
        let runs = !matches!(
            self.state,
            State::Fenced
                | State::Discarding
                | State::BackingOff
                | State::Stopping
                | State::Stopped
        );
        self.redo_failed |= failure.redo_failed;
        if !runs {
            return Vec::new();
        }
        if failure.superseded {
            match self.state {
                State::Looking | State::Spare => {}
                State::Attaching | State::CatchingUp | State::Warm => self.go(State::Discarding),
                _ => self.superseded(),
            }
            return Vec::new();
        }
        if !self.state.is_watching() {
            // What failed for another reason than redo may stand on the last seal again: the one before it grows old.
            self.redo_failed = failure.redo_failed;
        }
        self.epoch = None;
        self.decision = None;
        if failure.of_this_machine && !self.lived {
            self.go(State::Stopping);
            return vec![Effect::Alarm(failure.reason.clone())];
        }
        self.count_failure(now);
        self.go(State::Discarding);
        let redo = match failure.redo_failed {
            true => "; redo failed, so the next attach is at the seal before the last one",
            false => "",
        };
        vec![Effect::Alarm(format!("{}{redo}", failure.reason))]
    }

    fn postgres_exited(&mut self, redo_failed: bool, report: &str, now: Duration) -> Effects {
        let failure = |what: &str| Failure {
            reason: format!("{what}: {report}"),
            redo_failed,
            ..Failure::default()
        };
        match self.state {
            State::Attaching | State::CatchingUp | State::Warm => self.failed(
                &failure("the standby's PostgreSQL exited; reattaching"),
                now,
            ),
            State::TakingOver(_) => self.failed(&failure("PostgreSQL ended in a takeover"), now),
            State::Serving | State::Stalled | State::Restarting => {
                self.failed(&failure("PostgreSQL died; a standby may take over"), now)
            }
            // It was asked to, or it does not matter any more.
            _ => Vec::new(),
        }
    }

    fn count_failure(&mut self, now: Duration) {
        let factor = 1u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let wait = self.limits.backoff_min.saturating_mul(factor);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now + wait.min(self.limits.backoff_max);
    }

    /// What this life held is gone.
    fn cleared(&mut self, now: Duration) {
        let next = match self.state {
            State::Discarding if now < self.retry_at => State::BackingOff,
            State::Fenced | State::Discarding | State::HandingOver => State::Looking,
            State::Stopping => State::Stopped,
            _ => return,
        };
        (self.epoch, self.stands) = (None, false);
        self.go(next);
    }

    fn stop(&mut self) {
        if !matches!(self.state, State::Stopping | State::Stopped) {
            self.go(State::Stopping);
        }
    }
}
