//! Writes that wait to be sent, partition by partition.
//!
//! What one statement costs a server depends on its partitions far more than on its rows, so rows of a partition
//! go out together. A lone write goes at once; while some requests of a partition are on their way, what is
//! written there meanwhile is gathered and follows as one. Invariants: a partition is in `ready` exactly if
//! it has something waiting and may send it; what waits is sent in the order written.

use std::collections::{HashMap, VecDeque};

use dax::writer::pending::Seq;

use crate::row::{Chunk, Row};

/// The most rows that go out in one request,
const ROWS_MAX: usize = 64;
/// and the bytes after which no more are added.
const BYTES_MAX: usize = 256 << 10;
/// Requests of one partition on their way at a time: one more than one, so that a commit need not wait for the one
/// before it.
const OF_PARTITION_MAX: usize = 2;

#[derive(Debug, Default)]
struct Partition {
    waiting: VecDeque<Seq>,
    requests: usize,
}

impl Partition {
    fn may_send(&self) -> bool {
        !self.waiting.is_empty() && self.requests < OF_PARTITION_MAX
    }
}

#[derive(Debug, Default)]
pub struct SendQueue {
    partitions: HashMap<Chunk, Partition>,
    ready: VecDeque<Chunk>,
    requests: usize,
}

impl SendQueue {
    /// A write is to be sent.
    pub fn push(&mut self, chunk: Chunk, seq: Seq) {
        let partition = self.partitions.entry(chunk).or_default();
        partition.waiting.push_back(seq);
        if partition.waiting.len() == 1 && partition.may_send() {
            self.ready.push_back(chunk);
        }
    }

    /// True if [`next`](Self::next) may have something.
    pub fn may_send(&self, requests_max: usize) -> bool {
        self.requests < requests_max && !self.ready.is_empty()
    }

    /// The rows of the next request, of those of which `wanted` says that they must be sent still. None
    /// while `requests_max` are on their way.
    pub fn next(
        &mut self,
        requests_max: usize,
        mut wanted: impl FnMut(Seq) -> Option<Row>,
    ) -> Option<(Chunk, Vec<Row>)> {
        while self.may_send(requests_max) {
            let chunk = self.ready.pop_front()?;
            let partition = self.partitions.get_mut(&chunk)?;
            let (mut rows, mut bytes) = (Vec::new(), 0);
            while rows.len() < ROWS_MAX
                && bytes < BYTES_MAX
                && let Some(seq) = partition.waiting.pop_front()
            {
                if let Some(row) = wanted(seq) {
                    bytes += row.data.len();
                    rows.push(row);
                }
            }
            if !rows.is_empty() {
                partition.requests += 1;
                self.requests += 1;
            }
            self.settle(chunk);
            if !rows.is_empty() {
                return Some((chunk, rows));
            }
        }
        None
    }

    /// A request is no longer on its way.
    pub fn done(&mut self, chunk: Chunk) {
        self.requests -= 1;
        let Some(partition) = self.partitions.get_mut(&chunk) else {
            return;
        };
        let was_ready = partition.may_send();
        partition.requests -= 1;
        if !was_ready {
            self.settle(chunk);
        }
    }

    /// A partition that is not in `ready`: puts it there if it may send, forgets it if it has nothing to do.
    fn settle(&mut self, chunk: Chunk) {
        let Some(partition) = self.partitions.get(&chunk) else {
            return;
        };
        if partition.may_send() {
            self.ready.push_back(chunk);
        } else if partition.waiting.is_empty() && partition.requests == 0 {
            self.partitions.remove(&chunk);
        }
    }

    /// Nothing that waits is sent any more.
    pub fn clear(&mut self) {
        self.ready.clear();
        for partition in self.partitions.values_mut() {
            partition.waiting.clear();
        }
        self.partitions
            .retain(|_, partition| partition.requests > 0);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dax::ids::{BlockKey, Epoch, FileId, Generation, Version};

    use super::*;

    const MAX: usize = 100;

    fn row(seq: Seq) -> Option<Row> {
        Some(Row {
            key: BlockKey::new(FileId(1), seq),
            generation: Generation::SINGLE,
            version: Version {
                epoch: Epoch(1),
                seq,
            },
            checksum: 0,
            data: Bytes::from_static(&[1; 8192]),
        })
    }

    fn chunk(number: u64) -> Chunk {
        (FileId(1), number)
    }

    fn next(queue: &mut SendQueue) -> Option<(u64, Vec<Seq>)> {
        let ((_, number), rows) = queue.next(MAX, row)?;
        Some((number, rows.iter().map(|row| row.version.seq).collect()))
    }

    #[test]
    fn writes_to_a_busy_partition_follow_as_one() {
        let mut queue = SendQueue::default();
        for seq in 1..=2 {
            queue.push(chunk(0), seq);
            assert_eq!(next(&mut queue), Some((0, vec![seq])));
        }
        for seq in 3..=5 {
            queue.push(chunk(0), seq);
        }
        queue.push(chunk(1), 6);
        assert_eq!(next(&mut queue), Some((1, vec![6])), "others do not wait");
        assert_eq!(next(&mut queue), None);
        queue.done(chunk(0));
        assert_eq!(next(&mut queue), Some((0, vec![3, 4, 5])));
        assert_eq!(next(&mut queue), None);
        for _ in 0..2 {
            queue.done(chunk(0));
        }
        queue.done(chunk(1));
        assert!(queue.partitions.is_empty() && queue.ready.is_empty() && queue.requests == 0);
    }

    #[test]
    fn requests_are_bounded_and_partitions_take_turns() {
        let mut queue = SendQueue::default();
        (0..80).for_each(|seq| queue.push(chunk(0), seq));
        (80..99).for_each(|seq| queue.push(chunk(1), seq));
        let first = next(&mut queue).unwrap();
        assert_eq!((first.0, first.1.len()), (0, BYTES_MAX / 8192));
        assert_eq!(next(&mut queue).unwrap().0, 1);
        assert_eq!(next(&mut queue).unwrap().1, (32..64).collect::<Vec<_>>());
        assert!(queue.next(2, row).is_none(), "three are on their way");
    }

    #[test]
    fn abandoned_writes_are_left_out() {
        let mut queue = SendQueue::default();
        queue.push(chunk(0), 1);
        queue.push(chunk(0), 2);
        queue.push(chunk(1), 3);
        let odd = |seq| row(seq).filter(|_| seq == 3);
        let (of, rows) = queue.next(MAX, odd).unwrap();
        assert_eq!((of.1, rows.len()), (1, 1));
        queue.push(chunk(1), 4);
        queue.clear();
        assert_eq!(next(&mut queue), None);
        queue.done(chunk(1));
        queue.push(chunk(0), 5);
        assert_eq!(next(&mut queue), Some((0, vec![5])));
    }
}
