//! A zone server: keeps replicas of many volumes' blocks in an embedded key-value store.
//!
//! Owns the server's side of the block protocol ([`dax::wire`]) on std threads. Invariant: what was
//! acknowledged is durable (one fsync for all connections' writes, a group commit), and nothing
//! below the accepted epoch of its volume is ever applied.

mod engine;
mod error;
mod keys;

pub use error::OpenError;
