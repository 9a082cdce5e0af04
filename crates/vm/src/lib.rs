//! Virtual machines protected by checkpoints many times a second.
//!
//! Implements RemusDB: a checkpoint of memory, processor, devices and disk goes to a standby host many times a second, and
//! nothing leaves the machine before the standby holds the checkpoint that covers it. Which host may run the machine, the
//! zones decide by their epochs.

mod clock;
pub mod core;
pub mod disk;
pub mod driver;
pub mod encoding;
pub mod host;
pub mod image;
pub mod network;
pub mod standby;
