//! A scrub of the whole volume: copies that differ are mended, and blocks of files that nobody knows
//! (a crash may leave them) are given back.
//!
//! Invariant: a file is garbage only if a dead epoch made it and neither the present namespace nor
//! that of a kept seal knows it, not even as removed. When in doubt it stays.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use dax::ids::{Epoch, FileId};
use dax::scrub::{Scrub, Scrubbed, Trouble};

use super::ActiveView;
use super::read::epoch_of;
use crate::error::Result;
use crate::namespace::{JOURNAL, Namespace, ROOT};
use crate::past::Pin;
use crate::seal::{Base, Seal};

impl ActiveView {
    /// Begins a scrub. Reads the namespaces of the kept seals.
    ///
    /// # Errors
    /// If they cannot be read.
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
        let (index, pins) = inner.everything_past().await?;
        let pinned: Vec<Seal> = pins.iter().map(Pin::seal).collect();
        let files = seals.iter().chain(&pinned).flat_map(Seal::files);
        let known = Known::new(inner.epoch, namespaces, files.chain(index.files()));
        let is_garbage = Box::new(move |file| known.is_garbage(file));
        Ok(Scrub::new(Arc::clone(&inner.storage), is_garbage))
    }
}

#[async_trait]
impl Scrubbed for ActiveView {
    async fn begin(&self) -> std::result::Result<Scrub, Trouble> {
        Ok(self.scrub().await?)
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
