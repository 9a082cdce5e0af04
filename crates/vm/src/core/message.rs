//! What hosts tell each other, and what a host wants done.

use serde::{Deserialize, Serialize};

use super::record::{Number, Record, Who};

/// One following: from its beginning with a copy of everything until the connection breaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Who follows.
    pub standby: Who,
    /// Counted by the active host.
    pub count: u64,
}

/// What hosts tell each other beside the checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The sender has no machine and would follow.
    Follow(Who),
    /// A copy of everything begins: whatever the receiver has is of no use.
    Begin(Session),
    /// All of this checkpoint is applied, and all before it.
    Holds(Session, Number),
    /// The sender is well, and this is who follows it.
    Alive(Option<Session>),
    /// The machine stands still, and this checkpoint is its last one here: take over now.
    TakeOver(Session),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Read the record, without owning anything.
    Read,
    /// Own the next epoch, then read the record in it.
    Own,
    /// Write the record in the epoch owned.
    Write(Record),
    /// Tell the other host.
    Send(Message),
    /// Start the machine from this host's disk.
    Boot,
    /// Let the machine run on from the last checkpoint that was applied.
    Resume,
    /// Make durable what this host's disk holds, and apply nothing more to it.
    Sync,
    /// Kill the machine, and forget its memory and what it said.
    Destroy,
    /// Send the other host everything, and checkpoints from then on.
    Protect(Session),
    /// No more checkpoints are made.
    Unprotect,
    /// Output that this checkpoint covers may be heard, and, until then, output that waits for none.
    Release {
        /// The checkpoint.
        number: Number,
        /// When the standby may have taken over, in milliseconds of this host's clock.
        until_ms: u64,
    },
    /// All output waits, whatever else may pass before its checkpoint, until it is opened.
    Hold,
    /// Output waits for nobody.
    Open,
    /// Make a last checkpoint, and let the machine stand still.
    HandOver,
    /// The machine, which stands still to be handed over, runs on here.
    GoOn,
    /// Draw another life.
    Renew,
    /// Be ready for a copy of everything.
    Prepare(Session),
}
