//! One life of a node: a standby that watches and reads, then perhaps an owner, then nobody.

use std::time::Duration;

use dax::ids::Epoch;
use dax::simulation::history::{Action, ClientId, OpNumber, Outcome};
use rand::Rng;

use super::client::Token;
use super::flaw::Flaw;
use super::model::{NodeId, Reply};
use super::owner::Owner;
use super::reading::{Reads, Seen};
use super::recorder::Recorder;
use super::world::{Told, Wake, World};
use crate::lease::{Answer, Claim, Gate, Next, Row, Sighting, Terms};

pub(super) const TERMS: Terms = Terms {
    lease: Duration::from_secs(2),
};

/// Before which nobody suspects the owner.
const TIMEOUT: Duration = Duration::from_millis(900);

#[derive(Debug)]
enum State {
    Standby,
    Claiming(Box<Claim>, OpNumber),
    Owning(Box<Owner>),
    Over,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Node {
    pub client: ClientId,
    home: NodeId,
    sighting: Option<Sighting>,
    seen_at: Duration,
    watching: bool,
    attempts: u32,
    reads: Reads,
    state: State,
    /// Frozen in the middle of something, and not heard since.
    frozen: bool,
}

impl Node {
    pub fn new(world: &mut World, home: NodeId) -> Node {
        let client = world.add_client();
        world.wake(client, Duration::from_millis(20), Wake::Work);
        Node {
            client,
            home,
            sighting: None,
            seen_at: Duration::ZERO,
            watching: false,
            attempts: 0,
            reads: Reads::default(),
            state: State::Standby,
            frozen: false,
        }
    }

    /// The client was paused in the middle of something.
    pub fn freeze(&mut self) {
        self.frozen = true;
    }

    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// It goes on: does it know that it was deposed?
    fn thaw(&mut self, world: &mut World, recorder: &Recorder) {
        if std::mem::take(&mut self.frozen)
            && self.epoch().is_some_and(|own| own < recorder.newest_owned)
        {
            let attached = self.owner().is_some_and(|owner| owner.attached);
            world.coverage.one(match attached {
                true => "zombies",
                false => "takeovers that went on after a later one",
            });
        }
    }

    pub fn home(&self) -> NodeId {
        self.home
    }

    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    pub fn owner(&self) -> Option<&Owner> {
        match &self.state {
            State::Owning(owner) => Some(owner),
            _ => None,
        }
    }

    /// Something arrives.
    pub fn hear(&mut self, world: &mut World, recorder: &mut Recorder, told: Told) {
        self.thaw(world, recorder);
        match told {
            Told::Wake(Wake::Work) => self.work(world, recorder),
            Told::Wake(Wake::Lease) => self.tick(world, recorder),
            Told::Wake(Wake::Acknowledge(op)) => self.acknowledged(world, recorder, op),
            Told::Looked(Token::Watch, row) => {
                self.watching = false;
                if let Some(row) = row {
                    self.saw(world, row);
                }
            }
            Told::Looked(_, row) => self.claim_looked(world, recorder, row),
            Told::Changed(Token::Claim, answer) => self.claim_changed(world, recorder, answer),
            Told::Changed(Token::Renewal, answer) => self.renewed(world, recorder, answer),
            Told::Changed(..) => {}
            Told::Reply(token, reply) => self.replied(world, recorder, &token, &reply),
        }
    }

    fn saw(&mut self, world: &World, row: Option<Row>) {
        let now = world.clock(self.client);
        let sighting = match self.sighting.take() {
            Some(sighting) => sighting.again(row, now),
            None => Sighting::new(row, now),
        };
        self.seen_at = sighting.first();
        self.sighting = Some(sighting);
    }

    fn work(&mut self, world: &mut World, recorder: &mut Recorder) {
        if self.is_over() {
            return;
        }
        let pause = Duration::from_millis(world.rng.random_range(10..150));
        world.wake(self.client, pause, Wake::Work);
        match &mut self.state {
            State::Owning(owner) if owner.attached => match world.rng.random_range(0..100) {
                0..60 => owner.work(world, recorder),
                60..90 => self.reads.read_single(world, recorder, owner),
                90..99 => {
                    let base = owner.base;
                    self.reads.read_seal(world, recorder, self.client, base);
                }
                _ if world.rng.random_bool(0.15) && !world.calm => self.release(world),
                _ => {}
            },
            State::Standby => self.stand_by(world, recorder),
            _ => {}
        }
    }

    fn stand_by(&mut self, world: &mut World, recorder: &mut Recorder) {
        if !self.watching {
            self.watching = true;
            world.look(self.client, Token::Watch);
        }
        if world.rng.random_bool(0.4) && self.reads.unfinished() < 5 {
            self.reads.look_around(world, recorder, self.client);
        }
        let silent = world.clock(self.client).saturating_sub(self.seen_at);
        // Somebody suspects wrongly now and then.
        let rashly = !world.calm && world.rng.random_bool(0.004);
        let suspects = silent > TIMEOUT && world.rng.random_bool(0.3) || rashly;
        let free = self
            .sighting
            .as_ref()
            .map(|s| s.row().is_none_or(|row| row.released));
        if free == Some(true) || free == Some(false) && suspects {
            self.claim(world, recorder);
        }
    }

    fn claim(&mut self, world: &mut World, recorder: &mut Recorder) {
        let Some(sighting) = &self.sighting else {
            return;
        };
        self.attempts += 1;
        let name = format!("{}/{}", self.client, self.attempts);
        let now = world.clock(self.client);
        if let Some(claim) = Claim::new(TERMS, sighting, name, now) {
            let op = recorder.start(self.client, None, Action::Own);
            self.state = State::Claiming(Box::new(claim), op);
            self.step_claim(world, recorder);
        }
    }

    fn step_claim(&mut self, world: &mut World, recorder: &mut Recorder) {
        let now = world.clock(self.client);
        let State::Claiming(claim, op) = &mut self.state else {
            return;
        };
        let op = *op;
        let mut next = claim.next(now);
        if let Next::Wait(until) = next {
            let left = match world.flaw {
                Some(Flaw::NoLeaseWait) => Duration::ZERO,
                Some(Flaw::HalfLeaseWait) => until.saturating_sub(now + TERMS.lease / 2),
                _ => until.saturating_sub(now),
            };
            if left.is_zero() {
                next = claim.next(until);
            }
        }
        match next {
            Next::Change(change) => world.change(self.client, Token::Claim, change),
            Next::Look => world.look(self.client, Token::ClaimLook),
            Next::Wait(until) => {
                let half = world.has(Flaw::HalfLeaseWait);
                let until = if half {
                    until.saturating_sub(TERMS.lease / 2)
                } else {
                    until
                };
                world.wake_at(self.client, until, Wake::Lease);
            }
            Next::Renew(renewal) => {
                world.change(self.client, Token::Renewal, renewal.change.clone());
            }
            Next::Owned => self.owned(world, recorder, op),
            Next::Lost(row) => {
                recorder.end(op, Outcome::Fenced);
                world.coverage.one("contests lost");
                self.state = State::Standby;
                self.saw(world, row);
            }
        }
    }

    fn owned(&mut self, world: &mut World, recorder: &mut Recorder, op: OpNumber) {
        let State::Claiming(claim, _) = std::mem::replace(&mut self.state, State::Over) else {
            return;
        };
        let Some(lease) = claim.into_lease() else {
            return;
        };
        recorder.end(op, Outcome::Owned(lease.epoch()));
        world.coverage.one("takeovers");
        let owner = Owner::new(self.client, self.home, lease);
        self.reads.promote_seals(world, recorder, &owner);
        self.state = State::Owning(Box::new(owner));
        self.tick(world, recorder);
    }

    fn claim_changed(&mut self, world: &mut World, recorder: &mut Recorder, answer: Answer) {
        if let State::Claiming(claim, _) = &mut self.state {
            claim.changed(answer);
            self.step_claim(world, recorder);
        }
    }

    fn claim_looked(
        &mut self,
        world: &mut World,
        recorder: &mut Recorder,
        row: Option<Option<Row>>,
    ) {
        if let (State::Claiming(claim, _), Some(row)) = (&mut self.state, row) {
            claim.looked(row);
        }
        self.step_claim(world, recorder);
    }

    fn renewed(&mut self, world: &mut World, recorder: &mut Recorder, answer: Answer) {
        let counts = world.has(Flaw::UnknownRenewalCounts) && answer == Answer::Unknown;
        let answer = if counts { Answer::Applied } else { answer };
        match &mut self.state {
            State::Claiming(claim, _) => {
                claim.renewed(&answer);
                self.step_claim(world, recorder);
            }
            State::Owning(owner) => {
                let Some(mut renewal) = owner.renewal.take() else {
                    return;
                };
                if world.has(Flaw::LeaseFromAnswer) {
                    renewal = owner.lease.renew(world.clock(self.client));
                }
                owner.lease.renewed(&renewal, &answer);
                owner.pass_gate(world, recorder);
                self.tick(world, recorder);
            }
            _ => {}
        }
    }

    /// Renews the lease when it is time.
    fn tick(&mut self, world: &mut World, recorder: &mut Recorder) {
        if matches!(self.state, State::Claiming(..)) {
            return self.step_claim(world, recorder);
        }
        let now = world.clock(self.client);
        let State::Owning(owner) = &mut self.state else {
            return;
        };
        if owner.lease.gate(now) == Gate::Fenced {
            world.coverage.one("owners that learned of their fence");
            return self.over(world, recorder);
        }
        match owner.lease.renewal_at() {
            Some(at) if at <= now && owner.renewal.is_none() => {
                let renewal = owner.lease.renew(now);
                let change = renewal.change.clone();
                owner.renewal = Some(renewal);
                world.change(self.client, Token::Renewal, change);
            }
            Some(at) if at > now => world.wake_at(self.client, at, Wake::Lease),
            _ => {}
        }
    }

    fn over(&mut self, world: &mut World, recorder: &mut Recorder) {
        if let State::Owning(owner) = &mut self.state {
            owner.lease.fence();
            owner.pass_gate(world, recorder);
            owner.fence();
        }
        self.state = State::Over;
    }

    fn release(&mut self, world: &mut World) {
        if let State::Owning(owner) = &mut self.state
            && owner.renewal.is_none()
            && let Some(change) = owner.lease.release()
        {
            world.coverage.one("handovers");
            world.change(self.client, Token::Release, change);
            self.state = State::Over;
        }
    }

    fn acknowledged(&mut self, world: &mut World, recorder: &mut Recorder, op: OpNumber) {
        if let State::Owning(owner) = &mut self.state
            && let Some(after) = owner.acknowledged(recorder, op)
        {
            owner.follow(world, recorder, after);
            owner.pass_gate(world, recorder);
            self.reads.recover(world, recorder, owner);
        }
    }

    fn replied(
        &mut self,
        world: &mut World,
        recorder: &mut Recorder,
        token: &Token,
        reply: &Reply,
    ) {
        match (&mut self.state, token) {
            (State::Owning(owner), Token::Write(batch)) => {
                owner.sent(world, *batch, *reply == Reply::Written);
                owner.pass_gate(world, recorder);
            }
            (State::Owning(owner), Token::Put(record)) => {
                owner.put_replied(world, *record, *reply == Reply::Written);
                owner.pass_gate(world, recorder);
            }
            (State::Owning(owner), Token::ReadOne(op)) => {
                self.reads.one_replied(world, recorder, owner, *op, reply);
            }
            (State::Owning(owner), Token::Read(op)) => {
                let seen = self.reads.owner_replied(world, recorder, owner, *op, reply);
                if seen == Seen::Deposed {
                    world.coverage.one("owners that read a newer epoch");
                    self.over(world, recorder);
                }
            }
            (State::Standby | State::Claiming(..), Token::Read(op)) => {
                let seal = self.reads.replied(world, recorder, self.client, *op, reply);
                if let Some(seal) = seal {
                    self.reads.read_seal(world, recorder, self.client, seal);
                }
            }
            _ => {}
        }
    }

    pub fn epoch(&self) -> Option<Epoch> {
        self.owner().map(|owner| owner.epoch)
    }
}
