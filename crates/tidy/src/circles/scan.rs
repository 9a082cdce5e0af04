//! Facts of a file's text about other modules: imports, paths and child modules.

use crate::lexer::{Kind, pieces};

/// An import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// Path of what is imported, without the glob.
    pub path: Vec<String>,
    /// Name under which it is known here; none for everything in `path`.
    pub name: Option<String>,
    /// Visible outside of the module: a re-export.
    pub is_public: bool,
}

/// Facts of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Imports, in order.
    pub imports: Vec<Import>,
    /// Paths of at least two parts that are used outside of imports.
    pub paths: Vec<Vec<String>>,
    /// Child modules in files of their own that are for tests alone.
    pub test_children: Vec<String>,
}

/// Returns the facts of a source file, without its tests.
pub fn scan(source: &str) -> Facts {
    let code = pieces(source);
    let code = code.iter().filter(|piece| piece.kind == Kind::Code);
    let text: Vec<&str> = code.map(|piece| piece.text).collect();
    let text = text.join(" ");
    let mut scanner = Scanner {
        tokens: tokens(&text),
        at: 0,
        facts: Facts::default(),
    };
    scanner.run();
    scanner.facts
}

/// Names, `::`, and single other characters.
fn tokens(text: &str) -> Vec<&str> {
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if is_name(first) {
            rest.find(|character| !is_name(character))
                .unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

struct Scanner<'a> {
    tokens: Vec<&'a str>,
    at: usize,
    facts: Facts,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> &'a str {
        self.ahead(0)
    }

    fn ahead(&self, count: usize) -> &'a str {
        self.tokens.get(self.at + count).copied().unwrap_or("")
    }

    fn next(&mut self) -> &'a str {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn run(&mut self) {
        let test = ["#", "[", "cfg", "(", "test", ")", "]"];
        while self.at < self.tokens.len() {
            if self.tokens[self.at..].starts_with(&test) {
                self.at += test.len();
                self.skip_item();
                continue;
            }
            match self.peek() {
                "use" => self.import(),
                _ if is_name(self.peek()) => self.path(),
                _ => self.at += 1,
            }
        }
    }

    /// Passes over an item of tests, up to its semicolon or closing brace.
    fn skip_item(&mut self) {
        let declared = (0..3).find(|at| self.ahead(*at) == "mod");
        if let Some(at) = declared.filter(|at| self.ahead(at + 2) == ";") {
            let name = self.ahead(at + 1).to_owned();
            self.facts.test_children.push(name);
        }
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            match self.next() {
                "{" | "(" | "[" => depth += 1,
                "}" if depth == 1 => return,
                "}" | ")" | "]" => depth = depth.saturating_sub(1),
                ";" if depth == 0 => return,
                _ => {}
            }
        }
    }

    fn import(&mut self) {
        let before = self.at.checked_sub(1).map(|at| self.tokens[at]);
        let is_public = matches!(before, Some("pub" | ")"));
        self.next();
        self.tree(&mut Vec::new(), is_public);
    }

    /// One part of an import: `a::b`, `a as b`, `a::*`, `a::{...}`.
    fn tree(&mut self, prefix: &mut Vec<String>, is_public: bool) {
        let depth = prefix.len();
        loop {
            match self.next() {
                "::" => {}
                "{" => {
                    while !matches!(self.peek(), "}" | "") {
                        self.tree(prefix, is_public);
                        if self.peek() == "," {
                            self.next();
                        }
                    }
                    self.next();
                    break;
                }
                "*" => {
                    self.take(prefix.clone(), None, is_public);
                    break;
                }
                part => {
                    prefix.push(part.to_owned());
                    if self.peek() != "::" {
                        self.leaf(prefix, is_public);
                        break;
                    }
                }
            }
        }
        prefix.truncate(depth);
    }

    fn leaf(&mut self, path: &[String], is_public: bool) {
        let mut path = path.to_vec();
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let mut name = path.last().cloned();
        if self.peek() == "as" {
            self.next();
            name = Some(self.next().to_owned());
        }
        self.take(path, name, is_public);
    }

    fn take(&mut self, path: Vec<String>, name: Option<String>, is_public: bool) {
        self.facts.imports.push(Import {
            path,
            name,
            is_public,
        });
    }

    fn path(&mut self) {
        let mut path = vec![self.next().to_owned()];
        while self.peek() == "::" && is_name(self.ahead(1)) {
            self.next();
            path.push(self.next().to_owned());
        }
        if path.len() > 1 {
            self.facts.paths.push(path);
        }
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|character: char| character.is_alphabetic() || character == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(path: &str) -> Vec<String> {
        path.split("::").map(str::to_owned).collect()
    }

    #[test]
    fn imports_are_taken_apart() {
        let facts = scan("pub(crate) use a::{self, b::*, c as d, e::{f}}; use super::g;");
        let found: Vec<(Vec<String>, Option<&str>, bool)> = facts
            .imports
            .iter()
            .map(|import| {
                (
                    import.path.clone(),
                    import.name.as_deref(),
                    import.is_public,
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                (parts("a"), Some("a"), true),
                (parts("a::b"), None, true),
                (parts("a::c"), Some("d"), true),
                (parts("a::e::f"), Some("f"), true),
                (parts("super::g"), Some("g"), false),
            ]
        );
    }

    #[test]
    fn tests_are_passed_over_and_their_files_noted() {
        let facts = scan(
            "#[cfg(test)] mod tests; #[cfg(test)] pub(crate) use a::b; #[cfg(test)] fn f(x: [u8; 2]) { c::d() } e::f()",
        );
        assert_eq!(facts.imports, []);
        assert_eq!(facts.paths, [parts("e::f")]);
        assert_eq!(facts.test_children, ["tests"]);
    }
}
