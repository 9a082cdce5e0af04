//! The index of hazards, made from marks at the tests that show that they do not happen.
//!
//! A mark is a comment such as `hazard: WAL-7, N2` directly above a test, or above a variant of a simulation's flaws.
//! `hazards.toml` has a sentence for each hazard. Invariant: each has a sentence and at least one test.

mod marks;
mod page;
mod sentences;

use std::path::Path;

use crate::tree::Repository;

pub use marks::{Mark, functions, is_mark, marks};
pub use sentences::{Area, Sentences};

/// Place of the page below the root.
pub const PAGE: &str = "docs/understand/hazards.md";

/// Place of the sentences below the root.
pub const SENTENCES: &str = "crates/tidy/hazards.toml";

/// Returns the page.
///
/// # Errors
/// Complaints about sentences or marks, one line for each.
pub fn page(repository: &Repository) -> Result<String, Vec<String>> {
    let sentences = read(&repository.root).map_err(|error| vec![error])?;
    let marks = marks(&repository.sources);
    let functions = functions(&repository.sources);
    let complaints = sentences.complaints(&marks, &functions);
    match complaints.is_empty() {
        true => Ok(page::page(&sentences, &marks, &functions)),
        false => Err(complaints),
    }
}

fn read(root: &Path) -> Result<Sentences, String> {
    let text = std::fs::read_to_string(root.join(SENTENCES));
    let text = text.map_err(|error| format!("{SENTENCES}: {error}"))?;
    Sentences::parse(&text).map_err(|error| format!("{SENTENCES}: {error}"))
}
