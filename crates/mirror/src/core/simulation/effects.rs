//! What managers want done, and what comes of it.

use rand::Rng;

use super::super::flaw::Flaw;
use super::super::log::Identity;
use super::super::manager::{Effect, Manager, Message, Role, Why};
use super::super::record::{Number, Record};
use super::database::{Content, replay};
use super::{Applying, World, Writing};

impl World {
    /// Lets a manager do something, and does what it wants.
    pub(super) fn with(&mut self, at: usize, act: impl FnOnce(&mut Manager, &mut Vec<Effect>)) {
        let mut out = Vec::new();
        let before = self.sites[at].manager.role();
        act(self.sites[at].manager.at(self.now_ms), &mut out);
        let after = self.sites[at].manager.role();
        if before != after {
            self.trace(|| format!("{at}: {before:?} -> {after:?}"));
        }
        for effect in out {
            self.effect(at, effect);
        }
    }

    fn effect(&mut self, at: usize, effect: Effect) {
        let site = &mut self.sites[at];
        match effect {
            Effect::LookAtLog
            | Effect::Own
            | Effect::ReadLog
            | Effect::ReadForPeer(_)
            | Effect::Trim(_) => {
                site.asked.push_back(effect);
            }
            Effect::Confirm(epoch) if site.reaches => {
                let answer = (epoch, self.zones.epoch, self.now_ms);
                site.confirms.push_back(answer);
                // Others come late.
                if self.rng.random_bool(0.7) {
                    self.hear_of_epoch(at);
                }
            }
            Effect::Confirm(_) => {}
            Effect::Release | Effect::MarkDiverged => {
                if effect == Effect::MarkDiverged {
                    site.member.is_marked = true;
                    site.applying.clear();
                    self.coverage.one("found to differ");
                }
            }
            // Once the log has what its member has committed.
            Effect::Serve => {}
            Effect::Unserve => {
                site.serves = false;
                site.began = None;
                self.lose_clients(at);
            }
            Effect::Append(records) => {
                let epoch = site.manager.epoch().unwrap_or_default();
                let life = site.life;
                let writing = Writing {
                    site: at,
                    life,
                    epoch,
                    records,
                };
                self.zones.writing.push(writing);
            }
            Effect::Logged(_) => {
                if let Some(stream) = &mut site.stream {
                    stream.logged();
                }
            }
            Effect::Answer(number) => {
                if let Some(stream) = &mut site.stream {
                    stream.answered(number);
                }
            }
            Effect::Apply(record) => {
                // Its session is at the server that the manager was told of, or there is none.
                let member_life = match self.flaw {
                    Some(Flaw::LifeUnchecked) => Some(site.member.life),
                    _ => site.knows,
                };
                let life = site.manager.life();
                site.applying.push(Applying {
                    record,
                    member_life,
                    life,
                });
            }
            Effect::Send(message) => {
                if self.is_linked {
                    self.sites[1 - at].inbox.push_back(message);
                }
            }
        }
    }

    /// Whoever serves has what the log says.
    pub(super) fn check_serve(&mut self, at: usize) {
        self.coverage.one("takeovers");
        let site = &self.sites[at];
        if site.manager.log() != self.zones.name {
            return self.break_promise(format!("{at} serves with a member of another log"));
        }
        if site.knows != Some(site.member.life) {
            // It crashed a moment ago: nobody gets a session there.
            return;
        }
        let member = &site.member;
        if member.is_marked {
            return self.break_promise(format!("{at} serves with a member that differs"));
        }
        if member.is_corrupt {
            // Nobody has read what is wrong there, and from now on it is what the other one is compared with.
            self.coverage.one("wrong members that serve");
            self.is_over = true;
            return;
        }
        let wants = self.replayed();
        if wants
            .as_ref()
            .is_ok_and(|content| *content == self.sites[at].member.content)
        {
            return;
        }
        let last = self.zones.log.len();
        self.break_promise(format!(
            "{at} serves without having all {last} transactions, or otherwise: {wants:?}"
        ));
    }

    pub(super) fn replayed(&self) -> Result<Content, String> {
        replay(&self.zones.log)
    }

    /// The zones complete a sync, or refuse it.
    pub(super) fn sync_one(&mut self) {
        let reaching = |world: &World, writing: &Writing| world.sites[writing.site].reaches;
        let ready: Vec<usize> = (0..self.zones.writing.len())
            .filter(|index| reaching(self, &self.zones.writing[*index]))
            .collect();
        if ready.is_empty() {
            return;
        }
        let writing = self
            .zones
            .writing
            .remove(ready[self.rng.random_range(0..ready.len())]);
        let site = &self.sites[writing.site];
        let is_heard = site.is_alive && site.life == writing.life;
        let (at, epoch) = (writing.site, writing.epoch);
        if epoch != self.zones.epoch {
            self.coverage.one("fenced");
            if is_heard {
                self.with(at, |manager, out| manager.fenced(epoch, out));
            }
            return;
        }
        let last = self.write(writing.records);
        if is_heard && let Some(last) = last {
            self.with(at, |manager, out| manager.durable(epoch, last, out));
        }
    }

    fn write(&mut self, records: Vec<Record>) -> Option<Number> {
        for record in records {
            if record.number != Number(self.zones.log.len() as u64 + 1) {
                self.break_promise(format!("record {} is out of place", record.number));
                return None;
            }
            self.zones.log.push(record);
        }
        self.zones.log.last().map(|record| record.number)
    }

    /// A manager hears whether its epoch stood when it asked.
    fn hear_of_epoch(&mut self, at: usize) {
        if let Some((epoch, highest, asked_ms)) = self.sites[at].confirms.pop_front() {
            self.with(at, |manager, out| match epoch == highest {
                true => manager.confirmed(epoch, asked_ms, out),
                false => manager.fenced(epoch, out),
            });
        }
    }

    /// The zones answer a manager's next question.
    pub(super) fn answer_one(&mut self, at: usize) {
        if !self.sites[at].reaches || !self.sites[at].is_alive {
            return;
        }
        self.hear_of_epoch(at);
        let Some(asked) = self.sites[at].asked.pop_front() else {
            return;
        };
        match asked {
            Effect::LookAtLog => {
                let (first, log) = (Number(self.zones.first), self.zones.name);
                self.with(at, |manager, out| manager.log_begins(first, log, out));
            }
            Effect::Own if self.rng.random_bool(0.1) => {
                self.with(at, |manager, _| manager.not_owned())
            }
            Effect::Own => self.own(at),
            Effect::ReadLog => self.read_log(at),
            Effect::ReadForPeer(from) => {
                let is_there = from.0 >= self.zones.first;
                let records = is_there.then(|| self.records_from(from, 5));
                self.with(at, |manager, out| manager.read_for_peer(from, records, out));
            }
            Effect::Trim(before) if self.sites[at].manager.epoch() == Some(self.zones.epoch) => {
                self.zones.first = self.zones.first.max(before.0);
            }
            _ => {}
        }
    }

    fn records_from(&self, from: Number, count: usize) -> Vec<Record> {
        let skip = (from.0 - 1) as usize;
        self.zones
            .log
            .iter()
            .skip(skip)
            .take(count)
            .cloned()
            .collect()
    }

    fn own(&mut self, at: usize) {
        self.zones.epoch += 1;
        let epoch = self.zones.epoch;
        // What was on its way is found by the new owner, or is not.
        let waiting = std::mem::take(&mut self.zones.writing);
        for writing in waiting {
            let follows = writing.records.first().map(|record| record.number.0)
                == Some(self.zones.log.len() as u64 + 1);
            if writing.epoch + 1 == epoch && follows && self.rng.random_bool(0.5) {
                self.coverage.one("found by the next owner");
                self.write(writing.records.clone());
            }
            // Its writer hears that it has been replaced, whether or not.
            self.zones.writing.push(writing);
        }
        self.trace(|| format!("{at}: owns {epoch}"));
        self.with(at, |manager, out| manager.owned(epoch, out));
    }

    fn read_log(&mut self, at: usize) {
        let epoch = self.zones.epoch;
        let from = Number(self.zones.first);
        let records = self.records_from(from, usize::MAX);
        let last = Number(self.zones.log.len() as u64);
        if let Some(log) = self.zones.name {
            self.with(at, |manager, out| manager.log_is(epoch, log, out));
        }
        self.with(at, |manager, out| manager.log_records(epoch, records, out));
        if self.sites[at].manager.taking() != Some(epoch) {
            return;
        }
        let unused = Identity(self.rng.random());
        let named = self.sites[at].manager.names(last, unused);
        let log = *self.zones.name.get_or_insert(named);
        self.with(at, |manager, out| manager.log_ends(epoch, last, log, out));
    }

    /// A manager takes the next message.
    pub(super) fn deliver(&mut self, at: usize) {
        if !self.sites[at].is_alive {
            return;
        }
        if let Some(message) = self.sites[at].inbox.pop_front() {
            self.trace(|| format!("{at}: hears {}", short(&message)));
            self.with(at, |manager, out| manager.peer(message, out));
        }
    }

    /// A member executes a transaction of the log.
    pub(super) fn apply_some(&mut self, at: usize) {
        let site = &mut self.sites[at];
        if site.applying.is_empty() {
            return;
        }
        let index = self.rng.random_range(0..site.applying.len());
        let applying = site.applying.remove(index);
        if !site.member.is_alive || applying.member_life != Some(site.member.life) {
            return;
        }
        let number = applying.record.number;
        if site.member.numbers.contains(&number) && self.flaw != Some(Flaw::LedgerForgotten) {
            site.reports.push((applying.life, number));
            return;
        }
        let rows = applying.record.draft.rows().expect("they are ours");
        let first = applying.record.first();
        let numbers: Vec<Number> = (first.0..=number.0).map(Number).collect();
        match site.member.apply(&rows, &numbers) {
            Ok(()) => {
                site.reports.push((applying.life, number));
                self.coverage.one("executed from the log");
            }
            Err(why) => self.found_different(at, &applying, &why),
        }
    }

    fn found_different(&mut self, at: usize, applying: &Applying, why: &str) {
        let (life, number) = (applying.life, applying.record.number);
        if !self.sites[at].member.is_corrupt {
            self.break_promise(format!(
                "{at} differs at {number}, and nobody made it wrong: {why}"
            ));
        }
        self.with(at, |manager, out| manager.differs(life, number, out));
        if self.sites[at].manager.role() != Role::Recovering(Why::Diverged) {
            self.break_promise(format!("{at} goes on with a member that differs"));
        }
    }
}

fn short(message: &Message) -> String {
    match message {
        Message::Records { epoch, records } => {
            let numbers: Vec<u64> = records.iter().map(|record| record.number.0).collect();
            format!("records {numbers:?} of {epoch}")
        }
        other => format!("{other:?}"),
    }
}
