//! A replica in a test: the rules of [`crate::replica`], a buffer of writes that are not durable yet.

use std::collections::BTreeMap;

use crate::client::core::Arrival;
use crate::error::ErrorKind;
use crate::ids::{BlockKey, Epoch, Generation, StoreId, Version};
use crate::replica::{self, Claim, Fence, Refusal};
use crate::simulation::flaw::Flaw;
use crate::storage::{Retention, Space};
use crate::wire::{
    BlockWrite, InventoryEntry, RecordEntry, Request, Response, StoredBlock, StoredRecord,
};

/// Which connection a message belongs to.
pub(crate) type ConnId = u64;

/// A message from a replica: connection, id, response.
pub(crate) type Sent = (ConnId, u64, Response);

#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub store: Option<StoreId>,
    pub fence: Fence,
    pub blocks: BTreeMap<(BlockKey, Generation), StoredBlock>,
    pub records: BTreeMap<String, StoredRecord>,
    /// Received, not durable.
    buffer: Vec<(ConnId, u64, BlockWrite)>,
    pub full: bool,
    pub rebuilding: bool,
    /// So many questions for its inventory are answered with an error that passes.
    pub unreadable: u32,
    /// Blocks that this replica reports as damaged.
    pub damaged: Vec<BlockKey>,
    /// What it does wrong on purpose.
    pub flaw: Option<Flaw>,
}

fn error(kind: ErrorKind) -> Response {
    Response::Error {
        kind,
        message: format!("{kind:?}"),
    }
}

fn refusal(refusal: Refusal) -> ErrorKind {
    match refusal {
        Refusal::Fenced => ErrorKind::Fenced,
        Refusal::Unannounced => ErrorKind::Conflict,
    }
}

impl Peer {
    /// An empty one in a store of this number, with something broken if that is wanted.
    pub fn new(store: u64, flaw: Option<Flaw>) -> Peer {
        Peer {
            store: StoreId::new(store),
            flaw,
            ..Peer::default()
        }
    }

    /// What it says when a connection stands.
    pub fn arrival(&self) -> Arrival {
        Arrival {
            grant: self.fence.grant().clone(),
            rebuilding: self.rebuilding,
            store: self.store,
        }
    }

    /// Handles a request; writes wait for [`Peer::commit`].
    pub fn handle(&mut self, conn: ConnId, id: u64, request: Request) -> Vec<Sent> {
        let response = match request {
            Request::Read { .. }
            | Request::Promote { .. }
            | Request::Epoch
            | Request::GetRecord { .. }
            | Request::ListRecords { .. }
            | Request::OwnEpoch { settled: false, .. }
                if self.rebuilding =>
            {
                error(ErrorKind::Unavailable)
            }
            Request::Inventory { .. } if self.unreadable > 0 => {
                self.unreadable -= 1;
                error(ErrorKind::Unavailable)
            }
            Request::Write(write) => {
                assert!(write.is_intact());
                self.buffer.push((conn, id, write));
                return Vec::new();
            }
            Request::Flush => return self.commit(),
            Request::Ping => Response::Pong {
                rebuilding: self.rebuilding,
            },
            Request::Inventory { epoch, after } => match self.admit(epoch) {
                Ok(()) => self.inventory(after),
                Err(why) => error(refusal(why)),
            },
            Request::Rebuilt { .. } => {
                self.rebuilding = false;
                Response::Done
            }
            Request::Epoch => Response::Epoch(self.fence.grant().clone()),
            Request::OwnEpoch {
                epoch,
                owner,
                settled,
            } => {
                let accepted = self.fence.own(epoch, &owner, settled) != Claim::Refused;
                let grant = self.fence.grant().clone();
                Response::Owned { accepted, grant }
            }
            Request::Read { key, up_to } => self.read(key, up_to),
            Request::Promote { epoch, key } => match self.admit(epoch) {
                Ok(()) => self.read(key, Generation::SINGLE),
                Err(why) => error(refusal(why)),
            },
            other => self.record(other),
        };
        vec![(conn, id, response)]
    }

    fn admit(&self, epoch: Epoch) -> Result<(), Refusal> {
        match self.flaw {
            Some(Flaw::NoFence) => Ok(()),
            _ => self.fence.admit(epoch),
        }
    }

    fn replaces(&self, new: Version, stored: Option<Version>) -> bool {
        match self.flaw {
            Some(Flaw::TimestampsAlone) => stored.is_none_or(|stored| new.seq > stored.seq),
            _ => replica::replaces(new, stored),
        }
    }

    /// Drops what neither image shows.
    fn prune(&mut self, retention: &Retention) {
        let mut stored: BTreeMap<BlockKey, Vec<Generation>> = BTreeMap::new();
        for (key, generation) in self.blocks.keys() {
            stored.entry(*key).or_default().push(*generation);
        }
        for (key, generations) in stored {
            for generation in replica::prune(&generations, retention) {
                self.blocks.remove(&(key, generation));
            }
        }
    }

    fn record(&mut self, request: Request) -> Response {
        match request {
            Request::PutRecord {
                epoch,
                name,
                version,
                value,
            } => {
                if let Some(Err(why)) = epoch.map(|e| self.admit(e)) {
                    return error(refusal(why));
                }
                let stored = self.records.get(&name).map(|r| r.version);
                if self.replaces(version, stored) {
                    self.records
                        .insert(name.clone(), StoredRecord { version, value });
                }
                let version = self.records[&name].version;
                Response::RecordStored { version }
            }
            Request::GetRecord { name } => Response::Record(self.records.get(&name).cloned()),
            Request::ListRecords { prefix, after } => self.page(&prefix, after.as_deref()),
            Request::Space => Response::Space(Space {
                used_bytes: self.blocks.len() as u64,
                free_bytes: 1000 - self.blocks.len() as u64,
            }),
            Request::RemoveFiles { files, .. } => {
                self.blocks.retain(|(key, _), _| !files.contains(&key.file));
                self.buffer.retain(|(_, _, w)| !files.contains(&w.key.file));
                Response::Done
            }
            Request::RemoveBlocksBefore { file, block, .. } => {
                self.blocks
                    .retain(|(key, _), _| key.file != file || key.block >= block);
                self.buffer
                    .retain(|(_, _, w)| w.key.file != file || w.key.block >= block);
                Response::Done
            }
            Request::Retain { epoch, retention } => match self.admit(epoch) {
                Ok(()) => {
                    self.prune(&retention);
                    Response::Done
                }
                Err(why) => error(refusal(why)),
            },
            other => panic!("not expected here: {other:?}"),
        }
    }

    /// Pages of three, to exercise paging.
    fn inventory(&self, after: Option<(BlockKey, Generation)>) -> Response {
        let mut slots = self.blocks.iter().filter(|(slot, _)| Some(**slot) > after);
        let entries = slots.by_ref().take(3).map(|((key, generation), block)| {
            let intact = !self.damaged.contains(key) && block.is_intact(*key);
            InventoryEntry {
                key: *key,
                generation: *generation,
                version: intact.then_some(block.version),
            }
        });
        Response::Inventory {
            entries: entries.collect(),
            more: slots.next().is_some(),
        }
    }

    /// Pages of two, to exercise paging.
    fn page(&self, prefix: &str, after: Option<&str>) -> Response {
        let names = self.records.keys().filter(|n| n.starts_with(prefix));
        let mut names = names.filter(|n| after.is_none_or(|after| n.as_str() > after));
        let entries = names.by_ref().take(2);
        let entries = entries.map(|name| RecordEntry {
            name: name.clone(),
            record: self.records[name].clone(),
        });
        let entries = entries.collect();
        Response::Records {
            entries,
            more: names.next().is_some(),
        }
    }

    fn read(&self, key: BlockKey, up_to: Generation) -> Response {
        if self.damaged.contains(&key) {
            return error(ErrorKind::Corrupt);
        }
        match self.newest(key, up_to) {
            Some(block) if !block.is_intact(key) => error(ErrorKind::Corrupt),
            block => Response::Block(block.cloned()),
        }
    }

    pub fn newest(&self, key: BlockKey, up_to: Generation) -> Option<&StoredBlock> {
        let range = self.blocks.range((key, Generation::SINGLE)..=(key, up_to));
        range.map(|(_, block)| block).next_back()
    }

    pub fn version(&self, key: BlockKey, generation: Generation) -> Version {
        self.blocks
            .get(&(key, generation))
            .map_or(Version::ZERO, |b| b.version)
    }

    /// Makes everything received durable, under the fence; acknowledges per connection.
    pub fn commit(&mut self) -> Vec<Sent> {
        let mut sent = Vec::new();
        let mut upto: BTreeMap<ConnId, u64> = BTreeMap::new();
        for (conn, number, write) in std::mem::take(&mut self.buffer) {
            upto.insert(conn, number);
            let refused = match self.admit(write.epoch) {
                Err(why) => Some(refusal(why)),
                Ok(()) if self.full => Some(ErrorKind::Full),
                Ok(()) => None,
            };
            if let Some(kind) = refused {
                let message = format!("{kind:?}");
                let refused = Response::WriteRefused {
                    number,
                    kind,
                    message,
                };
                sent.push((conn, 0, refused));
                continue;
            }
            // A damaged copy has no version worth keeping.
            let stored = self.blocks.get(&(write.key, write.generation));
            let stored = stored.filter(|b| b.is_intact(write.key));
            if self.replaces(write.version, stored.map(|b| b.version)) {
                let block = StoredBlock {
                    version: write.version,
                    generation: write.generation,
                    checksum: write.checksum,
                    data: write.data,
                };
                self.blocks.insert((write.key, write.generation), block);
            }
        }
        let acks = upto.into_iter();
        sent.extend(acks.map(|(conn, upto)| (conn, 0, Response::Ack { upto })));
        sent
    }

    /// What was not durable is gone.
    pub fn crash(&mut self) {
        self.buffer.clear();
    }
}
