//! Keys that have another name since an earlier version. The old name works, and a warning says the new one.
//!
//! A struct reads the old name as a `serde` alias; this list lets [`super::check_keys`] accept it, warn of it once in a
//! process, and refuse a file that has both names.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use toml::de::{DeTable, DeValue};

use super::ConfigError;

/// A key with a new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Renamed {
    /// Table, with the tables that it is in.
    pub table: &'static str,
    /// Name of an earlier version.
    pub old: &'static str,
    /// Name today.
    pub new: &'static str,
}

const fn renamed(table: &'static str, old: &'static str, new: &'static str) -> Renamed {
    Renamed { table, old, new }
}

/// All keys with a new name, of the files of all processes.
pub const RENAMED: &[Renamed] = &[
    renamed("standby", "slow", "on_lag"),
    renamed("standby", "slow_after", "max_lag"),
    renamed("storage", "claim_cap", "max_retained_wal"),
    renamed("storage", "log", "wal_sync"),
    renamed("channel", "drain", "drain_timeout"),
    renamed("proxy.takeover", "decide", "resolve_in_doubt_commits"),
    renamed("proxy.takeover", "replay", "replay_transactions"),
    renamed("vm", "epoch", "checkpoint_interval"),
    renamed("mirror", "ack", "commit_ack"),
];

/// Keys that this process has warned of.
static WARNED: Mutex<BTreeSet<Renamed>> = Mutex::new(BTreeSet::new());

/// True if a table had a key of this name that has a new one among its `known` keys.
pub(super) fn is_old(table: &str, key: &str, known: &[&str]) -> bool {
    let mut all = RENAMED.iter();
    all.any(|of| of.table == table && of.old == key && known.contains(&of.new))
}

/// Returns the keys of a file that have a new name.
///
/// # Errors
/// [`ConfigError::Invalid`] if the new name is there too, `Syntax` if it is no TOML.
pub fn renamed_keys(text: &str) -> Result<Vec<Renamed>, ConfigError> {
    renamed_in(DeTable::parse(text)?.get_ref())
}

fn renamed_in(file: &DeTable<'_>) -> Result<Vec<Renamed>, ConfigError> {
    let mut found = Vec::new();
    for of in RENAMED {
        let Some(table) = inner(file, of.table) else {
            continue;
        };
        if !table.contains_key(of.old) {
            continue;
        }
        if table.contains_key(of.new) {
            let key = format!("{}.{}", of.table, of.old);
            let why = format!(
                "it is the former name of \"{}\", which is set too; remove one",
                of.new
            );
            return Err(ConfigError::invalid(&key, why));
        }
        found.push(*of);
    }
    Ok(found)
}

/// Warns once in a process of each key of a file that has a new name.
///
/// # Errors
/// As [`renamed_keys`].
pub(super) fn warn_of_renamed(file: &DeTable<'_>) -> Result<(), ConfigError> {
    for of in renamed_in(file)? {
        if WARNED.lock().insert(of) {
            tracing::warn!(
                "the key \"{}\" of [{}] has a new name: write \"{}\"",
                of.old,
                of.table,
                of.new
            );
        }
    }
    Ok(())
}

fn inner<'a, 'b>(file: &'a DeTable<'b>, path: &str) -> Option<&'a DeTable<'b>> {
    let mut table = file;
    for name in path.split('.') {
        match table.get(name)?.get_ref() {
            DeValue::Table(inner) => table = inner,
            _ => return None,
        }
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys_of(text: &str) -> Result<Vec<(&'static str, &'static str)>, String> {
        let found = renamed_keys(text).map_err(|error| error.to_string())?;
        Ok(found.into_iter().map(|of| (of.old, of.new)).collect())
    }

    #[test]
    fn old_names_are_found_with_their_new_ones() {
        let text = "[standby]\nslow = \"skip\"\n[proxy.takeover]\nreplay = true";
        let expected = vec![("slow", "on_lag"), ("replay", "replay_transactions")];
        assert_eq!(keys_of(text), Ok(expected));
        assert_eq!(keys_of("[standby]\non_lag = \"skip\"\n[vm]"), Ok(vec![]));
        assert_eq!(keys_of("standby = 1\nslow = 2"), Ok(vec![]));
    }

    #[test]
    fn both_names_are_refused_in_every_file() {
        for of in RENAMED {
            let text = format!("[{}]\n{} = 1\n{} = 1", of.table, of.old, of.new);
            let refused = keys_of(&text).expect_err("both");
            assert!(
                refused.contains(of.old) && refused.contains(of.new),
                "{refused}"
            );
        }
    }
}
