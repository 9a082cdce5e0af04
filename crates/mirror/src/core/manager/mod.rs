//! A replication manager: who may serve, and what has committed.
//!
//! ```text
//!                 current, and the primary is lost: owns the next epoch, applies the rest of the log
//!            ┌──────────────────────────────────────────────────────────────┐
//!            │                                                              ▼
//!       ┌────┴────┐          ┌────────────┐   nobody is primary        ┌─────────┐
//!       │ standby │◀─────────│ recovering │───────────────────────────▶│ primary │
//!       └────┬────┘ current  └────────────┘   (in the same way)        └────┬────┘
//!            │                  ▲      ▲                                    │
//!            └──────────────────┘      └────────────────────────────────────┘
//!       its member is lost, differs          its epoch is over, its member is lost, it hands over
//!       or is too far behind
//! ```
//!
//! This is Figure 3 of the paper. The primary's member commits by itself, and nobody sees or is told of a commit before the log has it
//! ([`rows`]). Invariants: a transaction has committed if and only if the log has it durably, and the log is
//! written by the owner of the highest epoch alone, so a manager that lost its epoch acknowledges nothing. Nobody serves before its
//! member has everything that the log has. Members commit what is in the log without waiting for their disks: one whose server
//! crashes lacks what it had committed last, and executes it again, so the log keeps what a member does not have on its disk for
//! certain ([`Manager::saved`]), and what was done in an earlier life of the server counts for nothing. A primary answers reads only if the zones have confirmed its epoch within the
//! lease, and its successor does not serve before the lease has passed, so that no read is old if their clocks run equally
//! fast. If the lease passes, answers wait until the zones confirm the epoch again: it ends only if they say so, or say nothing for
//! some time. A member that differed once serves nobody, and executes nothing, until it is filled again. One that belongs to another log, or
//! has what the log has never had, does neither, nor is it made anew: the numbers of transactions would be taken for those that it has,
//! and which of both is right only an operator knows.
//!
//! A manager of a member that nobody mirrors yet has two states of its own ([`single`]).

mod member;
mod peer;
mod primary;
mod rows;
mod single;
mod standby;
#[cfg(test)]
mod tests;
mod types;

use std::collections::BTreeMap;

use super::captured::Captured;
use super::flaw::Flaw;
use super::ledger::Ledger;
use super::log::Identity;
use super::record::{Draft, Number};
use super::rows::Lsn;

pub use peer::Message;
use primary::Primary;
use standby::Standby;
pub use types::{CommitAck, Effect, Life, Role, Rules, Why};

/// A replication manager. Every method takes what happened and adds to `out` what is to be done.
#[derive(Debug)]
pub struct Manager {
    rules: Rules,
    role: Role,
    now_ms: u64,
    /// When a primary was last heard of, or might still have been.
    heard_ms: u64,
    /// The other manager's process seems to have ended.
    is_peer_gone: bool,
    /// The highest epoch that was heard of.
    highest: u32,
    /// The highest epoch whose owner is known to have stopped.
    ended: u32,
    /// An epoch is being taken.
    is_owning: bool,
    /// What the member has, if it answers.
    ledger: Option<Ledger>,
    /// Everything up to here is on the member's disk.
    saved: Number,
    /// The life of the member's server that the ledger is of.
    life: Life,
    /// Which log the member belongs to, if it is known.
    log: Option<Identity>,
    is_diverged: bool,
    is_behind: bool,
    is_ahead: bool,
    is_foreign: bool,
    /// Commits of transactions with rows.
    captured: Captured,
    primary: Option<Primary>,
    standby: Standby,
}

impl Manager {
    /// One that has just begun, and knows nothing.
    pub fn new(rules: Rules, now_ms: u64) -> Manager {
        let mut standby = Standby::default();
        standby.schedule.flaw = rules.flaw;
        Manager {
            rules,
            role: Role::Recovering(Why::Starting),
            now_ms,
            heard_ms: now_ms,
            is_peer_gone: false,
            highest: 0,
            ended: 0,
            is_owning: false,
            ledger: None,
            saved: Number(0),
            life: Life::default(),
            log: None,
            is_diverged: false,
            is_behind: false,
            is_ahead: false,
            is_foreign: false,
            captured: Captured::default(),
            primary: None,
            standby,
        }
    }

    /// Which state it is in.
    pub fn role(&self) -> Role {
        self.role
    }

    /// What its member has, if it answers.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.ledger.as_ref()
    }

    /// Which life of its member's server it has to do with.
    pub fn life(&self) -> Life {
        self.life
    }

    /// The epoch it serves in.
    pub fn epoch(&self) -> Option<u32> {
        self.primary.as_ref().map(|primary| primary.epoch)
    }

    /// True if another manager has said lately that it is primary.
    pub fn hears_primary(&self) -> bool {
        self.role != Role::Primary && self.highest > 0 && !self.is_silent()
    }

    /// The epoch that it takes over in.
    pub fn taking(&self) -> Option<u32> {
        self.standby.taking.as_ref().map(|taking| taking.epoch)
    }

    /// True if what the member says now is not old: to be asked after it was read.
    pub fn reads(&self, now_ms: u64) -> bool {
        let is_fresh =
            |primary: &Primary| now_ms.saturating_sub(primary.confirmed_ms) <= self.rules.lease_ms;
        self.role == Role::Single || self.primary.as_ref().is_some_and(is_fresh)
    }

    /// The last record that is durable, as far as this manager knows.
    pub fn last(&self) -> Number {
        let own = self.primary.as_ref().map(|primary| primary.durable);
        own.unwrap_or(self.standby.last)
    }

    /// What the other manager's member has, if it follows this one, and whether it is a standby.
    pub fn follower(&self) -> Option<(Number, bool)> {
        let follower = self.primary.as_ref()?.follower.as_ref()?;
        Some((follower.floor, follower.is_standby))
    }

    fn flawed(&self, flaw: Flaw) -> bool {
        self.rules.flaw == Some(flaw)
    }

    /// It is this time: to be said before anything else that happens.
    pub fn at(&mut self, now_ms: u64) -> &mut Manager {
        self.now_ms = now_ms;
        self
    }

    /// Time passes; to be called some times within the lease.
    pub fn tick(&mut self, out: &mut Vec<Effect>) {
        if self.rules.is_single {
            return;
        }
        if self.role == Role::Primary {
            self.primary_tick(out);
        } else if let Some(taking) = &self.standby.taking {
            out.push(Effect::Confirm(taking.epoch));
            self.see(out);
        } else if self.may_take_over() && self.is_silent() {
            self.own(out);
        }
    }

    fn is_silent(&self) -> bool {
        let waited_ms = self.now_ms.saturating_sub(self.heard_ms);
        match self.highest {
            // Of two that begin at once, one waits for the other.
            0 => waited_ms > self.rules.timeout_ms + self.rules.patience_ms,
            _ => self.is_peer_gone || waited_ms > self.rules.timeout_ms,
        }
    }

    fn may_take_over(&self) -> bool {
        let is_busy = self.is_owning || self.role == Role::Recovering(Why::TakingOver);
        self.is_fit() && !is_busy
    }

    /// True if its member can be made current by the log.
    fn is_fit(&self) -> bool {
        let is_lost = self.is_diverged || self.is_behind || self.is_ahead || self.is_foreign;
        self.ledger.is_some() && !is_lost
    }

    fn own(&mut self, out: &mut Vec<Effect>) {
        self.is_owning = true;
        out.push(Effect::LookAtLog);
    }

    /// Where the log begins, and which it is, if it says so: whoever lacks something before that, or belongs to another one, cannot be
    /// made current by it, and takes nobody's epoch.
    pub fn log_begins(&mut self, first: Number, log: Option<Identity>, out: &mut Vec<Effect>) {
        let Some(floor) = self.ledger.as_ref().map(Ledger::floor) else {
            return self.not_owned();
        };
        self.standby.log = log.or(self.standby.log);
        if log.is_some_and(|log| self.is_of_another(log)) {
            self.not_owned();
            return self.become_foreign();
        }
        if floor.next() < first && !self.flawed(Flaw::GapIgnored) {
            self.not_owned();
            self.is_behind = true;
            self.role = Role::Recovering(Why::Behind);
            return;
        }
        if self.saved.next() < first && !self.flawed(Flaw::GapIgnored) {
            // It would be behind once it had begun again, and the other one may have a surplus then. Its member says more soon.
            return self.not_owned();
        }
        out.push(Effect::Own);
    }

    /// Stops being whatever it is.
    fn step_down(&mut self, why: Why, out: &mut Vec<Effect>) {
        if self.role == Role::Recovering(Why::TakingOver) {
            out.push(Effect::Release);
        }
        if let Some(primary) = self.primary.take() {
            out.push(Effect::Unserve);
            let epoch = primary.epoch;
            self.ended = self.ended.max(epoch);
            if why != Why::Replaced {
                out.push(Effect::Release);
                out.push(Effect::Send(Message::Resigned { epoch }));
            }
            self.standby
                .restart(self.ledger.as_ref().map_or(Number(0), Ledger::floor));
        }
        // What could have been logged in its epoch may be a surplus now.
        self.standby.is_unsettled |= self.captured.is_known();
        self.heard_ms = self.now_ms;
        // Whoever makes the member anew looks at this.
        self.role = Role::Recovering(match why {
            Why::Replaced | Why::Starting if self.is_foreign => Why::Foreign,
            Why::Replaced | Why::Starting if self.is_diverged => Why::Diverged,
            Why::Replaced | Why::Starting if self.is_behind => Why::Behind,
            Why::Replaced | Why::Starting if self.is_ahead => Why::Ahead,
            why => why,
        });
    }

    /// An epoch is owned: nobody else can write the log any more.
    pub fn owned(&mut self, epoch: u32, out: &mut Vec<Effect>) {
        self.is_owning = false;
        self.highest = self.highest.max(epoch);
        if !self.is_fit() {
            // Its member was lost meanwhile, or is found not to be fit.
            out.push(Effect::Release);
            return;
        }
        self.role = Role::Recovering(Why::TakingOver);
        // Whoever was primary before says nothing that counts any more.
        self.standby.epoch = None;
        let is_over = self.ended + 1 >= epoch || self.flawed(Flaw::LeaseIgnored);
        let serves_ms = self.now_ms + if is_over { 0 } else { self.rules.lease_ms };
        self.standby.taking = Some(standby::Taking::new(epoch, self.now_ms, serves_ms));
        out.push(Effect::ReadLog);
    }

    /// No epoch could be owned: another manager was quicker.
    pub fn not_owned(&mut self) {
        self.is_owning = false;
        self.heard_ms = self.now_ms;
    }

    /// A higher epoch exists.
    pub fn fenced(&mut self, epoch: u32, out: &mut Vec<Effect>) {
        let is_ours = self.epoch() == Some(epoch)
            || self
                .standby
                .taking
                .as_ref()
                .is_some_and(|taking| taking.epoch == epoch);
        if !is_ours {
            return;
        }
        if self.flawed(Flaw::FenceIgnored)
            && let Some(last) = self.primary.as_ref().and_then(Primary::writing)
        {
            self.durable(epoch, last, out);
            return;
        }
        self.standby.taking = None;
        if self.role == Role::Recovering(Why::TakingOver) {
            self.role = Role::Recovering(Why::Replaced);
        }
        self.step_down(Why::Replaced, out);
    }

    /// The epoch stood at some moment after it was asked about, which was then.
    pub fn confirmed(&mut self, epoch: u32, asked_ms: u64, out: &mut Vec<Effect>) {
        if let Some(taking) = self
            .standby
            .taking
            .as_mut()
            .filter(|taking| taking.epoch == epoch)
        {
            taking.confirmed_ms = asked_ms;
            self.see(out);
        }
        if let Some(primary) = self
            .primary
            .as_mut()
            .filter(|primary| primary.epoch == epoch)
        {
            primary.confirmed_ms = primary.confirmed_ms.max(asked_ms);
            // What was asked too long ago helps nobody: somebody whose zones answer all of it so late serves no better.
            if self.now_ms.saturating_sub(asked_ms) <= self.rules.lease_ms {
                primary.asked = 0;
            }
        }
    }

    /// The member has everything that the log has, which ends here: serve.
    fn serve(&mut self, epoch: u32, last: Number, log: Identity, out: &mut Vec<Effect>) {
        self.standby.epoch = None;
        self.log = self.log.or(Some(log));
        self.role = Role::Primary;
        let confirmed_ms = self
            .standby
            .taking
            .as_ref()
            .map_or(self.now_ms, |taking| taking.confirmed_ms);
        self.standby.taking = None;
        self.primary = Some(Primary::new(epoch, last, log, confirmed_ms));
        out.push(Effect::Serve);
        self.send_alive(out);
    }

    /// The member has committed something, which is to be logged as the number that is returned: [`Effect::Logged`] and
    /// [`Effect::Answer`] follow.
    pub fn commit(&mut self, draft: Draft, out: &mut Vec<Effect>) -> Option<Number> {
        let flaw = self.rules.flaw;
        let primary = self.primary.as_mut();
        let number = primary.map(|primary| primary.commit(draft, flaw, out));
        if flaw == Some(Flaw::SentTooEarly) {
            self.pump(out);
        }
        number
    }

    /// Commits of this epoch that were given to the log and are not acknowledged, by their ends; and the number of records that are not
    /// durable.
    pub fn given(&self) -> (BTreeMap<Lsn, Number>, usize) {
        let primary = self.primary.as_ref();
        primary.map(Primary::given).unwrap_or_default()
    }

    /// Hands over to the standby as soon as that has all that was logged: nobody begins anything more.
    pub fn switch_over(&mut self, out: &mut Vec<Effect>) {
        if let Some(primary) = &mut self.primary {
            primary.is_draining = true;
        }
        self.hand_over(out);
    }

    /// Gives a handover up.
    pub fn stay(&mut self) {
        if let Some(primary) = &mut self.primary {
            primary.is_draining = false;
        }
    }

    fn hand_over(&mut self, out: &mut Vec<Effect>) {
        if self.primary.as_ref().is_some_and(Primary::may_hand_over) {
            self.step_down(Why::Starting, out);
        }
    }

    /// Records up to `last` are durable in the log of this epoch.
    pub fn durable(&mut self, epoch: u32, last: Number, out: &mut Vec<Effect>) {
        let flaw = self.rules.flaw;
        let Some(primary) = self
            .primary
            .as_mut()
            .filter(|primary| primary.epoch == epoch)
        else {
            return;
        };
        let first = primary.durable.next();
        primary.durable(last, self.rules.retain_records, flaw, out);
        for record in primary.recent_from(first) {
            self.captured.note(record);
        }
        if let Some(ledger) = &mut self.ledger {
            // What is logged in its epoch the member has made itself.
            (first.0..=last.0).for_each(|number| ledger.insert(Number(number)));
        }
        primary.answer(self.rules.commit_ack, out);
        self.pump(out);
        self.hand_over(out);
    }

    /// Everything up to here is on the member's disk, whatever becomes of its server.
    pub fn saved(&mut self, life: Life, floor: Number, out: &mut Vec<Effect>) {
        if life != self.life {
            return;
        }
        self.saved = self.saved.max(floor);
        if self.standby.epoch.is_some() {
            out.push(Effect::Send(Message::Saved { floor }));
        }
    }

    /// True if what a session of this life says counts for nothing any more.
    fn is_past(&self, life: Life) -> bool {
        life != self.life && !self.flawed(Flaw::LifeIgnored)
    }
}
