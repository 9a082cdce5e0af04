//! Effects of a batch on its session, statement by statement, as far as the server said that it was done.
//!
//! Invariant: what is believed of a connection is what its server has. A statement counts when it is complete, and a
//! change of a setting when its transaction has committed, wherever in the batch that was.

use super::super::sql::{Effect as Does, Kind, ServerAffinity, SingleStatement, Statement};
use super::Session;
use super::batch::RequestBatch;
use super::prepared::Names;
use super::server::Held;

/// So many of the prepared statements that an endless batch names are kept: one of them may be what fails.
const NAMED_LATELY: usize = 1000;

/// Prepared statements that were forgotten with one that takes them away.
#[derive(Debug)]
pub struct Forgotten {
    /// Number of that statement in the batch.
    at: usize,
    names: Names,
    /// Those of the server in hand when it was written, if it takes all of them.
    on_server: Option<(Held, Option<Box<str>>)>,
}

impl Session {
    /// What takes prepared statements away takes them away whether the transaction commits or not, and from what follows
    /// in the same packet: so the client's names are forgotten in the order in which its messages came. If it turns out to
    /// have failed, they are there again.
    pub(super) fn forget_names(&mut self, batch: &mut RequestBatch, statement: &Statement) {
        for (at, part) in statement.parts.iter().enumerate() {
            for effect in &part.effects {
                let name = match effect {
                    Does::DiscardAll | Does::Deallocate(None) => None,
                    Does::Deallocate(Some(name)) if self.names.definition(name).is_some() => {
                        Some(name)
                    }
                    _ => continue,
                };
                if batch.forgotten.is_none() {
                    let all = batch.facts.statements.iter().map(|all| all.parts.len());
                    batch.forgotten = Some(Box::new(Forgotten {
                        at: all.sum::<usize>() - statement.parts.len() + at,
                        names: self.names.clone(),
                        on_server: None,
                    }));
                }
                match name {
                    Some(name) => self.names.define(name, None),
                    None => self.names.clear(),
                }
            }
        }
    }

    /// The batch is noted once more: its client's names are what they were before it.
    pub(super) fn recall_names(&mut self) {
        let forgotten = self.batch.as_mut().and_then(|batch| batch.forgotten.take());
        if let Some(forgotten) = forgotten {
            self.names = forgotten.names;
        }
    }

    /// Forgets the prepared statements that an effect takes away, as it is written to the server in hand.
    pub(super) fn forget_statements(&mut self, batch: &mut RequestBatch, effect: &Does) {
        if let (Does::DiscardAll | Does::Deallocate(None), Some(link)) = (effect, &mut self.link) {
            if let Some(forgotten) = batch
                .forgotten
                .as_mut()
                .filter(|one| one.on_server.is_none())
            {
                forgotten.on_server = Some((link.prepared.clone(), link.unnamed.clone()));
            }
            link.prepared.clear();
            link.unnamed = None;
        }
    }

    /// Of a batch whose end does not come, what is complete counts, and is not kept any longer.
    pub(super) fn note_completed(&mut self, batch: &mut RequestBatch) {
        let mut parts = 0;
        let mut statements = 0;
        for statement in &batch.facts.statements {
            if parts + statement.parts.len() > batch.complete.len() {
                break;
            }
            for part in &statement.parts {
                self.note_part(part, batch.complete.get(parts) == Some(&true));
                parts += 1;
            }
            statements += 1;
        }
        batch.facts.statements.drain(..statements);
        batch.complete.drain(..parts);
        batch.written_parts -= parts.min(batch.written_parts);
        // What had forgotten statements is done, or comes later.
        batch.forgotten = batch.forgotten.take().and_then(|mut forgotten| {
            forgotten.at = forgotten.at.checked_sub(parts)?;
            Some(forgotten)
        });
        let surplus = batch.named.len().saturating_sub(NAMED_LATELY);
        batch.named.drain(..surplus);
    }

    /// The batch is answered: what did it do?
    pub(super) fn note_effects(&mut self, batch: &mut RequestBatch, status: u8) {
        let complete = batch.complete.len();
        if let Some(forgotten) = batch.forgotten.take()
            && batch.has_failed
            && complete <= forgotten.at
        {
            self.names = forgotten.names;
            if let (Some(had), Some(link)) = (forgotten.on_server, &mut self.link) {
                (link.prepared, link.unnamed) = had;
            }
        }
        let parts = batch.facts.statements.iter().flat_map(|all| &all.parts);
        for (at, part) in parts.enumerate() {
            if batch.has_failed && at >= complete {
                self.note_failed(part);
                break;
            }
            self.note_part(part, batch.complete.get(at) == Some(&true));
        }
        if status == b'I' {
            // What is left is a transaction by itself, or a text that nobody understands.
            let mut parts = batch.facts.statements.iter().flat_map(|all| &all.parts);
            let is_opaque = parts.any(|part| matches!(part.kind, Kind::Opaque { .. }));
            let is_undone = is_opaque && batch.was_rolled_back;
            self.end_keeps(!batch.has_failed && !is_undone);
        }
    }

    /// A statement is complete; `is_rollback` is what the server says that it was.
    fn note_part(&mut self, part: &SingleStatement, is_rollback: bool) {
        match &part.kind {
            Kind::Savepoint(name) => self.session_state.savepoint(name),
            Kind::RollbackTo(name) => self.session_state.rollback_to(name),
            Kind::Release(name) => self.session_state.release(name),
            Kind::Commit { .. } | Kind::PrepareTransaction => self.end_keeps(!is_rollback),
            Kind::Rollback { .. } => self.end_keeps(false),
            _ => {}
        }
        part.effects
            .iter()
            .for_each(|effect| self.session_state.note(effect));
    }

    /// A lock of the session stays if its statement fails after it was taken.
    fn note_failed(&mut self, part: &SingleStatement) {
        let lock = Does::Affinity(ServerAffinity::Advisory);
        if part.effects.contains(&lock) {
            self.session_state.note(&lock);
        }
    }

    /// A transaction is over.
    fn end_keeps(&mut self, has_committed: bool) {
        let sets_style = has_committed && self.session_state.sets("datestyle");
        if has_committed && let Some(link) = &mut self.link {
            self.session_state.change_on_server(&mut link.settings);
        }
        self.session_state.end(has_committed);
        // Setting one part of it leaves the other: what the server reports is all of it.
        if sets_style && let Some(style) = self.told.get("DateStyle") {
            self.session_state.settings.set("datestyle", style);
            if let Some(link) = &mut self.link {
                link.settings.set("datestyle", style);
            }
        }
    }
}
