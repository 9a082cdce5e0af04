//! Connections to servers of one user to one database.
//!
//! Invariant: no more of them are open to one server than the limit, and who waits longest is served first.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::core::session::{Role, Server};
use crate::core::topology::{NodeName, Topology};
use protocol::frame::Refusal;
use protocol::scram::Keys;

use super::cluster::Cluster;
use super::dial::Dialer;
use super::login::{Conn, Login, LoginError, log_in};

/// How long to wait before an unreachable active is tried again, unless there is news of another.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// News of a takeover are there by then: a server that is another run of the active's than was told of is let in after that,
/// if nobody says what it is.
const NEWS_WITHIN: Duration = Duration::from_secs(3);

/// A connection that a client has.
pub struct Held {
    /// The connection.
    pub conn: Box<Conn>,
    /// Its share of the limit.
    permit: OwnedSemaphorePermit,
}

/// Which server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// Whoever is active.
    Active,
    /// A standby.
    Standby(NodeName),
}

/// Connections to one server that nobody has.
struct Shelf {
    // Boxed, as they go to clients and come back: a connection is large.
    #[allow(clippy::vec_box, reason = "moved in and out as they are")]
    idle: Mutex<Vec<Box<Conn>>>,
    share: Arc<Semaphore>,
    /// Permits to be given up when they come back: the limit was lowered while they were in use.
    excess: AtomicUsize,
}

/// What a pool goes by.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections to one server.
    pub size: usize,
    /// How long a client waits for one, when servers are well.
    pub wait: Duration,
    /// How long a client waits for a takeover.
    pub takeover_wait: Duration,
    /// How long a connection may be unused.
    pub idle: Option<Duration>,
    /// How long one may be there, unless it is in use.
    pub lifetime: Option<Duration>,
}

impl Limits {
    /// True if an unused connection has been there too long.
    fn end(&self, conn: &Conn, now: Instant) -> bool {
        let is_over =
            |limit: Option<Duration>, since| limit.is_some_and(|limit| now - since >= limit);
        is_over(self.idle, conn.used) || is_over(self.lifetime, conn.since)
    }
}

/// The connections of one user to one database.
pub struct Pool {
    login: Mutex<Login>,
    limits: Mutex<Limits>,
    cluster: Arc<Cluster>,
    dialer: Dialer,
    shelves: Mutex<HashMap<Place, Arc<Shelf>>>,
    /// Since when each client waits that does, in order.
    waits: Mutex<BTreeSet<(Instant, u64)>>,
    turns: AtomicU64,
}

/// A client that waits, however that ends.
struct Waiting<'a> {
    pool: &'a Pool,
    wait: (Instant, u64),
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.pool.waits.lock().remove(&self.wait);
    }
}

/// Counts of one pool, to show.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Whose.
    pub place: Place,
    /// In use.
    pub used: usize,
    /// Not in use.
    pub idle: usize,
}

impl Pool {
    /// An empty pool.
    pub fn new(login: Login, limits: Limits, cluster: Arc<Cluster>, dialer: Dialer) -> Pool {
        Pool {
            login: Mutex::new(login),
            limits: Mutex::new(limits),
            cluster,
            dialer,
            shelves: Mutex::default(),
            waits: Mutex::default(),
            turns: AtomicU64::new(0),
        }
    }

    /// Who logs in.
    pub fn login(&self) -> Login {
        self.login.lock().clone()
    }

    /// A login revealed these keys: they count from now on.
    pub fn use_keys(&self, keys: Option<Keys>) {
        if keys.is_some() {
            self.login.lock().keys = keys;
        }
    }

    fn shelf(&self, place: &Place) -> Arc<Shelf> {
        let mut shelves = self.shelves.lock();
        if let Some(shelf) = shelves.get(place) {
            return shelf.clone();
        }
        let shelf = Arc::new(Shelf {
            idle: Mutex::default(),
            share: Arc::new(Semaphore::new(self.limits.lock().size)),
            excess: AtomicUsize::new(0),
        });
        shelves.insert(place.clone(), shelf.clone());
        shelf
    }

    /// A connection that is there.
    pub fn try_take(&self, place: &Place, topology: &Topology) -> Option<Held> {
        let shelf = self.shelf(place);
        let permit = shelf.share.clone().try_acquire_owned().ok()?;
        let conn = shelf.take(place, topology)?;
        Some(Held { conn, permit })
    }

    /// A connection, when there is one. The second value tells that the server could not be had at once.
    ///
    /// # Errors
    /// What to tell the client.
    pub async fn take(self: Arc<Pool>, place: Place) -> Result<(Held, bool), Refusal> {
        let shelf = self.shelf(&place);
        let waiting = self.begin_to_wait();
        let share = shelf.share.clone().acquire_owned();
        let limits = self.limits.lock().clone();
        let permit = tokio::time::timeout(limits.wait, share).await;
        drop(waiting);
        let Ok(Ok(permit)) = permit else {
            return Err(all_in_use(&limits));
        };
        let since = Instant::now();
        let deadline = since + limits.takeover_wait;
        let mut waited = false;
        loop {
            let topology = self.cluster.topology();
            if let Some(conn) = shelf.take(&place, &topology) {
                return Ok((Held { conn, permit }, waited));
            }
            let believes = since.elapsed() >= NEWS_WITHIN;
            match self.connect(&place, &topology, believes).await {
                Ok(conn) => {
                    return Ok((
                        Held {
                            conn: Box::new(conn),
                            permit,
                        },
                        waited,
                    ));
                }
                Err(LoginError::Refused(words)) => return Err(refusal_of(&words)),
                Err(LoginError::Denied(refusal)) => return Err(refusal),
                Err(LoginError::Unavailable(why)) => {
                    let is_standby = matches!(place, Place::Standby(_));
                    if is_standby || Instant::now() >= deadline {
                        return Err(unavailable(&why));
                    }
                    tracing::debug!(why, "no connection to the active yet");
                }
            }
            waited = true;
            self.cluster.news_within(TRY_AGAIN).await;
        }
    }

    /// A new connection. A run of the active's server that was not told of is that of an epoch that was not heard of, most
    /// probably, and is let in only if the pool `believes` that there will be no news of it.
    async fn connect(
        &self,
        place: &Place,
        topology: &Topology,
        believes: bool,
    ) -> Result<Conn, LoginError> {
        let unknown = || LoginError::Unavailable("nobody is known to be active".to_owned());
        let (address, role) = match place {
            Place::Active => {
                let address = topology.active.clone().ok_or_else(unknown)?;
                (address, Role::Active(topology.epoch))
            }
            Place::Standby(name) => {
                let standby = topology.standby(name).ok_or_else(unknown)?;
                (standby.address.clone(), Role::Standby(name.clone()))
            }
        };
        let mut conn = log_in(&self.dialer, &address, &self.login(), role).await?;
        if *place == Place::Active
            && let Some(server) = &mut conn.server
        {
            let is_it = server.run.and_then(|run| topology.is_actives_run(run));
            if is_it == Some(false) && !believes {
                conn.close();
                let why = format!("{address} has been started again, and nobody said why yet");
                return Err(LoginError::Unavailable(why));
            }
            server.is_vouched_for = is_it == Some(true);
        }
        Ok(conn)
    }

    /// A client has done with a connection. Nobody else gets it before the client's cancel requests have been carried out.
    pub fn put(self: &Arc<Pool>, held: Held, server: Box<Server>) {
        match held.conn.cancels.are_settled() {
            Some(true) => self.shelve(held, server),
            Some(false) => held.conn.close(),
            None => {
                let pool = self.clone();
                tokio::spawn(async move {
                    match held.conn.cancels.settle().await {
                        true => pool.shelve(held, server),
                        false => held.conn.close(),
                    }
                });
            }
        }
    }

    fn shelve(&self, held: Held, server: Box<Server>) {
        let Held { mut conn, permit } = held;
        if !conn.input.is_empty() || conn.rest > 0 {
            return;
        }
        let place = match &server.role {
            Role::Active(_) => Place::Active,
            Role::Standby(name) => Place::Standby(name.clone()),
        };
        let shelf = self.shelf(&place);
        conn.used = Instant::now();
        if shelf.gives_up(permit) || self.limits.lock().end(&conn, conn.used) {
            conn.close();
            return;
        }
        conn.server = Some(server);
        shelf.idle.lock().push(conn);
    }

    /// Closes what has been unused, or there, for too long.
    pub fn close_old(&self) {
        let (limits, now) = (self.limits.lock().clone(), Instant::now());
        for shelf in self.shelves.lock().values() {
            let mut idle = shelf.idle.lock();
            let old = idle.extract_if(.., |conn| limits.end(conn, now));
            old.for_each(|conn| conn.close());
        }
    }

    fn begin_to_wait(&self) -> Waiting<'_> {
        let wait = (Instant::now(), self.turns.fetch_add(1, Ordering::Relaxed));
        self.waits.lock().insert(wait);
        Waiting { pool: self, wait }
    }

    /// How many clients wait.
    pub fn waiting(&self) -> usize {
        self.waits.lock().len()
    }

    /// How long the client has waited that waits longest.
    pub fn longest_wait(&self) -> Duration {
        let first = self.waits.lock().first().copied();
        first.map_or(Duration::ZERO, |(since, _)| since.elapsed())
    }

    /// True if it has connections to this server, in use or not.
    pub fn is_connected_to(&self, place: &Place) -> bool {
        let shelves = self.shelves.lock();
        shelves.get(place).is_some_and(|shelf| {
            shelf.share.available_permits() < self.limits.lock().size
                || !shelf.idle.lock().is_empty()
        })
    }

    /// True if it has any that nobody uses.
    pub fn has_connections(&self) -> bool {
        let shelves = self.shelves.lock();
        shelves.values().any(|shelf| !shelf.idle.lock().is_empty())
    }

    /// A connection of another process, in use.
    pub fn adopt(&self, conn: Conn) -> Held {
        let shelf = self.shelf(&Place::Active);
        let conn = Box::new(conn);
        loop {
            if let Ok(permit) = shelf.share.clone().try_acquire_owned() {
                return Held { conn, permit };
            }
            // It is there, whatever the limit says: one more, to be given up when it comes back.
            shelf.excess.fetch_add(1, Ordering::AcqRel);
            shelf.share.add_permits(1);
        }
    }

    /// All connections to the active that nobody uses.
    #[allow(clippy::vec_box, reason = "moved in and out as they are")]
    pub fn take_idle(&self) -> Vec<Box<Conn>> {
        std::mem::take(&mut *self.shelf(&Place::Active).idle.lock())
    }

    /// Closes what nobody uses.
    pub fn close_idle(&self) {
        for shelf in self.shelves.lock().values() {
            let idle = std::mem::take(&mut *shelf.idle.lock());
            idle.into_iter().for_each(|conn| conn.close());
        }
    }

    /// Counts, to show.
    pub fn show(&self) -> Vec<Shown> {
        let size = self.limits.lock().size;
        let shelves = self.shelves.lock();
        let shown = shelves.iter().map(|(place, shelf)| Shown {
            place: place.clone(),
            used: (size + shelf.excess.load(Ordering::Acquire))
                .saturating_sub(shelf.share.available_permits()),
            idle: shelf.idle.lock().len(),
        });
        shown.collect()
    }

    /// Goes by other limits from now on. Connections beyond them are closed when their clients have done with them.
    pub fn set_limits(&self, limits: Limits) {
        // Nobody may make a shelf in between: it would have the new size already.
        let shelves = self.shelves.lock();
        let size = limits.size;
        let before = std::mem::replace(&mut *self.limits.lock(), limits).size;
        for shelf in shelves.values() {
            shelf.resize(before, size);
        }
    }
}

fn all_in_use(limits: &Limits) -> Refusal {
    Refusal::error("53300", "all connections to the server are in use")
        .detail(format!(
            "{} connections of this user to this database are open, and none became free in {:?}.",
            limits.size, limits.wait
        ))
        .hint("Raise pool_size, or end transactions sooner.")
}

impl Shelf {
    /// Allows `size` connections instead of `before`.
    fn resize(&self, before: usize, size: usize) {
        let mut more = size.saturating_sub(before);
        while more > 0 && self.take_excess() {
            more -= 1;
        }
        self.share.add_permits(more);
        let fewer = before.saturating_sub(size);
        let in_use = fewer - self.share.forget_permits(fewer);
        self.excess.fetch_add(in_use, Ordering::AcqRel);
        let mut idle = self.idle.lock();
        let keep = idle.len().min(size);
        // The newest are used first.
        let surplus = idle.len() - keep;
        idle.drain(..surplus).for_each(|conn| conn.close());
    }

    /// A permit comes back. Whether it is one too many, which is then gone.
    fn gives_up(&self, permit: OwnedSemaphorePermit) -> bool {
        let is_excess = self.take_excess();
        if is_excess {
            permit.forget();
        }
        is_excess
    }

    fn take_excess(&self) -> bool {
        let fewer = |excess: usize| excess.checked_sub(1);
        self.excess
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer)
            .is_ok()
    }

    /// The connection used last that is still good.
    fn take(&self, place: &Place, topology: &Topology) -> Option<Box<Conn>> {
        loop {
            let mut conn = self.idle.lock().pop()?;
            let epoch = conn.server.as_ref().and_then(|server| server.epoch());
            let is_current = match place {
                Place::Active => epoch == Some(topology.epoch),
                Place::Standby(_) => true,
            };
            if is_current && conn.socket.is_quiet() {
                return Some(conn);
            }
        }
    }
}

fn unavailable(why: &str) -> Refusal {
    Refusal::error("57P03", "no server could be reached in time")
        .detail(format!("The last try: {why}."))
}

/// A server's own words end the client's connection as they would have ended a direct one.
pub(super) fn refusal_of(words: &[u8]) -> Refusal {
    let fields = protocol::frame::error_fields(words);
    let code = CODES
        .iter()
        .find(|code| code.as_bytes() == fields.code)
        .unwrap_or(&"08004");
    Refusal::fatal(code, String::from_utf8_lossy(fields.message))
}

/// What a server may say to a client that it does not let in.
const CODES: &[&str] = &[
    "0A000", "22023", "28000", "28P01", "3D000", "42501", "42602", "42704", "55000", "57P04",
    "08P01",
];
