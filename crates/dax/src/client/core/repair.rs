//! Brings a replica up to date with what was given up for it while it was away.
//!
//! Each missed block is read from the others and sent to the replica as it is, with its own version,
//! under this handle's epoch. Versions never go down at a replica, so a repair can come too late but
//! never do harm; a block that was overwritten, removed or pruned since needs none. What a replica missed
//! is known to the writer that gave it up, for its lifetime; reads are right without it, only slower.
//!
//! A block whose last version cannot be told any more (its copies are damaged, and whoever had another one lost its
//! disk) holds up no other one; but a scrub that meets one counts for nobody.

use crate::error::Result;
use crate::ids::{BlockKey, Generation, ReplicaId};

use super::quorum::ReplicaSet;
use super::reads::Read;
use super::shared::Shared;
use super::{Event, OpId, Output};

#[derive(Debug)]
pub(super) struct Repair {
    pub replica: ReplicaId,
    pub key: BlockKey,
    generation: Generation,
    read: Read,
}

impl Repair {
    pub fn new(replica: ReplicaId, key: BlockKey, generation: Generation) -> Repair {
        Repair {
            replica,
            key,
            generation,
            read: Read::for_copy(key, generation),
        }
    }

    /// See [`super::quorum::Round::restart`].
    pub fn restart(&mut self) {
        self.read.restart();
    }

    pub fn on(&mut self, id: OpId, event: Event, s: &mut Shared) -> Option<Result<Output>> {
        match self.read.on(id, event, s)? {
            // Whoever it is for has heard of its removal already.
            Ok(_) if s.handle.is_removed(self.key) => Some(Ok(Output::Unit)),
            Ok(Output::Block(Some(block))) if block.generation == self.generation => {
                s.send_repair(self.replica, self.key, block);
                Some(Ok(Output::Unit))
            }
            // Removed or pruned meanwhile, or damaged everywhere: nothing to send.
            Ok(_) => Some(Ok(Output::Unit)),
            Err(error) => {
                // Nobody can tell what the replica should have here; others of its blocks can be copied.
                s.scrub_answered(ReplicaSet::default());
                Some(Err(error))
            }
        }
    }
}
