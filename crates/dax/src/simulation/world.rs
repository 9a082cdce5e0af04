//! Clients, replicas and the network between them, in one thread and in virtual time.
//!
//! A connection is a stream: what arrives of it arrives in order, and it may break after any message,
//! with what was sent last lost on either side. A side that gave a connection up may still have
//! messages of it on the way; they arrive beside those of the next one. Streams can stall, and
//! partitions hold messages of a client and a replica back in one direction or both.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulate::Coverage;

use super::contents::BLOCK_BYTES;
use super::exchanges::first_members;
use super::flaw::Flaw;
use super::history::{ClientId, Event};
use super::replica::Replica;
use super::trace::Trace;
use crate::client::core::tests::peer::{ConnId, Sent};
use crate::client::core::{Advice, Arrival, Core, CoreConfig, Effect, OpId, Output, Time};
use crate::error::Result;
use crate::forms::Forms;
use crate::ids::{ReplicaId, Version};
use crate::membership::Membership;
use crate::storage::VolumeSettings;
use crate::wire::{Request, Response};

/// How often a core hears of time.
const TICK: Time = Time::from_millis(20);

/// More than there ever are.
const MAX_STORES: usize = 32;

/// To the replica, and back.
const DIRECTIONS: [usize; 2] = [0, 1];

/// What happens at a time.
#[derive(Debug)]
enum Happening {
    /// The next message of a connection arrives.
    ToReplica(ConnId),
    ToClient(ConnId),
    Commit(u8),
    ReplicaBack(u8),
    Connect(ClientId, u8),
    Welcome(ConnId, Box<Arrival>),
    /// The client notices that its connection is gone.
    Broken(ConnId),
    Tick(ClientId),
    Act,
    Fault,
}

/// What the schedule itself must do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Act,
    Fault,
}

#[derive(Debug)]
struct Planned {
    at: Time,
    number: u64,
    what: Happening,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Planned) -> bool {
        self.number == other.number
    }
}
impl Eq for Planned {}
impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Planned) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Planned {
    fn cmp(&self, other: &Planned) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

#[derive(Debug)]
struct Connection {
    client: ClientId,
    /// The client's entry, and where it leads.
    entry: u8,
    replica: u8,
    /// The client believes in it.
    open: bool,
    requests: VecDeque<(u64, Request)>,
    responses: VecDeque<(u64, Response)>,
    /// What arrives later than this, in each direction, is lost.
    until: [Time; 2],
    /// Nothing arrives before this, in each direction.
    held: [Time; 2],
}

/// All that there have ever been, from number 1 on.
#[derive(Debug, Default)]
struct Connections(Vec<Connection>);

impl Connections {
    fn next(&self) -> ConnId {
        self.0.len() as ConnId + 1
    }

    fn add(&mut self, connection: Connection) {
        self.0.push(connection);
    }

    fn get(&self, conn: ConnId) -> Option<&Connection> {
        self.0.get(conn.checked_sub(1)? as usize)
    }

    fn get_mut(&mut self, conn: ConnId) -> Option<&mut Connection> {
        self.0.get_mut(conn.checked_sub(1)? as usize)
    }

    fn iter(&self) -> impl Iterator<Item = (ConnId, &Connection)> {
        (1..).zip(&self.0)
    }
}

pub(crate) struct Client {
    pub core: Core,
    pub alive: bool,
    /// Which forms of blocks its release reads.
    pub reads: Forms,
    /// It does nothing, and notices nothing, until then.
    pub paused_until: Time,
    /// Messages to and from each replica are held back until then.
    pub blocked: Vec<[Time; 2]>,
    /// The connection of each entry.
    links: BTreeMap<u8, ConnId>,
    /// Where each replica that the core wants connected is.
    entries: BTreeMap<u8, u8>,
    /// Two entries of its configuration lead to one replica.
    twins: bool,
}

/// What a client's operation gave.
pub(crate) type Ending = (ClientId, OpId, Result<Output>);

pub(crate) struct World {
    pub now: Time,
    pub rng: SmallRng,
    pub settings: VolumeSettings,
    pub flaw: Option<Flaw>,
    /// Which forms of blocks may be written.
    pub written: Forms,
    /// There are clients of two releases.
    pub upgraded: bool,
    pub clients: Vec<Client>,
    pub replicas: Vec<Replica>,
    pub trace: Trace,
    pub coverage: Coverage,
    connections: Connections,
    /// How many stores there have been.
    stores: u64,
    /// How many times one of them has started.
    runs: u64,
    /// Who counts as long as nobody has recorded it.
    pub unrecorded: Membership,
    /// Who counts, once somebody has.
    pub recorded: Option<Membership>,
    /// Who counted before that, as long as fewer than a full quorum keep that others do now.
    pub outgoing: Option<Membership>,
    /// What every replica kept when that was looked for last.
    pub kept: Vec<Option<Version>>,
    agenda: BinaryHeap<Reverse<Planned>>,
    next: u64,
    /// Empty, with room.
    effects: Vec<Effect>,
    endings: Vec<Ending>,
    /// Longest way of a message that nothing holds back.
    delay_us: u64,
    /// Longest wait for a commit that nobody hurries.
    commit_us: u64,
    /// Faults are over.
    calm: bool,
}

/// Where a replica is reached.
pub(crate) fn address_of(replica: u8) -> String {
    format!("replica{replica}")
}

/// The replica that is reached there.
pub(crate) fn index_of(address: &str) -> u8 {
    let number = address.trim_start_matches("replica").parse();
    number.expect("addresses are made here")
}

fn millis(n: u64) -> Time {
    Time::from_millis(n)
}

impl World {
    pub fn new(seed: u64, flaw: Option<Flaw>, trace: Trace) -> World {
        let mut rng = SmallRng::seed_from_u64(seed);
        let spread = match rng.random_range(0..10) {
            0 => VolumeSettings::spread(1, 1),
            1..3 => VolumeSettings::spread(3, 2),
            // Those that have not accepted an epoch can be as many as make a write durable.
            3..5 => VolumeSettings {
                sync_replicas: 2,
                ..VolumeSettings::spread(5, 1)
            },
            _ => VolumeSettings::spread(3, 1),
        };
        let settings = VolumeSettings {
            block_size_bytes: BLOCK_BYTES as u32,
            ..spread
        };
        let (delay_us, commit_us) = (rng.random_range(200..4000), rng.random_range(500..20_000));
        let replicas: Vec<Replica> = (1..=u64::from(settings.replicas))
            .map(|store| Replica::new(store, flaw))
            .collect();
        let recorded = rng.random_ratio(1, 2) && flaw != Some(Flaw::LostAcksCount);
        let unrecorded = first_members(&replicas, &settings);
        let upgraded = rng.random_ratio(1, 2);
        let mut world = World {
            now: Time::ZERO,
            flaw,
            written: match upgraded {
                true => Forms::WHOLE_BLOCKS,
                false => Forms::RELEASE_0_1,
            },
            upgraded,
            clients: Vec::new(),
            replicas,
            unrecorded,
            recorded: None,
            outgoing: None,
            kept: Vec::new(),
            stores: u64::from(settings.replicas),
            runs: 1000,
            trace,
            coverage: Coverage::default(),
            connections: Connections::default(),
            agenda: BinaryHeap::new(),
            next: 0,
            effects: Vec::new(),
            endings: Vec::new(),
            delay_us,
            commit_us,
            calm: false,
            rng,
            settings,
        };
        if recorded {
            let first = world.unrecorded.clone();
            let peers = world.replicas.iter_mut().map(|r| &mut r.peer);
            peers.for_each(|peer| peer.membership = Some(Box::new(first.clone())));
        }
        world.note_members();
        world
    }

    // --- chance ----------------------------------------------------------------------------------

    pub fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_ratio(percent, 100)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.rng.random_range(0..n)
    }

    /// Up to so many microseconds, at least one.
    pub fn micros(&mut self, max: u64) -> Time {
        Time::from_micros(self.rng.random_range(1..=max))
    }

    // --- time ------------------------------------------------------------------------------------

    fn plan(&mut self, at: Time, what: Happening) {
        self.next += 1;
        let number = self.next;
        self.agenda.push(Reverse(Planned { at, number, what }));
    }

    fn plan_in(&mut self, max_us: u64, what: Happening) {
        let at = self.now + self.micros(max_us);
        self.plan(at, what);
    }

    /// The schedule's own turns.
    pub fn plan_turn(&mut self, turn: Turn, max_us: u64) {
        let what = match turn {
            Turn::Act => Happening::Act,
            Turn::Fault => Happening::Fault,
        };
        self.plan_in(max_us, what);
    }

    /// Lets the next thing happen, if that is before `end`.
    pub fn step(&mut self, end: Time) -> Option<Option<Turn>> {
        self.agenda.peek().filter(|Reverse(next)| next.at <= end)?;
        let Reverse(planned) = self.agenda.pop()?;
        self.now = self.now.max(planned.at);
        Some(self.happen(planned.what))
    }

    /// What operations gave since the last look.
    pub fn endings(&mut self) -> Vec<Ending> {
        std::mem::take(&mut self.endings)
    }

    fn happen(&mut self, what: Happening) -> Option<Turn> {
        match what {
            Happening::ToReplica(conn) => self.deliver_request(conn),
            Happening::ToClient(conn) => self.deliver_response(conn),
            Happening::Commit(replica) => self.commit(replica),
            Happening::ReplicaBack(replica) => {
                self.note(3, [replica.into(), 0, 0], || {
                    format!("replica {replica} is back")
                });
                self.runs += 1;
                let runs = self.runs;
                let replica = &mut self.replicas[usize::from(replica)];
                replica.up = true;
                replica.peer.start(runs);
            }
            Happening::Connect(client, replica) => self.connect(client, replica),
            Happening::Welcome(conn, arrival) => self.welcome(conn, arrival),
            Happening::Broken(conn) => self.broken(conn),
            Happening::Tick(client) => self.tick(client),
            Happening::Act => return Some(Turn::Act),
            Happening::Fault => return Some(Turn::Fault),
        }
        None
    }

    pub fn note(&mut self, kind: u8, what: [u64; 3], text: impl FnOnce() -> String) {
        self.trace.step(self.now, kind, what, text);
    }

    // --- clients ---------------------------------------------------------------------------------

    pub fn add_client(&mut self) -> ClientId {
        let reads = self.release();
        let (addresses, twins) = self.entries();
        let membership = self.hearsay();
        let config = CoreConfig {
            addresses,
            membership,
            // Small, so that memory is short, entries are evicted and windows fill up.
            pending_bytes_max: BLOCK_BYTES * self.rng.random_range(6..40),
            version_list_max: 4,
            sightings_every: millis(100),
            replica_timeout: millis(200),
        };
        let mut core = Core::new(config, self.settings.clone());
        core.distort(self.flaw, BLOCK_BYTES * self.rng.random_range(2..20));
        self.clients.push(Client {
            core,
            alive: true,
            reads,
            paused_until: Time::ZERO,
            blocked: vec![[Time::ZERO; 2]; MAX_STORES],
            links: BTreeMap::new(),
            entries: BTreeMap::new(),
            twins,
        });
        let client = self.clients.len() - 1;
        self.with(client, |_, _| ());
        self.plan_in(20_000, Happening::Tick(client));
        client
    }

    /// Where the entries of a client's configuration lead: now and then, two of them to one replica.
    fn entries(&mut self) -> (Vec<String>, bool) {
        let count = self.settings.replicas;
        let mut entries: Vec<u8> = (0..count).collect();
        let twins = count > 1 && !self.calm && self.chance(8);
        if twins {
            let twin = self.below(u64::from(count) - 1) as usize;
            entries[twin + 1] = entries[twin];
            self.coverage.one("clients with two entries for one store");
        }
        (entries.into_iter().map(address_of).collect(), twins)
    }

    /// Who a new client believes the members are: what one of them that is there has heard.
    fn hearsay(&mut self) -> Option<Membership> {
        let known = self.members()?.clone();
        let members = known
            .members
            .iter()
            .map(|m| usize::from(index_of(&m.address)));
        let there: Vec<usize> = members
            .filter(|at| self.replicas[*at].up && !self.replicas[*at].empty)
            .collect();
        let which = self.below(there.len().max(1) as u64) as usize;
        let asked = there.get(which).map(|at| &self.replicas[*at].peer);
        let heard = asked.map_or(Some(&known), |peer| peer.membership.as_deref());
        match self.calm && !heard.is_none_or(|heard| self.leads_to_members(heard)) {
            true => Some(known),
            false => heard.cloned(),
        }
    }

    /// True if two entries of the client's configuration lead to one replica, and it does not know better; or nobody
    /// whom it knows can tell it who the members are, after exchanges that it has not heard of.
    pub fn is_misconfigured(&self, client: ClientId) -> bool {
        let client = &self.clients[client];
        match client.core.membership() {
            None => client.twins,
            Some(known) => !self.leads_to_members(known),
        }
    }

    /// A replica loses its disk.
    pub fn lose_disk(&mut self, replica: u8) {
        self.stores += 1;
        self.replicas[usize::from(replica)].lose_disk(self.stores);
    }

    /// A store that holds nothing of the volume; its place.
    pub fn add_store(&mut self) -> usize {
        self.stores += 1;
        self.replicas.push(self.blank_store(self.stores));
        self.replicas.len() - 1
    }

    pub fn is_paused(&self, client: ClientId) -> bool {
        self.clients[client].paused_until > self.now
    }

    /// Runs something on a client's core and carries out the effects.
    pub fn with<T>(&mut self, client: ClientId, run: impl FnOnce(&mut Core, Time) -> T) -> T {
        let now = self.now;
        let core = &mut self.clients[client].core;
        let result = run(core, now);
        let mut effects = std::mem::take(&mut self.effects);
        effects.extend(core.effects());
        for effect in effects.drain(..) {
            match effect {
                Effect::Send {
                    replica,
                    id,
                    request,
                } => self.send(client, replica, id, request),
                Effect::Disconnect { replica, .. } => self.give_up(client, replica.0),
                Effect::Dial { replica, address } => {
                    let entries = &mut self.clients[client].entries;
                    entries.insert(replica.0, index_of(&address));
                    self.plan_in(5000, Happening::Connect(client, replica.0));
                }
                Effect::HangUp { replica } => {
                    self.give_up(client, replica.0);
                    self.clients[client].entries.remove(&replica.0);
                }
                Effect::Done { op, result } => self.endings.push((client, op, result)),
                Effect::Fenced { .. } => self.coverage.one("writers that learned of their fence"),
            }
        }
        self.effects = effects;
        result
    }

    fn tick(&mut self, client: ClientId) {
        let paused_until = self.clients[client].paused_until;
        if !self.clients[client].alive {
            return;
        }
        if paused_until > self.now {
            return self.plan(paused_until, Happening::Tick(client));
        }
        self.with(client, |core, now| core.tick(now));
        if self.clients[client].core.has_spares() {
            self.coverage.one("ticks that left a lazy replica trailing");
        }
        self.plan(self.now + TICK, Happening::Tick(client));
    }

    // --- connections -----------------------------------------------------------------------------

    fn send(&mut self, client: ClientId, replica: ReplicaId, id: u64, request: Request) {
        let Some(conn) = self.clients[client].links.get(&replica.0).copied() else {
            return;
        };
        if let Some(connection) = self.connections.get_mut(conn) {
            connection.requests.push_back((id, request));
            self.plan_in(self.delay_us, Happening::ToReplica(conn));
        }
    }

    fn reply(&mut self, sent: Vec<Sent>) {
        for (conn, id, response) in sent {
            if let Some(connection) = self.connections.get_mut(conn) {
                connection.responses.push_back((id, response));
                self.plan_in(self.delay_us, Happening::ToClient(conn));
            }
        }
    }

    /// When the connection lets the next message of a direction pass; none if never.
    fn passes_at(&self, conn: ConnId, direction: usize) -> Option<Time> {
        let c = self.connections.get(conn)?;
        let blocked = self.clients[c.client].blocked[usize::from(c.replica)][direction];
        let paused = match direction {
            0 => Time::ZERO,
            _ => self.clients[c.client].paused_until,
        };
        let at = self.now.max(c.held[direction]).max(blocked).max(paused);
        (at <= c.until[direction]).then_some(at)
    }

    fn deliver_request(&mut self, conn: ConnId) {
        let Some(at) = self.passes_at(conn, 0) else {
            if let Some(c) = self.connections.get_mut(conn)
                && !c.requests.is_empty()
            {
                let lost = c.requests.len() as u64;
                c.requests.clear();
                self.coverage
                    .some("requests lost with their connection", lost);
            }
            return;
        };
        if at > self.now {
            return self.plan(at, Happening::ToReplica(conn));
        }
        let Some(c) = self.connections.get_mut(conn) else {
            return;
        };
        let Some((id, request)) = c.requests.pop_front() else {
            return;
        };
        let (client, replica, late) = (c.client, c.replica, !c.open);
        if late {
            self.coverage
                .one("requests that arrived after their connection was given up");
        }
        self.note(1, [conn, id, replica.into()], || {
            format!("client {client} -> replica {replica} #{id} {request:?}")
        });
        let (sent, commit) = self.hand_over(replica, conn, id, request);
        self.reply(sent);
        if let Some(urgent) = commit {
            let max_us = if urgent { 300 } else { self.commit_us };
            let mut at = self.now + self.micros(max_us);
            if !self.calm && self.chance(2) {
                at += self.micros(100_000);
            }
            self.plan_commit(replica, at);
        }
    }

    /// The disks of so many replicas, from one on, make nothing durable for some time.
    pub fn slow_disks(&mut self, first: u8, count: usize, max_us: u64) {
        let until = self.now + self.micros(max_us);
        let replicas = self.replicas.len();
        let slow = (0..count).map(|which| (usize::from(first) + which) % replicas);
        let slow: Vec<usize> = slow.collect();
        for replica in &slow {
            self.replicas[*replica].slow_until = until;
        }
        self.coverage.some("disks that were slow", count as u64);
        self.note(24, [first.into(), count as u64, 0], || {
            format!("the disks of the replicas {slow:?} are slow until {until:?}")
        });
    }

    /// A client reaches no replica but these for a while, and what it sends to these is late.
    pub fn cut_off(&mut self, client: ClientId, but: &[usize], max_us: u64, late_us: u64) {
        let until = self.now + self.micros(max_us);
        let late = self.now + self.micros(late_us);
        self.note(25, [client as u64, 0, 0], || {
            format!("client {client} reaches only the replicas {but:?} until {until:?}")
        });
        self.coverage.one("owners that reached only a minority");
        let blocked = self.clients[client].blocked.iter_mut().enumerate();
        for (replica, directions) in blocked {
            *directions = match but.contains(&replica) {
                true => [late, directions[1]],
                false => [until; 2],
            };
        }
    }

    /// A client does not reach these replicas for a while.
    pub fn cut_off_from(&mut self, client: ClientId, replicas: &[usize], max_us: u64) {
        let until = self.now + self.micros(max_us);
        for replica in replicas {
            self.clients[client].blocked[*replica] = [until; 2];
        }
    }

    fn plan_commit(&mut self, replica: u8, at: Time) {
        let replica_of = &mut self.replicas[usize::from(replica)];
        let at = at.max(replica_of.slow_until);
        let planned = &mut replica_of.commit_at;
        if planned.is_none_or(|planned| at < planned) {
            *planned = Some(at);
            self.plan(at, Happening::Commit(replica));
        }
    }

    fn commit(&mut self, replica: u8) {
        let r = &mut self.replicas[usize::from(replica)];
        if r.commit_at.is_none_or(|at| at > self.now) {
            return;
        }
        r.commit_at = None;
        let sent = r.commit();
        self.note_members();
        let answers = sent.len() as u64;
        self.note(2, [replica.into(), answers, 0], || {
            format!("replica {replica} commits, {answers} answers")
        });
        self.reply(sent);
    }

    fn deliver_response(&mut self, conn: ConnId) {
        let Some(at) = self.passes_at(conn, 1) else {
            if let Some(c) = self.connections.get_mut(conn) {
                c.responses.clear();
            }
            return;
        };
        if at > self.now {
            return self.plan(at, Happening::ToClient(conn));
        }
        let Some(c) = self.connections.get_mut(conn) else {
            return;
        };
        let (client, replica, open) = (c.client, ReplicaId(c.entry), c.open);
        let Some((id, response)) = c.responses.pop_front() else {
            return;
        };
        if !open || !self.clients[client].alive {
            return;
        }
        self.note(4, [conn, id, client as u64], || {
            format!("client {client} <- {replica} #{id} {response:?}")
        });
        self.with(client, |core, now| core.message(now, replica, id, response));
    }

    fn connect(&mut self, client: ClientId, entry: u8) {
        let c = &self.clients[client];
        let Some(replica) = c.entries.get(&entry).copied() else {
            return;
        };
        if !c.alive || c.links.contains_key(&entry) {
            return;
        }
        let index = usize::from(replica);
        let until = c
            .paused_until
            .max(c.blocked[index][0])
            .max(c.blocked[index][1]);
        if until > self.now {
            return self.plan(until, Happening::Connect(client, entry));
        }
        if self.replicas[index].up && self.replicas[index].empty {
            self.advise(client, entry, replica);
        }
        let r = &mut self.replicas[index];
        if !r.up || r.empty {
            return self.plan_in(40_000, Happening::Connect(client, entry));
        }
        let conn = self.connections.next();
        let arrival = r.peer.welcome(conn);
        let connection = Connection {
            client,
            entry,
            replica,
            open: true,
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            until: [Time::MAX; 2],
            held: [Time::ZERO; 2],
        };
        self.connections.add(connection);
        self.clients[client].links.insert(entry, conn);
        self.plan_in(self.delay_us, Happening::Welcome(conn, Box::new(arrival)));
    }

    /// A client meets a store that does not know the volume.
    fn advise(&mut self, client: ClientId, entry: u8, replica: u8) {
        let store = self.replicas[usize::from(replica)].store();
        let advice = self.with(client, |core, now| {
            core.advise(now, ReplicaId(entry), Some(store))
        });
        if let Advice::Create(membership) = advice {
            self.note(5, [client as u64, replica.into(), 0], || {
                format!("client {client} tells replica {replica} to begin anew")
            });
            self.coverage
                .one("replicas that began anew with an empty disk");
            self.replicas[usize::from(replica)].begin_anew(membership);
        }
    }

    fn welcome(&mut self, conn: ConnId, arrival: Box<Arrival>) {
        let Some(at) = self.passes_at(conn, 1) else {
            return;
        };
        if at > self.now {
            return self.plan(at, Happening::Welcome(conn, arrival));
        }
        let Some(c) = self.connections.get(conn) else {
            return;
        };
        let (client, entry) = (c.client, ReplicaId(c.entry));
        if !c.open || !self.clients[client].alive {
            return;
        }
        self.note(6, [conn, client as u64, entry.0.into()], || {
            format!("client {client} is connected to {entry}: {arrival:?}")
        });
        let arrived = self.with(client, |core, now| core.replica_up(now, entry, &arrival));
        if arrived.is_err() {
            self.coverage.one("second entries for one store refused");
            self.give_up(client, entry.0);
        }
    }

    /// The client closes a connection. What it has sent may still arrive, all of it or a part.
    fn give_up(&mut self, client: ClientId, entry: u8) {
        let Some(conn) = self.clients[client].links.remove(&entry) else {
            return;
        };
        let until = self.now + self.lingering();
        if let Some(c) = self.connections.get_mut(conn) {
            c.open = false;
            c.until[0] = c.until[0].min(until);
            c.responses.clear();
        }
        self.plan_in(30_000, Happening::Connect(client, entry));
    }

    /// How long what is on its way still arrives after a connection broke.
    fn lingering(&mut self) -> Time {
        match self.below(4) {
            0 => Time::ZERO,
            1 | 2 => self.micros(3000),
            _ => self.micros(400_000),
        }
    }

    /// A connection breaks; each side notices when it does, and what is on its way is lost from some
    /// message on.
    fn cut(&mut self, conn: ConnId) {
        let until = [self.now + self.lingering(), self.now + self.micros(3000)];
        let Some(c) = self.connections.get_mut(conn).filter(|c| c.open) else {
            return;
        };
        for direction in DIRECTIONS {
            c.until[direction] = c.until[direction].min(until[direction]);
        }
        self.plan_in(40_000, Happening::Broken(conn));
    }

    fn broken(&mut self, conn: ConnId) {
        let Some(c) = self.connections.get(conn).filter(|c| c.open) else {
            return;
        };
        let (client, replica) = (c.client, c.entry);
        if !self.clients[client].alive {
            return;
        }
        let paused_until = self.clients[client].paused_until;
        if paused_until > self.now {
            return self.plan(paused_until, Happening::Broken(conn));
        }
        self.note(7, [conn, client as u64, replica.into()], || {
            format!("client {client} notices that replica {replica} is gone")
        });
        if let Some(c) = self.connections.get_mut(conn) {
            c.open = false;
        }
        self.clients[client].links.remove(&replica);
        self.with(client, |core, now| {
            core.replica_down(now, ReplicaId(replica), "cut".into());
        });
        self.plan_in(30_000, Happening::Connect(client, replica));
    }

    // --- faults ----------------------------------------------------------------------------------

    fn any_open(&mut self) -> Option<ConnId> {
        let open = self.connections.iter().filter(|(_, c)| c.open);
        let open: Vec<ConnId> = open.map(|(conn, _)| conn).collect();
        let index = self.below(open.len().max(1) as u64) as usize;
        open.get(index).copied()
    }

    /// Some connection breaks.
    pub fn cut_any(&mut self) {
        if let Some(conn) = self.any_open() {
            self.note(10, [conn, 0, 0], || format!("connection {conn} breaks"));
            self.coverage.one("connections cut");
            self.cut(conn);
        }
    }

    /// Some connection carries nothing for a while, in one direction or both.
    pub fn stall_any(&mut self) {
        let (until, which) = (self.now + self.micros(500_000), self.below(3));
        let Some(conn) = self.any_open() else {
            return;
        };
        self.note(11, [conn, which, 0], || format!("connection {conn} stalls"));
        self.coverage.one("connections stalled");
        if let Some(c) = self.connections.get_mut(conn) {
            for direction in DIRECTIONS {
                if which != direction as u64 {
                    c.held[direction] = until;
                }
            }
        }
    }

    /// Some clients and some replicas do not hear each other, or one does not hear the other.
    pub fn partition(&mut self) {
        let (until, which) = (self.now + self.micros(700_000), self.below(4));
        let clients = self.rng.random::<u32>() | 1 << (self.below(self.clients.len() as u64) % 32);
        let replicas = self.rng.random::<u32>() | 1 << self.below(self.replicas.len() as u64);
        self.note(12, [clients.into(), replicas.into(), which], || {
            format!("partition {which} of clients {clients:b} and replicas {replicas:b}")
        });
        self.coverage.one(match which {
            0 | 1 => "partitions, one way",
            _ => "partitions, both ways",
        });
        for (number, client) in self.clients.iter_mut().enumerate() {
            for (replica, blocked) in client.blocked.iter_mut().enumerate() {
                let cut_off = clients >> (number % 32) & 1 == 1 && replicas >> replica & 1 == 1;
                for direction in DIRECTIONS.into_iter().filter(|_| cut_off) {
                    if which != direction as u64 {
                        blocked[direction] = until;
                    }
                }
            }
        }
    }

    /// A client stops for good. What it has sent may still arrive.
    pub fn crash_client(&mut self, client: ClientId) {
        self.note(13, [client as u64, 0, 0], || {
            format!("client {client} dies")
        });
        self.clients[client].alive = false;
        for conn in std::mem::take(&mut self.clients[client].links).into_values() {
            let until = self.now + self.lingering();
            if let Some(c) = self.connections.get_mut(conn) {
                c.open = false;
                c.until[0] = c.until[0].min(until);
            }
        }
    }

    /// A client does nothing for a while. What it has sent is under way.
    pub fn pause_client(&mut self, client: ClientId, max_us: u64) {
        self.note(14, [client as u64, 0, 0], || {
            format!("client {client} pauses")
        });
        self.coverage.one("clients paused");
        let until = self.now + self.micros(max_us);
        self.clients[client].paused_until = until;
        // A part of what it has sent takes as long as it sleeps.
        let max = max_us + 100_000;
        let conns: Vec<ConnId> = self.clients[client].links.values().copied().collect();
        for conn in conns {
            let held = self.now + self.micros(max);
            let slow = self.chance(50);
            if let Some(c) = self.connections.get_mut(conn).filter(|_| slow) {
                c.held[0] = c.held[0].max(held);
            }
        }
    }

    /// A replica stops, and comes back later.
    pub fn crash_replica(&mut self, replica: u8, torn: bool, back_us: u64) {
        if !self.replicas[usize::from(replica)].up {
            return;
        }
        self.note(15, [replica.into(), torn.into(), 0], || {
            format!("replica {replica} crashes, torn {torn}")
        });
        let r = &mut self.replicas[usize::from(replica)];
        r.crash(torn, &mut self.rng);
        self.note_members();
        let open = self
            .connections
            .iter()
            .filter(|(_, c)| c.replica == replica);
        let conns: Vec<ConnId> = open.map(|(conn, _)| conn).collect();
        for conn in conns {
            self.cut(conn);
            if let Some(c) = self.connections.get_mut(conn) {
                c.until[0] = Time::ZERO;
            }
        }
        self.plan_in(back_us, Happening::ReplicaBack(replica));
    }

    /// Faults are over: everything comes back, and nothing is held back any more.
    pub fn calm_down(&mut self) {
        self.calm = true;
        self.note(16, [0; 3], || "faults end".to_owned());
        let now = self.now;
        for client in &mut self.clients {
            client.paused_until = client.paused_until.min(now);
            client
                .blocked
                .iter_mut()
                .flatten()
                .for_each(|until| *until = (*until).min(now));
        }
        for connection in &mut self.connections.0 {
            connection.held = [Time::ZERO; 2];
        }
        for replica in &mut self.replicas {
            replica.peer.full = false;
            replica.slow_until = Time::ZERO;
            replica.commit_at = replica.commit_at.map(|at| at.min(now));
        }
        // What was held back was planned for later: let it go on now.
        for planned in std::mem::take(&mut self.agenda) {
            let Reverse(Planned { at, number, what }) = planned;
            let soon = now + millis(50);
            let at = if at > soon { soon } else { at };
            self.agenda.push(Reverse(Planned { at, number, what }));
        }
    }

    /// What all replicas have.
    pub fn stored(&self) -> Event {
        Event::Stored(self.replicas.iter().map(Replica::shelf).collect())
    }
}
