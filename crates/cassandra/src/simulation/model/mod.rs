//! Cassandra as its clients can see it: what a replica keeps, what a coordinator does, what comes late.
//!
//! Pure: nobody here decides when. Each call takes one message and returns what is sent because of it;
//! whoever drives the model delivers each message at any time, late, or never. That is more freedom than
//! the real server has, which drops most of what is late; `conformance` shows that it has no less.

mod cell;
mod coordinator;
mod register;
mod replica;

use std::collections::BTreeMap;

pub use cell::{Cell, Timestamp};
pub use coordinator::{Level, Query, Reply, Request};
pub use register::Register;
pub use replica::{Gone, Place, Replica, Rows};

use coordinator::Coordination;

/// A node, which is a replica of everything and a coordinator.
pub type NodeId = usize;

/// A request of a client, by number.
pub type RequestId = u64;

/// Cells to be written together, and ranges of a partition to be deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mutation {
    pub cells: Vec<(Place, Cell)>,
    pub gone: Vec<(u64, Gone)>,
}

impl Mutation {
    /// One cell.
    pub fn one(place: Place, cell: Cell) -> Mutation {
        Mutation {
            cells: vec![(place, cell)],
            gone: Vec::new(),
        }
    }

    /// A range of rows of one partition is deleted.
    pub fn gone(partition: u64, gone: Gone) -> Mutation {
        Mutation {
            cells: Vec::new(),
            gone: vec![(partition, gone)],
        }
    }

    /// True if it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty() && self.gone.is_empty()
    }
}

/// What travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// From a client to its coordinator.
    Request(RequestId, Request),
    /// From a coordinator (of a write, a read repair or a hint) to a replica.
    Mutate(RequestId, NodeId, Mutation),
    /// It is durable at that replica.
    Mutated(RequestId, NodeId),
    /// From a coordinator to a replica.
    Fetch(RequestId, NodeId, Query),
    /// What a replica has.
    Fetched(RequestId, NodeId, Rows),
    /// To the client.
    Reply(RequestId, Reply),
}

/// Who gets a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receiver {
    Node(NodeId),
    Client,
}

/// A message on its way.
pub type Sent = (Receiver, Message);

/// How the cluster is set up.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub nodes: usize,
    /// A replica's mutation that was not acknowledged in time is kept and sent again later.
    pub hints: bool,
    /// `read_repair = 'BLOCKING'` of the table, in place of `NONE`.
    pub read_repair: bool,
    /// `commitlog_sync: batch`: durable before visible, in place of `periodic`.
    pub batch: bool,
}

impl Setup {
    /// What understudy demands.
    pub const SOUND: Setup = Setup {
        nodes: 3,
        hints: true,
        read_repair: true,
        batch: true,
    };

    /// Replicas that are a majority.
    pub fn quorum(&self) -> usize {
        self.nodes / 2 + 1
    }
}

/// All nodes.
#[derive(Debug)]
pub struct Cluster {
    setup: Setup,
    replicas: Vec<Replica>,
    coordinations: BTreeMap<RequestId, Coordination>,
    /// By the coordinator that keeps them.
    hints: Vec<Vec<(NodeId, Mutation)>>,
    up: Vec<bool>,
}

impl Cluster {
    pub fn new(setup: Setup) -> Cluster {
        Cluster {
            setup,
            replicas: (0..setup.nodes)
                .map(|_| Replica::new(setup.batch))
                .collect(),
            coordinations: BTreeMap::new(),
            hints: vec![Vec::new(); setup.nodes],
            up: vec![true; setup.nodes],
        }
    }

    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    pub fn replica(&self, node: NodeId) -> &Replica {
        &self.replicas[node]
    }

    pub fn is_up(&self, node: NodeId) -> bool {
        self.up[node]
    }

    /// A message arrives at a node. One that is down hears nothing.
    pub fn deliver(&mut self, node: NodeId, message: Message) -> Vec<Sent> {
        if !self.up[node] {
            return Vec::new();
        }
        match message {
            Message::Request(id, request) => self.coordinate(node, id, request),
            Message::Mutate(id, coordinator, mutation) => {
                self.replicas[node].apply(&mutation);
                vec![(Receiver::Node(coordinator), Message::Mutated(id, node))]
            }
            Message::Fetch(id, coordinator, query) => {
                let rows = self.replicas[node].rows(&query);
                vec![(
                    Receiver::Node(coordinator),
                    Message::Fetched(id, node, rows),
                )]
            }
            Message::Mutated(id, from) => self.step(id, |c| c.mutated(from)),
            Message::Fetched(id, from, rows) => self.step(id, |c| c.fetched(from, rows)),
            Message::Reply(..) => Vec::new(),
        }
    }

    fn coordinate(&mut self, node: NodeId, id: RequestId, request: Request) -> Vec<Sent> {
        let coordination = Coordination::new(self.setup, node, id, request);
        let sent = coordination.begin();
        self.coordinations.insert(id, coordination);
        sent
    }

    fn step(
        &mut self,
        id: RequestId,
        step: impl FnOnce(&mut Coordination) -> Vec<Sent>,
    ) -> Vec<Sent> {
        // Unknown after a crash of the coordinator; a hint's acknowledgement interests nobody.
        self.coordinations.get_mut(&id).map_or(Vec::new(), step)
    }

    /// The coordinator's timeout is over: the client is told, and what a replica has not acknowledged is
    /// kept as a hint (also of a write that was acknowledged, and of one that failed).
    pub fn expire(&mut self, id: RequestId) -> Vec<Sent> {
        let Some(coordination) = self.coordinations.remove(&id) else {
            return Vec::new();
        };
        if self.setup.hints {
            self.hints[coordination.node].extend(coordination.missing());
        }
        coordination.give_up()
    }

    /// Delivers the oldest hint that a node keeps, if it is up and has one.
    pub fn next_hint(&mut self, node: NodeId) -> Option<Sent> {
        if !self.up[node] || self.hints[node].is_empty() {
            return None;
        }
        let (to, mutation) = self.hints[node].remove(0);
        // Of no request any more.
        Some((Receiver::Node(to), Message::Mutate(0, node, mutation)))
    }

    /// Hinted handoff was off.
    pub fn forget_hints(&mut self) {
        self.hints.iter_mut().for_each(Vec::clear);
    }

    /// A node dies: what it coordinated is forgotten, hints and its commit log are on its disk.
    pub fn crash(&mut self, node: NodeId) {
        self.up[node] = false;
        self.coordinations.retain(|_, c| c.node != node);
        self.replicas[node].crash();
    }

    /// It is back, with what its commit log had.
    pub fn restart(&mut self, node: NodeId) {
        self.up[node] = true;
    }

    /// A replica forgets its tombstones, as a compaction does after `gc_grace_seconds`.
    pub fn purge(&mut self, node: NodeId) {
        self.replicas[node].purge();
    }

    /// A periodic commit log reaches the disk.
    pub fn sync_log(&mut self, node: NodeId) {
        self.replicas[node].sync_log();
    }
}
