//! A loss that the client must hear of: what it is told, by what is known.
//!
//! Invariant: 40001, *try again*, is told only if nothing of the transaction is there or will be.

use super::batch::RequestBatch;
use super::loss::may_have_committed;
use super::reason::Reason;
use super::{Out, Session};
use protocol::frame::Refusal;

impl Session {
    /// True if what is lost may have acted where no rollback takes anything back.
    fn has_reached_out(&self) -> bool {
        let is_out = |batch: &RequestBatch| {
            batch.has_reached_out || batch.is_dispatched && batch.facts.reaches_out
        };
        let waiting = self.replay.as_ref().and_then(|replay| replay.waiting());
        let batches = [self.batch.as_deref(), waiting];
        let of_transaction = self.transaction.as_ref();
        batches.into_iter().flatten().any(is_out)
            || of_transaction.is_some_and(|transaction| transaction.has_reached_out)
    }

    pub(super) fn count_not_replayed(&mut self, why: Reason) {
        let (reason, because) = (why.label(), why.words());
        tracing::info!(reason, "a transaction was not run again, because {because}");
        self.counts.not_replayed[why as usize] += 1;
    }

    /// The batch was run again, and answers otherwise than its client had heard.
    pub(super) fn fail_as_other(&mut self, out: &mut Out) {
        let may_be_there = self
            .batch
            .as_deref()
            .is_some_and(|batch| may_have_committed(batch, self.has_written(batch)));
        if !may_be_there {
            self.fail_transaction(Reason::OtherAnswers, out);
            return;
        }
        self.count_not_replayed(Reason::OtherAnswers);
        self.counts.in_doubt += 1;
        self.counts.in_doubt_unknown += 1;
        let refusal = Refusal::error("08007", "it is not known whether the transaction committed")
            .detail(
                "Its server was lost, and when it was run again, its answers were others than those that had been given.",
            )
            .hint("Look for its effects before you try again.");
        self.fail_batch(&refusal, out);
    }

    /// The open transaction is lost.
    pub(super) fn fail_transaction(&mut self, why: Reason, out: &mut Out) {
        self.count_not_replayed(why);
        if self.has_reached_out() {
            let text = "it is not known what the transaction did outside of the database";
            let refusal = Refusal::error("08007", text)
                .detail(
                    "The server of this transaction was lost, and nothing of it is in this database. But it used a foreign \
                     table, a program or file of the server, or a function that may act outside of the database.",
                )
                .hint("Look for its effects there before you try it again.");
            self.fail_batch(&refusal, out);
            return;
        }
        let refusal = Refusal::error("40001", "the server of this transaction was lost")
            .detail(format!(
                "The transaction was rolled back. It was not run again, because {}.",
                why.words()
            ))
            .hint("Try the transaction again.");
        self.fail_batch(&refusal, out);
    }

    /// Something that only the lost server had is gone.
    pub(super) fn tell_lost_affinities(&mut self, out: &mut Out) {
        let what = self
            .session_state
            .affinities()
            .next()
            .map_or("", |affinity| affinity.what());
        let refusal = Refusal::fatal("57P01", "the server of this session was lost")
            .detail(format!(
                "The session had {what}, which no other server has."
            ))
            .hint("Connect again.");
        self.close(&refusal, out);
    }

    pub(super) fn tell_lost_in_doubt(&mut self, out: &mut Out) {
        self.counts.in_doubt += 1;
        self.counts.in_doubt_unknown += 1;
        let what = self
            .session_state
            .affinities()
            .next()
            .map_or("", |affinity| affinity.what());
        let refusal = Refusal::fatal("08007", "it is not known whether the transaction committed")
            .detail(format!(
                "The server was lost, and the session had {what}, which no other has."
            ))
            .hint("Connect again, and look for the transaction's effects before you try it again.");
        self.close(&refusal, out);
    }
}
