//! Unknown keys are refused with their line and the known key that looks most like them.
//!
//! A key that is silently ignored is a setting that the operator believes in and does not have.

use toml::de::{DeTable, DeValue};

use super::ConfigError;

/// Keys of the top level and of each table. `postgres.parameters` takes any PostgreSQL parameter.
pub(super) const KEYS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "name",
            "volume",
            "zones",
            "store",
            "cassandra",
            "key",
            "data",
            "postgres",
            "heartbeat",
            "channel",
            "rest",
            "memory",
            "storage",
            "standby",
            "tags",
            "tls",
        ],
    ),
    (
        "postgres",
        &[
            "bin",
            "port",
            "listen_addresses",
            "run_as",
            "superuser",
            "log_size",
            "log_kept",
            "advertise",
            "parameters",
        ],
    ),
    (
        "heartbeat",
        &["preset", "interval", "timeout", "poll", "grace"],
    ),
    ("channel", &["listen", "advertise"]),
    (
        "cassandra",
        &[
            "data_centres",
            "copies",
            "fencing",
            "lease",
            "user",
            "ca",
            "certificate",
            "key",
            "plaintext",
        ],
    ),
    (
        "rest",
        &[
            "listen",
            "advertise",
            "token",
            "certificate",
            "key",
            "client_ca",
        ],
    ),
    (
        "memory",
        &["pending", "cache", "overlay", "kernel_cache", "warm_every"],
    ),
    ("storage", &["scrub_every", "scrub_rate", "claim_cap"]),
    (
        "standby",
        &[
            "prefetch",
            "slow",
            "slow_after",
            "max_streaming_delay",
            "feedback",
        ],
    ),
    (
        "tags",
        &["failover_zone", "nofailover", "priority", "spare", "zone"],
    ),
    ("tls", &["identity", "certificate", "key", "ca"]),
];

/// Refuses the first key that no table knows.
pub(super) fn check(text: &str, table: &DeTable<'_>) -> Result<(), ConfigError> {
    check_table(text, "", table)?;
    for (key, value) in table {
        let known = KEYS.iter().any(|(name, _)| *name == key.get_ref().as_ref());
        if let (true, DeValue::Table(inner)) = (known, value.get_ref()) {
            check_table(text, key.get_ref(), inner)?;
        }
    }
    Ok(())
}

fn check_table(text: &str, name: &str, table: &DeTable<'_>) -> Result<(), ConfigError> {
    let known = KEYS
        .iter()
        .find(|(n, _)| *n == name)
        .map_or(&[][..], |(_, k)| k);
    for key in table.keys() {
        let found = key.get_ref().as_ref();
        if known.contains(&found) {
            continue;
        }
        let path = match name {
            "" => found.to_owned(),
            _ => format!("{name}.{found}"),
        };
        return Err(ConfigError::UnknownKey {
            line: text[..key.span().start].matches('\n').count() + 1,
            advice: advice(name, found, known),
            key: path,
        });
    }
    Ok(())
}

fn advice(table: &str, found: &str, known: &[&str]) -> String {
    // The right word in the wrong table comes before a similar word.
    let elsewhere = KEYS.iter().find(|(t, k)| *t != table && k.contains(&found));
    match (elsewhere, nearest(found, known)) {
        (Some(("", _)), _) => "it belongs to the top level, before the first [table]".to_owned(),
        (Some((other, _)), _) => format!("it belongs to [{other}]"),
        (None, Some(near)) => format!("did you mean \"{near}\"?"),
        (None, None) => format!("known keys are {}", known.join(", ")),
    }
}

/// The candidate that needs the fewest edits, if it is near enough to be meant.
fn nearest<'a>(found: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let limit = 1 + found.chars().count() / 3;
    candidates
        .iter()
        .map(|c| (edits(found, c), *c))
        .filter(|(n, _)| *n <= limit)
        .min()
        .map(|(_, c)| c)
}

/// Levenshtein's distance: insertions, removals and replacements between two words.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let known = ["interval", "timeout", "poll", "preset"];
        assert_eq!(nearest("intervall", &known), Some("interval"));
        assert_eq!(nearest("time_out", &known), Some("timeout"));
        assert_eq!(nearest("colour", &known), None);
        assert_eq!(edits("kitten", "sitting"), 3);
    }
}
