//! The part of `postgresql.conf` that the cluster's configuration writes, and which parameters it may
//! not set.
//!
//! The part stands at the end of the file between two lines of its own. Invariant: everything else in
//! the file stays as its owner wrote it, byte for byte.

use std::collections::BTreeMap;

use super::configuration::assignment;

const BEGIN: &str =
    "# UNDERSTUDY: parameters of the cluster; change them with understudy edit-config";
const END: &str = "# UNDERSTUDY: end of the cluster's parameters";
const SUITABLE: &str =
    "# UNDERSTUDY: suitable where the active is; any other line, or edit-config, overrides these";
const SUITABLE_END: &str = "# UNDERSTUDY: end of what is suitable";

/// What the nodes control themselves, and why, or what to use instead.
const CONTROLLED: &[(&str, &str)] = &[
    ("port", "each node's own: [postgres] port"),
    (
        "listen_addresses",
        "each node's own: [postgres] listen_addresses",
    ),
    ("include", "files are not parameters"),
    ("include_dir", "files are not parameters"),
    ("include_if_exists", "files are not parameters"),
    ("data_directory", "it is where the node mounts the volume"),
    ("config_file", "it is in the volume"),
    (
        "unix_socket_directories",
        "every client of the agent's socket is superuser, so it stays in <data>/run",
    ),
    ("external_pid_file", "the agent keeps its own"),
    (
        "logging_collector",
        "the agent keeps the log: <data>/postgresql.log",
    ),
    (
        "log_destination",
        "the agent keeps the log: <data>/postgresql.log",
    ),
    ("lc_messages", "the agent reads the log, in English"),
    ("hot_standby", "standbys always answer queries"),
    (
        "hot_standby_feedback",
        "each node's own: [standby] feedback",
    ),
    (
        "max_standby_streaming_delay",
        "each node's own: [standby] max_streaming_delay",
    ),
    (
        "max_standby_archive_delay",
        "[standby] max_streaming_delay is used for both",
    ),
    ("full_page_writes", "block writes are atomic on a volume"),
    ("wal_init_zero", "segments appear with zeros on a volume"),
    (
        "wal_recycle",
        "recycled segments would show old log to standbys",
    ),
    ("fsync", "without it nothing is durable"),
    (
        "wal_sync_method",
        "the mount is quickest with open_datasync",
    ),
    ("restart_after_crash", "the agent decides"),
    ("zero_damaged_pages", "it would hide a fault"),
    ("ignore_checksum_failure", "it would hide a fault"),
    ("ignore_invalid_pages", "it would hide a fault"),
    ("file_copy_method", "the mount has no copy-on-write"),
    ("primary_conninfo", "standbys follow the volume"),
    ("primary_slot_name", "standbys follow the volume"),
    ("restore_command", "standbys follow the volume"),
    ("archive_cleanup_command", "it would prune a live archive"),
    ("recovery_end_command", "standbys follow the volume"),
    (
        "recovery_min_apply_delay",
        "a standby must be able to take over",
    ),
    ("recovery_init_sync_method", "the agent decides"),
    (
        "wal_receiver_create_temp_slot",
        "standbys follow the volume",
    ),
    ("wal_receiver_status_interval", "the agent decides"),
    ("wal_retrieve_retry_interval", "the agent decides"),
    ("sync_replication_slots", "standbys follow the volume"),
    (
        "pg_prewarm.autoprewarm",
        "each node's own: [memory] warm_every",
    ),
];

/// Why the cluster's configuration may not set this parameter; `None` if it may.
pub fn why_controlled(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    if name.starts_with("recovery_target") {
        return Some("standbys follow the volume to its end");
    }
    let found = CONTROLLED
        .iter()
        .find(|(controlled, _)| *controlled == name);
    found.map(|(_, why)| *why)
}

/// What a node gives its server itself, so that a file which says something else has no effect and is complained of at each
/// reload.
const WITHOUT_EFFECT: [&str; 7] = [
    "data_directory",
    "external_pid_file",
    "listen_addresses",
    "log_destination",
    "logging_collector",
    "port",
    "unix_socket_directories",
];
const DISABLED: &str = "#UNDERSTUDY: no effect here: ";

/// `text` of a `postgresql.conf` in which lines without effect are comments.
pub fn without_controlled(text: &str) -> String {
    let disable = |line: &str| match assignment(line) {
        Some((name, _)) if WITHOUT_EFFECT.contains(&name.to_ascii_lowercase().as_str()) => {
            format!("{DISABLED}{line}")
        }
        _ => line.to_owned(),
    };
    text.split_inclusive('\n').map(disable).collect()
}

/// `text` of a `postgresql.conf` with these parameters as its managed part; without one if there are none.
pub fn with_parameters(text: &str, parameters: &BTreeMap<String, String>) -> String {
    let mut out = without(text, BEGIN, END);
    if parameters.is_empty() {
        return out;
    }
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
    out.push_str(&part(BEGIN, parameters, END));
    out
}

/// The same for what the active finds suitable where it runs: in front of everything, so that whatever
/// an operator says of these parameters counts.
pub fn with_suitable(text: &str, parameters: &BTreeMap<String, String>) -> String {
    let rest = without(text, SUITABLE, SUITABLE_END);
    match parameters.is_empty() {
        true => rest,
        false => part(SUITABLE, parameters, SUITABLE_END) + &rest,
    }
}

fn part(begin: &str, parameters: &BTreeMap<String, String>, end: &str) -> String {
    let lines = parameters
        .iter()
        .map(|(name, value)| format!("{name} = {}\n", quoted(value)));
    format!("{begin}\n{}{end}\n", lines.collect::<String>())
}

/// `text` without what is between two lines.
fn without(text: &str, begin: &str, end: &str) -> String {
    let mut inside = false;
    let outside = text.split_inclusive('\n').filter(|line| {
        let line = line.trim_end();
        let was_inside = inside;
        inside = match line {
            line if line == begin => true,
            line if line == end => false,
            _ => inside,
        };
        !(inside || was_inside)
    });
    outside.collect()
}

/// A value as configuration files have it.
pub fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "''"))
}

/// True if this can be a parameter's name, also one of an extension.
pub fn is_parameter_name(name: &str) -> bool {
    let part = |part: &str| {
        let first = |c: char| c.is_ascii_alphabetic() || c == '_';
        let rest = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
        part.starts_with(first) && part.chars().all(rest)
    };
    name.split('.').count() <= 2 && name.split('.').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Configuration;

    fn parameters(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn the_managed_part_comes_last_and_goes_without_a_trace() {
        let own = "work_mem = 4MB\n# mine";
        let with = with_parameters(own, &parameters(&[("work_mem", "8MB")]));
        assert!(with.starts_with("work_mem = 4MB\n# mine\n"));
        assert_eq!(
            Configuration::parse([with.as_str()]).get("work_mem"),
            Some("8MB")
        );
        let changed = with_parameters(&with, &parameters(&[("work_mem", "9MB")]));
        assert_eq!(changed.matches("8MB").count(), 0);
        assert_eq!(changed.matches(BEGIN).count(), 1);
        assert_eq!(
            with_parameters(&changed, &parameters(&[])),
            "work_mem = 4MB\n# mine\n"
        );
        assert_eq!(with_parameters(own, &parameters(&[])), own);
    }

    #[test]
    fn a_line_without_effect_becomes_a_comment() {
        let own = "# port = 1\nport = 5433 # mine\nwork_mem = 4MB\nListen_Addresses '*'";
        let text = without_controlled(own);
        assert_eq!(
            text,
            "# port = 1\n#UNDERSTUDY: no effect here: port = 5433 # mine\nwork_mem = 4MB\n\
             #UNDERSTUDY: no effect here: Listen_Addresses '*'"
        );
        assert_eq!(without_controlled(&text), text);
    }

    #[test]
    fn suitable_settings_come_first_and_operators_override_them() {
        let own = "# mine\ncommit_delay = 7\n";
        let suitable = parameters(&[("commit_delay", "4000"), ("commit_siblings", "3")]);
        let with = with_suitable(own, &suitable);
        let read = Configuration::parse([with.as_str()]);
        assert_eq!(read.get("commit_delay"), Some("7"));
        assert_eq!(read.get("commit_siblings"), Some("3"));
        assert_eq!(with_suitable(&with, &suitable), with);
        let both = with_parameters(&with, &parameters(&[("commit_siblings", "9")]));
        let read = Configuration::parse([both.as_str()]);
        assert_eq!(read.get("commit_siblings"), Some("9"));
        let none = parameters(&[]);
        assert_eq!(with_suitable(&with_parameters(&both, &none), &none), own);
    }

    #[test]
    fn values_come_back_as_they_were() {
        for value in ["it's", r"a\b", "", "%m [%p] ", "'x'"] {
            let text = with_parameters("", &parameters(&[("log_line_prefix", value)]));
            let read = Configuration::parse([text.as_str()]);
            assert_eq!(read.get("log_line_prefix"), Some(value), "{text}");
        }
    }

    #[test]
    fn controlled_settings_are_known_by_any_spelling() {
        assert!(why_controlled("FSYNC").is_some());
        assert!(why_controlled("recovery_target_xid").is_some());
        assert!(why_controlled("work_mem").is_none());
        for name in crate::settings::active(crate::settings::MajorVersion::SUPPORTED[0]) {
            assert!(why_controlled(name.name).is_some(), "{}", name.name);
        }
    }

    // hazard: MIRROR-44
    #[test]
    fn names() {
        for good in ["work_mem", "pg_prewarm.autoprewarm", "_x"] {
            assert!(is_parameter_name(good), "{good}");
        }
        for bad in ["", "a b", "a=b", "a.b.c", "1a", "a\nb", "a."] {
            assert!(!is_parameter_name(bad), "{bad}");
        }
    }
}
