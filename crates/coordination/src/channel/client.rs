//! The calling side: a standby's subscription to its active, and one-shot requests.
//!
//! ```text
//!            ┌──────── connected ────────┐
//!   try ─────┤                           ├─ broke: Reset ─▶ try again at once, then every 100 ms
//!     ▲      ├─ nobody listens: Refused  │
//!     └──────┴─ else: Unreachable ◀──────┘
//! ```
//!
//! `Reset` and `Refused` are evidence for the failure detector; `Unreachable` (no route, no answer,
//! silence) is none, because a cut between two agents looks the same.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use dax::ids::Epoch;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use volume::lsn::Lsn;
use volume::recent_log::RecentLog;

use crate::address::Address;
use dax::tls::Rejection;

use super::frame::{Frames, Socket, Writer, send};
use super::message::{
    Message, Notice, PING_EVERY, Peer, Progress, Request, SILENCE, Trigger, VERSION, Wants,
};
use super::{ChannelError, Party, Result};

const RETRY_EVERY: Duration = Duration::from_millis(100);
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
const SILENT: &str = "the agent is silent";

/// What a subscription tells its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// The channel stands (again).
    Connected(Peer),
    /// The active said something.
    Notice(Notice),
    /// A standing connection broke: closed or reset by the other side.
    Reset,
    /// Nobody listens at the address: the agent is gone, its machine is not.
    Refused,
    /// No connection, for a reason that says nothing about the agent.
    Unreachable(String),
    /// The agent there does not want us; the subscription goes on trying.
    Rejected(String),
}

/// A standing subscription to an agent's triggers. Dropping it closes the connection.
pub struct Subscription {
    address: Address,
    triggers: watch::Receiver<Option<Trigger>>,
    progress: watch::Sender<Option<Progress>>,
    task: JoinHandle<()>,
}

impl Subscription {
    /// Whose triggers these are.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The latest trigger; `None` before the first.
    pub fn triggers(&self) -> watch::Receiver<Option<Trigger>> {
        self.triggers.clone()
    }

    /// Tells the active how far this standby is. Never waits; the latest wins.
    pub fn progress(&self, progress: Progress) {
        self.progress.send_if_modified(|last| {
            let changed = *last != Some(progress);
            *last = Some(progress);
            changed
        });
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Subscribes to the agent at `address`, for good: connects again whenever the connection breaks. What it sends of
/// its log in the epoch of `log` is put there before the trigger that tells of it.
/// Must be called inside a tokio runtime.
pub fn subscribe(
    address: Address,
    me: Party,
    events: mpsc::UnboundedSender<ClientEvent>,
    log: Option<Arc<RecentLog>>,
) -> Subscription {
    let (trigger_to, triggers) = watch::channel(None);
    let (progress, progress_from) = watch::channel(None);
    let link = Link {
        address: address.clone(),
        me,
        events,
        log,
        triggers: trigger_to,
        progress: progress_from,
    };
    Subscription {
        address,
        triggers,
        progress,
        task: tokio::spawn(link.run()),
    }
}

struct Link {
    address: Address,
    me: Party,
    events: mpsc::UnboundedSender<ClientEvent>,
    log: Option<Arc<RecentLog>>,
    triggers: watch::Sender<Option<Trigger>>,
    progress: watch::Receiver<Option<Progress>>,
}

impl Link {
    async fn run(mut self) {
        let mut last = None;
        while !self.events.is_closed() {
            let log = self.log.is_some();
            let (event, lived) = match open(&self.address, &self.me, Wants::Triggers, log).await {
                Ok((frames, writer, peer)) => {
                    self.tell(ClientEvent::Connected(peer));
                    (self.follow(frames, writer).await, true)
                }
                Err(error) => (failed(&error), false),
            };
            // The same failure again is no news, but a refusal stays evidence.
            if lived || last.as_ref() != Some(&event) || event == ClientEvent::Refused {
                self.tell(event.clone());
            }
            last = Some(event);
            if !lived {
                tokio::time::sleep(RETRY_EVERY).await;
            }
        }
    }

    fn tell(&self, event: ClientEvent) {
        // An error means that the owner is gone; the loop ends then.
        let _ = self.events.send(event);
    }

    /// Follows a standing connection to its end, and says how it ended.
    async fn follow(&mut self, mut frames: Frames, mut writer: Writer) -> ClientEvent {
        self.progress.mark_changed();
        let mut ping = tokio::time::interval(PING_EVERY);
        let mut heard = tokio::time::Instant::now();
        loop {
            let sent = tokio::select! {
                biased;
                incoming = frames.next() => {
                    heard = tokio::time::Instant::now();
                    match incoming {
                        Ok(Some(Message::Trigger(trigger))) => {
                            self.triggers.send_replace(Some(trigger));
                        }
                        Ok(Some(Message::Log { epoch, at, bytes })) => {
                            let taken = self.take_log(&mut frames, epoch, at, bytes);
                            match tokio::time::timeout(SILENCE, taken).await {
                                Ok(Ok(())) => {}
                                Ok(Err(error)) => return broken(&error),
                                Err(_) => return ClientEvent::Unreachable(SILENT.into()),
                            }
                        }
                        Ok(Some(Message::Notice(notice))) => self.tell(ClientEvent::Notice(notice)),
                        Ok(Some(Message::Ping)) => {}
                        Ok(Some(_)) => return ClientEvent::Rejected("it speaks out of turn".into()),
                        Ok(None) => return ClientEvent::Reset,
                        Err(error) => return broken(&error),
                    }
                    Ok(())
                }
                Ok(()) = self.progress.changed() => {
                    let latest = *self.progress.borrow_and_update();
                    match latest {
                        Some(progress) => send(&mut writer, &Message::Progress(progress)).await,
                        None => Ok(()),
                    }
                }
                _ = ping.tick() => {
                    if heard.elapsed() > SILENCE {
                        return ClientEvent::Unreachable(SILENT.into());
                    }
                    send(&mut writer, &Message::Ping).await
                }
            };
            if let Err(error) = sent {
                return broken(&error);
            }
        }
    }

    /// Takes what follows the announcement of a part of the log.
    async fn take_log(
        &self,
        frames: &mut Frames,
        epoch: Epoch,
        at: Lsn,
        bytes: u32,
    ) -> io::Result<()> {
        let part = frames.bytes(bytes as usize).await?;
        if let Some(log) = self.log.as_ref().filter(|log| log.epoch() == epoch) {
            log.put(at, &part);
        }
        Ok(())
    }
}

/// How the end of a standing connection looks.
fn broken(error: &io::Error) -> ClientEvent {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error.kind() {
        BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => ClientEvent::Reset,
        _ => ClientEvent::Unreachable(error.to_string()),
    }
}

fn failed(error: &ChannelError) -> ClientEvent {
    match error {
        ChannelError::Refused { .. } => ClientEvent::Refused,
        ChannelError::Refusal { why, .. } => ClientEvent::Rejected(why.clone()),
        ChannelError::Rejected { .. } | ChannelError::Unprotected(_) => {
            ClientEvent::Rejected(error.to_string())
        }
        other => ClientEvent::Unreachable(other.to_string()),
    }
}

/// Connects and greets, and says what it wants, and whether the log besides.
pub(super) async fn open(
    address: &Address,
    me: &Party,
    wants: Wants,
    log: bool,
) -> Result<(Frames, Writer, Peer)> {
    match tokio::time::timeout(CONNECT_WITHIN, greet(address, me, wants, log)).await {
        Ok(result) => result,
        Err(_) => Err(ChannelError::Timeout {
            address: address.clone(),
            after: CONNECT_WITHIN,
        }),
    }
}

async fn greet(
    address: &Address,
    me: &Party,
    wants: Wants,
    log: bool,
) -> Result<(Frames, Writer, Peer)> {
    let at = || address.clone();
    let connected = Socket::connect(address).await;
    let socket = connected.map_err(|source| match source.kind() {
        // A Unix socket whose file is gone has no listener either.
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => ChannelError::Refused {
            address: at(),
            source,
        },
        _ => ChannelError::Io {
            address: at(),
            source,
        },
    })?;
    let (reader, mut writer) = socket.call(me.tls.as_ref()).await?;
    let io = |source| match Rejection::of(&source) {
        // The agent looks at our certificate after we have looked at its own.
        Some(why) => ChannelError::Rejected { address: at(), why },
        None => ChannelError::Io {
            address: at(),
            source,
        },
    };
    let hello = Message::Hello {
        version: VERSION,
        me: me.me.clone(),
        wants,
        log,
    };
    send(&mut writer, &hello).await.map_err(io)?;
    let mut frames = Frames::new(reader);
    match frames.next().await.map_err(io)? {
        Some(Message::Welcome { me: peer }) => Ok((frames, writer, peer)),
        Some(Message::Refused { why }) => Err(ChannelError::Refusal { address: at(), why }),
        other => Err(ChannelError::Protocol {
            address: at(),
            what: format!("{other:?} in place of a welcome"),
        }),
    }
}

/// Asks the agent at `address` for one thing.
///
/// # Errors
/// [`ChannelError::Refusal`] with the agent's words if it will not; `Refused` if none listens.
pub async fn request(
    address: &Address,
    me: &Party,
    request: Request,
    within: Duration,
) -> Result<serde_json::Value> {
    let ask = async {
        let (mut frames, mut writer, _) = open(address, me, Wants::Answer, false).await?;
        let io = |source| ChannelError::Io {
            address: address.clone(),
            source,
        };
        send(&mut writer, &Message::Request(request))
            .await
            .map_err(io)?;
        match frames.next().await.map_err(io)? {
            Some(Message::Answer { answer }) => Ok(answer),
            Some(Message::Refused { why }) => Err(ChannelError::Refusal {
                address: address.clone(),
                why,
            }),
            other => Err(ChannelError::Protocol {
                address: address.clone(),
                what: format!("{other:?} in place of an answer"),
            }),
        }
    };
    match tokio::time::timeout(within, ask).await {
        Ok(result) => result,
        Err(_) => Err(ChannelError::Timeout {
            address: address.clone(),
            after: within,
        }),
    }
}
