//! Clients that append to lists and read them, in serializable transactions.
//!
//! Each transaction appends at least once, so that none is committed by a server that was replaced and does not know
//! it yet: to write it has to ask the zones. (What such a server shows to who only reads is the past, as on a standby.)

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cluster::clients::clock::Clock;
use cluster::clients::history::Outcome;
use cluster::clients::pace::Pace;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::{Client, Config};

use super::{Trouble, answer, writable};
use crate::chaos::check::lists::{Key, Lists, Op, Transaction};

/// Lists that are appended to at a time.
pub(crate) const OPEN: i64 = 8;
/// So many appends after it was opened, a list is left alone, and another is opened.
const APPENDS: i64 = 40;
/// Steps of a transaction, at most.
const STEPS: i64 = 4;

const READ: &str = "SELECT list FROM chaos_lists WHERE key = $1";
const APPEND: &str = "INSERT INTO chaos_lists VALUES ($1, ARRAY[$2::bigint])
     ON CONFLICT (key) DO UPDATE SET list = chaos_lists.list || excluded.list";

/// Which lists are open now: from this one on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Window(Arc<AtomicI64>);

impl Window {
    /// The first list that is open.
    pub fn first(&self) -> Key {
        self.0.load(Ordering::Relaxed) / APPENDS
    }

    fn appended(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Shared {
    server: Config,
    /// On purpose wrong: where reads are answered.
    reads: Option<Config>,
    clock: Clock,
    pace: Pace,
    window: Window,
    history: Mutex<Vec<Transaction>>,
}

/// Running clients.
pub(crate) struct Appenders {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Appenders {
    /// Starts so many, with so many transactions a second together. With `reads`, that server answers what they read:
    /// if it is a standby, the checker has something to find.
    pub fn start(
        server: Config,
        reads: Option<Config>,
        (clients, rate, seed): (i32, f64, u64),
        clock: Clock,
    ) -> Appenders {
        let (stop, stopped) = watch::channel(false);
        let shared = Arc::new(Shared {
            server,
            reads,
            clock,
            pace: Pace::new(Some(rate)),
            window: Window::default(),
            history: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        for client in 1..=clients {
            let random = SmallRng::seed_from_u64(seed ^ (client as u64) << 40);
            tasks.spawn(run(client, shared.clone(), stopped.clone(), random));
        }
        Appenders {
            shared,
            stop,
            tasks,
        }
    }

    /// Which lists are open.
    pub fn window(&self) -> Window {
        self.shared.window.clone()
    }

    /// Lets every client finish its transaction, and returns what all of them saw.
    pub async fn stop(mut self) -> Vec<Transaction> {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        std::mem::take(&mut *self.shared.history.lock())
    }
}

/// All lists as they are now.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn all(client: &Client) -> anyhow::Result<Lists> {
    let rows = client
        .query("SELECT key, list FROM chaos_lists", &[])
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

async fn run(client: i32, shared: Arc<Shared>, stop: watch::Receiver<bool>, mut random: SmallRng) {
    let mut n = 0;
    while let Some(session) = writable(&shared.server, &stop).await {
        let other = match &shared.reads {
            Some(server) => writable(server, &stop).await,
            None => None,
        };
        while !*stop.borrow() && !session.is_closed() {
            shared.pace.wait().await;
            n += 1;
            let began = shared.clock.now();
            let steps = draw((client, n), &shared.window, &mut random);
            let (outcome, ops) = transact(&session, other.as_ref(), steps).await;
            for op in &ops {
                if matches!(op, Op::Append(..)) {
                    shared.window.appended();
                }
            }
            shared.history.lock().push(Transaction {
                client,
                began,
                ended: shared.clock.now(),
                outcome,
                ops,
            });
            let rolled_back = session.batch_execute("ROLLBACK");
            if outcome == Outcome::Unknown
                || (outcome == Outcome::Refused && answer(rolled_back).await.is_err())
            {
                break;
            }
        }
    }
}

/// What a transaction shall do; reads have nothing in them yet.
fn draw((client, n): (i32, i64), window: &Window, random: &mut SmallRng) -> Vec<Op> {
    let steps = random.random_range(1..=STEPS);
    // One that appends for certain.
    let sure = random.random_range(0..steps);
    let first = window.first();
    (0..steps)
        .map(|step| {
            let key = first + random.random_range(0..OPEN);
            match step == sure || random.random_bool(0.3) {
                true => Op::Append(key, (i64::from(client) << 40) + n * STEPS + step),
                false => Op::Read(key, Vec::new()),
            }
        })
        .collect()
}

/// Does it; what became of it, and what it did.
async fn transact(session: &Client, other: Option<&Client>, steps: Vec<Op>) -> (Outcome, Vec<Op>) {
    let mut done = Vec::new();
    // An append that was sent may be in the database although its answer is not here: it counts as done.
    let appends = steps.iter().filter(|op| matches!(op, Op::Append(..)));
    let appends: Vec<Op> = appends.cloned().collect();
    let prepared = prepare(session, other, steps, &mut done).await;
    if prepared.is_err() {
        return (Outcome::Refused, appends);
    }
    match answer(session.batch_execute("COMMIT")).await {
        Ok(()) => (Outcome::Acknowledged, done),
        Err(trouble) => (trouble.of_commit(), done),
    }
}

/// Everything but COMMIT.
async fn prepare(
    session: &Client,
    other: Option<&Client>,
    steps: Vec<Op>,
    done: &mut Vec<Op>,
) -> Result<(), Trouble> {
    answer(session.batch_execute("BEGIN ISOLATION LEVEL SERIALIZABLE")).await?;
    for step in steps {
        match step {
            Op::Append(key, value) => {
                answer(session.execute(APPEND, &[&key, &value])).await?;
                done.push(Op::Append(key, value));
            }
            Op::Read(key, _) => {
                let reader = other.unwrap_or(session);
                let row = answer(reader.query_opt(READ, &[&key])).await?;
                let list = row.map(|row| row.get(0)).unwrap_or_default();
                done.push(Op::Read(key, list));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transaction_appends_and_no_value_comes_twice() {
        let (window, mut random) = (Window::default(), SmallRng::seed_from_u64(1));
        let mut values = std::collections::HashSet::new();
        for client in [1, 2] {
            for n in 1..500 {
                let steps = draw((client, n), &window, &mut random);
                let appended = steps.iter().filter_map(|op| match op {
                    Op::Append(_, value) => Some(*value),
                    Op::Read(..) => None,
                });
                let appended: Vec<i64> = appended.collect();
                assert!(!appended.is_empty());
                assert!(appended.iter().all(|value| values.insert(*value)));
            }
        }
    }
}
