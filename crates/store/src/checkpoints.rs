//! Checkpoints of the engine in the background: while the log still has room, so that no commit waits for
//! one.

use parking_lot::{Condvar, Mutex};

use crate::shared::Shared;

/// True if a checkpoint is wanted.
#[derive(Default)]
pub(crate) struct Checkpoints {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    wanted: bool,
    closed: bool,
}

impl Checkpoints {
    /// Asks for one if enough has been committed since the last.
    pub fn consider(&self, shared: &Shared) {
        if shared.engine.wants_checkpoint() {
            self.state.lock().wanted = true;
            self.changed.notify_one();
        }
    }

    /// Ends [`run`](Self::run).
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_one();
    }

    /// Makes them until the zone stops. The body of its own thread.
    pub fn run(&self, shared: &Shared) {
        while self.wait() {
            if let Err(error) = shared.engine.checkpoint() {
                return shared.fail(&error);
            }
        }
    }

    /// Waits until one is wanted; false if there will be no more.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while !state.wanted && !state.closed {
            self.changed.wait(&mut state);
        }
        state.wanted = false;
        !state.closed
    }
}
