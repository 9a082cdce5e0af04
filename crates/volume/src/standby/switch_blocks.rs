//! What the new active gets of the standby's blocks: the overlay's, under their files' shared ids, until
//! they are written back, and what was known of the base.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use dax::ids::{BlockIndex, BlockKey, FileId, Generation, Version};
use imbl::OrdMap;
use parking_lot::Mutex;

use super::fetch::zeros;
use super::known::Known;
use super::overlay::{BlockItem, Content};
#[cfg(test)]
use super::simulation::flaw::Flaw;
use crate::active::{InheritedBase, InheritedBlocks};
use crate::cache::Cached;
use crate::error::Result;
use crate::seal::Base;

/// What was known of the base when the view was switched.
pub(crate) struct BaseBlocks {
    pub base: Arc<Base>,
    pub known: Arc<Known>,
}

impl InheritedBase for BaseBlocks {
    fn cached(&self, key: BlockKey) -> Option<Cached> {
        self.known.find(&self.base, key)
    }

    fn expected(&self, key: BlockKey) -> Option<(Generation, Version)> {
        let known = self.known.expect(&self.base, key)?;
        Some((known.since, known.version))
    }

    fn forget(&self, key: BlockKey) {
        self.known.forget(key);
    }
}

/// The overlay's blocks.
pub(crate) struct OverlayBlocks {
    block_bytes: u32,
    files: Mutex<BTreeMap<FileId, OrdMap<u64, BlockItem>>>,
    #[cfg(test)]
    flaw: Option<Flaw>,
}

impl OverlayBlocks {
    /// Takes the blocks of each file; they are shared, not copied.
    pub fn new(
        block_bytes: u32,
        files: impl IntoIterator<Item = (FileId, OrdMap<u64, BlockItem>)>,
    ) -> OverlayBlocks {
        let files = files.into_iter().filter(|(_, blocks)| !blocks.is_empty());
        OverlayBlocks {
            block_bytes,
            files: Mutex::new(files.collect()),
            #[cfg(test)]
            flaw: None,
        }
    }

    #[cfg(test)]
    pub fn with_flaw(self, flaw: Option<Flaw>) -> OverlayBlocks {
        OverlayBlocks { flaw, ..self }
    }

    fn bytes(&self, content: &Content) -> Result<Bytes> {
        match content {
            Content::Zeros => Ok(zeros(self.block_bytes)),
            Content::Stored(block) => Ok(block.read_blocking()?),
        }
    }

    fn remove(&self, key: BlockKey) {
        let mut files = self.files.lock();
        if let Some(blocks) = files.get_mut(&key.file) {
            blocks.remove(&key.block.0);
            if blocks.is_empty() {
                files.remove(&key.file);
            }
        }
    }

    fn first(&self, max: usize) -> Vec<(BlockKey, Content)> {
        let files = self.files.lock();
        let blocks = files.iter().flat_map(|(file, blocks)| {
            let block = |(block, item): (&u64, &BlockItem)| {
                (BlockKey::new(*file, *block), item.content.clone())
            };
            blocks.iter().map(block)
        });
        blocks.take(max).collect()
    }
}

impl InheritedBlocks for OverlayBlocks {
    fn get(&self, key: BlockKey) -> Result<Option<Bytes>> {
        let files = self.files.lock();
        let found = files
            .get(&key.file)
            .and_then(|blocks| blocks.get(&key.block.0));
        let content = found.map(|item| item.content.clone());
        drop(files);
        content.map(|content| self.bytes(&content)).transpose()
    }

    fn discard(&self, key: BlockKey) {
        self.remove(key);
    }

    fn discard_from(&self, file: FileId, first: BlockIndex) {
        let mut files = self.files.lock();
        let Some(blocks) = files.get_mut(&file) else {
            return;
        };
        let range = (Bound::Included(first.0), Bound::Unbounded);
        let beyond: Vec<u64> = blocks.range::<_, u64>(range).map(|(b, _)| *b).collect();
        for block in beyond {
            blocks.remove(&block);
        }
        if blocks.is_empty() {
            files.remove(&file);
        }
    }

    fn some(&self, max: usize) -> Result<Vec<(BlockKey, Bytes)>> {
        let mut some = Vec::new();
        for (key, content) in self.first(max) {
            match self.bytes(&content) {
                Ok(bytes) => some.push((key, bytes)),
                // The others go first; the error comes again then.
                Err(_) if !some.is_empty() => break,
                Err(e) => return Err(e),
            }
            #[cfg(test)]
            if self.flaw == Some(Flaw::TakenBeforeWritten) {
                self.remove(key);
            }
        }
        Ok(some)
    }

    fn contains(&self, key: BlockKey) -> bool {
        #[cfg(test)]
        if self.flaw == Some(Flaw::TakenBeforeWritten) {
            return true;
        }
        let files = self.files.lock();
        let blocks = files.get(&key.file);
        blocks.is_some_and(|blocks| blocks.contains_key(&key.block.0))
    }

    fn len(&self) -> usize {
        self.files.lock().values().map(OrdMap::len).sum()
    }
}
