//! The last part of the log, as it goes by: the active keeps what it wrote, to send it along when it is durable,
//! and a standby what it was sent, so that neither has to read it from the zones.
//!
//! ```text
//!            start                                end
//!     forgotten │████████ at most MAX_BYTES ████████│
//! ```
//!
//! Invariant: what is in it is one window without a gap, as it was put last. Whoever reads asks only for
//! what is durable, and that never changes any more; so a ring that has nothing, or not all, costs a read.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use dax::ids::Epoch;
use parking_lot::Mutex;

use crate::lsn::Lsn;

/// Log that is kept: seconds of a busy database's.
const MAX_BYTES: usize = 4 << 20;

/// The last part of the WAL, as one window without a gap.
#[derive(Debug)]
pub struct RecentLog {
    epoch: Epoch,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    start: Lsn,
    bytes: VecDeque<u8>,
}

impl RecentLog {
    /// Of the log that the active of `epoch` writes.
    pub fn new(epoch: Epoch) -> RecentLog {
        RecentLog {
            epoch,
            window: Mutex::default(),
        }
    }

    /// Whose log it is.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Takes log that begins at `at`. What does not join is all there is from now on.
    pub fn put(&self, at: Lsn, log: &[u8]) {
        let mut window = self.window.lock();
        if at < window.start || at > window.end() {
            window.start = at;
            window.bytes.clear();
        }
        window.overwrite(at, log);
        let surplus = window.bytes.len().saturating_sub(MAX_BYTES);
        window.bytes.drain(..surplus);
        window.start.0 += surplus as u64;
    }

    /// A part of the log, if all of it is here.
    pub fn read(&self, range: Range<Lsn>) -> Option<Bytes> {
        let window = self.window.lock();
        if range.start < window.start || range.end > window.end() || range.is_empty() {
            return None;
        }
        let from = range.start.bytes_since(window.start) as usize;
        let to = range.end.bytes_since(window.start) as usize;
        let mut out = BytesMut::with_capacity(to - from);
        let (front, back) = window.bytes.as_slices();
        out.extend_from_slice(&front[from.min(front.len())..to.min(front.len())]);
        let behind = |at: usize| at.saturating_sub(front.len());
        out.extend_from_slice(&back[behind(from)..behind(to)]);
        Some(out.freeze())
    }
}

impl Window {
    fn end(&self) -> Lsn {
        Lsn(self.start.0 + self.bytes.len() as u64)
    }

    /// `at` is in the window, or at its end.
    fn overwrite(&mut self, at: Lsn, log: &[u8]) {
        let from = at.bytes_since(self.start) as usize;
        let (again, new) = log.split_at(log.len().min(self.bytes.len() - from));
        let (front, back) = self.bytes.as_mut_slices();
        let in_front = again.len().min(front.len().saturating_sub(from));
        let (first, second) = again.split_at(in_front);
        if !first.is_empty() {
            front[from..from + first.len()].copy_from_slice(first);
        }
        if !second.is_empty() {
            let at = (from + first.len()) - front.len();
            back[at..at + second.len()].copy_from_slice(second);
        }
        self.bytes.extend(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ring() -> RecentLog {
        RecentLog::new(Epoch(1))
    }

    #[test]
    fn pages_written_again_replace_what_they_were() {
        let ring = ring();
        ring.put(Lsn(8192), &[1; 100]);
        ring.put(Lsn(8192 + 50), &[2; 100]);
        let read = ring.read(Lsn(8192)..Lsn(8192 + 150));
        assert_eq!(read, Some([[1; 50].as_slice(), &[2; 100]].concat().into()));
        assert_eq!(ring.read(Lsn(8192)..Lsn(8192 + 151)), None);
        assert_eq!(ring.read(Lsn(8191)..Lsn(8200)), None);
    }

    #[test]
    fn wal_that_does_not_join_starts_over() {
        let ring = ring();
        ring.put(Lsn(100), &[1; 10]);
        ring.put(Lsn(200), &[2; 10]);
        assert_eq!(ring.read(Lsn(100)..Lsn(110)), None);
        assert_eq!(ring.read(Lsn(200)..Lsn(210)), Some(vec![2; 10].into()));
        ring.put(Lsn(150), &[3; 60]);
        assert_eq!(ring.read(Lsn(200)..Lsn(210)), Some(vec![3; 10].into()));
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let ring = ring();
        for piece in 0..5u8 {
            ring.put(Lsn(u64::from(piece) << 20), &vec![piece; 1 << 20]);
        }
        assert_eq!(ring.read(Lsn((1 << 20) - 1)..Lsn(1 << 20)), None);
        let read = ring.read(Lsn(1 << 20)..Lsn(5 << 20)).unwrap();
        assert_eq!(read.len(), MAX_BYTES);
        assert!(read[..1 << 20].iter().all(|b| *b == 1));
        assert_eq!(read.last(), Some(&4));
    }

    proptest! {
        #[test]
        fn reads_what_was_put_last(pieces in prop::collection::vec((0u64..3000, 1usize..500), 1..40)) {
            let ring = ring();
            let mut all = vec![0u8; 4000];
            let mut known: Range<u64> = 0..0;
            for (number, (at, len)) in pieces.into_iter().enumerate() {
                let value = number as u8 + 1;
                let end = at + len as u64;
                all[at as usize..end as usize].fill(value);
                ring.put(Lsn(at), &vec![value; len]);
                known = match at < known.start || at > known.end {
                    true => at..end,
                    false => known.start..known.end.max(end),
                };
                let read = ring.read(Lsn(known.start)..Lsn(known.end));
                let expected = &all[known.start as usize..known.end as usize];
                prop_assert_eq!(read.as_deref(), Some(expected));
            }
        }
    }
}
