//! The stream of a member's commits: the driver's part, as `driver::capture` does it.
//!
//! ```text
//!   commits of the member's own ──▶ primary: given to the log, confirmed when that has them ──▶ clients are answered
//!                               └─▶ otherwise: somebody has to say that the log has them, or the member is replaced
//! ```

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;

use super::super::flaw::Flaw;
use super::super::manager::{Life, Manager, Role};
use super::super::record::{Number, Token};
use super::super::rows::{Header, Lsn, Origin, Rows};
use super::super::stream::{Awaits, Confirmed};
use super::World;

/// No more is given to the log while so many records are not durable.
const MOST_WRITING: usize = 4;

/// A stream.
pub struct Stream {
    epoch: Option<u32>,
    life: Life,
    member_life: u32,
    /// The next commit, and the next piece of it.
    next: (usize, u32),
    logged: Lsn,
    given: BTreeMap<Lsn, Number>,
    /// Records that were acknowledged before the stream knew of them.
    early: BTreeSet<Number>,
    /// Commits up to here were made before it.
    past: Lsn,
    is_begun: bool,
    writing: usize,
    confirmed: Confirmed,
    sent: Lsn,
}

impl Stream {
    pub fn logged(&mut self) {
        self.writing = self.writing.saturating_sub(1);
    }

    pub fn answered(&mut self, number: Number) {
        self.given.retain(|_, given| *given != number);
        self.confirmed.logged(number);
        self.early.insert(number);
    }
}

impl World {
    /// A stream goes on, or begins.
    pub(super) fn stream(&mut self, at: usize) {
        let site = &self.sites[at];
        let is_there = site.is_alive
            && site.member.is_alive
            && site.knows == Some(site.member.life)
            && site.manager.ledger().is_some();
        if !is_there || site.replaces {
            self.sites[at].stream = None;
            return;
        }
        let (epoch, life) = (site.manager.epoch(), site.manager.life());
        let stands = |stream: &Stream| {
            (stream.epoch, stream.life, stream.member_life) == (epoch, life, site.member.life)
        };
        if !site.stream.as_ref().is_some_and(stands) {
            self.sites[at].stream = None;
            if epoch.is_some() || self.sites[at].began.is_some() {
                self.begin_stream(at, epoch);
            }
            return;
        }
        if !self.faults_end && self.rng.random_bool(0.02) {
            self.coverage.one("streams that ended");
            self.sites[at].stream = None;
            return;
        }
        match epoch {
            Some(epoch) => self.log_next(at, epoch),
            None => self.await_next(at),
        }
        self.confirm(at);
    }

    fn begin_stream(&mut self, at: usize, epoch: Option<u32>) {
        let site = &self.sites[at];
        let (manager, member) = (&site.manager, &site.member);
        let mut logged = member.logged.max(manager.logged_of(member.system));
        let (mut given, writing) = manager.given();
        if self.flaw == Some(Flaw::GivenTwice) {
            given.clear();
        }
        logged = given.keys().copied().fold(logged, Lsn::max);
        let next = member.wal.partition_point(|own| own.end <= member.slot);
        let stream = Stream {
            epoch,
            life: manager.life(),
            member_life: member.life,
            next: (next, 0),
            logged,
            given,
            early: BTreeSet::new(),
            past: member.end(),
            is_begun: false,
            writing,
            confirmed: Confirmed::default(),
            sent: Lsn(0),
        };
        self.sites[at].stream = Some(stream);
    }

    fn log_next(&mut self, at: usize, epoch: u32) {
        let site = &mut self.sites[at];
        let Some(stream) = site.stream.as_mut() else {
            return;
        };
        let system = site.member.system;
        if stream.writing >= MOST_WRITING {
            return;
        }
        let (index, piece) = stream.next;
        let Some(own) = site.member.wal.get(index).cloned() else {
            stream.sent = stream.sent.max(site.member.end());
            return self.level(at, epoch);
        };
        if own.end <= stream.logged {
            let given = stream.given.get(&own.end).copied();
            stream.confirmed.push(own.end, given.map(Awaits::Record));
            stream.next = (index + 1, 0);
            stream.sent = own.end;
            return;
        }
        if own.end <= stream.past && !site.manager.may_log_past_of(system) {
            return self.surplus(at);
        }
        let is_last = piece + 1 >= own.pieces;
        let end = if is_last { own.end } else { Lsn(own.end.0 - 5) };
        let rows = part(&own.rows, piece, own.pieces);
        let header = header(system, end, piece, is_last);
        let Some(number) = self.give(at, epoch, own.xid, &header, &rows) else {
            return;
        };
        let Some(stream) = self.sites[at].stream.as_mut() else {
            return;
        };
        match is_last {
            true => {
                let is_early = stream.early.contains(&number);
                let awaits = (!is_early).then_some(Awaits::Record(number));
                stream.confirmed.push(own.end, awaits);
                stream.next = (index + 1, 0);
                stream.sent = own.end;
            }
            false => {
                stream.next = (index, piece + 1);
                self.coverage.one("pieces");
            }
        }
    }

    fn give(
        &mut self,
        at: usize,
        epoch: u32,
        xid: u64,
        header: &Header,
        rows: &Rows,
    ) -> Option<Number> {
        let token = Token { epoch, count: xid };
        let draft = rows.draft(header, token, Vec::new());
        if let Some(stream) = self.sites[at].stream.as_mut() {
            stream.writing += 1;
        }
        let mut given = None;
        self.with(at, |manager, out| given = manager.commit(draft, out));
        given
    }

    /// Clients are let in once the log has all that was committed before, and says that this member has the epoch.
    fn level(&mut self, at: usize, epoch: u32) {
        let site = &mut self.sites[at];
        let Some(stream) = site.stream.as_mut() else {
            return;
        };
        if site.level == Some(epoch) || stream.sent < stream.past || stream.writing > 0 {
            return;
        }
        if !std::mem::replace(&mut stream.is_begun, true) {
            let header = header(site.member.system, stream.logged.max(stream.sent), 0, true);
            self.give(at, epoch, 0, &header, &Rows::default());
            return;
        }
        site.level = Some(epoch);
        site.serves = true;
        self.check_serve(at);
    }

    /// Commits that a member has made itself, and that nobody logs now.
    fn await_next(&mut self, at: usize) {
        let site = &mut self.sites[at];
        let Some(stream) = site.stream.as_mut() else {
            return;
        };
        let system = site.member.system;
        match site.member.wal.get(stream.next.0) {
            Some(own) => {
                let is_logged = own.end <= site.manager.logged_of(system);
                let awaits = (!is_logged).then_some(Awaits::Proof);
                stream.confirmed.push(own.end, awaits);
                stream.next.0 += 1;
                stream.sent = own.end;
            }
            None => stream.sent = stream.sent.max(site.member.end()),
        }
        let manager = &site.manager;
        stream.confirmed.proved(manager.logged_of(system));
        let has_all = site.began.is_some_and(|began| stream.sent >= began) && manager.has_tail();
        let may_log = manager.taking().is_some() && manager.may_log_past_of(system);
        let is_unproved = stream.confirmed.unproved().is_some();
        if has_all && is_unproved && !may_log {
            return self.surplus(at);
        }
        if has_all && manager.is_unsettled() {
            self.with(at, Manager::settle);
        }
    }

    /// The member is replaced.
    fn surplus(&mut self, at: usize) {
        self.trace(|| format!("{at}: the member has more than the log"));
        self.coverage.one("members with a surplus");
        self.sites[at].replaces = true;
        self.sites[at].stream = None;
        self.with(at, Manager::has_surplus);
    }

    fn confirm(&mut self, at: usize) {
        let is_flawed = self.flaw == Some(Flaw::ConfirmedTooEarly);
        let forgets = self.rng.random_bool(0.3);
        let site = &mut self.sites[at];
        let Some(stream) = site.stream.as_mut() else {
            return;
        };
        stream.confirmed.reach(stream.sent);
        let position = match is_flawed {
            true => stream.sent,
            false => stream.confirmed.position(),
        };
        if !forgets {
            site.member.slot = site.member.slot.max(position);
        }
        let released = site.member.release(position);
        if site.serves {
            self.answered(at, released);
        }
    }

    /// Nobody writes to a member that serves nobody, and whoever waits there is ended.
    pub(super) fn end_writers(&mut self, at: usize) {
        let site = &mut self.sites[at];
        let may = site.is_alive && site.member.is_alive && site.knows == Some(site.member.life);
        if !may || site.began.is_some() || site.manager.role() == Role::Primary {
            return;
        }
        let end = site.member.end();
        site.member.release(end);
        site.manager.own_ends(end);
        site.began = Some(end);
    }
}

fn header(system: u64, end: Lsn, piece: u32, is_last: bool) -> Header {
    let origin = Origin {
        system,
        end,
        ..Origin::default()
    };
    Header {
        origin,
        piece,
        is_last,
    }
}

/// A piece of some rows.
fn part(rows: &Rows, piece: u32, pieces: u32) -> Rows {
    let all = rows.changes.len();
    let place = |piece: u32| all * piece as usize / pieces as usize;
    Rows {
        relations: rows.relations.clone(),
        changes: rows.changes[place(piece)..place(piece + 1)].to_vec(),
    }
}
