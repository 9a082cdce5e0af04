//! What joins the manager with the zones, the member, the other manager and the clients.
//!
//! Everything that happens is told to the manager under one lock, and what it wants done is begun under the same lock, so that it is
//! begun in the order in which it was wanted. Nothing waits while it is held.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dax::tls::{PostgresServer, Tls};
use parking_lot::Mutex;
use proxy::core::sql::Statements;
use tokio::sync::{Notify, mpsc, watch};

use super::advice::advice;
use super::apply::Applied;
use super::config::Config;
use super::counters::{Counters, unix_ms};
use super::jobs::Job;
use super::level::{Capture, Event};
use super::member::Member;
use super::ready::{Comes, LATER, Ready};
use super::session::Cancels;
use super::verified::Verifications;
use super::zones::Zones;
use crate::core::gate::{Gate, Turn};
use crate::core::manager::{Effect, Life, Manager, Message, Role};
use crate::core::record::{Number, Record};

/// How long after one that could not be executed.
const APPLY_AGAIN: Duration = Duration::from_millis(200);
/// Pause after the member could not be asked.
pub(super) const READ_AGAIN: Duration = Duration::from_millis(100);
/// How long a client that logs in waits at most for a primary to let clients in.
const OPENS_IN: Duration = Duration::from_secs(5);

/// What is served in where nobody else could: no epoch of the zones has this number.
const NO_EPOCH: u32 = 0;

/// What protects connections.
pub struct Protection {
    /// Those of managers and commands.
    pub peers: Option<Tls>,
    /// Those of clients.
    pub clients: Option<PostgresServer>,
    /// With this, nobody can find out which users there are.
    pub secret: String,
}

/// A session that has begun something; it has ended that when this is dropped.
pub struct Inside(Arc<Hub>, Turn);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.gate.send_if_modified(|gate| {
            gate.leave(self.1);
            false
        });
    }
}

pub struct Hub {
    pub config: Config,
    pub name: String,
    manager: Mutex<Manager>,
    started: Instant,
    ready: Ready,
    /// The epoch in which clients are served.
    serving: watch::Sender<Option<u32>>,
    /// The zones have confirmed the epoch.
    pub confirmed: Notify,
    /// Held by whoever lets clients in, or ends what they have left at the member.
    pub doorway: tokio::sync::Mutex<()>,
    jobs: mpsc::UnboundedSender<Job>,
    /// To the other manager, while there is a connection.
    pub peer: Mutex<Option<mpsc::UnboundedSender<Message>>>,
    pub zones: Arc<Zones>,
    pub member: Arc<Member>,
    /// The member is being filled: nobody uses it.
    pub is_filling: AtomicBool,
    /// What is done to fill it now, and since when it is being filled.
    pub filling: Mutex<Option<(&'static str, Instant)>>,
    pub counters: Counters,
    pub protection: Protection,
    pub cancels: Cancels,
    /// What texts leave with a session.
    pub texts: Statements,
    gate: watch::Sender<Gate>,
    /// The process is about to end.
    pub ending: watch::Sender<bool>,
    /// What made the member differ.
    pub difference: Mutex<Option<String>>,
    /// The reason for which the member is not used or filled now.
    pub hindrance: Mutex<Option<String>>,
    /// The time since which the member is set aside, in milliseconds of the Unix epoch.
    pub aside_since: Mutex<Option<u64>>,
    /// An operator has said that the member is to be replaced.
    pub replaces: AtomicBool,
    /// Databases that were kept when others took their place.
    pub kept: Mutex<Vec<String>>,
    /// The stream of the member's commits.
    pub capture: Capture,
    /// Comparisons of both members.
    pub verifications: Verifications,
    /// The version of the member's server, as `server_version_num` says it.
    pub version: Mutex<Option<u32>>,
    me: std::sync::Weak<Hub>,
}

impl Hub {
    pub fn new(
        config: Config,
        name: String,
        zones: Arc<Zones>,
        member: Arc<Member>,
        protection: Protection,
    ) -> (Arc<Hub>, mpsc::UnboundedReceiver<Job>) {
        let (jobs, asked) = mpsc::unbounded_channel();
        let hub = Arc::new_cyclic(|me| Hub {
            manager: Mutex::new(Manager::new(config.rules(), 0)),
            config,
            name,
            started: Instant::now(),
            ready: Ready::default(),
            serving: watch::Sender::new(None),
            confirmed: Notify::new(),
            doorway: tokio::sync::Mutex::default(),
            jobs,
            peer: Mutex::default(),
            zones,
            member,
            is_filling: AtomicBool::new(false),
            filling: Mutex::default(),
            counters: Counters::default(),
            protection,
            cancels: Cancels::default(),
            texts: Statements::default(),
            gate: watch::Sender::new(Gate::default()),
            ending: watch::Sender::new(false),
            difference: Mutex::default(),
            hindrance: Mutex::default(),
            aside_since: Mutex::default(),
            replaces: AtomicBool::new(false),
            kept: Mutex::default(),
            capture: Capture::default(),
            verifications: Verifications::default(),
            version: Mutex::default(),
            me: me.clone(),
        });
        (hub, asked)
    }

    /// Milliseconds since the manager began.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Tells the manager what happened, and begins what it wants done.
    pub fn act<T>(&self, act: impl FnOnce(&mut Manager, &mut Vec<Effect>) -> T) -> T {
        let mut manager = self.manager.lock();
        let before = manager.role();
        let mut out = Vec::new();
        let told = act(manager.at(self.now_ms()), &mut out);
        let after = manager.role();
        if before != after {
            tracing::info!(?before, ?after, "the manager's state changes");
            match after {
                Role::Recovering(why) if why.is_set_aside() => {
                    self.aside_since.lock().get_or_insert_with(unix_ms);
                }
                Role::Recovering(_) => {}
                _ => *self.aside_since.lock() = None,
            }
            if after.serves() {
                self.replaces.store(false, Ordering::Release);
            }
        }
        if before != after
            && let Some(advice) = advice(&manager)
        {
            tracing::error!("{advice}");
        }
        let (epoch, life) = (manager.epoch(), manager.life());
        self.capture.learn();
        let mut ready = Vec::new();
        for effect in out {
            match effect {
                Effect::Apply(record) => ready.push(record),
                effect => self.begin(effect, epoch),
            }
        }
        match self.ready.add(life, ready) {
            Comes::Now => self.spawn(|hub| async move { hub.execute_ready().await }),
            Comes::Later => self.spawn(|hub| async move {
                tokio::time::sleep(LATER).await;
                if hub.ready.come() {
                    hub.execute_ready().await;
                }
            }),
            Comes::Nobody => {}
        }
        told
    }

    /// Has the member execute what is ready, until nothing is.
    async fn execute_ready(&self) {
        while let Some((life, records)) = self.ready.take() {
            self.apply(life, records).await;
        }
    }

    /// Which state the manager is in.
    pub fn role(&self) -> Role {
        self.manager.lock().role()
    }

    /// Looks at the manager.
    pub fn look<T>(&self, look: impl FnOnce(&Manager) -> T) -> T {
        look(&self.manager.lock())
    }

    /// Follows who is served.
    pub fn serving(&self) -> watch::Receiver<Option<u32>> {
        self.serving.subscribe()
    }

    /// Follows whether sessions may begin something.
    pub fn gate(&self) -> watch::Receiver<Gate> {
        self.gate.subscribe()
    }

    /// A session begins something, if it may.
    pub fn enter_gate(&self) -> Option<Inside> {
        let me = self.me.upgrade()?;
        let (now_ms, mut turn) = (self.now_ms(), None);
        self.gate.send_if_modified(|gate| {
            turn = gate.enter(now_ms);
            false
        });
        turn.map(|turn| Inside(me, turn))
    }

    /// Nobody begins anything any more, until [`Hub::open_gate`].
    pub fn close_gate(&self) {
        self.gate.send_modify(Gate::close);
    }

    /// Whoever waits goes on.
    pub fn open_gate(&self) {
        self.gate.send_modify(Gate::open);
    }

    /// Nothing that a client has begun is under way.
    pub fn is_quiet(&self) -> bool {
        self.gate.borrow().is_quiet()
    }

    /// Time for which the oldest of what clients have under way has been that.
    pub fn oldest_under_way(&self) -> Duration {
        let oldest = self.gate.borrow().oldest_ms(self.now_ms());
        Duration::from_millis(oldest.unwrap_or(0))
    }

    fn ask(&self, job: Job) {
        // It ends with the process.
        let _ = self.jobs.send(job);
    }

    pub(super) fn spawn<F: Future<Output = ()> + Send + 'static>(
        &self,
        act: impl FnOnce(Arc<Hub>) -> F,
    ) {
        if let Some(hub) = self.me.upgrade() {
            tokio::spawn(act(hub));
        }
    }

    fn begin(&self, effect: Effect, epoch: Option<u32>) {
        match effect {
            Effect::LookAtLog => self.ask(Job::LookAtLog),
            Effect::Own => self.ask(Job::Own),
            Effect::ReadLog => self.ask(Job::ReadLog),
            Effect::Append(records) => {
                self.counters
                    .logged
                    .fetch_add(records.len() as u64, Ordering::Relaxed);
                self.ask(Job::Append(epoch.unwrap_or_default(), records));
            }
            Effect::Trim(before) => self.ask(Job::Trim(before)),
            Effect::Release => self.spawn(|hub| async move { hub.zones.release().await }),
            Effect::Confirm(epoch) => self.spawn(|hub| async move { hub.confirm(epoch).await }),
            Effect::Serve => {
                self.capture.epoch.send_replace(epoch);
                self.spawn(|hub| async move { hub.serve(epoch).await });
            }
            Effect::Unserve => {
                self.serving.send_replace(None);
                // Clients may have changed what the manager's sessions have prepared.
                self.member.redefined();
                if !self.config.single {
                    *self.capture.began.lock() = None;
                    self.capture.epoch.send_replace(None);
                    self.spawn(|hub| async move { hub.end_writers().await });
                }
            }
            Effect::Logged(number) => self.capture.tell(Event::Logged(number)),
            Effect::Answer(number) => self.capture.tell(Event::Answer(number)),
            // Begun together with others, by whoever has them.
            Effect::Apply(_) => {}
            Effect::MarkDiverged => self.spawn(|hub| async move { hub.mark().await }),
            Effect::Send(message) => {
                if let Some(peer) = &*self.peer.lock() {
                    let _ = peer.send(message);
                }
            }
            Effect::ReadForPeer(from) => {
                self.spawn(|hub| async move { hub.read_for_peer(from).await })
            }
        }
    }

    /// Lets clients in, once the log has what its member has committed.
    async fn serve(&self, epoch: Option<u32>) {
        let Some(epoch) = epoch else {
            return self.serve_singly();
        };
        self.level(epoch).await;
        let last = self.look(|manager| manager.last());
        let what = serde_json::json!({
            "epoch": epoch, "manager": self.name, "transaction": last.0, "unix_ms": unix_ms(),
        });
        let _nobody_is_ended = self.doorway.lock().await;
        // Under the manager's lock, as its end is.
        self.look(|manager| {
            let serves = manager.epoch() == Some(epoch);
            if serves {
                self.open_gate();
            }
            if serves {
                // Whoever ends the epoch says so; another one may have begun.
                self.serving.send_replace(Some(epoch));
            }
        });
        if let Err(error) = self.zones.remember(epoch, &what.to_string()).await {
            tracing::warn!(%error, "the history cannot be written");
        }
    }

    /// Lets clients of the only member in.
    fn serve_singly(&self) {
        self.look(|manager| {
            if manager.role() == Role::Single {
                self.open_gate();
                self.serving.send_replace(Some(NO_EPOCH));
            }
        });
    }

    /// True if what the member has said until now is certain to be right: nobody else had become primary in the meantime.
    pub fn is_confirmed(&self) -> bool {
        let now_ms = self.now_ms();
        self.look(|manager| manager.reads(now_ms))
    }

    /// Waits until that is so.
    pub async fn until_confirmed(&self) {
        loop {
            let confirmed = self.confirmed.notified();
            if self.is_confirmed() {
                return;
            }
            confirmed.await;
        }
    }

    /// Waits for as long as this manager is primary and about to let clients in, which takes some milliseconds.
    pub async fn about_to_serve(&self) {
        let mut serving = self.serving();
        let opens = async {
            while self.role().serves() && serving.borrow_and_update().is_none() {
                // If it loses the epoch instead, nobody says so here.
                let _ = tokio::time::timeout(READ_AGAIN, serving.changed()).await;
            }
            tokio::select! {
                () = self.until_confirmed() => {}
                _ = serving.wait_for(Option::is_none) => {}
            }
        };
        let _ = tokio::time::timeout(OPENS_IN, opens).await;
    }

    /// Has the member execute transactions of the log, again and again, for as long as its server lives: nothing else would make it
    /// current, and somebody may wait for it.
    async fn apply(&self, life: Life, mut records: Vec<Record>) {
        self.capture.keep(life, &records).await;
        while !records.is_empty() && self.look(Manager::life) == life {
            let later = self.try_to_apply(life, &records).await;
            records.retain(|record| later.contains(&record.number));
            if !records.is_empty() {
                tokio::time::sleep(APPLY_AGAIN).await;
            }
        }
    }

    /// Those that are to be tried again.
    async fn try_to_apply(&self, life: Life, records: &[Record]) -> Vec<Number> {
        let applied = self.member.apply_all(life, records).await;
        let is_done = |applied: &Applied| matches!(applied, Applied::Done);
        let done = applied.iter().filter(|(_, applied)| is_done(applied));
        let done: Vec<Number> = done.map(|(number, _)| *number).collect();
        self.counters
            .applied
            .fetch_add(done.len() as u64, Ordering::Relaxed);
        self.act(|manager, out| {
            done.iter()
                .for_each(|number| manager.applied(life, *number, out))
        });
        let seen = applied.into_iter().filter_map(|(number, applied)| {
            let is_later = self.see_applied(life, number, applied);
            is_later.then_some(number)
        });
        seen.collect()
    }

    /// True if it is to be tried again.
    fn see_applied(&self, life: Life, number: Number, applied: Applied) -> bool {
        match applied {
            Applied::Done => {
                self.hindrance.lock().take();
                false
            }
            Applied::Differs(why) => {
                tracing::error!(%number, why, "the member answered otherwise than the primary");
                *self.difference.lock() = Some(format!("transaction {number}: {why}"));
                self.act(|manager, out| manager.differs(life, number, out));
                false
            }
            Applied::Later(why) => {
                tracing::warn!(%number, why, "the member cannot execute a transaction of the log now; trying again");
                *self.hindrance.lock() = Some(format!("transaction {number} waits: {why}"));
                true
            }
        }
    }
}
