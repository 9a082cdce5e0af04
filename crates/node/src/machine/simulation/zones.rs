//! The storage tier, as far as takeovers depend on it: three zones, each of which accepts epochs first
//! come, first served, and refuses what an older epoch writes.

use std::collections::HashSet;

use dax::ids::Epoch;

use super::flaw::Flaw;
use crate::machine::LastBeat;

pub(super) const ZONES: usize = 3;
pub(super) const MAJORITY: usize = 2;

/// Who owns an epoch: a node, in one life of its agent.
pub(super) type Owner = (usize, u32);

/// A commit, by the epoch that made it.
pub(super) type Commit = (Epoch, u64);

#[derive(Debug, Clone)]
pub(super) enum Request {
    Read,
    Propose(Epoch, Owner),
    Beat(LastBeat),
    Commit(Commit),
    /// Under the fence: a zone that answers has accepted the reader's epoch.
    Tail(Epoch, Owner),
}

#[derive(Debug, Clone)]
pub(super) enum Reply {
    Read(Option<(Epoch, Owner)>, Option<LastBeat>),
    /// The epoch is accepted; the last heartbeat that an older one may have written.
    Accepted(Option<LastBeat>),
    Done,
    Refused,
    Tail(HashSet<Commit>),
}

#[derive(Debug, Default)]
pub(super) struct Zone {
    pub up: bool,
    pub accepted: Option<(Epoch, Owner)>,
    pub beat: Option<LastBeat>,
    pub commits: HashSet<Commit>,
}

impl Zone {
    fn epoch(&self) -> Epoch {
        self.accepted.map_or(Epoch(0), |(epoch, _)| epoch)
    }

    pub fn answer(&mut self, request: &Request, flaw: Option<Flaw>) -> Reply {
        let fences = flaw != Some(Flaw::NoFence);
        match request {
            Request::Read => Reply::Read(self.accepted, self.beat.clone()),
            Request::Tail(epoch, _) if *epoch < self.epoch() && fences => Reply::Refused,
            Request::Tail(epoch, owner) => {
                let newer = *epoch > self.epoch() && flaw != Some(Flaw::ReadsOutsideTheFence);
                if newer {
                    self.accepted = Some((*epoch, *owner));
                }
                Reply::Tail(self.commits.clone())
            }
            Request::Propose(epoch, owner) => {
                let again = self.accepted == Some((*epoch, *owner));
                let shared = flaw == Some(Flaw::SharedEpoch) && self.epoch() == *epoch;
                if *epoch > self.epoch() || again || shared {
                    self.accepted = Some((*epoch, *owner));
                    Reply::Accepted(self.beat.clone())
                } else {
                    Reply::Refused
                }
            }
            Request::Beat(beat) if beat.beat.epoch < self.epoch() && fences => Reply::Refused,
            Request::Beat(beat) => {
                let newer = self.beat.as_ref().is_none_or(|b| b.beat < beat.beat);
                if newer {
                    self.beat = Some(beat.clone());
                }
                Reply::Done
            }
            Request::Commit((epoch, _)) if *epoch < self.epoch() && fences => Reply::Refused,
            Request::Commit(commit) => {
                self.commits.insert(*commit);
                Reply::Done
            }
        }
    }
}
