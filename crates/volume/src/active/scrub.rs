//! A scrub of the whole volume: copies that differ are mended, and blocks of files that nobody knows
//! (a crash may leave them) are given back.
//!
//! Invariant: a file is garbage only if a dead epoch made it and neither the present namespace nor
//! that of a kept seal knows it, not even as removed. When in doubt it stays.

use std::collections::HashSet;
use std::sync::Arc;

use dax::ids::{BlockKey, Epoch, FileId, ReplicaId};
use dax::storage::{ScrubCursor, Storage};

use super::ActiveView;
use super::read::epoch_of;
use crate::error::Result;
use crate::namespace::{JOURNAL, Namespace, ROOT};
use crate::seal::{Base, Seal};

/// What one step did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubStep {
    /// Blocks compared, of all generations.
    pub blocks: u64,
    /// Copies that were missing, old or damaged, and were sent again.
    pub mended: u64,
    /// Files given back because nobody knows them.
    pub garbage_files: u64,
    /// Blocks of which no zone that is up has an intact copy.
    pub unreadable: Vec<BlockKey>,
    /// The scrub is complete; these replicas had lost everything and count again.
    pub complete: Option<Vec<ReplicaId>>,
}

/// One scrub, from the beginning to the end.
pub struct Scrub {
    storage: Arc<dyn Storage>,
    known: Known,
    after: Option<ScrubCursor>,
}

impl ActiveView {
    /// Begins a scrub. Reads the namespaces of the kept seals.
    pub async fn scrub(&self) -> Result<Scrub> {
        let inner = &self.inner;
        let (present, seals) = {
            let core = inner.core.lock();
            (core.namespace.clone(), core.seals.clone())
        };
        let mut namespaces = vec![present];
        for seal in &seals {
            namespaces.push(Base::load(&inner.storage, seal).await?.namespace);
        }
        Ok(Scrub {
            storage: Arc::clone(&inner.storage),
            known: Known::new(inner.epoch, namespaces, seals.iter().flat_map(Seal::files)),
            after: None,
        })
    }
}

impl Scrub {
    /// Compares and mends the next part. Waits while too few zones are up.
    pub async fn step(&mut self) -> Result<ScrubStep> {
        let mut page = self.storage.scrub(self.after).await?;
        let known = &self.known;
        page.files.retain(|file| known.is_garbage(*file));
        let garbage = page.files;
        if !garbage.is_empty() {
            self.storage.remove_files(&garbage).await?;
        }
        page.differences
            .retain(|d| garbage.binary_search(&d.key.file).is_err());
        let mut step = ScrubStep {
            blocks: page.blocks,
            mended: page.differences.len() as u64,
            garbage_files: garbage.len() as u64,
            unreadable: page.unreadable,
            complete: None,
        };
        if !page.differences.is_empty() {
            self.storage.mend(page.differences).await?;
        }
        self.after = page.next;
        if self.after.is_none() {
            step.complete = Some(self.storage.end_scrub().await?);
        }
        Ok(step)
    }
}

/// Which files somebody may still ask for.
struct Known {
    epoch: Epoch,
    namespaces: Vec<Namespace>,
    /// Removed but not given back yet, retained, or no part of a namespace.
    others: HashSet<FileId>,
}

impl Known {
    fn new(
        epoch: Epoch,
        namespaces: Vec<Namespace>,
        sealed: impl Iterator<Item = FileId>,
    ) -> Known {
        let mut others = HashSet::from([ROOT, JOURNAL]);
        others.extend(sealed);
        for namespace in &namespaces {
            others.extend(namespace.removed());
            others.extend(namespace.all_retained().map(|(_, _, id)| id));
        }
        Known {
            epoch,
            namespaces,
            others,
        }
    }

    fn is_garbage(&self, file: FileId) -> bool {
        // What this epoch makes may be newer than the namespaces looked at.
        epoch_of(file) < self.epoch
            && !self.others.contains(&file)
            && self.namespaces.iter().all(|ns| ns.get(file).is_none())
    }
}
