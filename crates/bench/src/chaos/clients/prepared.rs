//! Clients that commit in two phases: prepare, wait a while, then commit or roll back, over another connection and
//! from another server if need be.

use std::sync::Arc;
use std::time::Duration;

use cluster::clients::pace::Pace;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::{Client, Config};

use super::{RETRY, Trouble, answer, writable};
use crate::chaos::check::prepared::{Decision, Id, Prepared};

/// PostgreSQL's undefined_object: no such prepared transaction.
const UNKNOWN_TO_THE_SERVER: &str = "42704";
/// What only the server that serves can do.
const PROOF: &str = "INSERT INTO chaos_proof VALUES (1)";
/// The longest that one waits for its decision, in milliseconds.
const WAIT_MS: u64 = 3_000;

struct Shared {
    server: Config,
    pace: Pace,
    history: Mutex<Vec<Prepared>>,
    /// Nobody ever tells these to stop: what was begun is finished.
    never: watch::Receiver<bool>,
    _never: watch::Sender<bool>,
}

/// Running clients.
pub(crate) struct Coordinators {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Coordinators {
    /// Starts so many, with so many transactions a second together.
    pub fn start(server: Config, clients: i32, rate: f64, seed: u64) -> Coordinators {
        let (stop, stopped) = watch::channel(false);
        let (_never, never) = watch::channel(false);
        let shared = Arc::new(Shared {
            server,
            pace: Pace::new(Some(rate)),
            history: Mutex::default(),
            never,
            _never,
        });
        let mut tasks = JoinSet::new();
        for client in 1..=clients {
            let random = SmallRng::seed_from_u64(seed ^ (client as u64) << 48);
            tasks.spawn(run(client, shared.clone(), stopped.clone(), random));
        }
        Coordinators {
            shared,
            stop,
            tasks,
        }
    }

    /// Lets every client decide what it prepared, and returns what they know.
    pub async fn stop(mut self) -> Vec<Prepared> {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        std::mem::take(&mut *self.shared.history.lock())
    }
}

fn name((client, n): Id) -> String {
    format!("chaos-{client}-{n}")
}

async fn run(client: i32, shared: Arc<Shared>, stop: watch::Receiver<bool>, mut random: SmallRng) {
    let mut n = 0;
    while let Some(session) = writable(&shared.server, &stop).await {
        while !*stop.borrow() && !session.is_closed() {
            shared.pace.wait().await;
            n += 1;
            if begin(&session, (client, n)).await.is_err() {
                break;
            }
            let prepare = format!("PREPARE TRANSACTION '{}'", name((client, n)));
            let told = answer(session.batch_execute(&prepare)).await.is_ok();
            let wait = Duration::from_millis(random.random_range(0..WAIT_MS));
            let decision = match told && random.random_bool(0.7) {
                true => Decision::Commit,
                false => Decision::Rollback,
            };
            tokio::time::sleep(wait).await;
            let prepared = decide(&shared, told, (client, n), decision).await;
            shared.history.lock().push(prepared);
            if !told {
                break;
            }
        }
    }
}

/// Everything but PREPARE: an error says that nothing is prepared.
async fn begin(session: &Client, (client, n): Id) -> Result<(), Trouble> {
    answer(session.batch_execute("BEGIN")).await?;
    let insert = "INSERT INTO chaos_prepared VALUES ($1, $2, 1), ($1, $2, 2)";
    answer(session.execute(insert, &[&client, &n])).await?;
    Ok(())
}

/// Asks for it, as often as needed, until a server says that it is done, or was before.
async fn decide(shared: &Shared, told: bool, id: Id, decision: Decision) -> Prepared {
    let mut prepared = Prepared {
        id,
        told,
        decision: Some(decision),
        vanished: false,
    };
    let words = match decision {
        Decision::Commit => format!("COMMIT PREPARED '{}'", name(id)),
        Decision::Rollback => format!("ROLLBACK PREPARED '{}'", name(id)),
    };
    let mut asked_before = false;
    while let Some(session) = writable(&shared.server, &shared.never).await {
        match answer(session.batch_execute(&words)).await {
            Ok(()) => break,
            Err(trouble) if trouble.code() == Some(UNKNOWN_TO_THE_SERVER) => {
                if asked_before {
                    break;
                }
                // A server that was replaced and does not know it yet knows nothing of what came after it.
                if answer(session.batch_execute(PROOF)).await.is_ok() {
                    match answer(session.batch_execute(&words)).await {
                        Ok(()) => break,
                        Err(trouble) if trouble.code() == Some(UNKNOWN_TO_THE_SERVER) => {
                            prepared.vanished = true;
                            break;
                        }
                        Err(_) => asked_before = true,
                    }
                }
            }
            // Whatever else was said: it may have been done before.
            Err(_) => asked_before = true,
        }
        tokio::time::sleep(RETRY).await;
    }
    prepared
}

/// What is left prepared of which clients do not know: a server may have prepared it after they had given up. Rolls it
/// back; fails if one is left that had been decided.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn sweep(client: &Client, history: &[Prepared]) -> anyhow::Result<Vec<Id>> {
    let rows = client
        .query("SELECT gid FROM pg_prepared_xacts", &[])
        .await?;
    let gids: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let mut decided = Vec::new();
    for gid in gids {
        let found = history.iter().find(|prepared| name(prepared.id) == gid);
        decided.extend(found.filter(|p| p.told).map(|p| p.id));
        client
            .batch_execute(&format!("ROLLBACK PREPARED '{gid}'"))
            .await?;
    }
    Ok(decided)
}

/// The rows that are there.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn all(client: &Client) -> anyhow::Result<Vec<Id>> {
    let rows = client
        .query("SELECT client, n FROM chaos_prepared", &[])
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}
