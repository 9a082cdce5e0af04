//! Watches the free space, so that the engine never meets a full disk: it could not go on after a
//! write that failed half way. Invariant: no more is admitted between two looks at the file system
//! than a part of what was free at the first.

use std::time::{Duration, Instant};

use crate::shared::Shared;

/// Look again after this long at the latest.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The engine writes a block into its journal, and again when it is moved to a table.
const WRITES_PER_BYTE: u64 = 2;
/// Look again after this many bytes at the latest.
const MAX_ADMITTED: u64 = 64 << 20;

/// True if there is room for block writes.
pub(crate) struct Room {
    look_every: Duration,
    looked: Option<Instant>,
    /// Bytes that may be written before looking again.
    admitted: u64,
    full: bool,
}

impl Room {
    pub fn new() -> Room {
        Room::looking_every(LOOK_EVERY)
    }

    /// One that looks again after this long.
    pub fn looking_every(look_every: Duration) -> Room {
        Room {
            look_every,
            looked: None,
            admitted: 0,
            full: false,
        }
    }

    /// True if `bytes` more may be written; takes them if so.
    pub fn admit(&mut self, shared: &Shared, bytes: u64) -> bool {
        let cost = bytes * WRITES_PER_BYTE;
        if self.looked.is_none_or(|at| at.elapsed() >= self.look_every) || self.admitted < cost {
            self.look(shared);
        }
        if self.admitted < cost {
            self.set_full(shared, true);
            return false;
        }
        self.set_full(shared, false);
        self.admitted -= cost;
        true
    }

    fn look(&mut self, shared: &Shared) {
        self.looked = Some(Instant::now());
        self.admitted = match shared.free_bytes() {
            Ok(free) => (free / 4).min(MAX_ADMITTED),
            Err(error) => {
                tracing::warn!(dir = %shared.dir.display(), %error, "cannot tell the free space");
                MAX_ADMITTED
            }
        };
    }

    fn set_full(&mut self, shared: &Shared, full: bool) {
        if self.full == full {
            return;
        }
        self.full = full;
        let dir = shared.dir.display();
        if full {
            let reserve = shared
                .reserve_bytes
                .load(std::sync::atomic::Ordering::Relaxed);
            tracing::error!(
                %dir, reserve_bytes = reserve,
                "the zone is full and refuses writes; make room on its file system, or lower the \
                 reserve; reads go on, nothing acknowledged is lost, and writes go on by themselves"
            );
        } else {
            tracing::info!(%dir, "the zone has room again and accepts writes");
        }
    }
}
