//! Messages for operators: each warning and error that a product logs, and each error that it returns, stands in the page
//! of troubleshooting.
//!
//! The page has a message's variable parts in capitals, so the first words without one are looked up.

use crate::lexer::{Kind, Piece, pieces};
use crate::links;
use crate::tree::TextFile;
use crate::wording::joined;

/// The page that has all messages.
pub const PAGE: &str = "docs/operate/troubleshooting.md";

/// Crates and folders that operators do not run.
const PASSED: &[&str] = &[
    "crates/bench/",
    "crates/cassandra/src/server/",
    "crates/cluster/",
    "crates/simulate/",
    "crates/tidy/",
    "crates/understudy/src/demo/",
];

/// Parts of paths of tests, simulations and examples.
const TESTS: &[&str] = &["/tests", "/examples/", "/simulation", "_test.rs"];

/// First words of messages that the page leaves out.
const EXCEPTIONS: &[&str] = &[
    // The file system's own, which the kernel turns into numbers.
    "no such file or directory",
    "file exists",
    "not a directory",
    "is a directory",
    "directory not empty",
    "file name too long",
    "invalid argument",
    "file too large",
    "too many links",
    // Causes that are printed behind a message that the page has.
    "log source",
    "a status update of",
    "link between",
    // A client's first message, which the proxy refuses with an answer of its own.
    "a replication connection",
];

/// Beginnings of messages in the code.
const MARKS: &[&str] = &["error!(", "warn!(", "#[error("];

/// Most words that are looked up.
const WORDS: usize = 5;

/// Words that a part of a message must have to tell it from others.
const DISTINCT: usize = 3;

/// A message of the code.
struct Message {
    line: usize,
    words: String,
}

/// Returns messages whose first words `page` does not have, as `path:line: words`, and exceptions that no message needs.
pub fn missing(sources: &[TextFile], page: &str) -> Vec<String> {
    let page = code_of(page);
    let mut unused = EXCEPTIONS.to_vec();
    let mut found = Vec::new();
    for file in sources.iter().filter(|file| is_product(&file.path)) {
        for message in messages(&file.text) {
            let words = message.words.as_str();
            if EXCEPTIONS.contains(&words) {
                unused.retain(|exception| *exception != words);
            } else if !page.contains(words) {
                found.push(format!("{}:{}: {words}", file.path, message.line));
            }
        }
    }
    found.extend(
        unused
            .iter()
            .map(|words| format!("exception without a message: {words}")),
    );
    found
}

fn is_product(path: &str) -> bool {
    let is_passed = PASSED.iter().any(|passed| path.starts_with(passed));
    let is_test = TESTS.iter().any(|part| path.contains(part));
    path.starts_with("crates/") && !is_passed && !is_test
}

/// A call of a macro, or an attribute, that has a message.
struct Call {
    line: usize,
    depth: usize,
    text: Option<String>,
}

/// The messages of a file, without those of its tests.
fn messages(source: &str) -> Vec<Message> {
    let end = source.find("\n#[cfg(test)]\nmod ").unwrap_or(source.len());
    let mut found = Vec::new();
    let mut call = None;
    for piece in pieces(&source[..end]) {
        match piece.kind {
            Kind::Code => code(piece, &mut call, &mut found),
            Kind::Text => {
                if let Some(call) = call.as_mut().filter(|call| call.depth == 1)
                    && piece.text.contains(' ')
                {
                    call.text = Some(literal(piece.text));
                }
            }
            Kind::Comment | Kind::Doc => {}
        }
    }
    found
}

/// Follows the brackets of a call to its end, and on to the next one.
fn code(piece: Piece<'_>, call: &mut Option<Call>, found: &mut Vec<Message>) {
    let mut rest = piece.text;
    loop {
        match call {
            None => {
                let ends = MARKS.iter().filter_map(|mark| begin_of(rest, mark));
                let Some(begin) = ends.min() else { return };
                let line = piece.line + lines_before(piece.text, rest, begin);
                *call = Some(Call {
                    line,
                    depth: 1,
                    text: None,
                });
                rest = &rest[begin..];
            }
            Some(open) => {
                let Some(end) = end_of(rest, open) else {
                    return;
                };
                let text = open.text.take();
                found.extend(
                    text.and_then(|text| first_words(&text))
                        .map(|words| Message {
                            line: open.line,
                            words,
                        }),
                );
                *call = None;
                rest = &rest[end..];
            }
        }
    }
}

/// The place behind the opening bracket of `mark`, unless that is a part of a longer name.
fn begin_of(code: &str, mark: &str) -> Option<usize> {
    let mut places = code.match_indices(mark);
    let place = places.find(|(at, _)| {
        let before = code[..*at].chars().next_back();
        !before.is_some_and(|before| before.is_alphanumeric() || before == '_')
    });
    place.map(|(at, _)| at + mark.len())
}

fn lines_before(all: &str, rest: &str, at: usize) -> usize {
    all[..all.len() - rest.len() + at].matches('\n').count()
}

/// The place behind the bracket that closes the call, if that is in `code`.
fn end_of(code: &str, open: &mut Call) -> Option<usize> {
    for (at, character) in code.char_indices() {
        match character {
            '(' | '[' | '{' => open.depth += 1,
            ')' | ']' | '}' => open.depth = open.depth.saturating_sub(1),
            _ => {}
        }
        if open.depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

/// The text between a literal's quotes.
fn literal(text: &str) -> String {
    let bare = text.trim_matches(['r', '#']);
    let bare = bare.trim_matches('"');
    bare.replace("\\\"", "\"")
}

/// The first part without a value that has enough words, or the longest part; at most [`WORDS`] of its words.
fn first_words(message: &str) -> Option<String> {
    let message = joined(message);
    let mut parts: Vec<Vec<&str>> = Vec::new();
    for piece in message.split('{') {
        let constant = piece.split_once('}').map_or(piece, |(_, after)| after);
        let constants = constant.split([';', ':', '(']);
        parts.extend(constants.map(|part| {
            let part = part.trim_matches([' ', ',', '.', ')', '"', '\'']);
            part.split(' ').filter(|word| !word.is_empty()).collect()
        }));
    }
    let distinct = parts.iter().find(|part| part.len() >= DISTINCT);
    let part = distinct.or_else(|| parts.iter().max_by_key(|part| part.len()))?;
    let words = part[..part.len().min(WORDS)].join(" ");
    (part.len() > 1).then_some(words)
}

/// The code spans of the page, which are its messages.
fn code_of(page: &str) -> String {
    let code = links::spans(page).filter(|(is_code, _)| *is_code);
    let parts: Vec<&str> = code.map(|(_, part)| part).collect();
    joined(&parts.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        let found = messages(source).into_iter();
        found.map(|message| message.words).collect()
    }

    #[test]
    fn warnings_and_errors_are_found_in_calls_and_attributes() {
        let source = "tracing::error!(%error, \"the disk \\\n    failed; see\");\nf(\"no message here\");\n\
            warn!(a = f(\"not this one\"), \"a zone is gone\");\ntracing::info!(\"all is well\");\n\
            #[error(\"cannot use {path} for a zone\")]\n#[error(transparent)]\nmy_warn!(\"not that one\");";
        assert_eq!(
            words(source),
            ["the disk failed", "a zone is gone", "for a zone"]
        );
    }

    #[test]
    fn messages_of_tests_do_not_count() {
        let source = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { warn!(\"a test says so\"); } }";
        assert_eq!(words(source), [""; 0]);
        for path in [
            "crates/node/tests/a.rs",
            "crates/bench/src/a.rs",
            "docs/a.rs",
        ] {
            assert!(!is_product(path), "{path}");
        }
        assert!(is_product("crates/node/src/a.rs"));
    }

    #[test]
    fn variable_parts_and_remedies_are_left_out() {
        let first = |message| first_words(message).unwrap_or_default();
        assert_eq!(
            first("{node} is {state} and cannot do that"),
            "and cannot do that"
        );
        assert_eq!(
            first("One two three four five six"),
            "one two three four five"
        );
        assert_eq!(first("no room; make some room now"), "make some room now");
        assert_eq!(first("is {what}"), "");
    }

    #[test]
    fn a_message_that_the_page_lacks_is_named_with_its_place() {
        let source = "\nwarn!(\"the first one fails\");\nerror!(\"a second one\");";
        let sources = [TextFile::new("crates/node/src/a.rs", source)];
        let found = missing(&sources, "| `The first\none fails` | a second one |");
        assert_eq!(found[0], "crates/node/src/a.rs:3: a second one");
        let unused = found[1..].iter();
        assert!(
            unused
                .clone()
                .all(|line| line.starts_with("exception without"))
        );
        assert_eq!(unused.count(), EXCEPTIONS.len());
    }
}
