//! The sentences of `hazards.toml`: what must not happen, by area.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::marks::Mark;

/// Sentences by their hazards' ids.
pub type ById = BTreeMap<String, String>;

/// An area of the page.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// Heading.
    pub title: String,
    /// Sentences.
    pub hazards: ById,
    /// Tests that have no mark, each as `crate::name`, by the ids of their hazards.
    pub unmarked: BTreeMap<String, Vec<String>>,
    /// Hazards that no test shows, as sentences.
    pub untested: Vec<String>,
}

/// All sentences.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sentences {
    /// Areas, in their order on the page.
    pub areas: Vec<Area>,
}

impl Sentences {
    /// Reads the text of `hazards.toml`.
    ///
    /// # Errors
    /// If it is no TOML, or has something else than areas.
    pub fn parse(text: &str) -> Result<Sentences, String> {
        let table: Table = text.parse().map_err(|error| format!("{error}"))?;
        let areas = table.get("area").and_then(Value::as_array);
        let areas = areas.ok_or("there is no [[area]]")?;
        let areas: Result<Vec<Area>, String> = areas.iter().map(area).collect();
        Ok(Sentences { areas: areas? })
    }

    /// Complaints about ids, sentences and marks. `functions` are all functions, by `crate::name`.
    pub fn complaints(&self, marks: &[Mark], functions: &BTreeMap<String, String>) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut known = BTreeSet::new();
        for (id, sentence) in self.areas.iter().flat_map(|area| &area.hazards) {
            if !known.insert(id.as_str()) {
                complaints.push(format!("{id}: several hazards have this id"));
            }
            if order(id).is_none() {
                complaints.push(format!(
                    "{id}: an id is capitals and a number, such as WAL-7"
                ));
            }
            if !sentence.ends_with('.') {
                complaints.push(format!(
                    "{id}: a sentence ends with a full stop: {sentence}"
                ));
            }
            let is_marked = marks
                .iter()
                .any(|mark| mark.id == *id && mark.test.is_some());
            if !is_marked && self.unmarked(id).next().is_none() {
                complaints.push(format!(
                    "{id}: no test has the mark `hazard: {id}`: {sentence}"
                ));
            }
        }
        for mark in marks {
            let place = format!("{}:{}", mark.path, mark.line);
            if !known.contains(mark.id.as_str()) {
                complaints.push(format!("{place}: {} has no sentence", mark.id));
            }
            if mark.test.is_none() {
                complaints.push(format!("{place}: the mark {} is above no test", mark.id));
            }
        }
        for (id, test) in self.all_unmarked() {
            if !known.contains(id) {
                complaints.push(format!("unmarked.{id}: there is no such hazard"));
            }
            if !functions.contains_key(test) {
                complaints.push(format!("unmarked.{id}: there is no test {test}"));
            }
        }
        complaints
    }

    fn all_unmarked(&self) -> impl Iterator<Item = (&str, &str)> {
        let entries = self.areas.iter().flat_map(|area| &area.unmarked);
        entries.flat_map(|(id, tests)| tests.iter().map(|test| (id.as_str(), test.as_str())))
    }

    /// Tests of a hazard that have no mark.
    pub fn unmarked(&self, id: &str) -> impl Iterator<Item = &str> {
        let all = self.all_unmarked();
        all.filter(move |(of, _)| *of == id).map(|(_, test)| test)
    }
}

/// Sorts ids by their letters, and then by their number; none if it is no id.
pub fn order(id: &str) -> Option<(&str, u32)> {
    let letters = id.trim_end_matches(|character: char| character.is_ascii_digit());
    let number = id[letters.len()..].parse().ok()?;
    let letters = letters.strip_suffix('-').unwrap_or(letters);
    let is_id = !letters.is_empty() && letters.bytes().all(|byte| byte.is_ascii_uppercase());
    is_id.then_some((letters, number))
}

fn area(value: &Value) -> Result<Area, String> {
    let table = value.as_table().ok_or("an area is a table")?;
    let mut area = Area::default();
    for (key, value) in table {
        match (key.as_str(), value) {
            ("title", Value::String(title)) => area.title = title.clone(),
            ("hazards", Value::Table(hazards)) => area.hazards = texts(hazards)?,
            ("unmarked", Value::Table(tests)) => {
                let lists = tests
                    .iter()
                    .map(|(id, tests)| Ok((id.clone(), list(tests)?)));
                area.unmarked = lists.collect::<Result<_, String>>()?;
            }
            ("untested", hazards) => area.untested = list(hazards)?,
            _ => return Err(format!("an area has no {key} of this type")),
        }
    }
    Ok(area)
}

fn texts(table: &Table) -> Result<ById, String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let entries = table.iter().map(|(id, value)| {
        let sentence = text(value).ok_or_else(|| format!("{id}: not a text"))?;
        Ok((id.clone(), sentence))
    });
    entries.collect()
}

fn list(value: &Value) -> Result<Vec<String>, String> {
    let values = value.as_array().ok_or("not a list")?;
    let texts = values.iter().map(|value| {
        let text = value.as_str().ok_or("not a list of texts")?;
        Ok(text.to_owned())
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(id: &str, test: Option<&str>) -> Mark {
        Mark {
            id: id.to_owned(),
            path: "crates/a/src/x.rs".to_owned(),
            line: 3,
            test: test.map(str::to_owned),
        }
    }

    fn complaints(text: &str, marks: &[Mark]) -> Vec<String> {
        let tests = BTreeMap::from([("a::one".to_owned(), "crates/a/src/x.rs".to_owned())]);
        Sentences::parse(text).unwrap().complaints(marks, &tests)
    }

    #[test]
    fn a_hazard_has_a_sentence_and_a_test() {
        let text = "[[area]]\ntitle = \"A\"\n[area.hazards]\nH1 = \"It fails.\"\nWAL-7 = \"It is lost.\"\n\
            [area.unmarked]\nWAL-7 = [\"a::one\"]\n";
        assert_eq!(complaints(text, &[mark("H1", Some("t"))]), [""; 0]);
        assert_eq!(
            complaints(text, &[]),
            ["H1: no test has the mark `hazard: H1`: It fails."]
        );
        assert_eq!(
            complaints(text, &[mark("H1", Some("t")), mark("H2", Some("t"))]),
            ["crates/a/src/x.rs:3: H2 has no sentence"]
        );
        assert_eq!(
            complaints(text, &[mark("H1", Some("t")), mark("H1", None)]),
            ["crates/a/src/x.rs:3: the mark H1 is above no test"]
        );
    }

    #[test]
    fn ids_are_unique_and_well_formed() {
        let text = "[[area]]\n[area.hazards]\nH1 = \"A.\"\n[[area]]\n[area.hazards]\nH1 = \"B.\"\nx = \"C\"\n\
            [area.unmarked]\nx = [\"a::two\"]\nH3 = []\n";
        assert_eq!(
            complaints(text, &[mark("H1", Some("t"))]),
            [
                "H1: several hazards have this id",
                "x: an id is capitals and a number, such as WAL-7",
                "x: a sentence ends with a full stop: C",
                "unmarked.x: there is no test a::two",
            ]
        );
    }

    #[test]
    fn ids_are_sorted_by_number() {
        let mut ids = ["WAL-10", "WAL-9", "H2"];
        ids.sort_by_key(|id| order(id));
        assert_eq!(ids, ["H2", "WAL-9", "WAL-10"]);
        assert_eq!(
            [order("H"), order("-1"), order("h1"), order("H 1")],
            [None; 4]
        );
    }
}
