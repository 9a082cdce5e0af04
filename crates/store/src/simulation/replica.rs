//! One zone without threads and sockets: what it is sent waits until it is told to commit.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dax::ids::{StoreId, VolumeName};
use dax::storage::{EpochGrant, Retention};
use dax::wire::{Request, Response};

use super::Flaw;
use crate::committer::Committer;
use crate::connection::Conn;
use crate::engine::memory::MemoryEngine;
use crate::fill::Filler;
use crate::inventory::InventoryJob;
use crate::janitor::Janitor;
use crate::keys::VolumeId;
use crate::layers::LayerFlaw;
use crate::meta;
use crate::room::Room;
use crate::shared::{Shared, Work};
use crate::stream::Stream;
use crate::tests::config;
use crate::volume::{Volume, Volumes};
use crate::zone::resume_tasks;

/// Tells connections apart.
pub(super) type ConnId = u64;

/// What a request weighs here.
const WEIGHT: usize = 1;

pub(super) fn volume_name() -> VolumeName {
    VolumeName::new("v").unwrap()
}

fn layer_flaw(flaw: Flaw) -> Option<LayerFlaw> {
    match flaw {
        Flaw::ChildFromEpochOne => Some(LayerFlaw::FirstEpochIgnored),
        Flaw::SingleFromLayer => Some(LayerFlaw::SingleFallsThrough),
        Flaw::AbsentWhileRebuilding => Some(LayerFlaw::BelievedWhileRebuilding),
        Flaw::CopyReplaces => Some(LayerFlaw::CopyReplaces),
        Flaw::FilledEarly => Some(LayerFlaw::FilledEarly),
        Flaw::RemovedComesBack => Some(LayerFlaw::RemovedComesBack),
        Flaw::FilledWhileRebuilding => Some(LayerFlaw::FilledWhileRebuilding),
        Flaw::RebuiltIsFilled => Some(LayerFlaw::RebuiltIsFilled),
        _ => None,
    }
}

pub(super) struct Replica {
    /// Which store it is.
    pub store: u64,
    pub engine: MemoryEngine,
    /// How often its process was started.
    runs: u64,
    process: Option<Process>,
    /// Nothing is sent on it.
    socket: Stream,
    flaw: Option<Flaw>,
    /// Reads that may succeed later could fail in the last commit.
    pub failing: bool,
}

struct Process {
    shared: Arc<Shared>,
    committer: Committer,
    janitor: Janitor,
    filler: Filler,
    conns: BTreeMap<ConnId, Arc<Conn>>,
}

impl Replica {
    /// A zone with an empty disk, started.
    pub fn new(store: u64, socket: Stream, flaw: Option<Flaw>) -> Replica {
        let mut replica = Replica {
            store,
            engine: MemoryEngine::default(),
            runs: 0,
            process: None,
            socket,
            flaw,
            failing: false,
        };
        replica.empty(store);
        replica
    }

    /// It has another disk, an empty one, and is started.
    pub fn empty(&mut self, store: u64) {
        self.store = store;
        self.engine = MemoryEngine::default();
        if self.flaw == Some(Flaw::UnreadableIsDamage) {
            self.engine.call_unreadable_damaged();
        }
        self.start();
    }

    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Starts its process over what is on the disk.
    pub fn start(&mut self) {
        let dir = PathBuf::from("simulated");
        meta::check_format(&self.engine, &dir).unwrap();
        let broken = Volumes::broken(self.flaw.and_then(layer_flaw));
        let volumes = broken.loaded(&self.engine, &dir).unwrap();
        let id = StoreId::new(self.store).unwrap();
        let engine = Box::new(self.engine.clone());
        self.runs += 1;
        let runs = meta::begin_run(&*engine, &dir, self.runs).unwrap();
        let identity = (id, runs);
        let shared = Arc::new(Shared::new(config(), None, dir, identity, engine, volumes));
        let next_removal = resume_tasks(&shared).unwrap();
        // No threads: whoever reads serves himself.
        shared.reads.close();
        let mut committer = Committer::new(shared.clone(), next_removal);
        committer.room = Room::looking_every(Duration::ZERO);
        committer.undone_forgotten = self.flaw == Some(Flaw::UndoneForgotten);
        committer.base_believed = self.flaw == Some(Flaw::BaseBelieved);
        committer.base_holds_up = self.flaw == Some(Flaw::BaseHoldsUp);
        let mut janitor = Janitor::new(shared.clone());
        janitor.parked_for_ever = self.flaw == Some(Flaw::ParkedForEver);
        self.process = Some(Process {
            committer,
            janitor,
            filler: Filler::new(shared.clone()),
            conns: BTreeMap::new(),
            shared,
        });
    }

    /// Its process ends, and the machine with it. False if what is left on the disk cannot be opened, because commits
    /// are missing: see [`MemoryEngine::crash`].
    pub fn crash(&mut self, kept: usize, lost: usize) -> bool {
        self.process = None;
        let meta_alone = self.flaw == Some(Flaw::MetaNumberAlone);
        self.engine.crash(kept, lost, meta_alone).is_ok()
    }

    fn volume(&self) -> Option<Arc<Volume>> {
        self.open(&volume_name()).map(|(_, volume)| volume)
    }

    /// A volume that it knows.
    pub fn open(&self, name: &VolumeName) -> Option<(&Shared, Arc<Volume>)> {
        let shared = &*self.process.as_ref()?.shared;
        Some((shared, shared.volumes.get(name)?))
    }

    /// Its accepted epoch in some volume, if it knows that.
    pub fn grant_of(&self, name: &VolumeName) -> Option<EpochGrant> {
        self.open(name).map(|(_, volume)| volume.grant())
    }

    /// True if it knows the volume.
    pub fn has_volume(&self) -> bool {
        self.volume().is_some()
    }

    /// True if it counts in quorums; one that is down does not say.
    pub fn is_rebuilding(&self) -> bool {
        self.volume().is_some_and(|volume| volume.is_rebuilding())
    }

    /// What it has accepted.
    pub fn grant(&self) -> Option<EpochGrant> {
        self.volume().map(|volume| volume.grant())
    }

    /// Its retention, if it was told one.
    pub fn retention(&self) -> Option<Retention> {
        self.volume().and_then(|volume| volume.retention())
    }

    /// How many slots it counts.
    pub fn slots(&self) -> u64 {
        self.volume().map_or(0, |volume| volume.slots())
    }

    pub fn connect(&mut self, id: ConnId) {
        self.connect_to(&volume_name(), id);
    }

    /// Connects to one volume.
    pub fn connect_to(&mut self, name: &VolumeName, id: ConnId) {
        let volume = self.open(name).map(|(_, volume)| volume);
        let Some(process) = &mut self.process else {
            return;
        };
        let conn = Arc::new(Conn::collecting(id, &self.socket));
        if let Some(volume) = volume {
            conn.bind(volume, dax::forms::Forms::NEWEST);
        }
        process.conns.insert(id, conn.clone());
        process.shared.conns.lock().insert(id, conn);
    }

    /// Gives it a request of a connection.
    pub fn send(&mut self, id: ConnId, number: u64, request: Request) {
        let Some(process) = &self.process else {
            return;
        };
        let Some(conn) = process.conns.get(&id).cloned() else {
            return;
        };
        let shared = &process.shared;
        let put = |volume, work| assert!(shared.queue.put(volume, work, WEIGHT));
        let Some(volume) = conn.volume().cloned() else {
            return put(VolumeId::NONE, Work::Request(conn, number, request));
        };
        match request {
            Request::Write(write) => {
                assert!(write.is_intact());
                put(volume.id, Work::Write(conn, number, write));
            }
            Request::Flush => put(volume.id, Work::Flush),
            Request::Inventory { epoch, after } => {
                assert!(conn.take_place());
                let job = InventoryJob {
                    conn,
                    volume,
                    id: number,
                    epoch,
                    after,
                };
                job.serve(shared).unwrap();
            }
            other => put(volume.id, Work::Request(conn, number, other)),
        }
    }

    /// Commits what waits, and gives what it answers.
    pub fn commit(&mut self) -> Vec<(ConnId, u64, Response)> {
        self.failing = self.engine.is_failing();
        let Some(process) = &mut self.process else {
            return Vec::new();
        };
        loop {
            process.committer.round().unwrap();
            if process.shared.queue.is_empty() {
                break;
            }
        }
        assert_eq!(process.shared.failure(), None);
        let conns = process.conns.iter();
        let answers = conns.flat_map(|(id, conn)| {
            let answers = conn.collect().into_iter();
            answers.map(move |(number, answer)| (*id, number, answer))
        });
        answers.collect()
    }

    /// Lets it fill volumes for a turn.
    pub fn fill(&mut self) {
        if let Some(process) = &mut self.process {
            process.filler.work();
        }
    }

    /// Lets the janitor do what there is to do.
    pub fn tidy(&mut self) {
        if let Some(process) = &mut self.process {
            process.janitor.work_off();
        }
    }
}
