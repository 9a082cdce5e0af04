//! `global/pg_control`: the state of a cluster, in one block.
//!
//! Invariant: a [`ControlFile`] comes from bytes whose checksum is right, of a version whose layout is
//! known here. Versions 13 to 16 (1300) and 17 (1700) have their fields at the same places; 18 (1800)
//! adds one in front of the checksum.

use volume::lsn::Lsn;

use crate::bytes_at::{u32_at, u64_at};
use crate::segment::SegmentSize;
use crate::timeline::TimelineId;
use crate::xid::Xid8;

/// Bytes of the file; what is behind the checksum is zero.
pub const CONTROL_FILE_BYTES: usize = 8192;

/// The layouts known: version number and offset of the checksum.
const LAYOUTS: [(u32, usize); 3] = [(1300, 288), (1700, 288), (1800, 292)];

/// Why a control file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// Too short to hold a control file.
    #[error("pg_control has only {0} bytes")]
    Short(usize),
    /// Written by a PostgreSQL that is not known here.
    #[error(
        "pg_control has version {0}, which is not known; known are 1300 (PostgreSQL 13 to 16), 1700 \
         (17) and 1800 (18), written on a little-endian machine"
    )]
    Version(u32),
    /// The checksum is wrong: torn, or damaged.
    #[error("pg_control has checksum {found:08x}, but its contents give {computed:08x}")]
    Checksum {
        /// What is stored.
        found: u32,
        /// What it should be.
        computed: u32,
    },
    /// A field has a value that cannot be.
    #[error("pg_control has an impossible {0}: {1}")]
    Field(&'static str, u64),
}

/// What the cluster was doing when the file was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClusterState {
    /// Being initialised.
    Startup,
    /// Shut down cleanly.
    ShutDown,
    /// A standby, shut down cleanly.
    ShutDownInRecovery,
    /// Shutting down.
    ShuttingDown,
    /// Recovering from a crash.
    InCrashRecovery,
    /// A standby, or restoring from an archive.
    InArchiveRecovery,
    /// Serving.
    InProduction,
}

impl ClusterState {
    fn from_number(number: u32) -> Option<ClusterState> {
        Some(match number {
            0 => ClusterState::Startup,
            1 => ClusterState::ShutDown,
            2 => ClusterState::ShutDownInRecovery,
            3 => ClusterState::ShuttingDown,
            4 => ClusterState::InCrashRecovery,
            5 => ClusterState::InArchiveRecovery,
            6 => ClusterState::InProduction,
            _ => return None,
        })
    }

    /// True if a control file in this state may seal a generation (N11).
    pub fn seals(self) -> bool {
        matches!(self, ClusterState::InProduction | ClusterState::ShutDown)
    }
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WalLevel {
    /// Only what a crash needs: no standby can follow.
    Minimal,
    /// What a standby needs.
    Replica,
    /// And what logical decoding needs.
    Logical,
}

impl WalLevel {
    /// From the number in control files and log records.
    pub fn from_number(number: u32) -> Option<WalLevel> {
        Some(match number {
            0 => WalLevel::Minimal,
            1 => WalLevel::Replica,
            2 => WalLevel::Logical,
            _ => return None,
        })
    }
}

/// Settings of the active that a hot standby must not undercut (N12).
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Capacity {
    /// `max_connections`
    pub max_connections: u32,
    /// `max_worker_processes`
    pub max_worker_processes: u32,
    /// `max_wal_senders`
    pub max_wal_senders: u32,
    /// `max_prepared_transactions`
    pub max_prepared_transactions: u32,
    /// `max_locks_per_transaction`
    pub max_locks_per_transaction: u32,
}

impl Capacity {
    /// The larger of each.
    pub fn max(self, other: Capacity) -> Capacity {
        Capacity {
            max_connections: self.max_connections.max(other.max_connections),
            max_worker_processes: self.max_worker_processes.max(other.max_worker_processes),
            max_wal_senders: self.max_wal_senders.max(other.max_wal_senders),
            max_prepared_transactions: self
                .max_prepared_transactions
                .max(other.max_prepared_transactions),
            max_locks_per_transaction: self
                .max_locks_per_transaction
                .max(other.max_locks_per_transaction),
        }
    }

    /// True if a standby with these settings can follow an active with `needed`.
    pub fn covers(self, needed: Capacity) -> bool {
        self.max(needed) == self
    }
}

/// A parsed control file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlFile {
    /// Names the cluster; the same in all its copies.
    pub system_identifier: u64,
    /// Version of the layout, see the module.
    pub control_version: u32,
    /// Version of the catalogs.
    pub catalog_version: u32,
    /// What the cluster was doing.
    pub state: ClusterState,
    /// Start of the last checkpoint record.
    pub checkpoint: Lsn,
    /// That checkpoint's redo pointer: where recovery starts.
    pub redo: Lsn,
    /// That checkpoint's timeline.
    pub timeline: TimelineId,
    /// The timeline before, if that checkpoint began one; else the same.
    pub previous_timeline: TimelineId,
    /// The next transaction id that was to be given when that checkpoint's redo pointer was fixed, or, for a checkpoint
    /// of a shutdown, that will be given next.
    pub next_xid: Xid8,
    /// How far a standby must replay before it is consistent; zero if it is not recovering.
    pub min_recovery_point: Lsn,
    /// The timeline of that; zero if not recovering.
    pub min_recovery_timeline: TimelineId,
    /// How much is logged.
    pub wal_level: WalLevel,
    /// True if hint bits are logged as full pages.
    pub wal_log_hints: bool,
    /// What a standby must not undercut.
    pub capacity: Capacity,
    /// Bytes in a data page.
    pub block_size_bytes: u32,
    /// Data pages in a segment of a relation.
    pub blocks_per_segment: u32,
    /// Bytes in a log segment.
    pub segment_size: SegmentSize,
    /// Version of data checksums; zero without.
    pub data_checksum_version: u32,
}

impl ControlFile {
    /// Parses and verifies the file's bytes.
    ///
    /// # Errors
    /// See [`ControlError`]; a torn write shows as a wrong checksum.
    pub fn parse(bytes: &[u8]) -> Result<ControlFile, ControlError> {
        if bytes.len() < 16 {
            return Err(ControlError::Short(bytes.len()));
        }
        let version = u32_at(bytes, 8);
        let known = LAYOUTS.iter().find(|(known, _)| *known == version);
        let (_, checksum_at) = known.ok_or(ControlError::Version(version))?;
        let summed = bytes
            .get(..*checksum_at)
            .filter(|_| bytes.len() >= checksum_at + 4);
        let summed = summed.ok_or(ControlError::Short(bytes.len()))?;
        let (found, computed) = (u32_at(bytes, *checksum_at), crc32c::crc32c(summed));
        if found != computed {
            return Err(ControlError::Checksum { found, computed });
        }
        parse_fields(bytes)
    }
}

impl ControlFile {
    /// The same file for a server that is to recover from an archive, from this file's checkpoint on, and is consistent when it
    /// has replayed up to `end`, on the checkpoint's timeline.
    ///
    /// # Errors
    /// As [`ControlFile::parse`].
    pub fn in_archive_recovery(bytes: &[u8], end: Lsn) -> Result<Vec<u8>, ControlError> {
        let control = ControlFile::parse(bytes)?;
        let known = LAYOUTS
            .iter()
            .find(|(known, _)| *known == control.control_version);
        let (_, checksum_at) = known.ok_or(ControlError::Version(control.control_version))?;
        let mut changed = bytes.to_vec();
        // 5 is the state; see `ClusterState::from_number`.
        changed[16..20].copy_from_slice(&5_u32.to_le_bytes());
        changed[136..144].copy_from_slice(&end.0.to_le_bytes());
        changed[144..148].copy_from_slice(&control.timeline.0.to_le_bytes());
        let checksum = crc32c::crc32c(&changed[..*checksum_at]);
        changed[*checksum_at..checksum_at + 4].copy_from_slice(&checksum.to_le_bytes());
        Ok(changed)
    }
}

fn parse_fields(bytes: &[u8]) -> Result<ControlFile, ControlError> {
    let word = |at| u32_at(bytes, at);
    let lsn = |at| Lsn(u64_at(bytes, at));
    let impossible = |field, value: u32| ControlError::Field(field, value.into());
    let state = ClusterState::from_number(word(16)).ok_or(impossible("state", word(16)))?;
    let wal_level = WalLevel::from_number(word(172)).ok_or(impossible("wal_level", word(172)))?;
    if word(224) as usize != crate::segment::LOG_PAGE_BYTES {
        return Err(impossible(
            "log page size (only 8192 is supported)",
            word(224),
        ));
    }
    let segment_size =
        SegmentSize::new(word(228)).ok_or(impossible("log segment size", word(228)))?;
    Ok(ControlFile {
        system_identifier: u64_at(bytes, 0),
        control_version: word(8),
        catalog_version: word(12),
        state,
        checkpoint: lsn(32),
        redo: lsn(40),
        timeline: TimelineId(word(48)),
        previous_timeline: TimelineId(word(52)),
        next_xid: Xid8(u64_at(bytes, 64)),
        min_recovery_point: lsn(136),
        min_recovery_timeline: TimelineId(word(144)),
        wal_level,
        wal_log_hints: bytes[176] != 0,
        capacity: Capacity {
            max_connections: word(180),
            max_worker_processes: word(184),
            max_wal_senders: word(188),
            max_prepared_transactions: word(192),
            max_locks_per_transaction: word(196),
        },
        block_size_bytes: word(216),
        blocks_per_segment: word(220),
        segment_size,
        data_checksum_version: word(252),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(version: u32, checksum_at: usize) -> Vec<u8> {
        let mut bytes = vec![0; CONTROL_FILE_BYTES];
        let mut put = |at: usize, value: u32| {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        };
        put(8, version);
        put(16, 6);
        put(40, 0x28);
        put(172, 1);
        put(224, 8192);
        put(228, 16 << 20);
        let checksum = crc32c::crc32c(&bytes[..checksum_at]);
        bytes[checksum_at..checksum_at + 4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    #[test]
    fn all_layouts_are_read() {
        for (version, checksum_at) in LAYOUTS {
            let control = ControlFile::parse(&sealed(version, checksum_at)).unwrap();
            assert_eq!(control.state, ClusterState::InProduction);
            assert_eq!(control.redo, Lsn(0x28));
            assert_eq!(control.segment_size, SegmentSize::DEFAULT);
        }
    }

    // hazard: BACKUP-3
    #[test]
    fn a_file_for_an_archive_says_so_and_nothing_else_changes() {
        for (version, checksum_at) in LAYOUTS {
            let before = sealed(version, checksum_at);
            let after = ControlFile::in_archive_recovery(&before, Lsn(0x1234)).unwrap();
            let control = ControlFile::parse(&after).unwrap();
            assert_eq!(control.state, ClusterState::InArchiveRecovery);
            assert_eq!(control.min_recovery_point, Lsn(0x1234));
            assert_eq!(control.min_recovery_timeline, control.timeline);
            let changed = (0..before.len()).filter(|at| before[*at] != after[*at]);
            let mut places = changed.map(|at| match at {
                16..20 | 136..148 => true,
                at => (checksum_at..checksum_at + 4).contains(&at),
            });
            assert!(places.all(|is_one| is_one));
        }
    }

    /// Control files of clusters made by these versions with these settings.
    #[test]
    fn real_control_files_are_read() {
        let capacity = Capacity {
            max_connections: 77,
            max_worker_processes: 9,
            max_wal_senders: 12,
            max_prepared_transactions: 3,
            max_locks_per_transaction: 65,
        };
        for (bytes, version, checkpoint, next_xid, checksums) in [
            (
                &include_bytes!("../tests/control/13.pg_control")[..],
                1300,
                0x191C868,
                652,
                0,
            ),
            (
                include_bytes!("../tests/control/14.pg_control"),
                1300,
                0x1A1DB18,
                900,
                0,
            ),
            (
                include_bytes!("../tests/control/16.pg_control"),
                1300,
                0x1820328,
                898,
                0,
            ),
            (
                include_bytes!("../tests/control/17.pg_control"),
                1700,
                0x181E260,
                906,
                0,
            ),
            (
                include_bytes!("../tests/control/18.pg_control"),
                1800,
                0x1B1E6F0,
                920,
                1,
            ),
        ] {
            let control = ControlFile::parse(bytes).unwrap();
            assert_eq!(control.control_version, version);
            assert_eq!(
                (control.checkpoint, control.redo),
                (Lsn(checkpoint), Lsn(checkpoint))
            );
            assert_eq!(control.next_xid, Xid8(next_xid));
            assert_eq!(control.state, ClusterState::ShutDown);
            assert_eq!(control.timeline, TimelineId(1));
            assert_eq!(control.wal_level, WalLevel::Logical);
            assert!(control.wal_log_hints);
            assert_eq!(control.capacity, capacity);
            assert_eq!(
                (control.block_size_bytes, control.blocks_per_segment),
                (8192, 131_072)
            );
            assert_eq!(control.segment_size.bytes(), 1 << 20);
            assert_eq!(control.data_checksum_version, checksums);
        }
    }

    #[test]
    fn damage_anywhere_is_noticed() {
        let whole = sealed(1300, 288);
        for at in [0, 16, 100, 287, 288, 291] {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            let error = ControlFile::parse(&damaged).unwrap_err();
            assert!(
                matches!(error, ControlError::Checksum { .. }),
                "{at}: {error}"
            );
        }
        assert_eq!(
            ControlFile::parse(&whole[..290]),
            Err(ControlError::Short(290))
        );
        assert_eq!(ControlFile::parse(&[]), Err(ControlError::Short(0)));
    }

    #[test]
    fn an_unknown_version_says_which_are_known() {
        let error = ControlFile::parse(&sealed(1201, 288))
            .unwrap_err()
            .to_string();
        assert!(error.contains("1201") && error.contains("1300") && error.contains("1800"));
    }

    #[test]
    fn capacity_is_compared_one_by_one() {
        let small = Capacity {
            max_connections: 10,
            max_wal_senders: 10,
            ..Capacity::default()
        };
        let large = Capacity {
            max_connections: 20,
            max_wal_senders: 5,
            ..Capacity::default()
        };
        assert!(!small.covers(large) && !large.covers(small));
        assert!(small.max(large).covers(small) && small.max(large).covers(large));
    }
}
