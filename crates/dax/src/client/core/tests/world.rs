//! A network of clients and replicas in one thread, driven by one seed: messages take random time (in
//! order on a connection, in no order between them), connections break, replicas crash and come back,
//! commits happen when they like.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::super::*;
use super::peer::{ConnId, Peer};

pub(super) const REPLICAS: u8 = 3;
pub(super) const BLOCK: u32 = 4096;

pub(super) type ClientId = usize;

#[derive(Debug)]
enum Happening {
    ToZone(ConnId, u64, Request),
    ToClient(ConnId, u64, Response),
    Commit(u8),
    ZoneBack(u8),
    Connect(ClientId, u8),
    /// The client notices that a connection is gone.
    Broken(ClientId, u8),
}

#[derive(Debug)]
struct Connection {
    client: ClientId,
    replica: u8,
    /// When the last message in each direction arrives.
    last: [Time; 2],
}

pub(super) struct Client {
    pub core: Core,
    pub alive: bool,
    links: Vec<Option<ConnId>>,
}

/// What a client's operation gave.
pub(super) type Outcome = (ClientId, OpId, Result<Output>);

pub(super) struct World {
    pub now: Time,
    pub rng: SmallRng,
    pub clients: Vec<Client>,
    pub replicas: Vec<Peer>,
    replica_up: Vec<bool>,
    connections: BTreeMap<ConnId, Connection>,
    next_conn: ConnId,
    agenda: BinaryHeap<Reverse<(Time, u64)>>,
    what: HashMap<u64, Happening>,
    next: u64,
    outcomes: Vec<Outcome>,
}

impl World {
    pub fn new(seed: u64) -> World {
        World {
            now: Time::ZERO,
            rng: SmallRng::seed_from_u64(seed),
            clients: Vec::new(),
            replicas: (0..REPLICAS).map(|_| Peer::default()).collect(),
            replica_up: vec![true; REPLICAS.into()],
            connections: BTreeMap::new(),
            next_conn: 1,
            agenda: BinaryHeap::new(),
            what: HashMap::new(),
            next: 0,
            outcomes: Vec::new(),
        }
    }

    pub fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_ratio(percent, 100)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.rng.random_range(0..n)
    }

    fn millis(&mut self, max: u64) -> Time {
        Time::from_micros(self.rng.random_range(1..=max * 1000))
    }

    fn plan(&mut self, at: Time, happening: Happening) {
        self.next += 1;
        self.what.insert(self.next, happening);
        self.agenda.push(Reverse((at, self.next)));
    }

    pub fn add_client(&mut self) -> ClientId {
        let config = CoreConfig {
            addresses: (0..REPLICAS).map(|z| format!("z{z}")).collect(),
            pending_bytes_max: 64 * BLOCK as usize,
            // Small, so that entries are evicted.
            version_list_max: 8,
            replica_timeout: Time::from_millis(500),
        };
        let settings = VolumeSettings {
            block_size_bytes: BLOCK,
            replicas: REPLICAS,
            sync_replicas: 2,
            ..VolumeSettings::default()
        };
        self.clients.push(Client {
            core: Core::new(config, settings),
            alive: true,
            links: vec![None; REPLICAS.into()],
        });
        let client = self.clients.len() - 1;
        for replica in 0..REPLICAS {
            let at = self.now + self.millis(5);
            self.plan(at, Happening::Connect(client, replica));
        }
        client
    }

    /// Runs something on a client's core and carries out the effects.
    pub fn with<T>(&mut self, client: ClientId, run: impl FnOnce(&mut Core, Time) -> T) -> T {
        let now = self.now;
        let core = &mut self.clients[client].core;
        let result = run(core, now);
        let effects: Vec<Effect> = core.effects().collect();
        for effect in effects {
            match effect {
                Effect::Send {
                    replica,
                    id,
                    request,
                } => self.send(client, replica, id, request),
                Effect::Disconnect { replica, .. } => self.cut(client, replica.0, false),
                Effect::Done { op, result } => self.outcomes.push((client, op, result)),
                Effect::Fenced => {}
            }
        }
        result
    }

    fn send(&mut self, client: ClientId, replica: ReplicaId, id: u64, request: Request) {
        if let Some(conn) = self.clients[client].links[usize::from(replica.0)] {
            let at = self.arrival(conn, 0);
            self.plan(at, Happening::ToZone(conn, id, request));
        }
    }

    /// Later than everything sent before on this connection.
    fn arrival(&mut self, conn: ConnId, direction: usize) -> Time {
        let mut at = self.now + self.millis(3);
        if self.chance(2) {
            at += self.millis(60);
        }
        let Some(connection) = self.connections.get_mut(&conn) else {
            return at;
        };
        at = at.max(connection.last[direction]);
        connection.last[direction] = at;
        at
    }

    /// Ends a connection; everything on its way is lost. The client notices a little later, if it is
    /// not the one that gave up.
    fn cut(&mut self, client: ClientId, replica: u8, notice: bool) {
        let Some(conn) = self.clients[client].links[usize::from(replica)].take() else {
            return;
        };
        self.connections.remove(&conn);
        let noticed = self.now + self.millis(20);
        if notice {
            self.plan(noticed, Happening::Broken(client, replica));
        } else {
            self.plan(noticed, Happening::Connect(client, replica));
        }
    }

    pub fn cut_any(&mut self) {
        let index = self.below(self.connections.len().max(1) as u64) as usize;
        let any = self.connections.values().nth(index);
        if let Some((client, replica)) = any.map(|c| (c.client, c.replica)) {
            self.cut(client, replica, true);
        }
    }

    pub fn crash_client(&mut self, client: ClientId) {
        self.clients[client].alive = false;
        (0..REPLICAS).for_each(|replica| self.cut(client, replica, true));
    }

    pub fn crash_replica(&mut self, replica: u8) {
        if !std::mem::replace(&mut self.replica_up[usize::from(replica)], false) {
            return;
        }
        self.replicas[usize::from(replica)].crash();
        (0..self.clients.len()).for_each(|client| self.cut(client, replica, true));
        let back = self.now + self.millis(150);
        self.plan(back, Happening::ZoneBack(replica));
    }

    /// The next thing that happens; what operations gave because of it.
    pub fn step(&mut self) -> Vec<Outcome> {
        if let Some(Reverse((at, id))) = self.agenda.pop() {
            self.now = self.now.max(at);
            if let Some(happening) = self.what.remove(&id) {
                self.happen(happening);
            }
        }
        std::mem::take(&mut self.outcomes)
    }

    /// What operations gave since the last look.
    pub fn outcomes(&mut self) -> Vec<Outcome> {
        std::mem::take(&mut self.outcomes)
    }

    pub fn tick(&mut self) {
        for client in 0..self.clients.len() {
            if self.clients[client].alive {
                self.with(client, |core, now| core.tick(now));
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::ToZone(conn, id, request) => self.arrive(conn, id, request),
            Happening::ToClient(conn, id, response) => {
                if let Some(c) = self.connections.get(&conn) {
                    let (client, replica) = (c.client, ReplicaId(c.replica));
                    self.with(client, |core, now| core.message(now, replica, id, response));
                }
            }
            Happening::Commit(replica) => {
                let sent = self.replicas[usize::from(replica)].commit();
                self.reply(sent);
            }
            Happening::ZoneBack(replica) => self.replica_up[usize::from(replica)] = true,
            Happening::Connect(client, replica) => self.connect(client, replica),
            Happening::Broken(client, replica) => {
                if self.clients[client].alive {
                    let gone = |core: &mut Core, now| {
                        core.replica_down(now, ReplicaId(replica), "cut".into())
                    };
                    self.with(client, gone);
                    let at = self.now + self.millis(30);
                    self.plan(at, Happening::Connect(client, replica));
                }
            }
        }
    }

    fn arrive(&mut self, conn: ConnId, id: u64, request: Request) {
        let Some(replica) = self.connections.get(&conn).map(|c| c.replica) else {
            return;
        };
        let is_write = matches!(request, Request::Write(_));
        let sent = self.replicas[usize::from(replica)].handle(conn, id, request);
        self.reply(sent);
        if is_write && self.chance(40) {
            let at = self.now + self.millis(10);
            self.plan(at, Happening::Commit(replica));
        }
    }

    fn reply(&mut self, sent: Vec<super::peer::Sent>) {
        for (conn, id, response) in sent {
            let at = self.arrival(conn, 1);
            self.plan(at, Happening::ToClient(conn, id, response));
        }
    }

    fn connect(&mut self, client: ClientId, replica: u8) {
        let index = usize::from(replica);
        if !self.clients[client].alive || self.clients[client].links[index].is_some() {
            return;
        }
        if !self.replica_up[index] {
            let at = self.now + self.millis(40);
            self.plan(at, Happening::Connect(client, replica));
            return;
        }
        let conn = self.next_conn;
        self.next_conn += 1;
        let connection = Connection {
            client,
            replica,
            last: [Time::ZERO; 2],
        };
        self.connections.insert(conn, connection);
        self.clients[client].links[index] = Some(conn);
        let grant = self.replicas[index].fence.grant().clone();
        self.with(client, |core, now| {
            core.replica_up(now, ReplicaId(replica), &grant)
        });
    }
}
