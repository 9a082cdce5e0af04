//! Virtual time: the network between clients and nodes, every client's clock, what is late.
//!
//! The model of Cassandra decides nothing about time; this does, from a seed. A message takes a moment,
//! sometimes long, sometimes so long that everybody has given it up. A client that is paused hears and
//! does nothing until it goes on; its clock goes on, at a speed of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use dax::ids::{BlockKey, Epoch};
use dax::simulation::history::ClientId;
use dax::simulation::trace::Trace;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulate::Coverage;

use super::client::{KEYS, SINGLES, Token, epoch_of};
use super::flaw::Flaw;
use super::model::{
    Cell, Cluster, Message, NodeId, Place, Receiver, Register, Reply, Request, RequestId, Sent,
    Setup,
};
use crate::lease::{Answer, Change, Row, Time};

/// After which a client gives a request up.
const CLIENT_PATIENCE: Duration = Duration::from_millis(1000);
/// After which a coordinator does.
const NODE_PATIENCE: Duration = Duration::from_millis(2000);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What happens next.
#[derive(Debug)]
enum Event {
    Arrive(Receiver, Message),
    Expire(RequestId),
    GiveUp(RequestId),
    Change(RequestId, Change),
    Look(RequestId),
    Tell(ClientId, Told),
    Fault,
}

/// What a client hears.
#[derive(Debug, Clone)]
pub enum Told {
    Reply(Token, Reply),
    Changed(Token, Answer),
    /// What a serial read found; none after a timeout.
    Looked(Token, Option<Option<Row>>),
    /// Time to act, by the workload or by a rule.
    Wake(Wake),
}

/// Why a client wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    Work,
    Lease,
    /// Something that passed the gate is told to whoever waits for it.
    Acknowledge(u64),
}

/// Something for the schedule.
#[derive(Debug)]
pub enum Turn {
    Client(ClientId, Told),
    Fault,
}

#[derive(Debug)]
struct Client {
    /// Of its clock, against true time.
    rate: f64,
    offset: Duration,
    paused_until: Duration,
    alive: bool,
}

/// See the module.
pub struct World {
    pub now: Duration,
    pub rng: SmallRng,
    pub cluster: Cluster,
    pub register: Register,
    pub coverage: Coverage,
    pub trace: Trace,
    pub flaw: Option<Flaw>,
    /// Nothing is late or lost any more.
    pub calm: bool,
    queue: BTreeMap<(Duration, u64), Event>,
    next: u64,
    clients: Vec<Client>,
    nodes_paused_until: Vec<Duration>,
    waiting: BTreeMap<RequestId, (ClientId, Token)>,
}

impl World {
    pub fn new(seed: u64, flaw: Option<Flaw>, print: bool) -> World {
        let mut rng = SmallRng::seed_from_u64(seed);
        let setup = Setup {
            hints: rng.random_bool(0.7),
            read_repair: flaw != Some(Flaw::NoReadRepair),
            batch: flaw != Some(Flaw::PeriodicCommitLog),
            ..Setup::SOUND
        };
        let register = Register::new(flaw == Some(Flaw::RenewalsNotCompared));
        World {
            now: Duration::ZERO,
            rng,
            nodes_paused_until: vec![Duration::ZERO; setup.nodes],
            cluster: Cluster::new(setup),
            register,
            coverage: Coverage::default(),
            trace: Trace::new(print),
            flaw,
            calm: false,
            queue: BTreeMap::new(),
            next: 1,
            clients: Vec::new(),
            waiting: BTreeMap::new(),
        }
    }

    pub fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    pub fn add_client(&mut self) -> ClientId {
        self.clients.push(Client {
            rate: self.rng.random_range(0.991..1.009),
            offset: ms(self.rng.random_range(0..100_000)),
            paused_until: Duration::ZERO,
            alive: true,
        });
        self.clients.len() - 1
    }

    /// One of the blocks that keep one version which are in use now. Files come and go, so there are always
    /// some that nobody has written yet.
    pub fn some_single(&mut self) -> BlockKey {
        let first = self.oldest_single();
        BlockKey::new(SINGLES, first + self.rng.random_range(0..KEYS))
    }

    /// Now and then one that was in use.
    pub fn any_single(&mut self) -> BlockKey {
        match self.rng.random_bool(0.3) {
            true => {
                let end = self.oldest_single() + KEYS;
                BlockKey::new(SINGLES, self.rng.random_range(0..end))
            }
            false => self.some_single(),
        }
    }

    fn oldest_single(&self) -> u64 {
        self.now.as_secs() / 3
    }

    /// A client's own clock.
    pub fn clock(&self, client: ClientId) -> Time {
        let client = &self.clients[client];
        client.offset + self.now.mul_f64(client.rate)
    }

    pub fn pause_client(&mut self, client: ClientId, length: Duration) {
        let until = &mut self.clients[client].paused_until;
        *until = (*until).max(self.now + length);
    }

    pub fn kill_client(&mut self, client: ClientId) {
        self.clients[client].alive = false;
    }

    pub fn pause_node(&mut self, node: NodeId, length: Duration) {
        self.nodes_paused_until[node] = self.now + length;
    }

    pub fn resume_all(&mut self) {
        self.clients
            .iter_mut()
            .for_each(|c| c.paused_until = Duration::ZERO);
        self.nodes_paused_until.fill(Duration::ZERO);
    }

    fn at(&mut self, when: Duration, event: Event) {
        self.queue.insert((when, self.next), event);
        self.next += 1;
    }

    /// How long something takes.
    fn delay(&mut self) -> Duration {
        let micros = match self.rng.random_range(0..100) {
            _ if self.calm => self.rng.random_range(100..2_000),
            0..85 => self.rng.random_range(100..3_000),
            85..96 => self.rng.random_range(3_000..400_000),
            96..99 => self.rng.random_range(400_000..4_000_000),
            _ => self.rng.random_range(4_000_000..15_000_000),
        };
        Duration::from_micros(micros)
    }

    /// Sends a request to a coordinator.
    pub fn request(&mut self, client: ClientId, token: Token, node: NodeId, request: Request) {
        let id = self.wait_for(client, token);
        let delay = self.delay();
        let message = Message::Request(id, request);
        self.at(
            self.now + delay,
            Event::Arrive(Receiver::Node(node), message),
        );
    }

    /// Sends a lightweight transaction.
    pub fn change(&mut self, client: ClientId, token: Token, change: Change) {
        let id = self.wait_for(client, token);
        // Prepare, propose, commit.
        let delay = self.delay() + self.delay() + self.delay();
        self.at(self.now + delay, Event::Change(id, change));
    }

    /// Sends a serial read of the epoch row.
    pub fn look(&mut self, client: ClientId, token: Token) {
        let id = self.wait_for(client, token);
        let delay = self.delay();
        self.at(self.now + delay, Event::Look(id));
    }

    fn wait_for(&mut self, client: ClientId, token: Token) -> RequestId {
        let id = self.next;
        self.next += 1;
        self.waiting.insert(id, (client, token));
        self.at(self.now + CLIENT_PATIENCE, Event::GiveUp(id));
        id
    }

    /// Wakes a client after so long.
    pub fn wake(&mut self, client: ClientId, after: Duration, why: Wake) {
        self.at(self.now + after, Event::Tell(client, Told::Wake(why)));
    }

    /// Wakes a client when its clock shows this.
    pub fn wake_at(&mut self, client: ClientId, time: Time, why: Wake) {
        let left = time.saturating_sub(self.clock(client));
        // A moment more, so that rounding does not make it early.
        let left = left.div_f64(self.clients[client].rate) + Duration::from_micros(1);
        self.wake(client, left, why);
    }

    pub fn next_fault(&mut self, after: Duration) {
        self.at(self.now + after, Event::Fault);
    }

    /// The network stalls: this share of what is on its way to nodes arrives up to so much later.
    pub fn stall(&mut self, most: Duration, share: f64) {
        let late = self.queue.iter().filter_map(|(at, event)| {
            matches!(event, Event::Arrive(Receiver::Node(_), _)).then_some(*at)
        });
        let late: Vec<_> = late.collect();
        for at in late {
            if self.rng.random_bool(share)
                && let Some(event) = self.queue.remove(&at)
            {
                let later = most.mul_f64(self.rng.random_range(0.0..1.0));
                self.at(at.0 + later, event);
            }
        }
    }

    /// What owners before this one have written, and what is on its way to nodes since, arrives within so long.
    pub fn hurry(&mut self, before: Epoch, most: Duration) {
        let is_older = |(_, cell): &(Place, Cell)| epoch_of(cell.timestamp) < before;
        let older = self.queue.iter().filter_map(|(at, event)| match event {
            Event::Arrive(Receiver::Node(_), Message::Request(_, Request::Write(written, _)))
            | Event::Arrive(Receiver::Node(_), Message::Mutate(_, _, written)) => {
                written.0.iter().any(is_older).then_some(*at)
            }
            _ => None,
        });
        let older: Vec<_> = older.collect();
        for at in older {
            if let Some(event) = self.queue.remove(&at) {
                self.coverage
                    .one("writes that arrived while a later owner promoted");
                let soon = most.mul_f64(self.rng.random_range(0.0..1.0));
                self.at(at.0.min(self.now + soon), event);
            }
        }
    }

    /// Goes on until something is for the schedule. None when nothing is left before `end`.
    pub fn turn(&mut self, end: Duration) -> Option<Turn> {
        loop {
            let (&(when, _), _) = self
                .queue
                .first_key_value()
                .filter(|((t, _), _)| *t <= end)?;
            let (_, event) = self.queue.pop_first()?;
            self.now = when;
            if let Some(turn) = self.handle(event) {
                return Some(turn);
            }
        }
    }

    fn handle(&mut self, event: Event) -> Option<Turn> {
        match event {
            Event::Fault => return Some(Turn::Fault),
            Event::Tell(client, told) => return self.tell(client, told),
            Event::Arrive(Receiver::Node(node), message) => self.arrive(node, message),
            Event::Arrive(Receiver::Client, Message::Reply(id, reply)) => {
                let (client, token) = self.waiting.remove(&id)?;
                return self.tell(client, Told::Reply(token, reply));
            }
            Event::Arrive(Receiver::Client, _) => {}
            Event::Expire(id) => {
                let sent = self.cluster.expire(id);
                self.send(sent);
            }
            Event::GiveUp(id) => {
                let (client, token) = self.waiting.remove(&id)?;
                self.coverage.one("requests that clients gave up");
                let told = match token {
                    Token::Watch | Token::ClaimLook => Told::Looked(token, None),
                    Token::Renewal | Token::Claim | Token::Release => {
                        Told::Changed(token, Answer::Unknown)
                    }
                    _ => Told::Reply(token, Reply::TimedOut),
                };
                return self.tell(client, told);
            }
            Event::Change(id, change) => {
                if self.has_majority() {
                    let answer = self.register.apply(&change);
                    self.trace_step(2, [id, 0, 0], || format!("{change:?}: {answer:?}"));
                    self.answer(id, |token| Told::Changed(token, answer));
                }
            }
            Event::Look(id) => {
                if self.has_majority() {
                    let row = self.register.row().cloned();
                    self.answer(id, |token| Told::Looked(token, Some(row)));
                }
            }
        }
        None
    }

    fn has_majority(&self) -> bool {
        let setup = self.cluster.setup();
        let up = (0..setup.nodes).filter(|n| self.cluster.is_up(*n)).count();
        up >= setup.quorum()
    }

    /// Sends a lightweight transaction's answer, if it is still waited for then.
    fn answer(&mut self, id: RequestId, told: impl FnOnce(Token) -> Told) {
        let Some((client, token)) = self.waiting.get(&id).cloned() else {
            self.coverage
                .one("transactions applied after they were given up");
            return;
        };
        let delay = self.delay();
        // Given up before the answer is there: the outcome stays unknown.
        if delay < CLIENT_PATIENCE / 2 {
            self.waiting.remove(&id);
            self.at(self.now + delay, Event::Tell(client, told(token)));
        } else {
            self.coverage.one("transactions whose answers were lost");
        }
    }

    fn tell(&mut self, client: ClientId, told: Told) -> Option<Turn> {
        let state = &self.clients[client];
        if !state.alive {
            return None;
        }
        if state.paused_until > self.now {
            self.at(state.paused_until, Event::Tell(client, told));
            return None;
        }
        self.trace_step(1, [client as u64, 0, 0], || {
            format!("client {client}: {told:?}")
        });
        Some(Turn::Client(client, told))
    }

    fn arrive(&mut self, node: NodeId, message: Message) {
        if self.nodes_paused_until[node] > self.now {
            let when = self.nodes_paused_until[node];
            self.at(when, Event::Arrive(Receiver::Node(node), message));
            return;
        }
        self.trace_step(3, [node as u64, 0, 0], || {
            format!("node {node}: {message:?}")
        });
        if let Message::Request(id, _) = &message {
            if !self.waiting.contains_key(id) {
                self.coverage
                    .one("requests that arrived after they were given up");
            }
            self.at(self.now + NODE_PATIENCE, Event::Expire(*id));
        }
        let sent = self.cluster.deliver(node, message);
        self.send(sent);
    }

    fn send(&mut self, sent: Vec<Sent>) {
        for (receiver, message) in sent {
            let delay = self.delay();
            self.at(self.now + delay, Event::Arrive(receiver, message));
        }
    }

    /// All replicas forget the tombstones that they have.
    pub fn purge_all(&mut self) {
        (0..self.cluster.setup().nodes).for_each(|node| self.cluster.purge(node));
    }

    /// A node sends the next hint that it keeps.
    pub fn send_hint(&mut self, node: NodeId) {
        if let Some(sent) = self.cluster.next_hint(node) {
            self.coverage.one("hints delivered");
            self.send(vec![sent]);
        }
    }

    fn trace_step(&mut self, kind: u8, what: [u64; 3], text: impl FnOnce() -> String) {
        self.trace.step(self.now, kind, what, text);
    }
}
