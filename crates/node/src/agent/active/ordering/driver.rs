//! What [`steps`](super::steps) asks for, carried out.

use std::time::Duration;

use coordination::channel::Server;
use pgdata::confirm::{Confirmable, Refusal, confirm_log};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::super::super::feedback;
use super::patience::{Following, Patience};
use super::places::{self, Held};
use super::proof::{self, Unproved};
use super::steps::{Effect, Event};
use super::{GivenUp, LogStatus, Parts, SETTLES_WITHIN};

/// How long before something but the connection is tried again; doubles up to the second.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long before it is, if each try holds commits up and shows nothing.
const REST: Duration = Duration::from_mins(10);

/// Of what an event tells; it counts only if that is the present one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// Of the connection that confirms: there is but one at a time.
    Connection,
    /// Of what was begun after the log had to be strict so many times.
    Attempt(u64),
    /// Of those places, which outlive attempts.
    Places(u64),
}

type Happened = (Of, Event);

/// Tells what happened.
#[derive(Clone)]
pub(super) struct Teller(mpsc::Sender<Happened>);

impl Teller {
    pub(super) fn new() -> (Teller, mpsc::Receiver<Happened>) {
        let (tell, events) = mpsc::channel(8);
        (Teller(tell), events)
    }

    pub(super) async fn say(&self, of: Of, event: Event) {
        // Whoever listens may have ended.
        let _ = self.0.send((of, event)).await;
    }
}

pub(super) struct Driver {
    parts: Parts,
    tell: Teller,
    /// Whatever is under way; ends with this.
    tasks: JoinSet<()>,
    /// Counts how often the log had to be strict: what an earlier attempt has to say counts no more.
    attempt: u64,
    patience: Patience,
    following: Following,
    /// The proof that is under way, or was.
    proof: Option<AbortHandle>,
    /// How often places were taken.
    takes: u64,
    places: Option<Held>,
    /// Fails when those that were given up last have been left.
    leaving: Option<oneshot::Receiver<()>>,
    pause: Duration,
    /// Tells who waits that the places are free.
    leave: Option<oneshot::Sender<()>>,
}

impl Driver {
    pub(super) fn new(parts: Parts, tell: Teller, leave: oneshot::Sender<()>) -> Driver {
        Driver {
            parts,
            tell,
            tasks: JoinSet::new(),
            attempt: 0,
            patience: Patience::default(),
            following: Following::default(),
            proof: None,
            takes: 0,
            places: None,
            leaving: None,
            pause: PAUSE_MIN,
            leave: Some(leave),
        }
    }

    /// True if what is told is of something that still counts.
    pub(super) fn counts(&self, of: Of) -> bool {
        match of {
            Of::Connection => true,
            Of::Attempt(attempt) => attempt == self.attempt,
            Of::Places(number) => self
                .places
                .as_ref()
                .is_some_and(|held| held.number == number),
        }
    }

    pub(super) fn forget_done(&mut self) {
        while self.tasks.try_join_next().is_some() {}
    }

    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Connect => self.connect(),
            Effect::PauseConnect => {
                self.again(self.patience.pause(), Of::Connection, Event::ConnectAgain)
            }
            Effect::Pause => self.pause(),
            Effect::Rest => self.again(REST, Of::Attempt(self.attempt), Event::Again),
            Effect::TakePlaces => self.take_places(),
            Effect::LeavePlaces => self.leave_places(),
            Effect::LeaveOne => self.leave_one(),
            Effect::Prove => self.prove(),
            Effect::Order => self.order(),
            Effect::BeStrict(why) => self.be_strict(why),
            Effect::Settle => self.settle(),
        }
    }

    /// True if the connection stands, and whether to wait for it no longer.
    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::Streams => self.patience.streams(),
            Event::Disconnected(refusal, _) if self.patience.fails(*refusal, Instant::now()) => {
                self.parts.given_up.send_replace(Some(GivenUp::Refused));
            }
            _ => {}
        }
    }

    /// What is not followed is never durable, and nobody confirms it.
    pub(super) fn look_whether_it_is_followed(&mut self) {
        let stuck = self.parts.sealer.stuck();
        if self.following.look(stuck, Instant::now())
            && let Some(at) = stuck
        {
            self.parts
                .given_up
                .send_replace(Some(GivenUp::Unfollowed(at)));
        }
    }

    fn order(&mut self) {
        self.pause = PAUSE_MIN;
        self.parts.sealer.order_log(true);
        *self.parts.told.lock() = LogStatus {
            ordered: true,
            why_strict: None,
        };
        tracing::info!("the log is ordered: commits wait for what this agent confirms");
    }

    fn be_strict(&mut self, why: String) {
        self.parts.sealer.order_log(false);
        self.attempt += 1;
        // It holds commits back.
        if let Some(proof) = self.proof.take() {
            proof.abort();
        }
        let mut told = self.parts.told.lock();
        if told.ordered || told.why_strict.as_ref() != Some(&why) {
            tracing::warn!("the log is strict: {why}");
        }
        *told = LogStatus {
            ordered: false,
            why_strict: Some(why),
        };
    }

    fn pause(&mut self) {
        self.again(self.pause, Of::Attempt(self.attempt), Event::Again);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    fn again(&mut self, pause: Duration, of: Of, event: Event) {
        let tell = self.tell.clone();
        self.tasks.spawn(async move {
            tokio::time::sleep(pause).await;
            tell.say(of, event).await;
        });
    }

    fn prove(&mut self) {
        let (parts, tell, attempt) = (self.parts.clone(), self.tell.clone(), self.attempt);
        let proof = self.tasks.spawn(async move {
            let proved = proof::prove(&parts.postgres, &parts.sealer, &parts.at_most);
            let event = match proved.await {
                Ok(()) => Event::Proved,
                Err(Unproved::NotSeen) => Event::NotSeen(
                    "it could not be seen in time whether commits wait for the agent".to_owned(),
                ),
                Err(Unproved::Why(why)) => Event::NotProved(why),
            };
            tell.say(Of::Attempt(attempt), event).await;
        });
        self.proof = Some(proof);
    }

    fn settle(&mut self) {
        let (parts, tell) = (self.parts.clone(), self.tell.clone());
        self.tasks.spawn(async move {
            let settled = parts.sealer.answered_is_durable(&parts.view);
            // Without zones the stop cannot be clean, and nothing is there to wait for.
            let _ = tokio::time::timeout(SETTLES_WITHIN, settled).await;
            tell.say(Of::Connection, Event::Settled).await;
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
                    tell.say(Of::Connection, Event::Streams).await;
                    confirms.await
                }
            };
            let (refusal, why) = match ended {
                Ok(()) => (Refusal::None, "it was ended".to_owned()),
                Err(error) => (error.refusal(), error.to_string()),
            };
            tell.say(Of::Connection, Event::Disconnected(refusal, why))
                .await;
        });
    }

    fn take_places(&mut self) {
        let ((leave_one, asked), (going, gone)) = (mpsc::channel(1), oneshot::channel());
        self.takes += 1;
        let number = self.takes;
        self.places = Some(Held {
            number,
            leave_one,
            gone,
        });
        let (parts, tell) = (self.parts.clone(), self.tell.clone());
        self.tasks.spawn(async move {
            places::take_and_hold(parts, number, asked, tell).await;
            drop::<oneshot::Sender<()>>(going);
        });
    }

    /// As all of them.
    fn leave_one(&mut self) {
        let Some(held) = &self.places else {
            return;
        };
        let (parts, leave_one) = (self.parts.clone(), held.leave_one.clone());
        self.tasks.spawn(async move {
            let _ = parts.sealer.answered_is_durable(&parts.view).await;
            // They may all have been left.
            let _ = leave_one.send(()).await;
        });
    }

    /// Whoever comes next is sent what is flushed: that must be durable by then.
    fn leave_places(&mut self) {
        let Some(Held {
            leave_one, gone, ..
        }) = self.places.take()
        else {
            return;
        };
        self.leaving = Some(gone);
        let parts = self.parts.clone();
        self.tasks.spawn(async move {
            // If it fails, the server is about to end.
            let _ = parts.sealer.answered_is_durable(&parts.view).await;
            drop(leave_one);
        });
    }

    /// Tells who waits for it when the places are free.
    pub(super) fn tell_left(&mut self) {
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

    pub(super) fn look_what_is_needed(&self, server: &Server) {
        let needed = feedback::needed(server);
        self.parts.needed.send_if_modified(|known| {
            let differs = *known != needed;
            *known = needed;
            differs
        });
    }
}
