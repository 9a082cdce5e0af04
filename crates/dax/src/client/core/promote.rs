//! *ReadPromote* (DAX 5): which version of a block survives into this epoch.
//!
//! ```text
//!          all N replicas agree
//!   read ───────────────────────────────────────▶ that one, nothing to write
//!    under │ a quorum has answered, and they differ or the others do not answer
//!    the   ▼
//!    fence write the newest again, with a version of this epoch ──k acks──▶ that one
//! ```
//!
//! The paper lets each replica relabel its own version into the new epoch. Then a replica that was
//! not asked the first time can later relabel a different version of the old epoch, which may win
//! over the one that was already returned. So here replicas relabel nothing. Where all N hold the
//! same version and refuse older writers, no other version can ever appear: one round, no write.
//! Otherwise the chosen version is written again as an ordinary write of this epoch, which is above
//! every version of older epochs, and is returned once k replicas have it.

use crate::error::{ErrorKind, Result};
use crate::ids::{BlockKey, Generation, ReplicaId, Version};
use crate::storage::Block;
use crate::wire::{Request, Response, StoredBlock};

use super::quorum::Round;
use super::reads::{Read, into_block, newest};
use super::shared::Shared;
use super::{Asker, Event, OpId, Output, Time, unexpected};
#[cfg(test)]
use crate::simulation::flaw::Flaw;

#[derive(Debug)]
pub(super) struct Promote {
    pub key: BlockKey,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Start,
    /// Reading under the fence.
    Asking {
        round: Round<Option<StoredBlock>>,
        /// When to go on with a quorum alone.
        timeout: Option<Time>,
    },
    /// The choice, or an own write, is on its way to k replicas.
    Writing(Block),
    /// The block was written or promoted by this handle already.
    Reading(Box<Read>),
}

impl Promote {
    pub fn new(key: BlockKey) -> Promote {
        Promote {
            key,
            step: Step::Start,
        }
    }

    /// See [`super::quorum::Round::restart`].
    pub fn restart(&mut self) {
        match &mut self.step {
            Step::Asking { round, timeout } => {
                round.restart();
                *timeout = None;
            }
            Step::Reading(read) => read.restart(),
            Step::Start | Step::Writing(_) => {}
        }
    }

    pub fn on(&mut self, id: OpId, event: Event, s: &mut Shared) -> Option<Result<Output>> {
        match event {
            Event::Start => return self.start(id, s),
            Event::Synced => {
                if let Step::Writing(block) = &self.step {
                    return Some(Ok(Output::Block(Some(block.clone()))));
                }
            }
            event => match &mut self.step {
                Step::Reading(read) => {
                    let result = read.on(id, event, s)?;
                    return self.hold(id, result, s);
                }
                Step::Asking { round, .. } => match event {
                    Event::Reply(replica, reply) => {
                        if let Some(failed) = self.reply(replica, reply, s) {
                            return Some(Err(failed));
                        }
                    }
                    Event::Lost(replica) => round.lost(replica),
                    Event::Emptied(replica) => round.forget(replica),
                    _ => {}
                },
                _ => {}
            },
        }
        let result = self.judge(id, s);
        if let Step::Asking { round, .. } = &mut self.step
            && result.is_none()
        {
            round.ask(s.now, Asker::Op(id), &mut s.links, &mut s.out);
        }
        result
    }

    fn start(&mut self, id: OpId, s: &mut Shared) -> Option<Result<Output>> {
        if s.handle.is_settled(self.key) {
            return self.read(id, s);
        }
        #[cfg(test)]
        if s.flaw == Some(Flaw::NoPromotion) {
            return self.read(id, s);
        }
        let Some(epoch) = s.handle.epoch() else {
            return Some(s.handle.check_writer().map(|_| Output::Block(None)));
        };
        let request = Request::Promote {
            epoch,
            key: self.key,
        };
        let mut round = Round::new(request, s.quorums.all().len());
        round.ask(s.now, Asker::Op(id), &mut s.links, &mut s.out);
        self.step = Step::Asking {
            round,
            timeout: None,
        };
        None
    }

    /// What this handle wrote, or chose in another promotion: but not before a quorum holds it.
    fn read(&mut self, id: OpId, s: &mut Shared) -> Option<Result<Output>> {
        if let Err(changed) = s.check_pending(self.key, Generation::SINGLE) {
            return Some(Err(changed));
        }
        if let Some(block) = s.handle.pending.read(self.key, Generation::SINGLE) {
            s.handle.counters.reads_pending += 1;
            s.wait_synced(id, Some(self.key.file), block.version.seq);
            self.step = Step::Writing(block);
            return None;
        }
        let mut read = Box::new(Read::new(self.key, Generation::SINGLE));
        let result = read.on(id, Event::Start, s);
        self.step = Step::Reading(read);
        result
    }

    /// A write that this handle made meanwhile is shown only once a quorum holds it, too.
    fn hold(&mut self, id: OpId, result: Result<Output>, s: &mut Shared) -> Option<Result<Output>> {
        match result {
            Ok(Output::Block(Some(block))) if s.handle.is_own(block.version) => {
                s.wait_synced(id, Some(self.key.file), block.version.seq);
                self.step = Step::Writing(block);
                None
            }
            result => Some(result),
        }
    }

    fn reply(
        &mut self,
        replica: ReplicaId,
        reply: Response,
        s: &mut Shared,
    ) -> Option<crate::Error> {
        let Step::Asking { round, .. } = &mut self.step else {
            return None;
        };
        let damaged = match &reply {
            Response::Block(Some(block)) => !block.is_intact(self.key),
            Response::Error { kind, .. } => *kind == ErrorKind::Corrupt,
            _ => false,
        };
        match reply {
            _ if damaged => {
                round.spoiled(replica, s.now);
                None
            }
            Response::Block(block) => {
                round.answer(replica, block);
                None
            }
            Response::Error { kind, message } => round.error(replica, kind, message, s.now),
            other => Some(unexpected(replica, &other)),
        }
    }

    fn judge(&mut self, id: OpId, s: &mut Shared) -> Option<Result<Output>> {
        let Step::Asking { round, timeout } = &mut self.step else {
            return None;
        };
        let (replied, all) = (round.replied(), s.quorums.all());
        if !s.quorums.is_read(replied) {
            return round.is_exhausted(all).then(|| {
                Err(crate::Error::new(
                    ErrorKind::Corrupt,
                    format!(
                        "block {} fails its checksum in {} replicas",
                        self.key,
                        round.damaged().len()
                    ),
                ))
            });
        }
        let version = |b: &Option<StoredBlock>| b.as_ref().map_or(Version::ZERO, |b| b.version);
        let first = version(&round.replies[0].1);
        let agree = round.replies.iter().all(|(_, b)| version(b) == first);
        // Whoever joins gets what is written, also by those who died, and answers nothing yet.
        let complete = s.links.everybody().without(replied).is_empty();
        if agree && !complete && first != Version::ZERO && !round.waiting().is_empty() {
            // The others may agree, too, which saves the write: a moment to answer.
            let until =
                *timeout.get_or_insert_with(|| s.now + s.links.hedge_delay(round.waiting()));
            if s.now < until {
                return None;
            }
        }
        let chosen = newest(&round.replies);
        #[cfg(test)]
        let chosen = s.distort_newest(&round.replies, chosen);
        let chosen = chosen.cloned();
        self.settle(id, chosen, agree && complete, s)
    }

    /// The survivor is chosen; `stable` if it needs no new version.
    fn settle(
        &mut self,
        id: OpId,
        chosen: Option<StoredBlock>,
        stable: bool,
        s: &mut Shared,
    ) -> Option<Result<Output>> {
        if s.handle.is_settled(self.key) {
            // Written or promoted while this was asking: that counts.
            return self.read(id, s);
        }
        let Some(chosen) = chosen else {
            s.handle
                .versions
                .learned(self.key, Generation::SINGLE, None, stable);
            return Some(Ok(Output::Block(None)));
        };
        s.handle.counters.reads_promoted += 1;
        if stable {
            let found = Some((chosen.generation, chosen.version));
            s.handle.versions.forget(self.key);
            s.handle
                .versions
                .learned(self.key, Generation::MAX, found, true);
            return Some(Ok(Output::Block(Some(into_block(chosen)))));
        }
        match s.write(self.key, chosen.generation, chosen.data.clone().into()) {
            Err(error) => Some(Err(error)),
            Ok(version) => {
                let block = Block {
                    version,
                    ..into_block(chosen)
                };
                self.step = Step::Writing(block);
                s.wait_synced(id, Some(self.key.file), version.seq);
                None
            }
        }
    }
}
