//! The classes of PostgreSQL's paths: what is log, data, configuration, or this node's own.
//!
//! Invariant: a name that PostgreSQL renames to another is in the same class as the other (shared and
//! private files are on different devices), so temporary names follow their final ones.
//!
//! Two choices beyond the design's list. `global/pg_control` is live, one version: the sealed copy is
//! in the seal, and the latest one must be chosen like other live files after a takeover (N1).
//! What is unknown at the top of the directory is live, because people put configuration there;
//! what is unknown below a data directory is data.

use std::ops::Range;

use volume::layout::{FileClass, Layout};
use volume::lsn::Lsn;

use crate::relation::{Fork, RelationFile};
use crate::segment::{SegmentName, SegmentSize};
use crate::settings::is_node_file;
use crate::warmth::is_buffers_file;

/// The control file.
pub const CONTROL_FILE: &str = "global/pg_control";
/// The directory of state files of prepared transactions.
pub const TWO_PHASE: &str = "pg_twophase";
/// The directory of replication slots, each of which has a directory with its state.
pub const SLOTS: &str = "pg_replslot";
/// The directory of snapshots that logical decoding begins from.
pub const DECODING_SNAPSHOTS: &str = "pg_logical/snapshots";
/// Where rows are that a rewritten catalog had, for logical decoding.
const DECODING_MAPPINGS: &str = "pg_logical/mappings";
/// The directory of the log.
pub const LOG: &str = "pg_wal";
/// The directory of links to tablespaces.
const TABLESPACES: &str = "pg_tblspc";

/// Directories of the database itself.
const DATA: [&str; 8] = [
    "base",
    "global",
    "pg_commit_ts",
    "pg_logical",
    "pg_multixact",
    TABLESPACES,
    TWO_PHASE,
    "pg_xact",
];

/// Directories that a server empties at its start or that are about this server only.
const PRIVATE_DIRECTORIES: [&str; 9] = [
    "log",
    "pg_dynshmem",
    "pg_log",
    "pg_notify",
    "pg_serial",
    "pg_snapshots",
    "pg_stat",
    "pg_stat_tmp",
    "pg_subtrans",
];

/// Directories that are private on a standby only (rule 6, H7, H8, section 4 of the review).
const STANDBY_DIRECTORIES: [&str; 6] = [
    DECODING_MAPPINGS,
    DECODING_SNAPSHOTS,
    SLOTS,
    TWO_PHASE,
    "pg_wal/archive_status",
    "pg_wal/summaries",
];

/// Left-overs of base backups: a live one would change where a standby's recovery starts (H8).
const HIDDEN_ON_STANDBY: [&str; 4] = [
    "backup_label",
    "backup_manifest",
    "recovery.signal",
    "tablespace_map",
];

/// PostgreSQL's data directory.
#[derive(Debug, Clone)]
pub struct PostgresLayout {
    segment_size: SegmentSize,
}

impl PostgresLayout {
    /// For a cluster with log segments of this size (`ControlFile::segment_size`).
    pub fn new(segment_size: SegmentSize) -> PostgresLayout {
        PostgresLayout { segment_size }
    }

    fn segment(&self, path: &str) -> Option<SegmentName> {
        let name = path.strip_prefix(LOG)?.strip_prefix('/')?;
        SegmentName::parse(name, self.segment_size)
    }

    /// The size of the cluster's log segments.
    pub fn segment_size(&self) -> SegmentSize {
        self.segment_size
    }
}

impl Layout for PostgresLayout {
    fn class(&self, path: &str) -> FileClass {
        let (top, below) = path.split_once('/').unwrap_or((path, ""));
        let name = path.rsplit('/').next().unwrap_or(path);
        if PRIVATE_DIRECTORIES.contains(&top) || (below.is_empty() && is_private_at_top(top)) {
            return FileClass::Private;
        }
        if top == LOG {
            return FileClass::Log;
        }
        if top == SLOTS {
            return class_of_slots(below);
        }
        if !DATA.contains(&top) || path == CONTROL_FILE {
            return FileClass::Live;
        }
        // What the active had written of them counts after a takeover, like slots, which need them.
        if [DECODING_MAPPINGS, DECODING_SNAPSHOTS]
            .iter()
            .any(|directory| is_below(path, directory))
        {
            return FileClass::Live;
        }
        if is_temporary(path, below) || name.starts_with("pg_internal.init") {
            return FileClass::Private;
        }
        FileClass::Data
    }

    fn standby_class(&self, path: &str) -> FileClass {
        let own = |directory: &&str| is_at_or_below(path, directory);
        let own_file = path == CONTROL_FILE || is_buffers_file(path);
        if own_file || STANDBY_DIRECTORIES.iter().any(own) {
            return FileClass::Private;
        }
        self.class(path)
    }

    fn hidden_on_standby(&self, path: &str) -> bool {
        !path.contains('/') && (HIDDEN_ON_STANDBY.contains(&path) || path.ends_with(".old"))
    }

    fn hidden_by(&self, name: &str) -> Option<String> {
        let file = RelationFile::parse(name)?;
        let shared = file.temporary.is_none() && file.fork != Fork::Init;
        shared.then(|| {
            RelationFile {
                fork: Fork::Init,
                segment: 0,
                ..file
            }
            .to_string()
        })
    }

    fn main_of(&self, name: &str) -> Option<String> {
        let file = RelationFile::parse(name)?;
        let main = RelationFile {
            fork: Fork::Main,
            segment: 0,
            ..file
        };
        (main != file && file.temporary.is_none()).then(|| main.to_string())
    }

    /// A tablespace "in place", which PostgreSQL has for its own tests: a standby would refuse to start
    /// on it, and log records do not tell the paths of its files (H11).
    fn refuses_directory(&self, path: &str) -> Option<&'static str> {
        let (top, below) = path.split_once('/')?;
        (top == TABLESPACES && !below.contains('/'))
            .then_some("a volume holds the default tablespace only")
    }

    fn log_range(&self, path: &str) -> Option<Range<Lsn>> {
        Some(self.segment(path)?.range(self.segment_size))
    }

    fn log_timeline(&self, path: &str) -> Option<u32> {
        Some(self.segment(path)?.timeline.0)
    }

    fn private_directories(&self, standby: bool) -> Vec<String> {
        let mut directories: Vec<String> = PRIVATE_DIRECTORIES
            .iter()
            .filter(|d| **d != "pg_log")
            .map(|d| d.to_string())
            .collect();
        if standby {
            let parents = ["global", "pg_logical", LOG];
            directories.extend(
                parents
                    .iter()
                    .chain(&STANDBY_DIRECTORIES)
                    .map(|d| d.to_string()),
            );
        }
        directories
    }

    fn published_at_switch(&self) -> Vec<String> {
        vec![CONTROL_FILE.to_owned(), TWO_PHASE.to_owned()]
    }

    /// A standby's slots may go back further than the files that the active still had, and it may have slots of its own.
    fn added_at_switch(&self) -> Vec<String> {
        vec![DECODING_SNAPSHOTS.to_owned(), SLOTS.to_owned()]
    }

    fn needed_directories(&self) -> Vec<String> {
        vec![SLOTS.to_owned()]
    }

    fn control_file(&self) -> &str {
        CONTROL_FILE
    }
}

/// The state of a slot outlives its server. What decoding spills is of one session.
fn class_of_slots(below: &str) -> FileClass {
    match below.split_once('/') {
        Some((_, "state" | "state.tmp")) | None => FileClass::Live,
        Some(_) => FileClass::Private,
    }
}

fn is_below(path: &str, directory: &str) -> bool {
    path != directory && is_at_or_below(path, directory)
}

fn is_at_or_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Files of one server in the top directory.
fn is_private_at_top(name: &str) -> bool {
    name.starts_with("postmaster.")
        || name.ends_with(".signal")
        || name.starts_with("current_logfiles")
        || matches!(name, "promote" | "logrotate")
        || is_node_file(name)
}

/// Temporary files (`pgsql_tmp` and all below) and temporary relations. `below` is `path` without
/// its first component.
fn is_temporary(path: &str, below: &str) -> bool {
    if below
        .split('/')
        .any(|component| component.starts_with("pgsql_tmp"))
    {
        return true;
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    RelationFile::parse(name).is_some_and(|file| file.temporary.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> PostgresLayout {
        PostgresLayout::new(SegmentSize::DEFAULT)
    }

    // hazard: H11
    #[test]
    fn tablespaces_in_place_are_refused() {
        let refused = |path: &str| layout().refuses_directory(path).is_some();
        assert!(refused("pg_tblspc/16385"));
        assert!(!refused("pg_tblspc"), "the directory itself is there");
        assert!(!refused("base/16385"));
    }

    // hazard: H8
    #[test]
    fn every_path_of_a_cluster_has_its_class() {
        use FileClass::{Data, Live, Log, Private};
        for (path, active, standby) in [
            ("", Live, Live),
            ("PG_VERSION", Live, Live),
            ("postgresql.conf", Live, Live),
            ("postgresql.auto.conf.tmp", Live, Live),
            ("conf.d/mine.conf", Live, Live),
            ("base", Data, Data),
            ("base/5/PG_VERSION", Data, Data),
            ("base/5/16384_vm.1", Data, Data),
            ("base/5/pg_filenode.map", Data, Data),
            ("base/5/pg_internal.init", Private, Private),
            ("base/5/pg_internal.init.1234", Private, Private),
            ("base/5/t3_16390", Private, Private),
            ("base/5/t3_16390_fsm.1", Private, Private),
            ("base/pgsql_tmp", Private, Private),
            (
                "base/pgsql_tmp/pgsql_tmp77.0.sharedfileset/x",
                Private,
                Private,
            ),
            (
                "pg_tblspc/16999/PG_15_202209061/pgsql_tmp/pgsql_tmp1.0",
                Private,
                Private,
            ),
            ("global/1260", Data, Data),
            ("global/pg_control", Live, Private),
            ("autoprewarm.blocks", Live, Private),
            ("autoprewarm.blocks.tmp", Live, Private),
            ("global/pg_internal.init", Private, Private),
            ("pg_xact/0000", Data, Data),
            ("pg_multixact/members/0000", Data, Data),
            ("pg_twophase", Data, Private),
            ("pg_twophase/000002F1", Data, Private),
            ("pg_logical", Data, Data),
            ("pg_logical/replorigin_checkpoint.tmp", Data, Data),
            ("pg_logical/snapshots", Data, Private),
            ("pg_logical/snapshots/0-1.snap", Live, Private),
            ("pg_logical/snapshots/0-1.snap.77.tmp", Live, Private),
            ("pg_logical/mappings", Data, Private),
            ("pg_logical/mappings/map-5-4e-0_1-2-3", Live, Private),
            ("pg_wal", Log, Log),
            ("pg_wal/000000010000000000000001", Log, Log),
            ("pg_wal/xlogtemp.77", Log, Log),
            ("pg_wal/archive_status/x.ready", Log, Private),
            ("pg_wal/summaries", Log, Private),
            ("pg_replslot", Live, Private),
            ("pg_replslot/a.tmp", Live, Private),
            ("pg_replslot/a/state", Live, Private),
            ("pg_replslot/a/state.tmp", Live, Private),
            ("pg_replslot/a/xid-77-lsn-0-1000000.spill", Private, Private),
            ("pg_stat/pgstat.stat", Private, Private),
            ("pg_subtrans/0000", Private, Private),
            ("postmaster.pid", Private, Private),
            ("standby.signal", Private, Private),
            ("current_logfiles.tmp", Private, Private),
            ("log/postgresql.log", Private, Private),
            ("promote", Private, Private),
            ("promoted_by", Live, Live),
        ] {
            assert_eq!(layout().class(path), active, "{path:?} on the active");
            assert_eq!(
                layout().standby_class(path),
                standby,
                "{path:?} on a standby"
            );
        }
    }

    #[test]
    fn other_forks_of_unlogged_relations_are_hidden() {
        let hidden_by = |name| layout().hidden_by(name);
        for name in ["16384", "16384.2", "16384_fsm", "16384_vm.1"] {
            assert_eq!(hidden_by(name).as_deref(), Some("16384_init"), "{name}");
        }
        for name in [
            "16384_init",
            "16384_init.1",
            "t3_16384",
            "PG_VERSION",
            "pg_control",
        ] {
            assert_eq!(hidden_by(name), None, "{name}");
        }
    }

    // hazard: H8
    #[test]
    fn backup_files_are_hidden_at_the_top_only() {
        for name in [
            "backup_label",
            "tablespace_map",
            "recovery.signal",
            "backup_label.old",
        ] {
            assert!(layout().hidden_on_standby(name), "{name}");
        }
        for name in ["base/backup_label", "postgresql.conf", "PG_VERSION"] {
            assert!(!layout().hidden_on_standby(name), "{name}");
        }
    }

    #[test]
    fn segments_have_positions_and_other_log_files_have_none() {
        let range = layout().log_range("pg_wal/000000030000000200000001");
        assert_eq!(range, Some(Lsn(0x2_0100_0000)..Lsn(0x2_0200_0000)));
        let timeline = layout().log_timeline("pg_wal/000000030000000200000001");
        assert_eq!(timeline, Some(3));
        for path in [
            "pg_wal/00000003.history",
            "pg_wal/xlogtemp.1",
            "pg_wal/archive_status/000000030000000200000001",
            "base/000000030000000200000001",
            "pg_wal",
        ] {
            assert_eq!(layout().log_range(path), None, "{path}");
            assert_eq!(layout().log_timeline(path), None, "{path}");
        }
    }

    #[test]
    fn private_directories_come_after_their_parents() {
        for standby in [false, true] {
            let directories = layout().private_directories(standby);
            for (at, directory) in directories.iter().enumerate() {
                if let Some((parent, _)) = directory.rsplit_once('/') {
                    assert!(directories[..at].iter().any(|d| d == parent), "{directory}");
                }
            }
        }
        assert!(
            !layout()
                .private_directories(false)
                .iter()
                .any(|d| d.starts_with(LOG))
        );
    }
}
