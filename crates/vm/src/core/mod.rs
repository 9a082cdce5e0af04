//! Who may run the machine, and when what it says may be heard: pure, without clocks, sockets or threads.
//!
//! ```text
//!            nobody wrote a record, or its own disk is the last word
//!   Looking ───────────────────────────────────────────▶ Starting ──▶ Running
//!      │  ▲                                                  ▲  │        │ another host is active
//!      │  └────────────── not named in the record ───────────┼──┘        ▼
//!      └──▶ Following ─────── the active host is silent ─────┘        Looking, with a new life
//! ```
//!
//! Invariants:
//! - The record on the zones names the host that runs the machine, and the standby that may take over. It is written only by the owner
//!   of the highest epoch, after reading it in that epoch.
//! - Output that no standby holds is released only while the record names no standby.
//! - A standby says that it holds a checkpoint after it has applied all of it, and never once it has begun to take over.
//! - A standby that was started anew, or began again, has another *life*: the record that named the old one does not name it.

mod flaw;
mod gate;
mod guard;
mod message;
mod record;
mod role;
#[cfg(test)]
mod simulation;

pub use flaw::Flaw;
pub use gate::Gate;
pub use guard::Guard;
pub use message::{Effect, Message, Session};
pub use record::{Number, Record, Who};
pub use role::{Follower, Role, Rules};
