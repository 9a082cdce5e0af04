//! The active's life: it serves, beats, announces how far it is, and stops for good when fenced.
//!
//! ```text
//!   serving ── a higher epoch ─────▶ fenced   (PostgreSQL killed, mount aborted)
//!      │ ───── PostgreSQL died ────▶ vacant   (told at once; a standby may take over)
//!      │ ───── asked to hand over ─▶ released (clean stop, sealed, told)
//!      └ ───── shutdown ───────────▶ released
//! ```
//!
//! Cut off from a majority it stalls: writes and syncs wait in the storage handle, beats too. It
//! goes on if its epoch still stands (design section 5).

use std::sync::Arc;
use std::time::Duration;

use dax::ids::{Epoch, NodeName};
use dax::storage::Storage;
use mount::Mount;
use parking_lot::Mutex;
use pgdata::layout::CONTROL_FILE;
use pgdata::sealer::Sealer;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use volume::active::ActiveView;
use volume::view::View;

use super::claims::{self, Keeper};
use super::context::{Context, unix_ms};
use super::error::Result;
use super::patience::{self, Waits};
use super::scrub::{self, Scrubber};
use super::stand_ins::StandIns;
use super::status::Order;
use super::throughput;
use crate::channel::{Notice, Request, Trigger};
use crate::config::Slow;
use crate::postgres::{ExitReport, Postgres, StopMode};
use crate::records::{ActiveState, Heartbeat, MemberState, Record, Role};
use crate::takeover::Pulse;

/// How long a clean stop may take before PostgreSQL is killed.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// How often the node's record is written.
const MEMBER_EVERY: Duration = Duration::from_secs(1);

/// A serving active.
pub(crate) struct Active {
    pub storage: Arc<dyn Storage>,
    pub epoch: Epoch,
    pub view: Arc<ActiveView>,
    pub sealer: Arc<Sealer>,
    /// Beats until the active beats itself.
    pub pulse: Option<Pulse>,
    // PostgreSQL goes before the mount that it works on.
    pub postgres: Postgres,
    pub mount: Mount,
}

/// How an active's life ended.
#[derive(Debug)]
pub(crate) enum ActiveEnd {
    /// A higher epoch exists.
    Fenced,
    /// PostgreSQL died.
    PostgresDied(ExitReport),
    /// It handed over.
    HandedOver,
    /// The agent was asked to stop.
    Shutdown,
}

/// Whether a standby could take over at once, and since when that is so.
#[derive(Debug, Clone, Copy, serde::Serialize)]
struct Protection {
    protected: bool,
    since_unix_ms: u64,
}

impl Protection {
    fn update(&mut self, protected: bool) {
        if self.protected != protected {
            *self = Protection {
                protected,
                since_unix_ms: unix_ms(),
            };
        }
    }
}

/// What the background tasks of an active tell for its status.
struct Told {
    scrub: scrub::Told,
    retained: claims::Told,
    /// Commits that were held for slow standbys, if they are.
    waits: Arc<Mutex<Waits>>,
    throughput: throughput::Told,
}

enum Event {
    Fenced,
    Exited(ExitReport),
    HandOver(Option<NodeName>),
    Shutdown,
}

impl Active {
    /// Serves until something ends that.
    pub(crate) async fn live(
        mut self,
        context: &Context,
        orders: &mut mpsc::Receiver<Order>,
        shutdown: &mut watch::Receiver<bool>,
    ) -> Result<ActiveEnd> {
        let (state, beats) = self.beat(context);
        drop(self.pulse.take());
        let announcing = self.announce(context);
        let retained = claims::Told::default();
        let keeper = Keeper {
            storage: self.storage.clone(),
            view: Arc::clone(&self.view),
            me: context.me.node.clone(),
            synced: self.sealer.synced(),
            cap: context.config.storage.claim_cap,
            told: Arc::clone(&retained),
        };
        let claims = tokio::spawn(keeper.run());
        let scrubbing = scrub::Told::default();
        let scrubber = Scrubber {
            storage: self.storage.clone(),
            view: Arc::clone(&self.view),
            config: context.config.storage,
            told: Arc::clone(&scrubbing),
        };
        let scrubber = tokio::spawn(scrubber.run());
        let told = Told {
            scrub: scrubbing,
            retained,
            waits: Arc::default(),
            throughput: Arc::default(),
        };
        let measuring = tokio::spawn(throughput::run(
            self.postgres.options().clone(),
            Arc::clone(&self.sealer),
            Arc::clone(&told.throughput),
        ));
        let stand_ins = StandIns::start(Arc::clone(&context.server), self.postgres.options());
        let patience = (context.config.standby.slow == Slow::Wait).then(|| {
            let (server, sealer) = (Arc::clone(&context.server), Arc::clone(&self.sealer));
            let bound = context.config.standby.slow_after.0;
            tokio::spawn(patience::run(
                server,
                sealer,
                bound,
                Arc::clone(&told.waits),
            ))
        });
        let event = self.wait(context, &told, orders, shutdown).await;
        if let Some(patience) = patience {
            patience.abort();
        }
        measuring.abort();
        announcing.abort();
        scrubber.abort();
        claims.abort();
        stand_ins.end().await;
        let end = match event {
            Event::Fenced => {
                tracing::warn!(epoch = %self.epoch, "a higher epoch exists: this node stops serving");
                Ok(ActiveEnd::Fenced)
            }
            Event::Exited(report) => {
                tracing::error!(%report, "PostgreSQL died; a standby may take over");
                // What it left behind ends before somebody else owns the volume.
                self.postgres.kill().await?;
                let notice = Notice::PostgresDead {
                    epoch: self.epoch,
                    detail: report.to_string(),
                };
                context.server.announce(notice);
                self.vacate(&state, ActiveState::PostgresDead, beats).await;
                Ok(ActiveEnd::PostgresDied(report))
            }
            Event::HandOver(to) => self
                .release(context, &state, to, beats)
                .await
                .map(|()| ActiveEnd::HandedOver),
            Event::Shutdown => self
                .release(context, &state, None, beats)
                .await
                .map(|()| ActiveEnd::Shutdown),
        };
        context.server.retract();
        self.end().await?;
        end
    }

    async fn wait(
        &self,
        context: &Context,
        told: &Told,
        orders: &mut mpsc::Receiver<Order>,
        shutdown: &mut watch::Receiver<bool>,
    ) -> Event {
        let mut report = tokio::time::interval(MEMBER_EVERY);
        report.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut protection = Protection {
            protected: false,
            since_unix_ms: unix_ms(),
        };
        loop {
            tokio::select! {
                biased;
                () = self.storage.fenced() => return Event::Fenced,
                report = self.postgres.exited() => return Event::Exited(report),
                _ = shutdown.wait_for(|stop| *stop) => return Event::Shutdown,
                Some(order) = orders.recv() => match order.request {
                    Request::Failover { to, .. } => {
                        // The caller may have gone; the order stands.
                        let _ = order.answer.send(Ok(json!({ "handing_over": true })));
                        return Event::HandOver(to.or_else(|| furthest(context)));
                    }
                    _ => drop(order.answer.send(Err("this node is the active".to_owned()))),
                },
                _ = report.tick() => self.report(context, told, &mut protection),
            }
        }
    }

    fn report(&self, context: &Context, told: &Told, protection: &mut Protection) {
        let synced = *self.sealer.synced().borrow();
        let subscribers = context.server.subscribers();
        protection.update(
            subscribers
                .iter()
                .any(|s| s.progress.is_some_and(|p| p.warm)),
        );
        let standbys: Vec<_> = subscribers
            .into_iter()
            .map(|s| json!({ "node": s.who.node, "progress": s.progress }))
            .collect();
        context.board.report(json!({
            "node": context.me.node,
            "role": Role::Active,
            "state": MemberState::Serving,
            "epoch": self.epoch,
            "timeline": synced.timeline.0,
            "synced_lsn": synced.end.to_string(),
            "overlay_blocks_left": self.view.inherited_left(),
            "standbys": standbys,
            "protection": protection,
            "scrub": *told.scrub.lock(),
            "retained": *told.retained.lock(),
            "waits": *told.waits.lock(),
            "throughput": *told.throughput.lock(),
        }));
    }

    /// Beats every T (CAC-DB, appendix A, algorithm 3), and writes the node's record.
    fn beat(&self, context: &Context) -> (watch::Sender<ActiveState>, JoinHandle<()>) {
        let (state, states) = watch::channel(ActiveState::Serving);
        let beating = Beating {
            storage: self.storage.clone(),
            view: Arc::clone(&self.view),
            sealer: Arc::clone(&self.sealer),
            states,
            next: Heartbeat {
                epoch: self.epoch,
                counter: self.pulse.as_ref().map_or(1, Pulse::last) + 1,
                node: context.me.node.clone(),
                synced_lsn: volume::lsn::Lsn::ZERO,
                journal_synced: 0,
                timeline: 0,
                state: ActiveState::Serving,
            },
        };
        let member = context.member(Role::Active, MemberState::Serving, 0);
        let interval = context.config.heartbeat.interval;
        let storage = self.storage.clone();
        let handle = tokio::spawn(async move {
            let mut member = member;
            let keep = async {
                loop {
                    member.updated += 1;
                    if let Err(error) = member.store(storage.as_ref()).await {
                        tracing::debug!(%error, "node record not written");
                    }
                    tokio::time::sleep(MEMBER_EVERY).await;
                }
            };
            tokio::select! {
                () = keep => {}
                () = beating.run(interval) => {}
            }
        });
        (state, handle)
    }

    /// Announces every sync to the standbys (trigger messages, CAC-DB 4.1), and every seal.
    fn announce(&self, context: &Context) -> JoinHandle<()> {
        let server = Arc::clone(&context.server);
        let mut synced = self.sealer.synced();
        let mut journal = self.view.watch_journal_synced();
        let mut sealed = self.view.watch_sealed();
        let epoch = self.epoch;
        tokio::spawn(async move {
            loop {
                let log = *synced.borrow_and_update();
                let journal_synced = journal.borrow_and_update().0;
                server.publish(Trigger {
                    epoch,
                    synced_lsn: log.end,
                    journal_synced,
                    timeline: log.timeline.0,
                });
                tokio::select! {
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

    /// Tells in the registry that nobody serves any more.
    async fn vacate(
        &self,
        state: &watch::Sender<ActiveState>,
        why: ActiveState,
        beats: JoinHandle<()>,
    ) {
        state.send_replace(why);
        // The last beat ends the task; a stalled store must not hold us up for long.
        if tokio::time::timeout(Duration::from_secs(2), beats)
            .await
            .is_err()
        {
            tracing::info!("the last heartbeat could not be written in time");
        }
    }

    /// Stops cleanly, seals what was written, and frees the epoch to be followed.
    async fn release(
        &self,
        context: &Context,
        state: &watch::Sender<ActiveState>,
        to: Option<NodeName>,
        beats: JoinHandle<()>,
    ) -> Result<()> {
        let report = self.postgres.stop(StopMode::Fast, STOP_WITHIN).await?;
        if report.is_clean() {
            let control = read_control(&self.view).await?;
            self.sealer.seal_shutdown(&self.view, &control).await?;
            self.view.sync_all().await?;
        } else {
            tracing::warn!(%report, "PostgreSQL did not stop cleanly; the next start replays");
        }
        let reason = "stopped cleanly".to_owned();
        self.vacate(state, ActiveState::Released { to: to.clone() }, beats)
            .await;
        context.server.announce(Notice::Bye {
            epoch: self.epoch,
            reason,
            to,
        });
        Ok(())
    }

    /// Stops what still runs. Whoever waits in the mount gets an error, so that it can die.
    async fn end(self) -> Result<()> {
        if self.postgres.exit().is_none() {
            self.mount.abort();
        }
        self.postgres.kill().await?;
        self.mount.unmount()?;
        Ok(())
    }
}

/// The standby to hand over to: a warm one, and of these the one that has replayed most.
fn furthest(context: &Context) -> Option<NodeName> {
    let standbys = context.server.subscribers().into_iter();
    let known = standbys.filter_map(|s| Some((s.progress?, s.who.node)));
    let best = known.max_by(|(a, _), (b, _)| (a.warm, a.applied).cmp(&(b.warm, b.applied)));
    best.map(|(_, node)| node)
}

/// The control file's bytes as they are now.
pub(crate) async fn read_control(view: &ActiveView) -> Result<Vec<u8>> {
    let file = view.namespace().resolve(CONTROL_FILE)?;
    let ino = volume::view::Ino(file.0);
    let len = pgdata::control::CONTROL_FILE_BYTES as u32;
    Ok(view.read(ino, 0, len).await?.to_vec())
}

struct Beating {
    storage: Arc<dyn Storage>,
    view: Arc<ActiveView>,
    sealer: Arc<Sealer>,
    states: watch::Receiver<ActiveState>,
    next: Heartbeat,
}

impl Beating {
    async fn run(mut self, interval: Duration) {
        loop {
            let state = self.states.borrow_and_update().clone();
            let last = state.is_vacant();
            let synced = *self.sealer.synced().borrow();
            self.next.state = state;
            self.next.synced_lsn = synced.end;
            self.next.timeline = synced.timeline.0;
            self.next.journal_synced = self.view.journal_synced().0;
            if let Err(error) = self.next.store(self.storage.as_ref()).await {
                tracing::info!(%error, "heartbeat not written");
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
