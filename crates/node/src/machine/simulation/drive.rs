//! What a node's driver does in each state: the agent, with everything but its decisions left out.

use rand::Rng;

use coordination::config::Preset;
use coordination::detector::{Beat, Detector, Hint, Verdict};
use coordination::records::ActiveState;
use dax::ids::Epoch;

use super::checks::Held;
use super::faults::Fault;
use super::flaw::Flaw;
use super::node::{Purpose, ms, ms_of};
use super::zones::Request;
use super::{Happening, Word, World};
use crate::machine::protection::NodesSeen;
use crate::machine::ranking::Ranking;
use crate::machine::{Ask, Effect, Event, Failure, LastBeat, Phase, State};

/// Tmax of the preset.
const TIMEOUT: u64 = 1500;
const INTERVAL: u64 = 200;
const POLL: u64 = 200;
const LOOK: u64 = 500;
const COMMIT: u64 = 200;

impl World {
    /// Tells a node's machine something and looks what became of it.
    pub(super) fn tell(&mut self, at: usize, event: Event) -> Held<()> {
        if matches!(event, Event::Control { .. }) && self.flaw == Some(Flaw::PauseIgnored) {
            return Ok(());
        }
        let said = self.trace.then(|| format!("{event:?}"));
        let effects = self.nodes[at].machine.on(event, ms(self.now));
        for effect in effects {
            if let Effect::Enlist(spare) = effect
                && let Some(spare) = self.nodes.iter().position(|n| n.name == spare && n.up)
            {
                self.coverage.one("enlisted");
                let delay = self.delay(at);
                self.say(spare, delay, Word::Event(Event::Asked(Ask::Enlist)));
            }
        }
        let (before, after) = (self.nodes[at].state, self.nodes[at].machine.state());
        if before == after {
            return Ok(());
        }
        self.nodes[at].state = after;
        let name = self.nodes[at].name.clone();
        self.note(|| {
            format!(
                "{name}: {before} -> {after} on {}",
                said.unwrap_or_default()
            )
        });
        self.entered(at, before, after)
    }

    fn entered(&mut self, at: usize, before: State, after: State) -> Held<()> {
        let work = match after {
            State::Attaching => self.rng.random_range(100..1200),
            State::CatchingUp => self.rng.random_range(0..600),
            State::TakingOver(_) => self.rng.random_range(0..250),
            State::HandingOver | State::Stopping => self.rng.random_range(50..500),
            State::Fenced | State::Discarding => self.rng.random_range(20..400),
            _ => 0,
        };
        let now = self.now;
        self.nodes[at].busy_until = now + work;
        match after {
            State::CatchingUp if before == State::Attaching => self.attached(at),
            State::CatchingUp if matches!(before, State::TakingOver(_)) => self.await_successor(at),
            State::Serving if before == State::TakingOver(Phase::Promote) => {
                self.coverage.one("takeovers");
                self.nodes[at].next_commit = now;
                let node = &self.nodes[at];
                let (owner, owned) = (node.owner(), node.owned.unwrap_or_default());
                self.checks.claims(owner, owned)?;
            }
            State::Discarding if before.is_active() => {
                // It tells that its PostgreSQL died.
                self.leave_word(at, ActiveState::PostgresDead);
            }
            State::TakingOver(Phase::Fence) => {
                let polls = |p: &Purpose| *p == Purpose::Poll;
                self.nodes[at].operations.retain(|_, o| !polls(&o.purpose));
            }
            State::Looking if before != State::Spare => self.nodes[at].begin(),
            State::BackingOff => self.nodes[at].begin(),
            _ => {}
        }
        if after == State::Fenced {
            self.coverage.one("fenced");
        }
        Ok(())
    }

    /// The direct channel to the active stands soon.
    fn attached(&mut self, at: usize) {
        let now = ms(self.now);
        let node = &mut self.nodes[at];
        let Some(beat) = node.beat.clone() else {
            return;
        };
        node.attached_to = Some(beat.beat.epoch);
        node.seen = node.seen.max(beat.beat.epoch);
        node.detector = Some(Detector::new(Preset::Fast.timings(), now));
        node.ranking = Some(Ranking::new(node.name.clone(), beat.node.clone()));
        node.next_poll = 0;
        let active = self.nodes.iter().position(|n| n.name == beat.node);
        if let Some(of) = active.filter(|of| self.nodes[*of].up) {
            let hint = Hint::Connected;
            self.say(at, 5, Word::Hint { of, hint });
        }
    }

    /// A standby was not the first: whoever was beats soon, or is dead as well.
    fn await_successor(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.detector = None;
        node.awaits_until = Some(self.now + ms_of(Preset::Fast.timings().timeout));
        node.next_poll = 0;
    }

    /// A standby goes on with the next active.
    pub(super) fn rebind(&mut self, at: usize, beat: LastBeat) {
        self.coverage.one("followed the next");
        let node = &mut self.nodes[at];
        (node.beat, node.awaits_until) = (Some(beat), None);
        self.attached(at);
    }

    /// A standby goes on with who owns the highest epoch, by a beat that it has not written.
    pub(super) fn follow_silent(&mut self, at: usize, epoch: Epoch, owner: usize) {
        self.coverage.one("followed a silent owner");
        let beat = LastBeat {
            node: self.nodes[owner].name.clone(),
            beat: Beat { epoch, counter: 0 },
            state: ActiveState::TakingOver,
        };
        self.rebind(at, beat);
    }

    /// The node looks after itself.
    pub(super) fn step(&mut self, at: usize) -> Held<()> {
        self.report(at);
        let now = self.now;
        let done = now >= self.nodes[at].busy_until;
        match self.nodes[at].state {
            State::Looking => self.poll(at),
            State::Spare if self.flaw != Some(Flaw::SpareAsleep) => self.poll(at),
            State::Spare => {}
            State::Attaching if done && self.reaches(at) => {
                let event = match self.rng.random_bool(0.04) && !self.healthy {
                    true => Event::Failed(Failure {
                        reason: "cannot attach".into(),
                        ..Failure::default()
                    }),
                    false => Event::Attached,
                };
                return self.tell(at, event);
            }
            State::CatchingUp | State::Warm => {
                if done {
                    self.tell(at, Event::Level(true))?;
                }
                return self.follow(at);
            }
            State::TakingOver(phase) => {
                self.beat(at, ActiveState::TakingOver);
                return self.take_over(at, phase, done);
            }
            State::Serving | State::Stalled => return self.serve(at),
            State::HandingOver if done => {
                let to = self.nodes[at].machine.successor().cloned();
                self.leave_word(at, ActiveState::Released { to });
                return self.clear_when_said(at);
            }
            State::Stopping if done => {
                self.leave_word(at, ActiveState::Released { to: None });
                return self.clear_when_said(at);
            }
            State::Discarding if done => return self.clear_when_said(at),
            State::Fenced if done => return self.tell(at, Event::Cleared),
            State::BackingOff if self.nodes[at].machine.wake_at() <= Some(ms(now)) => {
                return self.tell(at, Event::Tick);
            }
            State::Stopped => self.nodes[at].up = false,
            _ => {}
        }
        Ok(())
    }

    /// Its record, if it reaches the zones.
    fn report(&mut self, at: usize) {
        if self.reaches(at) {
            self.nodes[at].updated += 1;
            let member = self.nodes[at].member();
            self.members.insert(at, member);
        }
    }

    /// One more beat is on its way.
    fn send_beat(&mut self, at: usize, epoch: Epoch, state: ActiveState) {
        let beat = self.next_beat(at, epoch, state.clone());
        self.begin(at, Purpose::Beat(state), &Request::Beat(beat));
    }

    pub(super) fn send_first_beat(&mut self, at: usize, epoch: Epoch) {
        self.nodes[at].counter = 0;
        let beat = self.next_beat(at, epoch, ActiveState::TakingOver);
        self.begin(at, Purpose::FirstBeat(epoch), &Request::Beat(beat));
    }

    fn next_beat(&mut self, at: usize, epoch: Epoch, state: ActiveState) -> LastBeat {
        let node = &mut self.nodes[at];
        node.counter += 1;
        LastBeat {
            node: node.name.clone(),
            beat: Beat {
                epoch,
                counter: node.counter,
            },
            state,
        }
    }

    /// A last beat, and a word over the channel; not if the epoch was never owned.
    fn leave_word(&mut self, at: usize, state: ActiveState) {
        let node = &mut self.nodes[at];
        let Some(epoch) = node.owned else { return };
        if node.left {
            return;
        }
        node.left = true;
        self.send_beat(at, epoch, state.clone());
        let to = match state {
            ActiveState::Released { to } => to,
            _ => None,
        };
        for other in self.followers(epoch) {
            if self.rng.random_bool(0.8) {
                let meant = to.as_ref().is_none_or(|to| *to == self.nodes[other].name);
                if meant {
                    let reason = "it left".to_owned();
                    let hint = Hint::Vacant { epoch, reason };
                    self.say(other, 3, Word::Hint { of: at, hint });
                }
                self.say(other, 4, Word::Event(Event::Vacant { to: to.clone() }));
            }
        }
    }

    fn clear_when_said(&mut self, at: usize) -> Held<()> {
        let waits = self.now < self.nodes[at].busy_until + 2000;
        let says = self.nodes[at].does(|p| matches!(p, Purpose::Beat(_)));
        match waits && says {
            true => Ok(()),
            false => self.tell(at, Event::Cleared),
        }
    }

    /// The standbys that follow an epoch.
    pub(super) fn followers(&self, epoch: Epoch) -> Vec<usize> {
        let follows = |n: &&super::Node| n.up && n.attached_to == Some(epoch);
        self.nodes.iter().filter(follows).map(|n| n.at).collect()
    }

    fn poll(&mut self, at: usize) {
        let node = &self.nodes[at];
        if self.now >= node.next_poll && !node.does(|p| *p == Purpose::Poll) {
            self.nodes[at].next_poll = self.now + POLL;
            self.begin(at, Purpose::Poll, &Request::Read);
        }
    }

    fn follow(&mut self, at: usize) -> Held<()> {
        let now = ms(self.now);
        let polls = self.nodes[at].does(|p| *p == Purpose::Poll);
        if !polls && self.now >= self.nodes[at].next_poll {
            if let Some(detector) = self.nodes[at].detector.as_mut() {
                detector.asked(now);
            }
            self.poll(at);
        }
        if self.flaw == Some(Flaw::NeverBlind) {
            // It takes what it saw last for what is so now.
            let node = &mut self.nodes[at];
            let beat = node.detector.as_ref().and_then(Detector::beat);
            if let Some(detector) = node.detector.as_mut() {
                detector.answered(beat, now);
                detector.asked(now);
            }
        }
        if self.now >= self.nodes[at].next_look {
            self.nodes[at].next_look = self.now + LOOK * 3;
            let members = self.members.values().cloned().collect();
            let ranking = self.nodes[at].ranking.as_mut();
            let better = ranking.map_or(0, |ranking| ranking.look(members));
            self.tell(at, Event::Better(better))?;
        }
        self.judge(at)
    }

    pub(super) fn judge(&mut self, at: usize) -> Held<()> {
        if !self.nodes[at].state.is_candidate() {
            return Ok(());
        }
        let now = ms(self.now);
        let detector = self.nodes[at].detector.as_mut();
        let verdict = detector.map_or(Verdict::Alive, |detector| detector.verdict(now));
        if matches!(verdict, Verdict::Blind { .. }) {
            self.coverage.one("blind");
        }
        self.tell(at, Event::Judged(verdict))
    }

    fn take_over(&mut self, at: usize, phase: Phase, done: bool) -> Held<()> {
        match phase {
            Phase::Fence => {
                let asks = |p: &Purpose| {
                    matches!(
                        p,
                        Purpose::BeforeFence { .. } | Purpose::Own(_) | Purpose::FirstBeat(_)
                    )
                };
                if done && !self.nodes[at].does(asks) {
                    let purpose = Purpose::BeforeFence { sent: self.now };
                    self.begin(at, purpose, &Request::Read);
                }
                if let Some((operation, epoch)) = self.nodes[at].undecided(self.now) {
                    self.coverage.one("contests that nobody won");
                    self.nodes[at].operations.remove(&operation);
                    self.propose(at, epoch.next());
                }
                Ok(())
            }
            Phase::LogTail => {
                let (owner, reads) = {
                    let node = &self.nodes[at];
                    (node.owner(), node.does(|p| *p == Purpose::Tail))
                };
                if let Some(epoch) = self.nodes[at].owned.filter(|_| !reads) {
                    self.begin(at, Purpose::Tail, &Request::Tail(epoch, owner));
                }
                Ok(())
            }
            Phase::Replay | Phase::Promote if !done => Ok(()),
            Phase::Replay | Phase::Promote => {
                let dies = !self.healthy && self.rng.random_bool(0.05);
                if dies {
                    self.coverage.one("takeovers that died");
                    return self.tell(
                        at,
                        Event::PostgresExited {
                            redo_failed: false,
                            report: "signal 11".into(),
                        },
                    );
                }
                self.tell(at, Event::PhaseDone(phase))
            }
        }
    }

    fn beat(&mut self, at: usize, state: ActiveState) {
        let now = self.now;
        let node = &mut self.nodes[at];
        let Some(epoch) = node.owned.filter(|_| !node.left) else {
            return;
        };
        let beats = node.does(|p| matches!(p, Purpose::Beat(_)));
        if beats || now < node.next_poll {
            return;
        }
        node.next_poll = now + INTERVAL;
        self.send_beat(at, epoch, state);
    }

    fn serve(&mut self, at: usize) -> Held<()> {
        self.beat(at, ActiveState::Serving);
        let (now, node) = (self.now, &self.nodes[at]);
        if now >= node.next_commit
            && let Some(epoch) = node.owned
        {
            self.nodes[at].next_commit = now + COMMIT;
            self.numbers += 1;
            let commit = (epoch, self.numbers);
            self.begin(at, Purpose::Commit(commit), &Request::Commit(commit));
        }
        if now >= self.nodes[at].next_look && self.reaches(at) {
            self.nodes[at].next_look = now + LOOK;
            self.count(at)?;
        }
        let lost = now.saturating_sub(self.nodes[at].beaten_at) > TIMEOUT;
        self.tell(
            at,
            match lost {
                true => Event::StoreLost,
                false => Event::StoreBack,
            },
        )
    }

    fn count(&mut self, at: usize) -> Held<()> {
        let members: Vec<_> = self.members.values().cloned().collect();
        let now = ms(self.now);
        let node = &mut self.nodes[at];
        node.liveness.note(&members, now);
        let nodes = members.into_iter().map(|member| {
            let alive = node
                .liveness
                .is_fresh(&member.name, ms(TIMEOUT + LOOK), now);
            (member, alive)
        });
        let nodes_seen = NodesSeen {
            nodes: nodes.collect(),
            zone: node.tags.zone,
        };
        self.tell(at, Event::NodesSeen(nodes_seen))
    }

    /// A word over the channel, or of an operator.
    pub(super) fn told(&mut self, at: usize, word: Word) -> Held<()> {
        match word {
            Word::Event(event) => self.tell(at, event)?,
            Word::Hint { of, hint } => {
                let now = ms(self.now);
                let followed = self.nodes[of].name.clone();
                let node = &mut self.nodes[at];
                let follows = node.beat.as_ref().is_some_and(|b| b.node == followed);
                if let Some(detector) = node.detector.as_mut().filter(|_| follows) {
                    detector.hint(hint, now);
                }
            }
        }
        self.judge(at)
    }

    /// A node starts now.
    pub(super) fn start(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.start();
        let incarnation = node.incarnation;
        let first = self.now + self.rng.random_range(0..super::STEP);
        let step = Happening::Step {
            node: at,
            incarnation,
        };
        self.at(first, step);
    }

    /// Something goes wrong at some time.
    pub(super) fn plan(&mut self, time: u64, fault: Fault) {
        self.at(time, Happening::Fault(fault));
    }
}
