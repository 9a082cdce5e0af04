//! The past as an active view remembers it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::past::{Index, KeptImage, Policy};
use crate::view::Timestamp;

/// Tells the time at which an image is cut, and by which images are thinned out.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// A clock of its own, for tests.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(now))
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new(|| SystemTime::now().into())
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// The past as the active knows it.
#[derive(Default)]
pub(super) struct Past {
    /// `None`: nobody has said what the policy is, so nothing is kept, and nothing that was kept goes.
    pub policy: Mutex<Option<Option<Policy>>>,
    pub clock: Mutex<Clock>,
    /// `None`: not read in this epoch yet, or the volume may not have one.
    pub index: tokio::sync::Mutex<Option<Index>>,
    /// Records that an owner before left half done were looked for.
    pub swept: AtomicBool,
    /// It was said that the index is full.
    pub was_full: AtomicBool,
    /// Wrong on purpose: pins are not looked at.
    #[cfg(test)]
    pub ignores_pins: AtomicBool,
}

impl Past {
    pub fn now(&self) -> Timestamp {
        let clock = self.clock.lock().clone();
        clock.0()
    }

    pub fn policy(&self) -> Option<Option<Policy>> {
        self.policy.lock().clone()
    }
}

/// The past as people and metrics are told of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PastStatus {
    /// The kept images, oldest first.
    pub images: Vec<KeptImage>,
    /// Bytes that they take in a zone, about.
    pub used_bytes: u64,
}
