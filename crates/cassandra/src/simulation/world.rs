//! Virtual time: the network between clients and nodes, every client's clock, what is late.
//!
//! The model of Cassandra decides nothing about time; this does, from a seed. A message takes a moment,
//! sometimes long, sometimes so long that everybody has given it up. A client that is paused does
//! nothing until it goes on; its clock goes on, at a speed of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use dax::ids::{BlockKey, Epoch};
use dax::simulation::history::ClientId;
use dax::simulation::trace::Trace;
use futures_util::future::BoxFuture;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulate::Coverage;
use tokio::sync::oneshot;

use super::below::Below;
use super::flaw::Flaw;
use super::life::Life;
use super::model::{
    Cell, Cluster, Message, NodeId, Place, Receiver, Register, Reply, Request, RequestId, Sent,
    Setup,
};
use super::places::{self, KEYS, SINGLES, epoch_of};
use super::recorder::Recorder;
use crate::config::{Fencing, LEASE};
use crate::lease::{Answer, Change, Row, Time};

/// After which a client gives a request up.
const CLIENT_PATIENCE: Duration = Duration::from_millis(1000);
/// After which a coordinator does.
const NODE_PATIENCE: Duration = Duration::from_millis(2000);

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What happens next.
#[derive(Debug)]
enum Event {
    Arrive(Receiver, Message),
    Expire(RequestId),
    GiveUp(RequestId),
    Change(RequestId, Change),
    /// The answer to a change is on its way: a majority has it.
    Answer(RequestId, Change, bool),
    Look(RequestId, bool),
    Tell(RequestId, Heard),
    /// A client's sleep is over.
    Alarm(oneshot::Sender<()>),
    /// A paused client goes on.
    Resume(ClientId),
    Fault,
}

/// Answer to a client's request; none if the client has given it up.
#[derive(Debug, Clone)]
pub enum Heard {
    Reply(Reply),
    /// True if a change was applied.
    Changed(bool),
    Looked(Option<Row>),
}

/// Something for the schedule.
#[derive(Debug)]
pub enum Turn {
    /// Whoever was woken goes on.
    Go,
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

#[derive(Debug)]
struct Waiting {
    client: ClientId,
    answer: oneshot::Sender<Heard>,
    /// It renews a lease.
    renews: bool,
}

/// Tasks that are to be run beside the others, and whose they are.
pub type Spawned = Vec<(ClientId, BoxFuture<'static, ()>)>;

pub struct World {
    pub now: Duration,
    pub rng: SmallRng,
    pub cluster: Cluster,
    pub register: Register,
    pub recorder: Recorder,
    pub coverage: Coverage,
    pub trace: Trace,
    pub flaw: Option<Flaw>,
    /// How owners know that nobody else has begun.
    pub fencing: Fencing,
    /// Nothing is late or lost any more.
    pub calm: bool,
    pub below: Option<Below>,
    /// What each client is in the middle of.
    pub lives: Vec<Life>,
    pub spawned: Spawned,
    /// When an owner was last seen at work.
    pub heartbeat: Duration,
    queue: BTreeMap<(Duration, u64), Event>,
    next: u64,
    clients: Vec<Client>,
    nodes_paused_until: Vec<Duration>,
    waiting: BTreeMap<RequestId, Waiting>,
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
        let fencing = match rng.random_bool(0.33) {
            true => Fencing::Verify,
            false => Fencing::Lease(LEASE),
        };
        World {
            now: Duration::ZERO,
            rng,
            nodes_paused_until: vec![Duration::ZERO; setup.nodes],
            recorder: Recorder::new(setup.quorum()),
            cluster: Cluster::new(setup),
            register: Register::new(flaw == Some(Flaw::RenewalsNotCompared)),
            coverage: Coverage::default(),
            trace: Trace::new(print),
            flaw,
            fencing,
            calm: false,
            below: None,
            lives: Vec::new(),
            spawned: Vec::new(),
            heartbeat: Duration::ZERO,
            queue: BTreeMap::new(),
            next: 1,
            clients: Vec::new(),
            waiting: BTreeMap::new(),
        }
    }

    pub fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    // --- clients ---------------------------------------------------------------------------------

    pub fn add_client(&mut self) -> ClientId {
        self.clients.push(Client {
            rate: self.rng.random_range(0.991..1.009),
            offset: ms(self.rng.random_range(0..100_000)),
            paused_until: Duration::ZERO,
            alive: true,
        });
        self.lives.push(Life::default());
        self.clients.len() - 1
    }

    /// One of the blocks that keep one version which are in use now. Files come and go, so there are always
    /// some that nobody has written yet.
    pub fn some_single(&mut self) -> BlockKey {
        let first = self.oldest_single();
        places::key(SINGLES, first + self.rng.random_range(0..KEYS))
    }

    /// All of them.
    pub fn singles(&self) -> Vec<BlockKey> {
        let first = self.oldest_single();
        let keys = first..first + KEYS;
        keys.map(|number| places::key(SINGLES, number)).collect()
    }

    /// Now and then one that was in use.
    pub fn any_single(&mut self) -> BlockKey {
        match self.rng.random_bool(0.3) {
            true => {
                let end = self.oldest_single() + KEYS;
                places::key(SINGLES, self.rng.random_range(0..end))
            }
            false => self.some_single(),
        }
    }

    fn oldest_single(&self) -> u64 {
        self.now.as_secs() / 5
    }

    /// A client's own clock.
    pub fn clock(&self, client: ClientId) -> Time {
        let client = &self.clients[client];
        client.offset + self.now.mul_f64(client.rate)
    }

    pub fn pause_client(&mut self, client: ClientId, length: Duration) {
        let until = self.clients[client].paused_until.max(self.now + length);
        self.clients[client].paused_until = until;
        self.at(until, Event::Resume(client));
    }

    pub fn is_paused(&self, client: ClientId) -> bool {
        self.clients[client].paused_until > self.now
    }

    pub fn is_alive(&self, client: ClientId) -> bool {
        self.clients[client].alive
    }

    pub fn kill_client(&mut self, client: ClientId) {
        self.clients[client].alive = false;
    }

    /// Ends after so long by the client's clock.
    pub fn sleep(&mut self, client: ClientId, length: Duration) -> oneshot::Receiver<()> {
        let (alarm, over) = oneshot::channel();
        // A moment more, so that rounding does not make it early.
        let length = length.div_f64(self.clients[client].rate) + Duration::from_micros(1);
        self.at(self.now + length, Event::Alarm(alarm));
        over
    }

    // --- faults ----------------------------------------------------------------------------------

    pub fn pause_node(&mut self, node: NodeId, length: Duration) {
        self.nodes_paused_until[node] = self.now + length;
    }

    pub fn resume_all(&mut self) {
        self.clients
            .iter_mut()
            .for_each(|c| c.paused_until = Duration::ZERO);
        self.nodes_paused_until.fill(Duration::ZERO);
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
                written.cells.iter().any(is_older).then_some(*at)
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

    // --- requests --------------------------------------------------------------------------------

    /// Sends a request to a coordinator.
    pub fn request(
        &mut self,
        client: ClientId,
        node: NodeId,
        request: Request,
    ) -> oneshot::Receiver<Heard> {
        let (id, answer) = self.wait_for(client, false);
        let when = self.now + self.delay();
        let message = Message::Request(id, request);
        self.at(when, Event::Arrive(Receiver::Node(node), message));
        answer
    }

    /// Sends a lightweight transaction.
    pub fn change(&mut self, client: ClientId, change: &Change) -> oneshot::Receiver<Heard> {
        let before = change.expected.as_ref();
        let own = before.is_some_and(|row| row.owner == change.new.owner);
        let (id, answer) = self.wait_for(client, own && !change.new.released);
        // Prepare, propose, commit.
        let mut delay = self.delay() + self.delay() + self.delay();
        self.at(self.now + delay, Event::Change(id, change.clone()));
        // Now and then another coordinator is asked as well, as speculation does.
        if !self.calm && self.rng.random_bool(0.03) {
            delay += self.delay();
            self.at(self.now + delay, Event::Change(id, change.clone()));
        }
        answer
    }

    /// Sends a read of the epoch row.
    pub fn look(&mut self, client: ClientId, settled: bool) -> oneshot::Receiver<Heard> {
        let (id, answer) = self.wait_for(client, false);
        let when = self.now + self.delay();
        self.at(when, Event::Look(id, settled));
        answer
    }

    fn wait_for(&mut self, client: ClientId, renew: bool) -> (RequestId, oneshot::Receiver<Heard>) {
        let id = self.next;
        self.next += 1;
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            client,
            answer,
            renews: renew,
        };
        self.waiting.insert(id, waiting);
        self.at(self.now + CLIENT_PATIENCE, Event::GiveUp(id));
        (id, answered)
    }

    // --- what happens ----------------------------------------------------------------------------

    /// The next thing happens. None when nothing is left before `end`.
    pub fn turn(&mut self, end: Duration) -> Option<Turn> {
        let (&(when, _), _) = self.queue.first_key_value()?;
        if when > end {
            return None;
        }
        let (_, event) = self.queue.pop_first()?;
        self.now = when;
        if let Event::Fault = event {
            return Some(Turn::Fault);
        }
        self.handle(event);
        Some(Turn::Go)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive(Receiver::Node(node), message) => self.arrive(node, message),
            Event::Arrive(Receiver::Client, Message::Reply(id, reply)) => {
                self.tell(id, Heard::Reply(reply));
            }
            Event::Arrive(Receiver::Client, _) | Event::Fault => {}
            Event::Expire(id) => {
                let sent = self.cluster.expire(id);
                self.send(sent);
            }
            Event::GiveUp(id) => self.give_up(id),
            Event::Change(id, change) if self.has_majority() => {
                let answer = self.register.apply(&change);
                self.trace_step(2, [id, 0, 0], || format!("{change:?}: {answer:?}"));
                let when = self.now + self.delay();
                let applied = answer == Answer::Applied;
                self.at(when, Event::Answer(id, change, applied));
            }
            Event::Answer(id, change, applied) => {
                self.register.commit(&change);
                if !self.waiting.contains_key(&id) {
                    self.coverage
                        .one("transactions applied after they were given up");
                }
                self.tell(id, Heard::Changed(applied));
            }
            Event::Look(id, settled) if self.has_majority() => {
                let row = match settled {
                    true => self.register.settled(),
                    false => {
                        let old = self.rng.random_bool(0.5);
                        self.register.read(old)
                    }
                };
                let when = self.now + self.delay();
                self.at(when, Event::Tell(id, Heard::Looked(row)));
            }
            Event::Change(..) | Event::Look(..) => {}
            Event::Tell(id, told) => self.tell(id, told),
            // Nobody waits: whoever slept is gone.
            Event::Alarm(alarm) => drop(alarm.send(())),
            Event::Resume(client) => self.resume(client),
        }
    }

    fn resume(&mut self, client: ClientId) {
        if !self.is_paused(client) && self.is_alive(client) {
            let newest = self.recorder.newest_owned;
            if let Some(what) = self.lives[client].thaw(newest) {
                self.coverage.one(what);
            }
        }
    }

    fn give_up(&mut self, id: RequestId) {
        let client = self.waiting.get(&id).map(|waiting| waiting.client);
        let paused = client.is_some_and(|client| self.is_paused(client));
        if let Some(client) = client.filter(|_| paused && self.rng.random_bool(0.5)) {
            // When it goes on, it may look at its clock first, or at what was answered meanwhile.
            let when = self.clients[client].paused_until + ms(1);
            self.at(when, Event::GiveUp(id));
            return;
        }
        let Some(waiting) = self.waiting.remove(&id) else {
            return;
        };
        self.coverage.one("requests that clients gave up");
        if waiting.renews && self.has(Flaw::UnknownRenewalCounts) {
            // Nobody waits: the client is gone.
            let _ = waiting.answer.send(Heard::Changed(true));
        }
    }

    fn has_majority(&self) -> bool {
        let setup = self.cluster.setup();
        let up = (0..setup.nodes).filter(|n| self.cluster.is_up(*n)).count();
        up >= setup.quorum()
    }

    fn tell(&mut self, id: RequestId, told: Heard) {
        let Some(waiting) = self.waiting.remove(&id) else {
            return;
        };
        let client = waiting.client;
        self.trace_step(1, [client as u64, id, 0], || {
            format!("client {client}: {told:?}")
        });
        // Nobody waits: the client is gone.
        let _ = waiting.answer.send(told);
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
            let when = self.now + self.delay();
            self.at(when, Event::Arrive(receiver, message));
        }
    }

    /// A node delivers one of the hints that it keeps.
    pub fn send_hint(&mut self, node: NodeId) {
        if let Some(sent) = self.cluster.next_hint(node) {
            self.coverage.one("hints delivered");
            self.send(vec![sent]);
        }
    }

    /// Something happens that is to be seen in the trace.
    pub fn trace_step(&mut self, kind: u8, what: [u64; 3], text: impl FnOnce() -> String) {
        self.trace.step(self.now, kind, what, text);
    }
}
