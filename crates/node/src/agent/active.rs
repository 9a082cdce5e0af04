//! The active's life: it serves, beats, announces how far it is, and stops for good when fenced.
//!
//! How it ends is the machine's decision ([`crate::machine`]): fenced, its PostgreSQL is killed and its
//! mount aborted; a PostgreSQL that died is told at once; a handover or a stop stops cleanly, seals and
//! tells. Asked to restart it goes on afterwards ([`restart`]).
//!
//! Cut off from a majority it stalls: writes and syncs wait in the storage handle, beats too, and its
//! PostgreSQL answers nobody ([`freezer`]). It goes on if its epoch still stands.

mod announced;
mod answering;
mod beating;
mod configuring;
mod exchanging;
mod first_checkpoint;
mod freezer;
mod group_commit;
mod hurried;
mod leaving;
mod ordering;
mod preparing;
pub(crate) mod proxied;
mod reporting;
mod restart;
mod scheduled;
mod scrubbing;
mod serving;

use std::sync::Arc;
use std::time::Duration;

use coordination::channel::{Notice, Request, ServerStarted, Trigger};
use dax::forms::Forms;
use dax::ids::{Epoch, NodeName};
use dax::scrub;
use dax::storage::Storage;
use mount::Mount;
use pgdata::layout::CONTROL_FILE;
use pgdata::sealer::Sealer;
use pgserver::Postgres;
use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use volume::active::ActiveView;
use volume::view::View;

use self::announced::AnnouncedLog;
use self::freezer::Freezer;
use self::leaving::Word;
pub(crate) use self::ordering::LogOrder;
use self::reporting::ActiveStatus;
use self::restart::Restarted;
use self::serving::ServingTasks;
use super::backpressure;
use super::claims::{self, Keeper};
use super::context::Context;
use super::driver::Order;
use super::error::Result;
use super::pulse::Pulse;
use super::{filling, past, protection, slots, throughput};
use crate::config::OnLag;
use crate::machine::{Ask, Effect, Event, State};

/// How long a clean stop may take before PostgreSQL is killed.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// How long what was written may take to be durable before a reload.
const RELOAD_WITHIN: Duration = Duration::from_secs(3);
/// How often the status is renewed.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// A serving active.
pub(crate) struct Active {
    pub storage: Arc<dyn Storage>,
    pub epoch: Epoch,
    pub view: Arc<ActiveView>,
    pub sealer: Arc<Sealer>,
    /// Beats until the active beats itself.
    pub pulse: Option<Pulse>,
    /// True if its log is ordered.
    pub log: LogOrder,
    /// Which run of PostgreSQL it is, if the server has said so.
    pub started: Option<ServerStarted>,
    /// Tasks that go on behind the takeover.
    pub tasks: JoinSet<()>,
    // PostgreSQL goes before the mount that it works on.
    pub postgres: Postgres,
    pub mount: Mount,
}

/// Who asked for a restart, and waits until it is done.
type Asker = oneshot::Sender<std::result::Result<serde_json::Value, String>>;

/// What comes in while an active serves.
struct Asked<'a> {
    orders: &'a mut mpsc::Receiver<Order>,
    /// Takes orders that stop PostgreSQL, when it has written what it can before.
    through: &'a mpsc::Sender<Order>,
    flushed: &'a mut mpsc::Receiver<Order>,
    schedules: &'a mut mpsc::Receiver<Option<NodeName>>,
}

impl Active {
    /// Serves until the machine wants something else, and ends then as that says.
    pub(crate) async fn live(
        mut self,
        context: &Context,
        orders: &mut mpsc::Receiver<Order>,
    ) -> Result<()> {
        let announced = AnnouncedLog::new(Arc::clone(&self.sealer));
        let configuring = configuring::ConfigStatus::default();
        let (state, beaten, beats) = self.beat(context, &announced, &configuring);
        drop(self.pulse.take());
        // Until nothing is left of PostgreSQL.
        let _freezer = Freezer::start(context, self.postgres.options(), beaten.clone());
        let announcing = self.announce(context, &announced);
        let retained = claims::RetainedStatus::default();
        let keeper = Keeper {
            storage: self.storage.clone(),
            view: Arc::clone(&self.view),
            me: context.me.node.clone(),
            synced: self.sealer.synced(),
            cap: context.config.storage.max_retained_wal,
            told: Arc::clone(&retained),
        };
        let claims = tokio::spawn(keeper.run());
        let (keeping, past) = past::keep(context, &self.view);
        let pace = context.config.storage.scrub_pace();
        let cluster = &context.config.cluster;
        let (copying, filling) =
            filling::keep(cluster, &self.storage, (&context.board.others, pace));
        let scrubbing = scrub::ScrubStatus::default();
        let scrubbers = scrubbing::start(context, &self.view, &scrubbing);
        let told = ActiveStatus {
            scrub: scrubbing,
            retained,
            past,
            filling,
            waits: Arc::default(),
            throughput: Arc::default(),
            slots: Arc::default(),
            configuring,
        };
        let guarding = tokio::spawn(slots::guard::run(
            self.postgres.options().clone(),
            Arc::clone(&self.view),
            Arc::clone(&self.storage),
            Arc::clone(&told.slots),
        ));
        let measuring = tokio::spawn(throughput::run(
            self.postgres.options().clone(),
            Arc::clone(&self.sealer),
            Arc::clone(&told.throughput),
        ));
        let first = tokio::spawn(first_checkpoint::run(
            self.postgres.options().clone(),
            Arc::clone(&self.view),
        ));
        let (scheduled, mut schedules) = mpsc::channel(1);
        let scheduled = tokio::spawn(scheduled::run(
            context.control.clone(),
            self.storage.clone(),
            Arc::clone(&context.server),
            context.me.node.clone(),
            self.postgres.options().clone(),
            scheduled,
        ));
        let standbys = tokio::spawn(proxied::tell_standbys(
            Arc::clone(&context.server),
            Arc::clone(&context.registry),
        ));
        let (through, mut flushed) = mpsc::channel(4);
        let backpressure = (context.config.standby.on_lag == OnLag::Wait).then(|| {
            let (server, sealer) = (Arc::clone(&context.server), Arc::clone(&self.sealer));
            let bound = context.config.standby.max_lag.0;
            tokio::spawn(backpressure::run(
                server,
                sealer,
                bound,
                Arc::clone(&told.waits),
            ))
        });
        // Commits are confirmed until their server has stopped.
        let _confirming = loop {
            let tasks = ServingTasks::start(context, &mut self, &told);
            let asked = Asked {
                orders: &mut *orders,
                through: &through,
                flushed: &mut flushed,
                schedules: &mut schedules,
            };
            let asker = self.wait(context, &told, &beaten, asked).await;
            let fenced = context.driver.state() == State::Fenced;
            let in_order = !fenced && self.postgres.exit().is_none();
            let confirming = tasks.end(in_order).await;
            let Some(asker) = asker else { break confirming };
            self.restart_for(asker, context, &announced).await;
            if let Some(confirming) = confirming {
                confirming.end().await;
            }
        };
        if let Some(backpressure) = backpressure {
            backpressure.abort();
        }
        let away = beaten.borrow().elapsed() > context.heartbeat().timeout;
        let leaves = matches!(context.driver.state(), State::HandingOver | State::Stopping);
        if leaves && !away {
            self.hold_proxies(context).await;
        }
        standbys.abort();
        first.abort();
        measuring.abort();
        guarding.abort();
        scheduled.abort();
        announcing.abort();
        drop(scrubbers);
        claims.abort();
        keeping.abort();
        copying.abort();
        let beating = beats.abort_handle();
        let word = Word {
            state: &state,
            beats,
            beaten: &beaten,
        };
        let ended = match context.driver.state() {
            State::HandingOver | State::Stopping if away => {
                tracing::warn!(
                    "the zones do not answer: PostgreSQL is killed, and the next start replays the log"
                );
                Ok(())
            }
            State::HandingOver => {
                let to = context.driver.look(|machine| machine.successor().cloned());
                self.release(context, to, word).await
            }
            State::Stopping => self.release(context, None, word).await,
            State::Fenced => {
                tracing::warn!(epoch = %self.epoch, "a higher epoch exists: this node stops serving");
                beating.abort();
                Ok(())
            }
            _ => self.leave(context, word).await,
        };
        // Whatever failed: nobody may take this node for one that serves.
        beating.abort();
        context.server.retract();
        self.end().await?;
        ended
    }

    /// Restarts PostgreSQL, and tells who asked.
    async fn restart_for(&mut self, asker: Asker, context: &Context, announced: &AnnouncedLog) {
        context
            .board
            .report(json!({ "node": context.me.node, "epoch": self.epoch }));
        self.hold_proxies(context).await;
        let (answer, event) = match self.restart(context, announced).await {
            Restarted::Serves => {
                if let Some(started) = self.started {
                    context.server.restarted(started);
                }
                context.server.resume(self.epoch);
                (Ok(json!({ "restarted": true })), Event::Restarted)
            }
            Restarted::Refused(why) => {
                context.server.resume(self.epoch);
                let why = format!("PostgreSQL was not restarted, and serves on: {why}");
                (Err(why), Event::Restarted)
            }
            Restarted::Fenced => {
                let why = "another node took over meanwhile".to_owned();
                (Err(why), Event::Superseded)
            }
            Restarted::Died(report) => {
                let report = report.to_string();
                let why =
                    format!("PostgreSQL did not come back ({report}); a standby may take over");
                let event = Event::PostgresExited {
                    redo_failed: false,
                    report,
                };
                (Err(why), event)
            }
        };
        context.driver.tell(event);
        // Who asked may have gone.
        let _ = asker.send(answer);
    }

    /// Serves until the machine wants something else, or somebody a restart.
    async fn wait(
        &self,
        context: &Context,
        told: &ActiveStatus,
        beaten: &watch::Receiver<Instant>,
        asked: Asked<'_>,
    ) -> Option<Asker> {
        let mut report = tokio::time::interval(REPORT_EVERY);
        report.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let watching = protection::watch(context);
        tokio::pin!(watching);
        loop {
            let event = tokio::select! {
                biased;
                () = context.driver.until(|state| !state.is_active()) => return None,
                () = self.storage.fenced() => Event::Superseded,
                report = self.postgres.exited() => Event::PostgresExited {
                    redo_failed: report.redo_failed(),
                    report: report.to_string(),
                },
                Some(order) = asked.orders.recv() => {
                    if !order.is_wanted() {
                        continue;
                    }
                    match order.request {
                        Request::Restart | Request::Failover { .. } => {
                            let postgres = self.postgres.options().clone();
                            let server = Arc::clone(&context.server);
                            preparing::prepare(order, postgres, server, asked.through.clone());
                        }
                        Request::Reload { .. } => drop(order.answer.send(self.reload().await)),
                        Request::Checkpoint => {
                            let postgres = self.postgres.options().clone();
                            hurried::order(postgres, Arc::clone(&self.view), order);
                        }
                        Request::Exchange { .. }
                        | Request::CancelExchange
                        | Request::InVolume { .. } => {
                            let own = (context.config.cluster.clone(), Arc::clone(&self.storage));
                            let others = context.board.others.ways();
                            exchanging::order(own, others, order);
                        }
                        _ => context.driver.order(order),
                    }
                    continue;
                }
                Some(order) = asked.flushed.recv() => {
                    if !order.is_wanted() {
                        continue;
                    }
                    match order.request {
                        Request::Restart => match may_restart(context) {
                            Ok(()) => return Some(order.answer),
                            // Who asked may have gone.
                            Err(why) => drop(order.answer.send(Err(why))),
                        },
                        _ => context.driver.order(order),
                    }
                    continue;
                }
                why = self.log.given_up() => match self.give_log_up(context, why).await {
                    Some(event) => event,
                    // Nobody waits for the answer.
                    None => match may_restart(context) {
                        Ok(()) => return Some(oneshot::channel().0),
                        Err(why) => {
                            tracing::error!(why, "PostgreSQL is not restarted, and commits go on waiting");
                            continue;
                        }
                    },
                },
                Some(to) = asked.schedules.recv() => {
                    let ask = Ask::Failover { to, force: false };
                    Event::Asked(ask)
                }
                _ = report.tick() => {
                    self.report(context, told);
                    match beaten.borrow().elapsed() > context.heartbeat().timeout {
                        true => Event::StoreLost,
                        false => Event::StoreBack,
                    }
                }
                never = &mut watching => match never {},
            };
            for effect in context.driver.tell(event) {
                if let Effect::Reply(Err(why)) = effect {
                    tracing::warn!(why, "the scheduled switchover was not done");
                }
            }
        }
    }

    /// Has PostgreSQL read its files again, and tells up to where standbys must follow the journal to
    /// see them as they are now.
    async fn reload(&self) -> std::result::Result<serde_json::Value, String> {
        match tokio::time::timeout(RELOAD_WITHIN, self.view.sync_all()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("the zones do not answer".to_owned()),
        }
        self.postgres.reload();
        Ok(json!({ "reloaded": true, "journal": self.view.journal_synced().0 }))
    }

    fn report(&self, context: &Context, told: &ActiveStatus) {
        // Raised by this node, whose answer may have been lost, or before it became the active.
        if let Some(forms) = *context.forms.borrow() {
            self.storage.use_forms(forms.min(Forms::NEWEST));
        }
        let synced = *self.sealer.synced().borrow();
        let layer = self.storage.settings().layer.as_ref();
        let own = json!({
            "parent": layer.map(|layer| &layer.parent),
            "epoch": self.epoch,
            "timeline": synced.timeline.0,
            "synced_lsn": synced.end.to_string(),
            "overlay_blocks_left": self.view.inherited_left(),
            "log": self.log.told(),
        });
        context.board.report(told.describe(context, own));
    }

    /// Announces every sync to the standbys (trigger messages, CAC-DB 4.1), and every seal.
    fn announce(&self, context: &Context, announced: &AnnouncedLog) -> JoinHandle<()> {
        let announced = announced.clone();
        let mut starts = announced.changes();
        let server = Arc::clone(&context.server);
        let mut synced = self.sealer.synced();
        let mut journal = self.view.watch_journal_synced();
        let mut sealed = self.view.watch_sealed();
        let epoch = self.epoch;
        server.send_along(Arc::clone(self.sealer.recent_log()));
        tokio::spawn(async move {
            loop {
                synced.mark_unchanged();
                starts.mark_unchanged();
                let (log, starts_now) = announced.now();
                let journal_synced = journal.borrow_and_update().0;
                server.publish(Trigger {
                    epoch,
                    synced_lsn: log.end,
                    journal_synced,
                    timeline: log.timeline.0,
                    starts: starts_now,
                    proxied: !server.proxies().is_empty(),
                });
                tokio::select! {
                    changed = starts.changed() => if changed.is_err() { return },
                    changed = synced.changed() => if changed.is_err() { return },
                    changed = journal.changed() => if changed.is_err() { return },
                    changed = sealed.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        let generation = *sealed.borrow_and_update();
                        server.announce(Notice::Sealed { epoch, generation });
                    }
                }
            }
        })
    }

    /// Stops what still runs. Whoever waits in the mount gets an error, so that it can die.
    async fn end(self) -> Result<()> {
        // Also if PostgreSQL has ended: of its processes one may be left that waits.
        self.mount.abort();
        self.postgres.kill().await?;
        self.mount.unmount()?;
        Ok(())
    }
}

/// True if the machine lets the active restart its PostgreSQL now.
fn may_restart(context: &Context) -> std::result::Result<(), String> {
    let effects = context.driver.tell(Event::Asked(Ask::Restart));
    let reply = effects.into_iter().find_map(|effect| match effect {
        Effect::Reply(reply) => Some(reply),
        _ => None,
    });
    reply.unwrap_or(Ok(()))
}

/// The control file's bytes as they are now.
pub(crate) async fn read_control(view: &ActiveView) -> Result<Vec<u8>> {
    let file = view.namespace().resolve(CONTROL_FILE)?;
    let ino = volume::view::Ino(file.0);
    let len = pgdata::control::CONTROL_FILE_BYTES as u32;
    Ok(view.read(ino, 0, len).await?.to_vec())
}
