//! What the active announces of its log, and how it is held while its PostgreSQL is started again.
//!
//! A server that starts may have larger settings, and writes log that standbys cannot redo with
//! smaller ones, before its control file says so (N12). So nothing of that log is announced before
//! it serves, and then only together with the number of starts, which makes standbys look.

use std::sync::Arc;

use pgdata::sealer::{Sealer, SyncedLog};
use tokio::sync::watch;

/// What standbys are told of the log.
#[derive(Clone)]
pub(super) struct AnnouncedLog {
    sealer: Arc<Sealer>,
    state: watch::Sender<State>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct State {
    /// The end that is told meanwhile.
    held: Option<SyncedLog>,
    starts: u32,
}

impl AnnouncedLog {
    pub(super) fn new(sealer: Arc<Sealer>) -> AnnouncedLog {
        AnnouncedLog {
            sealer,
            state: watch::Sender::default(),
        }
    }

    /// How far the log is synced, as standbys may know it, and how often PostgreSQL was started again.
    pub(super) fn now(&self) -> (SyncedLog, u32) {
        let state = self.state.borrow();
        // Read under the same lock: nothing of a start slips out with the number before it.
        let synced = *self.sealer.synced().borrow();
        (state.held.unwrap_or(synced), state.starts)
    }

    /// PostgreSQL is about to be started again.
    pub(super) fn hold(&self) {
        let synced = *self.sealer.synced().borrow();
        self.state.send_modify(|state| state.held = Some(synced));
    }

    /// PostgreSQL serves again, as another run.
    pub(super) fn let_go(&self) {
        self.state.send_modify(|state| {
            state.held = None;
            state.starts += 1;
        });
    }

    /// Tells when any of that changed.
    pub(super) fn changes(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }
}
