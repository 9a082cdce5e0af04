//! How far away each node of the cluster is, measured now and then.
//!
//! A node counts as up if the driver is connected to it and it answered the last question: a node that
//! hangs stays connected for a while.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dax::error::Result;
use futures_util::future::join_all;
use parking_lot::Mutex;
use scylla::client::session::Session;
use scylla::cluster::Node;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::statement::Consistency;
use scylla::statement::unprepared::Statement;
use tokio::time::Instant;

use super::Driver;
use crate::client::environment::Seen;
use crate::connect::unexpected;
use crate::schema::Replication;

/// How often each node is asked.
const EVERY: Duration = Duration::from_secs(2);
/// A node that takes longer counts as down.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The round trip to each node that was asked, by address; none if it did not answer.
#[derive(Debug, Default)]
pub(super) struct Nodes(Mutex<HashMap<String, Option<Duration>>>);

impl Nodes {
    /// The nodes of a data centre, by address.
    pub fn of(&self, session: &Session, data_centre: &str) -> Vec<Seen> {
        let cluster = session.get_cluster_state();
        let nodes = cluster.get_nodes_info().iter();
        let here = nodes.filter(|node| node.datacenter.as_deref() == Some(data_centre));
        let mut seen: Vec<Seen> = here.map(|node| self.seen(node)).collect();
        seen.sort();
        seen
    }

    fn seen(&self, node: &Node) -> Seen {
        let address = node.address.to_string();
        let asked = self.0.lock().get(&address).copied();
        Seen {
            address,
            up: node.is_connected() && asked != Some(None),
            round_trip: asked.flatten(),
        }
    }

    /// Asks all nodes that have copies, again and again.
    pub async fn keep_measuring(&self, session: &Session, replication: &Replication) {
        loop {
            self.measure(session, replication).await;
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn measure(&self, session: &Session, replication: &Replication) {
        let cluster = session.get_cluster_state();
        let nodes = cluster.get_nodes_info().iter();
        let copies = nodes.filter(|node| {
            let data_centre = node.datacenter.as_ref();
            data_centre.is_some_and(|name| replication.0.contains_key(name))
        });
        let asked =
            copies.map(async |node| (node.address.to_string(), round_trip(session, node).await));
        *self.0.lock() = join_all(asked).await.into_iter().collect();
    }
}

async fn round_trip(session: &Session, node: &Arc<Node>) -> Option<Duration> {
    let mut question = Statement::new("SELECT key FROM system.local");
    let only = NodeIdentifier::Node(Arc::clone(node));
    question.set_load_balancing_policy(Some(SingleTargetLoadBalancingPolicy::new(only, None)));
    question.set_consistency(Consistency::One);
    let asked = Instant::now();
    let answer = tokio::time::timeout(TIMEOUT, session.query_unpaged(question, ()));
    answer.await.ok()?.ok()?;
    Some(asked.elapsed())
}

impl Driver {
    /// What the node that answers has of all volumes of the keyspace.
    pub(super) async fn select_used_mib(&self) -> Result<Option<u64>> {
        let text = "SELECT mebibytes FROM system_views.disk_usage WHERE keyspace_name = ? AND table_name = ?";
        let values = (self.keyspace.as_str(), "blocks");
        let used = match self.session.query_unpaged(text, values).await {
            Ok(result) => {
                let rows = result.into_rows_result().map_err(unexpected)?;
                rows.maybe_first_row::<(i64,)>().ok().flatten()
            }
            // Not every server has this table.
            Err(_) => None,
        };
        Ok(used.map(|(mib,)| mib.max(0) as u64))
    }
}
