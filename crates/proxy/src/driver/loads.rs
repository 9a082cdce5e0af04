//! Connections that clients have, by server.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::core::choice::Load;
use crate::core::topology::{NodeName, Place};

/// Number of connections in use to one server.
pub type Counter = Arc<AtomicUsize>;

/// Those to all servers.
#[derive(Default)]
pub struct Loads(Mutex<HashMap<Place, Counter>>);

/// A connection in use, as long as this is there.
pub struct InUse(Counter);

impl Loads {
    /// The counter of a server.
    pub fn counter(&self, place: &Place) -> Counter {
        self.0.lock().entry(place.clone()).or_default().clone()
    }
}

impl Load for Loads {
    fn of(&self, standby: &NodeName) -> usize {
        let place = Place::Standby(standby.clone());
        let counters = self.0.lock();
        let counter = counters.get(&place);
        counter.map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

impl InUse {
    /// One more.
    pub fn new(counter: &Counter) -> InUse {
        counter.fetch_add(1, Ordering::Relaxed);
        InUse(counter.clone())
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
