//! What Cassandra says of its tables after a soak: how much it keeps, and how many tombstones reads pass.

use std::collections::BTreeMap;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

/// A table at one node, as `nodetool tablestats` tells it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table {
    /// The node's data centre.
    pub data_centre: String,
    /// Name of the table.
    pub table: String,
    /// Files of sorted rows.
    pub sstables: u64,
    /// What they take on disk, and with those that are about to be removed.
    pub live_bytes: u64,
    pub total_bytes: u64,
    /// Requests since the node started.
    pub reads: u64,
    pub writes: u64,
    /// Means of the time a node took for its own part, in milliseconds.
    pub read_ms: Option<f64>,
    pub write_ms: Option<f64>,
    /// Tombstones that a read passed in the last five minutes.
    pub tombstones_mean: Option<f64>,
    pub tombstones_max: Option<f64>,
    /// Rows that a read found in the last five minutes.
    pub rows_mean: Option<f64>,
    /// The largest partition.
    pub partition_max_bytes: u64,
    /// Share of what is kept that the next compaction may drop.
    pub droppable: Option<f64>,
}

/// All tables of the keyspace at all nodes.
///
/// # Errors
/// `nodetool` fails, or says something else than before.
pub fn look(cassandra: &cassandra::server::Cluster, keyspace: &str) -> anyhow::Result<Vec<Table>> {
    let mut tables = Vec::new();
    for (node, data_centre) in cassandra.data_centres().iter().enumerate() {
        let said = cassandra.tool(node, &["tablestats", "-F", "json", keyspace])?;
        let said: Value =
            serde_json::from_str(&said).context("nodetool's statistics are no JSON")?;
        tables.extend(of_node(data_centre, keyspace, &said)?);
    }
    Ok(tables)
}

fn of_node(data_centre: &str, keyspace: &str, said: &Value) -> anyhow::Result<Vec<Table>> {
    let tables = said[keyspace]["tables"].as_object();
    let tables = tables.context("nodetool knows nothing of the keyspace")?;
    let told = tables.iter().map(|(name, of)| Table {
        data_centre: data_centre.to_owned(),
        table: name.clone(),
        sstables: whole(&of["sstable_count"]),
        live_bytes: whole(&of["space_used_live"]),
        total_bytes: whole(&of["space_used_total"]),
        reads: whole(&of["local_read_count"]),
        writes: whole(&of["local_write_count"]),
        read_ms: number(&of["local_read_latency_ms"]),
        write_ms: number(&of["local_write_latency_ms"]),
        tombstones_mean: number(&of["average_tombstones_per_slice_last_five_minutes"]),
        tombstones_max: number(&of["maximum_tombstones_per_slice_last_five_minutes"]),
        rows_mean: number(&of["average_live_cells_per_slice_last_five_minutes"]),
        partition_max_bytes: whole(&of["compacted_partition_maximum_bytes"]),
        droppable: number(&of["droppable_tombstone_ratio"]),
    });
    Ok(told.collect())
}

/// A number, which some versions put in quotes; none of what was never measured ("NaN").
fn number(value: &Value) -> Option<f64> {
    let number = value
        .as_f64()
        .or_else(|| value.as_str()?.trim().parse().ok())?;
    number.is_finite().then_some(number)
}

fn whole(value: &Value) -> u64 {
    number(value).map_or(0, |number| number as u64)
}

/// For a person: a line for each table, of the node where reads passed most tombstones.
pub fn lines(tables: &[Table]) -> Vec<String> {
    let mut worst: BTreeMap<&str, &Table> = BTreeMap::new();
    for table in tables {
        let kept = worst.entry(&table.table).or_insert(table);
        if table.tombstones_max > kept.tombstones_max {
            *kept = table;
        }
    }
    let shown = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
    let lines = worst.values().map(|table| {
        format!(
            "{}: {} MiB in {} files, {} reads of {} ms passed {} tombstones, at most {}",
            table.table,
            table.live_bytes >> 20,
            table.sstables,
            table.reads,
            shown(table.read_ms),
            shown(table.tombstones_mean),
            shown(table.tombstones_max),
        )
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said() -> Value {
        json!({"total_number_of_tables": 60, "understudy": {"tables": {"blocks": {
            "sstable_count": 4, "space_used_live": "5242880", "space_used_total": 6, "local_read_count": 9,
            "local_write_count": 11, "local_read_latency_ms": "NaN", "local_write_latency_ms": "0.125",
            "average_tombstones_per_slice_last_five_minutes": 1.5,
            "maximum_tombstones_per_slice_last_five_minutes": 3,
            "average_live_cells_per_slice_last_five_minutes": "NaN",
            "compacted_partition_maximum_bytes": 1048576, "droppable_tombstone_ratio": "0.25"}}}})
    }

    #[test]
    fn figures_of_nodetool_are_found_in_quotes_or_without() {
        let tables = of_node("paris", "understudy", &said()).unwrap();
        let [blocks] = &tables[..] else {
            panic!("{tables:?}")
        };
        assert_eq!((blocks.sstables, blocks.live_bytes), (4, 5 << 20));
        assert_eq!((blocks.read_ms, blocks.write_ms), (None, Some(0.125)));
        assert_eq!(blocks.tombstones_max, Some(3.0));
        assert_eq!(blocks.droppable, Some(0.25));
        assert!(of_node("paris", "other", &said()).is_err());
    }

    #[test]
    fn the_node_with_most_tombstones_is_shown() {
        let mut tables = of_node("paris", "understudy", &said()).unwrap();
        let mut worse = tables[0].clone();
        (worse.tombstones_max, worse.sstables) = (Some(40.0), 7);
        tables.push(worse);
        let lines = lines(&tables);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].ends_with("at most 40.0") && lines[0].contains("in 7 files"));
    }
}
