//! The list of findings that are older than their check, `exceptions.toml`, which may only shrink.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// Numbers by name: of lines, or of findings.
pub type Counts = BTreeMap<String, usize>;

/// Groups of modules by the name of their crate.
pub type Groups = BTreeMap<String, Vec<Vec<String>>>;

/// The head of the file.
const HEAD: &str = "\
# Findings that are older than their check, by check. An entry may shrink or go, never grow.
# `UPDATE=1 cargo test -p tidy` lowers the entries to what is there now.
";

/// Findings compared with what is allowed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Comparison<T> {
    /// Entries that exceed the list or are no longer needed, as sentences.
    pub complaints: Vec<String>,
    /// The list lowered to what was found.
    pub lowered: T,
}

/// Compares `found` with `allowed`. `unit` says what is counted.
pub fn compare_counts(found: &Counts, allowed: &Counts, unit: &str) -> Comparison<Counts> {
    let mut comparison: Comparison<Counts> = Comparison::default();
    for (name, count) in found {
        match allowed.get(name) {
            Some(most) if count > most => comparison.complaints.push(format!(
                "{name}: {count} {unit}, and the list allows {most}"
            )),
            Some(_) => {}
            None => comparison
                .complaints
                .push(format!("{name}: {count} {unit}, and the list allows none")),
        }
    }
    for (name, most) in allowed {
        match found.get(name) {
            Some(count) => {
                let lowered = (*count).min(*most);
                comparison.lowered.insert(name.clone(), lowered);
            }
            None => comparison
                .complaints
                .push(format!("{name}: fine now; remove it from the list")),
        }
    }
    comparison
}

/// Compares groups: each that was found must be part of one that is allowed.
pub fn compare_groups(found: &Groups, allowed: &Groups) -> Comparison<Groups> {
    let mut comparison: Comparison<Groups> = Comparison::default();
    let none = Vec::new();
    let is_part = |inner: &Vec<String>, outer: &Vec<String>| {
        inner.iter().all(|member| outer.contains(member))
    };
    for (name, groups) in found {
        let listed = allowed.get(name).unwrap_or(&none);
        for group in groups {
            if listed.iter().any(|outer| is_part(group, outer)) {
                let lowered: &mut Vec<_> = comparison.lowered.entry(name.clone()).or_default();
                lowered.push(group.clone());
            } else {
                let grown = complaint(group, listed);
                comparison.complaints.push(format!("{name}: {grown}"));
            }
        }
    }
    for (name, groups) in allowed {
        let now = found.get(name).unwrap_or(&none);
        for group in groups {
            if !now.iter().any(|inner| is_part(inner, group)) {
                let members = group.join(", ");
                comparison.complaints.push(format!(
                    "{name}: no circle of {members} any more; remove it from the list"
                ));
            }
        }
    }
    comparison
}

/// Names the members that are new in the listed group that the group has most in common with.
fn complaint(group: &[String], listed: &[Vec<String>]) -> String {
    let common = |outer: &&Vec<String>| {
        let members = group.iter().filter(|member| outer.contains(member));
        members.count()
    };
    let nearest = listed.iter().max_by_key(common);
    match nearest.filter(|outer| common(outer) > 1) {
        Some(outer) => {
            let new = group.iter().filter(|member| !outer.contains(member));
            let new: Vec<&str> = new.map(String::as_str).collect();
            format!(
                "{} joined the circle of {}",
                new.join(", "),
                outer.join(", ")
            )
        }
        None => format!("a circle of {}", group.join(", ")),
    }
}

/// The file that lists exceptions.
#[derive(Debug)]
pub struct Exceptions {
    path: PathBuf,
    table: Table,
}

impl Exceptions {
    /// Reads the list of this repository.
    ///
    /// # Errors
    /// If the file is no TOML.
    pub fn read(root: &Path) -> Result<Exceptions, String> {
        let path = root.join("crates/tidy/exceptions.toml");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let table = text
            .parse()
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Exceptions { path, table })
    }

    /// Numbers that are allowed by the check of this name; none if it has no section yet.
    pub fn counts(&self, check: &str) -> Option<Counts> {
        let section = self.table.get(check)?.as_table()?;
        let counts = section.iter().map(|(name, value)| {
            let count = value.as_integer().unwrap_or(0);
            (name.clone(), usize::try_from(count).unwrap_or(0))
        });
        Some(counts.collect())
    }

    /// Groups that are allowed by the check of this name; none if it has no section yet.
    pub fn groups(&self, check: &str) -> Option<Groups> {
        let section = self.table.get(check)?.as_table()?;
        let groups = section
            .iter()
            .map(|(name, value)| (name.clone(), lists(value)));
        Some(groups.collect())
    }

    /// Replaces the section of a check.
    pub fn put_counts(&mut self, check: &str, counts: &Counts) {
        let value = |count: &usize| Value::Integer(i64::try_from(*count).unwrap_or(i64::MAX));
        let section = counts
            .iter()
            .map(|(name, count)| (name.clone(), value(count)));
        self.table
            .insert(check.to_owned(), Value::Table(section.collect()));
    }

    /// Replaces the section of a check.
    pub fn put_groups(&mut self, check: &str, groups: &Groups) {
        let section = groups
            .iter()
            .map(|(name, lists)| (name.clone(), Value::from(lists.clone())));
        self.table
            .insert(check.to_owned(), Value::Table(section.collect()));
    }

    /// Writes the file.
    ///
    /// # Errors
    /// As the file system.
    pub fn write(&self) -> std::io::Result<()> {
        let body = toml::to_string_pretty(&self.table).map_err(std::io::Error::other)?;
        std::fs::write(&self.path, format!("{HEAD}\n{body}"))
    }
}

fn lists(value: &Value) -> Vec<Vec<String>> {
    let outer = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let inner = outer.iter().filter_map(Value::as_array);
    let texts = inner.map(|list| {
        let members = list.iter().filter_map(Value::as_str);
        members.map(str::to_owned).collect()
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(entries: &[(&str, usize)]) -> Counts {
        let entries = entries.iter();
        entries
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    }

    fn groups(lists: &[&[&str]]) -> Groups {
        let owned = |list: &&[&str]| list.iter().map(|name| (*name).to_owned()).collect();
        BTreeMap::from([("x".to_owned(), lists.iter().map(owned).collect())])
    }

    #[test]
    fn counts_may_fall_and_not_rise() {
        let allowed = counts(&[("a", 3), ("b", 3), ("c", 3)]);
        let found = counts(&[("a", 2), ("b", 4), ("d", 1)]);
        let comparison = compare_counts(&found, &allowed, "lines");
        assert_eq!(
            comparison.complaints,
            [
                "b: 4 lines, and the list allows 3",
                "d: 1 lines, and the list allows none",
                "c: fine now; remove it from the list",
            ]
        );
        assert_eq!(comparison.lowered, counts(&[("a", 2), ("b", 3)]));
    }

    #[test]
    fn groups_may_shrink_and_not_grow() {
        let allowed = groups(&[&["a", "b", "c"], &["d", "e"], &["f", "g"]]);
        let found = groups(&[&["a", "b"], &["d", "e", "h"], &["i", "f"]]);
        let comparison = compare_groups(&found, &allowed);
        assert_eq!(
            comparison.complaints,
            [
                "x: h joined the circle of d, e",
                "x: a circle of i, f",
                "x: no circle of d, e any more; remove it from the list",
                "x: no circle of f, g any more; remove it from the list",
            ]
        );
        assert_eq!(comparison.lowered, groups(&[&["a", "b"]]));
    }
}
