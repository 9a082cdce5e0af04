//! The reference of all configuration keys, made from the structs that the files are parsed into.
//!
//! Invariant: a key is on the page if and only if a file may have it; its default is what the code says.

mod attributes;
mod defaults;
mod files;
mod flags;
mod known;
mod model;
mod page;
mod read;
mod source;
#[cfg(test)]
mod tests;
mod types;

use crate::tree::Repository;

/// Place of the page below the root.
pub const PAGE: &str = "docs/operate/reference.md";

/// Returns the page.
///
/// # Errors
/// Why the structs cannot be understood, with the place.
pub fn page(repository: &Repository) -> Result<String, String> {
    let sources = source::Sources::new(&repository.sources);
    let sections = files::sections(&sources, &repository.root)?;
    Ok(page::page(&sections))
}
