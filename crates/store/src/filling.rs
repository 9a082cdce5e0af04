//! Progress of a volume's fill ([`crate::fill`]) in this zone, as its threads share it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dax::layer::{FILL, FILLED};
use dax::storage::Fill;
use parking_lot::{Condvar, Mutex};

/// Time until it is looked again whether there is something to fill.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// One pass of a fill, counted from 1 since the zone was started.
pub(crate) type PassNumber = u64;

/// State of one volume's fill in this zone.
#[derive(Debug, Default)]
pub(crate) struct FillState {
    wanted: AtomicBool,
    done: AtomicBool,
    ended: AtomicBool,
    /// The last pass that began, and the last one that lacks something which could not be put.
    begun: AtomicU64,
    failed: AtomicU64,
    looked: AtomicU64,
    all: AtomicU64,
}

impl FillState {
    /// That of a volume as it was stored.
    pub fn new(done: bool) -> FillState {
        let state = FillState::default();
        state.set_done(done);
        state
    }

    /// Makes a durable record known, if it is one of these.
    pub fn publish(&self, record: &str) {
        match record {
            FILL => self.wanted.store(true, Ordering::SeqCst),
            FILLED => self.ended.store(true, Ordering::SeqCst),
            _ => {}
        }
    }

    /// Makes it known, durably, that the volume has everything itself, or not any more.
    pub fn set_done(&self, done: bool) {
        self.done.store(done, Ordering::SeqCst);
    }

    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }

    /// True if the volume is to have everything itself.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    /// True if all zones had everything once.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// A pass begins, which has so many slots to look at.
    pub fn begin(&self, all: u64) -> PassNumber {
        self.looked.store(0, Ordering::Relaxed);
        self.all.store(all, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// A pass has looked at so many more.
    pub fn look(&self, slots: u64) {
        self.looked.fetch_add(slots, Ordering::Relaxed);
    }

    /// Something that a pass found was not put.
    pub fn fail(&self, pass: PassNumber) {
        self.failed.fetch_max(pass, Ordering::SeqCst);
    }

    pub fn has_failed(&self, pass: PassNumber) -> bool {
        self.failed.load(Ordering::SeqCst) >= pass
    }

    /// As clients are told; a volume that is `rebuilding` has nothing for sure.
    pub fn told(&self, rebuilding: bool) -> Fill {
        let done = self.is_done() && !rebuilding;
        Fill {
            done,
            ended: done && self.is_ended(),
            looked: self.looked.load(Ordering::Relaxed),
            all: self.all.load(Ordering::Relaxed),
        }
    }
}

/// Wakes the thread that fills when it is to end.
#[derive(Default)]
pub(crate) struct Fills {
    closed: Mutex<bool>,
    changed: Condvar,
}

impl Fills {
    /// Ends the thread, whatever is left to do.
    pub fn close(&self) {
        *self.closed.lock() = true;
        self.changed.notify_all();
    }

    /// False if the zone stops.
    pub fn rest(&self) -> bool {
        let mut closed = self.closed.lock();
        if !*closed {
            self.changed.wait_for(&mut closed, LOOK_EVERY);
        }
        !*closed
    }
}
