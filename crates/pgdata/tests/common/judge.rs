//! PostgreSQL itself as the judge: what a running server says of its log (`pg_walinspect`) and of its
//! control file. Works alike for all versions from 15 on, also where `pg_waldump` is missing.

use std::collections::BTreeMap;

use pgdata::parse_lsn;
use pgdata::relation::Fork;
use pgdata::wal::Record;
use volume::lsn::Lsn;

use super::Cluster;

/// Record as `pg_waldump` shows it.
#[derive(Debug, PartialEq)]
pub struct DumpedRecord {
    pub start: Lsn,
    manager: String,
    xid: u32,
    /// Relation, fork, block, and whether there is an image.
    blocks: Vec<(String, Fork, u32, bool)>,
}

impl DumpedRecord {
    /// Relation, fork, block, and whether there is an image.
    pub fn blocks(&self) -> impl Iterator<Item = &(String, Fork, u32, bool)> {
        self.blocks.iter()
    }
}

/// The records from `from` to `to`, by a server that runs.
pub fn records(cluster: &Cluster, from: Lsn, to: Lsn) -> Vec<DumpedRecord> {
    let query = format!(
        "SELECT start_lsn, resource_manager, xid, replace(coalesce(block_ref, ''), E'\\n', ' ') \
         FROM pg_get_wal_records_info('{from}', '{to}') WHERE start_lsn < '{to}' ORDER BY start_lsn"
    );
    let told = cluster.sql(&["CREATE EXTENSION IF NOT EXISTS pg_walinspect", &query]);
    told.lines().map(record).collect()
}

fn record(line: &str) -> DumpedRecord {
    let fields: Vec<&str> = line.split('|').collect();
    let [start, manager, xid, blocks] = fields[..] else {
        panic!("{line}");
    };
    DumpedRecord {
        start: parse_lsn(start).unwrap(),
        manager: manager.to_owned(),
        xid: xid.parse().unwrap(),
        blocks: blocks.split("blkref #").skip(1).map(block).collect(),
    }
}

/// `0: rel 1663/5/16384 fork main blk 7 (FPW); hole: ...`
fn block(part: &str) -> (String, Fork, u32, bool) {
    let after = |mark: &str| -> &str {
        let (_, rest) = part
            .split_once(mark)
            .unwrap_or_else(|| panic!("{mark} in {part}"));
        rest.split([' ', ',', ';']).next().unwrap()
    };
    let fork = match after(" fork ") {
        "main" => Fork::Main,
        "fsm" => Fork::FreeSpace,
        "vm" => Fork::Visibility,
        "init" => Fork::Init,
        other => panic!("fork {other}"),
    };
    let block = after(" blk ").parse().unwrap();
    (after("rel ").to_owned(), fork, block, part.contains("FPW"))
}

/// What a server that runs says of its control file, and of settings that are copied into it.
pub fn control(cluster: &Cluster) -> BTreeMap<String, String> {
    let settings = [
        "wal_level",
        "wal_log_hints",
        "max_connections",
        "max_worker_processes",
        "max_wal_senders",
        "max_prepared_transactions",
        "max_locks_per_transaction",
    ];
    let settings: Vec<String> = settings
        .iter()
        .map(|name| format!("'{name}', current_setting('{name}')"))
        .collect();
    let query = format!(
        "SELECT key || '=' || value FROM jsonb_each_text( \
           (SELECT to_jsonb(s) FROM pg_control_system() s) || \
           (SELECT to_jsonb(c) FROM pg_control_checkpoint() c) || \
           (SELECT to_jsonb(r) FROM pg_control_recovery() r) || \
           (SELECT to_jsonb(i) FROM pg_control_init() i) || \
           jsonb_build_object({}))",
        settings.join(", ")
    );
    let told = cluster.sql(&[&query]);
    let pair = |line: &str| {
        line.split_once('=')
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    told.lines().filter_map(pair).collect()
}

const MANAGERS: [&str; 22] = [
    "XLOG",
    "Transaction",
    "Storage",
    "CLOG",
    "Database",
    "Tablespace",
    "MultiXact",
    "RelMap",
    "Standby",
    "Heap2",
    "Heap",
    "Btree",
    "Hash",
    "Gin",
    "Gist",
    "Sequence",
    "SPGist",
    "BRIN",
    "CommitTs",
    "ReplicationOrigin",
    "Generic",
    "LogicalMessage",
];

pub fn as_told(record: &Record) -> DumpedRecord {
    let blocks = record.blocks.iter().map(|block| {
        let relation = block.relation;
        let name = format!(
            "{}/{}/{}",
            relation.tablespace, relation.database, relation.number
        );
        (name, block.fork, block.block, block.has_image)
    });
    DumpedRecord {
        start: record.start,
        manager: MANAGERS[usize::from(record.rmid)].to_owned(),
        xid: record.xid,
        blocks: blocks.collect(),
    }
}
