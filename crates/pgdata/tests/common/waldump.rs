//! `pg_waldump` as the judge of decoded records.

use pgdata::parse_lsn;
use pgdata::relation::Fork;
use pgdata::wal::Record;
use volume::lsn::Lsn;

use super::Cluster;

/// What `pg_waldump` says of a record.
#[derive(Debug, PartialEq)]
pub struct Told {
    pub start: Lsn,
    manager: String,
    xid: u32,
    /// Relation, fork, block, and whether there is an image.
    blocks: Vec<(String, Fork, u32, bool)>,
}

pub fn dump(cluster: &Cluster, from: Lsn) -> Vec<Told> {
    let wal = cluster.wal();
    let program = std::process::Command::new(super::bin().join("pg_waldump"))
        .args(["-p", super::text(&wal), "-s", &from.to_string()])
        .output()
        .unwrap();
    // It ends with an error where the log ends.
    String::from_utf8_lossy(&program.stdout)
        .lines()
        .map(told)
        .collect()
}

fn told(line: &str) -> Told {
    let after = |text: &'_ str, mark: &str| -> String {
        let at = text
            .find(mark)
            .unwrap_or_else(|| panic!("{mark} in {text}"))
            + mark.len();
        text[at..]
            .trim_start()
            .split([' ', ','])
            .next()
            .unwrap()
            .to_owned()
    };
    let blocks = line.split("blkref #").skip(1).map(|part| {
        let fork = if part.contains(" fork ") {
            after(part, " fork ")
        } else {
            "main".into()
        };
        let fork = match fork.as_str() {
            "main" => Fork::Main,
            "fsm" => Fork::FreeSpace,
            "vm" => Fork::Visibility,
            "init" => Fork::Init,
            other => panic!("fork {other}"),
        };
        let block = after(part, " blk ").parse().unwrap();
        (after(part, "rel "), fork, block, part.contains("FPW"))
    });
    Told {
        start: parse_lsn(&after(line, "lsn: ")).unwrap(),
        manager: after(line, "rmgr: "),
        xid: after(line, "tx: ").parse().unwrap(),
        blocks: blocks.collect(),
    }
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

pub fn as_told(record: &Record) -> Told {
    let blocks = record.blocks.iter().map(|block| {
        let relation = block.relation;
        let name = format!(
            "{}/{}/{}",
            relation.tablespace, relation.database, relation.number
        );
        (name, block.fork, block.block, block.has_image)
    });
    Told {
        start: record.start,
        manager: MANAGERS[usize::from(record.rmid)].to_owned(),
        xid: record.xid,
        blocks: blocks.collect(),
    }
}
