//! The gate that every request passes: it can be shut, and it knows what is still under way.
//!
//! Invariant: while a [`Pause`] is held, the reader is outside (it waits before its next request)
//! and no change (write, truncation, allocation) is under way. Reads and syncs may be: a read that
//! began before the pause may be answered from the old view, which a caller cannot tell from being
//! answered before it.
//!
//! ```text
//!            enter                    leave
//!   outside ───────▶ inside (reader) ───────▶ outside
//!      ▲                │ change begins
//!      │ waits while    ▼
//!    paused          changes += 1  ── finished ──▶ changes -= 1
//! ```

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct State {
    /// Pauses held or being waited for.
    pauses: usize,
    /// The reader is serving a request.
    inside: bool,
    /// Changes that were started and are not finished.
    changes: usize,
    /// Pauses have no effect any more (the mount is being ended).
    open_for_good: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    opened: Condvar,
    left: Notify,
}

impl Gate {
    /// Lets the reader in, waiting while the gate is shut.
    pub(crate) fn enter(&self) -> Inside<'_> {
        let mut state = self.state.lock();
        while state.pauses > 0 && !state.open_for_good {
            self.opened.wait(&mut state);
        }
        state.inside = true;
        Inside(self)
    }

    /// Counts a change as under way until the returned token is dropped. Called from inside.
    pub(crate) fn begin_change(self: &Arc<Self>) -> Change {
        self.state.lock().changes += 1;
        Change(Arc::clone(self))
    }

    /// Shuts the gate and returns when the reader is outside and all changes are finished.
    /// Dropping the future, or the pause, opens it again.
    pub(crate) async fn pause(self: &Arc<Self>) -> Pause {
        self.state.lock().pauses += 1;
        let pause = Pause(Arc::clone(self));
        loop {
            let left = self.left.notified();
            {
                let state = self.state.lock();
                if state.open_for_good || (!state.inside && state.changes == 0) {
                    return pause;
                }
            }
            left.await;
        }
    }

    /// Opens the gate whatever pauses are held.
    pub(crate) fn open_for_good(&self) {
        self.state.lock().open_for_good = true;
        self.opened.notify_all();
        self.left.notify_waiters();
    }

    fn tell_if_quiet(&self, state: &State) {
        if state.pauses > 0 && !state.inside && state.changes == 0 {
            self.left.notify_waiters();
        }
    }
}

/// The reader is serving a request.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.inside = false;
        self.0.tell_if_quiet(&state);
    }
}

/// A change is under way.
#[derive(Debug)]
pub(crate) struct Change(Arc<Gate>);

impl Drop for Change {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.changes -= 1;
        self.0.tell_if_quiet(&state);
    }
}

/// The gate is shut until this is dropped.
#[derive(Debug)]
pub(crate) struct Pause(Arc<Gate>);

impl Drop for Pause {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.pauses -= 1;
        if state.pauses == 0 {
            self.0.opened.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn pause_waits_for_the_reader_and_for_changes() {
        let gate = Arc::new(Gate::default());
        let inside = gate.enter();
        let change = gate.begin_change();
        let mut pause = pin!(gate.pause());
        assert!(poll_once(pause.as_mut()).is_pending());
        drop(inside);
        assert!(poll_once(pause.as_mut()).is_pending());
        drop(change);
        assert!(poll_once(pause.as_mut()).is_ready());
    }

    #[test]
    fn reader_waits_outside_while_paused() {
        let gate = Arc::new(Gate::default());
        let Poll::Ready(pause) = poll_once(pin!(gate.pause())) else {
            panic!("nothing is under way")
        };
        let (sender, entered) = std::sync::mpsc::channel();
        let reader = std::thread::spawn({
            let gate = Arc::clone(&gate);
            move || {
                let _inside = gate.enter();
                sender.send(()).unwrap();
            }
        });
        assert!(
            entered
                .recv_timeout(std::time::Duration::from_millis(30))
                .is_err()
        );
        drop(pause);
        entered.recv().unwrap();
        reader.join().unwrap();
    }

    #[test]
    fn giving_up_on_a_pause_opens_the_gate() {
        let gate = Arc::new(Gate::default());
        let change = gate.begin_change();
        {
            let mut pause = pin!(gate.pause());
            assert!(poll_once(pause.as_mut()).is_pending());
        }
        drop(gate.enter());
        drop(change);
    }

    #[test]
    fn ending_the_mount_lets_everybody_through() {
        let gate = Arc::new(Gate::default());
        let change = gate.begin_change();
        let mut pause = pin!(gate.pause());
        assert!(poll_once(pause.as_mut()).is_pending());
        gate.open_for_good();
        assert!(poll_once(pause.as_mut()).is_ready());
        drop(gate.enter());
        drop(change);
    }
}
