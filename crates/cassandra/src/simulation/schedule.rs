//! One schedule: a stretch with faults, then one without, in which everything that waits must end.

use std::time::Duration;

use dax::simulation::checkers::Violation;
use dax::simulation::history::{Event, Shelf};
use rand::Rng;
use simulate::Outcome;

use super::client::{block_of, content};
use super::faults::{self, Weather};
use super::flaw::Flaw;
use super::node::Node;
use super::recorder::Recorder;
use super::world::{Turn, World};

/// Longer than the latest message (15 s), a takeover and a give-up one after the other.
const CALM: Duration = Duration::from_secs(24);
/// Between two looks at what replicas have.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Runs a seed, with something broken if that is wanted.
///
/// That nothing goes on any more is no promise that a flaw is caught by.
pub fn run(seed: u64, flaw: Option<Flaw>, print: bool) -> Outcome {
    let mut schedule = Schedule::new(seed, flaw, print);
    schedule.storm();
    schedule.calm();
    let Schedule {
        world, recorder, ..
    } = schedule;
    let trace = world.trace.hash();
    let mut coverage = world.coverage;
    coverage.one("schedules");
    coverage.some("commits acknowledged", recorder.commits.count());
    let violation = recorder.violation;
    let violation = violation.filter(|v| flaw.is_none() || v.checker != "liveness");
    Outcome {
        coverage,
        broken: violation.map(|v| format!("{}: {}", v.checker, v.what)),
        trace,
    }
}

struct Schedule {
    world: World,
    recorder: Recorder,
    nodes: Vec<Node>,
    weather: Weather,
}

impl Schedule {
    fn new(seed: u64, flaw: Option<Flaw>, print: bool) -> Schedule {
        let mut world = World::new(seed, flaw, print);
        let setup = *world.cluster.setup();
        let nodes = (0..setup.nodes).map(|home| Node::new(&mut world, home));
        Schedule {
            nodes: nodes.collect(),
            recorder: Recorder::new(setup.quorum()),
            weather: Weather::any(&mut world),
            world,
        }
    }

    fn storm(&mut self) {
        self.world.next_fault(Duration::from_millis(200));
        self.go_on(self.weather.storm());
    }

    fn go_on(&mut self, end: Duration) {
        let mut look = self.world.now + LOOK_EVERY;
        while let Some(turn) = self.world.turn(end) {
            match turn {
                Turn::Fault => self.fault(),
                Turn::Client(client, told) => {
                    let node = self.nodes.iter_mut().find(|n| n.client == client);
                    if let Some(node) = node {
                        node.hear(&mut self.world, &mut self.recorder, told);
                    }
                    if !self.world.calm {
                        faults::freeze(&mut self.world, &mut self.nodes, client, self.weather);
                    }
                    faults::bury(&mut self.world, &mut self.nodes);
                }
            }
            if self.world.now > look {
                look = self.world.now + LOOK_EVERY;
                self.look_at_replicas();
            }
            if self.recorder.violation.is_some() {
                return;
            }
        }
    }

    fn fault(&mut self) {
        if self.world.calm {
            for server in 0..self.world.cluster.setup().nodes {
                self.world.send_hint(server);
            }
            if self.world.rng.random_bool(0.05) {
                self.world.purge_all();
            }
        } else {
            faults::strike(&mut self.world, &mut self.nodes, self.weather);
        }
        self.world.next_fault(Duration::from_millis(80));
    }

    /// Everything is mended: what is on its way still arrives, late as it may be.
    fn calm(&mut self) {
        if self.recorder.violation.is_some() {
            return;
        }
        self.world.calm = true;
        self.world.resume_all();
        for server in 0..self.world.cluster.setup().nodes {
            faults::revive(&mut self.world, server);
        }
        self.go_on(self.weather.storm() + CALM / 2);
        let begun = self.recorder.next_op();
        self.go_on(self.weather.storm() + CALM);
        self.look_at_replicas();
        let owner = self.nodes.iter().find(|node| node.epoch().is_some());
        if self.recorder.violation.is_none() && owner.is_none() {
            self.recorder.violation = Some(Violation {
                checker: "liveness",
                what: "nobody owns the volume at the end".to_owned(),
            });
        }
        let alive: Vec<_> = self.nodes.iter().map(|node| node.client).collect();
        let open = self.recorder.open_since(begun, &alive);
        if let (None, Some(what)) = (&self.recorder.violation, open) {
            self.recorder.violation = Some(Violation {
                checker: "liveness",
                what,
            });
        }
    }

    fn look_at_replicas(&mut self) {
        let nodes = 0..self.world.cluster.setup().nodes;
        let shelves = nodes.map(|n| Some(shelf(self.world.cluster.replica(n).live())));
        let event = Event::Stored(shelves.collect());
        self.recorder.event(&event);
    }
}

fn shelf<'a>(live: impl Iterator<Item = (super::model::Place, &'a super::model::Cell)>) -> Shelf {
    live.filter_map(|(place, cell)| Some((block_of(place)?, content(Some(cell)))))
        .collect()
}
