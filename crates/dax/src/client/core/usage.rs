//! What each replica keeps of the volume and does for it, as it says: whoever is there answers.

use crate::error::Result;
use crate::storage::Usage;
use crate::wire::{Request, Response};

use super::quorum::{Quorums, Round};
use super::shared::Shared;
use super::{Asker, Event, OpId, Output};

#[derive(Debug)]
pub(super) struct Ask {
    round: Round<Usage>,
}

impl Ask {
    pub fn new(quorums: Quorums) -> Ask {
        Ask {
            round: Round::new(Request::Usage, quorums.all().len()),
        }
    }

    /// See [`super::quorum::Round::restart`].
    pub fn restart(&mut self) {
        self.round.restart();
    }

    pub fn on(&mut self, id: OpId, event: Event, s: &mut Shared) -> Option<Result<Output>> {
        let taken = self.round.take(event, s.now, |reply| match reply {
            Response::Usage(usage) => Ok(*usage),
            other => Err(other),
        });
        if let Err(error) = taken {
            return Some(Err(error));
        }
        let asked = s.links.askable();
        if !asked.is_empty() && asked.without(self.round.replied()).is_empty() {
            let mut replies = std::mem::take(&mut self.round.replies);
            replies.sort_by_key(|(replica, _)| *replica);
            return Some(Ok(Output::Usage(replies)));
        }
        self.round
            .ask(s.now, Asker::Op(id), &mut s.links, &mut s.out);
        None
    }
}
