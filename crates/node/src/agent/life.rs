//! What a node holds in one life; [`roles`](super::roles) has the work that is done on it.

use std::sync::Arc;
use std::time::Duration;

use coordination::records::{Heartbeat, Horizon, Lsns, OldActive};
use dax::ids::{Epoch, NodeName};
use dax::storage::Storage;
use pgserver::leftovers;

use super::active::Active;
use super::context::Context;
use super::error::Result;
use super::standby::{Known, Standby};

/// What a node holds in one life.
#[derive(Default)]
pub(super) struct Life {
    /// Its handle to the volume: an epoch once lost is lost for good, so each life has its own.
    pub storage: Option<Arc<dyn Storage>>,
    /// The last heartbeat that was seen.
    pub beat: Option<Heartbeat>,
    /// The highest epoch that decisions are based on.
    pub seen: Epoch,
    /// What was known when a takeover was decided.
    pub sight: Sight,
    pub body: Body,
    /// What it had in memory shall not be had again: its PostgreSQL ended by itself, or an operator
    /// wants it so.
    pub forgets: bool,
}

/// What runs.
#[derive(Default)]
pub(super) enum Body {
    #[default]
    Nothing,
    Standby(Box<Standby>, Known),
    Active(Box<Active>),
}

/// What was known of the active, and of the log, when a takeover was decided; for the history.
#[derive(Debug, Clone, Default)]
pub(super) struct Sight {
    /// An operator wants the node to begin anew, without what it has in memory.
    pub forgets: bool,
    /// Who it was.
    pub previous: Option<NodeName>,
    /// How long it had shown nothing.
    pub detect: Option<Duration>,
    pub lsns: Lsns,
    /// The horizons of all epochs, that of the new one last.
    pub horizons: Vec<Horizon>,
    pub old_active: Option<OldActive>,
}

impl Life {
    /// The handle of this life; opened when it begins.
    pub(super) async fn storage(&mut self, context: &Context) -> Result<Arc<dyn Storage>> {
        if let Some(storage) = &self.storage {
            return Ok(Arc::clone(storage));
        }
        // A life that failed half-way may have left its mount; this one needs the place.
        let paths = &context.config.paths;
        leftovers::clean(&paths.run(), &paths.mount())?;
        mount::detach_stale(&paths.mount())?;
        let storage = context.connect().await?;
        context.board.watch(storage.clone());
        self.storage = Some(Arc::clone(&storage));
        Ok(storage)
    }
}
