//! What the two managers tell each other.
//!
//! ```text
//!   primary ── Alive ──────────▶ other        the other one follows the first Alive of an epoch
//!           ◀── Follow ─────────
//!           ── Records, Records ▶
//!           ◀── Applied ────────
//! ```
//!
//! Messages arrive in order or not at all: whoever loses the connection begins again. Nothing that they say decides what has
//! committed; the log does.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::super::flaw::Flaw;
use super::super::log::Identity;
use super::super::record::{Number, Record};
use super::primary::{Follower, Primary, together};
use super::{Effect, Manager, Role, Why};

/// How many times nearer than it must a follower comes, if it can.
const NEARER: u64 = 16;
/// For so many timeouts it is waited for that it does.
const PATIENCE: u64 = 2;
/// So many times a primary whose lease has passed must have asked the zones before it gives its epoch up: a process that runs asks four times in a
/// lease.
const ASKED_IN_VAIN: u32 = 5;

/// What one manager tells the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The sender is primary, and the log ends here.
    Alive {
        /// Its epoch.
        epoch: u32,
        /// The last durable record.
        last: Number,
        /// Which log it is.
        log: Identity,
    },
    /// The sender wants the log from here on.
    Follow {
        /// Of whom.
        epoch: u32,
        /// The first record that it does not have.
        from: Number,
        /// Its member has everything up to here.
        floor: Number,
        /// And on its disk up to here.
        saved: Number,
        /// The last that it has at all.
        last: Number,
    },
    /// Durable records, in order.
    Records {
        /// The sender's epoch.
        epoch: u32,
        /// The records.
        records: Vec<Record>,
    },
    /// The sender's member has committed these.
    Applied {
        /// Which.
        numbers: Vec<Number>,
        /// And everything up to here.
        floor: Number,
    },
    /// The sender's member has everything up to here on its disk.
    Saved {
        /// The last of them.
        floor: Number,
    },
    /// The log begins later than the receiver wants it.
    TooLate {
        /// The sender's epoch.
        epoch: u32,
    },
    /// The receiver's member has what the log has never had.
    Ahead {
        /// The sender's epoch.
        epoch: u32,
    },
    /// The sender is not primary any more.
    Resigned {
        /// The epoch that it gave up.
        epoch: u32,
    },
    /// The sender's member answered differently.
    Diverged {
        /// To which record.
        number: Number,
    },
    /// The sender's member does not answer: it follows nobody now.
    Left,
}

impl Manager {
    /// The other manager says something.
    pub fn peer(&mut self, message: Message, out: &mut Vec<Effect>) {
        match message {
            Message::Alive { epoch, last, log } => self.hear(epoch, last, log, out),
            Message::Follow {
                epoch,
                from,
                floor,
                saved,
                last,
            } => {
                let durable = self.primary.as_ref().map(|primary| primary.durable);
                if self.epoch() == Some(epoch) && durable < Some(last.max(floor)) {
                    // What it says that it has would acknowledge what it has not.
                    return out.push(Effect::Send(Message::Ahead { epoch }));
                }
                self.follow(epoch, from, floor, saved, out);
            }
            Message::Records { epoch, records } => {
                if self.standby.epoch == Some(epoch) {
                    self.heard_ms = self.now_ms;
                    let last = records.last().map_or(Number(0), |record| record.number);
                    self.standby.last = self.standby.last.max(last);
                    self.take(records, out);
                }
            }
            Message::Applied { numbers, floor } => self.peer_applied(&numbers, floor, out),
            Message::Saved { floor } => {
                let primary = self.primary.as_mut();
                if let Some(follower) = primary.and_then(|primary| primary.follower.as_mut()) {
                    follower.saved = follower.saved.max(floor);
                }
            }
            Message::TooLate { epoch } => {
                if self.standby.epoch == Some(epoch) {
                    self.standby.epoch = None;
                    self.is_behind = true;
                    self.role = Role::Recovering(Why::Behind);
                }
            }
            Message::Ahead { epoch } => {
                if self.standby.epoch == Some(epoch) {
                    self.standby.epoch = None;
                    self.is_ahead = true;
                    self.role = Role::Recovering(Why::Ahead);
                }
            }
            Message::Resigned { epoch } => {
                self.ended = self.ended.max(epoch);
                if self.standby.epoch == Some(epoch) {
                    self.standby.epoch = None;
                    if self.may_take_over() {
                        self.own(out);
                    }
                }
            }
            Message::Diverged { .. } | Message::Left => self.peer_lost(out),
        }
    }

    /// Something of a message has come, which is long: whoever says it is not silent.
    pub fn peer_speaks(&mut self) {
        if self.standby.epoch.is_some() {
            self.heard_ms = self.now_ms;
        }
    }

    /// The connection to the other manager is broken.
    pub fn peer_lost(&mut self, out: &mut Vec<Effect>) {
        self.standby.epoch = None;
        let ack = self.rules.commit_ack;
        if let Some(primary) = &mut self.primary {
            primary.follower = None;
            primary.answer(ack, out);
        }
        if self.role == Role::Standby {
            self.role = Role::Recovering(Why::CatchingUp);
        }
    }

    /// Nobody listens any more where the other manager was: it is not waited for until the timeout. This may be wrong, as any
    /// suspicion; the epoch decides.
    pub fn peer_gone(&mut self, out: &mut Vec<Effect>) {
        self.is_peer_gone = true;
        self.tick(out);
    }

    /// A primary says that it is one.
    pub(super) fn send_alive(&self, out: &mut Vec<Effect>) {
        if let Some(primary) = &self.primary {
            let (epoch, last, log) = (primary.epoch, primary.durable, primary.log);
            out.push(Effect::Send(Message::Alive { epoch, last, log }));
        }
    }

    /// What a primary does now and then.
    pub(super) fn primary_tick(&mut self, out: &mut Vec<Effect>) {
        let (now_ms, timeout_ms) = (self.now_ms, self.rules.timeout_ms);
        let lease_ms = self.rules.lease_ms;
        let is_lost = |primary: &Primary| {
            // Its time alone would end the epoch of a process that has stood still, or whose zones were slow once.
            now_ms.saturating_sub(primary.confirmed_ms) > lease_ms && primary.asked >= ASKED_IN_VAIN
        };
        if self.primary.as_ref().is_some_and(is_lost) {
            return self.step_down(Why::Replaced, out);
        }
        self.send_alive(out);
        out.extend(self.epoch().map(Effect::Confirm));
        let Some(primary) = &mut self.primary else {
            return;
        };
        primary.asked += 1;
        let durable = primary.durable;
        if let Some(follower) = &mut primary.follower {
            let lag = follower.lag(durable);
            if lag == 0 {
                follower.rose_ms = now_ms;
            }
            if follower.stands_still(durable, now_ms, timeout_ms) || lag > self.rules.lag_records {
                // It is not waited for until it has caught up.
                follower.is_standby = false;
                follower.since_ms = now_ms;
            }
        }
        primary.answer(self.rules.commit_ack, out);
        let has = self
            .ledger
            .as_ref()
            .map_or(Number(0), |ledger| ledger.floor());
        let is_flawed = self.rules.flaw == Some(Flaw::TrimmedTooEarly);
        let own = if is_flawed { has } else { self.saved };
        let least = Number((durable.0 + 1).saturating_sub(self.rules.retain_records));
        let needed = primary
            .follower
            .as_ref()
            .map_or(Number(0), |follower| match is_flawed {
                true => follower.floor,
                false => follower.saved,
            });
        out.push(Effect::Trim(needed.next().max(least).min(own.next())));
    }

    fn follow(
        &mut self,
        epoch: u32,
        from: Number,
        floor: Number,
        saved: Number,
        out: &mut Vec<Effect>,
    ) {
        let now_ms = self.now_ms;
        if let Some(primary) = self
            .primary
            .as_mut()
            .filter(|primary| primary.epoch == epoch)
        {
            primary.follower = Some(Follower {
                since_ms: now_ms,
                sent: Number(from.0.saturating_sub(1)),
                floor,
                saved,
                is_standby: false,
                rose_ms: now_ms,
                is_reading: false,
                on_its_way: VecDeque::new(),
                is_within: false,
            });
        }
        self.see_follower();
        self.pump(out);
    }

    /// A follower that is near enough is waited for from now on. Every commit then waits for all that it lacks, so it has some
    /// time to come nearer than it must.
    fn see_follower(&mut self) {
        let (now_ms, window) = (self.now_ms, self.rules.window_records);
        let timeout_ms = self.rules.timeout_ms;
        let Some(primary) = &mut self.primary else {
            return;
        };
        let durable = primary.durable;
        if let Some(follower) = &mut primary.follower {
            let has_time = now_ms.saturating_sub(follower.since_ms) < timeout_ms * PATIENCE;
            let most = if has_time { window / NEARER } else { window };
            let is_near = follower.lag(durable) <= most / 2;
            follower.is_standby |= is_near && !follower.stands_still(durable, now_ms, timeout_ms);
        }
    }

    fn peer_applied(&mut self, numbers: &[Number], floor: Number, out: &mut Vec<Effect>) {
        let (ack, now_ms) = (self.rules.commit_ack, self.now_ms);
        let Some(primary) = &mut self.primary else {
            return;
        };
        if let Some(follower) = &mut primary.follower {
            follower.has(floor, now_ms);
        }
        primary.on_peer(numbers, ack, out);
        self.see_follower();
        self.pump(out);
        self.hand_over(out);
    }

    /// Sends the other manager what it may be sent.
    pub(super) fn pump(&mut self, out: &mut Vec<Effect>) {
        let (flaw, window) = (self.rules.flaw, self.rules.window_records);
        let Some(primary) = &mut self.primary else {
            return;
        };
        let (epoch, last) = (primary.epoch, primary.may_send(flaw));
        while let Some(follower) = primary
            .follower
            .as_ref()
            .filter(|follower| !follower.is_reading && !follower.is_full())
        {
            let from = follower.sent.next();
            let most = match follower.is_within {
                true => last,
                false => Number(last.0.min(follower.floor.0 + window)),
            };
            if from > most {
                return;
            }
            let records = primary.recent(from, most.0 + 1 - from.0);
            let Some(follower) = &mut primary.follower else {
                return;
            };
            match records {
                Some(records) if !records.is_empty() => {
                    follower.send(&records);
                    out.push(Effect::Send(Message::Records { epoch, records }));
                }
                _ => {
                    follower.is_reading = true;
                    out.push(Effect::ReadForPeer(from));
                }
            }
        }
    }

    /// Durable records from `from` on, read for the other manager; `None` if the log begins later.
    pub fn read_for_peer(
        &mut self,
        from: Number,
        records: Option<Vec<Record>>,
        out: &mut Vec<Effect>,
    ) {
        let Some(primary) = &mut self.primary else {
            return;
        };
        let epoch = primary.epoch;
        let Some(follower) = primary
            .follower
            .as_mut()
            .filter(|follower| follower.sent.next() == from)
        else {
            return;
        };
        follower.is_reading = false;
        match records {
            None => {
                primary.follower = None;
                out.push(Effect::Send(Message::TooLate { epoch }));
                let ack = self.rules.commit_ack;
                primary.answer(ack, out);
            }
            Some(mut records) if !records.is_empty() => {
                while !records.is_empty() {
                    let rest = records.split_off(together(records.iter()).count());
                    follower.send(&records);
                    out.push(Effect::Send(Message::Records { epoch, records }));
                    records = rest;
                }
                self.pump(out);
            }
            Some(_) => {}
        }
    }
}
