//! A core and its replicas by hand: messages wait until the test lets them go.

use std::collections::HashMap;

use bytes::Bytes;

use super::super::*;
use super::peer::Peer;
use crate::ids::FileId;
use crate::membership::{Member, Membership};

pub(super) const BLOCK: u32 = 4096;

/// A core and its replicas. Messages wait until the test lets them go.
pub(super) struct Harness {
    pub core: Core,
    pub now: Time,
    pub peers: Vec<Peer>,
    pub up: Vec<bool>,
    /// Not delivered to the replica yet.
    pub outbox: Vec<Vec<(u64, Request)>>,
    pub results: HashMap<OpId, Result<Output>>,
    pub fenced: bool,
    pub disconnects: Vec<ReplicaId>,
    pub hung_up: Vec<ReplicaId>,
}

/// The membership of the first so many stores, where the settings have them.
pub(in crate::client::core) fn members(settings: &VolumeSettings) -> Membership {
    let members = (0..settings.replicas).map(|r| Member {
        store: StoreId::new(u64::from(r) + 1).unwrap(),
        address: format!("replica{r}"),
        zone: settings.zone_of(ReplicaId(r)),
    });
    Membership::first(settings, members.collect(), Membership::FIRST).unwrap()
}

pub(super) fn config(replicas: usize) -> CoreConfig {
    CoreConfig {
        addresses: (0..replicas).map(|z| format!("replica{z}")).collect(),
        membership: None,
        pending_bytes_max: 16 * BLOCK as usize,
        version_list_max: 1000,
        sightings_every: Time::from_secs(5),
        replica_timeout: Time::from_secs(2),
    }
}

impl Harness {
    pub fn new(replicas: u8, sync_replicas: u8) -> Harness {
        Harness::with(VolumeSettings {
            replicas,
            sync_replicas,
            zones: replicas,
            ..VolumeSettings::default()
        })
    }

    pub fn with(settings: VolumeSettings) -> Harness {
        let first = members(&settings);
        Harness::build(settings, Some(first))
    }

    /// Where nobody has recorded the members.
    pub fn unrecorded() -> Harness {
        Harness::build(VolumeSettings::default(), None)
    }

    fn build(settings: VolumeSettings, membership: Option<Membership>) -> Harness {
        let settings = VolumeSettings {
            block_size_bytes: BLOCK,
            ..settings
        };
        let count = settings.replicas;
        let replicas = usize::from(count);
        let mut config = config(replicas);
        config.membership = membership.clone();
        let mut harness = Harness {
            core: Core::new(config, settings),
            now: Time::from_secs(1),
            peers: (1..=u64::from(count)).map(|s| Peer::new(s, None)).collect(),
            up: vec![false; replicas],
            outbox: vec![Vec::new(); replicas],
            results: HashMap::new(),
            fenced: false,
            disconnects: Vec::new(),
            hung_up: Vec::new(),
        };
        for peer in &mut harness.peers {
            peer.membership = membership.clone().map(Box::new);
        }
        (0..count).for_each(|replica| harness.connect(replica));
        harness
    }

    /// With an owned epoch.
    pub fn owner() -> Harness {
        Harness::owner_with(VolumeSettings::default())
    }

    pub fn owner_with(settings: VolumeSettings) -> Harness {
        let mut harness = Harness::with(settings);
        harness.own();
        harness
    }

    pub fn own(&mut self) {
        let epoch = self.finish(Call::OwnEpoch {
            owner: "a/1".into(),
        });
        assert_eq!(epoch.unwrap(), Output::Epoch(Epoch(1)));
        self.run();
    }

    /// A replica that is new gets its place; it is connected when a test says so.
    fn dialed(&mut self, replica: ReplicaId) {
        let place = usize::from(replica.0);
        while self.peers.len() <= place {
            let store = self.peers.len() as u64 + 1;
            self.peers.push(Peer::new(store, None));
            self.up.push(false);
            self.outbox.push(Vec::new());
        }
    }

    pub fn collect(&mut self) {
        for effect in self.core.effects().collect::<Vec<_>>() {
            match effect {
                Effect::Send {
                    replica,
                    id,
                    request,
                } => {
                    let replica = usize::from(replica.0);
                    if self.up[replica] {
                        self.outbox[replica].push((id, request));
                    }
                }
                Effect::Done { op, result } => {
                    assert!(self.results.insert(op, result).is_none(), "done once");
                }
                Effect::Fenced { .. } => self.fenced = true,
                Effect::Dial { replica, .. } => self.dialed(replica),
                Effect::HangUp { replica } => {
                    self.up[usize::from(replica.0)] = false;
                    self.hung_up.push(replica);
                }
                Effect::Disconnect { replica, .. } => {
                    self.up[usize::from(replica.0)] = false;
                    self.outbox[usize::from(replica.0)].clear();
                    self.disconnects.push(replica);
                }
            }
        }
    }

    pub fn connect(&mut self, replica: u8) {
        self.up[usize::from(replica)] = true;
        let arrived = self.arrive(replica);
        arrived.expect("every peer is another store");
    }

    /// The same, for a replica that may be refused.
    pub fn arrive(&mut self, replica: u8) -> Result<()> {
        let arrival = self.peers[usize::from(replica)].welcome(0);
        let arrived = self.core.replica_up(self.now, ReplicaId(replica), &arrival);
        self.up[usize::from(replica)] = arrived.is_ok();
        self.collect();
        arrived
    }

    pub fn disconnect(&mut self, replica: u8) {
        self.up[usize::from(replica)] = false;
        self.outbox[usize::from(replica)].clear();
        self.core
            .replica_down(self.now, ReplicaId(replica), "cut".into());
        self.collect();
    }

    /// Delivers what waits for a replica, and its answers.
    pub fn deliver(&mut self, replica: u8) -> usize {
        let waiting = std::mem::take(&mut self.outbox[usize::from(replica)]);
        let count = waiting.len();
        for (id, request) in waiting {
            let answers = self.peers[usize::from(replica)].handle(0, id, request);
            for (_, id, response) in answers {
                self.core
                    .message(self.now, ReplicaId(replica), id, response);
            }
        }
        self.collect();
        count
    }

    pub fn commit(&mut self, replica: u8) {
        for (_, id, response) in self.peers[usize::from(replica)].commit() {
            self.core
                .message(self.now, ReplicaId(replica), id, response);
        }
        self.collect();
    }

    /// Sends what waits for a tick (except to lazy replicas), delivers and commits until nothing moves.
    pub fn run(&mut self) {
        self.core.send_lingering();
        self.collect();
        self.settle();
    }

    /// Delivers and commits until nothing moves.
    pub fn settle(&mut self) {
        loop {
            let moved: usize = (0..self.peers.len() as u8).map(|z| self.deliver(z)).sum();
            (0..self.peers.len() as u8).for_each(|z| self.commit(z));
            if moved == 0 && self.outbox.iter().all(Vec::is_empty) {
                return;
            }
        }
    }

    pub fn pass(&mut self, time: Time) {
        self.now += time;
        self.core.tick(self.now);
        self.collect();
    }

    /// So many seconds in which everybody who is there answers.
    pub fn wait_secs(&mut self, secs: u64) {
        for _ in 0..secs {
            self.pass(Time::from_secs(1));
            self.run();
        }
    }

    /// Writes that wait for delivery to a replica.
    pub fn sent(&self, replica: usize) -> usize {
        let writes = self.outbox[replica].iter();
        writes
            .filter(|(_, request)| matches!(request, Request::Write(_)))
            .count()
    }

    /// True if such a request waits for delivery to a replica.
    pub fn asked(&self, replica: usize, such: impl Fn(&Request) -> bool) -> bool {
        self.outbox[replica]
            .iter()
            .any(|(_, request)| such(request))
    }

    pub fn start(&mut self, call: Call) -> OpId {
        let op = self.core.start(self.now, call);
        self.collect();
        op
    }

    pub fn finish(&mut self, call: Call) -> Result<Output> {
        let op = self.start(call);
        self.run();
        self.result(op).expect("it can finish with what is up")
    }

    pub fn result(&mut self, op: OpId) -> Option<Result<Output>> {
        self.results.remove(&op)
    }

    pub fn write(&mut self, block: u64, generation: Generation, byte: u8) -> Version {
        let version = self.core.write(key(block), generation, data(byte));
        self.collect();
        version.unwrap()
    }

    /// The replica is away for so long, while a hundred blocks are written, that most of what it lacks is given up.
    pub fn write_without(&mut self, replica: u8) {
        self.disconnect(replica);
        for block in 0..100 {
            let room = self.finish(Call::Room(BLOCK as usize));
            assert!(room.is_ok());
            self.write(block, SINGLE, 1);
            self.run();
        }
    }

    pub fn read(&mut self, block: u64, up_to: Generation) -> Option<u8> {
        let read = Call::Read {
            key: key(block),
            up_to,
        };
        byte_of(self.finish(read))
    }
}

pub(super) fn key(block: u64) -> BlockKey {
    BlockKey::new(FileId(5), block)
}

pub(super) fn data(byte: u8) -> Bytes {
    Bytes::from(vec![byte; BLOCK as usize])
}

pub(super) fn byte_of(output: Result<Output>) -> Option<u8> {
    match output.unwrap() {
        Output::Block(block) => block.map(|b| b.data[0]),
        other => panic!("no block: {other:?}"),
    }
}

pub(super) const SINGLE: Generation = Generation::SINGLE;
