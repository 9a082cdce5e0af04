//! The transitions: one function per state, all private, entered through [`Machine::on`].

use std::time::Duration;

use dax::ids::{Epoch, NodeName};

use super::{Effect, Event, Health, Leader, Machine, Phase, State};
use crate::postgres::StopMode;
use crate::records::{ActiveState, Cause};

type Effects = Vec<Effect>;

/// How PostgreSQL ended.
struct Exit {
    clean: bool,
    redo_failed: bool,
    report: String,
}

impl Machine {
    /// Takes an event in and says what must be done, in order. Events that mean nothing in the
    /// present state have no effect.
    pub fn on(&mut self, event: Event, now: Duration) -> Effects {
        let looks = matches!(event, Event::Tick | Event::Leader(_));
        let before = self.state;
        let mut effects = match event {
            Event::Tick => Vec::new(),
            Event::Leader(leader) => self.learn(leader, now),
            Event::Better(n) => {
                self.better = n;
                Vec::new()
            }
            Event::WarmStandbys(n) => {
                self.warm_standbys = n;
                Vec::new()
            }
            Event::Attached => self.attached(),
            Event::AttachFailed { reason } => self.attach_failed(&reason, now),
            Event::CaughtUp => self.caught_up(),
            Event::FellBehind => self.fell_behind(),
            Event::MustReattach { reason } => self.must_reattach(&reason),
            Event::EpochOwned(epoch) => self.epoch_owned(epoch),
            Event::EpochLost => self.epoch_lost(),
            Event::PhaseDone(phase) => self.phase_done(phase),
            Event::PhaseFailed { phase, reason } => self.phase_failed(phase, &reason),
            Event::StoreLost => self.store_lost(),
            Event::StoreBack => self.store_back(),
            Event::Fenced => self.fenced(),
            Event::PostgresExited {
                clean,
                redo_failed,
                report,
            } => {
                let exit = Exit {
                    clean,
                    redo_failed,
                    report,
                };
                self.postgres_exited(&exit, now)
            }
            Event::FailoverRequested { to, force } => self.requested(to, force),
            Event::Enlist => self.enlist(),
            Event::Stop => self.stop(),
        };
        // Is it time for something that only waited?
        if looks || self.state != before {
            effects.extend(self.due(now));
        }
        effects
    }

    fn go(&mut self, state: State) {
        self.state = state;
    }

    // ---- what is known of the leader --------------------------------------------------------

    fn learn(&mut self, leader: Leader, now: Duration) -> Effects {
        self.leader = leader;
        let vacant = self.is_vacant();
        match self.vacant_since {
            None if vacant => self.vacant_since = Some(now),
            Some(_) if !vacant => self.vacant_since = None,
            _ => {}
        }
        if self.state != State::Starting || self.leader == Leader::Unknown {
            return Vec::new();
        }
        if self.tags.spare {
            self.go(State::Spare);
            return Vec::new();
        }
        self.attach()
    }

    /// Whether nobody serves, as far as is known.
    fn is_vacant(&self) -> bool {
        match &self.leader {
            Leader::Never | Leader::OwnPast => true,
            Leader::Other { health, .. } => {
                matches!(health, Health::Suspect(_) | Health::Vacant { .. })
            }
            Leader::Unknown | Leader::Me => false,
        }
    }

    /// What waited for its time.
    fn due(&mut self, now: Duration) -> Effects {
        match self.state {
            State::Backoff if now >= self.retry_at => self.attach(),
            State::Spare if self.vacant_for(now) >= Some(self.limits.spare_wait) => self.attach(),
            state if state.is_candidate() && self.may_lead(now) => {
                let cause = self.cause_now();
                self.take_over(cause)
            }
            _ => Vec::new(),
        }
    }

    fn vacant_for(&self, now: Duration) -> Option<Duration> {
        self.vacant_since.map(|since| now.saturating_sub(since))
    }

    fn may_lead(&self, now: Duration) -> bool {
        let Some(vacant_for) = self.vacant_for(now) else {
            return false;
        };
        if self.tags.nofailover || now < self.yield_until {
            return false;
        }
        vacant_for >= self.head_start()
    }

    /// How long others go first.
    fn head_start(&self) -> Duration {
        let better = self.limits.stagger * u32::from(self.better);
        match &self.leader {
            Leader::Other {
                health: Health::Vacant { to: Some(to) },
                ..
            } if *to == self.me => Duration::ZERO,
            Leader::Other {
                health: Health::Vacant { to: Some(_) },
                ..
            } => self.limits.handover_wait + better,
            _ => better,
        }
    }

    fn cause_now(&self) -> Cause {
        match &self.leader {
            Leader::Other {
                health: Health::Suspect(evidence),
                ..
            } => Cause::Failover {
                evidence: evidence.to_string(),
            },
            Leader::Other {
                health: Health::Vacant { to: Some(_) },
                ..
            } => Cause::Switchover,
            Leader::Other { .. } => Cause::Failover {
                evidence: "the active says that it no longer serves".to_owned(),
            },
            _ => Cause::Started,
        }
    }

    // ---- standby ----------------------------------------------------------------------------

    fn attach(&mut self) -> Effects {
        self.go(State::Attaching);
        vec![Effect::Attach(self.seal_choice())]
    }

    fn attached(&mut self) -> Effects {
        if self.state == State::Attaching {
            self.go(State::CatchingUp);
        }
        Vec::new()
    }

    fn attach_failed(&mut self, reason: &str, now: Duration) -> Effects {
        if self.state != State::Attaching {
            return Vec::new();
        }
        let mut effects = vec![Effect::Drop];
        if self.attempts > 0 {
            effects.push(Effect::Alarm(format!("cannot attach: {reason}")));
        }
        self.back_off(now);
        effects
    }

    fn caught_up(&mut self) -> Effects {
        if self.state == State::CatchingUp {
            self.attempts = 0;
            self.redo_failures = 0;
            self.go(State::Standby);
        }
        Vec::new()
    }

    fn fell_behind(&mut self) -> Effects {
        if self.state == State::Standby {
            self.go(State::CatchingUp);
        }
        Vec::new()
    }

    fn must_reattach(&mut self, reason: &str) -> Effects {
        if !self.state.is_candidate() {
            return Vec::new();
        }
        tracing::info!(reason, "the standby attaches afresh");
        self.go(State::Discarding);
        vec![Effect::StopPostgres(StopMode::Immediate)]
    }

    fn enlist(&mut self) -> Effects {
        match self.state {
            State::Spare => {
                let mut effects = vec![Effect::Reply(Ok(()))];
                effects.extend(self.attach());
                effects
            }
            state => vec![Effect::Reply(Err(format!(
                "this node is no spare, it is {state}"
            )))],
        }
    }

    fn back_off(&mut self, now: Duration) {
        let doubled = self.attempts.checked_sub(1).map(|n| {
            let factor = 1u32.checked_shl(n).unwrap_or(u32::MAX);
            self.limits.backoff_min.saturating_mul(factor)
        });
        let wait = doubled.unwrap_or_default().min(self.limits.backoff_max);
        self.attempts = self.attempts.saturating_add(1);
        self.retry_at = now + wait;
        self.go(State::Backoff);
    }

    // ---- takeover ---------------------------------------------------------------------------

    fn take_over(&mut self, cause: Cause) -> Effects {
        self.came_from = self.state;
        self.cause = cause;
        self.go(State::TakingOver(Phase::Fence));
        vec![Effect::Run(Phase::Fence)]
    }

    fn epoch_owned(&mut self, epoch: Epoch) -> Effects {
        if self.state != State::TakingOver(Phase::Fence) {
            return Vec::new();
        }
        self.epoch = Some(epoch);
        self.go(State::TakingOver(Phase::LogTail));
        vec![
            Effect::Beat(ActiveState::TakingOver),
            Effect::Run(Phase::LogTail),
        ]
    }

    /// Somebody else was first: nothing was changed, so go on as what we were, behind them.
    fn epoch_lost(&mut self) -> Effects {
        if self.state == State::TakingOver(Phase::Fence) {
            self.leader = Leader::Unknown;
            self.vacant_since = None;
            self.go(self.came_from);
        }
        Vec::new()
    }

    fn phase_done(&mut self, phase: Phase) -> Effects {
        if self.state != State::TakingOver(phase) || phase == Phase::Fence {
            return Vec::new();
        }
        if let Some(next) = phase.next() {
            self.go(State::TakingOver(next));
            return vec![Effect::Run(next)];
        }
        (self.attempts, self.redo_failures) = (0, 0);
        self.go(State::Active);
        vec![
            Effect::Beat(ActiveState::Serving),
            Effect::Record(self.cause.clone()),
        ]
    }

    /// Drop what was made of it and attach afresh; somebody else may be luckier meanwhile.
    fn phase_failed(&mut self, phase: Phase, reason: &str) -> Effects {
        if self.state != State::TakingOver(phase) {
            return Vec::new();
        }
        let mut effects = vec![Effect::Alarm(format!(
            "takeover failed in {phase}: {reason}"
        ))];
        effects.extend(self.vacate(&ActiveState::PostgresDead));
        self.go(State::Discarding);
        effects.push(Effect::StopPostgres(StopMode::Immediate));
        effects
    }

    // ---- active -----------------------------------------------------------------------------

    fn store_lost(&mut self) -> Effects {
        if self.state != State::Active {
            return Vec::new();
        }
        self.go(State::Stalled);
        vec![Effect::Alarm(
            "too few zones answer: writes wait".to_owned(),
        )]
    }

    fn store_back(&mut self) -> Effects {
        if self.state == State::Stalled {
            self.go(State::Active);
        }
        Vec::new()
    }

    fn fenced(&mut self) -> Effects {
        if !self.state.owns_epoch() {
            return Vec::new();
        }
        self.epoch = None;
        self.go(State::Fenced);
        vec![Effect::StopPostgres(StopMode::Immediate)]
    }

    /// Says everywhere that the epoch we own no longer serves, so that nobody waits for Tmax.
    fn vacate(&mut self, state: &ActiveState) -> Effects {
        if self.epoch.take().is_none() {
            return Vec::new();
        }
        // What follows us is not known yet; we ourselves are the last thing we knew.
        self.leader = Leader::Unknown;
        self.vacant_since = None;
        vec![
            Effect::Announce(state.clone()),
            Effect::LastBeat(state.clone()),
        ]
    }

    fn postgres_exited(&mut self, exit: &Exit, now: Duration) -> Effects {
        match self.state {
            State::Active | State::Stalled => self.active_died(exit, now),
            State::HandingOver => self.handed_over(exit, now),
            State::Fenced | State::Discarding => {
                let mut effects = vec![Effect::Drop];
                effects.extend(self.attach());
                effects
            }
            State::Stopping => self.stopped(exit),
            State::Attaching | State::CatchingUp | State::Standby | State::TakingOver(_) => {
                self.standby_died(exit, now)
            }
            State::Starting | State::Spare | State::Backoff | State::Stopped => Vec::new(),
        }
    }

    /// Leave the stage to a warm standby if there is one, and get ready to return meanwhile.
    fn active_died(&mut self, exit: &Exit, now: Duration) -> Effects {
        let mut effects = self.vacate(&ActiveState::PostgresDead);
        effects.push(Effect::Alarm(format!(
            "PostgreSQL of the active ended: {}",
            exit.report
        )));
        effects.push(Effect::Drop);
        if self.warm_standbys > 0 {
            self.yield_until = now + self.limits.self_recovery_wait;
        }
        self.back_off(now);
        effects
    }

    fn handed_over(&mut self, exit: &Exit, now: Duration) -> Effects {
        if !exit.clean {
            return self.active_died(exit, now);
        }
        let to = self.hand_over_to.take();
        let mut effects = self.vacate(&ActiveState::Released { to });
        effects.push(Effect::Drop);
        self.yield_until = now + self.limits.handover_wait;
        self.back_off(now);
        effects
    }

    fn standby_died(&mut self, exit: &Exit, now: Duration) -> Effects {
        let mut effects = self.vacate(&ActiveState::PostgresDead);
        effects.push(Effect::Drop);
        if exit.redo_failed {
            self.redo_failures = self.redo_failures.saturating_add(1);
            if self.redo_failures == self.limits.redo_failures {
                let report = &exit.report;
                effects.push(Effect::Alarm(format!(
                    "redo fails from the last seal, attaching at the one before it: {report}"
                )));
            }
        }
        self.back_off(now);
        effects
    }

    // ---- operators --------------------------------------------------------------------------

    fn requested(&mut self, to: Option<NodeName>, force: bool) -> Effects {
        match self.objection(to.as_ref(), force) {
            Some(why) => vec![Effect::Reply(Err(why))],
            None if self.state == State::Active => {
                self.hand_over_to = to;
                self.go(State::HandingOver);
                vec![Effect::Reply(Ok(())), Effect::StopPostgres(StopMode::Fast)]
            }
            None => {
                let mut effects = vec![Effect::Reply(Ok(()))];
                effects.extend(self.take_over(Cause::Forced));
                effects
            }
        }
    }

    fn objection(&self, to: Option<&NodeName>, force: bool) -> Option<String> {
        let me = &self.me;
        match (self.state, to) {
            (State::Active, Some(to)) if to == me => Some(format!("{me} is the active already")),
            (State::Active, _) if self.warm_standbys == 0 && !force => Some(
                "no standby could take over at once; use force to stop serving all the same"
                    .to_owned(),
            ),
            (State::Active, _) => None,
            (state, Some(to)) if state.is_candidate() && to != me => {
                Some(format!("this is {me}; ask {to}, or the active"))
            }
            (state, _) if state.is_candidate() && self.tags.nofailover => {
                Some(format!("{me} is tagged nofailover"))
            }
            (State::CatchingUp, _) if !force => Some(format!(
                "{me} is still catching up; use force to have it take over all the same"
            )),
            (state, _) if state.is_candidate() => None,
            (state, _) => Some(format!("{me} cannot do that while it is {state}")),
        }
    }

    fn stop(&mut self) -> Effects {
        match self.state {
            State::Stopping | State::Stopped => Vec::new(),
            // Clean where there is something to hand over, at once where all is private.
            State::Active | State::HandingOver => {
                self.go(State::Stopping);
                vec![Effect::StopPostgres(StopMode::Fast)]
            }
            _ => {
                self.go(State::Stopping);
                vec![Effect::StopPostgres(StopMode::Immediate)]
            }
        }
    }

    fn stopped(&mut self, exit: &Exit) -> Effects {
        let last = match exit.clean {
            true => ActiveState::Released {
                to: self.hand_over_to.take(),
            },
            false => ActiveState::PostgresDead,
        };
        let mut effects = self.vacate(&last);
        self.go(State::Stopped);
        effects.extend([Effect::Drop, Effect::Exit]);
        effects
    }
}
