//! The cluster at one moment: what a standby keeps, what the zones keep, how far replay is.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

use crate::lag::Behind;
use cluster::Cluster;

/// See the module. What could not be seen at the moment is zero, or `None` where zero would say
/// something else.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Since the load began.
    pub seconds: f64,
    /// Transactions acknowledged so far.
    pub commits: u64,
    /// The standby's overlay, in memory and on disk.
    pub overlay_bytes: Option<u64>,
    /// How often the standby's base moved since it attached.
    pub base_moves: Option<u64>,
    /// Log that is kept for the last seals and for standbys.
    pub log_bytes: Option<u64>,
    /// What the zones use for the volume, all copies.
    pub used_bytes: Option<u64>,
    /// The directories of the zones, or of Cassandra's nodes.
    pub disk_bytes: u64,
    /// Resident memory of each agent, without its PostgreSQL, and of each zone.
    pub resident_bytes: BTreeMap<String, u64>,
    /// The worst look at the lag since the last sample.
    pub lag: Behind,
}

impl Sample {
    /// Looks. `seconds`, `commits` and `lag` are the caller's.
    ///
    /// # Errors
    /// The zones' directories cannot be read.
    pub async fn take(cluster: &Cluster) -> anyhow::Result<Sample> {
        let mut sample = match status(cluster).await {
            Some(status) => Sample::of(&status),
            None => Sample::default(),
        };
        sample.disk_bytes = blocks_bytes(&cluster.options().dir)?;
        let resident = cluster.processes().filter_map(|(name, pid)| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            Some((name.to_owned(), resident(&status.ok()?)?))
        });
        sample.resident_bytes = resident.collect();
        Ok(sample)
    }

    /// The largest resident memory of the zones, or else of the agents.
    pub fn largest(&self, zones: bool) -> Option<u64> {
        let of_kind = self
            .resident_bytes
            .iter()
            .filter(|(name, _)| name.starts_with("zone-") == zones);
        of_kind.map(|(_, bytes)| *bytes).max()
    }

    /// What `understudy status --json` says.
    fn of(status: &Value) -> Sample {
        let nodes = status["nodes"].as_array().into_iter().flatten();
        let standby = nodes
            .filter(|node| node["role"] == "standby")
            .find(|node| node["answer"]["overlay"].is_object());
        let answer = standby.map(|node| &node["answer"]);
        let overlay = answer.map(|answer| &answer["overlay"]);
        let sum = |name: &str, of: &Value| of[name].as_u64().unwrap_or(0);
        let kept = status["retained"].as_array();
        let replicas = status["replicas"].as_array();
        let used = |replica: &Value| replica["usage"]["used_bytes"].as_u64();
        Sample {
            overlay_bytes: overlay.map(|o| sum("memory_bytes", o) + sum("spill_bytes", o)),
            base_moves: answer.and_then(|answer| answer["base"]["moves"].as_u64()),
            log_bytes: kept.and_then(|kept| kept.iter().map(|k| sum("log_bytes", k)).max()),
            used_bytes: replicas.map(|replicas| replicas.iter().filter_map(used).sum()),
            ..Sample::default()
        }
    }
}

async fn status(cluster: &Cluster) -> Option<Value> {
    // Right after a kill it may say that nobody serves; the next look is not far.
    let said = cluster.ask("status").await;
    serde_json::from_str(&said.ok()?).ok()
}

/// What the zones below a cluster's directory, or Cassandra's nodes, take on disk.
pub fn blocks_bytes(dir: &Path) -> anyhow::Result<u64> {
    let entries = std::fs::read_dir(dir).context("cannot look at what keeps the blocks")?;
    let keepers = entries.flatten().filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("zone-") || name == "cassandra"
    });
    Ok(keepers.map(|keeper| tree_bytes(&keeper.path())).sum())
}

/// Room that a directory takes on the disk; files that vanish meanwhile count nothing.
pub fn tree_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => tree_bytes(&entry.path()),
        Ok(data) => data.blocks() * 512,
        Err(_) => 0,
    });
    bytes.sum()
}

/// `VmRSS` of a process's `status` file, in bytes.
pub(crate) fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_of_status_are_found() {
        let status = json!({
            "nodes": [
                {"role": "active", "answer": {"retained": []}},
                {"role": "standby", "answer": {
                    "overlay": {"memory_bytes": 5, "spill_bytes": 6}, "base": {"moves": 3}}},
            ],
            "retained": [{"log_bytes": 10}, {"log_bytes": 30}],
            "replicas": [{"usage": {"used_bytes": 1}}, {"usage": null}, {"usage": {"used_bytes": 2}}],
        });
        let sample = Sample::of(&status);
        assert_eq!(sample.overlay_bytes, Some(11));
        assert_eq!(sample.base_moves, Some(3));
        assert_eq!(sample.log_bytes, Some(30));
        assert_eq!(sample.used_bytes, Some(3));
        let nobody = Sample::of(&json!({"nodes": [], "retained": null, "replicas": []}));
        assert_eq!(nobody.overlay_bytes, None);
    }

    #[test]
    fn resident_memory_is_read_from_the_kernels_words() {
        let said = "Name:\tx\nVmRSS:\t    2048 kB\nThreads:\t4\n";
        assert_eq!(resident(said), Some(2 << 20));
        assert_eq!(resident("Name:\tx\n"), None);
    }
}
