//! The clients: concurrent transactions, by default TPC-B-like as pgbench's, against whoever is active.
//!
//! Invariant: each transaction also writes `(client, n)` into a ledger, `n` is never used twice, and
//! what the client was told is recorded in a [`History`]. Clients know nothing of failover: they
//! have a connection string with all nodes and `target_session_attrs=read-write`, and connect again
//! when their connection breaks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::clock::Clock;
use super::history::{Attempt, History, Outcome};
use super::pace::Pace;
use super::session::{Session, each_server};
use super::work::Work;

/// In place of the SQLSTATE of an error that is none of a server's.
pub const NO_ANSWER: &str = "no answer";

/// How many clients do what.
#[derive(Debug, Clone)]
pub struct Options {
    /// Concurrent clients.
    pub clients: u16,
    /// pgbench's scale: 100,000 accounts, 10 tellers, one branch each.
    pub scale: u32,
    /// Decides which rows they touch.
    pub seed: u64,
    /// Pause before another try to connect.
    pub retry: Duration,
    /// A client gives up on an answer after this and connects again.
    pub timeout: Duration,
    /// A client tries the next server after this (libpq's `connect_timeout`).
    pub connect_within: Duration,
    /// Transactions a second of all clients together, if limited.
    pub rate: Option<f64>,
    /// One of so many clients connects for each of its transactions. A login costs as much as several transactions.
    pub connects: Option<u16>,
    /// Each client's transactions are numbered from the next one on: two loads of the same tables must
    /// not use the same numbers.
    pub numbered_after: i64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            clients: 8,
            scale: 10,
            seed: 1,
            retry: Duration::from_millis(25),
            timeout: Duration::from_secs(30),
            connect_within: Duration::from_secs(3),
            rate: None,
            connects: None,
            numbered_after: 0,
        }
    }
}

/// What the clients share while they run.
#[derive(Debug)]
struct Shared {
    server: tokio_postgres::Config,
    options: Options,
    pace: Pace,
    clock: Clock,
    attempts: Mutex<Vec<Attempt>>,
    acknowledged: AtomicU64,
    trouble: Mutex<Option<String>>,
    errors: Mutex<BTreeMap<String, u64>>,
}

/// Why a server did not do what it was asked for.
struct Failure {
    text: String,
    /// Its SQLSTATE, if the server answered.
    code: Option<String>,
}

impl Failure {
    /// True if the server said that the transaction was rolled back (class 40).
    fn says_rolled_back(&self) -> bool {
        self.code
            .as_ref()
            .is_some_and(|code| code.starts_with("40"))
    }
}

impl Shared {
    /// True if this client connects for each of its transactions.
    fn connects(&self, client: i32) -> bool {
        let each = self.options.connects;
        each.is_some_and(|each| client % i32::from(each) == 0)
    }

    fn note_failure(&self, failure: Failure) {
        let code = failure.code.unwrap_or_else(|| NO_ANSWER.to_owned());
        *self.errors.lock().entry(code).or_default() += 1;
        *self.trouble.lock() = Some(failure.text);
    }

    fn note(&self, attempt: Attempt) {
        if attempt.outcome == Outcome::Acknowledged {
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        self.attempts.lock().push(attempt);
    }
}

/// Running clients. Dropping it stops them at once.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    clients: JoinSet<()>,
}

impl Load {
    /// Starts clients of pgbench's transactions. `server` names all nodes; the tables must exist
    /// ([`super::schema`]).
    pub fn start(server: tokio_postgres::Config, options: Options, clock: Clock) -> Load {
        Load::of::<Session>(server, options, clock)
    }

    /// The same with transactions of another kind.
    pub fn of<W: Work>(server: tokio_postgres::Config, options: Options, clock: Clock) -> Load {
        let (stop, stopped) = watch::channel(false);
        let shared = Arc::new(Shared {
            server,
            clock,
            pace: Pace::new(options.rate),
            attempts: Mutex::new(Vec::new()),
            acknowledged: AtomicU64::new(0),
            trouble: Mutex::new(None),
            errors: Mutex::default(),
            options,
        });
        let mut clients = JoinSet::new();
        for client in 1..=i32::from(shared.options.clients) {
            clients.spawn(run_client::<W>(client, shared.clone(), stopped.clone()));
        }
        Load {
            shared,
            stop,
            clients,
        }
    }

    /// Commits acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits until so many commits are acknowledged.
    ///
    /// # Errors
    /// They are not in time.
    pub async fn wait_acknowledged(&self, goal: u64, within: Duration) -> anyhow::Result<()> {
        let wait = async {
            while self.acknowledged() < goal {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(within, wait)
            .await
            .with_context(|| format!("no commits; a client's last words: {:?}", self.trouble()))
    }

    /// Tells the same to somebody else, also after the load has ended.
    pub fn counter(&self) -> Counter {
        Counter(self.shared.clone())
    }

    /// Why a client last lost its connection or could not get one.
    pub fn trouble(&self) -> Option<String> {
        self.shared.trouble.lock().clone()
    }

    /// How often transactions failed, by the SQLSTATE that the client was told; [`NO_ANSWER`] if the connection broke.
    pub fn errors(&self) -> BTreeMap<String, u64> {
        self.shared.errors.lock().clone()
    }

    /// What was tried so far.
    pub fn history(&self) -> History {
        History::new(self.shared.attempts.lock().clone())
    }

    /// Lets every client finish its transaction, and returns what all of them saw.
    pub async fn stop(mut self) -> History {
        self.stop.send_replace(true);
        while self.clients.join_next().await.is_some() {}
        self.history()
    }
}

/// See [`Load::counter`].
#[derive(Debug, Clone)]
pub struct Counter(Arc<Shared>);

impl Counter {
    /// Commits acknowledged so far.
    pub fn get(&self) -> u64 {
        self.0.acknowledged.load(Ordering::Relaxed)
    }
}

/// One client, until it is told to stop.
async fn run_client<W: Work>(client: i32, shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let mut random = SmallRng::seed_from_u64(shared.options.seed ^ (client as u64) << 32);
    let mut n = shared.options.numbered_after;
    while !*stop.borrow() {
        // Connecting may take long while nobody is active; nothing is at stake, so just let go.
        let connected = tokio::select! {
            connected = open_any::<W>(&shared) => connected,
            _ = stop.changed() => return,
        };
        match connected {
            Ok(session) => use_session(client, &mut n, &session, &shared, &stop, &mut random).await,
            Err(error) => {
                *shared.trouble.lock() = Some(error);
                tokio::time::sleep(shared.options.retry).await;
            }
        }
    }
}

/// Tries each server in turn, as libpq does. A machine that hangs takes connections and says nothing,
/// so the time for a server covers all of it, not only TCP's part.
async fn open_any<W: Work>(shared: &Shared) -> Result<W, String> {
    let mut trouble = "no server is named".to_owned();
    for server in each_server(&shared.server) {
        match failure_of(timeout(shared.options.connect_within, W::open(&server)).await) {
            Ok(session) => return Ok(session),
            Err(failure) => trouble = failure.text,
        }
    }
    Err(trouble)
}

/// Runs transactions until one fails or the client is told to stop.
async fn use_session<W: Work>(
    client: i32,
    n: &mut i64,
    session: &W,
    shared: &Shared,
    stop: &watch::Receiver<bool>,
    random: &mut SmallRng,
) {
    while !*stop.borrow() {
        shared.pace.wait().await;
        *n += 1;
        let began = shared.clock.now();
        let outcome = attempt(session, (client, *n), shared, random).await;
        shared.note(Attempt {
            client,
            n: *n,
            outcome,
            began,
            ended: shared.clock.now(),
        });
        if outcome != Outcome::Acknowledged || shared.connects(client) {
            return;
        }
    }
}

/// One transaction: everything but COMMIT first, so that its failure means "not committed".
async fn attempt<W: Work>(
    session: &W,
    (client, n): (i32, i64),
    shared: &Shared,
    random: &mut SmallRng,
) -> Outcome {
    let limit = shared.options.timeout;
    let scale = shared.options.scale;
    let done = timeout(limit, session.prepare_commit(client, n, scale, random)).await;
    if let Err(failure) = failure_of(done) {
        shared.note_failure(failure);
        return Outcome::Refused;
    }
    match failure_of(timeout(limit, session.commit()).await) {
        Ok(()) => Outcome::Acknowledged,
        Err(failure) => {
            let outcome = match failure.says_rolled_back() {
                true => Outcome::Refused,
                false => Outcome::Unknown,
            };
            shared.note_failure(failure);
            outcome
        }
    }
}

fn failure_of<T>(
    answer: Result<Result<T, tokio_postgres::Error>, tokio::time::error::Elapsed>,
) -> Result<T, Failure> {
    match answer {
        Ok(answer) => answer.map_err(|error| Failure {
            code: error.code().map(|code| code.code().to_owned()),
            text: error.to_string(),
        }),
        Err(_) => Err(Failure {
            text: "no answer in time".to_owned(),
            code: None,
        }),
    }
}
