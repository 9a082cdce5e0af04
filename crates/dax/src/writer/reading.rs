//! One read of one handle: what answers it, whoever is asked and how (DAX 3.1, 4; CAC-DB 4.5.2).
//!
//! ```text
//! begin ──▶ answered: it is pending, or known to be absent
//!   │
//!   ├──▶ the version is known: one replica's answer, if it is what must be found (`takes`)
//!   │                                    │ it is not
//!   └──▶ the version is not known ───────┴──▶ a quorum's newest, unless it is behind (`is_behind`)
//! ```
//!
//! Invariant: no answer is older than what this handle knows to be on a quorum; of a sealed image, none but exactly
//! the version that it has.

use crate::ids::{BlockKey, Generation, Version};
use crate::storage::Block;

use super::handle::Handle;
use super::versions::Known;

/// One read, with the version that its answer must have at least.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// What is read,
    pub key: BlockKey,
    /// as of which generation.
    pub up_to: Generation,
    /// What it must return at least.
    known: Option<Known>,
    /// The caller knows it: of a sealed generation.
    sealed: bool,
    /// No single replica is asked for what is known.
    pessimistic: bool,
}

impl Reading {
    /// A read as of `up_to`.
    pub fn new(key: BlockKey, up_to: Generation) -> Reading {
        Reading {
            key,
            up_to,
            known: None,
            sealed: false,
            pessimistic: false,
        }
    }

    /// A read as of a sealed generation that must return this version.
    pub fn expecting(key: BlockKey, up_to: Generation, version: Version) -> Reading {
        let known = Known {
            version,
            generation: up_to,
            as_of: up_to,
            settled: true,
        };
        Reading {
            known: Some(known),
            sealed: true,
            ..Reading::new(key, up_to)
        }
    }

    /// The answer, if this handle has it; else who must be asked is decided.
    pub fn begin(&mut self, handle: &mut Handle) -> Option<Option<Block>> {
        if self.sealed {
            self.pessimistic = !handle.is_optimistic();
            return None;
        }
        let answer = handle.read_at_once(self.key, self.up_to);
        if answer.is_none() {
            self.known = handle.expected(self.key, self.up_to);
        }
        answer
    }

    /// What must be found at least: one replica's answer suffices then.
    pub fn known(&self) -> Option<Known> {
        self.known.filter(|_| !self.pessimistic)
    }

    /// What a sealed image has: it must be exactly that, whoever answers.
    pub fn sealed(&self) -> Option<Known> {
        self.known.filter(|_| self.sealed)
    }

    /// True if one replica's answer is the answer.
    pub fn takes(&self, handle: &Handle, found: Version) -> bool {
        let fresh = |known| handle.is_fresh(known, self.sealed, found);
        self.known().is_some_and(fresh)
    }

    /// The version that a quorum holds, if what was found is older: then it was not a quorum, or more was lost than
    /// the protocol bears.
    pub fn is_behind(&self, found: Version) -> Option<Version> {
        let settled = self.known.filter(|known| known.settled);
        settled.map(|known| known.version).filter(|v| found < *v)
    }

    /// A quorum has answered.
    pub fn learn(&self, handle: &mut Handle, found: Option<(Generation, Version)>) {
        let known = self.known();
        handle.learn(self.key, self.up_to, known, found);
        handle.counters.reads_quorum += 1;
        handle.counters.reads_escalated += u64::from(known.is_some());
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ids::{Epoch, FileId, ReplicaId};
    use crate::storage::{Protocol, VolumeSettings};
    use crate::writer::ReplicaSet;

    const KEY: BlockKey = BlockKey {
        file: FileId(9),
        block: crate::ids::BlockIndex(0),
    };

    fn handle() -> Handle {
        let mut handle = Handle::new(&VolumeSettings::default(), 100);
        handle.adopt(Epoch(3));
        handle
    }

    fn write(handle: &mut Handle) -> Version {
        let version = handle.next_version();
        let (single, data) = (Generation::SINGLE, Bytes::from_static(b"contents"));
        handle.store(version, KEY, single, data, ReplicaSet::first(1));
        version
    }

    fn of(epoch: u32, seq: u64) -> Version {
        let epoch = Epoch(epoch);
        Version { epoch, seq }
    }

    #[test]
    fn pending_writes_answer_reads_and_acknowledged_ones_must_be_found() {
        let mut handle = handle();
        let mut unknown = Reading::new(KEY, Generation::MAX);
        assert!(unknown.begin(&mut handle).is_none() && unknown.known().is_none());
        assert!(!unknown.takes(&handle, of(3, 1)));
        let version = write(&mut handle);
        let pending = Reading::new(KEY, Generation::MAX).begin(&mut handle);
        assert_eq!(pending.flatten().map(|block| block.version), Some(version));
        handle.acked(version.seq, ReplicaId(0), |_| true, |_, _| {});
        let mut known = Reading::new(KEY, Generation::MAX);
        assert!(known.begin(&mut handle).is_none());
        assert!(known.takes(&handle, version) && !known.takes(&handle, Version::ZERO));
        assert_eq!(known.is_behind(Version::ZERO), Some(version));
        assert_eq!(known.is_behind(version), None);
    }

    #[test]
    fn of_a_sealed_image_nothing_but_its_version_is_an_answer() {
        let mut handle = handle();
        let version = write(&mut handle);
        let sealed = Generation::SINGLE;
        let mut read = Reading::expecting(KEY, sealed, of(2, 7));
        assert!(read.begin(&mut handle).is_none(), "pending or not");
        assert!(read.takes(&handle, of(2, 7)) && !read.takes(&handle, version));
        assert!(read.sealed().is_some() && read.is_behind(of(2, 6)).is_some());
    }

    #[test]
    fn also_where_quorums_are_asked_at_once_a_sealed_image_does_not_go_back() {
        let settings = VolumeSettings {
            protocol: Protocol::Quorum,
            ..VolumeSettings::default()
        };
        let mut handle = Handle::new(&settings, 100);
        let mut read = Reading::expecting(KEY, Generation::SINGLE, of(2, 7));
        assert!(read.begin(&mut handle).is_none() && read.known().is_none());
        assert!(!read.takes(&handle, of(2, 7)), "one replica's word");
        assert_eq!(read.is_behind(of(2, 6)), Some(of(2, 7)));
    }

    #[test]
    fn an_answer_of_a_quorum_is_learned_and_counted() {
        let mut handle = handle();
        let mut read = Reading::new(KEY, Generation::MAX);
        read.begin(&mut handle);
        read.learn(&mut handle, Some((Generation::SINGLE, of(2, 7))));
        assert_eq!(handle.counters.reads_quorum, 1);
        let mut again = Reading::new(KEY, Generation::MAX);
        again.begin(&mut handle);
        assert!(again.takes(&handle, of(2, 7)));
    }
}
