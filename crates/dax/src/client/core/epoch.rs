//! Owning an epoch (design, *Fencing*).
//!
//! ```text
//!   look at a quorum ──▶ propose highest+1 to all ──a quorum accepts──▶ owned
//!        ▲                        │ too many refuse, or some do and the rest is away
//!        │                        ▼
//!        └── nobody won ── look who won ──another owner holds a quorum──▶ Conflict
//! ```
//!
//! Invariant: at most one owner is accepted for an epoch by an epoch quorum, because each replica accepts
//! the first that comes and quorums meet.

use crate::error::{Error, ErrorKind, Result};
use crate::ids::Epoch;
use crate::storage::{EpochGrant, replaced_by};
use crate::wire::{Request, Response};

use super::quorum::{Quorums, Round};
use super::shared::Shared;
use super::{Asker, Event, OpId, Output, Time, unexpected};

/// How long to wait for the other replicas before an undecided contest is taken as won by nobody, at
/// least and at most: rivals wait for different times, so that one of them is first in the next one.
const UNDECIDED_MIN: Time = Time::from_millis(250);
const UNDECIDED_SPREAD_MILLIS: u64 = 500;

/// Asks a quorum which epoch it has accepted.
#[derive(Debug)]
pub(super) struct Look {
    round: Round<EpochGrant>,
}

impl Look {
    pub fn new(quorums: Quorums) -> Look {
        Look {
            round: Round::new(Request::Epoch, quorums.all().len()),
        }
    }

    /// See [`super::quorum::Round::restart`].
    pub fn restart(&mut self) {
        self.round.restart();
    }

    pub fn on(&mut self, id: OpId, event: Event, s: &mut Shared) -> Option<Result<Output>> {
        if let Err(error) = self.take(id, event, s) {
            return Some(Err(error));
        }
        let enough = s.quorums.is_epoch(self.round.replied());
        enough.then(|| Ok(Output::Grant(self.highest())))
    }

    fn take(&mut self, id: OpId, event: Event, s: &mut Shared) -> Result<()> {
        self.round.take(event, s.now, |reply| match reply {
            Response::Epoch(grant) => Ok(grant),
            other => Err(other),
        })?;
        self.round
            .ask(s.now, Asker::Op(id), &mut s.links, &mut s.out);
        Ok(())
    }

    /// The highest grant that was seen; of several owners of it, the one that most replicas name.
    fn highest(&self) -> EpochGrant {
        let grants = || self.round.replies.iter().map(|(_, grant)| grant);
        let votes = |grant: &EpochGrant| grants().filter(|g| *g == grant).count();
        let highest = grants().max_by_key(|g| (g.epoch, votes(g)));
        highest.cloned().unwrap_or(EpochGrant {
            epoch: Epoch::NONE,
            owner: String::new(),
        })
    }

    /// True if an owner holds an epoch quorum of those that answered; whether it still might, if the
    /// silent replicas were all on its side.
    fn winner(&self, quorums: Quorums) -> (Option<EpochGrant>, bool) {
        let highest = self.highest();
        let votes = self.round.those(|grant| *grant == highest);
        let silent = quorums.all().without(self.round.replied());
        let won = quorums.is_epoch(votes);
        let open = !won && quorums.is_epoch(votes.union(silent));
        (won.then_some(highest), open)
    }
}

/// Proves that the own epoch still stands: a quorum that is asked from now on has accepted no higher one.
///
/// Any two quorums meet, and an acceptance is never taken back: had somebody owned a higher epoch before the first question,
/// one of those that answer would have accepted it before.
#[derive(Debug)]
pub(super) struct Confirm {
    look: Look,
    own: Epoch,
}

impl Confirm {
    pub fn new(own: Epoch, quorums: Quorums) -> Confirm {
        let look = Look::new(quorums);
        Confirm { look, own }
    }

    /// See [`super::quorum::Round::restart`].
    pub fn restart(&mut self) {
        self.look.restart();
    }

    pub fn on(&mut self, id: OpId, event: Event, s: &mut Shared) -> Option<Result<Output>> {
        #[cfg(test)]
        if s.flaw == Some(crate::simulation::flaw::Flaw::PositionWithoutProof) {
            return Some(Ok(Output::Epoch(self.own)));
        }
        if let Err(error) = self.look.take(id, event, s) {
            return Some(Err(error));
        }
        let highest = self.look.highest();
        if highest.epoch > self.own {
            return Some(Err(replaced_by(&highest)));
        }
        let enough = s.quorums.is_epoch(self.look.round.replied());
        enough.then_some(Ok(Output::Epoch(self.own)))
    }
}

/// Owns a new epoch.
#[derive(Debug)]
pub(super) struct Claim {
    owner: String,
    timeout: Time,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Looking(Look),
    Proposing {
        epoch: Epoch,
        round: Round<(bool, EpochGrant)>,
        since: Time,
    },
    LookingWho {
        look: Look,
        since: Time,
    },
}

impl Claim {
    /// `owner` is unique to this life of its node.
    pub fn new(owner: String, quorums: Quorums) -> Claim {
        let spread = u64::from(crc32c::crc32c(owner.as_bytes())) % UNDECIDED_SPREAD_MILLIS;
        Claim {
            owner,
            timeout: UNDECIDED_MIN + Time::from_millis(spread),
            step: Step::Looking(Look::new(quorums)),
        }
    }

    /// See [`super::quorum::Round::restart`].
    pub fn restart(&mut self) {
        match &mut self.step {
            Step::Looking(look) | Step::LookingWho { look, .. } => look.restart(),
            Step::Proposing { round, .. } => round.restart(),
        }
    }

    pub fn on(&mut self, id: OpId, event: Event, s: &mut Shared) -> Option<Result<Output>> {
        match self.advance(id, event, s) {
            Ok(owned) => owned.map(|epoch| Ok(Output::Epoch(epoch))),
            Err(error) => Some(Err(error)),
        }
    }

    fn advance(&mut self, id: OpId, event: Event, s: &mut Shared) -> Result<Option<Epoch>> {
        match &mut self.step {
            Step::Looking(look) => {
                look.take(id, event, s)?;
                if s.quorums.is_epoch(look.round.replied()) {
                    let highest = look.highest().epoch;
                    return self.propose(id, highest, s);
                }
            }
            Step::Proposing { .. } => return self.proposing(id, event, s),
            Step::LookingWho { look, since } => {
                look.take(id, event, s)?;
                if !s.quorums.is_epoch(look.round.replied()) {
                    return Ok(None);
                }
                let (winner, open) = look.winner(s.quorums);
                if let Some(winner) = winner.filter(|w| w.owner != self.owner) {
                    return Err(lost_to(&winner));
                }
                if !open || s.now >= *since + self.timeout {
                    let highest = look.highest().epoch;
                    return self.propose(id, highest, s);
                }
            }
        }
        Ok(None)
    }

    fn propose(&mut self, id: OpId, highest: Epoch, s: &mut Shared) -> Result<Option<Epoch>> {
        if highest >= Epoch::MAX {
            return Err(Error::new(ErrorKind::Invalid, "no epochs are left"));
        }
        s.links.forget_asked(id);
        s.links.propose();
        let epoch = highest.next();
        let request = Request::OwnEpoch {
            epoch,
            owner: self.owner.clone(),
            settled: false,
        };
        self.step = Step::Proposing {
            epoch,
            round: Round::new(request, s.quorums.all().len()),
            since: s.now,
        };
        self.proposing(id, Event::Wake, s)
    }

    fn proposing(&mut self, id: OpId, event: Event, s: &mut Shared) -> Result<Option<Epoch>> {
        let Step::Proposing {
            epoch,
            round,
            since,
        } = &mut self.step
        else {
            return Ok(None);
        };
        match event {
            Event::Reply(replica, Response::Owned { accepted, grant }) => {
                if accepted {
                    s.links.admit(replica);
                }
                round.answer(replica, (accepted, grant));
            }
            Event::Reply(replica, Response::Error { kind, message }) => {
                if let Some(error) = round.error(replica, kind, message, s.now) {
                    return Err(error);
                }
            }
            Event::Reply(replica, other) => return Err(unexpected(replica, &other)),
            Event::Lost(replica) => round.lost(replica),
            Event::Emptied(replica) => round.forget(replica),
            Event::Start | Event::Wake | Event::Synced => {}
        }
        round.ask(s.now, Asker::Op(id), &mut s.links, &mut s.out);
        let accepting = round.those(|(accepted, _)| *accepted);
        let refusing = round.those(|(accepted, _)| !accepted);
        let epoch = *epoch;
        let owned = s.quorums.is_epoch(accepting);
        #[cfg(test)]
        let owned = owned
            || s.flaw == Some(crate::simulation::flaw::Flaw::OwnedAtOne) && !accepting.is_empty();
        if owned {
            s.adopt(epoch, self.owner.clone());
            return Ok(Some(epoch));
        }
        // Where some refuse and the rest is away, nobody may ever win this epoch.
        let too_many_refuse = !s.quorums.is_epoch(s.quorums.all().without(refusing));
        let undecided = !refusing.is_empty() && s.now >= *since + self.timeout;
        if too_many_refuse || undecided {
            s.links.forget_asked(id);
            self.step = Step::LookingWho {
                look: Look::new(s.quorums),
                since: s.now,
            };
            return self.advance(id, Event::Wake, s);
        }
        Ok(None)
    }
}

fn lost_to(winner: &EpochGrant) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("{} owns {} now", winner.owner, winner.epoch),
    )
}
