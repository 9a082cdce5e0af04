//! The past of the volume, as the active looks after it: pins whose makers are silent are given up, and everybody is told
//! what is kept.
//!
//! Invariant: no silence ends a pin in state *kept*.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dax::ids::Generation;
use dax::storage::Storage;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use volume::active::ActiveView;
use volume::past::{Pin, PinState};

use super::branches::{BranchReport, Branches};
use super::context::Context;
use super::error::Result;

/// How long the maker of a pin may be silent.
const TIMEOUT: Duration = Duration::from_secs(600);
/// How often the pins are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Past of the volume, for the node's status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PastReport {
    /// Images besides those of the last seals, oldest first.
    pub images: Vec<ImageReport>,
    /// Bytes that they take in each zone, about.
    pub used_bytes: u64,
    /// Pins, which keep images whether the policy wants them or not.
    pub pins: Vec<PinReport>,
    /// Branches, by name.
    pub branches: Vec<BranchReport>,
}

/// A kept image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ImageReport {
    pub generation: String,
    pub unix_ms: i64,
}

/// A pin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct PinReport {
    pub name: String,
    pub purpose: String,
    pub state: String,
    pub generation: String,
}

/// Shared between the keeper and the node's status.
pub(crate) type PastStatus = Arc<Mutex<PastReport>>;

/// Keeps images as this node's configuration says, and looks after pins, until the task is aborted.
pub(super) fn keep(context: &Context, view: &Arc<ActiveView>) -> (JoinHandle<()>, PastStatus) {
    view.keep_past(context.config.past.clone());
    let told = PastStatus::default();
    let keeper = PastKeeper {
        storage: Arc::clone(view.storage()),
        view: Arc::clone(view),
        branches: Branches::new(context.config.cluster.clone(), context.me.node.as_str()),
        told: Arc::clone(&told),
    };
    (tokio::spawn(keeper.run()), told)
}

/// Looks after the past for as long as this node is the active.
struct PastKeeper {
    storage: Arc<dyn Storage>,
    view: Arc<ActiveView>,
    branches: Branches,
    told: PastStatus,
}

/// Last number of each pin that is being made, and since when it has that.
type Heard = HashMap<String, (u64, Instant)>;

/// True if a pin is to be given up.
fn is_silent(heard: &mut Heard, pin: &Pin, now: Instant) -> bool {
    if pin.state == PinState::Kept {
        heard.remove(&pin.name);
        return false;
    }
    let said = heard.entry(pin.name.clone()).or_insert((pin.number, now));
    if said.0 != pin.number {
        *said = (pin.number, now);
    }
    now.duration_since(said.1) >= TIMEOUT
}

impl PastKeeper {
    async fn run(mut self) {
        let mut heard = Heard::new();
        loop {
            if let Err(error) = self.look(&mut heard).await {
                tracing::info!(%error, "pins and branches could not be looked at; trying again");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&mut self, heard: &mut Heard) -> Result<()> {
        let pins = Pin::all(&self.storage).await?;
        heard.retain(|name, _| pins.iter().any(|pin| pin.name == *name));
        for pin in &pins {
            if is_silent(heard, pin, Instant::now()) {
                tracing::warn!(pin = %pin.name, purpose = %pin.purpose, "the maker of a pin was silent for {} minutes: it is given up", TIMEOUT.as_secs() / 60);
                self.view.give_up_pin(pin).await?;
            }
        }
        let branches = self.branches.look(&self.storage).await?;
        let past = self.view.past().await;
        let text = |generation: Generation| generation.to_string();
        *self.told.lock() = PastReport {
            images: past
                .images
                .iter()
                .map(|image| ImageReport {
                    generation: text(image.generation),
                    unix_ms: image.at.0 / 1_000_000,
                })
                .collect(),
            used_bytes: past.used_bytes,
            pins: pins
                .into_iter()
                .map(|pin| PinReport {
                    generation: text(pin.generation()),
                    state: pin.state.to_string(),
                    name: pin.name,
                    purpose: pin.purpose,
                })
                .collect(),
            branches,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use dax::ids::NodeName;
    use dax::memory::MemoryCluster;
    use volume::view::{Ownership, Timestamp};

    use super::*;

    // hazard: PAST-2
    #[tokio::test]
    async fn silence_ends_a_pin_that_is_being_made_and_none_that_is_kept() {
        let cluster = MemoryCluster::new(Default::default());
        let storage: Arc<dyn Storage> = cluster.client();
        storage
            .own_epoch(&NodeName::new("north").unwrap())
            .await
            .unwrap();
        coordination::records::raise_forms(storage.as_ref(), dax::forms::Forms::NEWEST)
            .await
            .unwrap();
        let root = Ownership {
            mode: 0o700,
            uid: 0,
            gid: 0,
        };
        volume::latest::format(&storage, root, Timestamp(0))
            .await
            .unwrap();
        let pin = Pin::make(&storage, "test", None, false).await.unwrap();
        let (mut heard, start) = (Heard::new(), Instant::now());
        let mut at =
            |pin: &Pin, seconds| is_silent(&mut heard, pin, start + Duration::from_secs(seconds));
        assert!(!at(&pin, 0) && !at(&pin, 599));
        let pin = pin.refresh(&storage).await.unwrap();
        assert!(!at(&pin, 600) && !at(&pin, 1199) && at(&pin, 1200));
        let pin = pin.keep(&storage).await.unwrap();
        assert!(!at(&pin, 1200) && !at(&pin, 1_000_000));
    }
}
