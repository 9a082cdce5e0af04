//! How far away each node of the cluster is, measured now and then.
//!
//! A node counts as up if the driver is connected to it and it answered the last question: a node that
//! hangs stays connected for a while.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use scylla::cluster::Node;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::statement::Consistency;
use scylla::statement::unprepared::Statement;
use tokio::time::Instant;

use super::Inner;

/// How often each node is asked.
const EVERY: Duration = Duration::from_secs(2);
/// A node that takes longer counts as down.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The round trip to each node that was asked, by address; none if it did not answer.
#[derive(Debug, Default)]
pub(super) struct RoundTrips(Mutex<HashMap<String, Option<Duration>>>);

/// A node as it looks from here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seen {
    pub address: String,
    pub up: bool,
    pub round_trip: Option<Duration>,
}

impl RoundTrips {
    fn of(&self, node: &Node) -> Seen {
        let address = node.address.to_string();
        let asked = self.0.lock().get(&address).copied();
        Seen {
            address,
            up: node.is_connected() && asked != Some(None),
            round_trip: asked.flatten(),
        }
    }
}

impl Inner {
    /// The nodes of a data centre, by address.
    pub(super) fn nodes_of(&self, data_centre: &str) -> Vec<Seen> {
        let cluster = self.session.get_cluster_state();
        let nodes = cluster.get_nodes_info().iter();
        let here = nodes.filter(|node| node.datacenter.as_deref() == Some(data_centre));
        let mut seen: Vec<Seen> = here.map(|node| self.round_trips.of(node)).collect();
        seen.sort();
        seen
    }

    /// Asks all nodes, again and again.
    pub(super) async fn keep_measuring(self: Arc<Self>) {
        loop {
            self.measure().await;
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn measure(&self) {
        let cluster = self.session.get_cluster_state();
        let nodes = cluster.get_nodes_info().iter();
        let copies = nodes.filter(|node| {
            let data_centre = node.datacenter.as_ref();
            data_centre.is_some_and(|name| self.replication.0.contains_key(name))
        });
        let asked =
            copies.map(async |node| (node.address.to_string(), self.round_trip(node).await));
        *self.round_trips.0.lock() = join_all(asked).await.into_iter().collect();
    }

    async fn round_trip(&self, node: &Arc<Node>) -> Option<Duration> {
        let mut question = Statement::new("SELECT key FROM system.local");
        let only = NodeIdentifier::Node(Arc::clone(node));
        question.set_load_balancing_policy(Some(SingleTargetLoadBalancingPolicy::new(only, None)));
        question.set_consistency(Consistency::One);
        let asked = Instant::now();
        let answer = tokio::time::timeout(TIMEOUT, self.session.query_unpaged(question, ()));
        answer.await.ok()?.ok()?;
        Some(asked.elapsed())
    }
}
