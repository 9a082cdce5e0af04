//! What a volume must be told about the paths of the database that it hosts.

use crate::lsn::Lsn;

/// How the blocks of a file are kept (design: file classes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum FileClass {
    /// The write-ahead log: one version per block, read by standbys up to the replay limit.
    Log,
    /// The database: one version per block and generation.
    Data,
    /// Configuration: one version, the latest wins.
    Live,
    /// On this node's local disk, never shared.
    Private,
}

/// The rules of the hosted database's directory tree. Paths are relative to the volume's root, with
/// `/` between components and none in front; the root itself is `""`.
pub trait Layout: Send + Sync + 'static {
    /// The class of a file or directory, on the active.
    fn class(&self, path: &str) -> FileClass;

    /// The class of a file or directory on a standby, where more is private (its own control file,
    /// two-phase state, ...). Defaults to the active's.
    fn standby_class(&self, path: &str) -> FileClass {
        self.class(path)
    }

    /// Names of the base that a standby must not see at all (`backup_label`, ...).
    fn hidden_on_standby(&self, path: &str) -> bool;

    /// For a file name inside a data directory: the name whose presence in the same directory of
    /// the base makes this one invisible to a standby (rule 7: other forks of unlogged relations
    /// are hidden by `<number>_init`). `None` if nothing can hide it.
    fn hidden_by(&self, name: &str) -> Option<String>;

    /// For a file that is part of something whose main file is another one in the same directory:
    /// that one's name. What is removed is removed whole, but parts that the log does not tell of (an
    /// empty visibility map) redo may never have seen.
    fn main_of(&self, _name: &str) -> Option<String> {
        None
    }

    /// Why no directory may be made at a path by the database, if so.
    fn refuses_directory(&self, _path: &str) -> Option<&'static str> {
        None
    }

    /// For a log file: the log positions of its first byte and of the byte after its last, if it is
    /// one that the replay limit applies to (a segment). Files without (history files) are shown whole.
    fn log_range(&self, path: &str) -> Option<std::ops::Range<Lsn>>;

    /// For a log file with positions: the timeline that it belongs to. A standby shows of such a file what is part of
    /// the history of the log. `None` if the database has no timelines.
    fn log_timeline(&self, _path: &str) -> Option<u32> {
        None
    }

    /// Private directories that must exist before the database starts, parents first.
    fn private_directories(&self, standby: bool) -> Vec<String>;

    /// What of a standby's private files becomes the shared state at a takeover, in the order of
    /// publishing: its control file first, then directories, which become exactly the private ones.
    fn published_at_switch(&self) -> Vec<String> {
        Vec::new()
    }

    /// Directories of which a standby's names become shared ones at a takeover, beside those that are there.
    fn added_at_switch(&self) -> Vec<String> {
        Vec::new()
    }

    /// Shared directories that a takeover makes if they are missing, because an earlier version had none.
    fn needed_directories(&self) -> Vec<String> {
        Vec::new()
    }

    /// The database's control file: writes to it go through the active's observer, which seals
    /// around a checkpoint.
    fn control_file(&self) -> &str {
        "global/pg_control"
    }
}
