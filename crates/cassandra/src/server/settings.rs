//! A node's files: `cassandra.yaml`, its data centre, its logging, all written anew at every start.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::error::{Result, Tried};

const LOGBACK: &str = include_str!("template/logback.xml");
const JVM: &str = include_str!("template/jvm.options");

/// What every node of a development cluster is set to. `batch` with `direct` makes a write durable before
/// it is acknowledged, at the least price; `periodic` with `direct` loses acknowledged writes at a kill.
const COMMON: [(&str, &str); 38] = [
    ("cluster_name", "understudy"),
    ("partitioner", "org.apache.cassandra.dht.Murmur3Partitioner"),
    ("endpoint_snitch", "GossipingPropertyFileSnitch"),
    ("dynamic_snitch", "false"),
    ("num_tokens", "1"),
    ("auto_bootstrap", "false"),
    ("storage_port", "7000"),
    ("native_transport_port", "9042"),
    ("commitlog_sync", "batch"),
    ("commitlog_disk_access_mode", "direct"),
    ("commitlog_segment_size", "16MiB"),
    ("commitlog_total_space", "256MiB"),
    ("memtable_allocation_type", "offheap_objects"),
    ("memtable_heap_space", "48MiB"),
    ("memtable_offheap_space", "128MiB"),
    ("key_cache_size", "4MiB"),
    ("counter_cache_size", "0MiB"),
    ("file_cache_size", "32MiB"),
    ("networking_cache_size", "32MiB"),
    ("prepared_statements_cache_size", "1MiB"),
    ("concurrent_reads", "16"),
    ("concurrent_writes", "16"),
    ("concurrent_counter_writes", "2"),
    ("concurrent_materialized_view_writes", "2"),
    ("concurrent_compactors", "1"),
    ("compaction_throughput", "32MiB/s"),
    ("native_transport_max_threads", "32"),
    ("read_request_timeout", "5000ms"),
    ("write_request_timeout", "2000ms"),
    ("hinted_handoff_enabled", "true"),
    ("hints_flush_period", "1s"),
    // One round trip for a linearizable read between data centres, three for a write (v1: three, four).
    ("paxos_variant", "v2"),
    ("phi_convict_threshold", "8"),
    ("auto_snapshot", "false"),
    ("disk_failure_policy", "die"),
    ("commit_failure_policy", "die"),
    ("internode_compression", "none"),
    ("authenticator", "AllowAllAuthenticator"),
];

/// Where a node's things are.
#[derive(Debug, Clone)]
pub(super) struct Home(pub PathBuf);

impl Home {
    pub fn conf(&self, file: &str) -> PathBuf {
        self.0.join("conf").join(file)
    }

    pub fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    pub fn temporary(&self) -> PathBuf {
        self.0.join("tmp")
    }
}

/// A node's place in its cluster.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub address: IpAddr,
    pub data_centre: String,
    pub token: i64,
    pub jmx_port: u16,
}

/// Writes everything that a node reads when it starts.
pub(super) fn write(
    home: &Home,
    place: &Place,
    seeds: &[IpAddr],
    changes: &BTreeMap<String, String>,
) -> Result<()> {
    for directory in ["conf", "tmp", "data", "commitlog", "hints", "caches"] {
        let path = home.0.join(directory);
        fs::create_dir_all(&path).tried(|| format!("make {}", path.display()))?;
    }
    let rack = format!("dc={}\nrack=r1\n", place.data_centre);
    let put = |file: &str, text: &str| {
        let path = home.conf(file);
        fs::write(&path, text).tried(|| format!("write {}", path.display()))
    };
    put("cassandra.yaml", &yaml(&home.0, place, seeds, changes))?;
    put("cassandra-rackdc.properties", &rack)?;
    put("logback.xml", LOGBACK)?;
    put("jvm.options", JVM)
}

fn yaml(
    home: &Path,
    place: &Place,
    seeds: &[IpAddr],
    changes: &BTreeMap<String, String>,
) -> String {
    let directory = |name: &str| home.join(name).display().to_string();
    let seeds: Vec<String> = seeds.iter().map(IpAddr::to_string).collect();
    let own = [
        ("initial_token", place.token.to_string()),
        ("listen_address", place.address.to_string()),
        ("rpc_address", place.address.to_string()),
        (
            "data_file_directories",
            format!("[ {} ]", directory("data")),
        ),
        ("commitlog_directory", directory("commitlog")),
        ("hints_directory", directory("hints")),
        ("saved_caches_directory", directory("caches")),
        (
            "seed_provider",
            format!(
                "[ {{ class_name: org.apache.cassandra.locator.SimpleSeedProvider, parameters: [ {{ \
                 seeds: \"{}\" }} ] }} ]",
                seeds.join(",")
            ),
        ),
    ];
    let common = COMMON.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let mut settings = BTreeMap::from(common);
    settings.extend(own.map(|(key, value)| (key.to_owned(), value)));
    settings.extend(changes.clone());
    settings
        .iter()
        .fold(String::new(), |mut text, (key, value)| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{key}: {value}");
            text
        })
}

/// Tokens that share the ring evenly.
pub(super) fn token(node: u8, of: u8) -> i64 {
    let step = (1i128 << 64) / i128::from(of);
    // Below 2^63 for every node, as node < of.
    (i128::from(i64::MIN) + step / 2 + step * i128::from(node)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_replaces_what_is_common() {
        let place = Place {
            address: "127.90.1.1".parse().unwrap(),
            data_centre: "dc1".into(),
            token: 0,
            jmx_port: 1,
        };
        let changes = BTreeMap::from([("hinted_handoff_enabled".into(), "false".into())]);
        let text = yaml(Path::new("/n"), &place, &[place.address], &changes);
        assert!(text.contains("hinted_handoff_enabled: false\n"), "{text}");
        assert!(!text.contains("hinted_handoff_enabled: true"), "{text}");
        assert!(text.contains("seeds: \"127.90.1.1\""), "{text}");
    }

    #[test]
    fn tokens_differ_and_are_in_order() {
        for of in 1..=8 {
            let tokens: Vec<i64> = (0..of).map(|node| token(node, of)).collect();
            assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
        }
    }
}
