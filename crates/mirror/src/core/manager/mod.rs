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
//! This is Figure 3 of the paper. Invariants: a transaction has committed if and only if the log has it durably, and the log is
//! written by the owner of the highest epoch alone, so a manager that lost its epoch acknowledges nothing. Nobody serves before its
//! member has everything that the log has. Members commit what is in the log without waiting for their disks: one whose server
//! crashes lacks what it had committed last, and executes it again, so the log keeps what a member does not have on its disk for
//! certain ([`Manager::saved`]), and what was done in an earlier life of the server counts for nothing. A primary answers reads only if the zones have confirmed its epoch within the
//! lease, and its successor does not serve before the lease has passed, so that no read is old if their clocks run equally
//! fast. A member that differed once never serves, and executes nothing, until it was made anew. One that belongs to another log, or
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
use super::class::Claims;
use super::flaw::Flaw;
use super::ledger::Ledger;
use super::locks::Tx;
use super::log::Identity;
use super::record::{Draft, Number, Token};

pub use peer::Message;
use primary::Primary;
use standby::Standby;
pub use types::{Ack, Effect, Life, Role, Rules, Why};

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

    /// How many classes transactions have locked.
    pub fn locked(&self) -> usize {
        self.primary.as_ref().map_or(0, Primary::locked)
    }

    /// How many transactions that have locked something are under way.
    pub fn running(&self) -> usize {
        self.primary.as_ref().map_or(0, Primary::running)
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
        out.push(Effect::Own);
    }

    /// Stops being whatever it is.
    fn step_down(&mut self, why: Why, out: &mut Vec<Effect>) {
        if self.role == Role::Recovering(Why::TakingOver) {
            out.push(Effect::Release);
        }
        if let Some(primary) = self.primary.take() {
            out.push(Effect::Unserve);
            self.standby.is_unsettled = self.captured.is_known();
            let epoch = primary.epoch;
            self.ended = self.ended.max(epoch);
            if why != Why::Replaced {
                out.push(Effect::Release);
                out.push(Effect::Send(Message::Resigned { epoch }));
            }
            self.standby
                .restart(self.ledger.as_ref().map_or(Number(0), Ledger::floor));
        }
        self.heard_ms = self.now_ms;
        // Whoever makes the member anew looks at this.
        self.role = Role::Recovering(match why {
            Why::Replaced if self.is_foreign => Why::Foreign,
            Why::Replaced if self.is_diverged => Why::Diverged,
            Why::Replaced if self.is_behind => Why::Behind,
            Why::Replaced if self.is_ahead => Why::Ahead,
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

    /// A transaction that begins to write gets what its client can ask by.
    pub fn token(&mut self) -> Option<Token> {
        let primary = self.primary.as_mut()?;
        primary.tokens += 1;
        Some(Token {
            epoch: primary.epoch,
            count: primary.tokens,
        })
    }

    /// True if a transaction is committing: the log may get it, or has it, and the member does not have it yet.
    pub fn is_in_flight(&self, token: Token) -> bool {
        let primary = self.primary.as_ref();
        primary.is_some_and(|primary| primary.is_in_flight(token))
    }

    /// A transaction asks for what its next statement conflicts on: [`Effect::Granted`] or [`Effect::Deadlock`] follows, at
    /// once or later.
    pub fn lock(&mut self, tx: Tx, claims: &Claims, out: &mut Vec<Effect>) {
        let flaw = self.rules.flaw;
        if let Some(primary) = &mut self.primary {
            primary.lock(tx, claims, flaw, out);
        }
    }

    /// Whom a transaction waits for, if it waits.
    pub fn waits_for(&self, tx: Tx) -> Vec<Tx> {
        let primary = self.primary.as_ref();
        primary.map_or_else(Vec::new, |primary| primary.waits_for(tx))
    }

    /// A transaction does not wait any longer for what it has asked for; it keeps what it has.
    pub fn stop_waiting(&mut self, tx: Tx, out: &mut Vec<Effect>) {
        if let Some(primary) = &mut self.primary {
            primary.stop_waiting(tx, out);
        }
    }

    /// A transaction commits: [`Effect::Commit`] and [`Effect::Answer`] follow, with the number that is returned.
    pub fn commit(&mut self, tx: Tx, draft: Draft, out: &mut Vec<Effect>) -> Option<Number> {
        let flaw = self.rules.flaw;
        let primary = self.primary.as_mut();
        let number = primary.map(|primary| primary.commit(tx, draft, flaw, out));
        if flaw == Some(Flaw::SentTooEarly) {
            self.pump(out);
        }
        number
    }

    /// A transaction is over that has nothing in the log.
    pub fn ended(&mut self, tx: Tx, out: &mut Vec<Effect>) {
        if let Some(primary) = &mut self.primary {
            primary.release(tx, out);
        }
        self.hand_over(out);
    }

    /// Hands over to the standby as soon as no transaction is under way: new ones wait.
    pub fn switch_over(&mut self, out: &mut Vec<Effect>) {
        if let Some(primary) = &mut self.primary {
            primary.is_draining = true;
        }
        self.hand_over(out);
    }

    /// Gives a handover up: transactions that have waited go on.
    pub fn stay(&mut self, out: &mut Vec<Effect>) {
        let flaw = self.rules.flaw;
        if let Some(primary) = &mut self.primary {
            primary.is_draining = false;
            for (tx, claims) in std::mem::take(&mut primary.held_back) {
                primary.lock(tx, &claims, flaw, out);
            }
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
        self.pump(out);
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

    /// The member has committed a transaction of a client's.
    pub fn committed(&mut self, life: Life, number: Number, out: &mut Vec<Effect>) {
        if self.is_past(life) {
            return;
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.insert(number);
        }
        let ack = self.rules.ack;
        if let Some(primary) = &mut self.primary {
            primary.on_member(number, ack, out);
        }
        self.hand_over(out);
    }

    /// The member has not committed it, or nobody knows, and the log has it: it is executed once more.
    pub fn commit_failed(&mut self, number: Number, out: &mut Vec<Effect>) {
        if self.flawed(Flaw::LostCommitForgotten) {
            return self.committed(self.life, number, out);
        }
        let record = self
            .primary
            .as_ref()
            .and_then(|primary| primary.record(number));
        out.extend(record.map(Effect::Apply));
    }
}

/// Commits that are not acknowledged, by number.
type Commits = BTreeMap<Number, primary::Commit>;
