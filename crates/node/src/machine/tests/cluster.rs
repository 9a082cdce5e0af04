//! Several machines on one abstract store, with random schedules, crashes and cuts.
//!
//! The store grants epochs: first come, first served, to whoever knows the present one. Work that a
//! machine asked for completes in any order, any time later. Checked after every step:
//! - a node that thinks it owns an epoch was granted that epoch, in this life;
//! - an epoch never has two owners; a write of a lower epoch never succeeds;
//! - once faults stop, exactly one node serves and the others are standbys.

use proptest::prelude::*;

use super::*;

/// Work under way, with what it saw when it began.
#[derive(Debug, Clone)]
enum Work {
    Attach,
    Own { seen: u32 },
    Phase(Phase),
    Stop { clean: bool },
}

struct Node {
    machine: Machine,
    work: Vec<Work>,
    life: u32,
    up: bool,
    cut_off: bool,
}

/// Who owns an epoch: a node in one of its lives.
type Owner = (usize, u32);

struct World {
    nodes: Vec<Node>,
    now: Duration,
    /// The owner of epoch i + 1.
    epochs: Vec<Owner>,
    /// What the owner of the highest epoch last said.
    said: Option<ActiveState>,
    /// Epochs of successful writes, in order.
    writes: Vec<u32>,
}

fn node_name(i: usize) -> NodeName {
    name(["a", "b", "c"][i])
}

fn machine_of(i: usize) -> Machine {
    Machine::new(node_name(i), Tags::default(), Limits::default())
}

impl World {
    fn new(nodes: usize) -> World {
        let node = |i| Node {
            machine: machine_of(i),
            work: Vec::new(),
            life: 0,
            up: true,
            cut_off: false,
        };
        World {
            nodes: (0..nodes).map(node).collect(),
            now: Duration::ZERO,
            epochs: Vec::new(),
            said: None,
            writes: Vec::new(),
        }
    }

    fn epoch(&self) -> u32 {
        u32::try_from(self.epochs.len()).unwrap()
    }

    fn send(&mut self, i: usize, event: Event) {
        let effects = self.nodes[i].machine.on(event, self.now);
        for effect in effects {
            self.carry_out(i, effect);
        }
        self.check(i);
    }

    fn carry_out(&mut self, i: usize, effect: Effect) {
        let seen = self.epoch();
        let owner = (i, self.nodes[i].life);
        let node = &mut self.nodes[i];
        match effect {
            Effect::Drop => {
                node.work.clear();
                node.life += 1;
            }
            Effect::Attach(_) => node.work.push(Work::Attach),
            Effect::Run(Phase::Fence) => node.work.push(Work::Own { seen }),
            Effect::Run(phase) => node.work.push(Work::Phase(phase)),
            Effect::StopPostgres(mode) => {
                let clean = mode == StopMode::Fast;
                node.work.push(Work::Stop { clean });
            }
            Effect::Beat(state) | Effect::LastBeat(state) => {
                if self.epochs.last() == Some(&owner) && !node.cut_off {
                    self.said = Some(state);
                }
            }
            Effect::Exit => node.up = false,
            Effect::Announce(_) | Effect::Record(_) | Effect::Alarm(_) | Effect::Reply(_) => {}
        }
    }

    /// Completes the node's work number `which`.
    fn complete(&mut self, i: usize, which: usize) {
        if !self.nodes[i].up || self.nodes[i].work.is_empty() {
            return;
        }
        let at = which % self.nodes[i].work.len();
        let needs_store = !matches!(self.nodes[i].work[at], Work::Stop { .. });
        if needs_store && self.nodes[i].cut_off {
            return;
        }
        match self.nodes[i].work.remove(at) {
            Work::Attach => self.send(i, Event::Attached),
            Work::Own { seen } if seen == self.epoch() => {
                let owner = (i, self.nodes[i].life);
                self.epochs.push(owner);
                self.said = None;
                let epoch = Epoch(self.epoch());
                self.send(i, Event::EpochOwned(epoch));
            }
            Work::Own { .. } => self.send(i, Event::EpochLost),
            Work::Phase(phase) => match self.owns_highest(i) {
                true => self.send(i, Event::PhaseDone(phase)),
                false => self.send(i, Event::Fenced),
            },
            Work::Stop { clean } => self.send(i, exited(clean, false)),
        }
    }

    fn owns_highest(&self, i: usize) -> bool {
        self.epochs.last() == Some(&(i, self.nodes[i].life))
    }

    /// A client's commit at node `i`: the fence decides.
    fn write(&mut self, i: usize) {
        let node = &self.nodes[i];
        if !node.up || node.cut_off || node.machine.state() != State::Active {
            return;
        }
        let epoch = node.machine.epoch().unwrap();
        if epoch == Epoch(self.epoch()) {
            self.writes.push(epoch.0);
        } else {
            self.send(i, Event::Fenced);
        }
    }

    /// The node looks at the registry; `suspicious` is what its detector thinks, right or wrong.
    fn look(&mut self, i: usize, suspicious: bool) {
        if !self.nodes[i].up || self.nodes[i].cut_off {
            return;
        }
        let leader = match self.epochs.last() {
            None => Leader::Never,
            Some(owner) if *owner == (i, self.nodes[i].life) => Leader::Me,
            Some((n, _)) if *n == i => Leader::OwnPast,
            Some((n, _)) => {
                let verdict = match suspicious {
                    true => Verdict::Suspect {
                        since: self.now,
                        evidence: Evidence::AgentGone,
                    },
                    false => Verdict::Alive,
                };
                Leader::other(node_name(*n), &verdict, self.said.as_ref())
            }
        };
        self.send(i, Event::Leader(leader));
    }

    fn crash(&mut self, i: usize) {
        let life = self.nodes[i].life + 1;
        self.nodes[i] = Node {
            machine: machine_of(i),
            work: Vec::new(),
            life,
            up: false,
            cut_off: self.nodes[i].cut_off,
        };
    }

    fn kill_postgres(&mut self, i: usize, redo: bool) {
        let idle = [State::Starting, State::Attaching, State::Backoff];
        if self.nodes[i].up && !idle.contains(&self.nodes[i].machine.state()) {
            // Its exit answers a stop that was under way.
            self.nodes[i]
                .work
                .retain(|w| !matches!(w, Work::Stop { .. }));
            self.send(i, exited(false, redo));
        }
    }

    fn check(&self, i: usize) {
        let node = &self.nodes[i];
        if node.machine.state().owns_epoch() {
            let epoch = node.machine.epoch().unwrap().0 as usize;
            assert_eq!(
                self.epochs[epoch - 1],
                (i, node.life),
                "an epoch that was not granted"
            );
        }
        assert!(self.writes.is_sorted(), "a fenced write succeeded");
    }

    /// No more faults: everybody is up and connected, work completes, detectors are right.
    fn settle(&mut self) {
        for i in 0..self.nodes.len() {
            self.nodes[i].up = true;
            self.nodes[i].cut_off = false;
            self.send(i, Event::StoreBack);
        }
        for _ in 0..400 {
            self.now += Duration::from_millis(200);
            for i in 0..self.nodes.len() {
                let alive = self.epochs.last().is_some_and(|(n, life)| {
                    self.nodes[*n].life == *life && self.nodes[*n].machine.state().owns_epoch()
                });
                self.look(i, !alive);
                self.complete(i, 0);
                self.write(i);
                self.send(i, Event::Tick);
                self.send(i, Event::CaughtUp);
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Look(usize, bool),
    Complete(usize, usize),
    Write(usize),
    Crash(usize),
    Restart(usize),
    KillPostgres(usize, bool),
    CaughtUp(usize),
    CutOff(usize, bool),
    Switchover(usize),
    Force(usize),
    Wait(u64),
}

fn steps(nodes: usize) -> impl Strategy<Value = Vec<Step>> {
    let n = 0..nodes;
    let step = prop_oneof![
        8 => (n.clone(), any::<bool>()).prop_map(|(i, s)| Step::Look(i, s)),
        12 => (n.clone(), 0usize..4).prop_map(|(i, w)| Step::Complete(i, w)),
        4 => n.clone().prop_map(Step::Write),
        1 => n.clone().prop_map(Step::Crash),
        2 => n.clone().prop_map(Step::Restart),
        1 => (n.clone(), any::<bool>()).prop_map(|(i, r)| Step::KillPostgres(i, r)),
        2 => n.clone().prop_map(Step::CaughtUp),
        2 => (n.clone(), any::<bool>()).prop_map(|(i, c)| Step::CutOff(i, c)),
        1 => n.clone().prop_map(Step::Switchover),
        1 => n.prop_map(Step::Force),
        4 => (1u64..3_000).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 0..250)
}

fn run(world: &mut World, step: Step) {
    match step {
        Step::Look(i, suspicious) => world.look(i, suspicious),
        Step::Complete(i, which) => world.complete(i, which),
        Step::Write(i) => world.write(i),
        Step::Crash(i) => world.crash(i),
        Step::Restart(i) => world.nodes[i].up = true,
        Step::KillPostgres(i, redo) => world.kill_postgres(i, redo),
        Step::CaughtUp(i) => {
            if world.nodes[i].up {
                world.send(i, Event::CaughtUp);
            }
        }
        Step::CutOff(i, cut) => {
            world.nodes[i].cut_off = cut;
            if world.nodes[i].up {
                world.send(
                    i,
                    if cut {
                        Event::StoreLost
                    } else {
                        Event::StoreBack
                    },
                );
            }
        }
        Step::Switchover(i) | Step::Force(i) => {
            let force = matches!(step, Step::Force(_));
            if world.nodes[i].up {
                world.send(i, Event::WarmStandbys(1));
                world.send(i, Event::FailoverRequested { to: None, force });
            }
        }
        Step::Wait(ms) => {
            world.now += Duration::from_millis(ms);
            for i in 0..world.nodes.len() {
                if world.nodes[i].up {
                    world.send(i, Event::Tick);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn two_nodes_never_have_two_owners_and_always_find_one(steps in steps(2)) {
        check_cluster(2, steps);
    }

    #[test]
    fn three_nodes_neither(steps in steps(3)) {
        check_cluster(3, steps);
    }
}

fn check_cluster(nodes: usize, steps: Vec<Step>) {
    let mut world = World::new(nodes);
    for step in steps {
        run(&mut world, step);
    }
    let before = world.writes.len();
    world.settle();
    let states: Vec<State> = world.nodes.iter().map(|n| n.machine.state()).collect();
    let count = |state| states.iter().filter(|s| **s == state).count();
    assert_eq!(count(State::Active), 1, "{states:?}");
    assert_eq!(count(State::Standby), nodes - 1, "{states:?}");
    assert!(world.writes.len() > before, "nobody serves");
    assert_eq!(world.writes.last(), Some(&world.epoch()));
}

#[test]
fn a_quiet_start_needs_one_epoch() {
    let mut world = World::new(2);
    world.settle();
    assert_eq!(world.epoch(), 1);
}
