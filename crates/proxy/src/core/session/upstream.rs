//! What a server answers: to the client, to the proxy's own questions, or into a digest.

use bytes::{Buf, Bytes, BytesMut};

use super::super::flaw::Flaw;
use super::ask::XidState;
use super::batch::RequestBatch;
use super::ending::{Ending, TIMEOUTS};
use super::held::drop_complete;
use super::local::Durability;
use super::reason::Reason;
use super::replies::{PendingReply, ReplyOwner, SentMessage};
use super::standby::READ_ONLY;
use super::transaction::Transaction;
use super::{Context, Out, Phase, Session, Wait};
use protocol::frame;

/// `in_failed_sql_transaction`
const FAILED_TRANSACTION: &[u8] = b"25P02";

/// Who says that a statement would have another result than when it was prepared.
const REVALIDATES: &[u8] = b"RevalidateCachedQuery";

/// What refuses to run a command in a transaction block, or in a function.
const PREVENTS: &[u8] = b"PreventInTransactionBlock";
/// The block is the proxy's, and the client knows nothing of it: a command that the client has sent itself would not be
/// in one ([`Kind`](super::super::sql::Kind)), so a function has run it.
const IN_OUR_BLOCK: &[u8] = b" cannot run inside a transaction block";
const IN_A_FUNCTION: &[u8] = b" cannot be executed from a function";

/// A row that is longer is passed on in pieces.
const STREAMED_BYTES: usize = 64 << 10;

impl Session {
    /// Takes what is there of a server's answers. `rest` is how much of a message that is passed on in pieces
    /// is still to come: give it back with the next input of the same connection.
    pub fn server_input(
        &mut self,
        cx: &Context<'_>,
        input: &mut BytesMut,
        rest: &mut usize,
        out: &mut Out,
    ) {
        let mut at = (*rest).min(input.len());
        out.client.extend_from_slice(&input[..at]);
        *rest -= at;
        self.is_amid_row = *rest > 0;
        // What is left when another connection has taken the place of this one is no answer of that one.
        let from = self.connection();
        let is_same = |session: &Session| from.is_some() && session.connection() == from;
        while *rest == 0 && is_same(self) && self.phase != Phase::Closed {
            match frame::head(&input[at..]) {
                Ok(Some((_, len))) if input.len() - at >= len => {
                    self.server_frame(cx, &input[at..at + len], out);
                    at += len;
                }
                Ok(Some((tag, len))) if self.may_stream(tag, len) => {
                    self.tell_held(out);
                    out.client.extend_from_slice(&input[at..]);
                    *rest = len - (input.len() - at);
                    at = input.len();
                }
                Ok(_) => break,
                Err(error) => {
                    tracing::error!(%error, "invalid message from a server");
                    at = input.len();
                    self.server_lost(cx, out);
                }
            }
        }
        input.advance(at);
        self.is_amid_row = *rest > 0;
    }

    /// Tells the connection in hand from others.
    fn connection(&self) -> Option<*const super::Server> {
        self.link.as_deref().map(std::ptr::from_ref)
    }

    /// True if a message that is not all there may go to the client already.
    fn may_stream(&mut self, tag: u8, len: usize) -> bool {
        let to = self.replies.front_owner();
        let is_clients = matches!(to, Some(ReplyOwner::Client | ReplyOwner::Wrapped));
        let Some(batch) = &mut self.batch else {
            return false;
        };
        let streams = matches!(tag, b'D' | b'd')
            && len > STREAMED_BYTES
            && is_clients
            && self.phase == Phase::Running
            && batch.durability != Durability::Told
            && batch.had.is_none();
        batch.is_streamed |= streams;
        streams
    }

    fn server_frame(&mut self, cx: &Context<'_>, bytes: &[u8], out: &mut Out) {
        match bytes[0] {
            b'S' => self.parameter(bytes, out),
            b'N' => {
                self.note_notice(bytes);
                let owner = self.replies.front_owner();
                let is_own = owner.is_some_and(ReplyOwner::is_of_state);
                if !is_own && matches!(self.phase, Phase::Running | Phase::Idle) {
                    out.client.extend_from_slice(bytes);
                }
            }
            b'A' => self.notify(bytes, out),
            b'E' => self.server_error(cx, bytes, out),
            b'Z' => self.server_ready(cx, bytes[frame::HEADER_BYTES], out),
            tag => self.answer(tag, bytes, out),
        }
        let differs = self.batch.as_ref().is_some_and(|batch| batch.differs);
        if differs && !cx.lacks(Flaw::AnswersNotCompared) {
            self.fail_as_other(out);
        }
    }

    /// A notification. Who sent it may be the session itself, which its client knows by another number.
    fn notify(&mut self, bytes: &[u8], out: &mut Out) {
        let own = self.link.as_deref().and_then(|link| link.process);
        let start = out.client.len();
        out.client.extend_from_slice(bytes);
        let body = start + frame::HEADER_BYTES;
        if let Some(number) = out.client.get_mut(body..body + 4)
            && own.is_some_and(|own| number == own.to_be_bytes())
        {
            number.copy_from_slice(&self.number.to_be_bytes());
        }
    }

    fn parameter(&mut self, bytes: &[u8], out: &mut Out) {
        let pair = frame::name(frame::body(bytes)).and_then(|(name, rest)| {
            let (value, _) = frame::name(rest)?;
            Some((name, value))
        });
        let (Some((name, value)), Some(link)) = (pair, &mut self.link) else {
            return;
        };
        link.reported.put(name, value);
        let is_setup = self.replies.front_owner() == Some(ReplyOwner::Setup);
        if !is_setup && name != "in_hot_standby" && self.told.put(name, value) {
            out.client.extend_from_slice(bytes);
        }
    }

    fn answer(&mut self, tag: u8, bytes: &[u8], out: &mut Out) {
        self.replies.skip_copy_ends();
        let Some(&PendingReply { ref sent, owner }) = self.replies.front() else {
            return;
        };
        let is_over = matches!(
            (sent, tag),
            (SentMessage::Parse(_), b'1')
                | (SentMessage::Bind, b'2')
                | (SentMessage::Close, b'3')
                | (SentMessage::Describe, b'T' | b'n')
                | (SentMessage::DescribeStatement, b'T' | b'n')
                | (SentMessage::Execute, b'C' | b'I' | b's')
        );
        if let (ReplyOwner::Client | ReplyOwner::Wrapped, b'C' | b's') = (owner, tag)
            && let Some(batch) = &mut self.batch
        {
            batch.complete.push(frame::body(bytes) == b"ROLLBACK\0");
        }
        match (owner, tag) {
            (ReplyOwner::Commit, b'C') => self.wrap_committed(bytes, out),
            (ReplyOwner::Wrapped, b'C') => {
                if let Some(batch) = &mut self.batch {
                    batch.held.extend_from_slice(bytes);
                }
            }
            (ReplyOwner::Client | ReplyOwner::Wrapped, _) => {
                self.note_answer(tag, bytes, out);
                self.emit(bytes, out);
            }
            (ReplyOwner::Xid, b'D') => self.hear_xid(frame::first_column(bytes)),
            (ReplyOwner::State, b'D') => self.hear_state(bytes),
            (ReplyOwner::Setup, b'D') if self.phase == Phase::Deciding => {
                self.hear_status(frame::first_column(bytes));
            }
            _ => {}
        }
        if is_over {
            self.replies.pop();
            self.flush_emits(out);
        }
    }

    /// The transaction that was put around a statement is over.
    fn wrap_committed(&mut self, bytes: &[u8], out: &mut Out) {
        let has_failed = self.batch.as_ref().is_some_and(|batch| batch.has_failed);
        if frame::body(bytes) == b"ROLLBACK\0" && !has_failed {
            // Our question was cancelled: it was the client's statement that was meant.
            let deferred_error = self.deferred_error.take().unwrap_or_else(|| {
                super::Refusal::error("57014", "canceling statement due to user request").to_bytes()
            });
            self.client_error(b"", &deferred_error, out);
        }
    }

    fn note_answer(&mut self, tag: u8, bytes: &[u8], out: &mut Out) {
        self.keep_rows(tag, bytes);
        match tag {
            b'G' => self.data_asked(out),
            b'W' => self.refuse_data(out),
            b'C' if frame::body(bytes) == b"ROLLBACK\0" => {
                if let Some(batch) = &mut self.batch {
                    batch.was_rolled_back = true;
                }
            }
            _ => {}
        }
    }

    /// The server asks for data.
    fn data_asked(&mut self, out: &mut Out) {
        self.replies.copy_in();
        let Some(batch) = &mut self.batch else {
            return;
        };
        batch.copies_begun += 1;
        // If not, what the client has sent unasked ends it.
        if batch.copies_begun <= batch.copies_ended {
            batch.is_copying_in = false;
        } else if batch.durability == Durability::Told {
            self.refuse_data(out);
        } else {
            batch.is_copying_in = true;
            // The `Sync` that was there is ignored: another one comes after the data.
            batch.is_complete &= batch.is_simple;
        }
    }

    /// Gives the client what it gets without a server, as far as it is its turn.
    pub(super) fn flush_emits(&mut self, out: &mut Out) {
        while let Some(SentMessage::Emit(bytes)) = self.replies.front().map(|slot| &slot.sent) {
            let bytes = bytes.clone();
            self.replies.pop();
            self.emit(&bytes, out);
        }
    }

    fn server_error(&mut self, cx: &Context<'_>, bytes: &[u8], out: &mut Out) {
        let fields = frame::error_fields(bytes);
        if matches!(fields.severity, b"FATAL" | b"PANIC") {
            self.server_ends(cx, bytes, out);
            return;
        }
        if self.is_dying_word(cx, &fields) {
            tracing::warn!(
                code = %String::from_utf8_lossy(fields.code),
                error = %String::from_utf8_lossy(fields.message),
                "a server cannot reach its files: it counts as lost"
            );
            self.dying_word = Some(Bytes::copy_from_slice(bytes));
            self.server_lost(cx, out);
            return;
        }
        let Some(slot) = self.replies.front() else {
            return;
        };
        let (to, is_query) = (slot.owner, slot.sent == SentMessage::Query);
        if to == ReplyOwner::State {
            self.state_failed();
            return;
        }
        if to == ReplyOwner::Setup {
            self.setup_failed(cx, bytes, out);
            return;
        }
        if self.moves_to_active(fields.code) && !cx.lacks(Flaw::StandbysWordTold) {
            self.counts.refused_by_standby += 1;
            if fields.code == READ_ONLY {
                self.learn_that_it_writes(out);
            }
            self.leave_standby(cx, out);
            return;
        }
        if !is_query {
            if fields.code == b"0A000" && fields.routine == REVALIDATES {
                self.note_stale(cx);
            }
            self.forget_unparsed();
            self.replies.fail();
        }
        let is_ours = matches!(to, ReplyOwner::Nobody | ReplyOwner::Xid);
        if to == ReplyOwner::Wrapped
            && fields.routine == PREVENTS
            && let Some(told) = frame::reworded(bytes, IN_OUR_BLOCK, IN_A_FUNCTION)
        {
            self.client_error(fields.code, &told, out);
        } else if !is_ours || self.replies.end_is_clients() {
            self.client_error(fields.code, bytes, out);
        } else if fields.code == FAILED_TRANSACTION {
            // What had failed before is known to the client, or owed already.
        } else if self.status == b'T' || self.batch.as_ref().is_some_and(|it| !it.has_failed) {
            self.deferred_error = Some(Bytes::copy_from_slice(bytes));
        }
    }

    /// The server ends the connection. A standby may do so at any time, as replay comes first there: that is no reason to end
    /// the session, unless its client has asked for it.
    fn server_ends(&mut self, cx: &Context<'_>, bytes: &[u8], out: &mut Out) {
        let is_standby = self
            .link
            .as_deref()
            .is_some_and(|link| link.epoch().is_none());
        let fields = frame::error_fields(bytes);
        let is_timeout = TIMEOUTS.contains(&fields.code);
        match self.ending(&fields) {
            _ if is_standby && !is_timeout && !cx.lacks(Flaw::StandbysEndTold) => {
                self.server_lost(cx, out);
            }
            Ending::Loss if !self.is_lost_too_often() => self.server_lost(cx, out),
            Ending::Terminated => {
                self.last_words = Some(Bytes::copy_from_slice(bytes));
                self.server_lost(cx, out);
            }
            Ending::Loss | Ending::Answer => {
                out.client.extend_from_slice(bytes);
                self.shut(out);
            }
        }
    }

    fn client_error(&mut self, code: &[u8], bytes: &[u8], out: &mut Out) {
        if let Some(batch) = &mut self.batch {
            batch.has_failed = true;
            batch.is_copying_in = false;
            if batch.is_wrapped {
                // PostgreSQL would not have called the statement complete.
                drop_complete(&mut batch.held);
            }
        }
        self.tell_held(out);
        match self.deferred_error.take() {
            Some(deferred_error) if code == FAILED_TRANSACTION => self.emit(&deferred_error, out),
            _ => self.emit(bytes, out),
        }
    }

    /// Statements whose `Parse` the server skips are not there.
    fn forget_unparsed(&mut self) {
        let Some(link) = &mut self.link else {
            return;
        };
        for name in self.replies.unparsed() {
            match name {
                Some(name) => {
                    link.prepared.remove(name);
                }
                None => link.unnamed = None,
            }
        }
    }

    fn server_ready(&mut self, cx: &Context<'_>, status: u8, out: &mut Out) {
        // Whatever is still due before that, the server has skipped.
        self.forget_unparsed();
        let Some(slot) = self.replies.pop_end() else {
            return;
        };
        self.flush_emits(out);
        match slot.owner {
            ReplyOwner::Setup => self.answered_for_us(cx, out),
            ReplyOwner::Nobody | ReplyOwner::Xid => {}
            ReplyOwner::Wrapped => self.wrapped(cx, out),
            ReplyOwner::State => self.state_ready(cx, status, out),
            ReplyOwner::Client if self.closes_stale(out) => {}
            _ if self.holds_ready(cx, status, out) => {}
            _ if self.phase == Phase::Replaying => self.replayed(cx, status, out),
            ReplyOwner::Client | ReplyOwner::Commit => self.finish(cx, status, out),
        }
    }

    /// A statement in a transaction of the proxy's is answered; a `COPY` may have failed before it began.
    fn wrapped(&mut self, cx: &Context<'_>, out: &mut Out) {
        let Some(mut batch) = self.batch.take() else {
            return;
        };
        if !batch.has_sent_commit {
            self.end_wrapped(cx, &mut batch, out);
        }
        self.batch = Some(batch);
    }

    /// A question of the session's own was answered.
    fn answered_for_us(&mut self, cx: &Context<'_>, out: &mut Out) {
        match self.phase {
            Phase::Deciding => self.decided(cx, out),
            Phase::Waiting(Wait::Setup) => self.proceed(cx, out),
            _ => {}
        }
    }

    /// What the session has cannot be given to this server.
    fn setup_failed(&mut self, cx: &Context<'_>, bytes: &[u8], out: &mut Out) {
        if self.phase == Phase::Deciding {
            // It is asked about at the end of the answer.
            return;
        }
        let is_standby = self
            .link
            .as_deref()
            .is_some_and(|link| link.epoch().is_none());
        if is_standby {
            self.leave_standby(cx, out);
            return;
        }
        let reason = String::from_utf8_lossy(frame::error_fields(bytes).message).into_owned();
        let refusal = super::Refusal::fatal("57P01", "this session cannot go on")
            .detail(format!(
                "What it had set cannot be set on another server: {reason}"
            ))
            .hint("Connect again.");
        self.close(&refusal, out);
    }

    /// The batch is answered.
    pub(super) fn finish(&mut self, cx: &Context<'_>, status: u8, out: &mut Out) {
        self.tell_held(out);
        let Some(mut batch) = self.batch.take() else {
            return;
        };
        if batch.had.is_some() {
            self.batch = Some(batch);
            self.fail_as_other(out);
            return;
        }
        self.pay_owed(&batch, status, out);
        Session::tell_batch_cancelled(&mut batch, out);
        self.counts.in_doubt_unknown += u64::from(batch.durability == Durability::Told);
        self.counts.answered(status);
        self.note_effects(&mut batch, status);
        self.take_pending_state(cx, out);
        if batch.facts.defines && !batch.has_failed {
            out.effects.push(super::Effect::LearnFunctions);
        }
        self.status = status;
        if status == b'I' {
            self.end_transaction();
        } else if batch.facts.goes_on {
            self.begin_anew(&batch);
        } else {
            self.keep_batch(cx, &batch, status);
        }
        self.phase = Phase::Idle;
        frame::put_ready(&mut out.client, status);
        self.release(cx, out);
    }

    /// The transaction is over.
    pub(super) fn end_transaction(&mut self) {
        self.transaction = None;
        self.names.end();
        self.xid = XidState::NotAsked;
        self.has_unasked_writes = false;
        self.has_notified = false;
        self.may_have_notified = false;
        self.deferred_error = None;
        self.replay = None;
    }

    /// The transaction that is open now began in a batch that has ended another one: the id that is known, if one is, is not
    /// its own, and what has begun it cannot be run again.
    fn begin_anew(&mut self, batch: &RequestBatch) {
        let is_on_standby = self
            .transaction
            .as_ref()
            .is_some_and(|one| one.is_on_standby);
        let (has_notified, may_have) = (self.has_notified, self.may_have_notified);
        self.end_transaction();
        (self.has_notified, self.may_have_notified) = (has_notified, may_have);
        // What has committed is the session's own, whatever becomes of what follows.
        if let Some(link) = self.link.as_deref().filter(|link| link.epoch().is_some()) {
            self.seen.on_active(link.uncertain_epoch());
        }
        self.has_unasked_writes = batch.facts.writes;
        let mut transaction = Transaction::obstructed(Reason::Chained, is_on_standby);
        transaction.has_reached_out = batch.facts.reaches_out;
        self.transaction = Some(Box::new(transaction));
    }

    fn keep_batch(&mut self, cx: &Context<'_>, batch: &RequestBatch, status: u8) {
        let replays = self.replays(cx);
        let is_on_standby = self
            .link
            .as_deref()
            .is_some_and(|link| link.epoch().is_none());
        let transaction = self
            .transaction
            .get_or_insert_with(|| Box::new(Transaction::default()));
        transaction.is_on_standby = is_on_standby;
        transaction.has_reached_out |= batch.facts.reaches_out || batch.has_reached_out;
        if replays {
            transaction.store(batch, status, cx.rules.replay_bytes);
        } else {
            transaction.obstacle = Some(Reason::Off);
        }
    }
}
