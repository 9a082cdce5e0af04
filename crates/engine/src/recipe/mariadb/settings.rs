//! Which settings of MariaDB an operator may choose: what the agent sets itself, what would lose acknowledged
//! commits, what must stay inside the volume, and what is safe and worth a warning.
//!
//! Invariant: a setting that is not safe is refused however its name is written. MariaDB takes the beginning of a
//! name for the name, and words before it (`loose_`, `skip_`); neither passes here.

use std::collections::BTreeMap;

/// Set by the agent; the reason is the rest of a sentence.
const RESERVED: [(&str, &str); 12] = [
    ("datadir", "it is the mounted volume"),
    ("socket", "it is in the node's run directory"),
    ("pid_file", "it is in the node's run directory"),
    ("log_error", "it is <data>/server.log"),
    ("port", "use engine.port"),
    ("bind_address", "use engine.listen"),
    ("user", "use engine.run_as"),
    ("tmpdir", "it is a local directory"),
    ("innodb_temp_data_file_path", "it is a private file"),
    (
        "innodb_data_home_dir",
        "all of the database is in the volume",
    ),
    (
        "innodb_log_group_home_dir",
        "all of the database is in the volume",
    ),
    (
        "innodb_undo_directory",
        "all of the database is in the volume",
    ),
];

/// A setting and the only values that lose nothing; the reason is the rest of a sentence.
const DURABLE: [(&str, &[&str], &str); 5] = [
    (
        "innodb_flush_log_at_trx_commit",
        &["1", "3"],
        "with another value acknowledged transactions are lost when the server or its machine is",
    ),
    (
        "sync_binlog",
        &["1"],
        "with another value the binary log lacks acknowledged transactions after a takeover",
    ),
    (
        "innodb_flush_method",
        &["O_DIRECT", "O_DSYNC", "fsync"],
        "with another value nothing is synced to the zones",
    ),
    (
        "innodb_read_only",
        &["OFF", "0", "false"],
        "a read-only server cannot recover",
    ),
    (
        "rocksdb_flush_log_at_trx_commit",
        &["1"],
        "with another value acknowledged transactions of MyRocks are lost when the machine is",
    ),
];

/// Names of files that must be in the volume: the server reads them again when it recovers.
const INSIDE: [&str; 6] = [
    "log_bin",
    "log_bin_index",
    "relay_log",
    "relay_log_index",
    "aria_log_dir_path",
    "innodb_data_file_path",
];

const DOUBLEWRITE: &str = "innodb_doublewrite";

/// What MariaDB takes off the front of a setting's name.
const PREFIXES: [&str; 5] = ["loose_", "skip_", "disable_", "enable_", "maximum_"];

fn guarded() -> impl Iterator<Item = &'static str> {
    let reserved = RESERVED.iter().map(|(name, _)| *name);
    let durable = DURABLE.iter().map(|(name, ..)| *name);
    let rest = INSIDE.into_iter().chain([DOUBLEWRITE]);
    reserved.chain(durable).chain(rest)
}

/// Refuses what cannot be, or would lose commits.
pub(super) fn check(parameters: &BTreeMap<String, String>) -> Result<(), String> {
    for (name, value) in parameters {
        check_one(name, value)?;
    }
    Ok(())
}

fn check_one(name: &str, value: &str) -> Result<(), String> {
    let key = format!("engine.parameters.{name}");
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    if name.is_empty() || !name.bytes().all(plain) {
        return Err(format!(
            "\"{key}\": write the name of a MariaDB system variable in small letters with underscores"
        ));
    }
    if value.contains(['\0', '\n']) {
        return Err(format!(
            "\"{key}\": the value contains a line break or a zero byte"
        ));
    }
    if let Some(meant) = means(name) {
        return Err(format!(
            "\"{key}\" is another way to write {meant}: use that name"
        ));
    }
    if let Some((_, why)) = RESERVED.iter().find(|(reserved, _)| *reserved == name) {
        return Err(format!("\"{key}\" cannot be set here: {why}"));
    }
    let durable = DURABLE.iter().find(|(durable, ..)| *durable == name);
    if let Some((_, safe, why)) = durable
        && !safe.iter().any(|safe| safe.eq_ignore_ascii_case(value))
    {
        let safe = safe.join(" or ");
        return Err(format!("\"{key}\" = {value} is refused: {why}; use {safe}"));
    }
    // A list of files is written with semicolons.
    let outside = [";/", "..", "~"];
    let outside = value.starts_with('/') || outside.iter().any(|path| value.contains(path));
    if INSIDE.contains(&name) && outside {
        return Err(format!(
            "\"{key}\" = {value} is refused: what is outside of the volume is lost with the machine, and recovery \
             needs it; use a name without a directory"
        ));
    }
    Ok(())
}

/// The guarded setting that a name stands for without being it.
fn means(name: &str) -> Option<&'static str> {
    if guarded().any(|guarded| guarded == name) {
        return None;
    }
    let mut bare = name;
    while let Some(rest) = PREFIXES.iter().find_map(|prefix| bare.strip_prefix(prefix)) {
        bare = rest;
    }
    let mut names = guarded();
    (!bare.is_empty())
        .then(|| names.find(|guarded| guarded.starts_with(bare)))
        .flatten()
}

/// Refuses to write pages in place that may be torn.
pub(super) fn check_doublewrite(
    parameters: &BTreeMap<String, String>,
    page_bytes: u32,
    block_bytes: u32,
) -> Result<(), String> {
    let off = parameters
        .get(DOUBLEWRITE)
        .is_some_and(|value| !is_on(value));
    if page_bytes > block_bytes && off {
        return Err(format!(
            "\"engine.parameters.{DOUBLEWRITE}\" = OFF is refused: InnoDB's pages of {page_bytes} bytes do not fit \
             the volume's blocks of {block_bytes}, so one can be torn when the machine is lost; leave it on"
        ));
    }
    Ok(())
}

/// What an operator should know of settings that lose nothing.
pub(super) fn warnings(
    parameters: &BTreeMap<String, String>,
    page_bytes: u32,
    block_bytes: u32,
) -> Vec<String> {
    let value = |name: &str| parameters.get(name).map(String::as_str);
    let mut warnings = Vec::new();
    if page_bytes > block_bytes {
        warnings.push(format!(
            "InnoDB's pages of {page_bytes} bytes do not fit the volume's blocks of {block_bytes}: every page is \
             written twice (innodb_doublewrite); make the volume with blocks as large as the pages"
        ));
    } else if value(DOUBLEWRITE).is_some_and(is_on) {
        warnings.push(
            "innodb_doublewrite is on although no page can be torn here: every page is written twice"
                .to_owned(),
        );
    }
    if value("innodb_checksum_algorithm").is_some_and(|value| value.contains("none")) {
        warnings.push(
            "innodb_checksum_algorithm = none: InnoDB will not notice pages that its own faults damage".to_owned(),
        );
    }
    if value("innodb_force_recovery").is_some_and(|value| value != "0") {
        warnings.push(
            "innodb_force_recovery is set: parts of recovery are left out, which can lose data; dump the tables, \
             and remove the setting"
                .to_owned(),
        );
    }
    let engine = value("default_storage_engine").filter(|e| !e.eq_ignore_ascii_case("innodb"));
    if let Some(engine) = engine {
        warnings.push(format!(
            "default_storage_engine = {engine}: only InnoDB's tables are known to survive the loss of a machine \
             with all that was committed"
        ));
    }
    warnings
}

fn is_on(value: &str) -> bool {
    !["off", "0", "false"]
        .iter()
        .any(|off| value.eq_ignore_ascii_case(off))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parameters: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = parameters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        owned.collect()
    }

    fn refusal(name: &str, value: &str) -> String {
        check(&of(&[(name, value)])).unwrap_err()
    }

    // hazard: ENGINE-2
    #[test]
    fn settings_that_would_lose_commits_are_refused_with_the_reason() {
        for (name, value) in [
            ("innodb_flush_log_at_trx_commit", "0"),
            ("innodb_flush_log_at_trx_commit", "2"),
            ("sync_binlog", "0"),
            ("innodb_flush_method", "nosync"),
            ("innodb_flush_method", "O_DIRECT_NO_FSYNC"),
            ("rocksdb_flush_log_at_trx_commit", "2"),
            ("log_bin", "/var/log/mysql/bin"),
            ("log_bin_index", "../index"),
            ("aria_log_dir_path", "/tmp"),
            (
                "innodb_data_file_path",
                "ibdata1:12M;/disk2/ibdata2:12M:autoextend",
            ),
        ] {
            let why = refusal(name, value);
            assert!(why.contains(name) && why.contains("use "), "{why}");
        }
        for (name, value) in [
            ("innodb_flush_log_at_trx_commit", "1"),
            ("log_bin", "bin"),
            ("innodb_data_file_path", "ibdata1:12M:autoextend"),
            ("innodb_doublewrite", "off"),
            ("innodb_read_only_compressed", "OFF"),
        ] {
            check(&of(&[(name, value)])).unwrap();
        }
    }

    // hazard: ENGINE-2
    #[test]
    fn another_way_to_write_a_name_does_not_pass() {
        for name in [
            "innodb_flush_log_at_trx",
            "loose_innodb_flush_log_at_trx_commit",
            "skip_innodb_doublewrite",
            "loose_skip_innodb_double",
            "sync_bin",
            "data",
        ] {
            let why = refusal(name, "0");
            assert!(why.contains("another way to write"), "{why}");
        }
        check(&of(&[("skip_name_resolve", "on")])).unwrap();
    }

    #[test]
    fn settings_of_the_agent_cannot_be_set() {
        for (name, _) in RESERVED {
            assert!(refusal(name, "x").contains("cannot be set here"));
        }
        for name in ["Port", "a-b", "", "x y"] {
            assert!(check(&of(&[(name, "1")])).is_err(), "{name}");
        }
    }

    // hazard: ENGINE-1
    #[test]
    fn pages_that_can_be_torn_are_written_twice_whatever_is_wanted() {
        let off = of(&[("innodb_doublewrite", "OFF")]);
        let why = check_doublewrite(&off, 32 << 10, 16 << 10).unwrap_err();
        assert!(why.contains("torn") && why.contains("32768"), "{why}");
        check_doublewrite(&off, 16 << 10, 16 << 10).unwrap();
        check_doublewrite(&of(&[]), 32 << 10, 16 << 10).unwrap();
    }

    #[test]
    fn safe_and_unusual_settings_are_warned_of() {
        let warned = |name: &str, value: &str| warnings(&of(&[(name, value)]), 1, 1).len();
        assert_eq!(warned("innodb_doublewrite", "ON"), 1);
        assert_eq!(warned("innodb_doublewrite", "OFF"), 0);
        assert_eq!(warned("innodb_checksum_algorithm", "strict_none"), 1);
        assert_eq!(warned("innodb_force_recovery", "1"), 1);
        assert_eq!(warned("innodb_force_recovery", "0"), 0);
        assert_eq!(warned("default_storage_engine", "MyISAM"), 1);
        assert_eq!(warned("default_storage_engine", "InnoDB"), 0);
        assert_eq!(warnings(&of(&[]), 2, 1).len(), 1);
    }
}
