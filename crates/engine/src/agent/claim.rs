//! Owning the epoch and saying so: the fence, and the heartbeats of a whole life.
//!
//! Invariant: a beat that says that nobody serves any more is the last one of its epoch.

use std::sync::Arc;
use std::time::Duration;

use coordination::records::{ActiveState, Heartbeat, Record, written_forms};
use dax::error::{Error, ErrorKind};
use dax::forms::Forms;
use dax::ids::Epoch;
use dax::storage::Storage;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use volume::lsn::Lsn;

use super::Context;
use crate::error::Result;

/// How long the zones may take to hear that nobody serves any more.
const SAY_WITHIN: Duration = Duration::from_secs(2);

/// The heartbeats of the owner of an epoch.
pub(super) struct Pulse {
    state: watch::Sender<ActiveState>,
    beating: JoinHandle<()>,
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

/// Owns a new epoch, which fences every older writer, and begins to beat. `seen` is the highest epoch that the
/// decision to take over was based on.
///
/// # Errors
/// `Conflict` if somebody else owned a higher epoch first.
pub(super) async fn fence(
    context: &Context,
    storage: &Arc<dyn Storage>,
    seen: Epoch,
) -> Result<(Epoch, Pulse)> {
    // Before anybody is fenced for a node that could not go on.
    let forms = written_forms(storage.as_ref()).await?;
    forms.check_reader(Forms::NEWEST)?;
    storage.use_forms(forms);
    let grant = storage.accepted_epoch().await?;
    if grant.epoch > seen {
        let why = format!(
            "{} has taken over meanwhile, as epoch {}",
            grant.owner, grant.epoch
        );
        return Err(Error::new(ErrorKind::Conflict, why).into());
    }
    let node = &context.party.me.node;
    let epoch = storage.own_epoch(node).await?;
    let timings = context
        .control
        .lock()
        .heartbeat(context.config.cluster.heartbeat);
    let beat = Heartbeat {
        epoch,
        counter: 1,
        node: node.clone(),
        synced_lsn: Lsn::ZERO,
        journal_synced: 0,
        timeline: 0,
        starts: 0,
        configured: 0,
        interval_ms: timings.interval.as_millis() as u64,
        state: ActiveState::TakingOver,
    };
    beat.store(storage.as_ref()).await?;
    let (state, states) = watch::channel(ActiveState::TakingOver);
    let beating = tokio::spawn(beats(Arc::clone(storage), beat, states, timings.interval));
    Ok((epoch, Pulse { state, beating }))
}

async fn beats(
    storage: Arc<dyn Storage>,
    mut beat: Heartbeat,
    mut states: watch::Receiver<ActiveState>,
    interval: Duration,
) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            changed = states.changed() => if changed.is_err() { return },
        }
        beat.counter += 1;
        beat.state = states.borrow_and_update().clone();
        if let Err(error) = beat.store(storage.as_ref()).await {
            tracing::info!(%error, "heartbeat not written");
        }
        if beat.state.is_vacant() {
            return;
        }
    }
}

impl Pulse {
    /// The server is ready, or is not any more.
    pub(super) fn says(&self, state: ActiveState) {
        self.state.send_replace(state);
    }

    /// The last beat of the epoch: nobody serves any more.
    pub(super) async fn vacate(mut self, storage: &dyn Storage, state: ActiveState) {
        self.state.send_replace(state);
        // A stalled store must not hold us up for long.
        if tokio::time::timeout(SAY_WITHIN, &mut self.beating)
            .await
            .is_err()
        {
            tracing::info!("the last heartbeat could not be written in time");
        }
        match tokio::time::timeout(SAY_WITHIN, storage.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::info!(%error, "the epoch is not released"),
            Err(_) => tracing::info!("the epoch could not be released in time"),
        }
    }
}
