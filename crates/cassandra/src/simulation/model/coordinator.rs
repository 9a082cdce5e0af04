//! One request at its coordinator.
//!
//! A write goes to all replicas and is answered when as many as the level asks have it. A read asks the
//! replicas that the client's snitch would have chosen; where they differ, those that answered are
//! brought up to date, and only then the client is answered (`BLOCKING`). Nobody else is repaired.

use std::collections::{BTreeMap, BTreeSet};

use super::replica::{Place, Rows};
use super::{Cell, Message, Mutation, NodeId, Receiver, RequestId, Sent, Setup};

/// How many replicas a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    One,
    Quorum,
    All,
}

impl Level {
    fn needs(self, setup: &Setup) -> usize {
        match self {
            Level::One => 1,
            Level::Quorum => setup.quorum(),
            Level::All => setup.nodes,
        }
    }
}

/// Rows of one partition, from and to included: the last one that lives is wanted, or all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    pub partition: u64,
    pub from: u64,
    pub to: u64,
    pub all: bool,
}

impl Query {
    /// The row, if it is about one only.
    pub fn place(&self) -> Option<Place> {
        let row = self.from;
        (row == self.to).then_some(Place {
            partition: self.partition,
            row,
        })
    }
}

/// What a client asks of a coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Write(Mutation, Level),
    /// The replicas to ask are at least as many as the level needs.
    Read(Query, Level, Vec<NodeId>),
}

/// What a coordinator answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Written,
    /// The last row that lives, if any does; or all of them.
    Rows(Vec<(u64, Cell)>),
    /// Not enough replicas answered in time. The write may be applied anywhere, now or later.
    TimedOut,
}

#[derive(Debug)]
pub(super) struct Coordination {
    pub node: NodeId,
    setup: Setup,
    id: RequestId,
    request: Request,
    /// Replicas that have the write, or what was read.
    done: BTreeSet<NodeId>,
    fetched: BTreeMap<NodeId, Rows>,
    result: Option<Vec<(u64, Cell)>>,
    answered: bool,
}

impl Coordination {
    pub fn new(setup: Setup, node: NodeId, id: RequestId, request: Request) -> Coordination {
        Coordination {
            node,
            setup,
            id,
            request,
            done: BTreeSet::new(),
            fetched: BTreeMap::new(),
            result: None,
            answered: false,
        }
    }

    pub fn begin(&self) -> Vec<Sent> {
        let to = |replica: NodeId, message| (Receiver::Node(replica), message);
        match &self.request {
            Request::Write(mutation, _) => (0..self.setup.nodes)
                .map(|r| to(r, Message::Mutate(self.id, self.node, mutation.clone())))
                .collect(),
            Request::Read(query, _, contacted) => contacted
                .iter()
                .map(|r| to(*r, Message::Fetch(self.id, self.node, query.clone())))
                .collect(),
        }
    }

    fn needs(&self) -> usize {
        let (Request::Write(_, level) | Request::Read(_, level, _)) = &self.request;
        level.needs(&self.setup)
    }

    /// A replica has the write, or the read repair.
    pub fn mutated(&mut self, from: NodeId) -> Vec<Sent> {
        self.done.insert(from);
        self.answer_if_done()
    }

    /// A replica tells what it has.
    pub fn fetched(&mut self, from: NodeId, rows: Rows) -> Vec<Sent> {
        if self.result.is_some() {
            return Vec::new();
        }
        self.fetched.insert(from, rows);
        if self.fetched.len() < self.needs() {
            return Vec::new();
        }
        self.settle()
    }

    /// Enough have answered: what is the result, and who must be told of it?
    fn settle(&mut self) -> Vec<Sent> {
        let Request::Read(query, _, _) = &self.request else {
            return Vec::new();
        };
        let mut merged = Rows::default();
        for rows in self.fetched.values() {
            merged.merge(rows);
        }
        let live = merged.live().map(|(row, cell)| (row, cell.clone()));
        let result: Vec<_> = match query.all {
            true => live.collect(),
            false => live.rev().take(1).collect(),
        };
        // What was read on the way to the result, no further.
        let first = result.first().filter(|_| !query.all);
        let read = first.map_or(query.from, |(row, _)| *row);
        let partition = query.partition;
        let mut repairs = Vec::new();
        for (replica, rows) in &self.fetched {
            let cells = merged.cells.range(read..);
            let stale = cells.filter(|(row, cell)| rows.cells.get(row) != Some(cell));
            let stale = stale.map(|(row, cell)| {
                let row = *row;
                (Place { partition, row }, cell.clone())
            });
            let gone = merged.gone.difference(&rows.gone);
            let mutation = Mutation {
                cells: stale.collect(),
                gone: gone.map(|gone| (partition, *gone)).collect(),
            };
            if mutation.is_empty() || !self.setup.read_repair {
                self.done.insert(*replica);
                continue;
            }
            let message = Message::Mutate(self.id, self.node, mutation);
            repairs.push((Receiver::Node(*replica), message));
        }
        self.result = Some(result);
        repairs.extend(self.answer_if_done());
        repairs
    }

    fn answer_if_done(&mut self) -> Vec<Sent> {
        if self.answered || self.done.len() < self.needs() {
            return Vec::new();
        }
        let reply = match (&self.request, &self.result) {
            (Request::Write(..), _) => Reply::Written,
            (Request::Read(..), Some(result)) => Reply::Rows(result.clone()),
            (Request::Read(..), None) => return Vec::new(),
        };
        self.answered = true;
        vec![(Receiver::Client, Message::Reply(self.id, reply))]
    }

    /// What replicas have not acknowledged of a write.
    pub fn missing(&self) -> Vec<(NodeId, Mutation)> {
        let Request::Write(mutation, _) = &self.request else {
            return Vec::new();
        };
        let missing = (0..self.setup.nodes).filter(|r| !self.done.contains(r));
        missing.map(|r| (r, mutation.clone())).collect()
    }

    pub fn give_up(&self) -> Vec<Sent> {
        match self.answered {
            true => Vec::new(),
            false => vec![(Receiver::Client, Message::Reply(self.id, Reply::TimedOut))],
        }
    }
}
