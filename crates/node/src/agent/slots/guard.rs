//! An active's slots: how much log each holds, and that none fills the zones.
//!
//! Invariant: a slot is given up only where the zones are about to be full, and only if it holds more than there is left and enough to
//! help. Whether it has helped is seen before the next one. Without slots PostgreSQL is asked nothing.

use std::sync::Arc;
use std::time::Duration;

use dax::storage::{Space, Storage};
use parking_lot::Mutex;
use pgserver::{Session, StartOptions};
use serde::{Deserialize, Serialize};
use volume::active::ActiveView;

use super::keeper::files;
use crate::agent::asking::Asking;

/// How often it looks.
const EVERY: Duration = Duration::from_secs(5);
/// The part of the zones below which slots are given up.
const LEFT: u64 = 20;
/// The part of the zones that a slot must hold to be given up: without it the database would stop as well.
const HELPS: u64 = 100;
/// Time in which the zones give back what a slot held: the checkpoint that removes the log, and the seals after it.
const GIVES_BACK_WITHIN: Duration = Duration::from_secs(300);

/// A slot, as the active's status shows it: PostgreSQL's columns, and the log that it holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    slot_name: String,
    slot_type: String,
    plugin: Option<String>,
    database: Option<String>,
    active: bool,
    restart_lsn: Option<String>,
    confirmed_flush_lsn: Option<String>,
    wal_status: Option<String>,
    held_bytes: Option<u64>,
}

/// Status of the slots, for the node's status.
pub(crate) type SlotStatus = Arc<Mutex<Vec<Held>>>;

/// Looks until it is aborted, at the PostgreSQL that was started with these options.
pub(crate) async fn run(
    postgres: StartOptions,
    view: Arc<ActiveView>,
    storage: Arc<dyn Storage>,
    told: SlotStatus,
) {
    let mut asking = Asking::new(postgres);
    loop {
        let held = match files(&view.namespace()).is_empty() {
            true => Vec::new(),
            false => {
                let answer = asking.ask("its slots", Session::held_slots).await;
                let slots = answer.and_then(|text| serde_json::from_str(&text).ok());
                slots.unwrap_or_default()
            }
        };
        *told.lock() = held.clone();
        if !held.is_empty()
            && let Ok(space) = storage.space().await
            && let Some(slot) = to_give_up(&held, space)
        {
            let (name, held_bytes) = (&slot.slot_name, slot.held_bytes);
            tracing::error!(
                slot = name,
                held_bytes,
                free_bytes = space.free_bytes,
                "the slot is dropped, because the log that it holds fills the zones; its subscriber has to start over"
            );
            let give_up = async |session: &Session| session.give_up_slot(name).await;
            asking.ask("that it dropped a slot", give_up).await;
            asking.ask("a checkpoint", Session::checkpoint).await;
            tokio::time::sleep(GIVES_BACK_WITHIN).await;
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// The slot that holds most, if the zones are nearly full, and that is more than they have left and enough to help.
fn to_give_up(slots: &[Held], space: Space) -> Option<&Held> {
    let all = space.used_bytes.saturating_add(space.free_bytes);
    let most = slots.iter().max_by_key(|slot| slot.held_bytes)?;
    let is_full = space.free_bytes < all / LEFT;
    let helps = most.held_bytes > Some(space.free_bytes.max(all / HELPS));
    (is_full && helps).then_some(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(name: &str, held_bytes: u64) -> Held {
        Held {
            slot_name: name.to_owned(),
            held_bytes: Some(held_bytes),
            ..Held::default()
        }
    }

    fn space(used_bytes: u64, free_bytes: u64) -> Space {
        Space {
            used_bytes,
            free_bytes,
        }
    }

    // hazard: SL4
    #[test]
    fn the_slot_that_holds_most_is_given_up_before_the_zones_are_full() {
        let slots = [slot("a", 100), slot("b", 9_000), slot("c", 10)];
        let given_up = |space| to_give_up(&slots, space).map(|slot| slot.slot_name.as_str());
        assert_eq!(given_up(space(90_000, 10_000)), None, "there is room");
        assert_eq!(given_up(space(99_000, 1_000)), Some("b"));
        assert_eq!(
            given_up(space(9_990_000, 10_000)),
            None,
            "it would not help"
        );
        assert_eq!(to_give_up(&[], space(100, 0)), None);
        assert_eq!(given_up(space(100_000, 0)), Some("b"));
        // Somebody else has filled a zone: each slot of the cluster was dropped, one every five seconds.
        assert_eq!(given_up(space(1_000_000, 0)), None, "it would not help");
    }
}
