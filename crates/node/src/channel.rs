//! The direct channel between agents, and from the command line to an agent.
//!
//! Over it the active announces how far the log is synced (trigger messages, CAC-DB 4.1) and that
//! its PostgreSQL died or stopped; standbys answer how far they are. Nothing depends on it: what it
//! says is also in the heartbeat record, and its silence is only a hint (a broken connection is
//! noticed in milliseconds, a missing heartbeat after Tmax). Fencing makes acting on a hint safe.
//!
//! Frames are a 4-byte little-endian length and a JSON message. Peers are not authenticated yet:
//! anybody who reaches the address can ask for a failover. Hence the default is the loopback
//! address; [`Server::bind`] warns about any other.

mod client;
mod frame;
mod message;
mod server;

pub use client::{ClientEvent, Subscription, request, subscribe};
pub use frame::MAX_FRAME_BYTES;
pub use message::{Identity, Notice, Peer, Progress, Request, Trigger};
pub use server::{Handler, Server, Subscriber};

/// Why a channel operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// Nobody listens there: the agent is not running.
    #[error("no agent listens at {address}")]
    Refused {
        /// Where it was tried.
        address: crate::address::Address,
        /// What the system said.
        source: std::io::Error,
    },
    /// Listening, connecting, reading or writing failed.
    #[error("the direct channel at {address} failed")]
    Io {
        /// Where.
        address: crate::address::Address,
        /// What the system said.
        source: std::io::Error,
    },
    /// No answer in time.
    #[error("the agent at {address} did not answer within {after:?}")]
    Timeout {
        /// Where.
        address: crate::address::Address,
        /// How long it was waited for.
        after: std::time::Duration,
    },
    /// The peer belongs to another volume, or speaks another version.
    #[error("the agent at {address} refused: {why}")]
    Refusal {
        /// Where.
        address: crate::address::Address,
        /// Its words.
        why: String,
    },
    /// The peer says something that makes no sense.
    #[error("unexpected message from {address}: {what}")]
    Protocol {
        /// Where.
        address: crate::address::Address,
        /// What was unexpected.
        what: String,
    },
}

/// Shorthand for results of this module.
pub type Result<T, E = ChannelError> = std::result::Result<T, E>;
