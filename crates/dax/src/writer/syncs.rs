//! Who waits until writes are durable.
//!
//! Invariant: nobody is told before everything that was written up to then is on enough replicas.

use crate::ids::FileId;

use super::pending::{Pending, Seq};

#[derive(Debug)]
struct Wait<T> {
    file: Option<FileId>,
    upto: Seq,
    who: T,
}

/// Waits until writes up to a number, of one file or of all, are durable.
#[derive(Debug)]
pub struct SyncWaits<T>(Vec<Wait<T>>);

impl<T> Default for SyncWaits<T> {
    fn default() -> SyncWaits<T> {
        SyncWaits(Vec::new())
    }
}

impl<T> SyncWaits<T> {
    /// Somebody waits for all writes up to `upto`, or those of one file.
    pub fn add(&mut self, file: Option<FileId>, upto: Seq, who: T) {
        self.0.push(Wait { file, upto, who });
    }

    /// Those who need not wait any more.
    pub fn complete(&mut self, pending: &mut Pending) -> Vec<T> {
        let complete = self
            .0
            .extract_if(.., |wait| pending.is_synced(wait.file, wait.upto));
        complete.map(|wait| wait.who).collect()
    }

    /// Keeps only those for whom this holds.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.0.retain(|wait| keep(&wait.who));
    }

    /// Nobody waits any more.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ids::{BlockKey, Epoch, Generation, ReplicaId};
    use crate::storage::VolumeSettings;
    use crate::writer::{Handle, ReplicaSet};

    #[test]
    fn waiters_for_a_file_are_told_when_it_is_synced() {
        let mut handle = Handle::new(&VolumeSettings::default(), 10);
        handle.adopt(Epoch(1));
        let mut waits = SyncWaits::default();
        for file in [7, 8] {
            let version = handle.next_version();
            let key = BlockKey::new(FileId(file), 0);
            let data = Bytes::from_static(b"contents");
            let replicas = ReplicaSet::first(1);
            handle.store(version, key, Generation::SINGLE, data, replicas);
        }
        waits.add(Some(FileId(8)), 2, "file");
        waits.add(None, 2, "all");
        waits.add(None, 2, "went away");
        waits.retain(|who| *who != "went away");
        assert!(waits.complete(&mut handle.pending).is_empty());
        handle.acked(2, ReplicaId(0), |_| true, |_, _| {});
        assert_eq!(waits.complete(&mut handle.pending), ["file"]);
        handle.acked(1, ReplicaId(0), |_| true, |_, _| {});
        assert_eq!(waits.complete(&mut handle.pending), ["all"]);
    }
}
