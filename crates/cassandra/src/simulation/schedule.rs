//! One schedule: a stretch with faults, then one without, in which everything that waits must end.

use std::time::Duration;

use dax::simulation::checkers::Violation;
use dax::simulation::history::{ClientId, Event, Shelf};
use simulate::Outcome;

use super::executor::{Executor, Stage};
use super::faults::{self, Weather};
use super::flaw::Flaw;
use super::life;
use super::places::{block_of, content};
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
    let mut world = schedule.stage.lock();
    world.coverage.one("schedules");
    let commits = world.recorder.commits.count();
    world.coverage.some("commits acknowledged", commits);
    let violation = world.recorder.violation.take();
    let violation = violation.filter(|v| flaw.is_none() || v.checker != "liveness");
    Outcome {
        coverage: std::mem::take(&mut world.coverage),
        broken: violation.map(|v| format!("{}: {}", v.checker, v.what)),
        trace: world.trace.hash(),
    }
}

struct Schedule {
    stage: Stage,
    executor: Executor,
    /// Who lives in each data centre.
    nodes: Vec<ClientId>,
    weather: Weather,
}

impl Schedule {
    fn new(seed: u64, flaw: Option<Flaw>, print: bool) -> Schedule {
        let mut world = World::new(seed, flaw, print);
        let weather = Weather::any(&mut world);
        world.lay(seed);
        let homes = world.cluster.setup().nodes;
        let stage = Stage::new(world);
        Schedule {
            nodes: (0..homes).map(|home| life::begin(&stage, home)).collect(),
            executor: Executor::new(stage.clone()),
            weather,
            stage,
        }
    }

    fn storm(&mut self) {
        self.stage.lock().next_fault(Duration::from_millis(200));
        self.go_on(self.weather.storm());
    }

    fn go_on(&mut self, end: Duration) {
        let mut look = self.stage.lock().now + LOOK_EVERY;
        while !self.is_broken() {
            self.run_tasks();
            self.bury();
            let turn = self.stage.lock().turn(end);
            match turn {
                Some(Turn::Go) => {}
                Some(Turn::Fault) => self.fault(),
                None => return,
            }
            if self.stage.lock().now > look {
                look = self.stage.lock().now + LOOK_EVERY;
                self.look_at_replicas();
            }
        }
    }

    fn is_broken(&self) -> bool {
        self.stage.lock().recorder.violation.is_some()
    }

    /// Everybody goes on as far as can be.
    fn run_tasks(&mut self) {
        while let Some(client) = self.executor.step() {
            let mut world = self.stage.lock();
            if !world.calm {
                faults::freeze(&mut world, &self.nodes, client, self.weather);
            }
        }
    }

    /// Whose life is over starts again as another client. What it sent is still on its way.
    fn bury(&mut self) {
        for home in 0..self.nodes.len() {
            let over = self.stage.lock().lives[self.nodes[home]].over;
            if over {
                self.replace(home);
            }
        }
    }

    fn replace(&mut self, home: usize) {
        self.executor.kill(self.nodes[home]);
        self.nodes[home] = life::begin(&self.stage, home);
    }

    fn fault(&mut self) {
        let killed = {
            let mut world = self.stage.lock();
            world.next_fault(Duration::from_millis(80));
            match world.calm {
                true => {
                    faults::drizzle(&mut world);
                    None
                }
                false => faults::strike(&mut world, &self.nodes, self.weather),
            }
        };
        let home = self.nodes.iter().position(|node| Some(*node) == killed);
        if let Some(home) = home {
            self.replace(home);
        }
    }

    /// Everything is mended: what is on its way still arrives, late as it may be.
    fn calm(&mut self) {
        if self.is_broken() {
            return;
        }
        {
            let mut world = self.stage.lock();
            world.calm = true;
            world.resume_all();
            for server in 0..world.cluster.setup().nodes {
                faults::revive(&mut world, server);
            }
        }
        self.go_on(self.weather.storm() + CALM / 2);
        let begun = self.stage.lock().recorder.next_op();
        self.go_on(self.weather.storm() + CALM);
        self.look_at_replicas();
        let mut world = self.stage.lock();
        let owner = self.nodes.iter().find(|node| world.lives[**node].attached);
        let what = match owner {
            Some(_) => world.recorder.open_since(begun, &self.nodes),
            None => Some("nobody owns the volume at the end".to_owned()),
        };
        let checker = "liveness";
        let stuck = what.map(|what| Violation { checker, what });
        if world.recorder.violation.is_none() {
            world.recorder.violation = stuck;
        }
    }

    fn look_at_replicas(&mut self) {
        let mut world = self.stage.lock();
        let nodes = 0..world.cluster.setup().nodes;
        let shelves = nodes.map(|n| Some(shelf(world.cluster.replica(n).live())));
        let event = Event::Stored(shelves.collect());
        world.recorder.event(&event);
    }
}

fn shelf<'a>(live: impl Iterator<Item = (super::model::Place, &'a super::model::Cell)>) -> Shelf {
    live.filter_map(|(place, cell)| Some((block_of(place)?, content(Some(cell)))))
        .collect()
}
