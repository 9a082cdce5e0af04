//! Lengths of files: fewer than 500 lines, so that a file can be read in one go.

use crate::exceptions::Counts;
use crate::tree::TextFile;

/// Most lines of a source file.
pub const MOST_LINES: usize = 500;

/// Returns the lines of each file that is too long.
pub fn too_long(sources: &[TextFile]) -> Counts {
    let lengths = sources
        .iter()
        .map(|file| (file.path.clone(), file.text.lines().count()));
    lengths.filter(|(_, lines)| *lines > MOST_LINES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_more_is_too_long() {
        let file = |path: &str, lines: usize| TextFile::new(path, &"x\n".repeat(lines));
        let found = too_long(&[file("a.rs", 500), file("b.rs", 501)]);
        assert_eq!(found, Counts::from([("b.rs".to_owned(), 501)]));
    }
}
