//! What others need of a client's task: to wake it, to cancel its statement, to end it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::cancel::Target;
use super::dial::Dialer;

/// The cluster has changed.
pub const NEWS: u32 = 1;
/// The proxy lets nobody stay.
pub const SHUTDOWN: u32 = 2;
/// The operator ends this client's connection.
pub const KILL: u32 = 4;
/// Another process takes clients over.
pub const HANDOVER: u32 = 8;

/// A client, as others see it.
pub struct Handle {
    pub id: u32,
    /// Proves that a cancel request is the client's.
    secret: Box<[u8]>,
    pub user: String,
    pub database: String,
    /// Where it comes from, if over a network.
    pub peer: Option<IpAddr>,
    /// Since when.
    pub since: Instant,
    /// What it is doing: an index of [`STATES`].
    pub state: AtomicU32,
    /// Units answered.
    pub batches: AtomicU64,
    /// The hand-over in which it was asked to leave last.
    heard: AtomicU32,
    /// The client cannot be handed over.
    stays: AtomicBool,
    waker: AtomicWaker,
    pokes: AtomicU32,
    running_on: Mutex<Option<Target>>,
}

/// What [`Handle::state`] means.
pub const STATES: [&str; 4] = ["idle", "active", "waiting", "beginning"];
/// The client has nothing under way.
pub const IDLE: u32 = 0;
/// It has a transaction open on a server, or a statement under way there.
pub const TRANSACTION: u32 = 1;
/// It waits for a server, a version or the end of a hold, and no server has begun a transaction of it.
pub const WAITING: u32 = 2;
/// It has sent a part of what it is about to do.
pub const BEGINNING: u32 = 3;

impl Handle {
    fn new(arriving: Arriving) -> Handle {
        let now = Instant::now();
        Handle {
            id: arriving.id,
            secret: arriving.secret.into(),
            user: arriving.user,
            database: arriving.database,
            peer: arriving.peer,
            since: now.checked_sub(arriving.age).unwrap_or(now),
            state: AtomicU32::new(0),
            batches: AtomicU64::new(arriving.batches),
            heard: AtomicU32::new(0),
            stays: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            pokes: AtomicU32::new(0),
            running_on: Mutex::new(None),
        }
    }

    /// Tells the client's task of something.
    pub fn poke(&self, what: u32) {
        self.pokes.fetch_or(what, Ordering::AcqRel);
        self.waker.wake();
    }

    /// What the task was told since it last looked; it is woken when there is more.
    pub fn take_pokes(&self, cx: &std::task::Context<'_>) -> u32 {
        self.waker.register(cx.waker());
        self.pokes.swap(0, Ordering::AcqRel)
    }

    /// Where its statements run now.
    pub fn runs_on(&self, target: Option<Target>) {
        *self.running_on.lock() = target;
    }

    /// It was asked to leave in this hand-over, and can, or cannot.
    pub fn has_heard(&self, handover: u32, stays: bool) {
        self.stays.store(stays, Ordering::Release);
        self.heard.store(handover, Ordering::Release);
    }

    /// What a client needs to cancel a statement.
    pub fn secret(&self) -> &[u8] {
        &self.secret
    }
}

/// A client of another process.
pub struct Arriving {
    pub id: u32,
    /// What proves its cancel requests.
    pub secret: Vec<u8>,
    pub user: String,
    pub database: String,
    /// Where it comes from.
    pub peer: Option<IpAddr>,
    /// Since how long.
    pub age: Duration,
    /// Units answered.
    pub batches: u64,
}

/// All clients.
#[derive(Default)]
pub struct Handles {
    by_id: Mutex<HashMap<u32, Arc<Handle>>>,
    last: AtomicU32,
}

impl Handles {
    /// Another client. `secret_bytes` is 4 in protocol 3.0.
    pub fn enter(
        &self,
        secret_bytes: usize,
        user: &str,
        database: &str,
        peer: Option<IpAddr>,
    ) -> Result<Arc<Handle>, getrandom::Error> {
        let mut secret = vec![0; secret_bytes];
        getrandom::fill(&mut secret)?;
        let mut handle = Handle::new(Arriving {
            id: 0,
            secret,
            user: user.to_owned(),
            database: database.to_owned(),
            peer,
            age: Duration::ZERO,
            batches: 0,
        });
        let mut by_id = self.by_id.lock();
        loop {
            handle.id = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            if !by_id.contains_key(&handle.id) {
                break;
            }
        }
        let handle = Arc::new(handle);
        by_id.insert(handle.id, handle.clone());
        Ok(handle)
    }

    /// A client that keeps its number; `None` if somebody has it.
    pub fn adopt(&self, arriving: Arriving) -> Option<Arc<Handle>> {
        let mut by_id = self.by_id.lock();
        if by_id.contains_key(&arriving.id) {
            return None;
        }
        let handle = Arc::new(Handle::new(arriving));
        by_id.insert(handle.id, handle.clone());
        Some(handle)
    }

    /// The number that was given last.
    pub fn last_id(&self) -> u32 {
        self.last.load(Ordering::Relaxed)
    }

    /// The next client gets a number behind this one.
    pub fn begin_at(&self, last: u32) {
        self.last.store(last, Ordering::Relaxed);
    }

    /// True if everybody was asked to leave in this hand-over.
    pub fn have_heard(&self, handover: u32) -> bool {
        let by_id = self.by_id.lock();
        let mut all = by_id.values();
        all.all(|handle| handle.heard.load(Ordering::Acquire) == handover)
    }

    /// How many cannot leave.
    pub fn count_staying(&self) -> usize {
        let by_id = self.by_id.lock();
        let stays = |handle: &&Arc<Handle>| handle.stays.load(Ordering::Acquire);
        by_id.values().filter(stays).count()
    }

    /// Removes a client that is gone.
    pub fn leave(&self, handle: &Handle) {
        self.by_id.lock().remove(&handle.id);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_id.lock().len()
    }

    /// How many are in this state.
    pub fn count_in(&self, state: u32) -> usize {
        let by_id = self.by_id.lock();
        let is_in = |handle: &&Arc<Handle>| handle.state.load(Ordering::Acquire) == state;
        by_id.values().filter(is_in).count()
    }

    /// All of them, in the order they came.
    pub fn all(&self) -> Vec<Arc<Handle>> {
        let mut all: Vec<_> = self.by_id.lock().values().cloned().collect();
        all.sort_by_key(|handle| handle.id);
        all
    }

    /// Tells all of them.
    pub fn poke_all(&self, what: u32) {
        for handle in self.by_id.lock().values() {
            handle.poke(what);
        }
    }

    /// Cancels what client `id` runs, if `secret` is its own. Whether that client is here.
    pub async fn cancel(&self, dialer: &Dialer, id: u32, secret: &[u8]) -> bool {
        let handle = self.by_id.lock().get(&id).cloned();
        let Some(handle) = handle else {
            return false;
        };
        if *handle.secret != *secret {
            return true;
        }
        // As long as this lock is held the session is this client's.
        let request = handle.running_on.lock().as_ref().and_then(Target::begin);
        if let Some(request) = request {
            let dialer = dialer.clone();
            // Whoever asks may leave: what was sent is waited for all the same.
            let sending = tokio::spawn(async move { request.send(&dialer).await });
            let _ = sending.await;
        }
        true
    }
}
