//! Transactions with rows: the servers that made their commits, and those of them that the member has by itself.
//!
//! A member has the commits that it has made, although nothing in it says which number they have in the log; and those that were in
//! the snapshot that it was copied from. Invariant: rows of a commit that the member has are never executed there; a long transaction
//! counts as a whole, and its pieces count for nothing if the end is not in the log. Rows are executed on a member that was primary's
//! only once it is known which commits it has by itself, and that the log has, or can get, all of them: until then the first record
//! that it lacks waits, and whatever comes behind that.

use super::super::flaw::Flaw;
use super::super::record::{Number, Record};
use super::super::rows::{Lsn, Rows};
use super::standby::Taking;
use super::{Effect, Manager, Role, Why};

impl Manager {
    /// The member has all commits of these servers up to there, its own first: to be said after [`Manager::member_up`].
    pub fn member_has(&mut self, commits: impl IntoIterator<Item = (u64, Lsn)>) {
        self.captured.member_has(commits);
        self.standby.is_unsettled = true;
    }

    /// Nobody commits anything at the member any more, which was primary's: that is all that it has made.
    pub fn own_ends(&mut self, up_to: Lsn) {
        self.captured.own_ends(up_to);
    }

    /// The log has the commits of a server up to there, or gets them no more: they were undone.
    pub fn settled(&mut self, system: u64, up_to: Lsn) {
        self.captured.settled(system, up_to);
    }

    /// Up to where the log has the commits of a server, as far as this manager has read it.
    pub fn logged_of(&self, system: u64) -> Lsn {
        self.captured.logged_of(system)
    }

    /// True if a commit that a server has made can follow on what the log has: no other server has written there since.
    pub fn may_log_past_of(&self, system: u64) -> bool {
        self.captured.may_follow(system)
    }

    /// True if it knows of each commit of its member whether the log has it, or can get it.
    pub fn has_tail(&self) -> bool {
        let standby = &self.standby;
        let lacks = |record: &Record| !self.captured.contains(&record.draft.header);
        standby.has_tail() || standby.epoch.is_some() && standby.held.iter().any(lacks)
    }

    /// True if nothing that the member lacks may be executed there, nor anybody served: see [`Manager::is_unsettled`].
    pub(super) fn must_settle(&self) -> bool {
        self.standby.is_unsettled && !self.flawed(Flaw::SurplusIgnored)
    }

    /// True if its member may have commits that the log has not.
    pub fn is_unsettled(&self) -> bool {
        self.standby.is_unsettled
    }

    /// The log has all commits that its member has made by itself, or can get them: others may be executed there.
    pub fn settle(&mut self, out: &mut Vec<Effect>) {
        self.standby.is_unsettled = false;
        let held = std::mem::take(&mut self.standby.held);
        held.into_iter()
            .for_each(|record| self.take_rows(record, out));
        self.end_pieces(out);
    }

    /// The member has commits that the log has not, and nobody was told of: it was primary, and its manager was not quick enough.
    /// Its state must be transferred.
    pub fn has_surplus(&mut self, out: &mut Vec<Effect>) {
        self.is_behind = true;
        if self.role == Role::Primary {
            return self.step_down(Why::Behind, out);
        }
        if self.standby.taking.is_some() {
            return self.give_up_taking(Why::Behind, out);
        }
        self.standby.epoch = None;
        self.role = Role::Recovering(Why::Behind);
    }

    /// Takes the next record.
    pub(super) fn take_rows(&mut self, record: Record, out: &mut Vec<Effect>) {
        self.captured.note(&record);
        let header = record.draft.header;
        let has = self.captured.contains(&header) && self.standby.held.is_empty();
        // What the member has must not wait: a primary sends only so much ahead, and no more than that may be all that comes.
        if self.must_settle() && !has {
            return self.standby.held.push(record);
        }
        if header.piece == 0 {
            self.leave_pieces(out);
        }
        let is_next = self.standby.pieces.len() == header.piece as usize;
        self.standby.pieces.push(record);
        if !is_next {
            return self.leave_pieces(out);
        }
        if !header.is_last {
            return;
        }
        let pieces = std::mem::take(&mut self.standby.pieces);
        if self.captured.contains(&header) && !self.flawed(Flaw::OwnCommitsExecuted) {
            // A copy has the rows, and may have sequences from before the log's values.
            return match sequences(&pieces).filter(|_| !self.captured.is_own(&header)) {
                Some(rest) => self.begin(rest, out),
                None => self.has_already(&pieces, out),
            };
        }
        if let Some(whole) = whole(pieces) {
            self.begin(whole, out);
        }
    }

    /// The log ends here: pieces that were taken have no end, if that was not taken.
    pub(super) fn end_pieces(&mut self, out: &mut Vec<Effect>) {
        let is_end = |taking: &Taking| taking.end.is_some();
        if self.standby.taking.as_ref().is_some_and(is_end) && self.standby.held.is_empty() {
            self.leave_pieces(out);
            self.see(out);
        }
    }

    /// The pieces that were taken have no end: the transaction was never logged as a whole, and comes again if it has committed.
    fn leave_pieces(&mut self, out: &mut Vec<Effect>) {
        let pieces = std::mem::take(&mut self.standby.pieces);
        if self.flawed(Flaw::TornExecuted)
            && let Some(whole) = whole(pieces.clone())
        {
            return self.begin(whole, out);
        }
        self.has_already(&pieces, out);
    }

    fn has_already(&mut self, records: &[Record], out: &mut Vec<Effect>) {
        let numbers: Vec<Number> = records.iter().map(|record| record.number).collect();
        if let Some(ledger) = self.ledger.as_mut().filter(|_| !numbers.is_empty()) {
            numbers.iter().for_each(|number| ledger.insert(*number));
            self.say_applied(numbers, out);
            self.see(out);
        }
    }
}

/// Values of sequences of a transaction, without its rows; nothing if its pieces have none.
fn sequences(pieces: &[Record]) -> Option<Record> {
    let rest = joined(pieces, &Rows::default())?;
    (!rest.draft.sequences.is_empty()).then_some(rest)
}

/// One record for these pieces, with these rows and the number of the last piece; nothing if there are none.
fn joined(pieces: &[Record], rows: &Rows) -> Option<Record> {
    let last = pieces.last()?;
    let sequences = pieces.iter().flat_map(|piece| &piece.draft.sequences);
    let sequences = sequences.cloned().collect();
    let draft = rows.draft(&last.draft.header, last.draft.token, sequences);
    Some(Record {
        number: last.number,
        draft: draft.into(),
    })
}

/// A transaction of which these are the pieces, as one record with the number of the last; nothing if there are none.
fn whole(pieces: Vec<Record>) -> Option<Record> {
    let last = pieces.last()?;
    if pieces.len() == 1 {
        return Some(last.clone());
    }
    let mut rows = Rows::default();
    for piece in &pieces {
        match piece.draft.rows() {
            Ok(more) => rows.append(more),
            // Whoever executes it finds that it cannot be read.
            Err(_) => {
                return Some(Record {
                    number: last.number,
                    draft: piece.draft.clone(),
                });
            }
        }
    }
    joined(&pieces, &rows)
}
