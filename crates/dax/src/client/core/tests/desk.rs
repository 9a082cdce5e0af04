//! A core and its zones on a desk: messages wait until the test lets them go.

use bytes::Bytes;

use super::super::*;
use super::peer::Peer;

pub(super) const BLOCK: u32 = 4096;

/// A core and its zones. Messages wait until the test lets them go.
pub(super) struct Desk {
    pub core: Core,
    pub now: Time,
    pub peers: Vec<Peer>,
    pub up: Vec<bool>,
    /// Not delivered to the zone yet.
    pub outbox: Vec<Vec<(u64, Request)>>,
    pub results: HashMap<OpId, Result<Output>>,
    pub fenced: bool,
    pub disconnects: Vec<ZoneId>,
}

pub(super) fn config(zones: usize) -> CoreConfig {
    CoreConfig {
        addresses: (0..zones).map(|z| format!("zone{z}")).collect(),
        pending_bytes_max: 16 * BLOCK as usize,
        version_list_max: 1000,
        zone_timeout: Time::from_secs(2),
    }
}

impl Desk {
    pub fn new(replicas: u8, sync_replicas: u8) -> Desk {
        let settings = VolumeSettings {
            block_size_bytes: BLOCK,
            replicas,
            sync_replicas,
        };
        let zones = usize::from(replicas);
        let mut desk = Desk {
            core: Core::new(config(zones), settings),
            now: Time::from_secs(1),
            peers: (0..zones).map(|_| Peer::default()).collect(),
            up: vec![false; zones],
            outbox: vec![Vec::new(); zones],
            results: HashMap::new(),
            fenced: false,
            disconnects: Vec::new(),
        };
        (0..replicas).for_each(|zone| desk.connect(zone));
        desk
    }

    /// With an owned epoch.
    pub fn owner() -> Desk {
        let mut desk = Desk::new(3, 2);
        let epoch = desk.finish(Call::OwnEpoch {
            owner: "a/1".into(),
        });
        assert_eq!(epoch.unwrap(), Output::Epoch(Epoch(1)));
        desk.run();
        desk
    }

    pub fn collect(&mut self) {
        for effect in self.core.effects().collect::<Vec<_>>() {
            match effect {
                Effect::Send { zone, id, request } => {
                    let zone = usize::from(zone.0);
                    if self.up[zone] {
                        self.outbox[zone].push((id, request));
                    }
                }
                Effect::Done { op, result } => {
                    assert!(self.results.insert(op, result).is_none(), "done once");
                }
                Effect::Fenced => self.fenced = true,
                Effect::Disconnect { zone, .. } => {
                    self.up[usize::from(zone.0)] = false;
                    self.outbox[usize::from(zone.0)].clear();
                    self.disconnects.push(zone);
                }
            }
        }
    }

    pub fn connect(&mut self, zone: u8) {
        self.up[usize::from(zone)] = true;
        let grant = self.peers[usize::from(zone)].fence.grant().clone();
        self.core.zone_up(self.now, ZoneId(zone), &grant);
        self.collect();
    }

    pub fn disconnect(&mut self, zone: u8) {
        self.up[usize::from(zone)] = false;
        self.outbox[usize::from(zone)].clear();
        self.core.zone_down(self.now, ZoneId(zone), "cut".into());
        self.collect();
    }

    /// Delivers what waits for a zone, and its answers.
    pub fn deliver(&mut self, zone: u8) -> usize {
        let waiting = std::mem::take(&mut self.outbox[usize::from(zone)]);
        let count = waiting.len();
        for (id, request) in waiting {
            let answers = self.peers[usize::from(zone)].handle(0, id, request);
            for (_, id, response) in answers {
                self.core.message(self.now, ZoneId(zone), id, response);
            }
        }
        self.collect();
        count
    }

    pub fn commit(&mut self, zone: u8) {
        for (_, id, response) in self.peers[usize::from(zone)].commit() {
            self.core.message(self.now, ZoneId(zone), id, response);
        }
        self.collect();
    }

    /// Delivers and commits until nothing moves.
    pub fn run(&mut self) {
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
