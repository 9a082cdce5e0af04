//! The last comparison of both members, and whose turn it is.

use parking_lot::Mutex;

use crate::core::verifying::{Schedule, Verified};

/// Comparisons of a manager.
#[derive(Debug, Default)]
pub struct Verifications {
    /// The last one.
    pub last: Mutex<Option<Verified>>,
    /// The reason for which the one that is due cannot be done.
    pub hindrance: Mutex<Option<String>>,
    /// Time of the next one.
    pub schedule: Mutex<Schedule>,
    /// The members are compared once at a time.
    pub turn: tokio::sync::Mutex<()>,
    /// Whoever closes the gate has this: a comparison that opened the gate would let transactions into a handover.
    pub gate: tokio::sync::Mutex<()>,
}
