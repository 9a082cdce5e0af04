//! What goes wrong. Each schedule allows some kinds of faults only, so that each kind is seen alone
//! and in company.
//!
//! Invariant: never more than min(k-1, N-k) replicas at once lack what they once acknowledged; more
//! than that no protocol survives.

use super::history::ClientId;
use super::schedule::Schedule;
use super::world::World;
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
    PauseWriter,
    CrashWriter,
    Depose,
    PauseReader,
}

const ALL: [Fault; 12] = [
    Fault::Cut,
    Fault::Stall,
    Fault::Partition,
    Fault::CrashReplica,
    Fault::CrashAll,
    Fault::LoseDisk,
    Fault::Damage,
    Fault::Full,
    Fault::PauseWriter,
    Fault::CrashWriter,
    Fault::Depose,
    Fault::PauseReader,
];

#[derive(Debug)]
pub(super) struct Faults {
    allowed: Vec<Fault>,
    /// The replica whose disk damages copies: one, because a read remembers for its whole life which
    /// replicas were damaged, also those that have been mended meanwhile.
    fragile: u8,
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
        let tolerated = tolerated(&world.settings);
        if tolerated == 1 && allowed.contains(&Fault::LoseDisk) {
            // A read that has met a damaged copy waits for another replica, even if it is mended
            // meanwhile; so one that is mended must not let another one lose its disk.
            allowed.retain(|fault| *fault != Fault::Damage);
        }
        if allowed.is_empty() {
            allowed.push(Fault::Depose);
        }
        Faults {
            allowed,
            fragile: world.below(world.settings.replicas.into()) as u8,
            pause_us: 20_000 + world.below(150_000),
        }
    }
}

impl Schedule {
    /// Something goes wrong.
    pub fn fault(&mut self) {
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
            Fault::Damage => self.damage(self.faults.fragile),
            Fault::Full => {
                let peer = &mut self.world.replicas[usize::from(replica)].peer;
                peer.full = !peer.full;
                self.world
                    .coverage
                    .one("disks that filled up or were cleared");
            }
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
        let stored = self.world.stored();
        self.event(&stored);
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
