//! A session on every node that reads all open lists at once, whatever that node is just then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cluster::clients::clock::Clock;
use cluster::clients::session::connect_any;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_postgres::{Client, Config};

use super::lists::{OPEN, Window};
use super::{CONNECT_WITHIN, RETRY, Trouble, answer};
use crate::chaos::check::lists::{Key, Value};
use crate::chaos::check::readers::Snapshot;

/// Between two reads.
const EVERY: Duration = Duration::from_millis(500);

/// Running readers; dropping them stops them.
pub(crate) struct Readers {
    snapshots: Arc<Mutex<Vec<Snapshot>>>,
    _tasks: JoinSet<()>,
}

impl Readers {
    /// Starts one for each node.
    pub fn start(nodes: Vec<(String, Config)>, window: &Window, clock: Clock) -> Readers {
        let snapshots: Arc<Mutex<Vec<Snapshot>>> = Arc::default();
        let sessions = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for (node, server) in nodes {
            let (snapshots, sessions) = (snapshots.clone(), sessions.clone());
            let window = window.clone();
            tasks.spawn(async move {
                loop {
                    if let Some(client) = connect_any(&server, CONNECT_WITHIN).await {
                        let session = sessions.fetch_add(1, Ordering::Relaxed);
                        while let Ok((lists, sum)) = read(&client, window.first()).await {
                            snapshots.lock().push(Snapshot {
                                session,
                                node: node.clone(),
                                at: clock.now(),
                                lists,
                                sum,
                            });
                            tokio::time::sleep(EVERY).await;
                        }
                    }
                    tokio::time::sleep(RETRY).await;
                }
            });
        }
        Readers {
            snapshots,
            _tasks: tasks,
        }
    }

    /// What was read so far.
    pub fn take(&self) -> Vec<Snapshot> {
        std::mem::take(&mut *self.snapshots.lock())
    }
}

/// The open lists, and by how much the balances of tellers and branches differ, in one snapshot.
async fn read(client: &Client, first: Key) -> Result<(Vec<(Key, Vec<Value>)>, i64), Trouble> {
    answer(client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")).await?;
    let lists = lists(client, first).await?;
    let sums = "SELECT (SELECT coalesce(sum(tbalance), 0) FROM pgbench_tellers)::bigint
                     - (SELECT coalesce(sum(bbalance), 0) FROM pgbench_branches)::bigint";
    let sum = answer(client.query_one(sums, &[])).await?.get(0);
    answer(client.batch_execute("COMMIT")).await?;
    Ok((lists, sum))
}

/// The open lists, by one statement.
pub(super) async fn lists(client: &Client, first: Key) -> Result<Vec<(Key, Vec<Value>)>, Trouble> {
    let lists = "SELECT key, list FROM chaos_lists WHERE key >= $1 AND key < $2";
    let rows = answer(client.query(lists, &[&first, &(first + OPEN)])).await?;
    let mut lists: Vec<(Key, Vec<Value>)> =
        rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    // A list that is not there is an empty one.
    for key in first..first + OPEN {
        if lists.iter().all(|(there, _)| *there != key) {
            lists.push((key, Vec::new()));
        }
    }
    Ok(lists)
}
