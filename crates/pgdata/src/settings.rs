//! Settings of the PostgreSQL servers that run on a volume.
//!
//! Three kinds. What must hold for correctness is *pinned*: passed as `-c name=value` on the command
//! line, which beats every configuration file ([`active`], [`standby`]; hazards section 5, N4, N12).
//! What is only a good start is written once, by `init`, at the end of `postgresql.conf`
//! ([`DEFAULTS`]), where its owner may change it. What the shared configuration must not say is
//! refused by [`check`].
//!
//! Invariant: every pinned setting exists in the version that it is pinned for, and a standby's
//! contain the active's, because after a promotion the same process is the active.

use std::time::Duration;

use crate::control::Capacity;

mod configuration;
mod managed;
mod node_file;
mod ordered;
mod pending;
mod version;

pub use configuration::{Configuration, NODE_FILE, Refusal, check};
pub use managed::{
    is_parameter_name, quoted, why_controlled, with_parameters, with_suitable, without_controlled,
};
pub use node_file::{is_node_file, node_file, with_node_file};
pub use ordered::{is_ordered, ordered, why_strict};
pub use pending::Derived;
pub use version::{MajorVersion, VersionError};

/// A setting pinned on the command line, to be passed as `-c name=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Name of the parameter.
    pub name: &'static str,
    /// Its value, unquoted.
    pub value: String,
}

impl Setting {
    pub(crate) fn new(name: &'static str, value: impl Into<String>) -> Setting {
        Setting {
            name,
            value: value.into(),
        }
    }
}

/// The arguments of a `postgres` command line.
pub fn arguments(settings: &[Setting]) -> Vec<String> {
    settings
        .iter()
        .flat_map(|setting| {
            [
                "-c".to_owned(),
                format!("{}={}", setting.name, setting.value),
            ]
        })
        .collect()
}

/// What a standby's command line depends on.
#[derive(Debug, Clone)]
pub struct StandbyOptions {
    /// `Feed::connection_string`.
    pub primary_conninfo: String,
    /// The larger of the configuration's and the seal's (N12).
    pub capacity: Capacity,
    /// `archive_mode` of the configuration, if it has one.
    pub archive_mode: Option<String>,
    /// How long redo waits for queries in its way before it cancels them (N13). A takeover does not
    /// wait for them.
    pub query_delay: Duration,
    /// True if it reports the rows that its queries need, for [`feedback`](crate::feedback).
    pub feedback: bool,
    /// True if the mount reads ahead of redo. PostgreSQL's own announcements would have the kernel
    /// cache the same blocks once more, where nobody reads them (rule 8).
    pub reads_ahead: bool,
    /// True if the background writer keeps clean buffers ready for redo: unless the configuration says how it
    /// is to work ([`Configuration::tunes_background_writer`]). Redo alone has to write a page before it reads
    /// the next, once its buffers are full.
    pub cleans_ahead: bool,
}

/// What is pinned on the active.
pub fn active(version: MajorVersion) -> Vec<Setting> {
    let mut pinned: Vec<Setting> = [
        // Block writes are atomic and sealed generations are complete: no torn pages.
        ("full_page_writes", "off"),
        // Segments appear with zeros; recycled ones would show old bytes past the replay limit (H8).
        ("wal_init_zero", "off"),
        ("wal_recycle", "off"),
        // fsync is the volume's sync point, and a synchronous write of log (O_DSYNC) asks for both in one request.
        ("fsync", "on"),
        ("wal_sync_method", "open_datasync"),
        // The agent decides, not the postmaster (H9, N4).
        ("restart_after_crash", "off"),
        // Anything that would hide a fault.
        ("zero_damaged_pages", "off"),
        ("ignore_checksum_failure", "off"),
        ("ignore_invalid_pages", "off"),
    ]
    .into_iter()
    .map(|(name, value)| Setting::new(name, value))
    .collect();
    if version.number() >= 18 {
        // The mount has no copy-on-write of its own: N9.
        pinned.push(Setting::new("file_copy_method", "copy"));
    }
    pinned
}

/// What is pinned on a standby; contains what is pinned on the active.
pub fn standby(version: MajorVersion, options: &StandbyOptions) -> Vec<Setting> {
    let mut pinned = active(version);
    let fixed = [
        ("hot_standby", "on"),
        ("recovery_target_timeline", "latest"),
        ("recovery_target", ""),
        ("recovery_target_lsn", ""),
        ("recovery_target_name", ""),
        ("recovery_target_time", ""),
        ("recovery_target_xid", ""),
        ("recovery_min_apply_delay", "0"),
        // The shared configuration may carry these; they would prune a live archive (section 5).
        ("restore_command", ""),
        ("archive_cleanup_command", ""),
        ("recovery_end_command", ""),
        ("primary_slot_name", ""),
        ("wal_receiver_create_temp_slot", "off"),
        // How soon a broken feed is tried again, and progress reported.
        ("wal_retrieve_retry_interval", "100ms"),
        ("wal_receiver_status_interval", "1s"),
    ];
    pinned.extend(
        fixed
            .into_iter()
            .map(|(name, value)| Setting::new(name, value)),
    );
    if version.number() >= 14 {
        // Not a pass over every file at each start after a crash (H13).
        pinned.push(Setting::new("recovery_init_sync_method", "syncfs"));
    }
    if version.number() >= 15 && options.reads_ahead {
        pinned.push(Setting::new("recovery_prefetch", "off"));
    }
    if options.cleans_ahead {
        // Its defaults clean 500 pages a second.
        pinned.push(Setting::new("bgwriter_delay", "20ms"));
        pinned.push(Setting::new("bgwriter_lru_maxpages", "1000"));
    }
    if version.number() >= 17 {
        pinned.push(Setting::new("sync_replication_slots", "off"));
    }
    if options
        .archive_mode
        .as_deref()
        .is_some_and(|mode| mode.eq_ignore_ascii_case("always"))
    {
        // A standby would archive everything once more.
        pinned.push(Setting::new("archive_mode", "on"));
    }
    let delay = format!("{}ms", options.query_delay.as_millis());
    pinned.push(Setting::new("max_standby_streaming_delay", delay.as_str()));
    pinned.push(Setting::new("max_standby_archive_delay", delay));
    let feedback = if options.feedback { "on" } else { "off" };
    pinned.push(Setting::new("hot_standby_feedback", feedback));
    pinned.push(Setting::new(
        "primary_conninfo",
        options.primary_conninfo.as_str(),
    ));
    pinned.extend(capacity(options.capacity));
    pinned
}

/// How many pages of `page_bytes` a server's `shared_buffers` hold; PostgreSQL's default if nothing is
/// said, or nothing that is understood.
pub fn buffers(shared_buffers: Option<&str>, page_bytes: u64) -> u64 {
    const DEFAULT_BYTES: u64 = 128 << 20;
    let bytes = shared_buffers.and_then(|text| memory_bytes(text, page_bytes));
    bytes.unwrap_or(DEFAULT_BYTES) / page_bytes.max(1)
}

/// An amount of memory as PostgreSQL reads it; a number alone counts `unit_bytes`.
fn memory_bytes(text: &str, unit_bytes: u64) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let unit_bytes = match unit.trim() {
        "" => unit_bytes,
        "B" => 1,
        "kB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        "TB" => 1 << 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit_bytes)
}

/// The five settings that a hot standby must not undercut.
pub fn capacity(capacity: Capacity) -> [Setting; 5] {
    let setting = |name, value: u32| Setting::new(name, value.to_string());
    [
        setting("max_connections", capacity.max_connections),
        setting("max_worker_processes", capacity.max_worker_processes),
        setting("max_wal_senders", capacity.max_wal_senders),
        setting(
            "max_prepared_transactions",
            capacity.max_prepared_transactions,
        ),
        setting(
            "max_locks_per_transaction",
            capacity.max_locks_per_transaction,
        ),
    ]
}

/// Lines that `init` puts at the end of `postgresql.conf`: sensible on a volume, not required.
pub const DEFAULTS: &str = "
#------------------------------------------------------------------------------
# UNDERSTUDY: good values for a database on a volume; change them as you like.
# What must not be changed is on the servers' command lines.
#------------------------------------------------------------------------------

wal_level = replica
# Every checkpoint seals a generation: short intervals bound replay and old versions.
checkpoint_timeout = 60s
checkpoint_completion_target = 0.8
max_wal_size = 4GB
min_wal_size = 80MB
# As for segments of 16 MB.
wal_buffers = 16MB
# So that archiving begins and ends with a reload: replace the command, which keeps nothing.
archive_mode = on
archive_command = '/bin/true'
";

#[cfg(test)]
mod tests {
    use super::*;

    fn options(archive_mode: Option<&str>) -> StandbyOptions {
        StandbyOptions {
            primary_conninfo: "host=/x".into(),
            capacity: Capacity {
                max_connections: 300,
                ..Capacity::default()
            },
            archive_mode: archive_mode.map(Into::into),
            query_delay: Duration::from_millis(1500),
            feedback: false,
            reads_ahead: true,
            cleans_ahead: true,
        }
    }

    #[test]
    fn buffers_are_counted_as_postgresql_does() {
        for (text, pages) in [
            (Some("128MB"), 16384),
            (Some("1 GB"), 131_072),
            (Some("512kB"), 64),
            (Some("1000"), 1000),
            (None, 16384),
            (Some("plenty"), 16384),
            (Some("1.5GB"), 16384),
        ] {
            assert_eq!(buffers(text, 8192), pages, "{text:?}");
        }
    }

    fn value<'a>(settings: &'a [Setting], name: &str) -> Option<&'a str> {
        let mut found = settings.iter().filter(|setting| setting.name == name);
        let value = found.next().map(|setting| setting.value.as_str());
        assert!(found.next().is_none(), "{name} is pinned twice");
        value
    }

    // hazard: H9
    #[test]
    fn a_standbys_settings_contain_the_actives() {
        for version in MajorVersion::SUPPORTED {
            let standby = standby(version, &options(None));
            for setting in active(version) {
                assert_eq!(value(&standby, setting.name), Some(setting.value.as_str()));
            }
            assert_eq!(value(&standby, "max_connections"), Some("300"));
            assert_eq!(value(&standby, "restart_after_crash"), Some("off"));
        }
    }

    #[test]
    fn queries_on_a_standby_are_the_operators_business() {
        let version = MajorVersion::new(15).unwrap();
        let with = |feedback| {
            let options = StandbyOptions {
                feedback,
                ..options(None)
            };
            standby(version, &options)
        };
        for delay in ["max_standby_streaming_delay", "max_standby_archive_delay"] {
            assert_eq!(value(&with(false), delay), Some("1500ms"));
        }
        assert_eq!(value(&with(false), "hot_standby_feedback"), Some("off"));
        assert_eq!(value(&with(true), "hot_standby_feedback"), Some("on"));
    }

    #[test]
    fn a_standby_never_archives() {
        let version = MajorVersion::new(15).unwrap();
        assert_eq!(
            value(&standby(version, &options(Some("always"))), "archive_mode"),
            Some("on")
        );
        assert_eq!(
            value(&standby(version, &options(Some("on"))), "archive_mode"),
            None
        );
    }

    // hazard: H13
    #[test]
    fn settings_are_those_of_the_version() {
        let at = |number| standby(MajorVersion::new(number).unwrap(), &options(None));
        assert_eq!(value(&at(13), "recovery_init_sync_method"), None);
        assert_eq!(value(&at(14), "recovery_init_sync_method"), Some("syncfs"));
        assert_eq!(value(&at(14), "recovery_prefetch"), None);
        assert_eq!(value(&at(15), "recovery_prefetch"), Some("off"));
        assert_eq!(value(&at(17), "file_copy_method"), None);
        assert_eq!(value(&at(18), "file_copy_method"), Some("copy"));
    }

    #[test]
    fn the_background_writer_works_as_the_configuration_says_if_it_says_so() {
        let version = MajorVersion::new(15).unwrap();
        let pinned = |text: &str| {
            let configuration = Configuration::parse([text]);
            let options = StandbyOptions {
                cleans_ahead: !configuration.tunes_background_writer(),
                ..options(None)
            };
            value(&standby(version, &options), "bgwriter_lru_maxpages").map(ToOwned::to_owned)
        };
        assert_eq!(pinned("work_mem = 8MB").as_deref(), Some("1000"));
        assert_eq!(pinned("bgwriter_delay = 1s"), None);
        assert_eq!(
            pinned("bgwriter = 1\ncheckpoint_timeout = 1h").as_deref(),
            Some("1000")
        );
    }

    #[test]
    fn arguments_are_pairs() {
        let settings = [
            Setting::new("fsync", "on"),
            Setting::new("restore_command", ""),
        ];
        assert_eq!(
            arguments(&settings),
            ["-c", "fsync=on", "-c", "restore_command="]
        );
    }
}
