//! The bounded queue in front of the committer. Invariants: what one thread puts in for a volume comes
//! out in the order it was put; a full queue makes the putter wait, which makes its client's socket
//! fill up; a volume's backlog neither fills the queue for others nor goes before them.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::fair_queue::FairQueue;
use crate::keys::VolumeId;

/// What each volume may put in although others have filled the queue, in bytes.
const RESERVED_BYTES: usize = 1 << 20;

/// A queue bounded by the weight of what is in it.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
    emptied: Condvar,
    max_bytes: usize,
    round_bytes: usize,
}

struct State<T> {
    lanes: FairQueue<T>,
    closed: bool,
}

/// What a [`Queue::take`] brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Something, now in the caller's vector.
    Some {
        /// There is more than fits a round.
        more: bool,
    },
    /// Nothing at present.
    Nothing,
    /// Nothing any more.
    Closed,
}

/// What a [`Queue::put_quietly`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    Empty,
    Filled,
}

impl<T> Queue<T> {
    /// A queue that holds `max_bytes` before it makes putters wait, and hands out about `round_bytes`
    /// at once.
    pub fn new(max_bytes: usize, round_bytes: usize) -> Queue<T> {
        Queue {
            state: Mutex::new(State {
                lanes: FairQueue::default(),
                closed: false,
            }),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            max_bytes,
            round_bytes,
        }
    }

    /// Puts an item of a volume in, waiting for room; false if the queue is closed.
    pub fn put(&self, volume: VolumeId, item: T, bytes: usize) -> bool {
        self.put_all(volume, std::iter::once((item, bytes)))
    }

    /// Puts items of a volume in at once, each with its weight, waiting for room for the first; false if the
    /// queue is closed.
    pub fn put_all(&self, volume: VolumeId, items: impl Iterator<Item = (T, usize)>) -> bool {
        let put = self.put_quietly(volume, items);
        if put == Some(Before::Empty) {
            self.filled.notify_one();
        }
        put.is_some()
    }

    /// The same for who sees to it himself that it is taken; `None` if the queue is closed.
    pub fn put_quietly(
        &self,
        volume: VolumeId,
        items: impl Iterator<Item = (T, usize)>,
    ) -> Option<Before> {
        let mut state = self.state.lock();
        while self.is_full(&state.lanes, volume) && !state.closed {
            self.emptied.wait(&mut state);
        }
        if state.closed {
            return None;
        }
        let before = match state.lanes.is_empty() {
            true => Before::Empty,
            false => Before::Filled,
        };
        for (item, bytes) in items {
            state.lanes.push(volume, item, bytes);
        }
        Some(before)
    }

    fn is_full(&self, lanes: &FairQueue<T>, volume: VolumeId) -> bool {
        let reserved = RESERVED_BYTES.min(self.max_bytes);
        lanes.weight() >= self.max_bytes && lanes.weight_of(volume) >= reserved
    }

    /// Waits until there is something, or the queue is closed, or `deadline` has passed.
    pub fn wait(&self, deadline: Option<Instant>) {
        let mut state = self.state.lock();
        while state.lanes.is_empty() && !state.closed {
            match deadline {
                None => self.filled.wait(&mut state),
                Some(at) => {
                    if self.filled.wait_until(&mut state, at).timed_out() {
                        return;
                    }
                }
            }
        }
    }

    /// Lets whoever waits look, if there is something.
    pub fn wake_for_more(&self) {
        if !self.state.lock().lanes.is_empty() {
            self.filled.notify_one();
        }
    }

    /// Moves a round into `into` (which must be empty). After a close, what is left is still handed out.
    pub fn take(&self, into: &mut Vec<T>) -> Taken {
        debug_assert!(into.is_empty(), "the last batch was worked off");
        let mut state = self.state.lock();
        if state.lanes.is_empty() {
            return match state.closed {
                true => Taken::Closed,
                false => Taken::Nothing,
            };
        }
        state.lanes.take_round(self.round_bytes, into);
        self.emptied.notify_all();
        Taken::Some {
            more: !state.lanes.is_empty(),
        }
    }

    /// True if nothing waits.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.state.lock().lanes.is_empty()
    }

    /// Takes nothing more in.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_all();
        self.emptied.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    const A: VolumeId = VolumeId(1);
    const B: VolumeId = VolumeId(2);

    #[test]
    fn order_is_kept_and_a_full_queue_waits() {
        let queue = Arc::new(Queue::new(10, 1 << 20));
        let putter = std::thread::spawn({
            let queue = queue.clone();
            move || (0..1000).for_each(|i| assert!(queue.put(A, i, 3)))
        });
        let (mut all, mut some) = (Vec::new(), Vec::new());
        while all.len() < 1000 {
            queue.wait(None);
            assert_eq!(queue.take(&mut some), Taken::Some { more: false });
            assert!(some.len() <= 4, "at most one item beyond the bound");
            all.append(&mut some);
        }
        putter.join().unwrap();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_closed_queue_hands_out_the_rest() {
        let queue = Queue::new(10, 1 << 20);
        let mut some = Vec::new();
        queue.wait(Some(Instant::now() + Duration::from_millis(1)));
        assert_eq!(queue.take(&mut some), Taken::Nothing);
        assert!(queue.put(A, 1, 1));
        queue.close();
        assert!(!queue.put(A, 2, 1));
        assert_eq!(queue.take(&mut some), Taken::Some { more: false });
        assert_eq!(some, [1]);
        some.clear();
        assert_eq!(queue.take(&mut some), Taken::Closed);
    }

    #[test]
    fn quiet_puts_wake_no_waiter_and_leftovers_wake_one() {
        let queue = Arc::new(Queue::new(10, 1 << 20));
        assert_eq!(
            queue.put_quietly(A, [(1, 1)].into_iter()),
            Some(Before::Empty)
        );
        assert_eq!(
            queue.put_quietly(A, [(2, 1)].into_iter()),
            Some(Before::Filled)
        );
        let mut some = Vec::new();
        queue.take(&mut some);
        let waiting = std::thread::spawn({
            let queue = queue.clone();
            move || queue.wait(None)
        });
        queue.wake_for_more();
        assert!(!waiting.is_finished(), "there is nothing more");
        queue.put_quietly(A, [(3, 1)].into_iter());
        // It may not wait yet when it is woken; then it sees the item itself.
        queue.wake_for_more();
        waiting.join().unwrap();
    }

    #[test]
    fn a_queue_filled_by_one_volume_has_room_for_another() {
        let queue = Queue::new(4 << 20, 1 << 20);
        while !queue.is_full(&queue.state.lock().lanes, A) {
            assert!(queue.put(A, A, 64 << 10));
        }
        // It would wait here if A's work left no room.
        assert!(queue.put(B, B, 8 << 10));
        let mut round = Vec::new();
        assert_eq!(queue.take(&mut round), Taken::Some { more: true });
        assert!(round.contains(&B), "B does not wait for A's backlog");
        assert!(round.len() < 12, "a round is bounded: {}", round.len());
    }
}
