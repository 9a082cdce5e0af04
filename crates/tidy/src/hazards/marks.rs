//! Marks in sources: which test shows which hazard.

use std::collections::BTreeMap;

use crate::lexer::{Kind, Piece, pieces};
use crate::tree::TextFile;

/// The beginning of a mark, behind the slashes of its comment.
const BEGINNING: &str = "hazard:";

/// A mark for one hazard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Id of the hazard.
    pub id: String,
    /// File that has the mark.
    pub path: String,
    /// Line of the mark.
    pub line: usize,
    /// Test or flaw below the mark; none if something else is there.
    pub test: Option<String>,
}

/// True if the line of a source is a mark.
pub fn is_mark(line: &str) -> bool {
    ids(line.trim()).is_some()
}

/// Returns the marks of all sources, in their order.
pub fn marks(sources: &[TextFile]) -> Vec<Mark> {
    sources.iter().flat_map(of_file).collect()
}

fn of_file(file: &TextFile) -> Vec<Mark> {
    let pieces = pieces(&file.text);
    let mut found = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        let comment = (piece.kind == Kind::Comment).then_some(piece.text);
        let Some(ids) = comment.and_then(ids) else {
            continue;
        };
        let test = below(&pieces[at + 1..]);
        found.extend(ids.into_iter().map(|id| Mark {
            id,
            path: file.path.clone(),
            line: piece.line,
            test: test.clone(),
        }));
    }
    found
}

/// The ids of a comment that is a mark.
fn ids(comment: &str) -> Option<Vec<String>> {
    let text = comment.strip_prefix("//")?.trim_start();
    let list = text.strip_prefix(BEGINNING)?;
    Some(list.split(',').map(|id| id.trim().to_owned()).collect())
}

/// Name of the function, or of the variant of an enum, that the pieces begin with, behind comments and attributes.
fn below(pieces: &[Piece]) -> Option<String> {
    let is_comment = |piece: &&Piece| matches!(piece.kind, Kind::Comment | Kind::Doc);
    let code = pieces.iter().filter(|piece| !is_comment(piece)).take(20);
    // A bracket in a string closes no attribute.
    let code: String = code
        .map(|piece| match piece.kind {
            Kind::Text => "",
            _ => piece.text,
        })
        .collect();
    let mut rest = code.trim_start();
    while let Some(attribute) = rest.strip_prefix("#[") {
        rest = behind_brackets(attribute).trim_start();
    }
    let words: Vec<&str> = rest
        .split(|character: char| !(character.is_alphanumeric() || character == '_'))
        .filter(|word| !word.is_empty())
        .take(4)
        .collect();
    let after_fn = words.iter().position(|word| *word == "fn");
    if let Some(at) = after_fn {
        return words.get(at + 1).map(|name| (*name).to_owned());
    }
    let name = words.first()?;
    let is_variant = name.starts_with(char::is_uppercase) && rest[name.len()..].starts_with(',');
    is_variant.then(|| (*name).to_owned())
}

/// The text behind the bracket that closes the one that is open at its beginning.
fn behind_brackets(text: &str) -> &str {
    let mut depth = 1;
    for (at, character) in text.char_indices() {
        match character {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[at + 1..];
        }
    }
    ""
}

/// Files of all functions, by `crate::name`, so that a test without a mark can be looked up.
pub fn functions(sources: &[TextFile]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for file in sources {
        let Some(owner) = file.crate_name() else {
            continue;
        };
        let code = pieces(&file.text).into_iter();
        let code: String = code
            .filter(|piece| piece.kind == Kind::Code)
            .map(|piece| piece.text)
            .collect();
        for part in code.split("fn ").skip(1) {
            let end =
                part.find(|character: char| !(character.is_alphanumeric() || character == '_'));
            let name = &part[..end.unwrap_or(part.len())];
            found.insert(format!("{owner}::{name}"), file.path.clone());
        }
    }
    found
}

#[cfg(test)]
mod checks {
    use super::*;

    fn found(text: &str) -> Vec<(String, Option<String>)> {
        let file = TextFile::new("crates/a/src/x.rs", text);
        let marks = marks(&[file]).into_iter();
        marks.map(|mark| (mark.id, mark.test)).collect()
    }

    fn one(id: &str, test: &str) -> (String, Option<String>) {
        (id.to_owned(), Some(test.to_owned()))
    }

    #[test]
    fn a_mark_belongs_to_the_function_below() {
        let text = "// hazard: WAL-7\n/// Doc of fn b.\n#[tokio::test(flavor = \"x[\")]\nasync fn a() {}\nfn b() {}";
        assert_eq!(found(text), [one("WAL-7", "a")]);
        let text = "// hazard: H1, N2\n// A story.\n#[test]\npub(super) fn a() {}";
        assert_eq!(found(text), [one("H1", "a"), one("N2", "a")]);
    }

    #[test]
    fn a_mark_belongs_to_the_flaw_below() {
        assert_eq!(
            found("enum F {\n    // hazard: D1\n    /// Doc.\n    NoFence,\n}"),
            [one("D1", "NoFence")]
        );
    }

    #[test]
    fn other_code_has_no_mark() {
        assert_eq!(
            found("// hazard: D1\nconst A: u8 = 1;"),
            [("D1".to_owned(), None)]
        );
        assert_eq!(
            found("let a = \"// hazard: D1\";\n/// hazard: D2\nfn b() {}"),
            []
        );
        assert!(
            is_mark("    // hazard: D1") && !is_mark("// hazards: D1") && !is_mark("fn a() {}")
        );
    }

    #[test]
    fn functions_are_known_by_crate_and_name() {
        let file = TextFile::new("crates/a/tests/x.rs", "fn one() {}\n// fn two\n");
        let expected = ("a::one".to_owned(), "crates/a/tests/x.rs".to_owned());
        assert_eq!(functions(&[file]), BTreeMap::from([expected]));
    }
}
