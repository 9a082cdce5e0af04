//! Numbers of one client.

use std::time::Instant;

use crate::core::session::Counts;
use crate::core::stats::Clocks;
use crate::driver::stats::SharedTally;

/// Numbers of a client that are not those of its user and database yet.
pub struct Numbers {
    /// Those of its user and database.
    pub tally: SharedTally,
    /// Counts of the session that are in the totals.
    pub counted: Counts,
    /// Clocks of its statements and transactions.
    pub clocks: Clocks,
    /// Bytes from the client.
    pub received: u64,
    /// Bytes to the client.
    pub sent: u64,
    wait: Option<Instant>,
}

impl Numbers {
    /// Those of a client whose session has counted so much already.
    pub fn new(tally: SharedTally, counts: &Counts) -> Numbers {
        let mut clocks = Clocks::default();
        clocks.begin_at(counts);
        Numbers {
            tally,
            counted: Counts::default(),
            clocks,
            received: 0,
            sent: 0,
            wait: None,
        }
    }

    /// It waits for a server from now on.
    pub fn waits(&mut self) {
        self.wait = Some(Instant::now());
    }

    /// It has got one.
    pub fn has_waited(&mut self) {
        if let Some(since) = self.wait.take() {
            self.tally.lock().waits.observe(since.elapsed());
        }
    }
}
