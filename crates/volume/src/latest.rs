//! The latest state of a volume, in the hands of the epoch's new owner: what a takeover reads,
//! repairs and changes before the volume is opened for writing again.

use std::sync::Arc;

use bytes::Bytes;
use dax::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, Version};
use dax::storage::{Lineage, Storage, SyncScope};

use crate::error::{Error, Result};
use crate::image;
use crate::journal::tail::{self, Recovered};
use crate::journal::{Chained, JournalPos, JournalTail, JournalWriter};
use crate::layout::{FileClass, Layout};
use crate::lsn::Lsn;
use crate::namespace::op::Op;
use crate::namespace::{Cut, Namespace, ROOT};
use crate::seal::{self, Seal};
use crate::snapshot;
use crate::view::{FileKind, Ownership, Timestamp};

/// Makes a new, empty volume: a root directory, and a seal of just that, so that there always is
/// one. The handle owns an epoch.
///
/// # Errors
/// `Exists` if the volume was formatted before.
pub async fn format(storage: &Arc<dyn Storage>, root: Ownership, now: Timestamp) -> Result<Seal> {
    let epoch = owned_epoch(storage)?;
    if !seal::promote_seals(storage).await?.is_empty() {
        return Err(Error::Exists);
    }
    let namespace = Namespace::new(root, FileClass::Data, now);
    let file = FileId::new(epoch, 1);
    let snapshot = snapshot::store(storage, file, &namespace, Chained::START).await?;
    let generation = Generation { epoch, number: 0 };
    let seal = Seal {
        generation,
        lineage: Lineage::up_to(generation),
        journal: JournalPos::START,
        snapshot,
        redo: Lsn::ZERO,
        end: Lsn::ZERO,
        lists: Vec::new(),
        at: Some(now),
        newest_file: Some(file),
        payload: Vec::new(),
    };
    seal::put_seals(storage, std::slice::from_ref(&seal)).await?;
    Ok(seal)
}

pub(crate) fn owned_epoch(storage: &Arc<dyn Storage>) -> Result<Epoch> {
    storage
        .epoch()
        .ok_or(Error::Invalid("the storage handle owns no epoch"))
}

/// The latest namespace with the journal positioned at its end. Changes made here become durable
/// with [`Latest::commit`].
pub struct Latest {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) epoch: Epoch,
    pub(crate) namespace: Namespace,
    pub(crate) journal: JournalWriter,
    pub(crate) seals: Vec<Seal>,
    pub(crate) next_file: u64,
    pub(crate) buried: Vec<(FileId, JournalPos)>,
    /// Data blocks written in this epoch so far; `None` if others may have been.
    pub(crate) written: Option<Vec<(BlockKey, Version)>>,
    changed_since_seal: bool,
    pub(crate) log_fixed: bool,
}

impl Latest {
    /// Reads the latest state under the epoch that the handle has just come to own: the seals and
    /// the journal's tail are fixed by ReadPromote (DAX 5).
    ///
    /// # Errors
    /// `NotFound` if the volume was never formatted.
    pub async fn recover(storage: Arc<dyn Storage>, now: Timestamp) -> Result<Latest> {
        let seals = seal::promote_seals(&storage).await?;
        let last = seals.last().ok_or(Error::NotFound)?;
        let namespace = snapshot::load(&storage, &last.snapshot).await?;
        let start = JournalTail::new(storage.clone(), namespace, last.snapshot.place());
        Latest::recover_from(start, seals, now).await
    }

    /// The same for a standby that already follows the journal: reads only what is behind `tail`.
    pub async fn recover_behind(tail: JournalTail, now: Timestamp) -> Result<Latest> {
        let seals = seal::promote_seals(tail.storage()).await?;
        Latest::recover_from(tail, seals, now).await
    }

    async fn recover_from(start: JournalTail, seals: Vec<Seal>, now: Timestamp) -> Result<Latest> {
        let storage = start.storage().clone();
        let epoch = owned_epoch(&storage)?;
        let sealed = seals.last().ok_or(Error::NotFound)?.journal;
        let from = start.position();
        let Recovered {
            namespace,
            end,
            tail,
            mut buried,
            changed,
            opened,
        } = tail::recover(&storage, start.namespace().clone(), start.place(), sealed).await?;
        if end.at < sealed {
            return Err(Error::Damaged(format!(
                "the journal ends at {end}, before the last seal",
                end = end.at
            )));
        }
        let opened_before = opened == Some(epoch);
        // Whatever left the namespace before our start did so no later than the start.
        buried.splice(0..0, namespace.removed().map(|id| (id, from.max(sealed))));
        let journal = JournalWriter::new(storage.clone(), end, tail);
        journal.append_record(vec![Op::Opened { epoch, at: now }])?;
        Ok(Latest {
            storage,
            epoch,
            namespace,
            journal,
            seals,
            next_file: 2,
            buried,
            written: (!opened_before).then(Vec::new),
            changed_since_seal: changed || from > sealed,
            log_fixed: false,
        })
    }

    /// The namespace, with the changes made here.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The kept seals, newest last; at least one.
    pub fn seals(&self) -> &[Seal] {
        &self.seals
    }

    /// The storage, which owns the epoch.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// The epoch that owns this state.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// True if the predecessor's journal goes on after its last seal with more than housekeeping
    /// (then it must not be started directly, N1). May say yes where it did not, after
    /// [`recover_behind`](Self::recover_behind).
    pub fn changed_since_seal(&self) -> bool {
        self.changed_since_seal
    }

    /// A new file's id.
    pub fn allocate(&mut self) -> FileId {
        let id = FileId::new(self.epoch, self.next_file);
        self.next_file += 1;
        id
    }

    /// Applies operations as one record of the journal: all of them or none survive a crash.
    ///
    /// # Errors
    /// `Damaged` if one does not fit, `Invalid` if they are too long for a record; nothing is changed then.
    pub fn apply(&mut self, ops: Vec<Op>) -> Result<()> {
        let mut namespace = self.namespace.clone();
        let mut buried = Vec::new();
        for op in &ops {
            buried.extend(namespace.apply(op)?);
        }
        let at = self.journal.append_record(ops)?;
        self.namespace = namespace;
        self.buried.extend(buried.into_iter().map(|id| (id, at)));
        Ok(())
    }

    /// Makes the directories that the layout needs at the top and that are missing, as the volume's owner has them.
    ///
    /// # Errors
    /// `Damaged` if the volume has no root.
    pub fn make_needed_directories(&mut self, layout: &dyn Layout, now: Timestamp) -> Result<()> {
        for name in layout.needed_directories() {
            if self.namespace.lookup(ROOT, name.as_bytes()).is_ok() {
                continue;
            }
            let root = self.namespace.inode(ROOT)?;
            let made = Op::Create {
                parent: ROOT,
                kind: FileKind::Directory,
                class: layout.class(&name),
                mode: root.mode,
                uid: root.uid,
                gid: root.gid,
                target: None,
                at: now,
                id: self.allocate(),
                name: name.into_bytes(),
            };
            self.apply(vec![made])?;
        }
        Ok(())
    }

    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`.
    pub fn remove_file(&mut self, parent: FileId, name: &[u8], now: Timestamp) -> Result<()> {
        let ops = self.namespace.clone().unlink(parent, name, now)?;
        self.apply(ops)
    }

    /// Removes a directory with everything in it.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`.
    pub fn remove_tree(&mut self, parent: FileId, name: &[u8], now: Timestamp) -> Result<()> {
        let ops = self.namespace.clone().remove_tree(parent, name, now)?;
        self.apply(ops)
    }

    /// Ends a log file: whatever a dead epoch stored from `first_block` on reads as zeros from now
    /// on (H12). The size stays.
    pub fn cut_log(&mut self, file: FileId, first_block: BlockIndex, now: Timestamp) -> Result<()> {
        let size = self.namespace.file(file)?.size;
        let cut = Cut {
            first_block,
            version: self.storage.next_version()?,
        };
        self.apply(vec![Op::Truncate {
            id: file,
            size,
            cut,
            at: now,
        }])
    }

    /// The end of the log is known, and [cut](Self::cut_log) off behind: every block of a segment that no mark
    /// of this epoch covers was durable before, or was [read](Self::read_log_block) here. Such blocks need no
    /// ReadPromote.
    pub fn log_is_fixed(&mut self) {
        self.log_fixed = true;
    }

    /// A block of a log or live file, fixed under this epoch (ReadPromote, DAX 5). `None`: zeros.
    pub async fn read_log_block(&self, file: FileId, block: BlockIndex) -> Result<Option<Bytes>> {
        let inode = self.namespace.file(file)?;
        let key = BlockKey { file, block };
        if !inode.has_cut_over(block) {
            let found = self.storage.read_promote(key).await?;
            return Ok(found.map(|b| b.data));
        }
        // Promotion would give the block a version above the truncation mark; see `image::settled`.
        let Some(found) = self.storage.read(key, Generation::SINGLE).await? else {
            return Ok(None);
        };
        let data = image::settled(inode, block, found);
        self.write_log_block(file, block, data.clone()).await?;
        self.storage.csync(SyncScope::File(file)).await?;
        Ok(Some(data))
    }

    /// Rewrites a block of a log or live file in this epoch, durable with the next [`commit`](Self::commit).
    pub async fn write_log_block(
        &self,
        file: FileId,
        block: BlockIndex,
        data: Bytes,
    ) -> Result<()> {
        self.storage.write_room(data.len()).await?;
        self.storage
            .write(BlockKey { file, block }, Generation::SINGLE, data)?;
        Ok(())
    }

    /// Writes a block of a data file in this epoch, durable with the next [`commit`](Self::commit).
    pub(crate) async fn write_data_block(
        &mut self,
        key: BlockKey,
        generation: Generation,
        data: Bytes,
    ) -> Result<()> {
        self.storage.write_room(data.len()).await?;
        let version = self.storage.write(key, generation, data)?;
        self.written.iter_mut().for_each(|w| w.push((key, version)));
        Ok(())
    }

    /// Returns when every change and block written here is durable.
    pub async fn commit(&self) -> Result<()> {
        self.storage.csync(SyncScope::Volume).await?;
        self.journal.flush().await
    }
}
