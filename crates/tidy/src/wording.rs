//! Wording: phrases that messages and documents do without, and beginnings that hide what a doc comment is about.

use std::collections::BTreeMap;

use crate::anchors::prose;
use crate::exceptions::Counts;
use crate::lexer::{Kind, Piece, pieces};
use crate::tree::TextFile;

/// Phrases that say nothing, or say it in words of their own, each as a whole word.
pub const PHRASES: &[&str] = &[
    "makes no sense",
    "make no sense",
    "anew",
    "afresh",
    "works no more",
    "what is new",
    "what it has",
    "is taken for",
];

/// Words with which a doc comment must not begin: a noun or a verb is there.
pub const BEGINNINGS: &[&str] = &["What ", "Whether ", "Who "];

/// Places by the area that they count for: a crate, or all documents.
pub type Places = BTreeMap<String, Vec<String>>;

/// The area of all documents.
const DOCUMENTS: &str = "documents";

/// The area of sources that are of no crate.
const OTHERS: &str = "others";

/// The crate that names the phrases, to find them.
const OWN: &str = "tidy";

/// Returns the number of places in each area.
pub fn counts(places: &Places) -> Counts {
    let counts = places
        .iter()
        .map(|(area, places)| (area.clone(), places.len()));
    counts.collect()
}

/// Returns string literals and lines of documents that contain one of [`PHRASES`].
pub fn phrases(sources: &[TextFile], documents: &[TextFile]) -> Places {
    let mut places = Places::new();
    let others = sources.iter().filter(|file| area(file) != OWN);
    for file in others {
        let literals = pieces(&file.text).into_iter();
        for literal in literals.filter(|piece| piece.kind == Kind::Text) {
            note(&mut places, area(file), file, literal.line, literal.text);
        }
    }
    for document in documents {
        for (line, text) in prose(&document.text) {
            note(&mut places, DOCUMENTS, document, line, text);
        }
    }
    places
}

fn area(file: &TextFile) -> &str {
    file.crate_name().unwrap_or(OTHERS)
}

fn note(places: &mut Places, area: &str, file: &TextFile, line: usize, text: &str) {
    let text = joined(text);
    for phrase in PHRASES.iter().filter(|phrase| contains(&text, phrase)) {
        let place = format!("{}:{line}: \"{phrase}\"", file.path);
        places.entry(area.to_owned()).or_default().push(place);
    }
}

/// The text in lower case, with single blanks, so that a phrase is found over the end of a line.
pub(crate) fn joined(text: &str) -> String {
    let continued = text.replace("\\\n", " ");
    let words: Vec<&str> = continued.split_whitespace().collect();
    words.join(" ").to_lowercase()
}

fn contains(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + phrase.len()..].chars().next();
        ![before, after]
            .iter()
            .flatten()
            .any(|neighbour| neighbour.is_alphanumeric())
    })
}

/// Returns the doc comments that begin with one of [`BEGINNINGS`].
pub fn beginnings(sources: &[TextFile]) -> Places {
    let mut places = Places::new();
    for file in sources {
        for comment in doc_beginnings(&pieces(&file.text)) {
            let text = comment.text.trim_start_matches(['/', '!', '*']);
            let text = text.trim_start();
            if let Some(word) = BEGINNINGS.iter().find(|word| text.starts_with(**word)) {
                let place = format!("{}:{}: \"{word}...\"", file.path, comment.line);
                let places = places.entry(area(file).to_owned()).or_default();
                places.push(place);
            }
        }
    }
    places
}

/// The first line of each doc comment: those after it follow with nothing but blanks between.
fn doc_beginnings<'a>(pieces: &[Piece<'a>]) -> Vec<Piece<'a>> {
    let mut beginnings = Vec::new();
    let mut inside = None;
    for piece in pieces {
        match piece.kind {
            Kind::Doc => {
                let mark = piece.text.get(..3);
                if inside != mark {
                    beginnings.push(*piece);
                }
                inside = mark;
            }
            Kind::Code if piece.text.trim().is_empty() => {}
            _ => inside = None,
        }
    }
    beginnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_found_in_strings_and_documents() {
        let source = TextFile::new(
            "crates/a/src/x.rs",
            "// makes no sense\nf(\"it makes \\\n    no sense\");\ng(\"tanewt\");",
        );
        let document = TextFile::new("docs/b.md", "fine\nIt begins Anew.\n```\nanew\n```\n");
        let found = phrases(&[source], &[document]);
        assert_eq!(found["a"], ["crates/a/src/x.rs:2: \"makes no sense\""]);
        assert_eq!(found["documents"], ["docs/b.md:2: \"anew\""]);
        assert_eq!(counts(&found)["a"], 1);
    }

    #[test]
    fn beginnings_count_once_for_each_comment() {
        let text = "//! Whether it works.\n\n/// Who am I?\n/// What follows is no beginning.\nfn a() {}\n\
            /// What it is.\nfn b() {}\n/// Returns.\n///\n/// What else.\nfn c() {}\n// What a comment.";
        let found = beginnings(&[TextFile::new("crates/a/src/x.rs", text)]);
        assert_eq!(
            found["a"],
            [
                "crates/a/src/x.rs:1: \"Whether ...\"",
                "crates/a/src/x.rs:3: \"Who ...\"",
                "crates/a/src/x.rs:6: \"What ...\""
            ]
        );
    }
}
