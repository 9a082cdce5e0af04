//! Checks of the repository's own text, and the reference of all configuration keys. `cargo test -p tidy` runs them.
//!
//! Each check is a pure function from texts to findings, with unit tests that show it fail; `tests/repository.rs` runs
//! all of them on the repository. Findings that are older than their check are listed in `exceptions.toml`, which may
//! only shrink: `UPDATE=1 cargo test -p tidy` lowers it, and rewrites the reference and the index of hazards.

pub mod anchors;
pub mod circles;
pub mod exceptions;
pub mod figures;
pub mod hazards;
pub mod lengths;
pub mod lexer;
pub mod links;
pub mod mentions;
pub mod messages;
pub mod reference;
pub mod sentences;
pub mod tree;
pub mod wording;
