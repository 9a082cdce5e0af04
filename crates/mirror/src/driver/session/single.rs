//! A session at the only member: what a mirror refuses is refused, and everything else the member executes as its client has sent it.
//!
//! So an application finds out what a mirror would not take before there is one, and pays nothing for it but the way through the
//! manager. Nothing is locked, numbered or logged, and a COMMIT is what it is for the member: durable when it is answered.
//!
//! Invariant: the member is sent the client's own messages, in the order in which they came, and a batch up to its `Sync` at once; so a
//! batch is one transaction here as well.

use protocol::frame::Refusal;

use super::memory::Plans;
use super::names::Portal;
use super::run::Form;
use super::{Done, End, Result, Session};
use crate::sql::{Plan, Step};

/// What a batch of the extended protocol has executed so far.
#[derive(Debug, Default)]
pub struct Batch {
    /// What the statements were planned as.
    executed: Vec<Plans>,
    /// The member has been sent some of them, and they are neither committed nor rolled back.
    is_flushed: bool,
}

impl Session {
    /// Executes a text of the simple protocol.
    pub(super) async fn simple_singly(&mut self, text: &str, plans: Plans) -> Result<()> {
        if let Some(refusal) = self.refused(&plans) {
            self.refuse(&refusal).await?;
            return Ok(());
        }
        let was_failed = self.status == b'E';
        let done = self.run_alone(text, Form::Simple).await?;
        self.follow(&[plans], was_failed, done).await
    }

    /// Executes a statement of the extended protocol; `message` is its `Execute`.
    pub(super) async fn execute_singly(&mut self, message: &[u8], portal: &Portal) -> Result<Done> {
        let plans = self.outline(&portal.statement.text).await?;
        if let Some(refusal) = self.refused(&plans) {
            if self.batch.is_flushed && self.status == b'I' {
                // The member takes the next `Sync` for the end of what it has executed of the batch. It has to forget that.
                return Err(End::Told(Box::new(Refusal {
                    severity: "FATAL",
                    ..refusal
                })));
            }
            return self.refuse(&refusal).await;
        }
        let copies = |(_, plan): &(String, Plan)| matches!(plan, Plan::Write(one) if one.is_copy);
        if plans.iter().any(copies) && self.batch.executed.is_empty() {
            let was_failed = self.status == b'E';
            let form = Form::Own(&portal.parameters, &portal.result_formats, message);
            let done = self.run_alone(&portal.statement.text, form).await?;
            let is_well = matches!(done, Done::Well);
            self.follow(&[plans], was_failed, done).await?;
            return Ok(if is_well { Done::Well } else { Done::Failed });
        }
        self.prepared.keep(message);
        self.batch.executed.push(plans);
        Ok(Done::Well)
    }

    /// The client wants to be answered before its batch ends.
    pub(super) fn flushed(&mut self) {
        self.batch.is_flushed |= !self.batch.executed.is_empty();
    }

    /// A batch has ended at its `Sync`.
    pub(super) async fn end_singly(&mut self, was_failed: bool, failed: bool) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        let done = if failed { Done::Failed } else { Done::Well };
        self.follow(&batch.executed, was_failed, done).await
    }

    /// What a mirror would say, unless the member says that the transaction has failed.
    fn refused(&self, plans: &Plans) -> Option<Refusal> {
        if self.status == b'E' {
            return None;
        }
        plans.iter().find_map(|(_, plan)| match plan {
            Plan::Refused(refusal) => Some((**refusal).clone()),
            _ => None,
        })
    }

    /// Notes what statements have left behind. If one of them failed, nobody knows how far they came.
    async fn follow(&mut self, executed: &[Plans], was_failed: bool, done: Done) -> Result<()> {
        let is_well = matches!(done, Done::Well);
        let mut changes_catalog = self.own_facts.is_some() && self.status == b'I';
        let mut forgets = !is_well && !executed.is_empty() || was_failed && self.status == b'I';
        for (source, plan) in executed.iter().flat_map(|plans| plans.iter()) {
            match plan {
                Plan::Alone { sets, creates } => {
                    if is_well {
                        self.note_effects(source, *sets);
                    }
                    forgets |= sets;
                    self.sets_within |= sets & (self.status != b'I');
                    self.knows_names &= !creates;
                }
                Plan::Write(write) => {
                    if is_well {
                        self.note_effects(source, false);
                    }
                    changes_catalog |= write.changes_catalog;
                }
                Plan::Step(Step::Rollback | Step::RollbackTo(_)) => {
                    forgets = true;
                    changes_catalog |= self.own_facts.is_some();
                }
                // It may be a table that was made in the same text.
                Plan::Unknown(_) => changes_catalog = true,
                Plan::Step(_) | Plan::Refused(_) => {}
            }
        }
        if forgets {
            self.forget_settings();
        }
        if self.status == b'I' {
            self.end_transaction();
        }
        if changes_catalog && self.reread_facts().await?.is_some() {
            tracing::debug!("the catalog cannot be read within a transaction");
        }
        Ok(())
    }
}
