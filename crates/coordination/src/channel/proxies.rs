//! The listening side for proxies: who serves, how far standbys are, positions with proof, and holding transactions while
//! the active is about to stop.
//!
//! ```text
//!   Hello(proxy) ─▶ Welcome ─▶ Serving*, Standbys*, Notice*, Hold*, Resume*, Position* ◀▶ Ask*, Drained*, Proxy*, Ping
//! ```
//!
//! A proxy is connected to every agent, so whoever becomes the active is the first to tell it. Who serves and how far standbys
//! are is sent as it is now, never as a queue of what it was.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use dax::ids::Epoch;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;

use super::frame::{Frames, Writer, send, unexpected};
use super::holding::{HoldOrder, Holding, ProxyNumber};
use super::message::{
    Identity, Message, Notice, PING_EVERY, ProxyReport, SILENCE, ServerStarted, Serving,
    StandbySeen,
};
use super::positions::{Answer, Answering, PositionSource, Question};

/// A proxy hears of the standbys' positions at most so often.
const GATHER: Duration = Duration::from_millis(5);
/// Questions of one connection that may wait for an answer: a proxy asks one after the other.
const ASKED_MAX: usize = 64;

/// A proxy that is connected to this agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proxy {
    /// Who it is.
    pub who: Identity,
    /// What it says of itself; `None` until it said so.
    pub report: Option<ProxyReport>,
}

/// State of a hold, as proxies hear it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HoldState {
    Nothing,
    Hold,
    Resume { epoch: Epoch, number: u64 },
}

/// What this agent has for proxies.
pub(super) struct Proxies {
    serving: watch::Sender<Option<Serving>>,
    standbys: watch::Sender<Vec<StandbySeen>>,
    answering: Mutex<Option<Answering>>,
    holding: Mutex<Holding>,
    told: watch::Sender<HoldState>,
    connected: Mutex<BTreeMap<ProxyNumber, Proxy>>,
    /// Changes when a proxy comes or goes, or has drained.
    changed: watch::Sender<u64>,
    started: Instant,
}

impl Proxies {
    pub(super) fn new() -> Proxies {
        Proxies {
            serving: watch::channel(None).0,
            standbys: watch::channel(Vec::new()).0,
            answering: Mutex::default(),
            holding: Mutex::default(),
            told: watch::channel(HoldState::Nothing).0,
            connected: Mutex::default(),
            changed: watch::channel(0).0,
            started: Instant::now(),
        }
    }

    /// This agent is not the active any more. A hold goes on: the next active ends it.
    pub(super) fn retract(&self) {
        drop(self.answering.lock().take());
        self.serving.send_replace(None);
        self.standbys.send_replace(Vec::new());
        self.holding.lock().resume();
        self.told.send_replace(HoldState::Nothing);
    }

    fn ask(&self, question: Question) {
        match self.answering.lock().as_ref() {
            // Who is turned away is answered when the question is dropped.
            Some(answering) => drop(answering.questions.send(question)),
            None => drop(question),
        }
    }

    fn order(&self) -> Option<HoldOrder> {
        self.holding.lock().order(self.started.elapsed())
    }

    fn note(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    /// Tells proxies that this node serves, and answers them from `source`.
    pub(super) fn serve(&self, serving: Serving, source: Arc<dyn PositionSource>) {
        *self.answering.lock() = Some(Answering::start(source));
        self.serving.send_replace(Some(serving));
    }

    /// See [`Server::restarted`](super::Server::restarted).
    pub(super) fn restarted(&self, started: ServerStarted) {
        self.serving.send_if_modified(|serving| match serving {
            Some(serving) => serving.started.replace(started) != Some(started),
            None => false,
        });
    }

    /// See [`Server::tell_standbys`](super::Server::tell_standbys).
    pub(super) fn tell_standbys(&self, standbys: Vec<StandbySeen>) {
        self.standbys.send_if_modified(|told| {
            let changed = *told != standbys;
            *told = standbys;
            changed
        });
    }

    /// The proxies that are connected.
    pub(super) fn connected(&self) -> Vec<Proxy> {
        let connected = self.connected.lock();
        connected.values().cloned().collect()
    }

    /// See [`Server::hold`](super::Server::hold).
    pub(super) async fn hold(&self, epoch: Epoch, drain: Duration, at_most: Duration) {
        let mut changed = self.changed.subscribe();
        let connected: Vec<ProxyNumber> = self.connected.lock().keys().copied().collect();
        let now = self.started.elapsed();
        self.holding
            .lock()
            .hold(epoch, connected, drain, at_most, now);
        self.told.send_replace(HoldState::Hold);
        let drained = async {
            while !self.holding.lock().is_quiet(self.started.elapsed()) {
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(drain, drained).await.is_err() {
            tracing::info!(
                ?drain,
                "proxies still have open transactions: they end with the server"
            );
        }
    }

    /// Lets proxies begin transactions again, if they hold.
    pub(super) fn resume(&self, epoch: Epoch) {
        if let Some(number) = self.holding.lock().resume() {
            self.told.send_replace(HoldState::Resume { epoch, number });
        }
    }
}

/// A proxy's entry in the list, for as long as its connection lives.
struct Connected<'a> {
    proxies: &'a Proxies,
    number: ProxyNumber,
}

impl<'a> Connected<'a> {
    fn new(proxies: &'a Proxies, number: ProxyNumber, who: Identity) -> Connected<'a> {
        let report = None;
        // Waited for before it is listed: it is told of a hold as soon as it is served.
        proxies.holding.lock().joined(number);
        proxies
            .connected
            .lock()
            .insert(number, Proxy { who, report });
        proxies.note();
        Connected { proxies, number }
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.proxies.connected.lock().remove(&self.number);
        self.proxies.holding.lock().left(self.number);
        self.proxies.note();
    }
}

/// Serves a proxy that was welcomed.
pub(super) async fn serve(
    proxies: &Proxies,
    number: ProxyNumber,
    who: Identity,
    mut notices: broadcast::Receiver<Notice>,
    frames: &mut Frames,
    writer: &mut Writer,
) -> io::Result<()> {
    let connected = Connected::new(proxies, number, who);
    let (answers_to, mut answers) = mpsc::unbounded_channel();
    let mut serving = proxies.serving.subscribe();
    let mut standbys = proxies.standbys.subscribe();
    let mut told = proxies.told.subscribe();
    serving.mark_changed();
    told.mark_changed();
    let mut asked = 0;
    let mut ping = tokio::time::interval(PING_EVERY);
    let mut heard = Instant::now();
    let mut next_standbys = heard;
    loop {
        tokio::select! {
            biased;
            incoming = frames.next() => {
                heard = Instant::now();
                match incoming? {
                    None => return Ok(()),
                    Some(Message::Ask { .. }) if asked == ASKED_MAX => {
                        return Err(unexpected("a proxy asks too much"));
                    }
                    Some(Message::Ask { number, shown }) => {
                        asked += 1;
                        proxies.ask(Question::new(number, shown, answers_to.clone()));
                    }
                    Some(message) => connected.take(message)?,
                }
            }
            Some(answer) = answers.recv() => {
                asked -= 1;
                send(writer, &answer_of(answer)).await?;
            }
            Ok(()) = serving.changed() => {
                let serving = serving.borrow_and_update().clone();
                send(writer, &Message::Serving { serving }).await?;
                standbys.mark_changed();
            }
            Ok(()) = told.changed() => {
                let told = *told.borrow_and_update();
                match told {
                    HoldState::Nothing => {}
                    HoldState::Hold => if let Some(order) = proxies.order() {
                        send(writer, &Message::Hold(order)).await?;
                    },
                    HoldState::Resume { epoch, number } => {
                        send(writer, &Message::Resume { epoch, number }).await?;
                    }
                }
            }
            notice = notices.recv() => match notice {
                Ok(Notice::Sealed { .. }) => {}
                Ok(notice) => send(writer, &Message::Notice(notice)).await?,
                Err(_) => return Err(unexpected("the proxy is too slow")),
            },
            Ok(()) = changed_after(next_standbys, &mut standbys) => {
                next_standbys = Instant::now() + GATHER;
                let epoch = serving.borrow().as_ref().map(|serving| serving.epoch);
                let standbys = standbys.borrow_and_update().clone();
                if let Some(epoch) = epoch {
                    send(writer, &Message::Standbys { epoch, standbys }).await?;
                }
            }
            _ = ping.tick() => {
                if heard.elapsed() > SILENCE {
                    return Err(unexpected("the proxy is silent"));
                }
                send(writer, &Message::Ping).await?;
            }
        }
    }
}

/// Waits for a change that was not sent, and for that moment.
async fn changed_after<T>(
    moment: Instant,
    changes: &mut watch::Receiver<T>,
) -> Result<(), watch::error::RecvError> {
    tokio::time::sleep_until(moment).await;
    changes.changed().await
}

impl Connected<'_> {
    fn take(&self, message: Message) -> io::Result<()> {
        match message {
            Message::Ping => Ok(()),
            Message::Drained { number } => {
                self.proxies.holding.lock().drained(self.number, number);
                self.proxies.note();
                Ok(())
            }
            Message::Proxy(report) => {
                if let Some(proxy) = self.proxies.connected.lock().get_mut(&self.number) {
                    proxy.report = Some(report);
                }
                Ok(())
            }
            _ => Err(unexpected("a proxy speaks out of turn")),
        }
    }
}

fn answer_of(answer: Answer) -> Message {
    let number = answer.number;
    match answer.position {
        Ok(position) => Message::Position {
            number,
            epoch: position.epoch,
            durable: position.durable,
            shown: position.shown,
        },
        Err(why) => Message::NoPosition { number, why },
    }
}
