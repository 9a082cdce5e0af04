//! The active's heartbeats (CAC-DB, appendix A, algorithm 3): what it says of itself in the registry, every T.
//!
//! Invariant: a beat that says that nobody serves any more is the last one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use coordination::config;
use coordination::records::{ActiveState, Control, Heartbeat, Record};
use dax::storage::Storage;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use volume::active::ActiveView;

use super::announced::AnnouncedLog;
use super::{Active, configuring};
use crate::agent::context::Context;
use crate::agent::pulse::Pulse;

impl Active {
    /// Beats every T (CAC-DB, appendix A, algorithm 3); tells when it last did.
    pub(super) fn beat(
        &self,
        context: &Context,
        announced: &AnnouncedLog,
        configuring: &configuring::ConfigStatus,
    ) -> (
        watch::Sender<ActiveState>,
        watch::Receiver<Instant>,
        JoinHandle<()>,
    ) {
        let (state, states) = watch::channel(ActiveState::Serving);
        let (beaten, last) = watch::channel(Instant::now());
        let beating = Beating {
            beaten,
            storage: self.storage.clone(),
            view: Arc::clone(&self.view),
            announced: announced.clone(),
            configuring: configuring.clone(),
            control: context.control.clone(),
            own: context.config.cluster.heartbeat,
            states,
            next: Heartbeat {
                epoch: self.epoch,
                counter: self.pulse.as_ref().map_or(1, Pulse::last) + 1,
                node: context.me.node.clone(),
                synced_lsn: volume::lsn::Lsn::ZERO,
                journal_synced: 0,
                timeline: 0,
                starts: 0,
                configured: 0,
                interval_ms: 0,
                state: ActiveState::Serving,
            },
        };
        (state, last, tokio::spawn(beating.run()))
    }
}

struct Beating {
    /// When the writing of the last beat that arrived began: the epoch still stood then.
    beaten: watch::Sender<Instant>,
    storage: Arc<dyn Storage>,
    view: Arc<ActiveView>,
    announced: AnnouncedLog,
    configuring: configuring::ConfigStatus,
    control: watch::Receiver<Control>,
    /// What this node's own configuration says of heartbeats.
    own: config::Heartbeat,
    states: watch::Receiver<ActiveState>,
    next: Heartbeat,
}

impl Beating {
    async fn run(mut self) {
        loop {
            let state = self.states.borrow_and_update().clone();
            let last = state.is_vacant();
            let interval = self.control.borrow().heartbeat(self.own).interval;
            let (synced, starts) = self.announced.now();
            self.next.starts = starts;
            self.next.interval_ms = interval.as_millis() as u64;
            // Before the journal: what is said to be written must be below its synced end.
            self.next.configured = self.configuring.version.load(Ordering::Acquire);
            self.next.state = state;
            self.next.synced_lsn = synced.end;
            self.next.timeline = synced.timeline.0;
            self.next.journal_synced = self.view.journal_synced().0;
            let began = Instant::now();
            match self.next.store(self.storage.as_ref()).await {
                Ok(()) => drop(self.beaten.send_replace(began)),
                Err(error) => tracing::info!(%error, "heartbeat not written"),
            }
            self.next.counter += 1;
            if last {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                changed = self.states.changed() => if changed.is_err() { return },
            }
        }
    }
}
