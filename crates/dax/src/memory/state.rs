//! What the in-process cluster knows, and the steps that change it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use super::{MemoryCluster, UnsyncedWrite};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, NodeName, Version};
use crate::replica::{self, Claim, Fence};
use crate::storage::{Authority, Block, Lineage, Retention, ScrubPage, Space, StorageCounters};

pub(super) type ClientId = usize;

/// One client's side.
#[derive(Debug, Default)]
pub(super) struct Client {
    pub epoch: Option<Epoch>,
    pub pending: Vec<UnsyncedWrite>,
    pub counters: StorageCounters,
    pub cut_off: bool,
    dead: bool,
    seq: u64,
}

impl Client {
    /// The next version, if the client owns an epoch.
    pub fn next_version(&mut self) -> Option<Version> {
        let epoch = self.epoch?;
        self.seq += 1;
        Some(Version {
            epoch,
            seq: self.seq,
        })
    }

    pub fn die(&mut self) {
        self.dead = true;
        self.pending.clear();
    }
}

/// Versions by generation.
type Versions = BTreeMap<Generation, (Version, Bytes)>;

/// Image of another volume that this one shows where it has nothing.
#[derive(Debug)]
pub(super) struct Below {
    pub parent: Arc<MemoryCluster>,
    pub image: Lineage,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub below: Option<Below>,
    pub fence: Fence,
    pub held: bool,
    pub forgets: bool,
    pub full: bool,
    /// Writes until somebody else owns the next epoch.
    pub fence_after_writes: Option<usize>,
    /// Every version that was durable once, for a replica that has missed all others.
    pub ever_stored: Option<HashMap<(BlockKey, Version), Block>>,
    clients: Vec<Client>,
    files: HashMap<FileId, BTreeMap<BlockIndex, Versions>>,
    records: BTreeMap<String, (Version, Option<Bytes>)>,
}

/// Room that an empty volume reports.
const CAPACITY_BYTES: u64 = 1 << 40;

impl State {
    pub fn new_client(&mut self) -> ClientId {
        self.clients.push(Client::default());
        self.clients.len() - 1
    }

    pub fn client(&mut self, id: ClientId) -> &mut Client {
        &mut self.clients[id]
    }

    /// Everything that is stored, as one page of a scrub.
    pub fn inventory(&self) -> ScrubPage {
        let mut files: Vec<FileId> = self.files.keys().copied().collect();
        files.sort_unstable();
        let blocks = self.files.values().flat_map(BTreeMap::values);
        ScrubPage {
            files,
            blocks: blocks.map(|versions| versions.len() as u64).sum(),
            ..ScrubPage::default()
        }
    }

    pub fn check_alive(&mut self, id: ClientId) -> Result<()> {
        if self.client(id).dead {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "this client has crashed",
            ));
        }
        Ok(())
    }

    /// A client that owned an epoch stops at the first sight of a higher one.
    pub fn check_fence(&mut self, id: ClientId) -> Result<()> {
        let accepted = self.fence.grant().clone();
        match self.client(id).epoch {
            Some(epoch) if epoch < accepted.epoch => Err(Error::new(
                ErrorKind::Fenced,
                format!(
                    "{epoch} is fenced by {} of {}",
                    accepted.epoch, accepted.owner
                ),
            )),
            _ => Ok(()),
        }
    }

    /// For what is decided without asking the cluster: a client that is cut off does not know yet.
    pub fn check_writer(&mut self, id: ClientId) -> Result<()> {
        self.check_alive(id)?;
        if self.client(id).epoch.is_none() {
            return Err(super::not_owner());
        }
        match self.client(id).cut_off {
            true => Ok(()),
            false => self.check_fence(id),
        }
    }

    pub fn can_sync(&mut self, id: ClientId) -> bool {
        !self.held && !self.full && !self.client(id).cut_off
    }

    pub fn own_epoch(&mut self, id: ClientId, owner: &NodeName) -> Result<Epoch> {
        let epoch = self.fence.grant().epoch.next();
        let owner = format!("{owner}/{id}");
        if self.fence.own(epoch, &owner, false) == Claim::Refused {
            return Err(Error::new(ErrorKind::Invalid, "no epochs are left"));
        }
        self.client(id).epoch = Some(epoch);
        Ok(epoch)
    }

    /// A write comes: perhaps the one before which somebody else owns the next epoch.
    pub fn count_to_fence(&mut self) -> Result<()> {
        let Some(left) = self.fence_after_writes else {
            return Ok(());
        };
        self.fence_after_writes = left.checked_sub(1);
        if left == 0 {
            let other = self.new_client();
            let name = NodeName::new("other").expect("a plain name");
            self.own_epoch(other, &name)?;
        }
        Ok(())
    }

    /// Makes chosen pending writes durable, under the fence.
    pub fn land(
        &mut self,
        id: ClientId,
        mut chosen: impl FnMut(&UnsyncedWrite) -> bool,
    ) -> Result<()> {
        self.check_fence(id)?;
        let pending = std::mem::take(&mut self.client(id).pending);
        let (landed, kept) = pending.into_iter().partition(|w| chosen(w));
        self.client(id).pending = kept;
        for write in landed {
            self.store(write);
        }
        Ok(())
    }

    fn store(&mut self, write: UnsyncedWrite) {
        if let Some(ever) = &mut self.ever_stored {
            let block = Block {
                version: write.version,
                generation: write.generation,
                data: write.data.clone(),
            };
            ever.insert((write.key, write.version), block);
        }
        let file = self.files.entry(write.key.file).or_default();
        let versions = file.entry(write.key.block).or_default();
        let stored = versions.get(&write.generation).map(|(v, _)| *v);
        if replica::replaces(write.version, stored) {
            versions.insert(write.generation, (write.version, write.data));
        }
    }

    pub fn durable(&self, key: BlockKey, up_to: Generation) -> Option<Block> {
        let own = self.newest(key, |generation| generation <= up_to);
        own.or_else(|| match up_to {
            Generation::SINGLE => None,
            _ => self.below(key, up_to),
        })
    }

    fn newest(&self, key: BlockKey, counts: impl Fn(Generation) -> bool) -> Option<Block> {
        let versions = self.files.get(&key.file)?.get(&key.block)?;
        let mut versions = versions.iter().rev();
        let (generation, (version, data)) =
            versions.find(|(generation, _)| counts(**generation))?;
        Some(Block {
            version: *version,
            generation: *generation,
            data: data.clone(),
        })
    }

    fn below(&self, key: BlockKey, up_to: Generation) -> Option<Block> {
        let below = self.below.as_ref()?;
        below.parent.shown(key, &below.image.truncated(up_to))
    }

    /// The newest version of a block in an image; blocks of one version are in none.
    pub fn shown(&self, key: BlockKey, image: &Lineage) -> Option<Block> {
        let own = self.newest(key, |generation| {
            generation != Generation::SINGLE && image.contains(generation)
        });
        own.or_else(|| self.below(key, image.end()))
    }

    fn pending(&mut self, id: ClientId, key: BlockKey, up_to: Generation) -> Option<Block> {
        let pending = self.client(id).pending.iter();
        let newest = pending
            .filter(|w| w.key == key && w.generation <= up_to)
            .max_by_key(|w| (w.generation, w.version))?;
        Some(Block {
            version: newest.version,
            generation: newest.generation,
            data: newest.data.clone(),
        })
    }

    pub fn read(&mut self, id: ClientId, key: BlockKey, up_to: Generation) -> Option<Block> {
        let durable = self.durable(key, up_to);
        let pending = self.pending(id, key, up_to);
        let counters = &mut self.client(id).counters;
        let order = |b: &Option<Block>| b.as_ref().map(|b| (b.generation, b.version));
        if order(&pending) > order(&durable) {
            counters.reads_pending += 1;
            return pending;
        }
        counters.reads_quorum += 1;
        durable
    }

    pub fn read_expected(
        &mut self,
        id: ClientId,
        key: BlockKey,
        up_to: Generation,
        version: Version,
    ) -> Result<Option<Block>> {
        let durable = self.durable(key, up_to);
        let ever = self.ever_stored.as_ref();
        let stale = ever.and_then(|ever| ever.get(&(key, version)).cloned());
        let nearest = stale.or_else(|| durable.clone());
        let counters = &mut self.client(id).counters;
        if nearest.as_ref().is_some_and(|b| b.version == version) {
            counters.reads_one += 1;
            return Ok(nearest);
        }
        counters.reads_stale += 1;
        if durable.as_ref().is_none_or(|b| b.version < version) {
            let lost = format!("no replica has version {version} of block {key} any more");
            return Err(Error::new(ErrorKind::Corrupt, lost));
        }
        counters.reads_escalated += 1;
        counters.reads_quorum += 1;
        Ok(durable)
    }

    pub fn promote(&mut self, id: ClientId, key: BlockKey) -> Result<Option<Block>> {
        let own = self.client(id).epoch.ok_or_else(super::not_owner)?;
        let Some(block) = self.read(id, key, Generation::SINGLE) else {
            return Ok(None);
        };
        if block.version.epoch == own {
            return Ok(Some(block));
        }
        let version = self
            .client(id)
            .next_version()
            .ok_or_else(super::not_owner)?;
        self.client(id).counters.reads_promoted += 1;
        self.store(UnsyncedWrite {
            key,
            generation: Generation::SINGLE,
            version,
            data: block.data.clone(),
        });
        Ok(Some(Block { version, ..block }))
    }

    pub fn put_record(
        &mut self,
        id: ClientId,
        name: &str,
        value: Option<Bytes>,
        authority: Authority,
    ) -> Result<()> {
        let stored = self.records.get(name).map_or(Version::ZERO, |(v, _)| *v);
        let version = match authority {
            Authority::Owner => Version {
                epoch: self.client(id).epoch.ok_or_else(super::not_owner)?,
                seq: stored.seq + 1,
            },
            Authority::Node => Version {
                seq: stored.seq + 1,
                ..stored
            },
        };
        self.records.insert(name.to_owned(), (version, value));
        Ok(())
    }

    pub fn get_record(&self, name: &str) -> Option<Bytes> {
        self.records.get(name).and_then(|(_, value)| value.clone())
    }

    pub fn list_records(&self, prefix: &str) -> Vec<(String, Bytes)> {
        let range = self.records.range(prefix.to_owned()..);
        let range = range.take_while(|(name, _)| name.starts_with(prefix));
        range
            .filter_map(|(name, (_, value))| Some((name.clone(), value.clone()?)))
            .collect()
    }

    pub fn retain(&mut self, retention: Retention) {
        for versions in self.files.values_mut().flat_map(BTreeMap::values_mut) {
            let stored: Vec<Generation> = versions.keys().copied().collect();
            for generation in replica::prune(&stored, &retention) {
                versions.remove(&generation);
            }
        }
    }

    pub fn remove_files(&mut self, id: ClientId, files: &[FileId]) {
        self.files.retain(|id, _| !files.contains(id));
        let pending = &mut self.client(id).pending;
        pending.retain(|w| !files.contains(&w.key.file));
    }

    pub fn remove_blocks_before(&mut self, id: ClientId, file: FileId, block: BlockIndex) {
        if let Some(blocks) = self.files.get_mut(&file) {
            *blocks = blocks.split_off(&block);
        }
        let pending = &mut self.client(id).pending;
        pending.retain(|w| w.key.file != file || w.key.block >= block);
    }

    pub fn stored_versions(&self) -> usize {
        let blocks = self.files.values().flat_map(BTreeMap::values);
        blocks.map(BTreeMap::len).sum()
    }

    pub fn space(&self) -> Space {
        let versions = self.files.values().flat_map(BTreeMap::values);
        let blocks = versions.flat_map(BTreeMap::values);
        let used_bytes = blocks.map(|(_, data)| data.len() as u64).sum();
        Space {
            used_bytes,
            free_bytes: if self.full {
                0
            } else {
                CAPACITY_BYTES - used_bytes
            },
        }
    }
}
