//! The gate in front of a standby view: lets operations in, stops them for the switch, and sends
//! them on to the successor.
//!
//! Invariant: between a successful [`Gate::freeze`] and its [`Frozen::open_to`] (or drop) no
//! operation is inside, so what the switch reads is what the view was.
//!
//! ```text
//!            freeze                open_to(successor)
//!   Open ──────────────> Frozen ──────────────────────> Moved (final)
//!     ^                    │
//!     └────────────────────┘ dropped (the switch failed)
//! ```
//!
//! A thread that reads requests may wait here; it holds nothing that an operation inside needs, and
//! the switch itself needs no request to be read, so the wait ends with the switch.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

/// What an operation finds at the gate.
pub(crate) enum Entry<'a, S: ?Sized> {
    /// It is inside until the pass is dropped.
    Here(Pass<'a, S>),
    /// This view is over; ask that one.
    Successor(Arc<S>),
}

enum Phase<S: ?Sized> {
    Open,
    Frozen,
    Moved(Arc<S>),
}

struct Inner<S: ?Sized> {
    phase: Phase<S>,
    inside: u64,
}

pub(crate) struct Gate<S: ?Sized> {
    inner: Mutex<Inner<S>>,
    /// For threads that wait.
    opened: Condvar,
    /// For tasks that wait: the phase changed.
    changed: Notify,
    /// The last operation went out.
    empty: Notify,
}

impl<S: ?Sized> Gate<S> {
    pub fn new() -> Gate<S> {
        Gate {
            inner: Mutex::new(Inner {
                phase: Phase::Open,
                inside: 0,
            }),
            opened: Condvar::new(),
            changed: Notify::new(),
            empty: Notify::new(),
        }
    }

    /// Enters if no switch is on.
    pub fn try_enter(&self) -> Option<Entry<'_, S>> {
        Self::admit(self, &mut self.inner.lock())
    }

    fn admit<'a>(&'a self, inner: &mut Inner<S>) -> Option<Entry<'a, S>> {
        match &inner.phase {
            Phase::Open => {
                inner.inside += 1;
                Some(Entry::Here(Pass { gate: self }))
            }
            Phase::Frozen => None,
            Phase::Moved(successor) => Some(Entry::Successor(Arc::clone(successor))),
        }
    }

    /// Enters; waits asynchronously while a switch is on.
    pub async fn enter(&self) -> Entry<'_, S> {
        loop {
            let changed = self.changed.notified();
            if let Some(entry) = self.try_enter() {
                return entry;
            }
            changed.await;
        }
    }

    /// Enters; blocks the thread while a switch is on.
    pub fn enter_blocking(&self) -> Entry<'_, S> {
        if let Some(entry) = self.try_enter() {
            return entry;
        }
        // A worker of a multi-thread runtime must hand its tasks on before it sleeps: the switch
        // may be one of them.
        use tokio::runtime::{Handle, RuntimeFlavor};
        match Handle::try_current().map(|h| h.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(|| self.sleep()),
            _ => self.sleep(),
        }
    }

    fn sleep(&self) -> Entry<'_, S> {
        let mut inner = self.inner.lock();
        loop {
            if let Some(entry) = self.admit(&mut inner) {
                return entry;
            }
            self.opened.wait(&mut inner);
        }
    }

    /// Stops admission and waits until nobody is inside. `None` if a switch is on or done already.
    pub async fn freeze(&self) -> Option<Frozen<'_, S>> {
        {
            let mut inner = self.inner.lock();
            if !matches!(inner.phase, Phase::Open) {
                return None;
            }
            inner.phase = Phase::Frozen;
        }
        let frozen = Frozen { gate: self };
        loop {
            let empty = self.empty.notified();
            if self.inner.lock().inside == 0 {
                return Some(frozen);
            }
            empty.await;
        }
    }

    fn set(&self, phase: Phase<S>) {
        self.inner.lock().phase = phase;
        self.opened.notify_all();
        self.changed.notify_waiters();
    }

    /// The successor, once there is one.
    pub fn successor(&self) -> Option<Arc<S>> {
        match &self.inner.lock().phase {
            Phase::Moved(successor) => Some(Arc::clone(successor)),
            _ => None,
        }
    }
}

/// One operation that is inside.
pub(crate) struct Pass<'a, S: ?Sized> {
    gate: &'a Gate<S>,
}

impl<S: ?Sized> Drop for Pass<'_, S> {
    fn drop(&mut self) {
        let mut inner = self.gate.inner.lock();
        inner.inside -= 1;
        if inner.inside == 0 && matches!(inner.phase, Phase::Frozen) {
            drop(inner);
            // One waiter at most; the permit is kept if it does not wait yet.
            self.gate.empty.notify_one();
        }
    }
}

/// The gate, closed, with nobody inside. Dropped, it opens again.
pub(crate) struct Frozen<'a, S: ?Sized> {
    gate: &'a Gate<S>,
}

impl<S: ?Sized> Frozen<'_, S> {
    /// Lets everybody who waits, and comes later, go on at `successor`.
    pub fn open_to(self, successor: Arc<S>) {
        self.gate.set(Phase::Moved(successor));
    }
}

impl<S: ?Sized> Drop for Frozen<'_, S> {
    fn drop(&mut self) {
        let frozen = matches!(self.gate.inner.lock().phase, Phase::Frozen);
        if frozen {
            self.gate.set(Phase::Open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here<S: ?Sized>(entry: &Entry<'_, S>) -> bool {
        matches!(entry, Entry::Here(_))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_freeze_waits_for_those_inside_and_holds_those_outside() {
        let gate = Arc::new(Gate::<str>::new());
        let inside = gate.enter().await;
        assert!(here(&inside));

        let (froze_tx, mut froze) = tokio::sync::oneshot::channel();
        let (go, wait) = tokio::sync::oneshot::channel::<()>();
        let switcher = {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move {
                let frozen = gate.freeze().await.expect("nobody else freezes");
                froze_tx.send(()).unwrap();
                wait.await.unwrap();
                frozen.open_to(Arc::from("next"));
            })
        };
        while gate.try_enter().is_some() {
            tokio::task::yield_now().await;
        }
        assert!(froze.try_recv().is_err(), "one operation is still inside");
        drop(inside);
        froze.await.unwrap();

        let task = {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move { here(&gate.enter().await) })
        };
        let thread = {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || here(&gate.enter_blocking()))
        };
        go.send(()).unwrap();
        assert!(!task.await.unwrap(), "goes to the successor");
        assert!(!thread.join().unwrap(), "goes to the successor");
        switcher.await.unwrap();
        assert_eq!(gate.successor().as_deref(), Some("next"));
        assert!(gate.freeze().await.is_none(), "moved is final");
    }

    #[tokio::test]
    async fn a_failed_switch_opens_again() {
        let gate = Gate::<str>::new();
        let frozen = gate.freeze().await.expect("open");
        assert!(gate.try_enter().is_none());
        assert!(gate.freeze().await.is_none(), "one switch at a time");
        drop(frozen);
        assert!(here(&gate.enter().await));
        assert!(gate.successor().is_none());
    }
}
