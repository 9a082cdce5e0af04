//! Anchors of Markdown documents: names of headings, as GitHub derives them.

use std::collections::{BTreeMap, BTreeSet};

/// Returns the lines of a document that are not in code blocks, each with its number from 1.
pub fn prose(document: &str) -> Vec<(usize, &str)> {
    let mut fence: Option<&str> = None;
    let mut prose = Vec::new();
    for (at, line) in document.lines().enumerate() {
        let start = line.trim_start();
        let mark = ["```", "~~~"]
            .into_iter()
            .find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (None, None) => prose.push((at + 1, line)),
            _ => {}
        }
    }
    prose
}

/// Returns all anchors of a document.
pub fn anchors(document: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(document) {
        anchors.extend(explicit(line));
        let Some(heading) = heading(line) else {
            continue;
        };
        let slug = slug(heading);
        let before = seen.entry(slug.clone()).or_default();
        anchors.insert(match *before {
            0 => slug,
            count => format!("{slug}-{count}"),
        });
        *before += 1;
    }
    anchors
}

fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    let is_heading = (1..=6).contains(&level) && text.starts_with(' ');
    is_heading.then(|| text.trim().trim_end_matches('#').trim_end())
}

/// Names of `<a id="...">` and `<a name="...">`.
fn explicit(line: &str) -> Vec<String> {
    let mut names = Vec::new();
    for attribute in ["id=\"", "name=\""] {
        for rest in line.split(attribute).skip(1) {
            let name = rest.split('"').next().unwrap_or_default();
            names.push(name.to_owned());
        }
    }
    names
}

/// Name that GitHub gives a heading: lower case, without punctuation, blanks as hyphens.
pub fn slug(heading: &str) -> String {
    let mut slug = String::new();
    for character in without_targets(heading).chars() {
        match character {
            ' ' => slug.push('-'),
            '-' | '_' => slug.push(character),
            _ if character.is_alphanumeric() => slug.extend(character.to_lowercase()),
            _ => {}
        }
    }
    slug
}

/// The text without the targets of links.
pub fn without_targets(text: &str) -> String {
    let mut read = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        read.push_str(before);
        read.push(']');
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    read + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_githubs() {
        for (heading, expected) in [
            ("What is survived?", "what-is-survived"),
            ("`[rest]`: HTTP, and HTTPS", "rest-http-and-https"),
            ("Set_up a *cluster* – now", "set_up-a-cluster--now"),
            ("See [the list](a.md#b) (2)", "see-the-list-2"),
        ] {
            assert_eq!(slug(heading), expected);
        }
    }

    #[test]
    fn headings_of_one_name_are_numbered_and_code_has_none() {
        let document = "# A\n## A\n```\n# no heading\n```\n#no\n<a id=\"own\"></a>\n";
        let found: Vec<String> = anchors(document).into_iter().collect();
        assert_eq!(found, ["a", "a-1", "own"]);
    }
}
