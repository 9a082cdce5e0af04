//! Connections to servers of one user to one database.
//!
//! Invariant: no more of them are open to one server than the limit, and who waits longest is served first. Limits that pools
//! share are kept by `quotas`.

mod shelf;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::core::quota::{Group, Owner};
use crate::core::session::{Role, Server};
use crate::core::topology::{Place, Topology};
use protocol::frame::Refusal;
use protocol::scram::Keys;

use super::cluster::Cluster;
use super::dial::Dialer;
use super::loads::{InUse, Loads};
use super::login::{Conn, Login, LoginError, log_in};
use super::quotas::{Got, Idle, Quotas, Share, Stocked};
use shelf::Shelf;

/// How long to wait before an unreachable active is tried again, unless there is news of another.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// News of a takeover are there by then: a server that is another run of the active's than was told of is let in after that,
/// if nobody says what it is.
const NEWS_WITHIN: Duration = Duration::from_secs(3);

/// A connection that a client has.
pub struct Held {
    pub conn: Box<Conn>,
    /// Its share of the limits of several pools.
    share: Share,
    /// Its share of the limit of its own.
    permit: OwnedSemaphorePermit,
    _in_use: InUse,
}

impl Held {
    fn new(stocked: Stocked, permit: OwnedSemaphorePermit, shelf: &Shelf) -> Held {
        let Stocked { conn, share } = stocked;
        Held {
            conn,
            share,
            permit,
            _in_use: InUse::new(&shelf.in_use),
        }
    }

    /// The connection, and what counts as long as it is there.
    pub fn into_parts(self) -> (Box<Conn>, Share) {
        (self.conn, self.share)
    }
}

/// Limits of a pool.
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

/// Parts of a proxy that all its pools share.
#[derive(Clone)]
pub struct Common {
    /// The cluster, as far as it is known.
    pub cluster: Arc<Cluster>,
    /// Connects to servers.
    pub dialer: Dialer,
    /// Limits of several pools.
    pub quotas: Arc<Quotas>,
    /// Connections that clients have.
    pub loads: Arc<Loads>,
}

/// The connections of one user to one database.
pub struct Pool {
    number: u64,
    login: Mutex<Login>,
    limits: Mutex<Limits>,
    common: Common,
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
    pub fn new(login: Login, limits: Limits, common: Common) -> Pool {
        Pool {
            number: common.quotas.number(),
            login: Mutex::new(login),
            limits: Mutex::new(limits),
            common,
            shelves: Mutex::default(),
            waits: Mutex::default(),
            turns: AtomicU64::new(0),
        }
    }

    /// The login of its connections.
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
        let owner = Arc::new({
            let login = self.login.lock();
            Owner {
                pool: self.number,
                place: place.clone(),
                database: login.name.as_str().into(),
                user: login.user.as_str().into(),
            }
        });
        let in_use = self.common.loads.counter(place);
        let size = self.limits.lock().size;
        let shelf = Arc::new(Shelf::new(owner.clone(), size, in_use));
        let idle = Arc::downgrade(&shelf);
        self.common.quotas.register(&owner, idle);
        shelves.insert(place.clone(), shelf.clone());
        shelf
    }

    /// A connection that is there.
    pub fn try_take(&self, place: &Place, topology: &Topology) -> Option<Held> {
        let shelf = self.shelf(place);
        let permit = shelf.share.clone().try_acquire_owned().ok()?;
        Some(Held::new(shelf.take(topology)?, permit, &shelf))
    }

    /// A connection, when there is one. The second value tells that the server could not be had at once.
    ///
    /// # Errors
    /// What to tell the client.
    pub async fn take(self: Arc<Pool>, place: Place) -> Result<(Held, bool), Refusal> {
        let shelf = self.shelf(&place);
        let limits = self.limits.lock().clone();
        let (permit, share) = match self.turn(&shelf, &limits).await? {
            (permit, Got::Stocked(stocked)) => {
                return Ok((Held::new(stocked, permit, &shelf), false));
            }
            (permit, Got::Share(share)) => (permit, share),
        };
        let since = Instant::now();
        let mut waited = false;
        loop {
            let topology = self.common.cluster.topology();
            if waited && let Some(stocked) = shelf.take(&topology) {
                return Ok((Held::new(stocked, permit, &shelf), waited));
            }
            let believes = since.elapsed() >= NEWS_WITHIN;
            match self.connect(&place, &topology, believes).await {
                Ok(conn) => {
                    let conn = Box::new(conn);
                    return Ok((Held::new(Stocked { conn, share }, permit, &shelf), waited));
                }
                Err(LoginError::Refused(words)) => return Err(refusal_of(&words)),
                Err(LoginError::Denied(refusal)) => return Err(refusal),
                Err(LoginError::Unavailable(why)) => {
                    let is_standby = matches!(place, Place::Standby(_));
                    if is_standby || since.elapsed() >= limits.takeover_wait {
                        return Err(unavailable(&why));
                    }
                    tracing::debug!(why, "no connection to the active yet");
                }
            }
            waited = true;
            self.common.cluster.news_within(TRY_AGAIN).await;
        }
    }

    /// Waits until a connection is there, or may be opened.
    async fn turn(
        &self,
        shelf: &Shelf,
        limits: &Limits,
    ) -> Result<(OwnedSemaphorePermit, Got), Refusal> {
        let _waiting = self.begin_to_wait();
        let until = Instant::now() + limits.wait;
        let share = shelf.share.clone().acquire_owned();
        let Ok(Ok(permit)) = tokio::time::timeout_at(until, share).await else {
            return Err(all_in_use(limits));
        };
        loop {
            if let Some(stocked) = shelf.take(&self.common.cluster.topology()) {
                return Ok((permit, Got::Stocked(stocked)));
            }
            match self.common.quotas.open(&shelf.owner, until).await {
                None => return Err(self.quota_is_full(&shelf.owner, limits)),
                Some(Got::Share(share)) => return Ok((permit, Got::Share(share))),
                Some(Got::Stocked(stocked)) => {
                    let topology = self.common.cluster.topology();
                    if let Some(stocked) = shelf.is_good(stocked, &topology) {
                        return Ok((permit, Got::Stocked(stocked)));
                    }
                }
            }
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
        let unknown = || LoginError::Unavailable("no node is known to be active".to_owned());
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
        let mut conn = log_in(&self.common.dialer, &address, &self.login(), role).await?;
        if *place == Place::Active
            && let Some(server) = &mut conn.server
        {
            let is_it = server.run.and_then(|run| topology.is_actives_run(run));
            if is_it == Some(false) && !believes {
                conn.close();
                let why = format!("{address} has restarted, and the reason is not known yet");
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
        let Held {
            mut conn,
            share,
            permit,
            ..
        } = held;
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
        shelf.put(Stocked { conn, share });
        self.common.quotas.offer(&shelf.owner, &*shelf);
    }

    /// Closes what has been unused, or there, for too long.
    pub fn close_old(&self) {
        let (limits, now) = (self.limits.lock().clone(), Instant::now());
        self.close_where(|conn| limits.end(conn, now));
    }

    /// Closes what nobody uses.
    pub fn close_idle(&self) {
        self.close_where(|_| true);
    }

    fn close_where(&self, is_to_go: impl Fn(&Conn) -> bool) {
        for shelf in self.shelves.lock().values() {
            let gone = shelf.remove(&is_to_go);
            gone.into_iter().for_each(Stocked::close);
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
        let size = self.limits.lock().size;
        let shelves = self.shelves.lock();
        let shelf = shelves.get(place);
        shelf.is_some_and(|shelf| shelf.used(size) > 0 || shelf.idle() > 0)
    }

    /// True if it has any that nobody uses.
    pub fn has_connections(&self) -> bool {
        let shelves = self.shelves.lock();
        shelves.values().any(|shelf| shelf.idle() > 0)
    }

    /// A connection of another process, in use.
    pub fn adopt(&self, conn: Conn) -> Held {
        let shelf = self.shelf(&Place::Active);
        let share = self.common.quotas.adopt(&shelf.owner);
        let conn = Box::new(conn);
        Held::new(Stocked { conn, share }, shelf.adopt(), &shelf)
    }

    /// All connections to the active that nobody uses.
    pub fn take_idle(&self) -> Vec<Stocked> {
        self.shelf(&Place::Active).remove(|_| true)
    }

    /// Counts, to show.
    pub fn show(&self) -> Vec<Shown> {
        let size = self.limits.lock().size;
        let shelves = self.shelves.lock();
        let shown = shelves.iter().map(|(place, shelf)| Shown {
            place: place.clone(),
            used: shelf.used(size),
            idle: shelf.idle(),
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
            let surplus = shelf.resize(before, size);
            surplus.into_iter().for_each(Stocked::close);
        }
    }

    fn quota_is_full(&self, owner: &Owner, limits: &Limits) -> Refusal {
        let mut key = "max_db_connections";
        let mut detail = String::new();
        for group in owner.groups() {
            let (most, open) = self.common.quotas.show(&group);
            let open = open.get(&owner.place).copied().unwrap_or(0);
            if most > 0 && open >= most {
                let whose = match group {
                    Group::Database(name) => format!("database \"{name}\""),
                    Group::User(name) => {
                        key = "max_user_connections";
                        format!("user \"{name}\"")
                    }
                };
                detail = format!(
                    "{open} connections of {whose} are open, and none became free in {:?}.",
                    limits.wait
                );
            }
        }
        Refusal::error("53300", "all connections to the server are in use")
            .detail(detail)
            .hint(format!("Raise {key}, or end transactions sooner."))
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
