//! What two processes say to each other.
//!
//! The beginning of an offer is the same in all versions, so that each knows whether it reads the rest.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::core::handover::{ClientId, FORMAT};
use crate::core::session::{Packed, PackedServer};
use crate::driver::login::Login;

/// What an offer begins with, before its format.
const MAGIC: &[u8; 16] = b"understudy proxy";

/// Kinds of messages. Those of an offer and its refusal stay what they are.
pub mod kind {
    /// The offer to hand over.
    pub const OFFER: u8 = 1;
    /// No; the body says why.
    pub const REFUSE: u8 = 2;
    /// Yes.
    pub const ACCEPT: u8 = 3;
    /// The listening sockets: that of the network first.
    pub const LISTENER: u8 = 4;
    /// The successor has it.
    pub const HAS: u8 = 5;
    /// A client.
    pub const CLIENT: u8 = 6;
    /// It can be served: its number.
    pub const UNDERSTOOD: u8 = 7;
    /// It cannot: its number.
    pub const DECLINED: u8 = 8;
    /// Accept connections, and serve those who were handed over. Answered by the same.
    pub const GO: u8 = 9;
    /// The predecessor goes on, with all of them.
    pub const ABORT: u8 = 10;
    /// A connection to a server that nobody uses.
    pub const SERVER: u8 = 11;
    /// A cancel request for a client of the other.
    pub const CANCEL: u8 = 12;
    /// The predecessor has nobody left.
    pub const DONE: u8 = 13;
}

/// What a predecessor offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The epoch that it knows.
    pub epoch: u32,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Path of its Unix socket.
    pub unix_socket: Option<PathBuf>,
    /// The highest number that a client has.
    pub last_client: ClientId,
}

impl Offer {
    /// In [`FORMAT`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&FORMAT.to_be_bytes());
        bytes.extend_from_slice(&write(self));
        bytes
    }

    /// The format of an offer, and the rest of it; `None` if this is none.
    pub fn format(bytes: &[u8]) -> Option<(u32, &[u8])> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (format, rest) = rest.split_first_chunk()?;
        Some((u32::from_be_bytes(*format), rest))
    }
}

/// A client on its way, beside its sockets.
#[derive(Debug, Serialize, Deserialize)]
pub struct ClientParcel {
    pub id: ClientId,
    /// What proves its cancel requests.
    pub secret: Vec<u8>,
    /// It is on this machine.
    pub is_unix: bool,
    /// Where it comes from.
    pub peer: Option<IpAddr>,
    /// Since how many seconds.
    pub age_s: u64,
    /// Units answered.
    pub batches: u64,
    /// Whose pool its servers come from.
    pub login: Login,
    /// Read from it, and not taken by its session.
    pub input: Vec<u8>,
    /// To be written to it.
    pub output: Vec<u8>,
    pub session: Packed,
    /// The connection to a server that goes along.
    pub server: Option<ServerParcel>,
}

/// A connection to a server, beside its socket.
#[derive(Debug, Serialize, Deserialize)]
pub struct ServerParcel {
    /// Where to.
    pub address: String,
    /// With this it can be cancelled.
    pub key: (i32, i32),
    /// Since how many milliseconds.
    pub age_ms: u64,
    /// It is on this machine.
    pub is_unix: bool,
}

/// A connection to a server that nobody uses.
#[derive(Debug, Serialize, Deserialize)]
pub struct IdleParcel {
    /// Whose pool it is in.
    pub login: Login,
    pub server: ServerParcel,
    /// What its session is like.
    pub packed: PackedServer,
}

/// Writes a body.
pub fn write<T: Serialize>(value: &T) -> Zeroizing<Vec<u8>> {
    let bytes = postcard::to_stdvec(value).expect("what is in memory can be written to memory");
    Zeroizing::new(bytes)
}

/// Reads a body; `None` if it is invalid.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any version can tell that it does not read the rest.
    #[test]
    fn the_beginning_of_an_offer_never_changes() {
        let offer = Offer {
            epoch: 3,
            listen: ([127, 0, 0, 1], 6432).into(),
            unix_socket: Some("/run/.s.PGSQL.6432".into()),
            last_client: 9,
        };
        let bytes = offer.to_bytes();
        assert_eq!(&bytes[..20], b"understudy proxy\0\0\0\x05");
        let (format, rest) = Offer::format(&bytes).expect("an offer");
        assert_eq!((format, read(rest)), (FORMAT, Some(offer)));
        let other = b"understudy proxy\0\0\x03\xe7whatever";
        assert_eq!(Offer::format(other), Some((999, b"whatever".as_slice())));
        assert_eq!(Offer::format(b"understudy"), None);
    }
}
