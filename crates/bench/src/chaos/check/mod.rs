//! The checkers: what clients saw against what a correct database could have shown them. Pure.
//!
//! Invariant: a checker looks at nothing but histories. What a client was not told may have happened or
//! not, and may still happen until the end; what it was told did happen before it was told.

pub(super) mod applications;
pub(super) mod lists;
pub(super) mod numbers;
pub(super) mod prepared;
pub(super) mod readers;
pub(super) mod strong;

mod graph;
