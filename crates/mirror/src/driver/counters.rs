//! Counts and times that operators are told.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Counts since the manager began.
#[derive(Debug, Default)]
pub struct Counters {
    pub clients: AtomicU64,
    pub statements: AtomicU64,
    pub logged: AtomicU64,
    pub refused: AtomicU64,
    pub applied: AtomicU64,
    pub transfers: AtomicU64,
    pub rewinds: AtomicU64,
    pub moved: AtomicU64,
    /// Transactions whose rows were compared with the log's after the member had committed them.
    pub compared: AtomicU64,
    /// Transactions that the member had executed before the manager looked at it, and that were not compared.
    pub uncompared: AtomicU64,
}

impl Counters {
    /// So many transactions more were compared, and are equal.
    pub fn count_compared(&self, count: usize) {
        self.compared.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// So many transactions more cannot be compared.
    pub fn count_uncompared(&self, count: usize) {
        self.uncompared.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// The time in milliseconds of the Unix epoch.
pub fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(0)
}
