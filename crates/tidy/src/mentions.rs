//! Documents that comments name: each must be in the repository, so that a reader can open it.

use std::collections::BTreeSet;

use crate::lexer::{Kind, pieces};
use crate::tree::TextFile;

/// Words that name documents of the project's beginnings, which nobody else has.
const ABSENT: &[&str] = &["design section", "design.md", "/work/", "shared/words"];

/// Returns comments that name absent documents as `path:line: why`. `paths` are all files of the repository.
pub fn absent(sources: &[TextFile], paths: &[String]) -> Vec<String> {
    let names: BTreeSet<&str> = paths
        .iter()
        .filter_map(|path| path.rsplit('/').next())
        .collect();
    let mut found = Vec::new();
    for file in sources {
        for comment in pieces(&file.text) {
            if !matches!(comment.kind, Kind::Comment | Kind::Doc) {
                continue;
            }
            let refused = ABSENT
                .iter()
                .filter(|words| comment.text.to_lowercase().contains(**words))
                .map(|words| (*words).to_owned());
            let missing = documents(comment.text).filter(|name| !names.contains(name.as_str()));
            let whys: BTreeSet<String> = refused.chain(missing).collect();
            found.extend(
                whys.iter()
                    .map(|why| format!("{}:{}: {why}", file.path, comment.line)),
            );
        }
    }
    found
}

/// Names of Markdown files in a comment, without directories; addresses of other places are left out.
fn documents(comment: &str) -> impl Iterator<Item = String> {
    let words = comment
        .split(|character: char| character.is_whitespace() || "()<>[]`\"',;".contains(character));
    let local = words.filter(|word| !word.contains("://"));
    local.filter_map(|word| {
        let word = word.trim_end_matches(['.', ':']);
        let file = word.split('#').next()?;
        let name = file.rsplit('/').next()?;
        (name.len() > 3 && name.ends_with(".md")).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let paths = ["docs/FAILOVER.md".to_owned()];
        absent(&[TextFile::new("x.rs", text)], &paths)
    }

    #[test]
    fn absent_documents_are_found_in_comments() {
        for (text, why) in [
            ("// (design section 4)", "x.rs:1: design section"),
            ("\n//! See DESIGN.md.", "x.rs:2: DESIGN.md"),
            ("/// as docs/GONE.md#a says", "x.rs:1: GONE.md"),
        ] {
            assert!(found(text).contains(&why.to_owned()), "{:?}", found(text));
        }
    }

    #[test]
    fn present_documents_and_strings_pass() {
        let text = "// docs/FAILOVER.md: (FAILOVER.md#x), https://a.b/proto.md\nlet a = \"GONE.md\"; // by design";
        assert_eq!(found(text), [""; 0]);
    }
}
