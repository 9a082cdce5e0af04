//! Joins the core to sockets, callers and time: a lock around the core, its effects carried out at
//! once by whoever caused them.
//!
//! Invariant: effects are carried out under the lock, in order, and frames are queued there, so that they leave in the
//! order in which the core numbered them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};

use super::core::{Advice, Arrival, Call, Core, Effect, OpId, Output, Time};
use super::greeting::Introduction;
use super::outbox::{Line, Outbox};
use super::stream::Writer;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlockKey, Generation, ReplicaId, StoreId, Version};
use crate::storage::{Block, VolumeSettings};
use crate::wire::{Request, Response};
use crate::writer::differences::Contents;

/// Memory that heads of frames are cut from.
const SCRATCH_BYTES: usize = 16 << 10;

pub(super) struct Driver {
    pub introduction: Introduction,
    settings: VolumeSettings,
    started: Instant,
    inner: Mutex<Inner>,
    fenced: watch::Sender<bool>,
}

struct Inner {
    core: Core,
    waiters: HashMap<OpId, oneshot::Sender<Result<Output>>>,
    links: HashMap<ReplicaId, Link>,
    connections: u64,
    /// The number of the dial that is wanted for each replica.
    dials: HashMap<ReplicaId, u64>,
    dialer: UnboundedSender<Dial>,
    scratch: BytesMut,
}

/// A replica to be kept connected, until the driver wants it otherwise.
pub(super) struct Dial {
    pub replica: ReplicaId,
    pub address: String,
    /// Tells it from later ones for the replica.
    pub number: u64,
}

/// A connection that stands.
struct Link {
    connection: u64,
    outbox: Outbox,
}

impl Driver {
    /// A driver, and what it wants to be connected.
    pub fn new(core: Core, introduction: Introduction) -> (Driver, UnboundedReceiver<Dial>) {
        let (dialer, dials) = unbounded_channel();
        let driver = Driver {
            introduction,
            settings: core.settings().clone(),
            started: Instant::now(),
            inner: Mutex::new(Inner {
                core,
                waiters: HashMap::new(),
                links: HashMap::new(),
                connections: 0,
                dials: HashMap::new(),
                dialer,
                scratch: BytesMut::with_capacity(SCRATCH_BYTES),
            }),
            fenced: watch::Sender::new(false),
        };
        (driver, dials)
    }

    pub fn settings(&self) -> &VolumeSettings {
        &self.settings
    }

    fn now(&self) -> Time {
        self.started.elapsed()
    }

    /// Looks at the core.
    pub fn peek<T>(&self, look: impl FnOnce(&Core) -> T) -> T {
        look(&self.inner.lock().core)
    }

    /// Changes the core and carries out what follows.
    fn change<T>(&self, change: impl FnOnce(&mut Inner, Time) -> T) -> T {
        let now = self.now();
        let mut inner = self.inner.lock();
        let result = change(&mut inner, now);
        let flushes = inner.carry_out(&self.fenced);
        drop(inner);
        flushes.iter().for_each(|line| line.send());
        result
    }

    pub fn write(
        &self,
        key: BlockKey,
        generation: Generation,
        contents: Contents,
    ) -> Result<Version> {
        self.change(|i, _| i.core.write(key, generation, contents))
    }

    pub fn next_version(&self) -> Result<Version> {
        self.change(|i, _| i.core.next_version())
    }

    /// True if a write of so many bytes may go ahead at once.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.change(|i, _| !i.core.is_fenced() && i.core.has_room(bytes))
    }

    /// The answer to a read that needs no replica.
    pub fn read_at_once(&self, key: BlockKey, up_to: Generation) -> Option<Option<Block>> {
        self.change(|i, _| i.core.read_at_once(key, up_to))
    }

    /// Runs an operation to its end. Dropping the future cancels it.
    pub async fn call(&self, call: Call) -> Result<Output> {
        let (sender, receiver) = oneshot::channel();
        let op = self.change(|i, now| {
            let op = i.core.start(now, call);
            i.waiters.insert(op, sender);
            op
        });
        let guard = Cancel { driver: self, op };
        let result = receiver.await;
        std::mem::forget(guard);
        result.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "the client is closing")))
    }

    /// A connection stands: gives its number and what has to be [transmitted](super::outbox::transmit) on it.
    ///
    /// # Errors
    /// As [`Core::replica_up`].
    pub fn replica_up(
        &self,
        replica: ReplicaId,
        arrival: &Arrival,
        writer: Writer,
    ) -> Result<(u64, Arc<Line>)> {
        let (outbox, line) = Outbox::new(writer);
        let connection = self.change(|i, now| {
            i.core.replica_up(now, replica, arrival)?;
            i.connections += 1;
            let connection = i.connections;
            i.links.insert(replica, Link { connection, outbox });
            Ok(connection)
        })?;
        Ok((connection, line))
    }

    pub fn replica_down(&self, replica: ReplicaId, connection: u64, why: &str) {
        self.change(|i, now| {
            if i.is_current(replica, connection) {
                i.links.remove(&replica);
                i.core.replica_down(now, replica, why.to_owned());
            }
        });
    }

    /// What to do about a store that does not know the volume; see [`Core::advise`].
    pub fn advise(&self, replica: ReplicaId, store: Option<StoreId>) -> Advice {
        self.change(|i, now| i.core.advise(now, replica, store))
    }

    /// Carries out what the core wants before anything has happened.
    pub fn begin(&self) {
        self.change(|_, _| ());
    }

    /// True if a connection is still wanted as it was when it had this number.
    pub fn is_dialed(&self, replica: ReplicaId, dial: u64) -> bool {
        self.inner.lock().dials.get(&replica) == Some(&dial)
    }

    pub fn replica_trouble(&self, replica: ReplicaId, why: String) {
        self.change(|i, _| i.core.replica_trouble(replica, why));
    }

    pub fn message(&self, replica: ReplicaId, connection: u64, id: u64, response: Response) {
        self.change(|i, now| {
            if i.is_current(replica, connection) {
                i.core.message(now, replica, id, response);
            }
        });
    }

    pub fn tick(&self) {
        self.change(|i, now| i.core.tick(now));
    }

    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        let inner = self.inner.lock();
        inner.waiters.is_empty() && inner.core.is_idle()
    }

    pub async fn fenced(&self) {
        let mut fenced = self.fenced.subscribe();
        // The sender lives as long as `self`.
        let _ = fenced.wait_for(|fenced| *fenced).await;
    }
}

impl Inner {
    fn is_current(&self, replica: ReplicaId, connection: u64) -> bool {
        let link = self.links.get(&replica);
        link.is_some_and(|l| l.connection == connection)
    }

    /// Gives the connections that a flush was queued on: somebody waits for it, so the caller sends it, outside of the
    /// lock.
    fn carry_out(&mut self, fenced: &watch::Sender<bool>) -> Vec<Arc<Line>> {
        let Inner {
            core,
            waiters,
            links,
            scratch,
            dials,
            dialer,
            connections,
        } = self;
        // Whom something was queued for, and whether a flush was.
        let mut queued: Vec<(ReplicaId, bool)> = Vec::new();
        for effect in core.effects() {
            match effect {
                Effect::Send {
                    replica,
                    id,
                    request,
                } => {
                    if let Some(link) = links.get(&replica) {
                        // A connection that is going down loses frames; its end tells the core.
                        link.outbox.queue(request.encode(id, scratch));
                        let flush = matches!(request, Request::Flush);
                        match queued.iter_mut().find(|(other, _)| *other == replica) {
                            Some((_, flushed)) => *flushed |= flush,
                            None => queued.push((replica, flush)),
                        }
                    }
                }
                Effect::Disconnect { replica, why } => {
                    tracing::debug!(%replica, why, "giving the connection up");
                    if let Some(link) = links.remove(&replica) {
                        link.outbox.cut();
                    }
                }
                Effect::Dial { replica, address } => {
                    *connections += 1;
                    let number = *connections;
                    dials.insert(replica, number);
                    // Who dials ends only with the client.
                    let _ = dialer.send(Dial {
                        replica,
                        address,
                        number,
                    });
                }
                Effect::HangUp { replica } => {
                    links.remove(&replica);
                    dials.remove(&replica);
                }
                Effect::Done { op, result } => {
                    match (waiters.remove(&op), result) {
                        // Nobody waits: the caller went away.
                        (Some(waiter), result) => drop(waiter.send(result)),
                        (None, Err(error)) if error.kind() == ErrorKind::Corrupt => {
                            tracing::error!(
                                %error,
                                "a zone cannot be given its copy of a block: the index or table that it belongs to \
                                 has to be removed or recreated"
                            )
                        }
                        (None, _) => {}
                    }
                }
                Effect::Fenced { why } => {
                    tracing::warn!(why, "this writer has stopped");
                    fenced.send_replace(true);
                }
            }
        }
        let mut flushes = Vec::new();
        for (replica, flush) in queued {
            match links.get(&replica) {
                Some(link) if flush => flushes.push(link.outbox.line()),
                Some(link) => link.outbox.leave_to_task(),
                None => {}
            }
        }
        flushes
    }
}

/// Withdraws an operation whose caller went away.
struct Cancel<'a> {
    driver: &'a Driver,
    op: OpId,
}

impl Drop for Cancel<'_> {
    fn drop(&mut self) {
        let mut inner = self.driver.inner.lock();
        inner.core.cancel(self.op);
        inner.waiters.remove(&self.op);
    }
}
