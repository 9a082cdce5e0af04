//! One life of a node: a standby that watches and reads, then perhaps an owner, then nobody.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dax::error::{Error, ErrorKind, Result};
use dax::ids::{BlockKey, Epoch, Generation, NodeName, VolumeName};
use dax::layer::Layer;
use dax::simulation::history::{Action, ClientId, Content, NOTHING, OpNumber, Outcome, RecordId};
use dax::storage::{Block, Storage, VolumeSettings};
use rand::Rng;

use super::below;
use super::executor::Stage;
use super::machine::Machine;
use super::model::NodeId;
use super::owner;
use super::places::{self, BLOCK_BYTES, DATA, KEYS, OTHER, SEALS, name_of, of_bytes};
use super::world::{World, ms};
use crate::client::Client;
use crate::client::environment::Environment;
use crate::config::{Config, Fencing};
use crate::schema::{Durability, Replication};
use crate::setup::Opened;

/// Before which nobody suspects the owner.
const TIMEOUT: Duration = ms(900);
/// Reads of a standby at a time.
const READS_MAX: usize = 5;

/// What a client is in the middle of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    Commits,
    /// It looks at the epoch row for commits that are written, while others are being written.
    Gate,
    Takeover,
    /// What was found of a block is being written again, or will be told.
    Promotion,
}

impl Doing {
    /// True if somebody waits for commits.
    pub fn is_commits(self) -> bool {
        matches!(self, Doing::Commits | Doing::Gate)
    }
}

/// How far a life has got.
#[derive(Debug, Default)]
pub struct Life {
    pub epoch: Option<Epoch>,
    /// It has taken over what it found.
    pub attached: bool,
    /// Commits that nobody was told of.
    pub commits: usize,
    /// It is still giving its epoch up.
    pub releasing: bool,
    pub over: bool,
    /// Blocks that are being promoted, and whether a quorum has answered.
    promoting: BTreeMap<BlockKey, bool>,
    /// Looks at the epoch row that have no answer yet, and writes of blocks that were begun since.
    pub looks: usize,
    latecomers: usize,
    watching: bool,
    reading: usize,
    /// Paused in the middle of something, and not gone on since.
    frozen: bool,
}

impl Life {
    /// What somebody waits for.
    pub fn doing(&self) -> Option<Doing> {
        self.epoch?;
        match self.attached {
            _ if self.over => None,
            true if self.is_at_gate() => Some(Doing::Gate),
            true if self.commits > 0 => Some(Doing::Commits),
            _ if self.promoting.values().any(|found| *found) => Some(Doing::Promotion),
            attached => (!attached).then_some(Doing::Takeover),
        }
    }

    fn is_at_gate(&self) -> bool {
        self.commits > 1 && self.looks > 0 && self.latecomers > 0
    }

    /// A write begins; whether it does so after a look.
    pub fn begin_write(&mut self) -> bool {
        let late = self.looks > 0;
        self.latecomers += usize::from(late);
        late
    }

    pub fn end_write(&mut self, late: bool) {
        self.latecomers -= usize::from(late);
    }

    /// A quorum has told what it has of a block.
    pub fn found(&mut self, key: BlockKey) {
        if let Some(found) = self.promoting.get_mut(&key) {
            *found = true;
        }
    }

    pub fn freeze(&mut self) {
        self.frozen = true;
    }

    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// It goes on: what it is, if it was deposed and does not know.
    pub fn thaw(&mut self, newest: Epoch) -> Option<&'static str> {
        let frozen = std::mem::take(&mut self.frozen);
        let deposed = self.epoch.is_some_and(|own| own < newest);
        (frozen && deposed).then_some(match self.attached {
            true => "zombies",
            false => "takeovers that went on after a later one",
        })
    }
}

/// Who acts in one life.
#[derive(Clone)]
pub struct Actor {
    pub me: ClientId,
    pub client: Arc<Client>,
    pub stage: Stage,
    machine: Arc<Machine>,
}

/// A node starts.
pub fn begin(stage: &Stage, home: NodeId) -> ClientId {
    let actor = Actor::new(stage, home);
    actor.spawn(live(actor.clone()));
    actor.me
}

/// Few requests at a time, so that rows wait for each other, and a list that forgets.
fn volume(fencing: Fencing, layers: Vec<Layer>) -> (Opened, Config) {
    let volume = VolumeName::new("v").expect("a name");
    let mut config = Config::new(Vec::new(), "understudy", volume).expect("a keyspace");
    config.fencing = fencing;
    config.pending_bytes_max = usize::MAX;
    config.version_list_max = 8;
    config.requests_max = 2;
    let settings = VolumeSettings {
        block_size_bytes: BLOCK_BYTES,
        ..VolumeSettings::default()
    };
    let opened = Opened {
        settings: below::lay(settings, &layers),
        layers,
        durability: Durability::Quorum,
        replication: Replication(BTreeMap::new()),
    };
    (opened, config)
}

async fn live(actor: Actor) {
    let epoch = actor.stand_by().await;
    tokio::select! {
        biased;
        () = actor.client.fenced() => {}
        () = owner::own(actor.clone(), epoch) => {}
    }
    // What has passed the gate is still told to whoever waits for it.
    actor.sleep_some(0..1_500_000).await;
    for _ in 0..40 {
        if !actor.life(|life| life.releasing) {
            break;
        }
        actor.sleep_some(50_000..100_000).await;
    }
    actor.life(|life| life.over = true);
}

impl Actor {
    /// A client that does nothing yet.
    pub fn new(stage: &Stage, home: NodeId) -> Actor {
        let (me, flaw, fencing, layers) = {
            let mut world = stage.lock();
            (
                world.add_client(),
                world.flaw,
                world.fencing,
                world.layers_below(),
            )
        };
        let machine = Arc::new(Machine::new(stage.clone(), me, home));
        let environment: Arc<dyn Environment> = machine.clone();
        Actor {
            me,
            client: Client::simulated(environment, volume(fencing, layers), me as u64, flaw),
            stage: stage.clone(),
            machine,
        }
    }

    pub fn environment(&self) -> &dyn Environment {
        self.machine.as_ref()
    }

    pub fn life<T>(&self, look: impl FnOnce(&mut Life) -> T) -> T {
        look(&mut self.stage.lock().lives[self.me])
    }

    pub fn world<T>(&self, look: impl FnOnce(&mut World) -> T) -> T {
        look(&mut self.stage.lock())
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.machine.spawn(Box::pin(task));
    }

    /// Sleeps for so many microseconds.
    pub async fn sleep_some(&self, micros: std::ops::Range<u64>) {
        let micros = self.world(|world| world.rng.random_range(micros));
        self.machine.sleep(Duration::from_micros(micros)).await;
    }

    pub fn start(&self, action: Action) -> OpNumber {
        self.world(|world| {
            let epoch = world.lives[self.me].epoch;
            let op = world.recorder.start(self.me, epoch, action);
            let me = self.me as u64;
            world.trace_step(5, [me, op, 0], || {
                format!("client {me} of {epoch:?}: {op} is {action:?}")
            });
            op
        })
    }

    /// Whoever waits for an operation is told, a moment later or much later. None once this handle is fenced.
    pub async fn tell(&self, op: OpNumber, result: Result<Outcome>) -> Option<Outcome> {
        match result {
            Ok(outcome) => {
                let late = self.world(|world| world.rng.random_bool(0.02));
                let most = if late { 3_000_000 } else { 500 };
                self.sleep_some(0..most).await;
                self.end(op, outcome);
                Some(outcome)
            }
            Err(error) => {
                self.end(op, Outcome::Fenced);
                self.failed(&error);
                None
            }
        }
    }

    pub fn end(&self, op: OpNumber, outcome: Outcome) {
        self.world(|world| {
            world.recorder.end(op, outcome);
            let me = self.me as u64;
            world.trace_step(6, [me, op, 0], || {
                format!("client {me}: {op} gives {outcome:?}")
            });
        });
    }

    /// Nothing but a fence ends what a client does.
    pub fn failed(&self, error: &Error) {
        if !error.is_fenced() {
            let what = format!("client {} fails: {error}", self.me);
            self.world(|world| world.recorder.failed(what));
        }
    }

    // --- a standby -------------------------------------------------------------------------------

    async fn stand_by(&self) -> Epoch {
        loop {
            self.sleep_some(10_000..150_000).await;
            self.watch();
            self.look_around();
            self.look_below();
            if self.suspects()
                && let Some(epoch) = self.claim().await
            {
                return epoch;
            }
        }
    }

    /// Looks whether the owner still renews its lease.
    fn watch(&self) {
        if !self.life(|life| std::mem::replace(&mut life.watching, true)) {
            let actor = self.clone();
            self.spawn(async move {
                if let Err(error) = actor.client.accepted_epoch().await {
                    actor.failed(&error);
                }
                actor.life(|life| life.watching = false);
            });
        }
    }

    fn suspects(&self) -> bool {
        let Some(sighting) = self.client.sighting() else {
            return false;
        };
        let Some(row) = sighting.row().filter(|row| !row.released) else {
            return true;
        };
        self.world(|world| {
            let silent = match world.fencing {
                Fencing::Lease(_) => world.clock(self.me).saturating_sub(sighting.first()),
                // Its row does not change.
                Fencing::Verify if row.is_claim() => TIMEOUT * 2,
                Fencing::Verify => world.now.saturating_sub(world.heartbeat),
            };
            // Somebody suspects wrongly now and then.
            let rashly = !world.calm && world.rng.random_bool(0.004);
            silent > TIMEOUT && world.rng.random_bool(0.3) || rashly
        })
    }

    async fn claim(&self) -> Option<Epoch> {
        let op = self.start(Action::Own);
        let name = NodeName::new(format!("node{}", self.machine.home)).expect("a name");
        match self.client.own_epoch(&name).await {
            Ok(epoch) => {
                self.life(|life| life.epoch = Some(epoch));
                self.check_first_epoch(epoch);
                self.end(op, Outcome::Owned(epoch));
                self.world(|world| world.coverage.one("takeovers"));
                Some(epoch)
            }
            Err(error) => {
                self.end(op, Outcome::Fenced);
                self.world(|world| world.coverage.one("contests lost"));
                if error.kind() != ErrorKind::Conflict {
                    self.failed(&error);
                }
                None
            }
        }
    }

    /// Somebody without an epoch looks at something.
    fn look_around(&self) {
        let looks = self.world(|world| world.rng.random_bool(0.4));
        if !looks || self.life(|life| life.reading) >= READS_MAX {
            return;
        }
        self.life(|life| life.reading += 1);
        let actor = self.clone();
        let (what, key) = self.world(|world| (world.rng.random_range(0..4), world.any_single()));
        self.spawn(async move {
            match what {
                0 => {
                    if let Some(Outcome::Record(seal)) = actor.get(SEALS).await {
                        actor.read_seal(seal).await;
                    }
                }
                1 => {
                    actor.get(OTHER).await;
                }
                _ => {
                    actor.read(key).await;
                }
            }
            actor.life(|life| life.reading -= 1);
        });
    }

    // --- reads -----------------------------------------------------------------------------------

    async fn get(&self, record: RecordId) -> Option<Outcome> {
        let op = self.start(Action::Get(record));
        let found = self.client.get_record(&name_of(record)).await;
        let found = found.map(|value| Outcome::Record(of_bytes(value.as_deref())));
        self.tell(op, found).await
    }

    /// Reads a block that keeps one version.
    pub async fn read(&self, key: BlockKey) -> Option<Outcome> {
        let up_to = Generation::SINGLE;
        let op = self.start(Action::Read { key, up_to });
        let found = self.client.read(key, up_to).await.map(outcome);
        self.tell(op, found).await
    }

    /// Promotes one. None once this handle is fenced.
    pub async fn promote(&self, key: BlockKey) -> Option<Content> {
        let op = self.start(Action::Promote(key));
        self.life(|life| life.promoting.insert(key, false));
        let found = self.client.read_promote(key).await.map(outcome);
        let told = self.tell(op, found).await;
        self.life(|life| life.promoting.remove(&key));
        let Some(Outcome::Block(_, content)) = told else {
            return None;
        };
        self.world(|world| {
            world.coverage.one("versions promoted");
            if content == NOTHING {
                world.coverage.one("absences promoted");
            }
        });
        Some(content)
    }

    /// Reads a block of a sealed image, span by span.
    pub async fn read_seal(&self, seal: Content) {
        let (spans, key) = self.world(|world| {
            let seal = world.recorder.seals.get(&seal);
            let spans = seal.map(|seal| seal.lineage.0.clone());
            let key = places::key(DATA, world.rng.random_range(0..KEYS));
            (spans.unwrap_or_default(), key)
        });
        if spans.is_empty() {
            return;
        }
        let op = self.start(Action::ReadSeal { seal, key });
        for span in spans.into_iter().rev() {
            match self.client.read(key, span.to).await {
                Ok(Some(block)) if block.generation >= span.from => {
                    self.tell(op, Ok(outcome(Some(block)))).await;
                    return;
                }
                Ok(_) => {}
                Err(error) => {
                    self.tell(op, Err(error)).await;
                    return;
                }
            }
        }
        self.tell(op, Ok(outcome(None))).await;
    }
}

fn outcome(found: Option<Block>) -> Outcome {
    let generation = found.as_ref().map_or(Generation::SINGLE, |b| b.generation);
    let data: Option<Bytes> = found.map(|block| block.data);
    Outcome::Block(generation, of_bytes(data.as_deref()))
}
