//! What a backend has to do, in steps that nothing comes between.

use std::collections::VecDeque;

use super::log::Record;
use super::page::{File, Rel};

/// One thing that a backend does without anybody in between.
#[derive(Debug, Clone)]
pub(super) enum Step {
    CreateFile(File),
    MakeDirectory(u8),
    Log(Record),
    Flush,
    /// A new page at the end of a relation.
    Extend(Rel),
    /// A change of any page of a relation, if it has one.
    Change(Rel),
    /// A bulk writer logs a page whole.
    BulkLog {
        file: File,
        block: u64,
    },
    /// It writes the page past the buffers.
    BulkWrite {
        file: File,
        block: u64,
    },
    Sync(File),
    /// The buffers of a relation are dropped, whatever they hold.
    Forget(Rel),
    ForgetDb(u8),
    /// Removes a fork; of the main fork an empty stub stays until after the next checkpoint.
    Remove(File),
    /// Until a checkpoint that began later is done. The number is known once it is asked for.
    AwaitCheckpoint(Option<u64>),
    /// The next file of a database that is copied; again until all are.
    CopyNext {
        from: u8,
        to: u8,
    },
    /// The next file of a database that is removed; at last the directory.
    RemoveNext(u8),
}

/// A backend at work: what it locks and what it has still to do.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub rel: Option<Rel>,
    /// Databases where nobody else may work.
    pub dbs: Vec<u8>,
    pub steps: VecDeque<Step>,
}

impl Task {
    /// True if it is at something that a checkpoint may come between, with bad consequences: pages logged
    /// and not written yet (N2), a directory that is removed before the log says so (N8).
    pub fn is_exposed(&self) -> bool {
        let next = self.steps.front();
        matches!(next, Some(Step::BulkWrite { .. } | Step::RemoveNext(_)))
    }

    /// True if it is at something that the next checkpoint's image may have a part of: changes of what it made,
    /// a directory that is copied.
    pub fn is_unfinished(&self) -> bool {
        let next = self.steps.front();
        matches!(next, Some(Step::Change(_) | Step::CopyNext { .. }))
    }
}
