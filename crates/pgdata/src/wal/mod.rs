//! The write-ahead log: pages, records, and where the log ends.
//!
//! Two ways to use it, both pure: a [`Follower`] is fed log pages as they are written and hands out
//! every complete record once; an [`EndFinder`] says which bytes it wants next until it knows where
//! valid log ends. Positions of ends are PostgreSQL's `EndRecPtr`, see [`Record::end`].

mod finder;
mod follower;
mod page;
mod record;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use finder::{EndFinder, LogEnd, find_end};
pub use follower::{Follower, Start, Stop};
pub use record::{BlockRef, Checkpoint, Detail, Record};
