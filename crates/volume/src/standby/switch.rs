//! The takeover's switch: the standby's view becomes the volume.
//!
//! ```text
//!   freeze ─> publish pg_control ─> one journal record: names and sizes of the view ─> durable
//!     ─> the active view opens on it, with the overlay's blocks to write back ─> everybody goes on there
//! ```
//!
//! A crash anywhere in between is harmless: the next standby attaches at the last seal and looks at
//! nothing else. Where a step fails the view goes on as a standby's. The time it takes follows the
//! number of changes since the base, not the size of the database; blocks are written back later.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use dax::ids::{BlockKey, FileId, Generation};

use super::overlay::Overlay;
use super::state::State;
use super::switch_blocks::{BaseBlocks, OverlayBlocks};
use super::switch_plan::{Switch, SwitchPlan, plan};
use super::switch_publish::{Published, Publisher};
use super::view::StandbyView;
use crate::active::{ActiveView, Inherited, Options, WriteObserver};
use crate::cache::Cached;
use crate::error::{Error, Result};
use crate::latest::Latest;
use crate::layout::FileClass;
use crate::lsn::Lsn;
use crate::namespace::Namespace;
use crate::view::{Ino, Timestamp, View};

impl StandbyView {
    /// Becomes the active's view. `latest` was recovered under the new epoch, its log's end is
    /// fixed, and PostgreSQL has replayed to it. Operations that come meanwhile wait and then go on
    /// at the view that this returns; they need no new mount.
    ///
    /// # Errors
    /// `Fenced` if somebody owns a higher epoch; `Invalid` if the view was switched before. The view
    /// is a standby's as before then.
    pub async fn become_active(
        self: &Arc<Self>,
        mut latest: Latest,
        observer: Arc<dyn WriteObserver>,
        options: Options,
        now: Timestamp,
    ) -> Result<ActiveView> {
        let frozen = self.gate.freeze().await;
        let frozen = frozen.ok_or(Error::Invalid("the view was switched already"))?;
        let state = self.state();
        let (files, contents) = self.change_names(&state, &mut latest, now)?;
        publish(&mut latest, &contents, state.block_bytes).await?;
        // After an error this view learns again at its next move.
        self.fetcher.known.close();
        self.forget_published(&contents, state.block_bytes);
        let namespace = latest.namespace().clone();
        let inherited = self.inherited(&state, &namespace, files);
        let active = ActiveView::open(
            latest,
            Arc::clone(&self.layout),
            Arc::clone(&self.private),
            observer,
            Some(inherited),
            options,
        )
        .await?;
        frozen.open_to(Arc::new(active.clone()) as Arc<dyn View>);
        // The blocks live on where they are needed.
        self.change_in_place(|state| state.overlay = Overlay::default());
        Ok(active)
    }

    /// Applies the one record that makes the namespace the view's; its contents are to be written.
    fn change_names(
        &self,
        state: &State,
        latest: &mut Latest,
        now: Timestamp,
    ) -> Result<(HashMap<Ino, FileId>, Vec<Published>)> {
        let cut = latest.storage().next_version()?;
        let paths = self.layout.published_at_switch();
        let before = latest.namespace().clone();
        let switch = Switch {
            state,
            latest: &before,
            published: &paths,
            cut,
        };
        let SwitchPlan { mut ops, files } = plan(&switch, || latest.allocate())?;
        let mut namespace = before;
        for op in &ops {
            namespace.apply(op)?;
        }
        let mut publisher = Publisher {
            layout: &*self.layout,
            private: &self.private,
            namespace,
            allocate: || latest.allocate(),
            cut,
            now,
            ops: Vec::new(),
            contents: Vec::new(),
        };
        for path in &paths {
            publisher.publish(path)?;
        }
        for directory in self.layout.added_at_switch() {
            publisher.add(&directory)?;
        }
        let contents = publisher.contents;
        ops.extend(publisher.ops);
        tracing::info!(
            operations = ops.len(),
            created = files.len(),
            published = contents.len(),
            "the standby's names become the volume's"
        );
        latest.apply(ops)?;
        // What the dead active had removed and the view still has is not removed.
        let namespace = &latest.namespace;
        latest.buried.retain(|(id, _)| namespace.get(*id).is_none());
        Ok((files, contents))
    }

    /// The base's version is not the one any more.
    fn forget_published(&self, contents: &[Published], block_bytes: u32) {
        for published in contents.iter().filter(|p| p.class == FileClass::Data) {
            for block in 0..published.data.len().div_ceil(block_bytes as usize) {
                let key = BlockKey::new(published.file, block as u64);
                self.fetcher.known.forget(key);
            }
        }
    }

    /// What is at hand of the last segment of the log of which anything is.
    fn last_segment(&self, namespace: &Namespace) -> Vec<(BlockKey, Cached)> {
        let mut starts: HashMap<FileId, Option<Lsn>> = HashMap::new();
        let mut start_of = |file: FileId| {
            let path = || namespace.path_of(file);
            let start = || Some(self.layout.log_range(&path()?)?.start);
            *starts.entry(file).or_insert_with(start)
        };
        let log = self.fetcher.cached_log();
        let log = log.filter_map(|(key, block)| Some((start_of(key.file)?, key, block)));
        let log: Vec<(Lsn, BlockKey, Cached)> = log.collect();
        let last = log.iter().map(|(start, ..)| *start).max();
        let of_last = log.into_iter().filter(|(start, ..)| Some(*start) == last);
        of_last.map(|(_, key, block)| (key, block)).collect()
    }

    fn inherited(
        &self,
        state: &State,
        namespace: &Namespace,
        mut aliases: HashMap<Ino, FileId>,
    ) -> Inherited {
        for (ino, item) in &state.overlay.inodes {
            let created = item.created.as_ref().filter(|c| c.class != FileClass::Data);
            if created.is_some()
                && let Some(file) = shared_twin(state, namespace, *ino)
            {
                aliases.insert(*ino, file);
            }
        }
        let file_of = |ino: Ino| match super::overlay::is_created(ino) {
            true => aliases.get(&ino).copied(),
            false => Some(FileId(ino.0)),
        };
        let data = |id: &FileId| {
            namespace
                .get(*id)
                .is_some_and(|i| i.class == FileClass::Data)
        };
        let blocks = state.overlay.inodes.iter().filter_map(|(ino, item)| {
            let id = file_of(*ino).filter(data)?;
            Some((id, item.blocks.clone()))
        });
        let blocks = OverlayBlocks::new(state.block_bytes, blocks);
        #[cfg(test)]
        let blocks = blocks.with_flaw(state.distortion.flaw);
        let opens = self.opens.lock();
        let open_counts = opens.iter().filter_map(|(ino, count)| {
            let id = file_of(*ino)?;
            namespace.get(id).map(|_| (id, *count))
        });
        let seal = &state.base.seal;
        Inherited {
            blocks: Arc::new(blocks),
            base: Some(Arc::new(BaseBlocks {
                base: Arc::clone(&state.base),
                known: Arc::clone(&self.fetcher.known),
            })),
            cache: Some(Arc::clone(&self.fetcher.cache)),
            open_counts: open_counts.collect(),
            lineage: seal.lineage.truncated(seal.generation),
            log: self.last_segment(namespace),
            aliases,
        }
    }
}

/// Writes published files; durable with the record itself.
async fn publish(latest: &mut Latest, contents: &[Published], block_bytes: u32) -> Result<()> {
    let generation = first_generation(latest);
    for published in contents {
        for (block, data) in published.data.chunks(block_bytes as usize).enumerate() {
            let key = BlockKey::new(published.file, block as u64);
            let data = padded(data, block_bytes);
            match published.class {
                FileClass::Data => latest.write_data_block(key, generation, data).await?,
                _ => latest.write_log_block(key.file, key.block, data).await?,
            }
        }
    }
    Ok(())
}

/// The shared file of log or configuration that a private one stood in front of.
fn shared_twin(state: &State, namespace: &Namespace, ino: Ino) -> Option<FileId> {
    let (dir, name) = state.home(ino)?;
    namespace.lookup(state.directory_id(dir)?, &name).ok()
}

/// The generation that the new epoch's first data writes belong to, as [`ActiveView::open`] has it.
fn first_generation(latest: &Latest) -> Generation {
    let first = Generation {
        epoch: latest.epoch(),
        number: 0,
    };
    let last = latest.seals().last().map(|s| s.generation);
    last.filter(|last| *last >= first)
        .map_or(first, Generation::next)
}

/// One whole block.
fn padded(data: &[u8], block_bytes: u32) -> Bytes {
    let mut block = BytesMut::zeroed(block_bytes as usize);
    block[..data.len()].copy_from_slice(data);
    block.freeze()
}
