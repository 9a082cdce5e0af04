//! Several nodes with the real machine and detector over a simulated storage tier and time, from one
//! seed: messages are late or lost, nodes freeze, thaw, die and start again at any moment, zones go
//! away or are slow, operators pause, resume and order.
//!
//! Checked at every step: one owner per epoch; nothing of an older epoch becomes durable once a newer
//! one is owned; what was acknowledged is found by every successor; whoever is refused stops; nobody
//! takes over by itself in a pause, nor while all is well, however slow the store. In the end
//! everything is mended, and one node serves again.

mod answers;
mod checks;
mod drive;
mod faults;
mod flaw;
mod node;
#[cfg(test)]
mod tests;
mod zones;

use std::collections::BTreeMap;

use coordination::detector::Hint;
use coordination::records::Member;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulate::{Coverage, Outcome};

use self::checks::{Checks, Held};
use self::faults::Fault;
use self::flaw::Flaw;
use self::node::{Node, Operation, Purpose};
use self::zones::{Reply, Request, ZONES, Zone};
use super::{Ask, Event, State};

/// A node looks after itself this often.
const STEP: u64 = 50;
/// A request that is not answered is sent again.
const RESEND: u64 = 250;

/// What happens at some time.
#[derive(Debug, Clone)]
enum Happening {
    Step {
        node: usize,
        incarnation: u32,
    },
    AtZone {
        zone: usize,
        call: Call,
    },
    Answer {
        zone: usize,
        call: Call,
        reply: Reply,
    },
    Told {
        node: usize,
        incarnation: u32,
        word: Word,
    },
    Fault(Fault),
}

/// A request of an operation.
#[derive(Debug, Clone)]
struct Call {
    node: usize,
    incarnation: u32,
    operation: u64,
    request: Request,
}

/// What the direct channel, or an operator, says to a node.
#[derive(Debug, Clone)]
enum Word {
    Hint { of: usize, hint: Hint },
    Event(Event),
}

impl Word {
    /// True if somebody outside said it.
    fn is_order(&self) -> bool {
        let failover = |ask: &Ask| matches!(ask, Ask::Failover { .. });
        match self {
            Word::Event(Event::Stop) => true,
            Word::Event(Event::Asked(ask)) => failover(ask),
            _ => false,
        }
    }
}

struct World {
    rng: SmallRng,
    now: u64,
    flaw: Option<Flaw>,
    /// Nothing fails in this history; the store may be slow.
    healthy: bool,
    trace: bool,
    queue: BTreeMap<(u64, u64), Happening>,
    numbers: u64,
    zones: [Zone; ZONES],
    nodes: Vec<Node>,
    members: BTreeMap<usize, Member>,
    /// Which node reaches which zone.
    links: Vec<[bool; ZONES]>,
    /// How long a message takes, for all, and more for some nodes.
    latency: u64,
    slow: Vec<u64>,
    paused_at: Option<u64>,
    checks: Checks,
    coverage: Coverage,
}

impl World {
    fn new(seed: u64, flaw: Option<Flaw>, trace: bool) -> World {
        let mut rng = SmallRng::seed_from_u64(seed);
        let healthy = seed % 4 == 3;
        let nodes = faults::cast(&mut rng);
        World {
            healthy,
            flaw,
            trace,
            now: 0,
            queue: BTreeMap::new(),
            numbers: 0,
            zones: std::array::from_fn(|_| Zone {
                up: true,
                ..Zone::default()
            }),
            links: vec![[true; ZONES]; nodes.len()],
            slow: vec![0; nodes.len()],
            latency: 1,
            nodes,
            members: BTreeMap::new(),
            paused_at: None,
            checks: Checks::default(),
            coverage: Coverage::default(),
            rng,
        }
    }

    /// One history.
    fn run(seed: u64, flaw: Option<Flaw>, trace: bool) -> Outcome {
        let mut world = World::new(seed, flaw, trace);
        let ended = match world.healthy {
            true => world.run_healthy(),
            false => world.run_with_faults(),
        };
        let mut coverage = world.coverage;
        coverage.one("histories");
        coverage.some("epochs", world.checks.epochs() as u64);
        coverage.some("commits", world.checks.acknowledged.len() as u64);
        Outcome {
            coverage,
            broken: ended.err().map(|broken| broken.to_string()),
            trace: 0,
        }
    }

    fn at(&mut self, time: u64, what: Happening) {
        self.numbers += 1;
        self.queue.insert((time, self.numbers), what);
    }

    fn note(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>7} ms  {}", self.now, what());
        }
    }

    /// Until that time, or until `done`.
    fn until(&mut self, end: u64, done: impl Fn(&World) -> bool) -> Held<bool> {
        while let Some((&(time, number), _)) = self.queue.first_key_value() {
            if time > end {
                break;
            }
            self.now = time;
            if let Some(what) = self.queue.remove(&(time, number)) {
                self.happen(what)?;
            }
            if done(self) {
                return Ok(true);
            }
        }
        self.now = end;
        Ok(done(self))
    }

    fn happen(&mut self, what: Happening) -> Held<()> {
        match what {
            Happening::Step { node, incarnation } => {
                let this = &self.nodes[node];
                if !this.up || this.incarnation != incarnation {
                    return Ok(());
                }
                let next = (self.now + STEP).max(this.frozen_until);
                let runs = this.runs(self.now);
                self.at(next, Happening::Step { node, incarnation });
                if runs { self.step(node) } else { Ok(()) }
            }
            Happening::AtZone { zone, call } => self.at_zone(zone, call),
            Happening::Answer { zone, call, reply } => {
                let this = &self.nodes[call.node];
                if !this.up || this.incarnation != call.incarnation {
                    return Ok(());
                }
                if !this.runs(self.now) {
                    // It finds the answer when it wakes up.
                    let thaw = this.frozen_until;
                    self.at(thaw, Happening::Answer { zone, call, reply });
                    return Ok(());
                }
                self.answered(zone, call, reply)
            }
            Happening::Told {
                node,
                incarnation,
                word,
            } => {
                let this = &self.nodes[node];
                let meant = this.up && this.incarnation == incarnation;
                if meant && this.runs(self.now) {
                    self.told(node, word)
                } else if meant {
                    let thaw = this.frozen_until;
                    self.at(
                        thaw,
                        Happening::Told {
                            node,
                            incarnation,
                            word,
                        },
                    );
                    Ok(())
                } else {
                    Ok(())
                }
            }
            Happening::Fault(fault) => self.fault(fault),
        }
    }

    // ---- the storage tier -------------------------------------------------------------------

    /// How long a message between this node and a zone takes now.
    fn delay(&mut self, node: usize) -> u64 {
        let most = self.latency + self.slow[node];
        let late = match !self.healthy && self.rng.random_bool(0.05) {
            true => self.rng.random_range(0..1500),
            false => 0,
        };
        most + late + self.rng.random_range(0..=most / 4 + 2)
    }

    fn begin(&mut self, node: usize, purpose: Purpose, request: &Request) {
        self.numbers += 1;
        let operation = self.numbers;
        let done = std::collections::HashMap::new();
        let began = self.now;
        let begun = Operation {
            purpose,
            began,
            done,
        };
        self.nodes[node].operations.insert(operation, begun);
        let incarnation = self.nodes[node].incarnation;
        for zone in 0..ZONES {
            let call = Call {
                node,
                incarnation,
                operation,
                request: request.clone(),
            };
            let delay = self.delay(node);
            self.at(self.now + delay, Happening::AtZone { zone, call });
        }
    }

    fn at_zone(&mut self, zone: usize, call: Call) -> Held<()> {
        let node = call.node;
        let reached = self.zones[zone].up && self.links[node][zone];
        if !reached {
            // Lost. Its sender tries again for as long as it wants to know.
            let this = &self.nodes[node];
            let wanted = this.up
                && this.incarnation == call.incarnation
                && this.operations.contains_key(&call.operation);
            if wanted {
                let again = (self.now + RESEND).max(this.frozen_until);
                self.at(again, Happening::AtZone { zone, call });
            }
            return Ok(());
        }
        let reply = self.zones[zone].answer(&call.request, self.flaw);
        if let (Request::Propose(epoch, owner), Reply::Accepted(_)) = (&call.request, &reply) {
            self.checks.voted(zone, *epoch, *owner)?;
        }
        if let (Request::Commit(commit), Reply::Done) = (&call.request, &reply) {
            self.checks.stored(zone, *commit)?;
        }
        let delay = self.delay(node);
        self.at(self.now + delay, Happening::Answer { zone, call, reply });
        Ok(())
    }

    /// True if a node reaches enough zones.
    fn reaches(&self, node: usize) -> bool {
        let zones = (0..ZONES).filter(|zone| self.zones[*zone].up && self.links[node][*zone]);
        zones.count() >= zones::MAJORITY
    }

    /// The node that serves under the highest epoch.
    fn serving(&self) -> Option<usize> {
        let highest = self.checks.highest();
        let serves = |n: &&Node| n.up && n.state == State::Serving && n.owned == Some(highest);
        self.nodes.iter().find(serves).map(|n| n.at)
    }

    /// Says something to a node, after a while.
    fn say(&mut self, node: usize, after: u64, word: Word) {
        let incarnation = self.nodes[node].incarnation;
        self.at(
            self.now + after,
            Happening::Told {
                node,
                incarnation,
                word,
            },
        );
    }
}
