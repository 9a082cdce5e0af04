//! Lengths of sentences in documents: a sentence of one idea has some 20 words.
//!
//! Tables, headings and code blocks have no sentences. A code span and a link's text count as they are read: a span is one
//! word, and a link's target none.

use std::collections::BTreeMap;

use crate::anchors::{prose, without_targets};
use crate::links::spans;
use crate::tree::TextFile;
use crate::wording::Places;

/// Most words of a sentence.
pub const MOST_WORDS: usize = 45;

/// Words beyond which a sentence is long: their number in a document may only fall.
pub const LONG_WORDS: usize = 30;

/// Documents beside those below `docs`.
const OTHERS: &[&str] = &["README.md", "CONTRIBUTING.md", "SECURITY.md"];

/// Abbreviations that end with a full stop within a sentence.
const ABBREVIATIONS: &[&str] = &["e.g.", "i.e.", "etc.", "vs.", "..."];

/// A sentence.
#[derive(Debug, PartialEq, Eq)]
pub struct Sentence {
    /// Line on which its paragraph begins, from 1.
    pub line: usize,
    /// Number of words.
    pub words: usize,
    /// First words.
    pub beginning: String,
}

/// Returns the sentences of more than [`MOST_WORDS`] words as `path:line: words: beginning`.
pub fn too_long(documents: &[TextFile]) -> Vec<String> {
    let places = places(documents, |words| words > MOST_WORDS);
    places.into_values().flatten().collect()
}

/// Returns the sentences of more than [`LONG_WORDS`] words by document.
pub fn long(documents: &[TextFile]) -> Places {
    places(documents, |words| words > LONG_WORDS)
}

fn places(documents: &[TextFile], counts: impl Fn(usize) -> bool) -> Places {
    let mut places: Places = BTreeMap::new();
    for document in documents
        .iter()
        .filter(|document| is_judged(&document.path))
    {
        let sentences = sentences(&document.text).into_iter();
        for sentence in sentences.filter(|sentence| counts(sentence.words)) {
            let place = format!(
                "{}:{}: {} words: {} ...",
                document.path, sentence.line, sentence.words, sentence.beginning
            );
            places.entry(document.path.clone()).or_default().push(place);
        }
    }
    places
}

fn is_judged(path: &str) -> bool {
    path.starts_with("docs/") || OTHERS.contains(&path)
}

/// Returns the sentences of a document.
pub fn sentences(document: &str) -> Vec<Sentence> {
    let paragraphs = paragraphs(document).into_iter();
    paragraphs
        .flat_map(|(line, text)| split(line, &text))
        .collect()
}

/// Paragraphs and items of lists, each in one line, with the number of its first line.
fn paragraphs(document: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    // Number of the line before, if a paragraph has it.
    let mut open = None;
    for (line, text) in prose(document) {
        let text = text.trim();
        if text.is_empty() || text.starts_with(['|', '#', '<']) {
            open = None;
            continue;
        }
        let (item, rest) = without_mark(text);
        match found.last_mut() {
            Some((_, paragraph)) if !item && open == Some(line - 1) => {
                paragraph.push(' ');
                paragraph.push_str(rest);
            }
            _ => found.push((line, rest.to_owned())),
        }
        open = Some(line);
    }
    found
}

/// The text without the mark of an item or a quotation, and true if there was one.
fn without_mark(text: &str) -> (bool, &str) {
    if let Some(rest) = ["- ", "* ", "> "]
        .iter()
        .find_map(|mark| text.strip_prefix(mark))
    {
        return (true, rest);
    }
    let rest = text.trim_start_matches(|character: char| character.is_ascii_digit());
    match rest.strip_prefix(". ") {
        Some(rest) if !text.starts_with('.') => (true, rest),
        _ => (false, text),
    }
}

fn split(line: usize, paragraph: &str) -> Vec<Sentence> {
    let read = without_targets(&without_code(paragraph));
    let mut found = Vec::new();
    let mut words: Vec<&str> = Vec::new();
    for word in read.split_whitespace() {
        if word.contains(char::is_alphanumeric) {
            words.push(word);
        }
        if is_end(word) {
            found.extend(sentence(line, &words));
            words.clear();
        }
    }
    found.extend(sentence(line, &words));
    found
}

fn sentence(line: usize, words: &[&str]) -> Option<Sentence> {
    let first = words.len().min(8);
    (!words.is_empty()).then(|| Sentence {
        line,
        words: words.len(),
        beginning: words[..first].join(" "),
    })
}

fn is_end(word: &str) -> bool {
    let bare = word.trim_end_matches(['*', '_', ')', '"', '\'', '”', '’', ']']);
    bare.ends_with(['.', '?', '!']) && !ABBREVIATIONS.contains(&bare)
}

/// Each code span in backquotes becomes one word.
fn without_code(text: &str) -> String {
    let read = spans(text).map(|(is_code, part)| if is_code { "code" } else { part });
    read.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(document: &str) -> Vec<usize> {
        let sentences = sentences(document).into_iter();
        sentences.map(|sentence| sentence.words).collect()
    }

    #[test]
    fn sentences_end_with_a_mark_or_their_paragraph() {
        assert_eq!(
            words("One two. Three\nfour five? (Six.) *Seven.* Eight"),
            [2, 3, 1, 1, 1]
        );
        assert_eq!(
            words("One two\n\nthree four:\n\n- five six\n  seven\n- eight"),
            [2, 2, 3, 1]
        );
        assert_eq!(words("1. One two\n2. three\n10. four"), [2, 1, 1]);
        assert_eq!(words("Ports, e.g. 5432, and 1.5 s."), [6]);
    }

    #[test]
    fn spans_are_one_word_and_targets_none() {
        assert_eq!(
            words("Set `wal_level = logical` as\n[the page](a.md#b c) says."),
            [6]
        );
        assert_eq!(words("Say `a. b`. Then."), [2, 1]);
    }

    #[test]
    fn tables_headings_and_code_have_no_sentences() {
        let document = "# A heading of many words\n| a cell | b |\n```\nsome code here\n```\n<!-- a mark -->\nText.";
        assert_eq!(words(document), [1]);
    }

    #[test]
    fn long_ones_are_counted_and_too_long_ones_named() {
        let of = |count: usize| format!("{}end.\n", "word ".repeat(count - 1));
        let text = of(30) + "\n" + &of(31) + "\n" + &of(46);
        let documents = [
            TextFile::new("docs/a.md", &text),
            TextFile::new("CHANGELOG.md", &text),
            TextFile::new("README.md", &of(45)),
        ];
        let found = long(&documents);
        assert_eq!(found["docs/a.md"].len(), 2);
        assert_eq!(found["README.md"].len(), 1);
        assert_eq!(found.len(), 2);
        let beginning = "word word word word word word word word";
        assert_eq!(
            too_long(&documents),
            [format!("docs/a.md:5: 46 words: {beginning} ...")]
        );
    }
}
