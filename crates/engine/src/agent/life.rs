//! One life of a node: what it holds, and the work of each state.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use coordination::channel::Notice;
use coordination::records::{
    ActiveState, HistoryEntry, Lsns, PhaseTiming, append_history, unix_ms,
};
use dax::ids::Epoch;
use dax::storage::Storage;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use volume::lsn::Lsn;

use super::Context;
use super::admission;
use super::board::Order;
use super::claim::{Pulse, fence};
use super::opened::Opened;
use super::watch::Watch;
use crate::error::{EngineError, Result};
use crate::machine::{Event, State};
use crate::server::Hosted;

/// How often a serving node tells how it is.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// What a node holds in one life.
#[derive(Default)]
pub(super) struct Life {
    watch: Option<Watch>,
    storage: Option<Arc<dyn Storage>>,
    pulse: Option<Pulse>,
    opened: Option<Opened>,
    server: Option<Hosted>,
    epoch: Epoch,
    /// The steps of the takeover so far; told in the history once the server is ready.
    phases: Option<Phases>,
}

/// The steps of a takeover, as they are timed.
struct Phases {
    done: Vec<PhaseTiming>,
    since: Instant,
}

impl Phases {
    fn begin(silent: Duration) -> Phases {
        let mut phases = Phases {
            done: Vec::new(),
            since: Instant::now(),
        };
        phases.push("detect", silent);
        phases
    }

    fn push(&mut self, phase: &str, took: Duration) {
        let ms = took.as_millis() as u64;
        self.done.push(PhaseTiming {
            phase: phase.to_owned(),
            began_unix_ms: unix_ms().saturating_sub(ms),
            ms,
        });
    }

    fn end(&mut self, phase: &str) {
        let took = self.since.elapsed();
        self.push(phase, took);
        self.since = Instant::now();
        tracing::info!(phase, ms = took.as_millis() as u64, "takeover");
    }
}

impl Life {
    /// Does what the state asks for, until it changes.
    pub(super) async fn step(
        &mut self,
        context: &Context,
        orders: &mut mpsc::Receiver<Order>,
    ) -> Result<()> {
        let state = context.driver.state();
        match state {
            State::Waiting => {
                let watch = self.watch.get_or_insert_with(|| Watch::new(context));
                attend(context, orders, state, watch.run(context))
                    .await
                    .unwrap_or(Ok(()))
            }
            State::BackingOff => {
                self.watch = None;
                let until = context.driver.look(|machine| machine.wake_at());
                let wait = until
                    .unwrap_or_default()
                    .saturating_sub(context.driver.now());
                attend(context, orders, state, tokio::time::sleep(wait)).await;
                context.driver.tell(Event::Tick);
                Ok(())
            }
            State::Fencing => self.fence(context, orders).await,
            State::Opening => self.open(context, orders).await,
            State::Starting => self.start(context, orders).await,
            State::Serving => self.serve(context, orders).await,
            State::HandingOver | State::Stopping => self.leave(context).await,
            State::Clearing => self.clear(context).await,
            State::Stopped => Ok(()),
        }
    }

    async fn fence(&mut self, context: &Context, orders: &mut mpsc::Receiver<Order>) -> Result<()> {
        let (seen, silent) = self
            .watch
            .take()
            .map_or((Epoch(0), Duration::ZERO), |w| (w.seen, w.silent));
        self.phases = Some(Phases::begin(silent));
        let owning = async {
            let storage = coordination::tier::connect(
                &context.config.cluster,
                context.party.me.node.as_str(),
            )
            .await?;
            // Before anybody is fenced: this node may not be able to serve at all.
            let installed = admission::admit(context, storage.as_ref()).await?;
            let (epoch, pulse) = fence(context, &storage, seen).await?;
            admission::note(context, storage.as_ref(), installed.as_ref()).await?;
            Ok::<_, EngineError>((storage, epoch, pulse))
        };
        let Some(owned) = attend(context, orders, State::Fencing, owning).await else {
            return Ok(());
        };
        let (storage, epoch, pulse) = owned?;
        context.board.watch(Arc::clone(&storage));
        (self.storage, self.epoch, self.pulse) = (Some(storage), epoch, Some(pulse));
        self.end_phase("fence");
        context.driver.tell(Event::EpochOwned(epoch));
        Ok(())
    }

    async fn open(&mut self, context: &Context, orders: &mut mpsc::Receiver<Order>) -> Result<()> {
        let Some(storage) = self.storage.clone() else {
            return Ok(());
        };
        let opening = unless_fenced(&storage, Opened::open(context, &storage));
        let Some(opened) = attend(context, orders, State::Opening, opening).await else {
            return Ok(());
        };
        let Some(opened) = opened else {
            context.driver.tell(Event::Superseded);
            return Ok(());
        };
        self.opened = Some(opened?);
        self.end_phase("open");
        context.driver.tell(Event::Opened);
        Ok(())
    }

    /// Starts the server, or starts it again if it runs or has ended.
    async fn start(&mut self, context: &Context, orders: &mut mpsc::Receiver<Order>) -> Result<()> {
        let Some(storage) = self.storage.clone() else {
            return Ok(());
        };
        if let Some(running) = self.server.take() {
            self.says(ActiveState::TakingOver);
            running.stop().await?;
        }
        // In place, the programs may be newer than they were when the epoch was taken.
        let in_place = self.phases.is_none();
        let starting = async {
            if in_place {
                let installed = admission::admit(context, storage.as_ref()).await?;
                admission::note(context, storage.as_ref(), installed.as_ref()).await?;
            }
            let server = Hosted::start(
                &context.recipe,
                &context.config.paths,
                context.run_as.clone(),
            )
            .await?;
            let ready = server.ready().await;
            Ok::<_, EngineError>((server, ready))
        };
        let starting = unless_fenced(&storage, starting);
        let Some(started) = attend(context, orders, State::Starting, starting).await else {
            return Ok(());
        };
        let Some(started) = started else {
            context.driver.tell(Event::Superseded);
            return Ok(());
        };
        let (server, ready) = started?;
        self.server = Some(server);
        ready?;
        self.end_phase("start");
        self.says(ActiveState::Serving);
        context.driver.tell(Event::Ready);
        self.record(context, storage.as_ref()).await
    }

    /// The change of the active becomes history, once for each epoch.
    async fn record(&mut self, context: &Context, storage: &dyn Storage) -> Result<()> {
        let (Some(phases), Some(decision)) = (self.phases.take(), context.driver.decision()) else {
            return Ok(());
        };
        let entry = HistoryEntry {
            number: 0,
            epoch: self.epoch,
            node: context.party.me.node.clone(),
            cause: decision.cause,
            decided_by: decision.by,
            phases: phases.done,
            lsns: Lsns::default(),
            previous: None,
            log_end: Lsn::ZERO,
            timeline: 0,
            old_active: None,
            horizon: None,
            unix_ms: unix_ms(),
        };
        append_history(storage, entry).await?;
        Ok(())
    }

    async fn serve(&mut self, context: &Context, orders: &mut mpsc::Receiver<Order>) -> Result<()> {
        let (Some(storage), Some(server), Some(opened)) =
            (&self.storage, &self.server, &self.opened)
        else {
            return Ok(());
        };
        let ended = server.exited();
        let reporting = async {
            loop {
                context.board.report(json!({
                    "engine": &*context.facts.lock(),
                    "epoch": self.epoch,
                    "server_pid": server.pid(),
                    "scrub": opened.scrubbed(),
                }));
                tokio::time::sleep(REPORT_EVERY).await;
            }
        };
        let serving = async {
            tokio::select! {
                biased;
                () = storage.fenced() => Event::Superseded,
                report = ended => Event::ServerEnded(report),
                never = reporting => never,
            }
        };
        if let Some(event) = attend(context, orders, State::Serving, serving).await {
            context.driver.tell(event);
        }
        Ok(())
    }

    /// Stops cleanly, whatever it is doing, and frees the epoch to be followed.
    async fn leave(&mut self, context: &Context) -> Result<()> {
        let to = context.driver.look(|machine| machine.successor().cloned());
        if let Some(server) = self.server.take() {
            server.stop().await?;
        }
        if let Some(opened) = self.opened.take() {
            opened.close().await?;
        }
        self.vacate(context, ActiveState::Released { to }).await;
        self.end(context);
        Ok(())
    }

    /// Takes everything away at once.
    async fn clear(&mut self, context: &Context) -> Result<()> {
        if let Some(server) = self.server.take() {
            server.kill().await?;
        }
        if let Some(opened) = self.opened.take() {
            opened.abort().await?;
        }
        // Who was fenced is not heard any more.
        self.vacate(context, ActiveState::PostgresDead).await;
        self.end(context);
        Ok(())
    }

    async fn vacate(&mut self, context: &Context, state: ActiveState) {
        let (Some(storage), Some(pulse)) = (&self.storage, self.pulse.take()) else {
            return;
        };
        let (epoch, to) = (self.epoch, None);
        let reason = "it stopped its server".to_owned();
        pulse.vacate(storage.as_ref(), state).await;
        context.server.announce(Notice::Bye { epoch, reason, to });
    }

    fn end(&mut self, context: &Context) {
        *self = Life::default();
        context
            .board
            .report(json!({ "engine": &*context.facts.lock() }));
        context.driver.tell(Event::Cleared);
    }

    fn says(&self, state: ActiveState) {
        if let Some(pulse) = &self.pulse {
            pulse.says(state);
        }
    }

    fn end_phase(&mut self, phase: &str) {
        if let Some(phases) = &mut self.phases {
            phases.end(phase);
        }
    }
}

/// Does `work` while the node is in this state, and answers orders meanwhile; `None` if the state changed before it
/// was done.
async fn attend<T>(
    context: &Context,
    orders: &mut mpsc::Receiver<Order>,
    state: State,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            () = context.driver.until(|now| now != state) => return None,
            done = &mut work => return Some(done),
            Some(order) = orders.recv() => {
                // Whoever asked may have gone.
                let _ = order.answer.send(context.driver.ask(order.ask));
            }
        }
    }
}

/// The outcome of `work`, or `None` as soon as a higher epoch is known to exist.
async fn unless_fenced<T>(storage: &Arc<dyn Storage>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = storage.fenced() => None,
        done = work => Some(done),
    }
}
