//! Who commits: the committer's own thread, or whoever brought the work that somebody waits for.
//!
//! A flush that a receiver hands to another thread costs a wake-up, and on a busy machine a place in
//! the processor's queue, in the middle of somebody's commit. So the receiver that read it commits
//! itself, if nobody is committing.
//!
//! ```text
//!   receiver: put, quietly ─▶ is the committer free? ─ yes ─▶ one round, one fsync ─▶ more? wake the thread
//!                                   │ no: who has it looks at the queue afterwards
//!   thread:   wait for work or 20 ms ─▶ one step ─▶ wait
//! ```
//!
//! Invariants: the committer is used by one thread at a time, and takes from the queue only then, so
//! what it says of order holds as before; whoever lets it go has seen to it that what is in the queue
//! is taken; a receiver leaves no round behind that is not committed. A receiver does one round at a
//! time, because it reads no requests meanwhile: not even pings.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::committer::Committer;
use crate::queue::Taken;
use crate::shared::{FailOnPanic, Shared};

/// The committer, for whose turn it is.
pub(crate) struct Commits {
    shared: Arc<Shared>,
    committer: Mutex<Committer>,
}

impl Commits {
    pub fn new(shared: Arc<Shared>, next_removal: u64) -> Commits {
        Commits {
            committer: Mutex::new(Committer::new(shared.clone(), next_removal)),
            shared,
        }
    }

    /// Works until the queue is closed and empty, and all of it is durable. The body of the committer's
    /// own thread.
    pub fn run(&self) {
        let mut deadline = None;
        loop {
            self.shared.queue.wait(deadline);
            let mut committer = self.committer.lock();
            match committer.step() {
                Ok(Taken::Closed) => break,
                Ok(_) => deadline = committer.deadline(),
                Err(e) => return self.shared.fail(&e),
            }
        }
        if self.shared.failure().is_none()
            && let Err(e) = self.shared.engine.settle_all()
        {
            self.shared.fail(&e);
        }
    }

    /// For who has put in, quietly, what somebody waits for.
    pub fn help(&self) {
        // Whoever has it finds the work: it was put in before.
        let Some(mut committer) = self.committer.try_lock() else {
            return;
        };
        let _guard = FailOnPanic(&self.shared);
        let done = committer.round();
        drop(committer);
        if let Err(e) = done {
            return self.shared.fail(&e);
        }
        self.shared.queue.wake_for_more();
    }
}
