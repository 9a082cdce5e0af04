//! The bounded queue in front of the committer. Invariant: what one thread puts in comes out in the
//! order it was put; a full queue makes the putter wait, which makes its client's socket fill up.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// A queue bounded by the weight of what is in it.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
    emptied: Condvar,
    max_bytes: usize,
}

struct State<T> {
    items: Vec<T>,
    bytes: usize,
    closed: bool,
}

/// What a [`Queue::take`] brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Something, now in the caller's vector.
    Some,
    /// Nothing until the deadline.
    TimedOut,
    /// Nothing any more.
    Closed,
}

impl<T> Queue<T> {
    /// A queue that holds `max_bytes` before it makes putters wait.
    pub fn new(max_bytes: usize) -> Queue<T> {
        Queue {
            state: Mutex::new(State {
                items: Vec::new(),
                bytes: 0,
                closed: false,
            }),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            max_bytes,
        }
    }

    /// Puts an item in, waiting for room; false if the queue is closed.
    pub fn put(&self, item: T, bytes: usize) -> bool {
        let mut state = self.state.lock();
        while state.bytes >= self.max_bytes && !state.closed {
            self.emptied.wait(&mut state);
        }
        if state.closed {
            return false;
        }
        state.items.push(item);
        state.bytes += bytes;
        if state.items.len() == 1 {
            self.filled.notify_one();
        }
        true
    }

    /// Moves everything into `into` (which must be empty), waiting until there is something or
    /// `deadline` has passed. After a close, what is left is still handed out.
    pub fn take(&self, into: &mut Vec<T>, deadline: Option<Instant>) -> Taken {
        debug_assert!(into.is_empty(), "the last batch was worked off");
        let mut state = self.state.lock();
        while state.items.is_empty() {
            if state.closed {
                return Taken::Closed;
            }
            match deadline {
                None => self.filled.wait(&mut state),
                Some(at) => {
                    if self.filled.wait_until(&mut state, at).timed_out() && state.items.is_empty()
                    {
                        return Taken::TimedOut;
                    }
                }
            }
        }
        std::mem::swap(&mut state.items, into);
        state.bytes = 0;
        self.emptied.notify_all();
        Taken::Some
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

    #[test]
    fn order_is_kept_and_a_full_queue_waits() {
        let queue = Arc::new(Queue::new(10));
        let putter = std::thread::spawn({
            let queue = queue.clone();
            move || (0..1000).for_each(|i| assert!(queue.put(i, 3)))
        });
        let (mut all, mut some) = (Vec::new(), Vec::new());
        while all.len() < 1000 {
            assert_eq!(queue.take(&mut some, None), Taken::Some);
            assert!(some.len() <= 4, "at most one item beyond the bound");
            all.append(&mut some);
        }
        putter.join().unwrap();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_closed_queue_hands_out_the_rest() {
        let queue = Queue::new(10);
        let mut some = Vec::new();
        let soon = Instant::now() + Duration::from_millis(1);
        assert_eq!(queue.take(&mut some, Some(soon)), Taken::TimedOut);
        assert!(queue.put(1, 1));
        queue.close();
        assert!(!queue.put(2, 1));
        assert_eq!(queue.take(&mut some, None), Taken::Some);
        assert_eq!(some, [1]);
        some.clear();
        assert_eq!(queue.take(&mut some, None), Taken::Closed);
    }
}
