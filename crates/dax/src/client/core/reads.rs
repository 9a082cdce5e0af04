//! Reads (DAX 3.1, 4): optimistic where the version list knows the block, by quorum otherwise.
//!
//! Who reads a sealed image may know the version without having written it: the writer's list of the
//! generation's blocks says so (CAC-DB 4.5.2). Then the caller brings what the version list does not
//! have. Such a version never changes, so nothing but exactly that one is an answer of one replica.
//!
//! All are one operation: an optimistic read starts by asking one replica, a quorum read by asking
//! N-k+1; each answer that does not settle it widens the circle. So a stale answer is retried at the
//! next nearest replica (the paper retries the same replica, 3.1), and after enough of them the read
//! has become a quorum read by itself.

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlockKey, Generation, ReplicaId, Version};
use crate::storage::Block;
use crate::wire::{Request, Response, StoredBlock};

use super::quorum::{ReplicaSet, Round};
use super::shared::Shared;
use super::{Asker, Event, OpId, Output, unexpected};
use crate::writer::Reading;

#[derive(Debug)]
pub(super) struct Read {
    read: Reading,
    /// It is for a copy: what nobody who is there has any more was removed, and nobody needs a copy of it.
    is_for_copy: bool,
    round: Round<Option<StoredBlock>>,
}

/// Newest of an image: the generation decides, then the version inside it.
fn order(block: &StoredBlock) -> (Generation, Version) {
    (block.generation, block.version)
}

/// The newest of the answers; none if all say that there is nothing.
pub(super) fn newest(replies: &[(ReplicaId, Option<StoredBlock>)]) -> Option<&StoredBlock> {
    let blocks = replies.iter().filter_map(|(_, block)| block.as_ref());
    blocks.max_by_key(|b| order(b))
}

impl Read {
    pub fn new(key: BlockKey, up_to: Generation) -> Read {
        Read::of(Reading::new(key, up_to))
    }

    /// A read as of a sealed generation that must return this version.
    pub fn expecting(key: BlockKey, up_to: Generation, version: Version) -> Read {
        Read::of(Reading::expecting(key, up_to, version))
    }

    /// A read of what another replica shall have as well. Once a quorum has answered it waits for nobody who is away or
    /// cannot answer, not even if what was written here is not among the answers: what is durable is with one of a
    /// quorum, so it was removed since. But everybody who is there is asked before that, because more may have been lost
    /// than the protocol bears.
    pub fn for_copy(key: BlockKey, generation: Generation) -> Read {
        Read {
            is_for_copy: true,
            ..Read::new(key, generation)
        }
    }

    fn of(read: Reading) -> Read {
        let Reading { key, up_to, .. } = read;
        Read {
            read,
            is_for_copy: false,
            round: Round::new(Request::Read { key, up_to }, 1),
        }
    }

    /// See [`super::quorum::Round::restart`].
    pub fn restart(&mut self) {
        self.round.restart();
    }

    pub fn key(&self) -> BlockKey {
        self.read.key
    }

    pub fn on(&mut self, id: OpId, event: Event, s: &mut Shared) -> Option<Result<Output>> {
        let result = match event {
            Event::Start => self.start(s),
            Event::Reply(replica, reply) => self.reply(replica, reply, s),
            Event::Lost(replica) => {
                self.round.lost(replica);
                self.give_up(s)
            }
            Event::Emptied(replica) => {
                self.round.forget(replica);
                None
            }
            Event::Wake => self.give_up(s),
            Event::Synced => None,
        };
        if result.is_none() {
            self.round
                .ask(s.now, Asker::Op(id), &mut s.links, &mut s.out);
        }
        result.map(|r| r.map(Output::Block))
    }

    fn start(&mut self, s: &mut Shared) -> Option<Result<Option<Block>>> {
        if let Err(changed) = s.check_pending(self.read.key, self.read.up_to) {
            return Some(Err(changed));
        }
        if let Some(answer) = self.read.begin(&mut s.handle) {
            return Some(Ok(answer));
        }
        if self.read.known().is_none() {
            self.round.spread = s.quorums.read_spread();
        }
        None
    }

    fn reply(
        &mut self,
        replica: ReplicaId,
        reply: Response,
        s: &mut Shared,
    ) -> Option<Result<Option<Block>>> {
        match reply {
            Response::Block(Some(block)) if !block.is_intact(self.read.key) => {
                self.round.spoiled(replica, s.now)
            }
            Response::Block(block) => return self.block(replica, block, s),
            Response::Error {
                kind: ErrorKind::Corrupt,
                ..
            } => self.round.spoiled(replica, s.now),
            Response::Error { kind, message } => {
                if let Some(error) = self.round.error(replica, kind, message, s.now) {
                    return Some(Err(error));
                }
            }
            other => return Some(Err(unexpected(replica, &other))),
        }
        self.judge(s)
    }

    fn block(
        &mut self,
        replica: ReplicaId,
        block: Option<StoredBlock>,
        s: &mut Shared,
    ) -> Option<Result<Option<Block>>> {
        let version = block.as_ref().map_or(Version::ZERO, |b| b.version);
        if self.read.known().is_some() {
            let fresh = self.read.takes(&s.handle, version);
            #[cfg(test)]
            let fresh = fresh || self.is_believed(block.as_ref(), s);
            if fresh {
                self.count(s);
                return Some(Ok(block.map(into_block)));
            }
            s.handle.counters.reads_stale += 1;
            self.round.spread += 1;
        }
        self.round.answer(replica, block);
        self.judge(s)
    }

    /// True if a client that is broken on purpose takes this answer.
    #[cfg(test)]
    fn is_believed(&self, block: Option<&StoredBlock>, s: &Shared) -> bool {
        use crate::simulation::flaw::Flaw;
        match s.flaw {
            Some(Flaw::UncheckedReads) => true,
            Some(Flaw::GenerationBelieved) => {
                self.read.sealed().is_some()
                    && block.is_some_and(|b| b.generation == self.read.up_to)
            }
            _ => false,
        }
    }

    fn count(&self, s: &mut Shared) {
        match self.round.replies.len() {
            0 => s.handle.counters.reads_one += 1,
            _ => {
                s.handle.counters.reads_quorum += 1;
                s.handle.counters.reads_escalated += 1;
            }
        }
    }

    /// Decides once a quorum has answered.
    fn judge(&mut self, s: &mut Shared) -> Option<Result<Option<Block>>> {
        let replied = self.round.replied();
        // A store that lost its disk never says again what it had.
        let all = s.quorums.all().without(s.lost_members());
        let exhausted = self.round.is_exhausted(all);
        if !s.quorums.is_read(replied) {
            return exhausted.then(|| Err(self.damaged()));
        }
        let newest = newest(&self.round.replies);
        #[cfg(test)]
        let newest = s.distort_newest(&self.round.replies, newest);
        let version = newest.map_or(Version::ZERO, |b| b.version);
        let behind = self.read.is_behind(version);
        let is_copy = |block: &StoredBlock| behind.is_none() && block.generation == self.read.up_to;
        if self.is_for_copy && !newest.is_some_and(is_copy) && !self.others(s).is_empty() {
            self.round.spread = all.len();
            return None;
        }
        if let Some(lost) = behind {
            if self.is_for_copy {
                return Some(Ok(None));
            }
            // Never go back behind what a quorum holds: look further, and again.
            if exhausted {
                return Some(Err(self.lost(lost)));
            }
            self.round.spread = all.len();
            return self.give_up(s);
        }
        let found = newest.map(order);
        let block = newest.cloned().map(into_block);
        self.read.learn(&mut s.handle, found);
        Some(Ok(block))
    }

    /// A quorum does not have what a sealed image must have, and nobody else can be asked: the image was
    /// let go, or more was lost than the protocol bears. Waiting for the others would hold up a reader
    /// that lost its claim for as long as they are away. The same for a copy, of which nobody has anything.
    fn give_up(&mut self, s: &mut Shared) -> Option<Result<Option<Block>>> {
        if !s.quorums.is_read(self.round.replied()) || !self.others(s).is_empty() {
            return None;
        }
        if self.is_for_copy {
            return self.judge(s);
        }
        let known = self.read.sealed()?;
        Some(Err(self.lost(known.version)))
    }

    /// Who is there and has not said yet what it has; of those who cannot, a copy waits for nobody.
    fn others(&self, s: &Shared) -> ReplicaSet {
        let asked = self.round.replied().union(self.round.damaged());
        let others = s.links.askable().without(asked);
        match self.is_for_copy {
            true => others.without(self.round.resting()),
            false => others,
        }
    }

    fn damaged(&self) -> Error {
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "block {} fails its checksum in {} replicas, and the others cannot say which version is the last",
                self.read.key,
                self.round.damaged().len()
            ),
        )
    }

    fn lost(&self, version: Version) -> Error {
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "no replica has version {version} of block {} any more",
                self.read.key
            ),
        )
    }
}

/// Without the checksum, which was verified on receipt.
pub(super) fn into_block(stored: StoredBlock) -> Block {
    Block {
        version: stored.version,
        generation: stored.generation,
        data: stored.data,
    }
}
