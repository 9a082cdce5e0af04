//! The direct channel between agents, and from the command line to an agent.
//!
//! Over it the active announces how far the log is synced (trigger messages, CAC-DB 4.1) and that
//! its PostgreSQL died or stopped; standbys answer how far they are. Nothing depends on it: what it
//! says is also in the heartbeat record, and its silence is only a hint (a broken connection is
//! noticed in milliseconds, a missing heartbeat after Tmax). Fencing makes acting on a hint safe.
//!
//! Frames are a 4-byte little-endian length and a JSON message, which log may follow as it is. Over TCP they travel inside of TLS, and
//! both sides show that they belong to the cluster, if the configuration says how; it must as soon as
//! other machines can connect. A Unix socket is for its owner only.

mod client;
mod frame;
mod greeting;
mod held;
mod holding;
mod message;
mod outlook;
mod positions;
mod proxies;
mod server;
mod session;
mod watching;

use dax::tls::Tls;

use crate::config::ClusterConfig;
use crate::records::Incarnation;

pub use client::{ClientEvent, Subscription, request, subscribe};
pub use frame::MAX_FRAME_BYTES;
pub use message::{
    Identity, Notice, Peer, Progress, ProxyReport, Request, ServerStarted, Serving, StandbySeen,
    Trigger,
};
pub use outlook::News;
pub use positions::{Position, PositionSource};
pub use proxies::Proxy;
pub use server::{Handler, Server, Subscriber};
pub use session::{Session, open_session};
pub use watching::{Watching, watch};

/// Who speaks, and how it shows that it belongs to the cluster.
#[derive(Debug, Clone)]
pub struct Party {
    /// Identity that is sent to the other side.
    pub me: Identity,
    /// What protects connections over TCP; without, they are for this machine only.
    pub tls: Option<Tls>,
}

impl Party {
    /// A new life of the node of this configuration, or a command that speaks for it.
    ///
    /// # Errors
    /// `Invalid` if the files of `[tls]` are invalid; `Unavailable` without random numbers.
    pub fn new(config: &ClusterConfig) -> dax::Result<Party> {
        let incarnation = Incarnation::random().map_err(|error| {
            let message = "cannot read the kernel's random source";
            dax::Error::with_source(dax::ErrorKind::Unavailable, message, error)
        })?;
        let me = Identity {
            node: config.name.clone(),
            volume: config.volume.clone(),
            incarnation,
        };
        let tls = config.tls()?;
        Ok(Party { me, tls })
    }
}

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
        /// Address of the agent's channel.
        address: crate::address::Address,
        /// What the system said.
        source: std::io::Error,
    },
    /// The peer does not belong to our cluster, or does not believe that we do.
    #[error("the agent at {address} {why}")]
    Rejected {
        /// Address of the agent's channel.
        address: crate::address::Address,
        /// What is wrong, in words.
        why: dax::tls::Rejection,
    },
    /// Connections cannot be protected.
    #[error(transparent)]
    Unprotected(#[from] dax::error::Error),
    /// No answer in time.
    #[error("the agent at {address} did not answer within {after:?}")]
    Timeout {
        /// Address of the agent's channel.
        address: crate::address::Address,
        /// How long it was waited for.
        after: std::time::Duration,
    },
    /// The peer belongs to another volume, or speaks another version.
    #[error("the agent at {address} refused: {why}")]
    Refusal {
        /// Address of the agent's channel.
        address: crate::address::Address,
        /// Reason that the agent gave.
        why: String,
    },
    /// The peer says something that is invalid.
    #[error("unexpected message from {address}: {what}")]
    Protocol {
        /// Address of the agent's channel.
        address: crate::address::Address,
        /// What was unexpected.
        what: String,
    },
}

/// Shorthand for results of this module.
pub type Result<T, E = ChannelError> = std::result::Result<T, E>;

/// What a message becomes that is read, and said again.
#[cfg(test)]
pub(crate) fn golden_message(line: &str) -> Result<serde_json::Value, serde_json::Error> {
    let read: message::Message = serde_json::from_str(line)?;
    if let message::Message::Request(Request::Unknown(_)) = &read {
        return Err(serde::de::Error::custom(
            "this request is no longer supported",
        ));
    }
    serde_json::to_value(&read)
}
