//! The schedule: which faults strike when, as a seed says. Pure.
//!
//! Invariant: the same seed gives the same schedule, however the run goes. What depends on the run, who is the active
//! just then, is named by its role and found out when the fault strikes.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde::Serialize;

/// Whom a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    /// Who serves just then; nobody if nobody does.
    Active,
    /// The one of the others with this number, counted from the active on.
    Standby(u8),
    Node(u8),
    Zone(u8),
    EveryNode,
    EveryZone,
    Everything,
}

/// Processes of a member that a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProcessSet {
    /// All of them, as a machine.
    Whole,
    /// The agent alone; PostgreSQL and the kernel go on.
    Agent,
    /// The postmaster and all that it started.
    Postgres,
    /// The postmaster alone.
    Postmaster,
    /// One of the processes that the postmaster started: the one with this number, as far as there are so many.
    Child(u8),
}

/// Which of the packets between a member and everybody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Way {
    In,
    Out,
    Both,
}

/// What happens to packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// None arrives.
    Cut,
    /// They take so much longer.
    Slow { ms: u16 },
    /// So many in a thousand do not arrive.
    Lossy { permille: u16 },
}

/// What can happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    Kill(Target, ProcessSet),
    Freeze(Target, ProcessSet),
    /// The line between a member and everybody.
    Network(Target, Way, Line),
    /// The line between two members.
    Between(Target, Target, Way, Line),
    /// A zone is killed and comes back with an empty disk.
    LoseDisk(u8),
    /// A zone's disk has no room any more.
    FillDisk(u8),
    /// Bits of a zone's files change; the number says where.
    RotDisk(u8, u32),
    /// Places of a zone's files cannot be read any more; the number says where.
    FailReads(u8, u32),
    /// A member's clock shows so many seconds more, or less.
    JumpClock(Target, i32),
    /// What operators do.
    Switchover,
    Failover,
    Restart(Target),
    Reinit(Target),
    /// The zone that is no member takes this one's place.
    Exchange(u8),
    /// Zones lose power, and with it what they did not sync.
    LosePower(Target),
    /// The machine of a node and of the zone with its number loses power.
    LoseHost(u8),
    /// A member is killed, and comes back with the other of two releases.
    Release(Target),
}

/// A fault, so long after the one before it, and how long it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Strike {
    pub after: Duration,
    pub fault: Fault,
    pub lasts: Duration,
}

/// How many there are of whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Size {
    pub nodes: u8,
    pub zones: u8,
}

/// An endless row of rounds. After each, everything is healed and has to be whole again.
#[derive(Debug)]
pub(crate) struct Schedule {
    random: SmallRng,
    size: Size,
}

/// Between two strikes that have nothing to do with each other, at most, in milliseconds.
const APART_MS: u64 = 9_000;
/// The longest that a fault lasts, in milliseconds.
const LASTS_MS: u64 = 14_000;
/// Strikes of a round.
const STRIKES: std::ops::RangeInclusive<u8> = 3..=7;

impl Schedule {
    pub fn new(seed: u64, size: Size) -> Schedule {
        let random = SmallRng::seed_from_u64(seed);
        Schedule { random, size }
    }

    fn ms(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.random.random_range(range))
    }

    /// A strike, with what comes right behind it.
    fn strike(&mut self, strikes: &mut Vec<Strike>) {
        let after = self.ms(500..APART_MS);
        let lasts = self.ms(300..LASTS_MS);
        let fault = self.fault();
        strikes.push(Strike {
            after,
            fault,
            lasts,
        });
        match self.random.random_range(0..10) {
            // Two at once.
            0..3 => {
                let (after, lasts) = (self.ms(0..400), self.ms(300..LASTS_MS));
                let fault = self.fault();
                strikes.push(Strike {
                    after,
                    fault,
                    lasts,
                });
            }
            // A takeover, and the loss of whoever is taking over or has just done so.
            3..5 => {
                for after in [self.ms(0..400), self.ms(400..2_500)] {
                    let (fault, lasts) = (self.loss_of_active(), self.ms(300..LASTS_MS));
                    strikes.push(Strike {
                        after,
                        fault,
                        lasts,
                    });
                }
            }
            _ => {}
        }
    }

    fn fault(&mut self) -> Fault {
        match self.random.random_range(0..100) {
            0..18 => Fault::Kill(self.target(), self.part()),
            18..22 => Fault::Release(self.target()),
            22..33 => Fault::Freeze(self.target(), self.part()),
            33..35 => Fault::LosePower(self.zones()),
            35 => Fault::LoseHost(self.random.random_range(0..self.size.nodes)),
            36..47 => Fault::Network(self.target(), self.way(), self.line()),
            47..58 => Fault::Between(self.target(), self.target(), self.way(), self.line()),
            // The rebuild of a disk takes longest of all.
            58..61 => Fault::LoseDisk(self.zone()),
            61..65 => Fault::FillDisk(self.zone()),
            65..67 => Fault::FailReads(self.zone(), self.random.random()),
            67..70 => Fault::RotDisk(self.zone(), self.random.random()),
            70..78 => Fault::JumpClock(self.target(), self.jump()),
            78..86 => Fault::Switchover,
            86..89 => Fault::Failover,
            89..93 => Fault::Restart(self.node()),
            93..97 => Fault::Exchange(self.zone()),
            _ => Fault::Reinit(self.node()),
        }
    }

    fn loss_of_active(&mut self) -> Fault {
        match self.random.random_range(0..5) {
            0 => Fault::Kill(Target::Active, ProcessSet::Whole),
            1 => Fault::Kill(Target::Active, ProcessSet::Postmaster),
            2 => Fault::Kill(Target::Standby(0), ProcessSet::Whole),
            3 => Fault::Freeze(Target::Active, ProcessSet::Whole),
            _ => Fault::Network(Target::Active, Way::Both, Line::Cut),
        }
    }

    fn zone(&mut self) -> u8 {
        self.random.random_range(0..self.size.zones)
    }

    /// One, or all at once.
    fn zones(&mut self) -> Target {
        match self.random.random_range(0..3) {
            0 => Target::EveryZone,
            _ => Target::Zone(self.zone()),
        }
    }

    fn node(&mut self) -> Target {
        match self.random.random_range(0..5) {
            0..2 => Target::Active,
            2..4 => Target::Standby(self.random.random_range(0..self.size.nodes.max(2) - 1)),
            _ => Target::Node(self.random.random_range(0..self.size.nodes)),
        }
    }

    fn target(&mut self) -> Target {
        match self.random.random_range(0..20) {
            0..11 => self.node(),
            11..17 => Target::Zone(self.zone()),
            17 => Target::EveryNode,
            18 => Target::EveryZone,
            _ => Target::Everything,
        }
    }

    fn part(&mut self) -> ProcessSet {
        match self.random.random_range(0..10) {
            0..5 => ProcessSet::Whole,
            5 => ProcessSet::Agent,
            6 => ProcessSet::Postgres,
            7 => ProcessSet::Postmaster,
            _ => ProcessSet::Child(self.random.random_range(0..16)),
        }
    }

    fn way(&mut self) -> Way {
        *[Way::In, Way::Out, Way::Both]
            .choose(&mut self.random)
            .unwrap_or(&Way::Both)
    }

    fn line(&mut self) -> Line {
        match self.random.random_range(0..4) {
            0..2 => Line::Cut,
            2 => Line::Slow {
                ms: self.random.random_range(5..400),
            },
            _ => Line::Lossy {
                permille: self.random.random_range(10..400),
            },
        }
    }

    /// By moments, by timeouts, by days; forward and back.
    fn jump(&mut self) -> i32 {
        let seconds = [1, 2, 10, 70, 3_600, 100_000];
        let seconds = *seconds.choose(&mut self.random).unwrap_or(&1);
        match self.random.random() {
            true => seconds,
            false => -seconds,
        }
    }
}

impl Iterator for Schedule {
    type Item = Vec<Strike>;

    fn next(&mut self) -> Option<Vec<Strike>> {
        let mut strikes = Vec::new();
        for _ in 0..self.random.random_range(STRIKES) {
            self.strike(&mut strikes);
        }
        Some(strikes)
    }
}

impl Fault {
    /// What it is called in reports.
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Kill(Target::EveryNode | Target::EveryZone | Target::Everything, _) => {
                "many killed at once"
            }
            Fault::Kill(Target::Zone(_), _) => "zone killed",
            Fault::Kill(_, ProcessSet::Whole) => "node killed",
            Fault::Kill(_, ProcessSet::Agent) => "agent killed",
            Fault::Kill(..) => "process of PostgreSQL killed",
            Fault::Freeze(Target::EveryNode | Target::EveryZone | Target::Everything, _) => {
                "many frozen at once"
            }
            Fault::Freeze(Target::Zone(_), _) => "zone frozen",
            Fault::Freeze(_, ProcessSet::Whole) => "node frozen",
            Fault::Freeze(_, ProcessSet::Agent) => "agent frozen",
            Fault::Freeze(..) => "process of PostgreSQL frozen",
            Fault::Network(_, Way::Both, Line::Cut) => "network cut",
            Fault::Network(_, _, Line::Cut) => "network cut one way",
            Fault::Network(_, _, Line::Slow { .. }) => "network slow",
            Fault::Network(_, _, Line::Lossy { .. }) => "network lossy",
            Fault::Between(_, _, Way::Both, Line::Cut) => "link cut",
            Fault::Between(_, _, _, Line::Cut) => "link cut one way",
            Fault::Between(_, _, _, Line::Slow { .. }) => "link slow",
            Fault::Between(_, _, _, Line::Lossy { .. }) => "link lossy",
            Fault::LoseDisk(_) => "disk lost",
            Fault::FillDisk(_) => "disk full",
            Fault::RotDisk(..) => "disk rotten",
            Fault::JumpClock(..) => "clock jumped",
            Fault::Switchover => "switchover",
            Fault::Failover => "failover ordered",
            Fault::Restart(_) => "restart ordered",
            Fault::Reinit(_) => "reinit ordered",
            Fault::Exchange(_) => "zone exchanged",
            Fault::FailReads(..) => "disk unreadable",
            Fault::LosePower(_) => "zone lost power",
            Fault::LoseHost(_) => "host lost power",
            Fault::Release(_) => "release exchanged",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SIZE: Size = Size { nodes: 3, zones: 4 };

    fn rounds(seed: u64, count: usize) -> Vec<Vec<Strike>> {
        Schedule::new(seed, SIZE).take(count).collect()
    }

    #[test]
    fn a_seed_gives_its_schedule_again_and_another_seed_another() {
        assert_eq!(rounds(7, 20), rounds(7, 20));
        assert_ne!(rounds(7, 20), rounds(8, 20));
    }

    #[test]
    fn every_kind_of_fault_comes_within_an_hour_or_so() {
        let strikes: Vec<Strike> = rounds(1, 100).concat();
        let kinds: BTreeSet<&str> = strikes.iter().map(|s| s.fault.kind()).collect();
        assert_eq!(kinds.len(), 31, "{kinds:?}");
        let longest = Duration::from_millis(LASTS_MS);
        assert!(strikes.iter().all(|s| s.lasts < longest));
    }
}
