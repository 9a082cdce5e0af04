//! An ordered log: syncs of it are answered before they are durable, and commits wait for what the agent confirms
//! ([`pgdata::confirm`]).
//!
//! Whether it is ordered at a time, [`steps`] decides; here its effects are carried out. A server that was not started
//! for it ([`pgdata::settings::ordered()`]) has a strict log, and nothing of this runs.
//!
//! Invariant: whoever waits for a commit is confirmed as long as the server runs: the connection that confirms is the
//! last of the agent's that leaves a server which stops.

mod driver;
mod patience;
mod places;
mod proof;
mod steps;
#[cfg(test)]
mod unfollowed_test;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use coordination::channel::Server;
use parking_lot::Mutex;
use pgdata::feed::RowsNeeded;
use pgdata::sealer::Sealer;
use pgdata::settings;
use pgserver::StartOptions;
use serde::Serialize;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use volume::active::ActiveView;
use volume::lsn::Lsn;

use self::driver::{Driver, Teller};
use self::steps::{Effect, Event, Stage, Steps};
use super::super::context::Context;
use super::Active;

/// How long to wait before a stop until what was answered is durable, and the places are free.
const SETTLES_WITHIN: Duration = Duration::from_secs(2);
/// How often it is looked which rows standbys need.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Status of the log, for the node's status.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LogStatus {
    /// True if syncs are answered before they are durable.
    ordered: bool,
    /// Why not, though it is wanted.
    why_strict: Option<String>,
}

type SharedLogStatus = Arc<Mutex<LogStatus>>;

/// Why a server is made an end of: its commits wait, and nobody would ever confirm them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GivenUp {
    /// It does not let the agent confirm them: it is started again for a strict log.
    Refused,
    /// Its log cannot be followed beyond a position. Another start would not help, as this node goes on following there;
    /// who takes over begins behind that.
    Unfollowed(Lsn),
}

/// What an active has of this.
#[derive(Default)]
pub(crate) struct LogOrder {
    running: Option<Ordering>,
    told: SharedLogStatus,
    given_up: watch::Sender<Option<GivenUp>>,
}

impl LogOrder {
    /// For the node's status.
    pub(super) fn told(&self) -> LogStatus {
        self.told.lock().clone()
    }

    /// Waits until nobody would ever confirm what commits wait for.
    pub(super) async fn given_up(&self) -> GivenUp {
        let mut given_up = self.given_up.subscribe();
        loop {
            if let Some(why) = self.given_up.send_replace(None) {
                return why;
            }
            // The sender lives in `self`, so waiting cannot fail.
            let _ = given_up.wait_for(Option::is_some).await;
        }
    }
}

impl Active {
    /// Begins to confirm commits at a server that was started for it, and orders its log when it can. As soon as it
    /// serves: until then all commits wait.
    pub(crate) fn order_log(&mut self, context: &Context) {
        let is_ordered = settings::is_ordered(&self.postgres.options().settings);
        if is_ordered && self.log.running.is_none() {
            let parts = Parts {
                postgres: self.postgres.options().clone(),
                sealer: Arc::clone(&self.sealer),
                view: Arc::clone(&self.view),
                told: Arc::clone(&self.log.told),
                given_up: self.log.given_up.clone(),
                at_most: watch::Sender::default(),
                needed: watch::Sender::default(),
            };
            self.log.running = Some(Ordering::start(Arc::clone(&context.server), parts));
        }
    }

    /// Who sees to it, to be told when the server stops.
    pub(super) fn take_ordering(&mut self) -> Option<Ordering> {
        self.log.running.take()
    }
}

/// What it works with.
#[derive(Clone)]
struct Parts {
    postgres: StartOptions,
    sealer: Arc<Sealer>,
    view: Arc<ActiveView>,
    told: SharedLogStatus,
    given_up: watch::Sender<Option<GivenUp>>,
    at_most: watch::Sender<Option<Lsn>>,
    needed: watch::Sender<RowsNeeded>,
}

/// Runs while the server serves.
pub(super) struct Ordering {
    stop: oneshot::Sender<()>,
    left: oneshot::Receiver<()>,
    task: Confirming,
}

/// Confirms on, until it is dropped.
pub(super) struct Confirming(JoinHandle<()>);

impl Drop for Confirming {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Ordering {
    fn start(server: Arc<Server>, parts: Parts) -> Ordering {
        let ((stop, stopped), (leave, left)) = (oneshot::channel(), oneshot::channel());
        let task = Confirming(tokio::spawn(run(server, parts, stopped, leave)));
        Ordering { stop, left, task }
    }

    /// Makes the log strict, and lets others connect once all is durable that was answered. What is returned confirms
    /// on, for those who still commit, until the server ends it.
    pub(super) async fn leave(self) -> Confirming {
        drop(self.stop);
        // Whatever holds it up: the stop goes on.
        let _ = tokio::time::timeout(SETTLES_WITHIN * 2, self.left).await;
        self.task
    }
}

impl Confirming {
    /// Makes an end of it, and of all that it could still change.
    pub(super) async fn end(mut self) {
        self.0.abort();
        // It was aborted.
        let _ = (&mut self.0).await;
    }
}

/// Makes the log strict, however the task ends.
struct Strict(Parts);

impl Drop for Strict {
    fn drop(&mut self) {
        self.0.sealer.order_log(false);
        *self.0.told.lock() = LogStatus::default();
    }
}

async fn run(
    server: Arc<Server>,
    parts: Parts,
    mut stopped: oneshot::Receiver<()>,
    leave: oneshot::Sender<()>,
) {
    let _strict = Strict(parts.clone());
    let (tell, mut events) = Teller::new();
    let mut driver = Driver::new(parts, tell, leave);
    let mut steps = Steps::default();
    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut stops = false;
    driver.carry_out(Effect::Connect);
    while steps.stage() != Stage::Over {
        let event = tokio::select! {
            biased;
            _ = &mut stopped, if !stops => {
                stops = true;
                Event::Stop
            }
            Some((of, event)) = events.recv() => match driver.counts(of) {
                true => event,
                false => continue,
            },
            _ = look.tick() => {
                driver.look_what_is_needed(&server);
                if !steps.stops() {
                    driver.look_whether_it_is_followed();
                }
                continue;
            }
        };
        driver.forget_done();
        if !steps.stops() {
            driver.note(&event);
        }
        for effect in steps.step(event) {
            driver.carry_out(effect);
        }
        if matches!(steps.stage(), Stage::Leaving | Stage::Over) {
            driver.tell_left();
        }
    }
}

impl Parts {
    /// Where and as whom to connect.
    fn place(&self) -> (PathBuf, String) {
        let socket = format!(".s.PGSQL.{}", self.postgres.port);
        (
            self.postgres.run.join(socket),
            self.postgres.superuser.clone(),
        )
    }
}
