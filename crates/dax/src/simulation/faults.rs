//! What goes wrong. Each schedule allows some kinds of faults only, so that each kind is seen alone
//! and in company.
//!
//! Invariant: never more than min(k-1, N-k) replicas at once lack what they once acknowledged; more
//! than that no protocol survives.

use super::history::ClientId;
use super::replica::Replica;
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
    Minority,
    LoseTheRoom,
    Copy,
    GoBack,
    Relay,
    PauseWriter,
    CrashWriter,
    Depose,
    PauseReader,
    BadSector,
    FlipBit,
}

const ALL: [Fault; 19] = [
    Fault::Cut,
    Fault::Stall,
    Fault::Partition,
    Fault::CrashReplica,
    Fault::CrashAll,
    Fault::LoseDisk,
    Fault::Damage,
    Fault::Full,
    Fault::Minority,
    Fault::LoseTheRoom,
    Fault::Copy,
    Fault::GoBack,
    Fault::Relay,
    Fault::PauseWriter,
    Fault::CrashWriter,
    Fault::Depose,
    Fault::PauseReader,
    Fault::BadSector,
    Fault::FlipBit,
];

/// What goes wrong step by step, because it seldom would by chance.
#[derive(Debug, Clone, Copy)]
enum Plot {
    /// Fewer than k replicas have room, so that nothing becomes durable. One of them loses its disk.
    Lose(u8),
    /// It is rebuilt from the full ones; then one of those has room.
    Relieve(u8),
    /// One of three is away and misses what the others make durable. The writer dies before it is back.
    Missed([u8; 3]),
    /// It is back, and there is another writer: the second loses its disk, and the third is away.
    Turn([u8; 3]),
    /// The one that missed something is the only one to rebuild the lost one from.
    Rebuild(u8),
}

/// It takes about so long.
const PLOT_TIME: Time = Time::from_millis(2000);

#[derive(Debug)]
pub(super) struct Faults {
    allowed: Vec<Fault>,
    plot: Option<Plot>,
    /// The longest time between two.
    pub pause_us: u64,
    /// Operators exchange stores.
    pub exchanges: bool,
}

impl Faults {
    pub fn new(world: &mut World) -> Faults {
        let allowed = ALL.into_iter().filter(|_| world.chance(45));
        let mut allowed: Vec<Fault> = allowed.collect();
        // Takes long.
        if world.chance(60) {
            allowed.retain(|fault| *fault != Fault::LoseTheRoom);
        }
        if world.chance(50) {
            allowed.retain(|fault| *fault != Fault::Relay);
        }
        if allowed.is_empty() {
            allowed.push(Fault::Depose);
        }
        Faults {
            allowed,
            plot: None,
            pause_us: 20_000 + world.below(150_000),
            exchanges: world.chance(50),
        }
    }
}

impl Schedule {
    /// How long things go wrong.
    pub fn storm_time(&mut self) -> Time {
        let long = [Fault::LoseTheRoom, Fault::Relay];
        let rebuilt = match self.faults.allowed.iter().any(|fault| long.contains(fault)) {
            true => PLOT_TIME,
            false => Time::ZERO,
        };
        rebuilt + Time::from_millis(400 + self.world.below(1400))
    }

    /// Something goes wrong.
    pub fn fault(&mut self) {
        match self.faults.plot {
            Some(plot) if self.world.chance(75) => self.go_on(plot),
            None if self.faults.allowed.contains(&Fault::Relay) && self.world.chance(30) => {
                let first = self.world.below(3) as u8;
                self.begin_relay(first);
            }
            _ => self.any_fault(),
        }
        self.take_stock();
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
                for replica in 0..self.world.replicas.len() as u8 {
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
            Fault::Minority => self.minority(replica),
            Fault::Copy => {
                self.world.replicas.iter_mut().for_each(Replica::copy);
            }
            Fault::GoBack => self.go_back(replica),
            Fault::Relay => self.begin_relay(replica),
            Fault::LoseTheRoom => {
                self.leave_room_at_too_few(replica % self.world.settings.replicas);
            }
            Fault::BadSector => self.spoil(replica),
            Fault::FlipBit => self.flip_bit(),
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
        self.faults.plot = Some(Plot::Lose(first));
        self.world.coverage.one("times that fewer than k had room");
    }

    /// True if fewer than k replicas have room, with more to come.
    pub fn is_squeezed(&self) -> bool {
        matches!(self.faults.plot, Some(Plot::Lose(_) | Plot::Relieve(_)))
    }

    /// One of three members is away while the others go on.
    fn begin_relay(&mut self, first: u8) {
        let members = self.world.rosters().swap_remove(0).members;
        if let [a, b, c] = members[..] {
            let mut three = [a as u8, b as u8, c as u8];
            three.rotate_left(usize::from(first) % 3);
            self.crash_replica(three[0], false, 800_000);
            self.faults.plot = Some(Plot::Missed(three));
        }
    }

    fn go_on(&mut self, plot: Plot) {
        match plot {
            Plot::Missed(three) => {
                // Else it would be sent what it has missed.
                if let Some(writer) = self.newest_writer() {
                    self.crash_writer(self.writers[writer].client);
                }
                self.faults.plot = Some(Plot::Turn(three));
            }
            Plot::Turn([missed, lost, away]) => {
                let back = self.world.replicas[usize::from(missed)].up;
                if back && self.newest_writer().is_some() {
                    self.lose_disk(lost);
                    self.crash_replica(away, false, 1_200_000);
                    self.faults.plot = Some(Plot::Rebuild(away));
                    self.world.coverage.one("rebuilds where only one was left");
                }
            }
            Plot::Rebuild(away) => {
                if let Some(writer) = self.newest_writer() {
                    self.scrub(writer);
                }
                if self.world.replicas[usize::from(away)].up {
                    self.faults.plot = None;
                }
            }
            Plot::Lose(replica) => {
                self.lose_disk(replica);
                self.faults.plot = Some(Plot::Relieve(replica));
            }
            Plot::Relieve(replica) if !self.world.replicas[usize::from(replica)].counts() => {
                if let Some(writer) = self.newest_writer() {
                    self.scrub(writer);
                }
            }
            Plot::Relieve(_) => {
                let mut replicas = self.world.replicas.iter_mut();
                if let Some(full) = replicas.find(|r| r.peer.full) {
                    full.peer.full = false;
                }
                self.faults.plot = None;
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

    /// The disks of a minority are slow, or the owner reaches nobody else, and another one takes over without it.
    fn minority(&mut self, first: u8) {
        let minority = usize::from(self.world.settings.replicas - 1) / 2;
        if !self.claimants.is_empty() || self.world.chance(40) {
            self.world.slow_disks(first, minority, 400_000);
            return;
        }
        let all = self.world.replicas.len();
        let few: Vec<usize> = (0..minority)
            .map(|n| (usize::from(first) + n) % all)
            .collect();
        if let Some(writer) = self.newest_writer() {
            let client = self.writers[writer].client;
            // What is on its way to that minority arrives after the other one may have met it.
            self.world.cut_off(client, &few, 400_000, 150_000);
            self.claim();
            let rival = self.claimants[self.claimants.len() - 1];
            self.world.cut_off_from(rival, &few, 80_000);
        }
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

    fn lose_disk(&mut self, replica: u8) {
        if self.world.may_lose(replica) {
            self.crash_replica(replica, false, 200_000);
            self.world.coverage.one("disks lost");
            self.world.note(17, [replica.into(), 0, 0], || {
                format!("replica {replica} has lost its disk")
            });
            self.world.lose_disk(replica);
        }
    }

    /// A store is stopped, and its directory put back to what it was when somebody copied it.
    fn go_back(&mut self, replica: u8) {
        if !self.world.is_copy_known_as_old(replica) || !self.world.may_lose(replica) {
            return;
        }
        self.crash_replica(replica, false, 200_000);
        self.world.coverage.one("stores that went back");
        self.world.note(19, [replica.into(), 0, 0], || {
            format!("replica {replica} goes on with an old copy of its directory")
        });
        self.world.replicas[usize::from(replica)].go_back();
    }

    /// A sector of a disk cannot be read from now on.
    fn spoil(&mut self, replica: u8) {
        let which = self.world.below(100);
        let settings = &self.world.settings;
        let bears = settings.sync_replicas < settings.replicas;
        if bears
            && self.world.may_be_damaged(replica)
            && self.world.replicas[usize::from(replica)].spoil(which)
        {
            self.world.coverage.one("sectors that cannot be read");
            self.world.note(26, [replica.into(), which, 0], || {
                format!("replica {replica} cannot read a sector any more")
            });
        }
    }

    /// A bit of what a writer has not written yet changes in its memory.
    fn flip_bit(&mut self) {
        let which = self.world.below(1000);
        if let Some(client) = self.any_writer()
            && self.world.clients[client].core.flip_bit(which)
        {
            self.world
                .coverage
                .one("bits that changed in a writer's memory");
            self.world.note(27, [client as u64, which, 0], || {
                format!("a bit changes in the memory of client {client}")
            });
        }
    }

    fn damage(&mut self, replica: u8) {
        let which = self.world.below(100);
        if self.world.may_be_damaged(replica)
            && self.world.replicas[usize::from(replica)].damage(which)
        {
            self.world.coverage.one("copies damaged");
            self.world.note(18, [replica.into(), which, 0], || {
                format!("replica {replica} has a damaged copy")
            });
        }
    }
}
