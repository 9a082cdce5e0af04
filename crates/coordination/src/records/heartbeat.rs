//! `heartbeat`: the reliable counter of CAC-DB's appendix A, with what standbys want to know.
//!
//! The owner of the epoch writes it every T. `(epoch, counter)` only grows. It repeats what the
//! direct channel announces (4.1), so a standby without a channel still follows, only later.

use std::time::Duration;

use dax::ids::{Epoch, NodeName};
use dax::storage::Authority;
use serde::{Deserialize, Serialize};
use volume::lsn::Lsn;

use super::Record;
use crate::config::Heartbeat as Timings;

/// One heartbeat of the active.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The epoch that beats.
    pub epoch: Epoch,
    /// Counts the beats of this epoch, from 1.
    pub counter: u64,
    /// Who owns the epoch.
    pub node: NodeName,
    /// The end of the log that k replicas hold: the horizon of standbys.
    pub synced_lsn: Lsn,
    /// The journal up to here is durable (a `JournalPos`).
    pub journal_synced: u64,
    /// PostgreSQL's timeline.
    pub timeline: u32,
    /// How often its PostgreSQL was started again in this epoch; see [`Trigger::starts`].
    ///
    /// [`Trigger::starts`]: crate::channel::Trigger::starts
    #[serde(default)]
    pub starts: u32,
    /// The version of the control record whose parameters are in the shared configuration.
    #[serde(default)]
    pub configured: u64,
    /// When the next beat is due; 0 if that is not said. Who watches waits at least for two.
    #[serde(default)]
    pub interval_ms: u64,
    /// What the owner is doing.
    #[serde(flatten)]
    pub state: ActiveState,
}

/// What the owner of an epoch is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum ActiveState {
    /// It owns the epoch and does not serve yet.
    TakingOver,
    /// It accepts writes of clients.
    Serving,
    /// Its PostgreSQL died: a standby should take over at once.
    PostgresDead,
    /// It stopped cleanly. The epoch is free to be followed; `to` is who should, if anybody.
    Released {
        /// The node that was asked to take over.
        to: Option<NodeName>,
    },
}

impl ActiveState {
    /// True if the owner itself says that it no longer serves and somebody else should.
    pub fn is_vacant(&self) -> bool {
        matches!(
            self,
            ActiveState::PostgresDead | ActiveState::Released { .. }
        )
    }
}

impl Heartbeat {
    /// These timings with at least the timeout that the beats ask for: operators may have changed how
    /// often the active beats before a node that watches it has heard of that.
    pub fn timeout(&self, timings: Timings) -> Timings {
        let two_beats = 2 * Duration::from_millis(self.interval_ms) + 2 * timings.poll;
        Timings {
            timeout: timings.timeout.max(two_beats),
            ..timings
        }
    }
}

impl Record for Heartbeat {
    const PREFIX: &'static str = "heartbeat";
    const AUTHORITY: Authority = Authority::Owner;
}
