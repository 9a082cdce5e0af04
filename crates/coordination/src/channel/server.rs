//! The listening side: every agent has one, whatever its role.
//!
//! ```text
//!   connect ── Hello ──▶ Welcome ──▶ wants an answer: Request ─▶ Answer ─▶ close
//!                │                ├▶ wants triggers: Trigger*, Notice* ◀▶ Progress*, Ping
//!                │                ├▶ is a proxy: see [`super::proxies`]
//!                │                └▶ wants a session: PostgreSQL's protocol, both ways
//!                └─▶ Refused (other volume, other version)
//! ```
//!
//! Triggers are coalesced: a subscriber gets the latest one, never a queue of old ones, and after one
//! none for [`GATHER`]. The log that has become durable since the last one goes with each, so that nobody has to
//! read it from the zones (CAC-DB 4.1 sends positions only); who does not get it, reads. Notices are queued, few,
//! and each is delivered in order after the triggers known before it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dax::ids::Epoch;
use dax::tls::Tls;
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;
use volume::lsn::Lsn;
use volume::recent_log::RecentLog;

use crate::address::Address;

use super::frame::{Frames, Listener, Socket, Writer, send, send_with, unexpected};
use super::greeting::{CONNECTIONS_MAX, Greeted, Greetings, Refusals, Room, greet, objection};
use super::message::{
    Identity, Message, Notice, PING_EVERY, Progress, Request, SILENCE, ServerStarted, Serving,
    StandbySeen, Trigger, Wants,
};
use super::positions::PositionSource;
use super::proxies::{self, Proxies, Proxy};
use super::session::join;
use super::{ChannelError, Party, Result};

/// A subscriber hears of the log at most so often. A busy active makes log durable more often than that, and
/// each time costs both sides a message, and whoever reads the log from a zone the whole of its last block.
const GATHER: Duration = Duration::from_millis(16);

/// Log that is sent with one trigger, at most.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// Answers requests.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Does what was asked; the error is a sentence for the operator. Dropped when whoever asked has given up: an order
    /// that was not begun by then must not be begun, for nobody expects it any more.
    async fn request(&self, request: Request) -> Result<serde_json::Value, String>;

    /// Opens a connection to this node's PostgreSQL, on which the superuser needs no password; the error is a
    /// sentence for the operator.
    async fn session(&self) -> Result<UnixStream, String>;
}

/// A standby that listens to this agent's triggers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscriber {
    /// Who it is.
    pub who: Identity,
    /// How far it is; `None` until it said so.
    pub progress: Option<Progress>,
}

pub(super) struct Shared {
    me: Identity,
    tls: Option<Tls>,
    refusals: Refusals,
    handler: Arc<dyn Handler>,
    trigger: watch::Sender<Option<Trigger>>,
    /// What is sent along with triggers.
    log: Mutex<Option<Arc<RecentLog>>>,
    notices: broadcast::Sender<Notice>,
    subscribers: Mutex<BTreeMap<u64, Subscriber>>,
    changed: watch::Sender<u64>,
    gather: Mutex<Duration>,
    pub(super) proxies: Proxies,
}

/// The listening side of the direct channel. Dropping it closes every connection.
pub struct Server {
    address: Address,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Listens at `listen`.
    ///
    /// # Errors
    /// [`ChannelError::Io`] if the address cannot be had.
    pub async fn bind(listen: &Address, me: Party, handler: Arc<dyn Handler>) -> Result<Server> {
        let failed = |source| ChannelError::Io {
            address: listen.clone(),
            source,
        };
        let listener = Listener::bind(listen).await.map_err(failed)?;
        let address = listener.address(listen).map_err(failed)?;
        let shared = Arc::new(Shared {
            me: me.me,
            tls: me.tls,
            refusals: Refusals::default(),
            handler,
            trigger: watch::channel(None).0,
            log: Mutex::default(),
            notices: broadcast::channel(64).0,
            subscribers: Mutex::default(),
            changed: watch::channel(0).0,
            gather: Mutex::new(GATHER),
            proxies: Proxies::new(),
        });
        Ok(Server {
            accepting: tokio::spawn(accept(listener, Arc::clone(&shared))),
            address,
            shared,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Announces how far this active is. Never waits; replaces what was not sent yet.
    pub fn publish(&self, trigger: Trigger) {
        self.shared.trigger.send_replace(Some(trigger));
    }

    /// Lets subscribers hear of the log at most so often, where a look at it costs more than usual.
    pub fn gather(&self, every: Duration) {
        *self.shared.gather.lock() = every;
    }

    /// From now on what triggers tell of is sent along with them, as far as it is in `log`.
    pub fn send_along(&self, log: Arc<RecentLog>) {
        *self.shared.log.lock() = Some(log);
    }

    /// Takes the last trigger back: this agent is not the active (any more).
    pub fn retract(&self) {
        *self.shared.log.lock() = None;
        self.shared.trigger.send_replace(None);
        self.shared.proxies.retract();
    }

    /// Tells every subscriber something, once. Never waits.
    pub fn announce(&self, notice: Notice) {
        // An error means that nobody listens.
        let _ = self.shared.notices.send(notice);
    }

    /// Who listens, and how far they are: each node once, as its newest connection tells. An older one may not have been
    /// noticed to be broken yet, and what it told last is not so any more.
    pub fn subscribers(&self) -> Vec<Subscriber> {
        let listed = self.shared.subscribers.lock();
        // In the order in which they connected.
        let newest: BTreeMap<_, _> = listed.values().map(|s| (&s.who.node, s)).collect();
        newest.into_values().cloned().collect()
    }

    /// Changes whenever a subscriber comes, goes or tells its progress.
    pub fn subscribers_changed(&self) -> watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }

    /// Tells proxies that this node serves, and answers them from `source`.
    pub fn serve_proxies(&self, serving: Serving, source: Arc<dyn PositionSource>) {
        self.shared.proxies.serve(serving, source);
    }

    /// Tells proxies that another run of the active's PostgreSQL serves, in the same epoch.
    pub fn restarted(&self, started: ServerStarted) {
        self.shared.proxies.restarted(started);
    }

    /// Tells proxies which standbys there are, and how far. Never waits; replaces what was not sent yet.
    pub fn tell_standbys(&self, standbys: Vec<StandbySeen>) {
        self.shared.proxies.tell_standbys(standbys);
    }

    /// The proxies that are connected.
    pub fn proxies(&self) -> Vec<Proxy> {
        self.shared.proxies.connected()
    }

    /// Has all proxies let no transaction begin, and waits until those that are open have ended, but for no longer
    /// than `drain`. Whatever happens, proxies hold for no longer than `at_most`. Without proxies it returns at once.
    pub async fn hold(&self, epoch: Epoch, drain: Duration, at_most: Duration) {
        self.shared.proxies.hold(epoch, drain, at_most).await;
    }

    /// Lets proxies begin transactions again, if they hold.
    pub fn resume(&self, epoch: Epoch) {
        self.shared.proxies.resume(epoch);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
        if let Address::Unix(path) = &self.address {
            // Somebody may have cleaned up before.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Accepts until the server is dropped; the connections end with the set.
async fn accept(listener: Listener, shared: Arc<Shared>) {
    let mut connections = tokio::task::JoinSet::new();
    let mut greetings = Greetings::default();
    for number in 0.. {
        let accepted = listener.accept().await;
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok(_) if connections.len() >= CONNECTIONS_MAX => {
                let why = format!("there are {CONNECTIONS_MAX} already");
                shared.refusals.tell(&why);
            }
            Ok(socket) => {
                let shared = Arc::clone(&shared);
                let room = greetings.enter();
                connections.spawn(async move {
                    if let Err(error) = serve(&shared, number, socket, room).await {
                        tracing::debug!(%error, number, "channel connection ended");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a channel connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(shared: &Arc<Shared>, number: u64, socket: Socket, room: Room) -> io::Result<()> {
    let is_private = socket.is_private(shared.tls.as_ref());
    let Greeted {
        mut frames,
        mut writer,
        version,
        who,
        wants,
        log,
    } = room
        .within(greet(socket, shared.tls.as_ref(), &shared.refusals))
        .await?;
    if let Some(why) = objection(&shared.me, version, &who) {
        return send(&mut writer, &Message::Refused { why }).await;
    }
    let me = shared.me.clone();
    match wants {
        Wants::Answer => {
            send(&mut writer, &Message::Welcome { me }).await?;
            answer(shared, &mut frames, &mut writer).await
        }
        Wants::Triggers => {
            // Subscribed before the welcome: whoever was welcomed misses nothing.
            let notices = shared.notices.subscribe();
            let _listed = Listed::new(shared, number, who);
            send(&mut writer, &Message::Welcome { me }).await?;
            feed(shared, number, log, notices, &mut frames, &mut writer).await
        }
        Wants::Proxy => {
            let notices = shared.notices.subscribe();
            send(&mut writer, &Message::Welcome { me }).await?;
            let proxies = &shared.proxies;
            proxies::serve(proxies, number, who, notices, &mut frames, &mut writer).await
        }
        Wants::Session => match session(shared, is_private).await {
            Ok(server) => {
                send(&mut writer, &Message::Welcome { me }).await?;
                join(frames, writer, server).await
            }
            Err(why) => send(&mut writer, &Message::Refused { why }).await,
        },
    }
}

/// A superuser's session: never for whoever can reach an unprotected port, which is everybody on this machine.
async fn session(shared: &Shared, is_private: bool) -> Result<UnixStream, String> {
    if !is_private {
        return Err(
            "sessions are opened over protected connections only ([tls], or a Unix socket)".into(),
        );
    }
    shared.handler.session().await
}

async fn answer(shared: &Shared, frames: &mut Frames, writer: &mut Writer) -> io::Result<()> {
    let request = match tokio::time::timeout(SILENCE, frames.next()).await?? {
        Some(Message::Request(request)) => request,
        _ => return Err(unexpected("no request")),
    };
    let reply = tokio::select! {
        answered = shared.handler.request(request) => match answered {
            Ok(answer) => Message::Answer { answer },
            Err(why) => Message::Refused { why },
        },
        // What was not begun yet is not to be done any more: see [`Handler::request`].
        gone = gone(frames) => return gone,
    };
    send(writer, &reply).await
}

/// Waits until whoever asked has given up.
async fn gone(frames: &mut Frames) -> io::Result<()> {
    loop {
        match frames.next().await? {
            None => return Ok(()),
            Some(Message::Ping) => {}
            Some(_) => return Err(unexpected("a second request before the first is answered")),
        }
    }
}

async fn feed(
    shared: &Shared,
    number: u64,
    log: bool,
    mut notices: broadcast::Receiver<Notice>,
    frames: &mut Frames,
    writer: &mut Writer,
) -> io::Result<()> {
    let mut latest = Latest {
        shared,
        triggers: shared.trigger.subscribe(),
        sent: log.then_some(Lsn::ZERO),
    };
    latest.triggers.mark_changed();
    let mut ping = tokio::time::interval(PING_EVERY);
    let mut heard = tokio::time::Instant::now();
    let mut next_trigger = heard;
    loop {
        tokio::select! {
            biased;
            incoming = frames.next() => match incoming? {
                None => return Ok(()),
                Some(Message::Progress(progress)) => {
                    heard = tokio::time::Instant::now();
                    shared.note_progress(number, progress);
                }
                Some(Message::Ping) => heard = tokio::time::Instant::now(),
                Some(_) => return Err(unexpected("a subscriber speaks out of turn")),
            },
            notice = notices.recv() => match notice {
                Ok(notice) => {
                    if latest.triggers.has_changed().is_ok_and(|changed| changed) {
                        latest.send(writer).await?;
                    }
                    send(writer, &Message::Notice(notice)).await?;
                }
                // Too slow for a handful of notices: let it connect again and look at the registry.
                Err(_) => return Err(unexpected("the subscriber is too slow")),
            },
            Ok(()) = changed_after(next_trigger, &mut latest.triggers) => {
                latest.send(writer).await?;
                next_trigger = tokio::time::Instant::now() + *shared.gather.lock();
            },
            _ = ping.tick() => {
                if heard.elapsed() > SILENCE {
                    return Err(unexpected("the subscriber is silent"));
                }
                send(writer, &Message::Ping).await?;
            }
        }
    }
}

/// Waits for a trigger that was not sent, and for that moment.
async fn changed_after(
    moment: tokio::time::Instant,
    triggers: &mut watch::Receiver<Option<Trigger>>,
) -> Result<(), watch::error::RecvError> {
    tokio::time::sleep_until(moment).await;
    triggers.changed().await
}

/// What a subscriber was sent last, and what it will be sent next.
struct Latest<'a> {
    shared: &'a Shared,
    triggers: watch::Receiver<Option<Trigger>>,
    /// The end of the log that it has, or can read; `None` if it does not take log.
    sent: Option<Lsn>,
}

impl Latest<'_> {
    async fn send(&mut self, writer: &mut Writer) -> io::Result<()> {
        let Some(trigger) = *self.triggers.borrow_and_update() else {
            return Ok(());
        };
        if let Some((at, log)) = self.log_for(&trigger) {
            let head = Message::Log {
                epoch: trigger.epoch,
                at,
                bytes: log.len() as u32,
            };
            send_with(writer, &head, &log).await?;
        }
        send(writer, &Message::Trigger(trigger)).await
    }

    /// The log since the last trigger, if it is at hand. Who is far behind reads it from the zones.
    fn log_for(&mut self, trigger: &Trigger) -> Option<(Lsn, Bytes)> {
        let at = std::mem::replace(self.sent.as_mut()?, trigger.synced_lsn);
        if at == Lsn::ZERO || trigger.synced_lsn.bytes_since(at) > LOG_BYTES_MAX {
            return None;
        }
        let log = self.shared.log.lock().clone();
        let log = log.filter(|log| log.epoch() == trigger.epoch)?;
        Some((at, log.read(at..trigger.synced_lsn)?))
    }
}

impl Shared {
    fn note_progress(&self, number: u64, progress: Progress) {
        if let Some(subscriber) = self.subscribers.lock().get_mut(&number) {
            subscriber.progress = Some(progress);
        }
        self.changed.send_modify(|n| *n += 1);
    }
}

/// A subscriber's entry in the list, for as long as its connection lives.
struct Listed<'a> {
    shared: &'a Shared,
    number: u64,
}

impl<'a> Listed<'a> {
    fn new(shared: &'a Shared, number: u64, who: Identity) -> Listed<'a> {
        let progress = None;
        shared
            .subscribers
            .lock()
            .insert(number, Subscriber { who, progress });
        shared.changed.send_modify(|n| *n += 1);
        Listed { shared, number }
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.shared.subscribers.lock().remove(&self.number);
        self.shared.changed.send_modify(|n| *n += 1);
    }
}
