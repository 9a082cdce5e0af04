//! Many seeds of random histories: writers that crash or are deposed, replicas that crash, connections
//! that break. Checked: what a completed sync covers stays on a quorum; reads do not go back; a
//! promotion decides for good; after an epoch is owned, no later write of an older one is synced.

use std::collections::HashMap;

use super::super::*;
use super::judge::{Content, Judge, content, data};
use super::world::{ClientId, REPLICAS, World};
use crate::ids::FileId;
use crate::storage::SyncScope;

const KEYS: u64 = 6;

/// What an operation was for.
#[derive(Debug)]
enum Intent {
    Own,
    Sync {
        upto: u64,
    },
    Promote {
        key: BlockKey,
        /// The newest own write when it started.
        own: Content,
    },
    /// Of a block whose contents this owner knows.
    OwnRead {
        key: BlockKey,
        generation: Generation,
        /// What the owner knew when it started.
        known: Content,
    },
    AnyRead {
        key: BlockKey,
        up_to: Generation,
        floor: (Generation, Version),
    },
}

struct Simulation {
    world: World,
    judge: Judge,
    intents: HashMap<(ClientId, OpId), Intent>,
    owner: Option<ClientId>,
    deposed: Vec<ClientId>,
    claimant: Option<ClientId>,
    reader: ClientId,
    /// What each owner knows of blocks that it wrote or promoted.
    known: HashMap<(ClientId, BlockKey, Generation), Content>,
    generation: u32,
    syncs: u32,
    promotions: u32,
    takeovers: u32,
    reads: u32,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut world = World::new(seed);
        let reader = world.add_client();
        Simulation {
            world,
            judge: Judge::default(),
            intents: HashMap::new(),
            owner: None,
            deposed: Vec::new(),
            claimant: None,
            reader,
            known: HashMap::new(),
            generation: 1,
            syncs: 0,
            promotions: 0,
            takeovers: 0,
            reads: 0,
        }
    }

    fn start(&mut self, client: ClientId, call: Call, intent: Intent) {
        let op = self.world.with(client, |core, now| core.start(now, call));
        self.intents.insert((client, op), intent);
        self.collect();
    }

    fn collect(&mut self) {
        for (client, op, result) in self.world.outcomes() {
            self.outcome(client, op, result);
        }
    }

    fn single_key(&mut self) -> BlockKey {
        BlockKey::new(FileId(2), self.world.below(KEYS))
    }

    fn data_key(&mut self) -> BlockKey {
        BlockKey::new(FileId(9), self.world.below(KEYS))
    }

    fn act(&mut self) {
        match self.world.below(100) {
            0..45 => self.write(),
            45..57 => self.sync(),
            57..70 => self.own_read(),
            70..80 => self.any_read(),
            80..90 => self.promote(),
            90..92 => self.world.cut_any(),
            92 => {
                let replica = self.world.below(REPLICAS.into()) as u8;
                self.world.crash_replica(replica);
            }
            93 => self.generation += 1,
            94 => self.take_over(),
            _ => self.world.tick(),
        }
    }

    /// The owner, or now and then one that does not know yet that it is none any more.
    fn writer(&mut self) -> Option<ClientId> {
        let count = self.deposed.len() as u64;
        if count > 0 && self.world.chance(15) {
            return Some(self.deposed[self.world.below(count) as usize]);
        }
        self.owner
    }

    fn generation_of(&self, client: ClientId) -> Generation {
        Generation {
            epoch: self.world.clients[client].core.epoch().unwrap_or_default(),
            number: self.generation,
        }
    }

    fn write(&mut self) {
        let Some(client) = self.writer() else {
            return;
        };
        let (key, generation) = if self.world.chance(50) {
            (self.single_key(), Generation::SINGLE)
        } else {
            (self.data_key(), self.generation_of(client))
        };
        let found = self.judge.next_content();
        let room = |core: &mut Core, _| core.has_room(data(found).len());
        if !self.world.with(client, room) {
            return;
        }
        let write = |core: &mut Core, _| core.write(key, generation, data(found));
        if let Ok(version) = self.world.with(client, write) {
            self.judge.wrote(client, key, generation, version);
            self.known.insert((client, key, generation), found);
        }
        self.collect();
    }

    fn sync(&mut self) {
        let Some(client) = self.writer() else {
            return;
        };
        let version = self.world.with(client, |core, _| core.next_version());
        if let Ok(version) = version {
            let call = Call::Sync(SyncScope::Volume);
            let upto = version.seq;
            self.start(client, call, Intent::Sync { upto });
        }
    }

    fn own_read(&mut self) {
        let Some(client) = self.owner else {
            return;
        };
        let (key, generation) = if self.world.chance(50) {
            (self.single_key(), Generation::SINGLE)
        } else {
            (self.data_key(), self.generation_of(client))
        };
        let Some(known) = self.known.get(&(client, key, generation)).copied() else {
            return;
        };
        let up_to = if self.world.chance(50) {
            generation
        } else {
            Generation::MAX
        };
        let intent = Intent::OwnRead {
            key,
            generation,
            known,
        };
        self.start(client, Call::Read { key, up_to }, intent);
    }

    fn any_read(&mut self) {
        let key = if self.world.chance(50) {
            self.single_key()
        } else {
            self.data_key()
        };
        let number = self.generation - self.world.below(2) as u32;
        let epoch = self.owner.and_then(|o| self.world.clients[o].core.epoch());
        let up_to = match self.world.below(2) {
            0 => Generation::MAX,
            _ => Generation {
                epoch: epoch.unwrap_or_default(),
                number,
            },
        };
        let floor = self.judge.floor(key, up_to);
        let intent = Intent::AnyRead { key, up_to, floor };
        self.start(self.reader, Call::Read { key, up_to }, intent);
    }

    fn promote(&mut self) {
        let Some(client) = self.owner else {
            return;
        };
        let key = self.single_key();
        let own = self.known.get(&(client, key, Generation::SINGLE));
        let own = own.copied().unwrap_or_default();
        self.start(client, Call::Promote(key), Intent::Promote { key, own });
    }

    fn take_over(&mut self) {
        if self.claimant.is_some() {
            return;
        }
        if let Some(owner) = self.owner.take() {
            if self.world.chance(50) {
                self.world.crash_client(owner);
                self.intents.retain(|(client, _), _| *client != owner);
            } else {
                self.deposed.push(owner);
            }
        }
        let client = self.world.add_client();
        self.claimant = Some(client);
        let owner = format!("n/{client}");
        self.start(client, Call::OwnEpoch { owner }, Intent::Own);
    }

    fn outcome(&mut self, client: ClientId, op: OpId, result: Result<Output>) {
        let Some(intent) = self.intents.remove(&(client, op)) else {
            return;
        };
        let output = match result {
            Ok(output) => output,
            Err(error) => {
                assert!(error.is_fenced(), "{intent:?} of {client}: {error}");
                assert_ne!(Some(client), self.owner, "nobody fenced the owner");
                return;
            }
        };
        match (intent, output) {
            (Intent::Own, Output::Epoch(epoch)) => {
                self.judge.owned(epoch);
                self.owner = Some(client);
                self.claimant = None;
                self.takeovers += 1;
            }
            (Intent::Sync { upto }, Output::Unit) => {
                self.syncs += 1;
                self.judge.synced(client, upto, &self.world.replicas);
            }
            (Intent::Promote { key, own }, Output::Block(block)) => {
                self.after_promotion(client, key, own, block.as_ref());
            }
            (
                Intent::OwnRead {
                    key,
                    generation,
                    known,
                },
                Output::Block(block),
            ) => {
                self.reads += 1;
                // A write made meanwhile may show, of a later generation, too.
                let found = content(block.as_ref());
                let later = self.judge.is_write(found, client, key) && found > known;
                assert!(
                    found == known || later,
                    "{key} {generation} of {client}: read {found}, knew {known}"
                );
            }
            (Intent::AnyRead { key, up_to, floor }, Output::Block(block)) => {
                self.reads += 1;
                self.judge
                    .read_by_anybody(key, up_to, floor, block.as_ref());
            }
            (intent, output) => panic!("{intent:?} gave {output:?}"),
        }
    }

    fn after_promotion(
        &mut self,
        client: ClientId,
        key: BlockKey,
        own: Content,
        block: Option<&Block>,
    ) {
        let found = content(block);
        let now = self.known.get(&(client, key, Generation::SINGLE));
        let now = now.copied().unwrap_or_default();
        if own != 0 || now != 0 {
            assert!(
                found >= own && (found <= now || own == 0),
                "{key}: {found}, {own}..{now}"
            );
        }
        if now != 0 {
            return;
        }
        self.promotions += 1;
        let epoch = self.world.clients[client].core.epoch().unwrap_or_default();
        self.judge.promoted(key, epoch, block);
        if found != 0 {
            self.known.insert((client, key, Generation::SINGLE), found);
        }
    }

    fn run(&mut self, steps: u32) {
        self.take_over();
        for _ in 0..steps {
            if self.world.chance(25) {
                self.act();
            }
            let outcomes = self.world.step();
            for (client, op, result) in outcomes {
                self.outcome(client, op, result);
            }
            if self.world.chance(2) {
                self.judge.check_durable(&self.world.replicas);
            }
        }
    }

    /// No more faults: everything that waits for replicas must end.
    fn settle(&mut self) {
        for _ in 0..20_000 {
            let outcomes = self.world.step();
            for (client, op, result) in outcomes {
                self.outcome(client, op, result);
            }
            self.world.now += Time::from_micros(200);
            if self.world.chance(10) {
                self.world.tick();
            }
            let alive = |(client, _): &&(ClientId, OpId)| self.world.clients[*client].alive;
            if !self.intents.keys().any(|k| alive(&k)) {
                return;
            }
        }
        panic!("these never ended: {:?}", self.intents);
    }
}

/// How many histories: more for a long search (`DAX_SEEDS=5000 cargo test -p dax histories`).
fn seeds() -> u64 {
    let wanted = std::env::var("DAX_SEEDS").ok();
    wanted.and_then(|n| n.parse().ok()).unwrap_or(60)
}

/// Runs one history; a failure says which.
fn simulate(seed: u64) -> Simulation {
    println!("seed {seed}");
    let mut simulation = Simulation::new(seed);
    simulation.run(6000);
    simulation.settle();
    simulation.judge.check_durable(&simulation.world.replicas);
    simulation
}

#[test]
fn histories_keep_the_promises() {
    let (mut syncs, mut promotions, mut takeovers, mut reads) = (0, 0, 0, 0);
    for seed in 0..seeds() {
        let s = simulate(seed);
        syncs += s.syncs;
        promotions += s.promotions;
        takeovers += s.takeovers;
        reads += s.reads;
    }
    // The histories are worth something: everything happened often.
    assert!(takeovers > 200, "{takeovers} takeovers");
    assert!(syncs > 2000, "{syncs} syncs");
    assert!(promotions > 500, "{promotions} promotions");
    assert!(reads > 2000, "{reads} reads");
}
