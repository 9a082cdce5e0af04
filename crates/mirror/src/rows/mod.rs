//! Statements that write the rows of the log, and texts that define something elsewhere.

pub mod definition;
pub mod shared;
pub mod write;
