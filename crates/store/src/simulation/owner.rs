//! What a writer does, in short: it numbers its writes on each connection, sends again what was not acknowledged,
//! and counts what was. It may have been deposed and not know it.

use std::collections::VecDeque;

use bytes::Bytes;
use dax::ids::{BlockKey, Epoch, Generation, Version};
use dax::storage::Lineage;
use dax::wire::{BlockWrite, Request, checksum};

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

/// A write as it is sent under an epoch: its contents follow from its version.
pub(super) fn block_write(
    epoch: Epoch,
    key: BlockKey,
    generation: Generation,
    version: Version,
) -> Request {
    let data = Bytes::copy_from_slice(&version.seq.to_be_bytes());
    Request::Write(BlockWrite {
        epoch,
        key,
        generation,
        version,
        checksum: checksum(key, generation, version, &data),
        base: None,
        data,
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

    /// The write had no effect.
    pub fn refused(&mut self, number: u64) {
        self.in_flight.retain(|(n, _)| *n != number);
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
