//! The shared configuration, and what it must not say.

use std::collections::BTreeMap;

use crate::control::Capacity;

/// Name of a node's own file, relative to the data directory, which the shared one includes. Names that begin with it are private too.
pub const NODE_FILE: &str = "postgresql.node.conf";

/// Values of configuration files: later ones win, names in lower case. Includes are not followed;
/// for what a server would really use, ask it (`postgres -C name`) and [`set`](Configuration::set).
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Configuration {
    values: BTreeMap<String, String>,
}

impl Configuration {
    /// Reads files in the order in which PostgreSQL does: `postgresql.conf`, then
    /// `postgresql.auto.conf`.
    pub fn parse<'a>(files: impl IntoIterator<Item = &'a str>) -> Configuration {
        let mut configuration = Configuration::default();
        let lines = files.into_iter().flat_map(str::lines);
        for (name, value) in lines.filter_map(assignment) {
            if !includes_node_file(&name, &value) {
                configuration.set(&name, value);
            }
        }
        configuration
    }

    /// Sets one value.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.values.insert(name.to_ascii_lowercase(), value.into());
    }

    /// One value, unquoted.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// True if it says anything of how the background writer works, which is then left to it.
    pub fn tunes_background_writer(&self) -> bool {
        self.values.keys().any(|name| name.starts_with("bgwriter_"))
    }

    /// What a standby must not undercut, with PostgreSQL's defaults where nothing is said.
    pub fn capacity(&self) -> Capacity {
        let number = |name, default| {
            self.get(name)
                .and_then(|value| value.trim().parse().ok())
                .unwrap_or(default)
        };
        Capacity {
            max_connections: number("max_connections", 100),
            max_worker_processes: number("max_worker_processes", 8),
            max_wal_senders: number("max_wal_senders", 10),
            max_prepared_transactions: number("max_prepared_transactions", 0),
            max_locks_per_transaction: number("max_locks_per_transaction", 64),
        }
    }
}

/// `name = value`, where `=` and quotes may be missing, up to a comment.
pub(super) fn assignment(line: &str) -> Option<(String, String)> {
    let line = line.trim_start();
    let name_end = line.find(|c: char| !(c.is_ascii_alphanumeric() || "_.".contains(c)))?;
    let (name, rest) = line.split_at(name_end);
    if name.is_empty() {
        return None;
    }
    let rest = rest.trim_start();
    let rest = rest.strip_prefix('=').unwrap_or(rest).trim_start();
    let value = match rest.strip_prefix('\'') {
        Some(quoted) => unquote(quoted),
        None => rest
            .split(|c: char| c == '#' || c.is_whitespace())
            .next()?
            .to_owned(),
    };
    Some((name.to_owned(), value))
}

/// True if a line includes the node's own file.
fn includes_node_file(name: &str, value: &str) -> bool {
    name.eq_ignore_ascii_case("include_if_exists") && value == NODE_FILE
}

/// The text up to the closing quote; a quote inside is doubled or escaped.
fn unquote(text: &str) -> String {
    let mut value = String::new();
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\'' if characters.next_if_eq(&'\'').is_none() => break,
            '\\' => value.extend(characters.next()),
            other => value.push(other),
        }
    }
    value
}

/// A setting that a volume cannot be run with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} = {value}: {reason}")]
pub struct Refusal {
    /// The setting.
    pub name: &'static str,
    /// Value that is refused.
    pub value: String,
    /// Why not, and what to do.
    pub reason: &'static str,
}

/// A setting, the values refused, and the reason.
type Rule = (&'static str, fn(&str) -> bool, &'static str);

const RULES: [Rule; 3] = [
    (
        "wal_level",
        |value| value.eq_ignore_ascii_case("minimal"),
        "the log would lack what a standby must replay; set it to replica or logical",
    ),
    (
        "fsync",
        is_off,
        "commits would be acknowledged before they are durable; set it to on",
    ),
    (
        "synchronous_standby_names",
        |value| !value.trim().is_empty(),
        "commits would wait for a standby that streams from the server, which the volume's \
             standbys do not; leave it empty, the storage already replicates synchronously",
    ),
];
/// Checks a shared configuration, at `init` and import.
///
/// # Errors
/// All that must be changed first.
pub fn check(configuration: &Configuration) -> Result<(), Vec<Refusal>> {
    let refused: Vec<Refusal> = RULES
        .into_iter()
        .filter_map(|(name, refuses, reason)| {
            let value = configuration
                .get(name)
                .filter(|value| refuses(value))?
                .to_owned();
            Some(Refusal {
                name,
                value,
                reason,
            })
        })
        .collect();
    if refused.is_empty() {
        Ok(())
    } else {
        Err(refused)
    }
}

/// True if PostgreSQL reads a boolean as false: any unambiguous beginning of these words.
fn is_off(value: &str) -> bool {
    let value = value.trim().to_ascii_lowercase();
    let begins = |word: &str, least: usize| value.len() >= least && word.starts_with(&value);
    value == "0" || begins("off", 2) || begins("false", 1) || begins("no", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: &str = "# PostgreSQL configuration file\n\
        #fsync = off\n\
        max_connections = 250   # change requires restart\n\
        Log_Line_Prefix = '%m [%p] it''s \\'so\\' '\n\
        wal_level minimal\n\
        include_dir 'conf.d'\n";

    #[test]
    fn files_are_read_as_postgresql_does() {
        let configuration = Configuration::parse([MAIN, "wal_level = 'logical'\n"]);
        assert_eq!(configuration.get("fsync"), None);
        assert_eq!(configuration.get("wal_level"), Some("logical"));
        assert_eq!(
            configuration.get("log_line_prefix"),
            Some("%m [%p] it's 'so' ")
        );
        let capacity = configuration.capacity();
        assert_eq!(
            (capacity.max_connections, capacity.max_worker_processes),
            (250, 8)
        );
    }

    #[test]
    fn settings_that_lose_commits_are_refused_with_the_reason() {
        let refused = |text| check(&Configuration::parse([text])).unwrap_err();
        assert_eq!(refused(MAIN)[0].name, "wal_level");
        for off in ["off", "OFF", "of", "false", "f", "no", "n", "0"] {
            let line = format!("fsync = {off}\n");
            let error = check(&Configuration::parse([line.as_str()])).unwrap_err();
            assert_eq!(error.len(), 1, "{off}");
            assert!(error[0].to_string().contains("durable"));
        }
        assert_eq!(
            refused("synchronous_standby_names = '*'\nfsync = off\n").len(),
            2
        );
        for fine in [
            "fsync = on\n",
            "fsync = o\n",
            "wal_level = replica\n",
            "",
            MAIN_FINE,
        ] {
            assert_eq!(check(&Configuration::parse([fine])), Ok(()), "{fine}");
        }
    }

    const MAIN_FINE: &str = "synchronous_standby_names = ''\nfsync=yes\nwal_level=logical\n";
}
