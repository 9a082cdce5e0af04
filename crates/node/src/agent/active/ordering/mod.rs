//! An ordered log: syncs of it are answered before they are durable, and commits wait for what the agent confirms
//! ([`pgdata::confirm`]).
//!
//! Whether it is ordered at a time, [`steps`] decides; here its effects are carried out. A server that was not started
//! for it ([`pgdata::settings::ordered()`]) has a strict log, and nothing of this runs.
//!
//! Invariant: whoever waits for a commit is confirmed as long as the server runs: the connection that confirms is the
//! last of the agent's that leaves a server which stops.

mod proof;
mod steps;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use coordination::channel::Server;
use parking_lot::Mutex;
use pgdata::confirm::{Confirmable, Place, confirm_log};
use pgdata::feed::RowsNeeded;
use pgdata::sealer::Sealer;
use pgdata::settings;
use pgserver::{Session, StartOptions};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use volume::active::ActiveView;
use volume::lsn::Lsn;

use self::steps::{Effect, Event, Stage};
use super::super::context::Context;
use super::super::feedback;
use super::Active;

/// How long before something is tried again; doubles up to the second.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long to wait before a stop until what was answered is durable, and the places are free.
const SETTLES_WITHIN: Duration = Duration::from_secs(2);
/// A server that refuses the agent for so long has commits that wait for nobody: it is started again for a strict log.
const GIVES_UP_AFTER: Duration = Duration::from_secs(5);
/// How often it is looked which rows standbys need.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// For the node's status.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LogTold {
    /// Whether syncs are answered before they are durable.
    ordered: bool,
    /// Why not, though it is wanted.
    why_strict: Option<String>,
}

type Told = Arc<Mutex<LogTold>>;

/// What an active has of this.
#[derive(Default)]
pub(crate) struct LogOrder {
    running: Option<Ordering>,
    told: Told,
    refused: watch::Sender<bool>,
}

impl LogOrder {
    /// For the node's status.
    pub(super) fn told(&self) -> LogTold {
        self.told.lock().clone()
    }

    /// Waits until the server has refused the agent for so long that it must be started again.
    pub(super) async fn refused(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.refused.subscribe().wait_for(|refused| *refused).await;
        self.refused.send_replace(false);
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
                refused: self.log.refused.clone(),
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
    told: Told,
    refused: watch::Sender<bool>,
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
        *self.0.told.lock() = LogTold::default();
    }
}

async fn run(
    server: Arc<Server>,
    parts: Parts,
    mut stopped: oneshot::Receiver<()>,
    leave: oneshot::Sender<()>,
) {
    let _strict = Strict(parts.clone());
    let (tell, mut events) = mpsc::channel(8);
    let mut driver = Driver {
        parts,
        tell,
        tasks: JoinSet::new(),
        attempt: 0,
        unconfirmed: Some(Instant::now()),
        places: None,
        leaving: None,
        pause: PAUSE_MIN,
        leave: Some(leave),
    };
    let mut stage = Stage::default();
    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut stops = false;
    driver.carry_out(Effect::Connect);
    while stage != Stage::Over {
        let event = tokio::select! {
            biased;
            _ = &mut stopped, if !stops => {
                stops = true;
                Event::Stop
            }
            Some((of, event)) = events.recv() => match of {
                Some(attempt) if attempt != driver.attempt => continue,
                _ => event,
            },
            _ = look.tick() => {
                driver.look_what_is_needed(&server);
                continue;
            }
        };
        while driver.tasks.try_join_next().is_some() {}
        driver.note_refusals(&event);
        let (next, effects) = stage.step(event);
        stage = next;
        for effect in effects {
            driver.carry_out(effect);
        }
        if matches!(stage, Stage::Leaving | Stage::Over) {
            driver.tell_left();
        }
    }
}

/// What happened, and in which attempt, if that matters.
type Happened = (Option<u64>, Event);

/// Places that are being taken, or are taken.
struct Held {
    /// They are left when this is dropped.
    hold: oneshot::Sender<()>,
    /// Fails when they have been.
    gone: oneshot::Receiver<()>,
}

struct Driver {
    parts: Parts,
    tell: mpsc::Sender<Happened>,
    /// Whatever is under way; ends with this.
    tasks: JoinSet<()>,
    /// Counts how often the log had to be strict: what an earlier attempt has to say counts no more.
    attempt: u64,
    /// Since when commits wait for nobody, if they do.
    unconfirmed: Option<Instant>,
    places: Option<Held>,
    /// Fails when those that were given up last have been left.
    leaving: Option<oneshot::Receiver<()>>,
    pause: Duration,
    /// Tells who waits that the places are free.
    leave: Option<oneshot::Sender<()>>,
}

impl Driver {
    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Connect => self.connect(),
            Effect::Pause => self.pause(),
            Effect::TakePlaces => self.take_places(),
            Effect::LeavePlaces => self.leave_places(),
            Effect::Prove => self.prove(),
            Effect::Order => self.order(),
            Effect::BeStrict(why) => self.be_strict(why),
            Effect::Settle => self.settle(),
        }
    }

    fn note_refusals(&mut self, event: &Event) {
        match event {
            Event::Streams => self.unconfirmed = None,
            Event::Disconnected(_) => {
                let since = *self.unconfirmed.get_or_insert_with(Instant::now);
                if since.elapsed() >= GIVES_UP_AFTER {
                    self.parts.refused.send_replace(true);
                }
            }
            _ => {}
        }
    }

    fn order(&mut self) {
        self.pause = PAUSE_MIN;
        self.parts.sealer.order_log(true);
        *self.parts.told.lock() = LogTold {
            ordered: true,
            why_strict: None,
        };
        tracing::info!("the log is ordered: commits wait for what this agent confirms");
    }

    fn be_strict(&mut self, why: String) {
        self.parts.sealer.order_log(false);
        self.attempt += 1;
        let mut told = self.parts.told.lock();
        if told.ordered || told.why_strict.as_ref() != Some(&why) {
            tracing::warn!("the log is strict: {why}");
        }
        *told = LogTold {
            ordered: false,
            why_strict: Some(why),
        };
    }

    fn pause(&mut self) {
        let (tell, pause, attempt) = (self.tell.clone(), self.pause, self.attempt);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.tasks.spawn(async move {
            tokio::time::sleep(pause).await;
            say(&tell, Some(attempt), Event::Again).await;
        });
    }

    fn prove(&mut self) {
        let (parts, tell, attempt) = (self.parts.clone(), self.tell.clone(), self.attempt);
        self.tasks.spawn(async move {
            let proved = proof::prove(&parts.postgres, &parts.sealer, &parts.at_most);
            let event = match proved.await {
                Ok(()) => Event::Proved,
                Err(why) => Event::NotProved(why),
            };
            say(&tell, Some(attempt), event).await;
        });
    }

    fn settle(&mut self) {
        let (parts, tell) = (self.parts.clone(), self.tell.clone());
        self.tasks.spawn(async move {
            let settled = parts.sealer.answered_is_durable(&parts.view);
            // Without zones the stop cannot be clean, and nothing is there to wait for.
            let _ = tokio::time::timeout(SETTLES_WITHIN, settled).await;
            say(&tell, None, Event::Settled).await;
        });
    }

    fn connect(&mut self) {
        let (socket, user) = self.parts.place();
        let mut confirmable = Confirmable {
            synced: self.parts.sealer.synced(),
            held: self.parts.sealer.watch_held(),
            at_most: self.parts.at_most.subscribe(),
            needed: self.parts.needed.subscribe(),
        };
        let tell = self.tell.clone();
        self.tasks.spawn(async move {
            let (streaming, streams) = oneshot::channel();
            let confirms = confirm_log(&socket, &user, &mut confirmable, streaming);
            tokio::pin!(confirms);
            let ended = tokio::select! {
                ended = &mut confirms => ended,
                Ok(()) = streams => {
                    say(&tell, None, Event::Streams).await;
                    confirms.await
                }
            };
            let why = ended.map_or_else(|error| error.to_string(), |()| "it was ended".to_owned());
            say(&tell, None, Event::Disconnected(why)).await;
        });
    }

    fn take_places(&mut self) {
        let ((hold, released), (going, gone)) = (oneshot::channel(), oneshot::channel());
        self.places = Some(Held { hold, gone });
        let (parts, tell, attempt) = (self.parts.clone(), self.tell.clone(), self.attempt);
        self.tasks.spawn(async move {
            match parts.take_places().await {
                Ok(places) => {
                    say(&tell, Some(attempt), Event::AllPlaces).await;
                    if !hold_places(places, released).await {
                        say(&tell, Some(attempt), Event::PlaceLost).await;
                    }
                }
                Err(why) => say(&tell, Some(attempt), Event::SomePlaces(why)).await,
            }
            drop::<oneshot::Sender<()>>(going);
        });
    }

    /// Whoever comes next is sent what is flushed: that must be durable by then.
    fn leave_places(&mut self) {
        let Some(Held { hold, gone }) = self.places.take() else {
            return;
        };
        self.leaving = Some(gone);
        let parts = self.parts.clone();
        self.tasks.spawn(async move {
            // If it fails, the server is about to end.
            let _ = parts.sealer.answered_is_durable(&parts.view).await;
            drop(hold);
        });
    }

    /// Tells who waits for it when the places are free.
    fn tell_left(&mut self) {
        let Some(leave) = self.leave.take() else {
            return;
        };
        let leaving = self.leaving.take();
        self.tasks.spawn(async move {
            if let Some(gone) = leaving {
                // It only ever fails.
                let _ = gone.await;
            }
            // Whoever waited may have gone.
            let _ = leave.send(());
        });
    }

    fn look_what_is_needed(&self, server: &Server) {
        let needed = feedback::needed(server);
        self.parts.needed.send_if_modified(|known| {
            let differs = *known != needed;
            *known = needed;
            differs
        });
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

    /// Takes all places but the one of the connection that confirms.
    async fn take_places(&self) -> Result<Vec<Place>, String> {
        let (socket, user) = self.place();
        let session = Session::open(
            &self.postgres.run,
            self.postgres.port,
            &self.postgres.superuser,
        );
        let session = session.await.map_err(|error| error.to_string())?;
        let number = |text: Option<String>| text.and_then(|text| text.parse::<u32>().ok());
        let asked = session.value("SHOW max_wal_senders").await;
        let all = number(asked.map_err(|error| error.to_string())?)
            .ok_or("the server does not say how many replication connections it takes")?;
        let version = session.value("SHOW server_version_num").await;
        let version = number(version.map_err(|error| error.to_string())?);
        let options = match version {
            Some(version) if version >= 140_000 => "-c idle_session_timeout=0",
            _ => "",
        };
        let mut places = Vec::new();
        for _ in 1..all {
            match Place::take(&socket, &user, options).await {
                Ok(place) => places.push(place),
                Err(error) => {
                    for place in places {
                        place.leave().await;
                    }
                    return Err(format!(
                        "another replication connection is there ({error}); the log is ordered when it has gone"
                    ));
                }
            }
        }
        Ok(places)
    }
}

/// Holds places until they are released; false if one was lost before.
async fn hold_places(mut places: Vec<Place>, released: oneshot::Receiver<()>) -> bool {
    let lost = async {
        if places.is_empty() {
            return std::future::pending().await;
        }
        let all = places.iter_mut().map(|place| Box::pin(place.lost()));
        futures_util::future::select_all(all).await;
    };
    let kept = tokio::select! {
        biased;
        _ = released => true,
        () = lost => false,
    };
    for place in places {
        place.leave().await;
    }
    kept
}

async fn say(tell: &mpsc::Sender<Happened>, attempt: Option<u64>, event: Event) {
    // Whoever listens may have ended.
    let _ = tell.send((attempt, event)).await;
}
