//! What a writer does, in short: it numbers its writes on each connection, sends again what was not acknowledged,
//! and counts what was. It may have been deposed and not know it.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use dax::ids::{BlockKey, Epoch, Generation, Version};
use dax::storage::Lineage;
use dax::wire::{Base, BlockWrite, Request, checksum};

use super::replica::ConnId;

/// How many replicas there are, and how many make a write durable.
pub(super) const REPLICAS: usize = 3;
pub(super) const SYNC: usize = 2;

#[derive(Debug, Clone)]
pub(super) struct Write {
    pub key: BlockKey,
    pub generation: Generation,
    pub version: Version,
    pub acked: [bool; REPLICAS],
    pub synced: bool,
    /// Somebody owned a later epoch when it was made.
    pub overtaken: bool,
}

/// Bytes that the contents of writes which are made one after the other often begin with.
const BASE_BYTES: usize = 8;
/// So many of them begin alike.
const ALIKE: u64 = 8;

/// A write as it is sent under an epoch: its contents follow from its version. With a base, the replica is not sent what
/// they begin with, which it may have in that generation.
pub(super) fn block_write(
    epoch: Epoch,
    key: BlockKey,
    generation: Generation,
    version: Version,
    base: Option<Generation>,
) -> Request {
    let beginning = (u64::from(version.epoch.0) << 32) | (version.seq / ALIKE);
    let end = version.seq;
    let data: Bytes = [beginning.to_be_bytes(), end.to_be_bytes()].concat().into();
    Request::Write(BlockWrite {
        epoch,
        key,
        generation,
        version,
        checksum: checksum(key, generation, version, &data),
        base: base.map(|generation| Base {
            generation,
            bytes: BASE_BYTES as u32,
        }),
        data: data.slice(base.map_or(0, |_| BASE_BYTES)..),
    })
}

/// A connection to a replica.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub conn: ConnId,
    /// Which store it leads to.
    pub store: u64,
    /// Numbered from 1, in order: which writes they are.
    in_flight: VecDeque<(u64, usize)>,
    next: u64,
}

impl Link {
    pub fn new(conn: ConnId, store: u64) -> Link {
        Link {
            conn,
            store,
            in_flight: VecDeque::new(),
            next: 1,
        }
    }

    /// Numbers a write that is sent.
    pub fn number(&mut self, write: usize) -> u64 {
        let number = self.next;
        self.next += 1;
        self.in_flight.push_back((number, write));
        number
    }

    /// Numbers a copy that is sent as it was written.
    pub fn number_repair(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// True if the write is on its way.
    pub fn carries(&self, write: usize) -> bool {
        self.in_flight.iter().any(|(_, w)| *w == write)
    }

    /// The write had no effect: which one.
    pub fn refused(&mut self, number: u64) -> Option<usize> {
        let at = self.in_flight.iter().position(|(n, _)| *n == number)?;
        self.in_flight.remove(at).map(|(_, write)| write)
    }

    /// The writes that are acknowledged.
    pub fn acked(&mut self, upto: u64) -> Vec<usize> {
        let mut acked = Vec::new();
        while let Some((_, write)) = self.in_flight.pop_front_if(|(n, _)| *n <= upto) {
            acked.push(write);
        }
        acked
    }
}

pub(super) struct Owner {
    pub epoch: Epoch,
    pub name: String,
    pub fenced: bool,
    pub links: [Option<Link>; REPLICAS],
    pub writes: Vec<Write>,
    /// Replicas that did not count when they were last heard.
    pub rebuilding: [bool; REPLICAS],
    /// The image that it writes, and the generation.
    pub line: Lineage,
    pub generation: u32,
    /// The last seals: what must be kept.
    pub images: Vec<Lineage>,
    /// What each replica was not told yet.
    pub requests_left: [Vec<Request>; REPLICAS],
    /// Writes that a replica is sent whole, because it did not have what they begin with.
    pub whole: BTreeSet<(usize, usize)>,
}

impl Owner {
    pub fn new(epoch: Epoch, line: Lineage, images: Vec<Lineage>) -> Owner {
        Owner {
            epoch,
            name: format!("owner/{}", epoch.0),
            fenced: false,
            links: [const { None }; REPLICAS],
            writes: Vec::new(),
            rebuilding: [false; REPLICAS],
            line,
            generation: 1,
            images,
            requests_left: [const { Vec::new() }; REPLICAS],
            whole: BTreeSet::new(),
        }
    }

    /// The generation that is being written.
    pub fn now(&self) -> Generation {
        Generation {
            epoch: self.epoch,
            number: self.generation,
        }
    }

    /// The number of a new write.
    pub fn add(&mut self, key: BlockKey, generation: Generation, overtaken: bool) -> usize {
        let version = Version {
            epoch: self.epoch,
            seq: self.writes.len() as u64 + 1,
        };
        self.writes.push(Write {
            key,
            generation,
            version,
            acked: [false; REPLICAS],
            synced: false,
            overtaken,
        });
        self.writes.len() - 1
    }

    /// Write that another one may begin with, if a replica has it: that of the block before it.
    pub fn base(&self, replica: usize, write: usize) -> Option<Generation> {
        if self.whole.contains(&(replica, write)) {
            return None;
        }
        let key = self.writes[write].key;
        let before = self.writes[..write].iter().rev().find(|w| w.key == key);
        before.map(|before| before.generation)
    }

    /// The newest version that it has written of a block in a generation.
    pub fn newest_in(&self, place: (BlockKey, Generation)) -> Option<Version> {
        let writes = self.writes.iter().rev();
        let mut there = writes.filter(|write| (write.key, write.generation) == place);
        there.next().map(|write| write.version)
    }

    /// The replica lost its disk, and with it what it had acknowledged.
    pub fn forget_acks(&mut self, replica: usize) {
        for write in &mut self.writes {
            write.acked[replica] = false;
        }
    }

    /// True if enough have acknowledged a write; `all` of them count, or those that are not being rebuilt.
    pub fn is_synced(&self, write: usize, all: bool) -> bool {
        let counts = |replica: usize| all || !self.rebuilding[replica];
        let acked = self.writes[write].acked.iter().enumerate();
        acked.filter(|(r, acked)| **acked && counts(*r)).count() >= SYNC
    }
}
