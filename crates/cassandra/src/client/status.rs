//! How the cluster looks from here.

use dax::error::Result;
use dax::ids::{ReplicaId, ZoneId};
use dax::storage::{ReplicaStatus, Space};

use super::Inner;
use crate::connect::unexpected;

/// Cassandra does not tell how much room its nodes have; this says that nobody knows of a lack.
const FREE_BYTES: u64 = 1 << 50;

impl Inner {
    /// One line for each copy, data centre by data centre. Where a data centre has more nodes than
    /// copies, the line says how many of its nodes are connected.
    pub(super) fn replicas(&self) -> Vec<ReplicaStatus> {
        let cluster = self.session.get_cluster_state();
        let trouble = self.trouble.lock().clone();
        let pending_bytes = self.state.lock().writer.pending_bytes() as u64;
        let mut lines = Vec::new();
        for (zone, (data_centre, copies)) in (0..).zip(&self.replication.0) {
            let nodes = cluster.get_nodes_info().iter();
            let here = nodes.filter(|node| node.datacenter.as_ref() == Some(data_centre));
            let mut nodes: Vec<(String, bool)> = here
                .map(|node| (node.address.to_string(), node.is_connected()))
                .collect();
            nodes.sort();
            let up = nodes.iter().filter(|(_, up)| *up).count();
            for copy in 0..usize::from(*copies) {
                let alone = nodes
                    .get(copy)
                    .filter(|_| nodes.len() <= usize::from(*copies));
                let (address, is_up) = match alone {
                    Some((address, is_up)) => (format!("{data_centre} {address}"), *is_up),
                    None => (
                        format!("{data_centre} ({up} of {} nodes)", nodes.len()),
                        up > copy,
                    ),
                };
                lines.push(ReplicaStatus {
                    replica: ReplicaId(lines.len() as u8),
                    zone: ZoneId(zone),
                    address,
                    up: is_up,
                    round_trip: None,
                    pending_bytes,
                    missed_blocks: 0,
                    scrub_wanted: false,
                    rebuilding: false,
                    trouble: trouble.clone().filter(|_| !is_up),
                });
            }
        }
        lines
    }

    /// What the node that answers has of all volumes of the keyspace.
    pub(super) async fn space(&self) -> Result<Space> {
        let text = "SELECT mebibytes FROM system_views.disk_usage WHERE keyspace_name = ? AND table_name = ?";
        let values = (self.config.keyspace.as_str(), "blocks");
        let used_mib = match self.session.query_unpaged(text, values).await {
            Ok(result) => {
                let rows = result.into_rows_result().map_err(unexpected)?;
                rows.maybe_first_row::<(i64,)>().ok().flatten()
            }
            // Not every server has this table.
            Err(_) => None,
        };
        Ok(Space {
            used_bytes: used_mib.map_or(0, |(mib,)| mib.max(0) as u64) << 20,
            free_bytes: FREE_BYTES,
        })
    }
}
