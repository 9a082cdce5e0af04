//! The page as Markdown.

use std::collections::BTreeMap;

use super::marks::Mark;
use super::sentences::{Area, Sentences, order};

const HEAD: &str = "\
# Hazards

What must not happen, and the tests that would notice. This page is generated: the sentences are in
[hazards.toml](../../crates/tidy/hazards.toml), and each test, or flaw of a simulation, has the ids of its hazards in a
comment above it (`hazard: H1`). The tests' comments tell how a fault was found. To change the page, change those and
run `UPDATE=1 cargo test -p tidy`. [glossary.md](glossary.md) defines the terms.

A name that begins with a capital is a *flaw*: a rule that a [simulation](simulation.md) leaves out, and whose loss its
checks must notice.
";

/// Returns the page. `functions` are the files of all functions, by `crate::name`.
pub fn page(sentences: &Sentences, marks: &[Mark], functions: &BTreeMap<String, String>) -> String {
    let mut page = HEAD.to_owned();
    for area in &sentences.areas {
        page.push_str(&format!("\n## {}\n", area.title));
        page.push_str(&rows(area, sentences, marks, functions));
        page.push_str(&untested(area));
    }
    page
}

fn rows(
    area: &Area,
    sentences: &Sentences,
    marks: &[Mark],
    functions: &BTreeMap<String, String>,
) -> String {
    if area.hazards.is_empty() {
        return String::new();
    }
    let mut ids: Vec<&String> = area.hazards.keys().collect();
    ids.sort_by_key(|id| order(id));
    let mut rows = "\n| id | must not happen | tests |\n|---|---|---|\n".to_owned();
    for id in ids {
        let of_id = marks.iter().filter(|mark| mark.id == **id);
        let marked = of_id.filter_map(|mark| Some((mark.test.as_deref()?, mark.path.as_str())));
        let named = sentences.unmarked(id).filter_map(|test| {
            let (_, name) = test.split_once("::")?;
            Some((name, functions.get(test)?.as_str()))
        });
        let links: Vec<String> = marked.chain(named).map(link).collect();
        let (sentence, links) = (&area.hazards[id], links.join(", "));
        rows.push_str(&format!("| {id} | {sentence} | {links} |\n"));
    }
    rows
}

/// A link with the crate and the name of a test.
fn link((name, path): (&str, &str)) -> String {
    let owner = path.split('/').nth(1).unwrap_or_default();
    format!("[{owner} `{name}`](../../{path})")
}

fn untested(area: &Area) -> String {
    if area.untested.is_empty() {
        return String::new();
    }
    let items = area.untested.iter().map(|hazard| format!("- {hazard}\n"));
    format!("\nNo test shows these:\n\n{}", items.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hazard_is_a_row_with_links_to_its_tests() {
        let text = "[[area]]\ntitle = \"Log\"\nuntested = [\"It burns.\"]\n[area.hazards]\nWAL-10 = \"B.\"\n\
            WAL-9 = \"A.\"\n[area.unmarked]\nWAL-10 = [\"b::two\"]\n";
        let sentences = Sentences::parse(text).unwrap();
        let mark = Mark {
            id: "WAL-9".to_owned(),
            path: "crates/a/src/x.rs".to_owned(),
            line: 1,
            test: Some("one".to_owned()),
        };
        let tests = BTreeMap::from([("b::two".to_owned(), "crates/b/tests/y.rs".to_owned())]);
        let page = page(&sentences, &[mark], &tests);
        let body = page.strip_prefix(HEAD).unwrap();
        assert_eq!(
            body,
            "\n## Log\n\n| id | must not happen | tests |\n|---|---|---|\n\
            | WAL-9 | A. | [a `one`](../../crates/a/src/x.rs) |\n\
            | WAL-10 | B. | [b `two`](../../crates/b/tests/y.rs) |\n\
            \nNo test shows these:\n\n- It burns.\n"
        );
    }
}
