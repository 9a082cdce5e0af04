//! Lengths of files: fewer than 500 lines, so that a file can be read in one go. Marks of hazards do not count.

use crate::exceptions::Counts;
use crate::hazards::is_mark;
use crate::tree::TextFile;

/// Most lines of a source file.
pub const MOST_LINES: usize = 500;

/// Returns the lines of each file that is too long.
pub fn too_long(sources: &[TextFile]) -> Counts {
    let count = |file: &TextFile| file.text.lines().filter(|line| !is_mark(line)).count();
    let lengths = sources.iter().map(|file| (file.path.clone(), count(file)));
    lengths.filter(|(_, lines)| *lines > MOST_LINES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_with_one_line_more_is_too_long() {
        let file = |path: &str, lines: usize| TextFile::new(path, &"x\n".repeat(lines));
        let found = too_long(&[file("a.rs", 500), file("b.rs", 501)]);
        assert_eq!(found, Counts::from([("b.rs".to_owned(), 501)]));
        let marked = TextFile::new("c.rs", &("x\n".repeat(500) + "// hazard: H1\n"));
        assert_eq!(too_long(&[marked]), Counts::new());
    }
}
