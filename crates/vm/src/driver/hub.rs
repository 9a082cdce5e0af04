//! What joins the guard with the zones, the other host, the network and the machine.
//!
//! Everything that happens is told to the guard under one lock, and what it wants done is begun under the same lock, so that it is begun in
//! the order in which it was wanted. Nothing waits while it is held.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as threads;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::config::{Config, Tuning};
use super::stats::Stats;
use super::wire::{Packet, Shape};
use super::zones::Zones;
use crate::clock::{boot, since_boot_ms};
use crate::core::{Effect, Guard, Message, Number, Record, Session, Who};
use crate::network::Switch;
use crate::standby::CheckpointPart;

/// Parts that wait to be sent.
const PARTS: usize = 16;

/// A question to the zones.
#[derive(Debug)]
pub enum Job {
    Read,
    Own,
    Write(Record),
}

/// What the thread of the machine is told.
#[derive(Debug)]
pub enum Order {
    /// In this life, as for [`Order::Sync`].
    Boot(u64),
    /// The disk of the standby in this life becomes durable, and changes no more before the machine runs.
    Sync(u64),
    Resume,
    Destroy,
    Open,
    Protect(Session),
    Unprotect,
    HandOver,
    GoOn,
    Prepare(Session),
    Part(Session, CheckpointPart, Vec<u8>),
    /// Look again: a checkpoint was confirmed.
    Wake,
    End,
}

/// To the other host, while there is a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    pub messages: mpsc::UnboundedSender<Message>,
    pub parts: mpsc::Sender<(Packet, Vec<u8>)>,
}

/// The other ends of [`Peer`].
pub struct ToSend {
    pub messages: mpsc::UnboundedReceiver<Message>,
    pub parts: mpsc::Receiver<(Packet, Vec<u8>)>,
}

impl Peer {
    pub fn new() -> (Peer, ToSend) {
        let (messages, messages_to_send) = mpsc::unbounded_channel();
        let (parts, parts_to_send) = mpsc::channel(PARTS);
        let to_send = ToSend {
            messages: messages_to_send,
            parts: parts_to_send,
        };
        (Peer { messages, parts }, to_send)
    }
}

/// Reads the configuration again; why it cannot be used.
pub type Reread = Box<dyn Fn() -> Result<Config, String> + Send + Sync>;

pub struct Hub {
    /// As the host was started; what can change is in [`tuning`](Hub::tuning).
    pub config: Config,
    tuning: Mutex<Tuning>,
    reread: Reread,
    /// What the machine is.
    pub shape: Shape,
    /// What runs the guest's code, and why.
    pub acceleration: crate::host::Acceleration,
    guard: Mutex<Guard>,
    jobs: mpsc::UnboundedSender<Job>,
    orders: threads::Sender<Order>,
    pub peer: Mutex<Option<Peer>>,
    pub switch: Arc<Switch>,
    pub zones: Arc<Zones>,
    pub stats: Mutex<Stats>,
    /// The last checkpoint that the standby of the present following confirmed.
    confirmed: AtomicU64,
    /// Bytes of parts that wait to be applied.
    pub queued: AtomicU64,
    pub trouble: Mutex<Option<String>>,
}

/// Drawn by the system.
pub fn new_life() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

impl Hub {
    pub fn new(
        config: Config,
        reread: Reread,
        name: String,
        shape: Shape,
        acceleration: crate::host::Acceleration,
        zones: Arc<Zones>,
        switch: Arc<Switch>,
    ) -> (
        Arc<Hub>,
        mpsc::UnboundedReceiver<Job>,
        threads::Receiver<Order>,
    ) {
        let (jobs, asked) = mpsc::unbounded_channel();
        let (orders, ordered) = threads::channel();
        let me = Who {
            name,
            life: new_life(),
        };
        // A host that cannot tell one boot from another takes each start for another one.
        let boot = boot().unwrap_or_else(|_| me.life.to_string());
        let hub = Arc::new(Hub {
            guard: Mutex::new(Guard::new(me, boot, config.rules(), since_boot_ms())),
            tuning: Mutex::new(config.tuning()),
            reread,
            config,
            shape,
            acceleration,
            jobs,
            orders,
            peer: Mutex::default(),
            switch,
            zones,
            stats: Mutex::default(),
            confirmed: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            trouble: Mutex::default(),
        });
        (hub, asked, ordered)
    }

    /// The settings that can change, as they are now.
    pub fn tuning(&self) -> Tuning {
        *self.tuning.lock()
    }

    /// Reads the configuration again. Whether something in it waits for the next start.
    pub fn reload(&self) -> Result<bool, String> {
        let read = (self.reread)()?;
        let tuning = read.tuning();
        // What is not read again holds for what is.
        self.config
            .clone()
            .tuned(tuning)
            .check()
            .map_err(|error| format!("{error} (silence changes with the next start only)"))?;
        *self.tuning.lock() = tuning;
        self.switch.protect(tuning.protection);
        self.stats.lock().begin_anew();
        tracing::info!(?tuning, "the settings are");
        let first = self.config.first;
        let now = self.config.clone().tuned(tuning);
        Ok(Config { first, ..read } != now)
    }

    /// Tells the guard what happened, and begins what it wants done.
    pub fn act<T>(&self, act: impl FnOnce(&mut Guard, &mut Vec<Effect>) -> T) -> T {
        let mut guard = self.guard.lock();
        guard.at(since_boot_ms());
        let before = guard.role().clone();
        let mut out = Vec::new();
        let told = act(&mut guard, &mut out);
        let after = guard.role();
        if std::mem::discriminant(&before) != std::mem::discriminant(after) {
            tracing::info!(?before, ?after, "the host's role changes");
        }
        for effect in out {
            self.begin(effect, &mut guard);
        }
        told
    }

    /// Looks at the guard.
    pub fn look<T>(&self, look: impl FnOnce(&Guard) -> T) -> T {
        look(&self.guard.lock())
    }

    /// Lets the guard see that time passes.
    pub fn tick(&self) {
        self.act(|guard, out| guard.tick(since_boot_ms(), out));
    }

    /// Tells operators what is wrong.
    pub fn report_trouble(&self, trouble: String) {
        tracing::error!("{trouble}");
        *self.trouble.lock() = Some(trouble);
    }

    /// Tells the thread of the machine.
    pub fn order(&self, order: Order) {
        // If the thread is gone, the process is ending.
        let _ = self.orders.send(order);
    }

    fn ask(&self, job: Job) {
        let _ = self.jobs.send(job);
    }

    /// The last checkpoint that was confirmed.
    pub fn confirmed(&self) -> Number {
        Number(self.confirmed.load(Ordering::Acquire))
    }

    /// A following begins.
    pub fn begin_following(&self) {
        self.confirmed.store(0, Ordering::Release);
    }

    fn begin(&self, effect: Effect, guard: &mut Guard) {
        match effect {
            Effect::Read => self.ask(Job::Read),
            Effect::Own => self.ask(Job::Own),
            Effect::Write(record) => self.ask(Job::Write(record)),
            Effect::Send(message) => {
                if let Some(peer) = &*self.peer.lock() {
                    let _ = peer.messages.send(message);
                }
            }
            Effect::Boot => self.order(Order::Boot(guard.me().life)),
            Effect::Sync => self.order(Order::Sync(guard.me().life)),
            Effect::Resume => self.order(Order::Resume),
            Effect::Destroy => {
                // The network is taken away before anything else happens.
                self.switch.detach();
                self.order(Order::Destroy);
            }
            Effect::Protect(session) => self.order(Order::Protect(session)),
            Effect::Unprotect => self.order(Order::Unprotect),
            Effect::Release { number, until_ms } => {
                self.confirmed.store(number.0, Ordering::Release);
                self.switch.release(number, Duration::from_millis(until_ms));
                self.stats.lock().held(number);
                self.order(Order::Wake);
            }
            Effect::Hold => self.switch.hold_all(),
            Effect::Open => self.order(Order::Open),
            Effect::HandOver => self.order(Order::HandOver),
            Effect::GoOn => self.order(Order::GoOn),
            Effect::Renew => guard.renewed(new_life()),
            Effect::Prepare(session) => self.order(Order::Prepare(session)),
        }
    }

    /// Sends a part of a checkpoint; waits for room. `false` if there is no connection any more.
    pub fn send_part(&self, session: &Session, part: CheckpointPart, bytes: Vec<u8>) -> bool {
        let parts = self.peer.lock().as_ref().map(|peer| peer.parts.clone());
        let packet = Packet::Part(session.clone(), part);
        parts.is_some_and(|parts| parts.blocking_send((packet, bytes)).is_ok())
    }
}
