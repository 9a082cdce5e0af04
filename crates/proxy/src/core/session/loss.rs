//! The server in hand is gone: what becomes of the session, its transaction and its commit (R4, R5, R6).

use std::time::Duration;

use dax::ids::Epoch;

use super::super::flaw::Flaw;
use super::super::outcome::{self, Judgement, XactStatus};
use super::answers::lost_answers;
use super::ask::XidState;
use super::batch::RequestBatch;
use super::in_doubt::{InDoubtCommit, LostServer};
use super::local::{self, Durability};
use super::reason::Reason;
use super::{Context, Effect, Out, Phase, Role, Server, Session};
use protocol::frame::{self, Refusal};

/// How often a transaction is asked about that still ends.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// State of a batch whose server is gone.
enum Fate {
    /// Nothing was under way.
    Nothing,
    /// It had not begun.
    NotBegun,
    /// It cannot have committed anything.
    Open,
    /// It may have committed.
    InDoubt,
}

impl Session {
    /// The connection in hand is gone, or its server is active no more.
    pub fn server_lost(&mut self, cx: &Context<'_>, out: &mut Out) {
        if self.is_amid_row {
            tracing::warn!("a server was lost within a row that its client has begun to read");
            self.count_not_replayed(Reason::LargeAnswer);
            self.shut(out);
            return;
        }
        self.lose_state(cx, out);
        let Some(server) = self.link.take() else {
            return;
        };
        out.effects.push(Effect::Drop);
        out.server.clear();
        if !cx.lacks(Flaw::LossForgets) {
            let label = server.uncertain_epoch();
            let label = label.filter(|_| !cx.lacks(Flaw::NewsBelieved));
            self.remember(&server, label);
        }
        // What is due stays so while it is found out whether it may be told, by however many servers.
        if self.in_doubt.is_none()
            && let Some(batch) = &mut self.batch
        {
            batch.due = self.replies.of_client().cloned().collect();
        }
        self.replies.clear();
        if server.epoch().is_none() {
            self.lost_standby(cx, out);
            return;
        }
        self.lost_epoch = server.epoch();
        self.lost = LostServer::of(&server);
        let fate = self.fate();
        if matches!(fate, Fate::InDoubt) && !cx.lacks(Flaw::LossForgets) {
            self.seen.on_doubt();
        }
        if self.session_state.cannot_move() {
            match fate {
                Fate::InDoubt => self.tell_lost_in_doubt(out),
                _ => self.tell_lost_affinities(out),
            }
            return;
        }
        // What is decided or replayed already goes on with another server.
        if let Some(doubt) = &mut self.in_doubt {
            doubt.forget_proof();
            self.phase = Phase::Deciding;
            self.ask_for_active(out);
            return;
        }
        match fate {
            Fate::InDoubt => self.doubt(cx, out),
            Fate::Open => {
                if let Some(batch) = &mut self.batch {
                    batch.again();
                }
                self.counts.replayed += u64::from(self.status == b'I');
                self.run_again(cx, out);
            }
            Fate::NotBegun => {
                if self.status == b'I' {
                    // It has lost nothing, whoever ended the connection, and why.
                    self.last_words = None;
                }
                // What it names is looked up again when the transaction before it has run again.
                if self.status != b'I'
                    && let Some(batch) = &mut self.batch
                {
                    batch.again();
                }
                self.run_again(cx, out);
            }
            Fate::Nothing => self.lost_idle(cx, out),
        }
    }

    /// What was begun on a server that is given up may have been done, and what it has answered was seen: whatever becomes of
    /// the transaction, what the session reads next must not be older. An active was `taken_for` that of an epoch, if that is
    /// not certain.
    pub(super) fn remember(&mut self, server: &Server, taken_for: Option<Epoch>) {
        let batch = self.batch.as_deref();
        let is_open = self.status != b'I' || self.transaction.is_some();
        match &server.role {
            Role::Active(_) if is_open || batch.is_some_and(|batch| batch.is_dispatched) => {
                self.seen.on_active(taken_for);
            }
            Role::Standby(name) if is_open || batch.is_some_and(RequestBatch::has_answered) => {
                self.seen.on_standby(name, server.run);
            }
            _ => {}
        }
    }

    fn lost_idle(&mut self, cx: &Context<'_>, out: &mut Out) {
        if self.status != b'I' {
            self.run_again(cx, out);
        } else if self.session_state.listens() {
            self.acquire_active(cx, out);
        } else {
            // Its next batch finds another server.
            self.last_words = None;
            self.phase = Phase::Idle;
        }
    }

    fn lost_standby(&mut self, cx: &Context<'_>, out: &mut Out) {
        match &mut self.batch {
            Some(batch) if batch.is_streamed => {
                self.fail_transaction(Reason::LargeAnswer, out);
                return;
            }
            Some(batch) if batch.is_dispatched => {
                batch.again();
                batch.avoids_standbys = true;
            }
            Some(_) => {}
            None if self.status == b'I' => {
                self.phase = Phase::Idle;
                return;
            }
            None => {}
        }
        self.run_again(cx, out);
    }

    /// Runs what is under way on another server: the open transaction first, if there is one.
    fn run_again(&mut self, cx: &Context<'_>, out: &mut Out) {
        self.xid = XidState::NotAsked;
        self.has_unasked_writes = false;
        self.has_notified = false;
        self.may_have_notified = false;
        let began_before = self.status != b'I';
        if let Some(why) = self.cannot_run_again() {
            self.fail_transaction(why, out);
        } else if began_before && !self.begin_replay(cx, out) {
            // It was told.
        } else if began_before && self.distrusts_active(cx) {
            self.ask_position(cx, out);
        } else if began_before {
            self.acquire_active(cx, out);
        } else {
            self.route(cx, out);
        }
    }

    /// Why running the batch once more would do harm, or nobody could tell what the client has had.
    pub(super) fn cannot_run_again(&self) -> Option<Reason> {
        // The facts of a batch that is prepared to run again are gone, but for these.
        match self.batch.as_deref()? {
            batch if batch.is_streamed => Some(Reason::LargeAnswer),
            batch if batch.is_cut => Some(Reason::LongStatements),
            batch if batch.must_not_repeat => Some(Reason::Effects),
            _ => None,
        }
    }

    /// State of the batch.
    fn fate(&self) -> Fate {
        let Some(batch) = &self.batch else {
            return Fate::Nothing;
        };
        if self.phase == Phase::Replaying {
            return Fate::Open;
        }
        if !batch.is_dispatched {
            return Fate::NotBegun;
        }
        if may_have_committed(batch, self.has_written(batch)) {
            Fate::InDoubt
        } else {
            Fate::Open
        }
    }

    /// True if the transaction may have written anything.
    pub(super) fn has_written(&self, batch: &RequestBatch) -> bool {
        batch.facts.writes || self.has_unasked_writes || self.xid != XidState::NotAsked
    }

    /// A commit was sent and not answered.
    fn doubt(&mut self, cx: &Context<'_>, out: &mut Out) {
        self.counts.in_doubt += 1;
        if cx.lacks(Flaw::DoubtMeansNo) {
            self.did_not_commit(cx, out);
            return;
        }
        if cx.lacks(Flaw::DoubtMeansYes) {
            self.tell_committed(cx, out);
            return;
        }
        // It is there on the server that is lost, and nobody knows what another one would say.
        let is_local = |batch: &RequestBatch| batch.durability != Durability::Waited;
        if self.batch.as_deref().is_some_and(is_local) {
            self.tell_unknown(out);
            return;
        }
        let is_alone = self
            .batch
            .as_ref()
            .is_some_and(|batch| batch.facts.is_alone);
        match (self.xid, self.lost.take()) {
            (XidState::Is(xid), Some(ran_on)) if !is_alone => {
                self.in_doubt = Some(InDoubtCommit::new(xid, ran_on));
                self.phase = Phase::Deciding;
                self.ask_for_active(out);
            }
            (XidState::None, _) if !is_alone && !self.has_unasked_writes && !self.notifies() => {
                // It had written nothing, so it does not matter whether it committed.
                self.did_not_commit(cx, out);
            }
            _ => self.tell_unknown(out),
        }
    }

    /// A connection is there to decide by.
    pub(super) fn decide(&mut self, cx: &Context<'_>, out: &mut Out) {
        let Some(doubt) = &mut self.in_doubt else {
            return;
        };
        self.phase = Phase::Deciding;
        let now = self.link.as_deref().and_then(LostServer::of);
        let Some(now) = now else {
            self.ask_for_active(out);
            return;
        };
        let judged = judge(cx, doubt, &now);
        if doubt.needs_proof(judged) && !cx.lacks(Flaw::NewsBelieved) {
            doubt.ask_proof(now.epoch);
            out.effects.push(Effect::AskPosition { shown: false });
            return;
        }
        doubt.log(now.epoch, &judged);
        match judged {
            Judgement::Ask => {
                let text = local::status_query(doubt.xid);
                self.asked_status = None;
                self.query_for_us(&text, out);
            }
            Judgement::NotCommitted => {
                self.in_doubt = None;
                self.did_not_commit(cx, out);
            }
            Judgement::Unknown => self.tell_unknown(out),
        }
    }

    /// Here is proof that the epoch stood which is known now, or there is none in time.
    pub(super) fn hear_proof(&mut self, cx: &Context<'_>, is_there: bool, out: &mut Out) {
        let Some(doubt) = &mut self.in_doubt else {
            return;
        };
        if doubt.prove(cx.topology.epoch) {
            match is_there {
                true => self.decide(cx, out),
                false => self.tell_unknown(out),
            }
        }
    }

    /// `pg_xact_status` answered.
    pub(super) fn hear_status(&mut self, text: Option<&[u8]>) {
        self.asked_status = Some(match text {
            Some(b"committed") => XactStatus::Committed,
            Some(b"aborted") => XactStatus::Aborted,
            Some(b"in progress") => XactStatus::InProgress,
            _ => XactStatus::Unknown,
        });
    }

    /// The question about the commit was answered.
    pub(super) fn decided(&mut self, cx: &Context<'_>, out: &mut Out) {
        let Some(doubt) = &self.in_doubt else {
            return;
        };
        let now = self.link.as_ref().and_then(|link| link.epoch());
        let is_same_epoch = now == Some(doubt.ran_on.epoch);
        let is_local = |batch: &RequestBatch| batch.durability != Durability::Waited;
        if self.batch.as_deref().is_some_and(is_local) {
            // The question's own wait was cancelled.
            self.tell_unknown(out);
            return;
        }
        doubt.log(now.unwrap_or_default(), &self.asked_status);
        match self.asked_status.take() {
            Some(XactStatus::Committed) => {
                self.in_doubt = None;
                self.counts.in_doubt_committed += 1;
                self.tell_committed(cx, out);
            }
            Some(XactStatus::Aborted) => {
                self.in_doubt = None;
                self.did_not_commit(cx, out);
            }
            // Its server process has lost its client and ends it; or it was prepared, and is another's.
            Some(XactStatus::InProgress) if is_same_epoch => {
                out.effects.push(Effect::Wake(ASK_AGAIN));
            }
            _ => self.tell_unknown(out),
        }
    }

    /// The transaction did not commit: it may be run again.
    fn did_not_commit(&mut self, cx: &Context<'_>, out: &mut Out) {
        if let Some(batch) = &mut self.batch {
            batch.again();
        }
        self.run_again(cx, out);
    }

    /// The commit is in the log: the client gets the answer that was lost.
    fn tell_committed(&mut self, cx: &Context<'_>, out: &mut Out) {
        let Some(batch) = &mut self.batch else {
            return;
        };
        let answers = match batch.is_answered_whole() {
            true => Some(Vec::new()),
            false => lost_answers(batch),
        };
        let held = batch.held.split().freeze();
        let mut told = Out::default();
        self.tell_all(&held, &mut told);
        for answer in answers.iter().flatten() {
            self.tell_all(answer, &mut told);
        }
        let Some(batch) = self.batch.take() else {
            return;
        };
        if answers.is_none() || batch.differs || batch.had.is_some() {
            self.tell_answers_lost(batch, out);
            return;
        }
        out.client.extend_from_slice(&told.client);
        if batch.is_complete {
            frame::put_ready(&mut out.client, b'I');
        }
        // If its `Sync` has not come, what is left up to it is another batch, which it answers.
        self.counts.answered(b'I');
        self.note_committed(&batch);
        self.status = b'I';
        self.end_transaction();
        self.phase = Phase::Idle;
        self.release(cx, out);
    }

    /// The transaction committed, and its client is due more than can be made up.
    fn tell_answers_lost(&mut self, batch: Box<RequestBatch>, out: &mut Out) {
        self.note_committed(&batch);
        self.batch = Some(batch);
        let text = "the transaction committed, but answers to its statements were lost";
        let refusal = Refusal::error("08007", text)
            .detail("The server was lost before it had answered what was sent along with COMMIT.")
            .hint("Do not try the transaction again: look for its effects.");
        self.fail_batch(&refusal, out);
    }

    /// Settings and channels of a transaction whose commit was looked up.
    fn note_committed(&mut self, batch: &RequestBatch) {
        for part in batch.facts.statements.iter().flat_map(|all| &all.parts) {
            part.effects
                .iter()
                .for_each(|effect| self.session_state.note(effect));
        }
        self.session_state.end(true);
    }

    /// Nobody knows whether the transaction committed.
    pub(super) fn tell_unknown(&mut self, out: &mut Out) {
        self.in_doubt = None;
        self.counts.in_doubt_unknown += 1;
        let refusal = Refusal::error("08007", "it is not known whether the transaction committed")
            .detail("The server was lost while it committed, and its outcome cannot be looked up.")
            .hint("Look for its effects before you try again.");
        self.fail_batch(&refusal, out);
    }

    /// True if the transaction gets an id when it commits, though it may have none before.
    fn notifies(&self) -> bool {
        self.has_notified || self.may_have_notified
    }
}

fn judge(cx: &Context<'_>, doubt: &InDoubtCommit, now: &LostServer) -> Judgement {
    let horizons = &cx.topology.horizons;
    if cx.lacks(Flaw::NoHorizon) {
        return Judgement::Ask;
    }
    if cx.lacks(Flaw::LastHorizon)
        && let Some((last, _)) = horizons.last_key_value()
    {
        let ran_in = Epoch(last.0.saturating_sub(1));
        return outcome::judge(doubt.xid, ran_in, now.epoch, horizons);
    }
    if cx.lacks(Flaw::EpochBelieved) {
        return outcome::judge(doubt.xid, doubt.ran_on.epoch, now.epoch, horizons);
    }
    doubt.judge(now, cx.topology)
}

/// True if something of the batch may have committed, if its transaction has written.
pub(super) fn may_have_committed(batch: &RequestBatch, has_written: bool) -> bool {
    if batch.is_implicit() {
        if batch.facts.copies_in && !batch.has_ended_copy && !batch.facts.goes_on {
            return false;
        }
        return (batch.has_sent_commit || batch.facts.is_alone) && has_written;
    }
    batch.has_sent_commit && has_written
}
