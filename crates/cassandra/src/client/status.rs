//! How the cluster looks from here.

use std::time::Duration;

use dax::error::Result;
use dax::ids::{ReplicaId, ZoneId};
use dax::storage::{ReplicaStatus, Space};

use super::Inner;
use super::environment::Seen;

/// Cassandra does not tell how much room its nodes have; this says that nobody knows of a lack.
const FREE_BYTES: u64 = 1 << 50;

/// What is said of one copy.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    address: String,
    up: bool,
    round_trip: Option<Duration>,
}

impl Line {
    fn of(data_centre: &str, nodes: &[Seen], copies: usize, copy: usize) -> Line {
        if let (Some(node), true) = (nodes.get(copy), nodes.len() <= copies) {
            return Line {
                address: format!("{data_centre} {}", node.address),
                up: node.up,
                round_trip: node.round_trip,
            };
        }
        let up = nodes.iter().filter(|node| node.up).count();
        Line {
            address: format!("{data_centre} ({up} of {} nodes)", nodes.len()),
            up: up > copy,
            round_trip: nodes.iter().filter_map(|node| node.round_trip).min(),
        }
    }
}

impl Inner {
    /// One line for each copy, data centre by data centre. Where a data centre has more nodes than
    /// copies, the line says how many of its nodes answer, and how far away the nearest one is.
    pub(super) fn replicas(&self) -> Vec<ReplicaStatus> {
        let trouble = self.trouble.lock().clone();
        let pending_bytes = self.state.lock().writer.handle.pending.bytes() as u64;
        let mut lines = Vec::new();
        let named = self.replication.in_order(&self.config.data_centres);
        for (zone, (data_centre, copies)) in (0..).zip(named) {
            let nodes = self.environment.nodes_of(data_centre);
            for copy in 0..usize::from(copies) {
                let line = Line::of(data_centre, &nodes, usize::from(copies), copy);
                lines.push(ReplicaStatus {
                    replica: ReplicaId(lines.len() as u8),
                    zone: ZoneId(zone),
                    address: line.address,
                    store: None,
                    up: line.up,
                    round_trip: line.round_trip,
                    pending_bytes,
                    missed_blocks: 0,
                    scrub_wanted: false,
                    rebuilding: false,
                    // It keeps bytes, and reads none of them.
                    reads: Some(dax::forms::Forms::NEWEST),
                    full: false,
                    trouble: trouble.clone().filter(|_| !line.up),
                });
            }
        }
        lines
    }

    /// What the node that answers has of all volumes of the keyspace.
    pub(super) async fn space(&self) -> Result<Space> {
        let used_mib = self.environment.used_mib().await?;
        Ok(Space {
            used_bytes: used_mib.unwrap_or_default() << 20,
            free_bytes: FREE_BYTES,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(address: &str, round_trip_ms: Option<u64>) -> Seen {
        Seen {
            address: address.to_owned(),
            up: round_trip_ms.is_some(),
            round_trip: round_trip_ms.map(Duration::from_millis),
        }
    }

    #[test]
    fn a_node_that_is_a_copy_is_named() {
        let nodes = [node("a:9042", Some(3)), node("b:9042", None)];
        let first = Line::of("paris", &nodes, 2, 0);
        assert_eq!(first.address, "paris a:9042");
        assert_eq!(first.round_trip, Some(Duration::from_millis(3)));
        assert!(first.up && !Line::of("paris", &nodes, 2, 1).up);
    }

    #[test]
    fn more_nodes_than_copies_are_counted() {
        let nodes = [node("a", None), node("b", Some(4)), node("c", Some(2))];
        let line = Line::of("lyon", &nodes, 1, 0);
        assert_eq!(line.address, "lyon (2 of 3 nodes)");
        assert_eq!(
            (line.up, line.round_trip),
            (true, Some(Duration::from_millis(2)))
        );
    }

    #[test]
    fn a_data_centre_without_nodes_is_down() {
        let line = Line::of("nice", &[], 1, 0);
        assert_eq!(
            (line.address.as_str(), line.up),
            ("nice (0 of 0 nodes)", false)
        );
    }
}
