//! Puts together again what the kernel has split inside a page.
//!
//! The kernel copies a write through its page cache page by page. If a page of the writer's memory
//! is not mapped at that moment (swapped out, being moved by compaction or between NUMA nodes), it
//! sends what it has, in the middle of a database page, and the rest as a second request. A crash
//! or a cut between the two would leave a torn page, which nothing repairs without full-page
//! writes. So the part of a database page that is yet to be completed waits here for its rest, and
//! is then handed over in one piece. Writes past the page cache are never split.
//!
//! Invariants: a part that waits is seen by every read; it reaches the view before any sync, size
//! change or other write of its file, and before the file's last handle is released. The kernel
//! holds the file's lock from the first request of a write to its last, so only reads and lookups
//! can come between the two halves of a split.
//!
//! Only a write that begins at a page and ends inside the file is taken for a split. A short write at
//! the end of a file is not: there a half is no torn page but a page that is not there yet.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use volume::error::Result;
use volume::view::{Ino, View};

use crate::translate::now;

/// The database's page, in bytes.
const PAGE: u64 = 8192;

/// The beginning of a page, whose rest is to come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PartialPage {
    /// Where it begins.
    pub(crate) offset: u64,
    /// What there is of it.
    pub(crate) data: Bytes,
}

impl PartialPage {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

/// What to hand to the view for one write, in this order.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// A part whose rest did not come.
    pub(crate) before: Option<Arc<PartialPage>>,
    /// This write, or as much of it as is whole.
    pub(crate) now: Option<PartialPage>,
    /// A part that `now` completes.
    pub(crate) completes: Option<Arc<PartialPage>>,
}

#[derive(Debug, Default)]
pub(crate) struct Joiner {
    parts: Mutex<HashMap<Ino, Arc<PartialPage>>>,
    /// Parts that wait, to be asked without the lock.
    waiting: AtomicUsize,
}

impl Joiner {
    /// What waits for its rest in a file.
    pub(crate) fn waiting(&self, ino: Ino) -> Option<Arc<PartialPage>> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.parts.lock().get(&ino).cloned()
    }

    /// All files in which something waits.
    pub(crate) fn all(&self) -> Vec<(Ino, Arc<PartialPage>)> {
        let parts = self.parts.lock();
        parts
            .iter()
            .map(|(ino, part)| (*ino, part.clone()))
            .collect()
    }

    /// Decides what to do with a write. `may_be_split` says whether it came through the page cache;
    /// `size` tells the file's size, and is asked only about a write that ends inside a page.
    pub(crate) fn accept(
        &self,
        ino: Ino,
        (offset, data): (u64, Bytes),
        may_be_split: bool,
        size: impl FnOnce() -> u64,
    ) -> Plan {
        let write = PartialPage { offset, data };
        let mut plan = Plan::default();
        let whole = match self.waiting(ino) {
            Some(part) if part.end() == offset => {
                let whole = join(&part, &write);
                plan.completes = Some(part);
                whole
            }
            other => {
                plan.before = other;
                write
            }
        };
        let end = whole.end();
        let may_be_split = may_be_split && !end.is_multiple_of(PAGE);
        if !(may_be_split && whole.offset.is_multiple_of(PAGE) && end < size()) {
            plan.now = Some(whole);
            return plan;
        }
        let page = end - end % PAGE;
        let at = (page - whole.offset) as usize;
        if at > 0 {
            let (offset, data) = (whole.offset, whole.data.slice(..at));
            plan.now = Some(PartialPage { offset, data });
        }
        let rest = PartialPage {
            offset: page,
            data: whole.data.slice(at..),
        };
        // What the rest continues is in it: it waits on as that.
        plan.completes = plan.completes.filter(|_| at > 0);
        self.wait(ino, rest);
        plan
    }

    fn wait(&self, ino: Ino, part: PartialPage) {
        let mut parts = self.parts.lock();
        parts.insert(ino, Arc::new(part));
        self.waiting.store(parts.len(), Ordering::Release);
    }

    /// A part has reached the view, or its file is gone.
    pub(crate) fn done(&self, ino: Ino, part: &Arc<PartialPage>) {
        let mut parts = self.parts.lock();
        if parts
            .get(&ino)
            .is_some_and(|other| Arc::ptr_eq(other, part))
        {
            parts.remove(&ino);
            self.waiting.store(parts.len(), Ordering::Release);
        }
    }
}

/// Hands a write to the view. Both halves of what must go get their place in the view's order at
/// once, in the first poll.
pub(crate) async fn carry_out(
    view: &dyn View,
    joiner: &Joiner,
    ino: Ino,
    plan: Plan,
) -> Result<()> {
    let write = |offset, data: &Bytes| view.write(ino, offset, data.clone(), now());
    let before = plan
        .before
        .as_ref()
        .map(|part| write(part.offset, &part.data));
    let now = plan.now.as_ref().map(|part| write(part.offset, &part.data));
    if let (Some(before), Some(part)) = (before, &plan.before) {
        before.await?;
        joiner.done(ino, part);
    }
    if let Some(now) = now {
        now.await?;
    }
    if let Some(part) = &plan.completes {
        joiner.done(ino, part);
    }
    Ok(())
}

/// Hands a part whose rest will not come to the view.
pub(crate) async fn settle(view: &dyn View, joiner: &Joiner, ino: Ino) -> Result<()> {
    let plan = Plan {
        before: joiner.waiting(ino),
        ..Plan::default()
    };
    carry_out(view, joiner, ino, plan).await
}

fn join(first: &PartialPage, second: &PartialPage) -> PartialPage {
    let mut data = BytesMut::with_capacity(first.data.len() + second.data.len());
    data.extend_from_slice(&first.data);
    data.extend_from_slice(&second.data);
    PartialPage {
        offset: first.offset,
        data: data.freeze(),
    }
}

/// What a read at `offset` returned, with a part that waited when it was received put over it.
pub(crate) fn over(offset: u64, read: Bytes, part: &PartialPage) -> Bytes {
    let from = part.offset.max(offset);
    let to = part.end().min(offset + read.len() as u64);
    if from >= to {
        return read;
    }
    let mut bytes = BytesMut::from(read);
    let source = &part.data[(from - part.offset) as usize..(to - part.offset) as usize];
    bytes[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(9);
    const SIZE: u64 = 100 * PAGE;

    fn bytes(len: u64, fill: u8) -> Bytes {
        vec![fill; len as usize].into()
    }

    fn accept(joiner: &Joiner, offset: u64, len: u64, fill: u8) -> Plan {
        joiner.accept(INO, (offset, bytes(len, fill)), true, || SIZE)
    }

    /// Where the write that goes to the view begins and ends.
    fn now(plan: &Plan) -> Option<(u64, u64)> {
        plan.now.as_ref().map(|part| (part.offset, part.end()))
    }

    #[test]
    fn whole_pages_pass() {
        let joiner = Joiner::default();
        let plan = joiner.accept(INO, (PAGE, bytes(3 * PAGE, 1)), true, || {
            panic!("not asked")
        });
        assert_eq!(now(&plan), Some((PAGE, 4 * PAGE)));
        assert!(joiner.waiting(INO).is_none());
    }

    #[test]
    fn halves_become_one() {
        let joiner = Joiner::default();
        let plan = accept(&joiner, PAGE, 4000, 1);
        assert_eq!(now(&plan), None);
        let plan = accept(&joiner, PAGE + 4000, 100, 2);
        assert_eq!(now(&plan), None);
        let plan = accept(&joiner, PAGE + 4100, PAGE - 4100, 3);
        assert_eq!(now(&plan), Some((PAGE, 2 * PAGE)));
        let data = plan.now.unwrap().data;
        assert_eq!((data[3999], data[4000], data[4100]), (1, 2, 3));
        // Read until it has reached the view.
        let part = plan.completes.unwrap();
        assert_eq!(joiner.waiting(INO).unwrap(), part);
        joiner.done(INO, &part);
        assert!(joiner.waiting(INO).is_none());
    }

    #[test]
    fn of_many_pages_only_the_torn_one_waits() {
        let joiner = Joiner::default();
        let plan = accept(&joiner, 0, 2 * PAGE + 10, 1);
        assert_eq!(now(&plan), Some((0, 2 * PAGE)));
        let plan = accept(&joiner, 2 * PAGE + 10, 3 * PAGE, 2);
        assert_eq!(now(&plan), Some((2 * PAGE, 5 * PAGE)));
        joiner.done(INO, &plan.completes.unwrap());
        let part = joiner.waiting(INO).unwrap();
        assert_eq!((part.offset, part.end()), (5 * PAGE, 5 * PAGE + 10));
    }

    #[test]
    fn another_write_does_not_pass_by() {
        let joiner = Joiner::default();
        accept(&joiner, PAGE, 4000, 1);
        let plan = accept(&joiner, 7 * PAGE, PAGE, 2);
        assert_eq!(plan.before.unwrap().offset, PAGE);
        assert_eq!(plan.now.unwrap().offset, 7 * PAGE);
    }

    #[test]
    fn requests_that_cannot_be_a_split_pass() {
        let joiner = Joiner::default();
        let end = joiner.accept(INO, (PAGE, bytes(10, 1)), true, || PAGE + 10);
        let middle = accept(&joiner, PAGE + 1, 10, 1);
        let direct = joiner.accept(INO, (PAGE, bytes(10, 1)), false, || SIZE);
        for plan in [end, middle, direct] {
            assert_eq!(plan.now.unwrap().data.len(), 10);
        }
        assert!(joiner.all().is_empty());
    }

    #[test]
    fn reads_see_what_waits() {
        let part = PartialPage {
            offset: 100,
            data: bytes(50, 7),
        };
        let seen = over(90, bytes(30, 0), &part);
        assert_eq!((seen[9], seen[10], seen[29]), (0, 7, 7));
        let seen = over(140, bytes(30, 0), &part);
        assert_eq!((seen[0], seen[9], seen[10]), (7, 7, 0));
        assert_eq!(over(150, bytes(10, 0), &part), bytes(10, 0));
        assert_eq!(over(0, bytes(100, 0), &part), bytes(100, 0));
        assert_eq!(over(0, bytes(0, 0), &part), bytes(0, 0));
    }
}
