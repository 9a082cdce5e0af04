//! What goes wrong. Each schedule allows some kinds of faults only, so that each kind is seen alone
//! and in company.
//!
//! Invariant: never more than min(k-1, N-k) replicas at once lack what they once acknowledged; more
//! than that no protocol survives.

use super::history::ClientId;
use super::schedule::Schedule;
use super::world::World;
use crate::client::core::Time;
use crate::storage::VolumeSettings;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Cut,
    Stall,
    Partition,
    CrashReplica,
    CrashAll,
    LoseDisk,
    Damage,
    Full,
    LoseTheRoom,
    PauseWriter,
    CrashWriter,
    Depose,
    PauseReader,
}

const ALL: [Fault; 13] = [
    Fault::Cut,
    Fault::Stall,
    Fault::Partition,
    Fault::CrashReplica,
    Fault::CrashAll,
    Fault::LoseDisk,
    Fault::Damage,
    Fault::Full,
    Fault::LoseTheRoom,
    Fault::PauseWriter,
    Fault::CrashWriter,
    Fault::Depose,
    Fault::PauseReader,
];

/// What follows where fewer than k replicas have room, so that nothing becomes durable.
#[derive(Debug, Clone, Copy)]
enum Squeeze {
    /// One of them loses its disk.
    Lose(u8),
    /// It is rebuilt from the full ones; then one of those has room.
    Relieve(u8),
}

/// It takes about so long.
const SQUEEZE_TIME: Time = Time::from_millis(1500);

#[derive(Debug)]
pub(super) struct Faults {
    allowed: Vec<Fault>,
    /// Fewer than k replicas have room.
    squeeze: Option<Squeeze>,
    /// The longest time between two.
    pub pause_us: u64,
}

/// How many replicas may lack what they once acknowledged.
fn tolerated(settings: &VolumeSettings) -> usize {
    let (replicas, sync) = (settings.replicas, settings.sync_replicas);
    (sync - 1).min(replicas - sync).into()
}

impl Faults {
    pub fn new(world: &mut World) -> Faults {
        let allowed = ALL.into_iter().filter(|_| world.chance(45));
        let mut allowed: Vec<Fault> = allowed.collect();
        // Takes long.
        if world.chance(60) {
            allowed.retain(|fault| *fault != Fault::LoseTheRoom);
        }
        if allowed.is_empty() {
            allowed.push(Fault::Depose);
        }
        Faults {
            allowed,
            squeeze: None,
            pause_us: 20_000 + world.below(150_000),
        }
    }
}

impl Schedule {
    /// How long things go wrong.
    pub fn storm_time(&mut self) -> Time {
        let rebuilt = match self.faults.allowed.contains(&Fault::LoseTheRoom) {
            true => SQUEEZE_TIME,
            false => Time::ZERO,
        };
        rebuilt + Time::from_millis(400 + self.world.below(1400))
    }

    /// Something goes wrong.
    pub fn fault(&mut self) {
        match self.faults.squeeze {
            Some(squeeze) if self.world.chance(75) => self.squeeze(squeeze),
            _ => self.any_fault(),
        }
        let stored = self.world.stored();
        self.event(&stored);
    }

    fn any_fault(&mut self) {
        let index = self.world.below(self.faults.allowed.len() as u64) as usize;
        let replica = self.world.below(self.world.replicas.len() as u64) as u8;
        match self.faults.allowed[index] {
            Fault::Cut => self.world.cut_any(),
            Fault::Stall => self.world.stall_any(),
            Fault::Partition => self.world.partition(),
            Fault::CrashReplica => {
                let torn = self.world.chance(50);
                self.crash_replica(replica, torn, 300_000);
            }
            Fault::CrashAll => {
                for replica in 0..self.world.settings.replicas {
                    let torn = self.world.chance(50);
                    self.crash_replica(replica, torn, 100_000);
                }
            }
            Fault::LoseDisk => self.lose_disk(replica),
            Fault::Damage => self.damage(replica),
            Fault::Full => {
                let peer = &mut self.world.replicas[usize::from(replica)].peer;
                peer.full = !peer.full;
                self.world
                    .coverage
                    .one("disks that filled up or were cleared");
            }
            Fault::LoseTheRoom => self.leave_room_at_too_few(replica),
            Fault::PauseWriter => {
                if let Some(client) = self.any_writer() {
                    self.world.pause_client(client, 700_000);
                }
            }
            Fault::CrashWriter => {
                if let Some(client) = self.any_writer() {
                    self.crash_writer(client);
                }
            }
            Fault::Depose => self.depose(),
            Fault::PauseReader => {
                let index = self.world.below(self.readers.len() as u64) as usize;
                match self.world.chance(50) {
                    true => self.world.pause_client(self.readers[index].client, 300_000),
                    false => self.restart_reader(index),
                }
            }
        }
    }

    /// All replicas but k-1 fill up.
    fn leave_room_at_too_few(&mut self, first: u8) {
        let VolumeSettings {
            replicas,
            sync_replicas,
            ..
        } = self.world.settings;
        for number in 0..replicas {
            let has_room = (number + replicas - first) % replicas < sync_replicas - 1;
            self.world.replicas[usize::from(number)].peer.full = !has_room;
        }
        self.faults.squeeze = Some(Squeeze::Lose(first));
        self.world.coverage.one("times that fewer than k had room");
    }

    /// Whether fewer than k replicas have room, with more to come.
    pub fn is_squeezed(&self) -> bool {
        self.faults.squeeze.is_some()
    }

    fn squeeze(&mut self, squeeze: Squeeze) {
        match squeeze {
            Squeeze::Lose(replica) => {
                self.lose_disk(replica);
                self.faults.squeeze = Some(Squeeze::Relieve(replica));
            }
            Squeeze::Relieve(replica) if !self.world.replicas[usize::from(replica)].counts() => {
                if let Some(writer) = self.newest_writer() {
                    self.scrub(writer);
                }
            }
            Squeeze::Relieve(_) => {
                let mut replicas = self.world.replicas.iter_mut();
                if let Some(full) = replicas.find(|r| r.peer.full) {
                    full.peer.full = false;
                }
                self.faults.squeeze = None;
                self.world.coverage.one("times that one had room again");
            }
        }
    }

    fn any_writer(&mut self) -> Option<ClientId> {
        let index = self.world.below(self.writers.len().max(1) as u64) as usize;
        self.writers.get(index).map(|w| w.client)
    }

    fn crash_replica(&mut self, replica: u8, torn: bool, back_us: u64) {
        self.world.coverage.one(match torn {
            true => "replicas crashed, with torn writes",
            false => "replicas crashed",
        });
        self.world.crash_replica(replica, torn, back_us);
    }

    pub fn crash_writer(&mut self, client: ClientId) {
        self.world.coverage.one("writers crashed");
        self.world.crash_client(client);
        self.intents.retain(|(c, _), _| *c != client);
        self.writers.retain(|w| w.client != client);
        self.claimants.retain(|c| *c != client);
    }

    /// A new owner comes while the old one lives, and may not hear of it for long.
    fn depose(&mut self) {
        if !self.claimants.is_empty() {
            return;
        }
        if self.world.chance(50)
            && let Some(writer) = self.newest_writer()
        {
            let client = self.writers[writer].client;
            self.world.pause_client(client, 500_000);
        }
        self.world.coverage.one("owners deposed, or rivals");
        self.claim();
        if self.world.chance(20) {
            self.claim();
        }
    }

    /// Whether one more replica may lose something.
    fn may_lose(&self, replica: u8) -> bool {
        let tolerated = tolerated(&self.world.settings);
        let replicas = self.world.replicas.iter().enumerate();
        let hurt =
            replicas.filter(|(n, r)| *n != usize::from(replica) && (!r.counts() || !r.is_intact()));
        hurt.count() < tolerated
    }

    fn lose_disk(&mut self, replica: u8) {
        if self.may_lose(replica) {
            self.crash_replica(replica, false, 200_000);
            self.world.coverage.one("disks lost");
            self.world.note(17, [replica.into(), 0, 0], || {
                format!("replica {replica} has lost its disk")
            });
            self.world.lose_disk(replica);
        }
    }

    fn damage(&mut self, replica: u8) {
        let which = self.world.below(100);
        if self.may_lose(replica) && self.world.replicas[usize::from(replica)].damage(which) {
            self.world.coverage.one("copies damaged");
            self.world.note(18, [replica.into(), which, 0], || {
                format!("replica {replica} has a damaged copy")
            });
        }
    }
}
