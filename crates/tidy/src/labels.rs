//! Labels of hazards: each names one row, so that a reference to it leads to one place.

use crate::exceptions::Counts;

/// Returns the labels that several rows of the document have, and how many rows.
pub fn repeated(document: &str) -> Counts {
    let mut rows = Counts::new();
    for cell in document.lines().filter_map(first_cell) {
        for label in cell.split(',').map(str::trim).filter(|text| is_label(text)) {
            *rows.entry(label.to_owned()).or_default() += 1;
        }
    }
    rows.retain(|_, count| *count > 1);
    rows
}

fn first_cell(line: &str) -> Option<&str> {
    let rest = line.strip_prefix('|')?;
    rest.split_once('|').map(|(cell, _)| cell.trim())
}

/// Letters followed by a number, as `H6` and `N12`.
fn is_label(text: &str) -> bool {
    let number = text.trim_start_matches(|letter: char| letter.is_ascii_uppercase());
    number.len() < text.len()
        && !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_two_rows_are_found() {
        let document =
            "| | hazard |\n|---|---|\n| H1 | a |\n| H6, N6 | b |\n| H6 | c |\n| - | d |\n| - | e |";
        assert_eq!(repeated(document), Counts::from([("H6".to_owned(), 2)]));
        assert_eq!(repeated("| H1 | a, H1 |\n| H2 | see H1 |"), Counts::new());
    }
}
