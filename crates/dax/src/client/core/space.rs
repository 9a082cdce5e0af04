//! How much room there is: the answer of the replica that has least, of a majority.

use crate::error::Result;
use crate::storage::Space;
use crate::wire::{Request, Response};

use super::quorum::{Quorums, Round};
use super::shared::Shared;
use super::{Asker, Event, OpId, Output};

#[derive(Debug)]
pub(super) struct Ask {
    round: Round<Space>,
}

impl Ask {
    pub fn new(quorums: Quorums) -> Ask {
        Ask {
            round: Round::new(Request::Space, quorums.all().len()),
        }
    }

    /// See [`super::quorum::Round::restart`].
    pub fn restart(&mut self) {
        self.round.restart();
    }

    pub fn on(&mut self, id: OpId, event: Event, s: &mut Shared) -> Option<Result<Output>> {
        let taken = self.round.take(event, s.now, |reply| match reply {
            Response::Space(space) => Ok(space),
            other => Err(other),
        });
        if let Err(error) = taken {
            return Some(Err(error));
        }
        if s.quorums.is_majority(self.round.replied()) {
            let spaces = self.round.replies.iter().map(|(_, space)| *space);
            let least = spaces.min_by_key(|space| space.free_bytes);
            return Some(Ok(Output::Space(least.unwrap_or_default())));
        }
        self.round
            .ask(s.now, Asker::Op(id), &mut s.links, &mut s.out);
        None
    }
}
