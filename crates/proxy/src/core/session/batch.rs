//! Batch of requests: one simple query, or messages of the extended protocol up to their `Sync`.
//!
//! A session does one batch at a time. Invariant: [`RequestBatch::bytes`] are the client's messages as they came, so
//! that they can be sent again, or [`RequestBatch::is_cut`] says that they are not.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;

use super::super::sql::{Begin, Hint, Kind, ProxyQuery, Statement, Verdict};
use super::digest::Digest;
use super::effects::Forgotten;
use super::kept::Rows;
use super::local::Durability;
use super::prepared::{Needed, Prepared};
use super::replies::SentMessage;

/// A message of a batch that was not written to the server yet.
#[derive(Debug)]
pub struct Noted {
    /// Its end in [`RequestBatch::bytes`].
    pub end: usize,
    /// What a `Parse`, `Bind`, `Describe` or `Close` names.
    pub prepared: Option<Arc<Prepared>>,
    /// What a `Query` or `Execute` does.
    pub statement: Option<Arc<Statement>>,
    /// It is not proved to be a read.
    pub may_write: bool,
    /// Statements that its text needs by the client's own names.
    pub needs: Vec<Needed>,
}

/// Known effects of a batch.
#[derive(Debug, Default)]
pub struct Facts {
    /// What it executes, in order.
    pub statements: Vec<Arc<Statement>>,
    /// One of its statements is not proved to be a read.
    pub writes: bool,
    /// Something in it is no read, whatever functions do that it calls.
    pub is_more_than_read: bool,
    /// It begins a transaction block.
    pub begins: Option<Begin>,
    /// It commits a transaction block.
    pub commits: bool,
    /// It may end a transaction block, by a commit or a rollback.
    pub ends: bool,
    /// More follows the end of the transaction: other statements, or another transaction that begins at once. Then one id does
    /// not show how much was done.
    pub goes_on: bool,
    /// It takes data from the client.
    pub copies_in: bool,
    /// What it does must not be wrapped in a transaction, or nobody can tell afterwards if it was done.
    pub is_alone: bool,
    /// It must not be run again.
    pub cannot_repeat: bool,
    /// It may act outside of the database, where no rollback takes anything back.
    pub reaches_out: bool,
    /// It may change what its session has.
    pub is_opaque: bool,
    /// It runs something of the users' own.
    pub runs_own: bool,
    /// It may leave something on its connection that no reset takes away.
    pub taints: bool,
    /// It runs what its text does not show.
    pub runs_unseen: bool,
    /// Something in it is not understood.
    pub is_unread: bool,
    /// It may notify, as far as anybody knows.
    pub may_notify: bool,
    /// Something in it changes the catalog, or names what the catalog did not have when it was read.
    pub defines: bool,
    /// What a comment asks for.
    pub hint: Option<Hint>,
    /// What it asks the proxy.
    pub proxy_query: Option<ProxyQuery>,
}

/// Batch of requests that is under way.
#[derive(Debug, Default)]
pub struct RequestBatch {
    /// The client's messages.
    pub bytes: BytesMut,
    /// Those that were not written to the server yet.
    pub noted: VecDeque<Noted>,
    /// How much of the bytes was written.
    pub written: usize,
    /// It is a simple query or a function call.
    pub is_simple: bool,
    /// The message that ends it has come.
    pub is_complete: bool,
    /// Something of it was given to a server.
    pub is_dispatched: bool,
    /// The transaction's status when it began: `I`, `T` or `E`.
    pub began_in: u8,
    /// What it does.
    pub facts: Facts,
    /// Something in it was written that may have written, and the transaction's id was not asked since.
    pub has_unasked_writes: bool,
    /// A message that commits was written.
    pub has_sent_commit: bool,
    /// What the client was answered, without `ReadyForQuery` and what servers say unasked.
    pub answered: Digest,
    /// It is run once more; the client has had this already.
    pub had: Option<Digest>,
    /// The answer differs from what the client has had.
    pub differs: bool,
    /// A row was passed on in pieces: nobody knows any more what the client has.
    pub is_streamed: bool,
    /// Rows that it told, if they are needed to run it once more; or that it told when it was run first.
    pub rows: Rows,
    /// Messages of it that were written are not kept: it cannot be sent again.
    pub is_cut: bool,
    /// The server reported an error.
    pub has_failed: bool,
    /// Its statements that were written.
    pub written_parts: usize,
    /// Those that are complete, in order: whether the server said that it was a rollback.
    pub complete: Vec<bool>,
    /// The prepared statements that it names.
    pub named: Vec<Arc<Prepared>>,
    /// The names of those that the server in hand cannot run any more, as a table has changed, or must not keep.
    pub stale: Vec<Box<str>>,
    /// A statement was written behind which settings may be others than the server has reported.
    pub may_have_set: bool,
    /// Prepared statements that were forgotten with one that takes them away.
    pub forgotten: Option<Box<Forgotten>>,
    /// A `COMMIT` ended as a rollback.
    pub was_rolled_back: bool,
    /// Answers that are told when the commit is known.
    pub held: BytesMut,
    /// The proxy has put a transaction around it.
    pub is_wrapped: bool,
    /// The client sends data for `COPY`.
    pub is_copying_in: bool,
    /// It has sent the end of it.
    pub has_ended_copy: bool,
    /// How often the server in hand has asked for data.
    pub copies_begun: u32,
    /// How many ends of data were written to it.
    pub copies_ended: u32,
    /// Answered by the proxy with an error: what else comes up to `Sync` is skipped.
    pub skips: bool,
    /// A standby refused it.
    pub avoids_standbys: bool,
    /// A standby said that it writes, or it reads what may write when it is read.
    pub is_known_to_write: bool,
    /// It was run, and must not be run again.
    pub must_not_repeat: bool,
    /// It was run, and may have acted outside of the database.
    pub has_reached_out: bool,
    /// How often its server was lost.
    pub losses: u8,
    /// True if its commit waited until it was durable.
    pub durability: Durability,
    /// What the client was due when the server was lost.
    pub due: Vec<SentMessage>,
    /// It commits a transaction block, as was known before it was prepared to run again.
    commits: bool,
}

impl RequestBatch {
    /// An empty one.
    pub fn new(began_in: u8) -> RequestBatch {
        RequestBatch {
            began_in,
            ..RequestBatch::default()
        }
    }

    /// It executes this.
    pub fn executes(&mut self, statement: &Arc<Statement>, verdicts: &[Verdict]) {
        let facts = &mut self.facts;
        facts.hint = facts.hint.or(statement.hint);
        facts.proxy_query = facts.proxy_query.or(statement.proxy_query);
        for (part, verdict) in statement.parts.iter().zip(verdicts) {
            facts.reaches_out |= verdict.reaches_out;
            facts.is_opaque |= verdict.is_opaque;
            facts.may_notify |= verdict.may_notify;
            facts.taints |= verdict.taints;
            facts.runs_own |= verdict.runs_own;
            facts.runs_unseen |= part.runs_unseen;
            facts.is_unread |= matches!(part.kind, Kind::Opaque { .. });
            facts.defines |= part.defines || verdict.is_unheard;
            facts.goes_on |= facts.ends || part.may_chain();
            facts.ends |= part.may_end();
            facts.writes |= part.writes();
            facts.cannot_repeat |= !verdict.may_repeat;
            // What nobody looks into may only read.
            let is_unseen = part.runs_unseen || part.may_act_outside || part.has_large_objects;
            facts.is_more_than_read |= part.writes() && !is_unseen;
            match &part.kind {
                Kind::Begin(begin) => facts.begins = facts.begins.or(Some(*begin)),
                Kind::Commit { .. } => facts.commits = true,
                Kind::CopyIn => facts.copies_in = true,
                Kind::PrepareTransaction => {
                    facts.commits = true;
                    facts.is_alone = true;
                }
                Kind::Alone | Kind::Opaque { .. } => facts.is_alone = true,
                _ => {}
            }
        }
        // Several statements in one text commit together, with nothing in between to ask for their id.
        facts.is_alone |= facts.goes_on || statement.parts.len() > 1 && facts.writes;
        facts.statements.push(statement.clone());
    }

    /// True if it is a transaction by itself.
    pub fn is_implicit(&self) -> bool {
        self.began_in == b'I' && self.facts.begins.is_none()
    }

    /// True if its answers are told when it is over: it commits, so its client waits for its end in any case, and what another
    /// run would answer otherwise was never told if the server is lost before that.
    pub fn holds_back(&self) -> bool {
        let commits = self.facts.commits || self.is_implicit() && self.facts.writes;
        let may_wait =
            self.is_complete && !self.is_streamed && !self.facts.copies_in && !self.facts.goes_on;
        commits && may_wait && self.had.is_none() && self.durability != Durability::Told
    }

    /// True if all that it is answered was answered, but for its end.
    pub fn is_answered_whole(&self) -> bool {
        let parts = self.facts.statements.iter().map(|all| all.parts.len());
        self.is_simple && self.complete.len() >= parts.sum()
    }

    /// True if its client has had something of its answer.
    pub fn has_answered(&self) -> bool {
        self.answered.frames > 0 || self.is_streamed
    }

    /// True if it commits a transaction block.
    pub fn commits(&self) -> bool {
        self.commits || self.facts.commits
    }

    /// Prepares it to be run once more on another server.
    pub fn again(&mut self) {
        // What was compared already counts, if this is not the first time.
        let had = match self.had {
            Some(had) if had.frames > self.answered.frames => had,
            _ => self.answered,
        };
        self.had = (had.frames > 0).then_some(had);
        self.answered = Digest::default();
        self.rows = Rows::default();
        self.written = 0;
        self.noted.clear();
        self.must_not_repeat |= self.is_dispatched && self.facts.cannot_repeat;
        self.losses = self.losses.saturating_add(1);
        self.has_reached_out |= self.is_dispatched && self.facts.reaches_out;
        self.commits |= self.facts.commits;
        self.facts = Facts::default();
        self.is_dispatched = false;
        self.has_unasked_writes = false;
        self.has_sent_commit = false;
        self.has_failed = false;
        self.written_parts = 0;
        self.complete.clear();
        self.named.clear();
        self.stale.clear();
        self.may_have_set = false;
        self.was_rolled_back = false;
        self.durability = Durability::default();
        self.held.clear();
        self.is_wrapped = false;
        self.is_copying_in = false;
        self.copies_begun = 0;
        self.copies_ended = 0;
    }
}
