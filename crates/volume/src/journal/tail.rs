//! The readers' side of the journal.

use std::ops::Range;
use std::sync::Arc;

use dax::ids::{BlockKey, Epoch, FileId, Generation};
use dax::storage::{Block, Storage};
use tokio::task::JoinSet;

use super::frame::{self, Front};
use super::{Chained, JournalPos};
use crate::error::{Error, Result};
use crate::namespace::op::{self, Op};
use crate::namespace::{JOURNAL, Namespace};

/// Blocks asked for at once.
const WINDOW_BLOCKS: u64 = 64;
/// The same for a look, which usually finds nothing more.
const LOOK_BLOCKS: u64 = 4;

/// Follows the journal of a living active: a namespace and the position it stands for.
#[derive(Clone)]
pub struct JournalTail {
    storage: Arc<dyn Storage>,
    namespace: Namespace,
    place: Chained,
}

impl JournalTail {
    /// Starts with a namespace as of `place` (a loaded base).
    pub fn new(storage: Arc<dyn Storage>, namespace: Namespace, place: Chained) -> JournalTail {
        JournalTail {
            storage,
            namespace,
            place,
        }
    }

    /// Where it reads.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// The namespace as of [`position`](Self::position).
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// How far the journal was applied.
    pub fn position(&self) -> JournalPos {
        self.place.at
    }

    /// The position with the checksum that it continues.
    pub fn place(&self) -> Chained {
        self.place
    }

    /// Reads on to where the journal ends for whoever looks now, and changes nothing: says whether this program could go
    /// on from there. Its active may write on meanwhile, so later there may be more.
    ///
    /// # Errors
    /// `Damaged` if the journal has a form that this program does not read, or does not fit the namespace; as the storage
    /// if contents of a block cannot be understood.
    pub async fn look(&self) -> Result<JournalPos> {
        let (namespace, place) = (self.namespace.clone(), self.place);
        let read = read_on(
            &self.storage,
            namespace,
            place,
            place.at,
            LOOK_BLOCKS,
            false,
        );
        Ok(read.await?.end.at)
    }

    /// Applies the journal up to `to`, a position that the active announced as durable. Does
    /// nothing if that is behind.
    ///
    /// # Errors
    /// `Damaged` if the journal does not reach `to`, or does not fit the namespace; the tail stays
    /// where it was.
    pub async fn advance(&mut self, to: JournalPos) -> Result<()> {
        if to <= self.place.at {
            return Ok(());
        }
        let read = JournalPart::read(Arc::clone(&self.storage), self.place.at..to);
        self.apply(&read.await?)
    }

    /// Applies what was read from where this tail is.
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    pub fn apply(&mut self, read: &JournalPart) -> Result<()> {
        let Range { start, end: to } = read.range;
        if start != self.place.at {
            return Err(short(self.place.at, to));
        }
        let mut namespace = self.namespace.clone();
        let mut place = self.place;
        let used = apply_records(&read.bytes, &mut place, |_, op| {
            namespace.apply(op).map(drop)
        })?;
        if used != read.bytes.len() {
            return Err(short(place.at, to));
        }
        self.namespace = namespace;
        self.place = place;
        Ok(())
    }
}

/// A part of the journal that was read and is not applied: the next one may be read meanwhile.
pub struct JournalPart {
    range: Range<JournalPos>,
    bytes: Vec<u8>,
}

impl JournalPart {
    /// Reads `range`, which is not empty and of which all is durable.
    ///
    /// # Errors
    /// `Damaged` if a part of it is not there.
    pub async fn read(storage: Arc<dyn Storage>, range: Range<JournalPos>) -> Result<JournalPart> {
        let Range { start, end } = range;
        let block_size = u64::from(storage.settings().block_size_bytes);
        let blocks = start.0 / block_size..end.0.div_ceil(block_size);
        let first_byte = blocks.start * block_size;
        let mut bytes = Vec::new();
        for block in read_blocks(&storage, JOURNAL, blocks, false).await? {
            let block = block.ok_or_else(|| short(start, end))?;
            bytes.extend_from_slice(&block.data);
        }
        bytes.truncate((end.0 - first_byte) as usize);
        bytes.drain(..(start.0 - first_byte) as usize);
        Ok(JournalPart { range, bytes })
    }
}

fn short(at: JournalPos, to: JournalPos) -> Error {
    Error::Damaged(format!(
        "the journal ends at {at}, but {to} was announced as durable"
    ))
}

/// Applies the records at the front of `bytes`, each operation with the position at which its
/// record ends; returns the bytes they take.
fn apply_records(
    bytes: &[u8],
    place: &mut Chained,
    mut apply: impl FnMut(JournalPos, &Op) -> Result<()>,
) -> Result<usize> {
    let start = place.at.0;
    loop {
        let used = (place.at.0 - start) as usize;
        match frame::read(&bytes[used..], place) {
            Front::Record(payload) => {
                op::decode(payload)?
                    .iter()
                    .try_for_each(|op| apply(place.at, op))?;
            }
            Front::Partial | Front::End => return Ok(used),
        }
    }
}

/// Everything a successor must know to go on with the journal.
pub(crate) struct Recovered {
    pub namespace: Namespace,
    pub end: Chained,
    /// What the block of `end` holds before it.
    pub tail: Vec<u8>,
    /// Ids that left the namespace, each with an upper bound of where.
    pub buried: Vec<(FileId, JournalPos)>,
    /// True if anything but housekeeping was done after `watch_from`.
    pub changed: bool,
    /// The epoch that opened the journal last, among what was read.
    pub opened: Option<Epoch>,
}

/// Reads on from `place` with ReadPromote (DAX 5) until the chain breaks. The handle owns the
/// epoch, so what this finds is the end of the journal for everybody after.
pub(crate) async fn recover(
    storage: &Arc<dyn Storage>,
    namespace: Namespace,
    place: Chained,
    watch_from: JournalPos,
) -> Result<Recovered> {
    read_on(storage, namespace, place, watch_from, WINDOW_BLOCKS, true).await
}

/// The same, so many blocks at a time; with plain reads where `promote` is false.
async fn read_on(
    storage: &Arc<dyn Storage>,
    mut namespace: Namespace,
    mut place: Chained,
    watch_from: JournalPos,
    window_blocks: u64,
    promote: bool,
) -> Result<Recovered> {
    let block_size = u64::from(storage.settings().block_size_bytes);
    let (first, offset) = place.at.block(block_size);
    let mut next = first;
    // Bytes from `place` on, behind those of its first block that are known already.
    let mut skip = offset;
    let mut rest = Vec::new();
    let mut before = Vec::new();
    let mut buried = Vec::new();
    let mut changed = false;
    let mut opened = None;
    let mut ended = false;
    while !ended {
        let window = next..next + window_blocks;
        next = window.end;
        for block in read_blocks(storage, JOURNAL, window, promote).await? {
            let Some(block) = block else {
                ended = true;
                break;
            };
            before.extend_from_slice(&block.data[..skip]);
            rest.extend_from_slice(&block.data[skip..]);
            skip = 0;
        }
        let used = apply_records(&rest, &mut place, |end, op| {
            buried.extend(namespace.apply(op)?.into_iter().map(|id| (id, end)));
            changed |= end > watch_from && !op.is_housekeeping();
            if let Op::Opened { epoch, .. } = op {
                opened = Some(*epoch);
            }
            Ok(())
        })?;
        before.extend(rest.drain(..used));
        ended |= frame::read(&rest, &mut { place }) == Front::End;
    }
    if before.len() as u64 % block_size != place.at.0 % block_size {
        return Err(Error::Damaged(format!(
            "the journal's block before {} is missing",
            place.at
        )));
    }
    let tail = before.split_off(before.len() - (place.at.0 % block_size) as usize);
    Ok(Recovered {
        namespace,
        end: place,
        tail,
        buried,
        changed,
        opened,
    })
}

/// Reads blocks that keep one version, many at once, in order.
pub(crate) async fn read_blocks(
    storage: &Arc<dyn Storage>,
    file: FileId,
    blocks: Range<u64>,
    promote: bool,
) -> Result<Vec<Option<Block>>> {
    let mut found: Vec<Option<Block>> = vec![None; (blocks.end - blocks.start) as usize];
    let mut reads = JoinSet::new();
    let mut ahead = blocks.clone();
    loop {
        while reads.len() < WINDOW_BLOCKS as usize
            && let Some(block) = ahead.next()
        {
            let storage = storage.clone();
            let key = BlockKey::new(file, block);
            reads.spawn(async move {
                let read = match promote {
                    true => storage.read_promote(key).await,
                    false => storage.read(key, Generation::SINGLE).await,
                };
                (block, read)
            });
        }
        let Some(done) = reads.join_next().await else {
            return Ok(found);
        };
        let (block, read) = done.map_err(|e| Error::Damaged(format!("a read did not end: {e}")))?;
        found[(block - blocks.start) as usize] = read?;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dax::ids::NodeName;
    use dax::memory::MemoryCluster;
    use dax::storage::{SyncScope, VolumeSettings};

    use super::*;
    use crate::layout::FileClass;
    use crate::view::{Ownership, Timestamp};

    /// A standby that could not read the journal of a newer release owned the epoch first, and found out then.
    // hazard: U1
    #[tokio::test]
    async fn a_look_finds_what_cannot_be_read_and_changes_nothing() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let active: Arc<dyn Storage> = cluster.client();
        active
            .own_epoch(&NodeName::new("north").unwrap())
            .await
            .unwrap();
        let block_bytes = active.settings().block_size_bytes as usize;
        let key = BlockKey::new(JOURNAL, 0);
        let (mut bytes, mut place) = (Vec::new(), Chained::START);
        let now = Timestamp(1);
        let opened = Op::Opened {
            epoch: Epoch(1),
            at: now,
        };
        frame::write(&mut bytes, &mut place, &op::encode(&[opened]));
        let put = |bytes: &[u8]| {
            let mut block = bytes.to_vec();
            block.resize(block_bytes, 0);
            active
                .write(key, Generation::SINGLE, Bytes::from(block))
                .unwrap();
            active.csync(SyncScope::Volume)
        };
        put(&bytes).await.unwrap();
        let root = Ownership {
            mode: 0o700,
            uid: 1,
            gid: 1,
        };
        let namespace = Namespace::new(root, FileClass::Data, now);
        let standby: Arc<dyn Storage> = cluster.client();
        let tail = JournalTail::new(standby.clone(), namespace, Chained::START);
        assert_eq!(tail.look().await.unwrap(), place.at);
        assert_eq!(
            tail.position(),
            JournalPos::START,
            "it goes on from where it was"
        );
        let mut newer = op::encode(&[]);
        newer[0] = 99;
        frame::write(&mut bytes, &mut place, &newer);
        put(&bytes).await.unwrap();
        let error = tail.look().await.unwrap_err();
        assert!(error.to_string().contains("format 99"), "{error}");
        assert_eq!(standby.accepted_epoch().await.unwrap().epoch, Epoch(1));
    }
}
