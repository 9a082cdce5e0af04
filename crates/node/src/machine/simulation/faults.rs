//! What goes wrong, and when; and what must be right in the end.

use coordination::config::Tags;
use coordination::detector::Hint;
use rand::Rng;
use rand::rngs::SmallRng;

use super::checks::{Held, holds};
use super::node::Node;
use super::zones::ZONES;
use super::{Happening, Word, World};
use crate::machine::{Ask, Event, State};

/// Something from outside.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// A node dies; its machine may vanish without a word.
    Kill {
        node: usize,
        silent: bool,
    },
    /// Every node dies.
    KillAll,
    Start {
        node: usize,
    },
    /// A node does nothing for a while, and goes on as if nothing had been.
    Freeze {
        node: usize,
        time: u64,
    },
    /// PostgreSQL of a node dies.
    PostgresDies {
        node: usize,
    },
    Zone {
        zone: usize,
        up: bool,
    },
    Link {
        node: usize,
        zone: usize,
        up: bool,
    },
    /// The store is slow, for all or for one.
    Latency {
        time: u64,
    },
    Slow {
        node: usize,
        time: u64,
    },
    /// The channel between two nodes breaks and comes back.
    Channel {
        node: usize,
    },
    Order {
        node: usize,
        to: Option<usize>,
    },
    Pause {
        paused: bool,
    },
    Stop {
        node: usize,
    },
    /// Whoever takes over now dies, or freezes.
    AtTakeover {
        time: u64,
    },
}

/// How long things go wrong, and how long it may take until one serves again then.
const TROUBLE: u64 = 15_000;
const MENDED_WITHIN: u64 = 40_000;

/// The nodes of a history.
pub(super) fn cast(rng: &mut SmallRng) -> Vec<Node> {
    let count = rng.random_range(2..=4);
    let nodes = (0..count).map(|at| {
        let tags = Tags {
            nofailover: at == 2 && rng.random_bool(0.3),
            spare: at >= 2 && rng.random_bool(0.4),
            priority: rng.random_range(0..2),
            zone: Some((at % ZONES) as u8),
            failover_zone: None,
        };
        let mut node = Node::new(at, tags);
        // One node at least may always take over: the first. The choice is no draw of its own, so that histories in which
        // all fit are as they were.
        node.fits = at == 0 || rng.clone().random_range(0..100) >= 12;
        node
    });
    nodes.collect()
}

impl World {
    /// Nothing fails. Whatever the store does, nobody takes over.
    pub(super) fn run_healthy(&mut self) -> Held<()> {
        self.start(0);
        let served = self.until(10_000, |world| world.serving().is_some())?;
        holds(served, || "the first node does not serve".to_owned())?;
        for at in 1..self.nodes.len() {
            self.start(at);
        }
        self.until(self.now + 4_000, |_| false)?;
        let epochs = self.checks.epochs();
        let begin = self.now;
        for _ in 0..6 {
            let time = begin + self.rng.random_range(0..20_000);
            let slow = [1, 5, 80, 400, 1200, 3000][self.rng.random_range(0..6)];
            self.plan(time, Fault::Latency { time: slow });
        }
        self.until(begin + 20_000, |_| false)?;
        holds(self.checks.epochs() == epochs, || {
            "somebody took over although all was well".to_owned()
        })
    }

    pub(super) fn run_with_faults(&mut self) -> Held<()> {
        for at in 0..self.nodes.len() {
            let start = self.rng.random_range(0..2_000);
            self.plan(start, Fault::Start { node: at });
        }
        self.until(6_000, |world| world.serving().is_some())?;
        let begin = self.now + 1500;
        for _ in 0..self.rng.random_range(2..14) {
            let time = begin + self.rng.random_range(0..TROUBLE);
            self.misfortune(time);
        }
        self.until(begin + TROUBLE, |_| false)?;
        self.mend();
        let serves = |world: &World| world.served_since().is_some();
        let mended = self.until(self.now + MENDED_WITHIN, serves)?;
        let states: Vec<_> = self
            .nodes
            .iter()
            .map(|n| {
                format!(
                    "{} {}{}",
                    n.name,
                    n.state,
                    if n.up { "" } else { " (down)" }
                )
            })
            .collect();
        holds(mended, || format!("nobody serves in the end: {states:?}"))
    }

    /// Who serves under the highest epoch, with a commit acknowledged.
    fn served_since(&self) -> Option<usize> {
        let highest = self.checks.highest();
        let committed = self.checks.acknowledged.iter().any(|(e, _)| *e == highest);
        self.serving().filter(|_| committed)
    }

    fn misfortune(&mut self, time: u64) {
        let node = self.rng.random_range(0..self.nodes.len());
        let zone = self.rng.random_range(0..ZONES);
        let later = time + self.rng.random_range(100..6_000);
        let (first, then) = match self.rng.random_range(0..16) {
            0..=2 => {
                let silent = self.rng.random_bool(0.3);
                let start = Fault::Start { node };
                (Fault::Kill { node, silent }, Some(start))
            }
            3 => (Fault::KillAll, None),
            4..=5 => {
                let time = self.rng.random_range(300..8_000);
                (Fault::Freeze { node, time }, None)
            }
            6 => (Fault::PostgresDies { node }, None),
            7 => {
                let back = Fault::Zone { zone, up: true };
                (Fault::Zone { zone, up: false }, Some(back))
            }
            8..=9 => {
                let back = Fault::Link {
                    node,
                    zone,
                    up: true,
                };
                (
                    Fault::Link {
                        node,
                        zone,
                        up: false,
                    },
                    Some(back),
                )
            }
            10 => {
                let slow = self.rng.random_range(50..2_000);
                let back = Fault::Latency { time: 1 };
                (Fault::Latency { time: slow }, Some(back))
            }
            11 => {
                let slow = self.rng.random_range(50..3_000);
                let back = Fault::Slow { node, time: 0 };
                (Fault::Slow { node, time: slow }, Some(back))
            }
            12 => {
                let to = self.rng.random_bool(0.6).then_some(node);
                let node = self.rng.random_range(0..self.nodes.len());
                (Fault::Order { node, to }, None)
            }
            13 => {
                let back = Fault::Pause { paused: false };
                (Fault::Pause { paused: true }, Some(back))
            }
            14 => {
                let time = self.rng.random_range(0..6_000);
                (Fault::AtTakeover { time }, None)
            }
            _ => match self.rng.random_bool(0.5) {
                true => (Fault::Channel { node }, None),
                false => (Fault::Stop { node }, Some(Fault::Start { node })),
            },
        };
        self.plan(time, first);
        if let Some(then) = then {
            self.plan(later, then);
        }
    }

    /// Everything is mended, except that one zone may be lost, and nodes of which others are left.
    fn mend(&mut self) {
        let lost = self.rng.random_range(0..2 * ZONES);
        for (at, zone) in self.zones.iter_mut().enumerate() {
            zone.up = at != lost;
        }
        self.links
            .iter_mut()
            .for_each(|links| *links = [true; ZONES]);
        self.slow.iter_mut().for_each(|slow| *slow = 0);
        self.set_latency(1);
        self.paused_at = None;
        // Nothing that was planned happens any more.
        self.queue.retain(|_, what| {
            let word = matches!(what, Happening::Told { word, .. } if word.is_order());
            !word && !matches!(what, Happening::Fault(_))
        });
        let eligible: Vec<usize> = (0..self.nodes.len())
            .filter(|at| !self.nodes[*at].tags.nofailover && self.nodes[*at].fits)
            .collect();
        // One at least lives; which one decides the dice.
        let sure = eligible[self.rng.random_range(0..eligible.len())];
        for at in 0..self.nodes.len() {
            let lives = at == sure || self.rng.random_bool(0.7);
            let stops = matches!(self.nodes[at].state, State::Stopping | State::Stopped);
            if stops {
                self.kill(at, true);
            }
            let up = self.nodes[at].up;
            self.nodes[at].frozen_until = self.nodes[at].frozen_until.min(self.now);
            if lives && !up {
                self.start(at);
            } else if !lives && up {
                self.kill(at, true);
            }
        }
    }

    pub(super) fn fault(&mut self, fault: Fault) -> Held<()> {
        self.note(|| format!("{fault:?}"));
        match fault {
            Fault::Kill { node, silent } => self.kill(node, silent),
            Fault::KillAll => {
                for at in 0..self.nodes.len() {
                    self.kill(at, true);
                    let again = self.now + self.rng.random_range(0..3_000);
                    self.plan(again, Fault::Start { node: at });
                }
            }
            Fault::Start { node } if !self.nodes[node].up => self.start(node),
            Fault::Start { .. } => {}
            Fault::Freeze { node, time } => self.freeze(node, time),
            Fault::PostgresDies { node } => {
                if self.nodes[node].runs(self.now) {
                    let event = Event::PostgresExited {
                        redo_failed: false,
                        report: "signal 9".into(),
                    };
                    return self.tell(node, event);
                }
            }
            Fault::Zone { zone, up } => self.zones[zone].up = up,
            Fault::Link { node, zone, up } => self.links[node][zone] = up,
            Fault::Latency { time } => self.set_latency(time),
            Fault::Slow { node, time } => self.slow[node] = time,
            Fault::Channel { node } => {
                let Some(epoch) = self.nodes[node].owned else {
                    return Ok(());
                };
                for other in self.followers(epoch) {
                    let back = self.rng.random_range(20..400);
                    for (after, hint) in [(1, Hint::Reset), (back, Hint::Connected)] {
                        self.say(other, after, Word::Hint { of: node, hint });
                    }
                }
            }
            Fault::Order { node, to } => {
                self.coverage.one("orders");
                let to = to.map(|to| self.nodes[to].name.clone());
                let force = self.rng.random_bool(0.3);
                let ask = Event::Asked(Ask::Failover { to, force });
                self.say(node, 1, Word::Event(ask));
            }
            Fault::Pause { paused } => self.paused_at = paused.then_some(self.now),
            Fault::Stop { node } => self.say(node, 1, Word::Event(Event::Stop)),
            Fault::AtTakeover { time } => {
                let taking = |n: &&Node| matches!(n.state, State::TakingOver(_)) && n.up;
                let Some(at) = self.nodes.iter().find(taking).map(|n| n.at) else {
                    // Not yet: it looks again.
                    self.plan(self.now + 20, Fault::AtTakeover { time });
                    return Ok(());
                };
                self.coverage.one("takeovers hit");
                if time < 1500 {
                    self.kill(at, false);
                    let again = self.now + 200 + time;
                    self.plan(again, Fault::Start { node: at });
                } else {
                    self.freeze(at, time);
                }
            }
        }
        Ok(())
    }

    fn freeze(&mut self, node: usize, time: u64) {
        self.coverage.one("frozen");
        let until = self.now + time;
        self.nodes[node].frozen_until = self.nodes[node].frozen_until.max(until);
    }

    fn kill(&mut self, node: usize, silent: bool) {
        if !self.nodes[node].up {
            return;
        }
        self.coverage.one("killed");
        let owned = self.nodes[node].owned;
        self.nodes[node].up = false;
        self.nodes[node].attached_to = None;
        self.nodes[node].owned = None;
        let Some(epoch) = owned.filter(|_| !silent) else {
            return;
        };
        for other in self.followers(epoch) {
            let first = self.rng.random_range(1..20);
            for (after, hint) in [(first, Hint::Reset), (first + 5, Hint::Refused)] {
                self.say(other, after, Word::Hint { of: node, hint });
            }
        }
    }

    /// What is on its way arrives as quickly as the store is now.
    fn set_latency(&mut self, time: u64) {
        let faster = time < self.latency;
        self.latency = time;
        if !faster {
            return;
        }
        let soon = self.now + time + 2;
        let late = self.queue.split_off(&(soon, 0));
        for ((at, number), what) in late {
            let message = matches!(what, Happening::AtZone { .. } | Happening::Answer { .. });
            let at = if message { soon } else { at };
            self.queue.insert((at, number), what);
        }
    }
}
