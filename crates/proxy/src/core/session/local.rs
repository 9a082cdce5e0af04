//! A commit whose wait for durability was cancelled.
//!
//! Where the active's log is ordered, PostgreSQL's own synchronous replication makes a commit wait. If that wait is
//! cancelled (a cancel request, `pg_terminate_backend`), PostgreSQL answers as if all were well, after a warning:
//! the transaction is there on this server, and may be lost with it. Clients do not look at warnings, so they are told
//! 08007 in place of the success.
//!
//! The same server may be asked about a commit whose answer was lost. It says that it has committed before that is durable,
//! if the wait was cut short. So the question is a small commit itself where commits wait: it is behind the one that is
//! asked about, and answered when both are durable.
//!
//! Invariant: once the warning has come, the client is not told that this batch is done; it is told once that nobody
//! knows, and what else the server answers of this batch is swallowed. If it asks for data, it gets none: the client, which
//! has its answer, would not send any.

use postgres_protocol::message::frontend;

use super::super::outcome::Xid;
use super::batch::RequestBatch;
use super::replies::{ReplyOwner, SentMessage};
use super::{Out, Session};
use protocol::frame::{self, Refusal};

/// Who warns, in every language.
const WAITS: &[u8] = b"SyncRepWaitForLSN";
/// What is said in place of data. Nobody but the server's log sees it.
const NO_DATA: &str = "the client was told that the wait for a commit before it was cancelled";

/// Asks what became of a transaction; the answer comes when it is durable. Where commits do not wait, it writes nothing.
pub(super) fn status_query(xid: Xid) -> String {
    format!(
        "SELECT pg_catalog.pg_xact_status('{}'::pg_catalog.xid8), \
         CASE WHEN pg_catalog.current_setting('synchronous_standby_names') <> '' \
         THEN pg_catalog.pg_logical_emit_message(true, 'understudy', \
         pg_catalog.set_config('synchronous_commit', 'on', true)) END",
        xid.0
    )
}

/// Outcome of a batch's commit.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The commit waited until it was durable: there was no warning.
    #[default]
    Waited,
    /// The wait was cancelled, so the commit may not be durable.
    Cancelled,
    /// The wait was cancelled, and the client has been told so.
    Told,
}

impl Session {
    /// A notice of the server's may be that warning.
    pub(super) fn note_notice(&mut self, bytes: &[u8]) {
        if frame::error_fields(bytes).routine != WAITS {
            return;
        }
        if let Some(batch) = &mut self.batch
            && batch.durability == Durability::Waited
        {
            batch.durability = Durability::Cancelled;
        }
    }

    /// Tells the client in place of an answer to a batch, if its commit did not wait; whether the answer is dealt with.
    pub(super) fn tell_cancelled(batch: &mut RequestBatch, tag: u8, out: &mut Out) -> bool {
        match batch.durability {
            Durability::Waited => false,
            // What comes before the end of a statement is its answer.
            Durability::Cancelled if tag != b'C' => false,
            Durability::Cancelled => {
                Session::tell_batch_cancelled(batch, out);
                true
            }
            Durability::Told => true,
        }
    }

    /// The same at the end of a batch, of which nothing else has told.
    pub(super) fn tell_batch_cancelled(batch: &mut RequestBatch, out: &mut Out) {
        if batch.durability == Durability::Cancelled {
            batch.durability = Durability::Told;
            refusal().put(&mut out.client);
        }
    }

    /// The server asks for data behind such a commit, if the client was told: it has to go on without, up to the end of the
    /// batch.
    pub(super) fn refuse_data(&mut self, out: &mut Out) {
        let Some(batch) = &mut self.batch else {
            return;
        };
        if batch.durability != Durability::Told
            || frontend::copy_fail(NO_DATA, &mut out.server).is_err()
        {
            return;
        }
        batch.copies_ended += 1;
        // The `Sync` that was there is ignored; one that is to come is not.
        if batch.is_complete && !batch.is_simple {
            frontend::sync(&mut out.server);
            self.replies.push(SentMessage::Sync, ReplyOwner::Client);
        }
    }
}

fn refusal() -> Refusal {
    Refusal::error("08007", "it is not known whether the transaction committed")
        .detail(
            "The wait for its commit to be durable was cancelled. It has committed on this server, and is lost if the \
             server is lost now.",
        )
        .hint("Look for its effects before you try again.")
}
