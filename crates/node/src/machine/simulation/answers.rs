//! What a node makes of the zones' answers.

use coordination::detector::Hint;
use coordination::records::{ActiveState, Cause, Decider, Member, MemberState, Role};
use dax::ids::Epoch;

use super::checks::{Held, holds};
use super::flaw::Flaw;
use super::node::{Operation, Purpose, ms};
use super::zones::{MAJORITY, Owner, Reply, Request, ZONES};
use super::{Call, World};
use crate::machine::ranking::may_take_over;
use crate::machine::{Event, Failure, LastBeat, Phase, Registry, State};

impl World {
    pub(super) fn answered(&mut self, zone: usize, call: Call, reply: Reply) -> Held<()> {
        let at = call.node;
        let Some(operation) = self.nodes[at].operations.get_mut(&call.operation) else {
            return Ok(());
        };
        operation.done.insert(zone, reply);
        let refused = |o: &Operation| o.done.values().any(|r| matches!(r, Reply::Refused));
        let agreed = operation
            .done
            .values()
            .filter(|r| !matches!(r, Reply::Refused))
            .count();
        let enough = match (&operation.purpose, self.flaw) {
            (Purpose::Own(_), Some(Flaw::MinorityOwns))
            | (Purpose::Tail, Some(Flaw::TailOfOneZone))
            | (Purpose::Commit(_), Some(Flaw::MinorityCommits)) => 1,
            _ => MAJORITY,
        };
        let lost = refused(operation);
        if agreed < enough && !lost {
            return Ok(());
        }
        // A refusal of an epoch counts once a majority cannot be had any more.
        let owning = matches!(operation.purpose, Purpose::Own(_));
        let refusals = operation.done.len() - agreed;
        if owning && agreed < enough && refusals <= ZONES - MAJORITY {
            return Ok(());
        }
        let lost = match owning {
            true => agreed < enough,
            false => lost,
        };
        let Some(operation) = self.nodes[at].operations.remove(&call.operation) else {
            return Ok(());
        };
        self.complete(at, operation, lost)
    }

    fn complete(&mut self, at: usize, operation: Operation, lost: bool) -> Held<()> {
        let replies: Vec<Reply> = operation.done.into_values().collect();
        let superseded = Event::Failed(Failure {
            superseded: true,
            ..Failure::default()
        });
        match operation.purpose {
            Purpose::Poll => self.polled(at, &replies),
            Purpose::BeforeFence { sent } => self.before_fence(at, sent, &replies),
            Purpose::Own(_) if lost => {
                self.coverage.one("races lost");
                self.tell(at, superseded)
            }
            Purpose::Own(epoch) => self.owns(at, epoch, newest(&replies).1),
            Purpose::FirstBeat(_) if lost => self.tell(at, superseded),
            Purpose::FirstBeat(epoch) => self.begins(at, epoch),
            Purpose::Tail if lost => self.tell(at, superseded),
            Purpose::Tail => self.read_tail(at, &replies),
            Purpose::Beat(_) | Purpose::Commit(_) if lost => {
                if self.flaw == Some(Flaw::RefusalIgnored) {
                    return self.judge_refused(at);
                }
                let active = self.nodes[at].state.is_active();
                self.tell(
                    at,
                    if active {
                        Event::Superseded
                    } else {
                        superseded
                    },
                )?;
                self.judge_refused(at)
            }
            Purpose::Beat(_) => {
                self.nodes[at].beaten_at = self.now;
                Ok(())
            }
            Purpose::Commit(commit) => self.checks.acknowledged(commit),
        }
    }

    /// Who was refused has stopped to serve.
    fn judge_refused(&self, at: usize) -> Held<()> {
        let node = &self.nodes[at];
        holds(!node.state.is_active(), || {
            format!("{} was refused and is {}", node.name, node.state)
        })
    }

    fn polled(&mut self, at: usize, replies: &[Reply]) -> Held<()> {
        let (granted, beat) = newest(replies);
        let accepted = granted.map_or(Epoch(0), |(epoch, _)| epoch);
        let control = Event::Control {
            paused: self.paused_at.is_some(),
            standbys: None,
            fits: self.nodes[at].fits || self.flaw == Some(Flaw::MisfitIgnored),
        };
        self.tell(at, control)?;
        let now = ms(self.now);
        match self.nodes[at].state {
            State::Looking | State::Spare => {
                let members: Vec<_> = self.members.values().cloned().collect();
                let node = &mut self.nodes[at];
                if node.beat.is_none() && node.seen == Epoch(0) {
                    node.seen = accepted;
                }
                node.seen = node
                    .seen
                    .max(beat.as_ref().map_or(Epoch(0), |b| b.beat.epoch));
                node.beat.clone_from(&beat);
                node.liveness.note(&members, now);
                let others = || members.iter().filter(|m| m.name != node.name);
                node.standby_alive |=
                    others().any(|m| may_take_over(m) && node.liveness.has_moved(&m.name));
                let stands =
                    |m: &&Member| m.role == Role::Standby && m.state != MemberState::Stopped;
                let registry = Registry {
                    beat,
                    standby_alive: node.standby_alive,
                    standbys: others().filter(stands).count(),
                };
                self.tell(at, Event::Seen(registry))
            }
            State::CatchingUp | State::Warm => self.followed(at, granted, beat),
            _ => Ok(()),
        }
    }

    fn followed(
        &mut self,
        at: usize,
        granted: Option<(Epoch, Owner)>,
        beat: Option<LastBeat>,
    ) -> Held<()> {
        let now = ms(self.now);
        let attached_to = self.nodes[at].attached_to;
        let active = self.nodes[at].beat.as_ref().map(|b| b.node.clone());
        let other = |b: &LastBeat| {
            let same = Some(b.beat.epoch) == attached_to;
            Some(b.beat.epoch) > attached_to || (same && Some(&b.node) != active.as_ref())
        };
        if let Some(newer) = beat.clone().filter(other) {
            self.tell(at, Event::Superseded)?;
            if self.nodes[at].state == State::CatchingUp {
                self.rebind(at, newer);
            }
            return Ok(());
        }
        if let Some(until) = self.nodes[at].awaits_until {
            let accepted = granted.map(|(epoch, _)| epoch);
            if let Some(same) = beat.clone().filter(|b| Some(b.beat.epoch) == accepted) {
                // Nobody took over: it did not because of a pause.
                self.rebind(at, same);
                return Ok(());
            }
            if self.now < until {
                return Ok(());
            }
            if let Some((epoch, (owner, _))) = granted {
                self.follow_silent(at, epoch, owner);
            }
            return Ok(());
        }
        let node = &mut self.nodes[at];
        let (Some(epoch), Some(detector)) = (attached_to, node.detector.as_mut()) else {
            return Ok(());
        };
        let Some(beat) = beat.filter(|beat| beat.beat.epoch >= epoch) else {
            detector.answered(None, now);
            return self.judge(at);
        };
        detector.answered(Some(beat.beat), now);
        let to = match &beat.state {
            ActiveState::Released { to } => to.clone(),
            ActiveState::PostgresDead => None,
            ActiveState::TakingOver | ActiveState::Serving => return self.judge(at),
        };
        if to.as_ref().is_none_or(|to| *to == node.name) {
            let reason = "its last beat".to_owned();
            detector.hint(Hint::Vacant { epoch, reason }, now);
        }
        self.tell(at, Event::Vacant { to })?;
        self.judge(at)
    }

    fn before_fence(&mut self, at: usize, sent: u64, replies: &[Reply]) -> Held<()> {
        if self.nodes[at].state != State::TakingOver(Phase::Fence) {
            return Ok(());
        }
        let control = Event::Control {
            paused: self.paused_at.is_some(),
            standbys: None,
            fits: self.nodes[at].fits || self.flaw == Some(Flaw::MisfitIgnored),
        };
        self.tell(at, control)?;
        if self.nodes[at].state != State::TakingOver(Phase::Fence) {
            self.coverage.one("paused at the last moment");
            return Ok(());
        }
        let (granted, _) = newest(replies);
        let accepted = granted.map_or(Epoch(0), |(epoch, _)| epoch);
        let newer = accepted > self.nodes[at].seen;
        if newer && self.flaw != Some(Flaw::NewerIgnored) {
            return self.tell(
                at,
                Event::Failed(Failure {
                    superseded: true,
                    ..Failure::default()
                }),
            );
        }
        let decision = self.nodes[at].machine.decision().cloned();
        let by_itself = decision.is_some_and(|d| {
            d.by == Decider::Automatic && matches!(d.cause, Cause::Failover { .. })
        });
        let paused = self.paused_at.is_some_and(|since| since <= sent);
        let tagged = self.nodes[at].tags.nofailover || !self.nodes[at].fits;
        holds(!(by_itself && (paused || tagged)), || {
            format!("{} takes over by itself, but may not", self.nodes[at].name)
        })?;
        self.propose(at, accepted.next());
        Ok(())
    }

    pub(super) fn propose(&mut self, at: usize, epoch: Epoch) {
        let owner = self.nodes[at].owner();
        self.begin(at, Purpose::Own(epoch), &Request::Propose(epoch, owner));
    }

    /// It owns an epoch. Somebody may have owned one since the decision, and died or been fenced by this one: what that
    /// one wrote is not what this node has followed.
    fn owns(&mut self, at: usize, epoch: Epoch, last: Option<LastBeat>) -> Held<()> {
        if self.nodes[at].state != State::TakingOver(Phase::Fence) {
            return Ok(());
        }
        let owner = self.nodes[at].owner();
        self.checks.claims(owner, epoch)?;
        // Of a silent owner's epoch nothing was followed.
        let read = self.nodes[at].beat.as_ref();
        let followed = read.map_or(Epoch(0), |beat| beat.beat.epoch);
        let between = last.is_some_and(|last| last.beat.epoch > followed);
        if between && self.flaw != Some(Flaw::NewerIgnored) {
            self.coverage.one("owned after somebody between");
            return self.tell(at, Event::Failed(Failure::default()));
        }
        self.send_first_beat(at, epoch);
        Ok(())
    }

    fn begins(&mut self, at: usize, epoch: Epoch) -> Held<()> {
        if self.nodes[at].state != State::TakingOver(Phase::Fence) {
            return Ok(());
        }
        let node = &mut self.nodes[at];
        let followed = node.attached_to;
        (node.owned, node.next_poll) = (Some(epoch), 0);
        node.beaten_at = self.now;
        let began = self.checks.before(epoch);
        holds(followed.is_none_or(|followed| followed >= began), || {
            format!("a standby of {followed:?} takes over from {began}")
        })?;
        self.tell(at, Event::EpochOwned(epoch))
    }

    fn read_tail(&mut self, at: usize, replies: &[Reply]) -> Held<()> {
        let node = &mut self.nodes[at];
        let (State::TakingOver(Phase::LogTail), Some(epoch)) = (node.state, node.owned) else {
            return Ok(());
        };
        for reply in replies {
            if let Reply::Tail(commits) = reply {
                node.found.extend(commits);
            }
        }
        let found = std::mem::take(&mut node.found);
        self.checks.recovered(epoch, found)?;
        self.tell(at, Event::PhaseDone(Phase::LogTail))
    }
}

/// The highest epoch and the last heartbeat of these answers.
fn newest(replies: &[Reply]) -> (Option<(Epoch, Owner)>, Option<LastBeat>) {
    let (mut accepted, mut last) = (None, None::<LastBeat>);
    for reply in replies {
        let (granted, beat) = match reply {
            Reply::Read(granted, beat) => (*granted, beat),
            Reply::Accepted(beat) => (None, beat),
            _ => continue,
        };
        accepted = accepted.max(granted);
        let newer = beat.as_ref().map(|b| b.beat) > last.as_ref().map(|b| b.beat);
        if newer {
            last.clone_from(beat);
        }
    }
    (accepted, last)
}
