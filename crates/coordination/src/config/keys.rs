//! Unknown keys are refused with their line and the known key that looks most like them.
//!
//! A key that is silently ignored is a setting that the operator believes in and does not have.

use toml::de::{DeTable, DeValue};

use super::ConfigError;
use super::renamed::{is_old, warn_of_renamed};

/// The keys of each table of a file, by the table's name; that of the top level is empty.
pub type Keys<'a> = &'a [(&'a str, &'a [&'a str])];

/// The keys that every process of a cluster has.
pub const SHARED_KEYS: Keys<'_> = &[
    (
        "",
        &[
            "name",
            "volume",
            "zones",
            "store",
            "cassandra",
            "key",
            "heartbeat",
            "memory",
            "tags",
            "tls",
        ],
    ),
    (
        "heartbeat",
        &["preset", "interval", "timeout", "poll", "grace"],
    ),
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
    ("memory", &["pending", "differences"]),
    ("tags", &["zone"]),
    ("tls", &["identity", "certificate", "key", "ca"]),
];

/// Refuses the first key of a file that is neither shared nor one of `own`, and warns of keys by a former name. A table of
/// which no keys are known is for whoever reads it to check.
///
/// # Errors
/// [`ConfigError::UnknownKey`] with its line and what was probably meant, `Invalid` if a key is there by its former name too,
/// `Syntax` if it is no TOML.
pub fn check_keys(text: &str, own: Keys<'_>) -> Result<(), ConfigError> {
    let table = DeTable::parse(text)?;
    let table = table.get_ref();
    let all = Known { own };
    all.check_table(text, "", table)?;
    for (key, value) in table {
        if let DeValue::Table(inner) = value.get_ref() {
            let name: &str = key.get_ref();
            if all.tables().any(|(table, _)| table == name) {
                all.check_table(text, name, inner)?;
            }
        }
    }
    warn_of_renamed(table)
}

/// What may be in a file.
struct Known<'a> {
    own: Keys<'a>,
}

impl<'a> Known<'a> {
    fn tables(&self) -> impl Iterator<Item = (&'a str, &'a [&'a str])> {
        SHARED_KEYS.iter().chain(self.own).copied()
    }

    fn check_table(&self, text: &str, name: &str, table: &DeTable<'_>) -> Result<(), ConfigError> {
        let parts = self.tables().filter(|(table, _)| *table == name);
        let known: Vec<&str> = parts.flat_map(|(_, keys)| keys).copied().collect();
        for key in table.keys() {
            let found = key.get_ref().as_ref();
            if known.contains(&found) || is_old(name, found, &known) {
                continue;
            }
            let path = match name {
                "" => found.to_owned(),
                _ => format!("{name}.{found}"),
            };
            return Err(ConfigError::UnknownKey {
                line: text[..key.span().start].matches('\n').count() + 1,
                advice: self.advice(name, found, &known),
                key: path,
            });
        }
        Ok(())
    }

    fn advice(&self, table: &str, found: &str, known: &[&str]) -> String {
        // The right word in the wrong table comes before a similar word.
        let mut elsewhere = self.tables().filter(|(name, _)| *name != table);
        let elsewhere = elsewhere.find(|(_, keys)| keys.contains(&found));
        match (elsewhere, nearest(found, known)) {
            (Some(("", _)), _) => {
                "It belongs to the top level, before the first [table].".to_owned()
            }
            (Some((other, _)), _) => format!("It belongs to [{other}]."),
            (None, Some(near)) => format!("Perhaps you mean \"{near}\"."),
            (None, None) => format!("Known keys are {}.", known.join(", ")),
        }
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
