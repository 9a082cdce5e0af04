//! A replica in a test: the rules of [`crate::replica`], a buffer of writes that are not durable yet.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::client::core::Arrival;
use crate::error::ErrorKind;
use crate::ids::{BlockKey, Epoch, Generation, StoreId, Version};
use crate::membership::Membership;
use crate::replica::{self, Claim, Fence, Heard, Refusal, WriteLink};
use crate::sightings::{Position, Run, Sightings, Standing};
use crate::simulation::below::Below;
use crate::simulation::flaw::Flaw;
use crate::storage::{Retention, Space};
use crate::wire::{
    BlockWrite, InventoryEntry, RecordEntry, Request, Response, StoredBlock, StoredRecord, checksum,
};

/// Which connection a message belongs to.
pub(crate) type ConnId = u64;

/// A message from a replica: connection, id, response.
pub(crate) type Sent = (ConnId, u64, Response);

#[derive(Debug, Default, Clone)]
pub(crate) struct Peer {
    pub store: Option<StoreId>,
    pub fence: Fence,
    /// Who counts, as it was told.
    pub membership: Option<Box<Membership>>,
    /// The membership that each open connection knows.
    known: BTreeMap<ConnId, Version>,
    pub blocks: BTreeMap<(BlockKey, Generation), StoredBlock>,
    pub records: BTreeMap<String, StoredRecord>,
    /// Received, not durable.
    buffer: Vec<(ConnId, u64, BlockWrite)>,
    link: WriteLink,
    /// How far it is.
    pub position: Position,
    /// What it was told of others.
    pub sightings: Sightings,
    pub full: bool,
    pub rebuilding: bool,
    /// So many questions for its inventory are answered with an error that passes.
    pub unreadable: u32,
    /// Blocks that this replica reports as damaged.
    pub damaged: Vec<BlockKey>,
    /// Slots that its disk does not read, and where nobody knows what is stored.
    pub bad: BTreeSet<(BlockKey, Generation)>,
    /// What it does wrong on purpose.
    pub flaw: Option<Flaw>,
    /// Blocks of the volume below, if there is one.
    pub below: Option<Below>,
}

fn error(kind: ErrorKind) -> Response {
    Response::Error {
        kind,
        message: format!("{kind:?}"),
    }
}

/// Wrong on purpose: what is sent, behind whatever is there.
fn believed(write: BlockWrite, stored: &[u8]) -> BlockWrite {
    let bytes = write.base.map_or(0, |base| base.bytes as usize);
    let beginning = stored.get(..bytes).map_or(vec![0; bytes], <[u8]>::to_vec);
    let data: Bytes = [&beginning, &write.data[..]].concat().into();
    BlockWrite {
        base: None,
        checksum: checksum(write.key, write.generation, write.version, &data),
        data,
        ..write
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
        let mut peer = Peer {
            store: StoreId::new(store),
            flaw,
            ..Peer::default()
        };
        peer.start(store);
        peer
    }

    /// What it says when a connection stands.
    pub fn welcome(&mut self, conn: ConnId) -> Arrival {
        self.known.insert(conn, self.kept());
        Arrival {
            membership: self.membership.clone(),
            grant: self.fence.grant().clone(),
            rebuilding: self.rebuilding,
            reads: crate::forms::Forms::NEWEST,
            store: self.store,
            standing: Some(Box::new(Standing {
                position: self.position.clone(),
                sightings: self.sightings.clone(),
            })),
        }
    }

    /// Its process starts, for the `run`th time of all.
    pub fn start(&mut self, run: u64) {
        let began = self.position.commit;
        self.position.runs.begin(Run { run, began });
    }

    fn kept(&self) -> Version {
        self.membership
            .as_ref()
            .map_or(Version::ZERO, |m| m.version)
    }

    /// True if the client may count the answer to this.
    fn may_count(&self, conn: ConnId, request: &Request) -> bool {
        let counts = match request {
            Request::Read { .. }
            | Request::Epoch
            | Request::GetRecord { .. }
            | Request::ListRecords { .. } => true,
            Request::OwnEpoch { settled, .. } => !settled,
            Request::PutRecord { epoch, .. } => epoch.is_none(),
            _ => false,
        };
        let known = self.known.get(&conn).copied().unwrap_or_default();
        let checked = self.flaw != Some(Flaw::OldMembersCount);
        !counts || !checked || replica::may_count(known, self.kept())
    }

    /// Keeps a membership, and tells the other connections.
    fn hear(&mut self, conn: ConnId, id: u64, membership: Box<Membership>) -> Vec<Sent> {
        if replica::hear(self.kept(), membership.version) == Heard::New {
            self.membership = Some(membership.clone());
        }
        let version = self.kept();
        self.know(conn, membership.version);
        let told = self.flaw != Some(Flaw::OldMembersCount);
        let behind = self.known.iter();
        let behind = behind.filter(|(_, known)| told && **known < version);
        let news = self.membership.clone().expect("just looked at");
        let told = behind.map(|(conn, _)| (*conn, 0, Response::Members(news.clone())));
        let mut sent: Vec<Sent> = told.collect();
        sent.push((conn, id, Response::MembersKept { version }));
        sent
    }

    /// Keeps how far others are, and tells everybody.
    fn keep_sightings(&mut self, conn: ConnId, id: u64, sightings: Sightings) -> Vec<Sent> {
        let mut sent = Vec::new();
        if sightings.version > self.sightings.version {
            self.sightings = sightings;
            let told = self.known.keys();
            let push = |conn| {
                let sightings = Box::new(self.sightings.clone());
                (conn, 0, Response::Sightings(sightings))
            };
            sent.extend(told.copied().map(push));
        }
        sent.push((conn, id, Response::Done));
        sent
    }

    fn know(&mut self, conn: ConnId, version: Version) {
        let known = self.known.entry(conn).or_default();
        *known = version.max(*known);
    }

    /// Handles a request; writes wait for [`Peer::commit`].
    pub fn handle(&mut self, conn: ConnId, id: u64, request: Request) -> Vec<Sent> {
        let response = match request {
            request if !self.may_count(conn, &request) => error(ErrorKind::Unavailable),
            Request::SetMembers { epoch, membership } => match self.admit(epoch) {
                Ok(()) => return self.hear(conn, id, membership),
                Err(why) => error(refusal(why)),
            },
            Request::Know { version } => {
                self.know(conn, version);
                return Vec::new();
            }
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
                self.buffer.push((conn, id, write));
                return Vec::new();
            }
            Request::Flush => return self.commit(),
            Request::Ping => Response::Pong {
                rebuilding: self.rebuilding,
                commit: self.position.commit,
            },
            Request::Sightings { epoch, sightings } => match self.admit(epoch) {
                Ok(()) => return self.keep_sightings(conn, id, *sightings),
                Err(why) => error(refusal(why)),
            },
            Request::WentBack { epoch, run, lift } => match self.admit(epoch) {
                Ok(()) if Some(run) == self.position.runs.current() => {
                    self.rebuilding = self.flaw != Some(Flaw::RebuildingCounts);
                    self.position.runs = self.position.runs.forgiven(run, lift);
                    self.position.commit = self.position.commit.max(lift);
                    Response::Done
                }
                Ok(()) => error(ErrorKind::Conflict),
                Err(why) => error(refusal(why)),
            },
            Request::Inventory { epoch, after } => match self.admit(epoch) {
                Ok(()) => self.inventory(after),
                Err(why) => error(refusal(why)),
            },
            Request::Rebuilt { epoch } => match self.admit(epoch) {
                Ok(()) => {
                    self.rebuilding = false;
                    Response::Done
                }
                Err(why) => error(refusal(why)),
            },
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
        match (self.flaw, self.fence.admit(epoch)) {
            (Some(Flaw::NoFence), _) => Ok(()),
            (Some(Flaw::UnadmittedReads), Err(Refusal::Unannounced)) => Ok(()),
            (_, admitted) => admitted,
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
            Request::RemoveFiles { epoch, files } => match self.admit_removal(epoch) {
                Ok(()) => self.remove(|key| files.contains(&key.file)),
                Err(why) => error(refusal(why)),
            },
            Request::RemoveBlocksBefore { epoch, file, block } => match self.admit_removal(epoch) {
                Ok(()) => self.remove(|key| key.file == file && key.block < block),
                Err(why) => error(refusal(why)),
            },
            Request::Retain { epoch, retention } => match self.admit_removal(epoch) {
                Ok(()) => {
                    self.prune(&retention);
                    Response::Done
                }
                Err(why) => error(refusal(why)),
            },
            other => panic!("not expected here: {other:?}"),
        }
    }

    fn admit_removal(&self, epoch: Epoch) -> Result<(), Refusal> {
        match self.flaw {
            Some(Flaw::UnfencedRemoval) => Ok(()),
            _ => self.admit(epoch),
        }
    }

    fn remove(&mut self, gone: impl Fn(&BlockKey) -> bool) -> Response {
        self.blocks.retain(|(key, _), _| !gone(key));
        self.buffer.retain(|(_, _, w)| !gone(&w.key));
        Response::Done
    }

    /// Pages of three, to exercise paging.
    fn inventory(&self, after: Option<(BlockKey, Generation)>) -> Response {
        let mut slots = self.blocks.iter().filter(|(slot, _)| Some(**slot) > after);
        if slots
            .clone()
            .take(3)
            .any(|(slot, _)| self.bad.contains(slot))
        {
            return error(ErrorKind::Unavailable);
        }
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

    /// True if the disk does not read what is stored there.
    fn is_bad(&self, key: BlockKey, generation: Generation) -> bool {
        let slot = (key, generation);
        self.bad.contains(&slot) && self.blocks.contains_key(&slot)
    }

    fn read(&self, key: BlockKey, up_to: Generation) -> Response {
        if self.damaged.contains(&key) {
            return error(ErrorKind::Corrupt);
        }
        match self.newest(key, up_to) {
            Some(block) if self.is_bad(key, block.generation) => error(ErrorKind::Unavailable),
            Some(block) if !block.is_intact(key) => error(ErrorKind::Corrupt),
            None => self.read_below(key, up_to),
            block => Response::Block(block.cloned()),
        }
    }

    fn read_below(&self, key: BlockKey, up_to: Generation) -> Response {
        match self
            .below
            .as_ref()
            .map(|below| below.read(key, up_to, self.flaw))
        {
            Some(Err(())) => error(ErrorKind::Unavailable),
            Some(Ok(block)) => Response::Block(block.cloned()),
            None => Response::Block(None),
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
            let admitted = self.fence.admit(write.epoch).is_ok();
            if admitted && !self.link.admit(write.epoch, conn) {
                continue;
            }
            upto.insert(conn, number);
            let refused = match self.admit(write.epoch) {
                Err(why) => Some(refusal(why)),
                Ok(()) if !write.is_intact() => Some(ErrorKind::Corrupt),
                Ok(()) if self.is_bad(write.key, write.generation) => Some(ErrorKind::Unavailable),
                Ok(()) if self.full => Some(ErrorKind::Full),
                Ok(()) => None,
            };
            let stored_at = |generation| {
                let stored = self.blocks.get(&(write.key, generation));
                stored.filter(|_| !self.is_bad(write.key, generation))
            };
            let (write, refused) = match (write.base, refused) {
                (Some(base), None) => {
                    let stored =
                        stored_at(base.generation).map_or(Bytes::new(), |b| b.data.clone());
                    match write.clone().completed(&stored) {
                        Some(whole) => (whole, None),
                        None if self.flaw == Some(Flaw::BaseBelieved) => {
                            (believed(write, &stored), None)
                        }
                        None => (write, Some(ErrorKind::NotFound)),
                    }
                }
                (_, refused) => (write, refused),
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
        self.position.commit += 1;
        let commit = self.position.commit;
        let acks = upto.into_iter();
        sent.extend(acks.map(|(conn, upto)| (conn, 0, Response::Ack { upto, commit })));
        sent
    }

    /// Its connections are gone.
    pub fn hang_up(&mut self) {
        self.known.clear();
        self.link = WriteLink::default();
    }

    /// What was not durable is gone.
    pub fn crash(&mut self) {
        self.buffer.clear();
    }
}
