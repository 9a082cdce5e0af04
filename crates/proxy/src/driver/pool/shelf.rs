//! A pool's connections to one server: those that nobody has, and how many there may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::core::quota::Owner;
use crate::core::topology::{Place, Topology};
use crate::driver::loads::Counter;
use crate::driver::login::Conn;
use crate::driver::quotas::{Idle, Stocked};

/// Connections to one server that nobody has.
pub struct Shelf {
    /// The pool, and the server.
    pub owner: Arc<Owner>,
    /// The last one was used last.
    idle: Mutex<Vec<Stocked>>,
    /// Connections to the server that clients of all pools have.
    pub in_use: Counter,
    /// A permit for each connection that somebody has, or may open.
    pub share: Arc<Semaphore>,
    /// Permits to be given up when they come back: the limit was lowered while they were in use.
    excess: AtomicUsize,
}

impl Idle for Shelf {
    fn oldest(&self) -> Option<Instant> {
        self.idle.lock().first().map(|stocked| stocked.conn.used)
    }

    fn take_oldest(&self) -> Option<Stocked> {
        let mut idle = self.idle.lock();
        (!idle.is_empty()).then(|| idle.remove(0))
    }

    fn take_newest(&self) -> Option<Stocked> {
        self.idle.lock().pop()
    }

    fn put(&self, stocked: Stocked) {
        self.idle.lock().push(stocked);
    }
}

impl Shelf {
    /// An empty one, with as many permits.
    pub fn new(owner: Arc<Owner>, size: usize, in_use: Counter) -> Shelf {
        Shelf {
            owner,
            in_use,
            idle: Mutex::default(),
            share: Arc::new(Semaphore::new(size)),
            excess: AtomicUsize::new(0),
        }
    }

    /// Connections that nobody has.
    pub fn idle(&self) -> usize {
        self.idle.lock().len()
    }

    /// Connections that somebody has, of a shelf with so many permits.
    pub fn used(&self, size: usize) -> usize {
        let all = size + self.excess.load(Ordering::Acquire);
        all.saturating_sub(self.share.available_permits())
    }

    /// Takes out those of which this is true.
    pub fn remove(&self, is_to_go: impl Fn(&Conn) -> bool) -> Vec<Stocked> {
        let mut idle = self.idle.lock();
        idle.extract_if(.., |stocked| is_to_go(&stocked.conn))
            .collect()
    }

    /// Allows `size` connections instead of `before`. Returns those that are too many.
    pub fn resize(&self, before: usize, size: usize) -> Vec<Stocked> {
        let mut more = size.saturating_sub(before);
        while more > 0 && self.take_excess() {
            more -= 1;
        }
        self.share.add_permits(more);
        let fewer = before.saturating_sub(size);
        let in_use = fewer - self.share.forget_permits(fewer);
        self.excess.fetch_add(in_use, Ordering::AcqRel);
        let mut idle = self.idle.lock();
        // The newest are used first.
        let surplus = idle.len().saturating_sub(size);
        idle.drain(..surplus).collect()
    }

    /// A permit for a connection that is there, whatever the limit says: it may be one more, to be given up when it comes back.
    pub fn adopt(&self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(permit) = self.share.clone().try_acquire_owned() {
                return permit;
            }
            self.excess.fetch_add(1, Ordering::AcqRel);
            self.share.add_permits(1);
        }
    }

    /// A permit comes back. Whether it is one too many, which is then gone.
    pub fn gives_up(&self, permit: OwnedSemaphorePermit) -> bool {
        let is_excess = self.take_excess();
        if is_excess {
            permit.forget();
        }
        is_excess
    }

    fn take_excess(&self) -> bool {
        let fewer = |excess: usize| excess.checked_sub(1);
        self.excess
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer)
            .is_ok()
    }

    /// The connection used last that is still good.
    pub fn take(&self, topology: &Topology) -> Option<Stocked> {
        loop {
            let stocked = self.take_newest()?;
            if let Some(stocked) = self.is_good(stocked, topology) {
                return Some(stocked);
            }
        }
    }

    /// Returns a connection that nobody had, unless its server is not the active any more, or has said something.
    pub fn is_good(&self, mut stocked: Stocked, topology: &Topology) -> Option<Stocked> {
        let server = stocked.conn.server.as_ref();
        let epoch = server.and_then(|server| server.epoch());
        let is_current = match self.owner.place {
            Place::Active => epoch == Some(topology.epoch),
            Place::Standby(_) => true,
        };
        (is_current && stocked.conn.socket.is_quiet()).then_some(stocked)
    }
}
