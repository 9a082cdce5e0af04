//! Relative links of Markdown documents: the file must exist, and have the heading.

use std::collections::{BTreeMap, BTreeSet};

use crate::anchors::{anchors, prose};
use crate::tree::TextFile;

/// Returns dead links as `path:line: why`. `paths` are all files of the repository.
pub fn dead(documents: &[TextFile], paths: &[String]) -> Vec<String> {
    let known = Known::new(documents, paths);
    let mut dead = Vec::new();
    for document in documents {
        for (line, target) in targets(&document.text) {
            if let Some(why) = known.refusal(&document.path, &target) {
                dead.push(format!("{}:{line}: {why}", document.path));
            }
        }
    }
    dead
}

struct Known<'a> {
    anchors: BTreeMap<&'a str, BTreeSet<String>>,
    places: BTreeSet<&'a str>,
}

impl<'a> Known<'a> {
    fn new(documents: &'a [TextFile], paths: &'a [String]) -> Known<'a> {
        let anchors = documents
            .iter()
            .map(|document| (document.path.as_str(), anchors(&document.text)));
        let ancestors = paths.iter().flat_map(|path| ancestors(path));
        Known {
            anchors: anchors.collect(),
            places: ancestors.collect(),
        }
    }

    fn refusal(&self, from: &str, target: &str) -> Option<String> {
        if is_remote(target) {
            return None;
        }
        let (file, anchor) = match target.split_once('#') {
            Some((file, anchor)) => (file, Some(anchor)),
            None => (target, None),
        };
        let path = match file {
            "" => from.to_owned(),
            _ => resolve(from, file)?,
        };
        if !self.places.contains(path.as_str()) {
            return Some(format!("{target}: no such file"));
        }
        let headings = self.anchors.get(path.as_str())?;
        let anchor = anchor.filter(|anchor| !headings.contains(*anchor))?;
        Some(format!("{target}: {path} has no heading \"{anchor}\""))
    }
}

/// The path and all its directories.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let directories = path.match_indices('/').map(move |(at, _)| &path[..at]);
    directories.chain([path, ""])
}

fn is_remote(target: &str) -> bool {
    let scheme = target.split_once(':').map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| scheme.bytes().all(|byte| byte.is_ascii_alphabetic()))
}

/// Path below the root; what leads out of the repository keeps its `..` and is therefore not found.
fn resolve(from: &str, file: &str) -> Option<String> {
    let mut parts: Vec<&str> = match file.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => from.split('/').collect(),
    };
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Targets of links and pictures with their lines.
fn targets(document: &str) -> Vec<(usize, String)> {
    let mut targets = Vec::new();
    for (line, text) in prose(document) {
        let text = without_code(text);
        let inline = text.split("](").skip(1).map(target);
        let reference = definition(&text).into_iter();
        let found = inline.chain(reference).filter(|target| !target.is_empty());
        targets.extend(found.map(|target| (line, target.to_owned())));
    }
    targets
}

/// The parts of a text between backquotes, each with true if it is code. A backquote that nothing closes begins no span.
pub(crate) fn spans(text: &str) -> impl Iterator<Item = (bool, &str)> {
    let last = text.matches('`').count();
    let parts = text.split('`').enumerate();
    parts.map(move |(at, part)| (at % 2 == 1 && at < last, part))
}

/// The line without what is in backquotes.
fn without_code(line: &str) -> String {
    let kept = spans(line).filter(|(is_code, _)| !is_code);
    kept.map(|(_, part)| part).collect()
}

/// Text before the closing parenthesis, without a title.
fn target(rest: &str) -> &str {
    let mut depth = 0;
    let end = rest.find(|character: char| match character {
        '(' => {
            depth += 1;
            false
        }
        ')' => {
            depth -= 1;
            depth < 0
        }
        _ => character.is_whitespace(),
    });
    let target = end.map_or("", |end| &rest[..end]);
    target.trim_start_matches('<').trim_end_matches('>')
}

/// Target of a line such as `[name]: target`.
fn definition(line: &str) -> Option<&str> {
    let (name, target) = line.strip_prefix('[')?.split_once("]: ")?;
    let is_one = !name.contains([']', '[']) && !name.starts_with('^');
    is_one.then(|| target.split_whitespace().next()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead_in(text: &str) -> Vec<String> {
        let documents = [
            TextFile::new("docs/a.md", text),
            TextFile::new("docs/deep/b.md", "# Here\n"),
        ];
        let paths = ["docs/a.md", "docs/deep/b.md", "docs/p.svg", "src/x(1).rs"];
        dead(&documents, &paths.map(str::to_owned))
    }

    #[test]
    fn dead_files_and_headings_are_found() {
        for (text, why) in [
            ("\n[x](c.md)", "docs/a.md:2: c.md: no such file"),
            ("[x](b.md)", "docs/a.md:1: b.md: no such file"),
            ("![x](q.svg \"t\")", "docs/a.md:1: q.svg: no such file"),
            (
                "[x](deep/b.md#there)",
                "docs/a.md:1: deep/b.md#there: docs/deep/b.md has no heading \"there\"",
            ),
            ("[x](#y)", "docs/a.md:1: #y: docs/a.md has no heading \"y\""),
            ("[x]: c.md", "docs/a.md:1: c.md: no such file"),
            (
                "[x](../../out.md)",
                "docs/a.md:1: ../../out.md: no such file",
            ),
        ] {
            assert_eq!(dead_in(text), [why]);
        }
    }

    #[test]
    fn living_links_pass() {
        let text = "# Top\n[x](deep/b.md#here) [y](../docs/deep) ![p](./p.svg) [z](#top) \
            [u](https://a.b/c#d) [v](../src/x(1).rs) [w](/docs/a.md) `[c](c.md)`\n```\n[d](d.md)\n```\n";
        assert_eq!(dead_in(text), [""; 0]);
    }
}
