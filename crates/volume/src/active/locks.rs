//! Who waits for whom: tickets for the requests that a cut must wait for, and a lock for each file
//! that orders partial writes and cuts of it.

use std::collections::BTreeSet;

use dax::ids::FileId;
use parking_lot::Mutex;
use tokio::sync::{Notify, RwLock};

/// Shards of the file locks; files that share one only wait for each other needlessly.
const SHARDS: usize = 256;

/// Shared by whole-block writes, exclusive for read-modify-write, truncation and fallocate.
pub(super) struct FileLocks(Box<[RwLock<()>]>);

impl FileLocks {
    pub fn new() -> FileLocks {
        FileLocks((0..SHARDS).map(|_| RwLock::new(())).collect())
    }

    pub fn of(&self, file: FileId) -> &RwLock<()> {
        &self.0[(file.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % SHARDS]
    }
}

/// Requests that were received and are not done, in order of arrival.
#[derive(Default)]
pub(super) struct Tickets {
    state: Mutex<State>,
    done: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    open: BTreeSet<u64>,
}

/// One request; done when dropped.
pub(super) struct Ticket<'a> {
    tickets: &'a Tickets,
    number: u64,
}

impl Tickets {
    pub fn take(&self) -> Ticket<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.open.insert(number);
        Ticket {
            tickets: self,
            number,
        }
    }

    /// Waits until every request received before this call is done.
    pub async fn wait_for_earlier(&self) {
        let limit = self.state.lock().next;
        loop {
            let mut done = std::pin::pin!(self.done.notified());
            done.as_mut().enable();
            if self
                .state
                .lock()
                .open
                .first()
                .is_none_or(|oldest| *oldest >= limit)
            {
                return;
            }
            done.await;
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.tickets.state.lock().open.remove(&self.number);
        self.tickets.done.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_ends_with_the_earlier_requests_not_with_later_ones() {
        let tickets = Tickets::default();
        let early = tickets.take();
        let mut wait = Box::pin(tickets.wait_for_earlier());
        assert!(poll_once(&mut wait).await.is_none());
        let late = tickets.take();
        drop(early);
        assert!(poll_once(&mut wait).await.is_some());
        drop(late);
    }

    async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        std::future::poll_fn(|cx| {
            std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(cx) {
                std::task::Poll::Ready(value) => Some(value),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
