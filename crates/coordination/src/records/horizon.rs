//! `horizon/<epoch>`: which transaction ids an epoch found used when it began.
//!
//! Whoever has lost the answer to a COMMIT learns from it what became of the transaction (docs/understand/protocol.md, *The horizon of an
//! epoch*). The record is durable before the epoch gives out its first transaction id, and an epoch that gives out any
//! has one. So of the epochs that follow another one, the first that has a record is the first that can have given out
//! a transaction id anew.

use std::collections::BTreeMap;

use dax::ids::Epoch;
use dax::storage::{Authority, Storage};
use pgdata::xid::Xid8;
use serde::{Deserialize, Serialize};

use super::history::KEPT;
use super::{HistoryEntry, Record, Result};

/// What an epoch found when it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Horizon {
    /// The epoch that began.
    pub epoch: Epoch,
    /// Whatever had committed before has an id below this, and no id that this epoch gives out is below it. `None` if it
    /// could not be found out: then nothing is known of commits in doubt of earlier epochs.
    pub xid: Option<Xid8>,
}

impl Record for Horizon {
    const PREFIX: &'static str = "horizon/";
    const AUTHORITY: Authority = Authority::Owner;

    fn name(&self) -> String {
        name_of(self.epoch)
    }
}

fn name_of(epoch: Epoch) -> String {
    format!("{}{:010}", Horizon::PREFIX, epoch.0)
}

impl Horizon {
    /// The horizons of all epochs that are known, in order. An epoch that only the history knows, because an earlier
    /// release was the active then, has an unknown one.
    ///
    /// # Errors
    /// Of the storage tier.
    pub async fn known(storage: &dyn Storage) -> Result<Vec<Horizon>> {
        let served = HistoryEntry::list(storage).await?;
        let served = served.iter().map(|entry| (entry.epoch, None));
        let mut known: BTreeMap<Epoch, Option<Xid8>> = served.collect();
        let recorded = Horizon::list(storage).await?;
        known.extend(recorded.iter().map(|horizon| (horizon.epoch, horizon.xid)));
        let known = known.into_iter();
        Ok(known.map(|(epoch, xid)| Horizon { epoch, xid }).collect())
    }

    /// Records the horizon of the epoch that begins, and returns all that are known, that one among them.
    ///
    /// # Errors
    /// `Fenced` if a higher epoch exists.
    pub async fn begin(
        storage: &dyn Storage,
        epoch: Epoch,
        xid: Option<Xid8>,
    ) -> Result<Vec<Horizon>> {
        let begun = Horizon { epoch, xid };
        begun.store(storage).await?;
        let mut known = Horizon::known(storage).await?;
        known.retain(|horizon| horizon.epoch < epoch);
        known.push(begun);
        Ok(known)
    }

    /// Removes the oldest beyond as many as the history keeps.
    ///
    /// # Errors
    /// `Fenced` if a higher epoch exists.
    pub async fn prune(storage: &dyn Storage) -> Result<()> {
        let names = storage.list_records(Horizon::PREFIX).await?;
        let surplus = names.len().saturating_sub(KEPT as usize);
        for (name, _) in names.iter().take(surplus) {
            storage.remove_record(name, Horizon::AUTHORITY).await?;
        }
        Ok(())
    }
}
