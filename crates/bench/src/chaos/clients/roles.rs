//! Who serves just now, as the nodes' own PostgreSQL say.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::clients::session::connect_any;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::Config;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(200);
const WITHIN: Duration = Duration::from_secs(1);
/// What was said longer ago says nothing.
const FRESH: Duration = Duration::from_secs(2);

/// When each node last said that it accepts writes, and when it last said that it does not.
type RoleTimes = HashMap<String, (Option<Instant>, Option<Instant>)>;

/// Looks all the time until it is dropped.
pub(crate) struct Roles {
    said: Arc<Mutex<RoleTimes>>,
    _tasks: JoinSet<()>,
}

fn note(said: &Mutex<RoleTimes>, node: &str, follows: bool) {
    let now = Some(Instant::now());
    let mut said = said.lock();
    let entry = said.entry(node.to_owned()).or_default();
    match follows {
        true => entry.1 = now,
        false => entry.0 = now,
    }
}

impl Roles {
    /// Starts to ask every node.
    pub fn watch(nodes: Vec<(String, Config)>) -> Roles {
        let said: Arc<Mutex<RoleTimes>> = Arc::default();
        let mut tasks = JoinSet::new();
        for (node, server) in nodes {
            let said = said.clone();
            tasks.spawn(async move {
                loop {
                    if let Some(client) = connect_any(&server, WITHIN).await {
                        let ask = || client.query_one("SELECT pg_is_in_recovery()", &[]);
                        while let Ok(Ok(row)) = timeout(WITHIN, ask()).await {
                            note(&said, &node, row.get(0));
                            tokio::time::sleep(EVERY).await;
                        }
                    }
                    tokio::time::sleep(EVERY).await;
                }
            });
        }
        Roles {
            said,
            _tasks: tasks,
        }
    }

    /// Who said last that it accepts writes, if that is not long ago.
    pub fn active(&self) -> Option<String> {
        let said = self.said.lock();
        let fresh = said.iter().filter_map(|(node, (serves, follows))| {
            let serves = (*serves)?;
            (serves.elapsed() < FRESH && Some(serves) > *follows).then_some((serves, node))
        });
        fresh.max().map(|(_, node)| node.clone())
    }
}
