//! `history/<n>`: every change of the active, with its causes and times.
//!
//! Numbers grow by one. The owner of the epoch is the only writer, so two entries never take the
//! same number; a writer that was fenced in between fails instead.

use dax::error::{Error as DaxError, ErrorKind};
use dax::ids::{Epoch, NodeName};
use dax::storage::{Authority, Storage};
use pgdata::xid::Xid8;
use serde::{Deserialize, Serialize};
use volume::lsn::Lsn;

use super::{ActiveState, Record, Result};

/// Entries kept; older ones are removed as new ones come.
pub(super) const KEPT: u64 = 1000;

/// Why the active changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum Cause {
    /// The cluster was created.
    Created,
    /// Nobody was active when the node started.
    Started,
    /// The active was gone; the evidence in words.
    Failover {
        /// What the detector saw.
        evidence: String,
    },
    /// Asked for by an operator, with the old active's cooperation.
    Switchover,
    /// Asked for by an operator, without it.
    Forced,
}

/// Who decided that the active changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decider {
    /// An operator.
    Operator,
    /// The node itself.
    #[default]
    Automatic,
}

/// How long one phase took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseTiming {
    /// The phase, as `docs/understand/failover.md` calls it.
    pub phase: String,
    /// When it began, Unix milliseconds; for people only.
    #[serde(default)]
    pub began_unix_ms: u64,
    /// Its length in milliseconds.
    pub ms: u64,
}

/// Where the log was, when.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lsns {
    /// How far the new active knew the log to be durable when it decided.
    #[serde(default)]
    pub synced: Option<Lsn>,
    /// How far it had replayed then.
    #[serde(default)]
    pub applied: Option<Lsn>,
    /// Where the new timeline was when PostgreSQL had been promoted.
    #[serde(default)]
    pub promoted: Option<Lsn>,
}

/// What is known of the active before, as its last heartbeat tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldActive {
    /// Epoch that the old active owned.
    pub epoch: Epoch,
    /// Its last beat.
    pub beat: u64,
    /// What it was doing then.
    #[serde(flatten)]
    pub state: ActiveState,
    /// How long before the decision that beat was seen; not known to a node that had just started.
    #[serde(default)]
    pub seen_before_ms: Option<u64>,
}

/// One change of the active.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Its number, from 1. [`append_history`] gives it.
    #[serde(default)]
    pub number: u64,
    /// The epoch that began.
    pub epoch: Epoch,
    /// Who owns it.
    pub node: NodeName,
    /// Who was the active before, if anybody was.
    #[serde(default)]
    pub previous: Option<NodeName>,
    /// Reason why the active changed.
    #[serde(flatten)]
    pub cause: Cause,
    /// The phases in order.
    #[serde(default)]
    pub phases: Vec<PhaseTiming>,
    /// The end of the log that was replayed: what the new timeline starts from.
    #[serde(default)]
    pub log_end: Lsn,
    /// Where the log was, when.
    #[serde(default)]
    pub lsns: Lsns,
    /// The horizon of the epoch: see [`Horizon`](super::Horizon).
    #[serde(default)]
    pub horizon: Option<Xid8>,
    /// PostgreSQL's new timeline.
    #[serde(default)]
    pub timeline: u32,
    /// Who decided it.
    #[serde(default)]
    pub decided_by: Decider,
    /// The active before, if there was one.
    #[serde(default)]
    pub old_active: Option<OldActive>,
    /// When it was done, Unix milliseconds; for people only, nothing compares it.
    pub unix_ms: u64,
}

impl HistoryEntry {
    /// The length of all phases together, in milliseconds.
    pub fn total_ms(&self) -> u64 {
        self.phases.iter().map(|p| p.ms).sum()
    }
}

fn name_of(number: u64) -> String {
    format!("{}{number:010}", HistoryEntry::PREFIX)
}

impl Record for HistoryEntry {
    const PREFIX: &'static str = "history/";
    const AUTHORITY: Authority = Authority::Owner;

    fn name(&self) -> String {
        name_of(self.number)
    }
}

/// Writes `entry` behind the last one and returns its number.
///
/// # Errors
/// `Fenced` if a higher epoch exists.
pub async fn append_history(storage: &dyn Storage, mut entry: HistoryEntry) -> Result<u64> {
    let names = storage.list_records(HistoryEntry::PREFIX).await?;
    let number_of = |name: &str| name.strip_prefix(HistoryEntry::PREFIX)?.parse::<u64>().ok();
    let numbers: Vec<u64> = names.iter().filter_map(|(n, _)| number_of(n)).collect();
    entry.number = numbers.iter().max().map_or(1, |n| n + 1);
    entry.store(storage).await?;
    for old in numbers.iter().filter(|n| **n + KEPT <= entry.number) {
        storage
            .remove_record(&name_of(*old), HistoryEntry::AUTHORITY)
            .await?;
    }
    Ok(entry.number)
}

/// The last `most` entries, oldest first.
///
/// # Errors
/// `Invalid` if `most` is 0; of the storage tier otherwise.
pub async fn read_history(storage: &dyn Storage, most: usize) -> Result<Vec<HistoryEntry>> {
    if most == 0 {
        return Err(DaxError::new(ErrorKind::Invalid, "ask for at least one history entry").into());
    }
    let mut entries = HistoryEntry::list(storage).await?;
    entries.sort_by_key(|e| e.number);
    Ok(entries.split_off(entries.len().saturating_sub(most)))
}
