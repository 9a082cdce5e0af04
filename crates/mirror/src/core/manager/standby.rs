//! What a manager executes of the log: as a standby, while it catches up, and while it takes over.

use super::super::flaw::Flaw;
use super::super::ledger::Ledger;
use super::super::log::Identity;
use super::super::record::{Number, Record};
use super::super::schedule::Schedule;
use super::{Effect, Life, Manager, Message, Role, Why};

/// A takeover that is under way.
#[derive(Debug)]
pub struct Taking {
    pub epoch: u32,
    /// When the epoch stood for certain.
    pub confirmed_ms: u64,
    /// When whoever owned an epoch before has stopped for certain.
    serves_ms: u64,
    /// Which log it is, if that says so.
    log: Option<Identity>,
    /// Some of the log was read.
    is_read: bool,
    /// The log's last record, and which log it is, once all of it was read.
    pub end: Option<(Number, Identity)>,
}

impl Taking {
    pub fn new(epoch: u32, now_ms: u64, serves_ms: u64) -> Taking {
        Taking {
            epoch,
            confirmed_ms: now_ms,
            serves_ms,
            log: None,
            is_read: false,
            end: None,
        }
    }
}

/// What a manager that is not primary knows of the log.
#[derive(Debug, Default)]
pub struct Standby {
    pub schedule: Schedule,
    pub taking: Option<Taking>,
    /// The epoch of the primary that it follows.
    pub epoch: Option<u32>,
    /// The log's last record, as far as was heard.
    pub last: Number,
    /// Which log the zones have.
    pub log: Option<Identity>,
    /// The last record that was taken.
    received: Number,
    /// The pieces of a transaction of which the end was not taken.
    pub pieces: Vec<Record>,
    /// The end of the log when it began to follow a primary.
    pub tail: Number,
    /// The member may have commits that the log has not: nothing else is executed there before that is known.
    pub is_unsettled: bool,
    /// Records that were taken, and are looked at as soon as it is.
    pub held: Vec<Record>,
}

impl Standby {
    /// Begins again after this record.
    pub fn restart(&mut self, floor: Number) {
        self.schedule.clear();
        self.taking = None;
        self.epoch = None;
        self.pieces.clear();
        self.held.clear();
        self.received = floor;
    }

    /// The first record that was not taken.
    pub fn wanted(&self) -> Number {
        self.received.next()
    }

    /// True if no commit of its own member can be logged behind what it has been sent: that is all that was in the log before the primary
    /// that it follows wrote. The same is so if something came that the member lacks, because it was never primary after that. More might
    /// never be sent: a primary sends only so much ahead of what is executed.
    pub fn has_tail(&self) -> bool {
        match &self.taking {
            Some(taking) => taking.end.is_some(),
            None => self.epoch.is_some() && self.received >= self.tail,
        }
    }
}

impl Manager {
    /// Takes records of the log, in order; those that were taken before are skipped.
    pub(super) fn take(&mut self, records: Vec<Record>, out: &mut Vec<Effect>) {
        if self.ledger.is_none() {
            return;
        }
        for record in records {
            let number = record.number;
            let is_next = number == self.standby.wanted()
                || self.rules.flaw == Some(Flaw::GapIgnored) && number > self.standby.received;
            if !is_next {
                continue;
            }
            self.standby.received = number;
            self.take_rows(record, out);
        }
    }

    /// Has the member execute a transaction as soon as it may, unless it has that.
    pub(super) fn begin(&mut self, record: Record, out: &mut Vec<Effect>) {
        let has = |ledger: &Ledger| ledger.contains(record.number);
        if !self.ledger.as_ref().is_some_and(has) {
            let ready = self.standby.schedule.push(record);
            out.extend(ready.map(Effect::Apply));
        }
    }

    /// Which log it is that it takes over, if that says so, before any of it is read.
    pub fn log_is(&mut self, epoch: u32, log: Identity, out: &mut Vec<Effect>) {
        let is_another = self.is_of_another(log);
        self.standby.log = Some(log);
        if let Some(taking) = self.taking_in(epoch) {
            taking.log = Some(log);
            if is_another {
                self.give_up_taking(Why::Foreign, out);
            }
        }
    }

    fn taking_in(&mut self, epoch: u32) -> Option<&mut Taking> {
        let taking = self.standby.taking.as_mut();
        taking.filter(|taking| taking.epoch == epoch)
    }

    /// The log's records, read while taking over.
    pub fn log_records(&mut self, epoch: u32, records: Vec<Record>, out: &mut Vec<Effect>) {
        let is_named = self.taking_in(epoch).map(|taking| taking.log.is_some());
        match is_named {
            // Whoever belongs to a log belongs to one that says which it is.
            Some(false) if self.log.is_some() => self.give_up_taking(Why::Foreign, out),
            // Its past was given back after it was looked at.
            Some(_) if self.begins_late(&records) => self.give_up_taking(Why::Starting, out),
            Some(_) => self.take(records, out),
            None => {}
        }
    }

    /// True if the log that it takes over begins behind what its member has on its disk, although not behind what that has.
    fn begins_late(&mut self, records: &[Record]) -> bool {
        let (saved, flaw) = (self.saved, self.rules.flaw);
        let has = self.ledger.as_ref().map(Ledger::floor);
        let (Some(taking), Some(first)) = (&mut self.standby.taking, records.first()) else {
            return false;
        };
        let is_first = !std::mem::replace(&mut taking.is_read, true);
        let is_gap = has.is_none_or(|floor| floor.next() < first.number);
        is_first && !is_gap && saved.next() < first.number && flaw != Some(Flaw::GapIgnored)
    }

    /// All of the log was read.
    pub fn log_ends(&mut self, epoch: u32, last: Number, log: Identity, out: &mut Vec<Effect>) {
        let is_flawed = self.rules.flaw == Some(Flaw::ServesTooEarly);
        if let Some(taking) = self.taking_in(epoch) {
            taking.end = Some((last, log));
            self.standby.last = last;
            self.standby.log = Some(log);
            if is_flawed {
                self.serve(epoch, last, log, out);
                return;
            }
            if self.is_of_another(log) {
                return self.give_up_taking(Why::Foreign, out);
            }
            if self.has_more_than(last) {
                return self.give_up_taking(Why::Ahead, out);
            }
            if self.standby.wanted() != last.next() {
                // Its past was given back after it was looked at.
                return self.give_up_taking(Why::Behind, out);
            }
            self.end_pieces(out);
        }
    }

    /// The log that it owns cannot make its member current: somebody else may serve.
    pub(super) fn give_up_taking(&mut self, why: Why, out: &mut Vec<Effect>) {
        self.is_ahead |= why == Why::Ahead;
        self.is_behind |= why == Why::Behind;
        self.is_foreign |= why == Why::Foreign;
        self.standby.taking = None;
        self.step_down(why, out);
    }

    /// The member has this transaction; it has executed it, or had it already.
    pub fn applied(&mut self, life: Life, number: Number, out: &mut Vec<Effect>) {
        if self.is_past(life) {
            return;
        }
        let Some(ledger) = &mut self.ledger else {
            return;
        };
        let record = self.standby.schedule.started(number);
        let first = record.map_or(number, Record::first);
        (first.0..=number.0).for_each(|number| ledger.insert(Number(number)));
        if self.is_diverged {
            return;
        }
        let ready = self.standby.schedule.done(number);
        out.extend(ready.into_iter().map(Effect::Apply));
        self.say_applied(vec![number], out);
        self.see(out);
    }

    /// Tells the primary, if it follows one, that the member has these.
    pub(super) fn say_applied(&self, numbers: Vec<Number>, out: &mut Vec<Effect>) {
        if let Some(ledger) = self
            .ledger
            .as_ref()
            .filter(|_| self.standby.epoch.is_some())
        {
            let floor = ledger.floor();
            out.push(Effect::Send(Message::Applied { numbers, floor }));
        }
    }

    /// The member differs from what the log says: nothing more is executed there.
    pub fn differs(&mut self, life: Life, number: Number, out: &mut Vec<Effect>) {
        if self.is_past(life) {
            return;
        }
        if self.rules.flaw == Some(Flaw::DifferenceIgnored) {
            return self.applied(life, number, out);
        }
        self.is_diverged = true;
        out.push(Effect::MarkDiverged);
        if self.standby.epoch.is_some() {
            out.push(Effect::Send(Message::Diverged { number }));
        }
        self.step_down(Why::Diverged, out);
        let floor = self
            .ledger
            .as_ref()
            .map_or(Number(0), |ledger| ledger.floor());
        self.standby.restart(floor);
    }

    /// True if it has become what it can be.
    pub(super) fn see(&mut self, out: &mut Vec<Effect>) {
        let Some(floor) = self.ledger.as_ref().map(|ledger| ledger.floor()) else {
            return;
        };
        if let Some(taking) = &self.standby.taking {
            let stands = self.now_ms.saturating_sub(taking.confirmed_ms) <= self.rules.lease_ms;
            let stands = stands && self.now_ms >= taking.serves_ms;
            if let Some((last, log)) = taking.end
                && floor >= last
                && stands
                && !self.must_settle()
            {
                self.serve(taking.epoch, last, log, out);
            }
            return;
        }
        let lag = self.standby.last.0.saturating_sub(floor.0);
        match self.role {
            Role::Recovering(Why::CatchingUp) if lag <= self.rules.window_records / 2 => {
                self.role = Role::Standby;
            }
            Role::Standby if lag > self.rules.lag_records => {
                self.role = Role::Recovering(Why::CatchingUp);
            }
            _ => {}
        }
        if self.role == Role::Standby && !self.has_more_than(self.standby.last) {
            // It fits this log.
            self.log = self.log.or(self.standby.log);
        }
    }

    /// A primary of this epoch says that the log, which is this one, ends here.
    pub(super) fn hear(&mut self, epoch: u32, last: Number, log: Identity, out: &mut Vec<Effect>) {
        let taking = self.standby.taking.as_ref().map(|taking| taking.epoch);
        if let Some(own) = self.epoch().or(taking).filter(|own| *own < epoch) {
            self.fenced(own, out);
        }
        if epoch < self.highest || self.role == Role::Primary || self.standby.taking.is_some() {
            return;
        }
        self.highest = epoch;
        self.heard_ms = self.now_ms;
        self.is_peer_gone = false;
        self.standby.last = last;
        self.standby.log = Some(log);
        if self.is_of_another(log) {
            return self.become_foreign();
        }
        if self.is_behind && self.has_more_than(last) {
            // The log does not explain the member, so it is not replaced.
            self.is_ahead = true;
            self.role = Role::Recovering(Why::Ahead);
        }
        let is_fit = self.is_fit();
        let Some(ledger) = self.ledger.as_ref().filter(|_| is_fit) else {
            return;
        };
        if self.standby.epoch == Some(epoch) {
            return self.see(out);
        }
        self.standby.epoch = Some(epoch);
        self.standby.tail = last;
        self.role = Role::Recovering(Why::CatchingUp);
        let (from, saved) = (self.standby.wanted(), self.saved);
        let (floor, last) = (ledger.floor(), ledger.last());
        out.push(Effect::Send(Message::Follow {
            epoch,
            from,
            floor,
            saved,
            last,
        }));
        self.see(out);
    }
}
