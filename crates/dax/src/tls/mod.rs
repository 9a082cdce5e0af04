//! How the parts of a cluster talk over a network: TLS 1.3, in which each side shows a certificate.
//!
//! Owns the files with certificates and keys ([`Files`]), what is made of them ([`Tls`], [`WebTls`] for HTTPS, and
//! [`PostgresServer`] and [`PostgresClient`] for PostgreSQL's protocol), and what a failure means in words ([`Rejection`]). There are two ways to say who belongs to a cluster:
//!
//! - its **identity**: one file with a certificate and its key, the same on every machine. Who proves to
//!   have the key of a certificate in this file belongs to the cluster, and nobody else;
//! - an **authority** of the operator's: each machine has a certificate of its own, for its host names and
//!   addresses. Who has one from this authority belongs to the cluster.
//!
//! Invariants: nothing is said to, or believed of, a peer before both have proved to belong to the
//! cluster (a server believes nothing before its client has); a key's file that others can open is not
//! read; keys are never shown by `Debug`. The files are watched: what they say counts for the next
//! connection, and what is invalid counts for none.

mod files;
mod identity;
mod postgres;
mod rejection;
#[cfg(test)]
mod tests;
mod watched;
mod web;

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::ServerName;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::error::{Error, ErrorKind, Result};

pub use files::{Files, WebFiles};
pub use identity::new_identity;
pub use postgres::{Accepted, PostgresClient, PostgresServer, Proof};
pub use rejection::Rejection;
pub use web::{WebTls, is_certified};

use identity::Sides;
use watched::Watched;

/// What is read from a socket at once: the library itself takes 4 KiB at a time.
const READ_BYTES: usize = 64 << 10;

/// Encrypted bytes that may wait for the socket, on the calling side.
const SEND_BYTES: usize = 256 << 10;

/// A protected connection's calling side.
pub type ClientStream = tokio_rustls::client::TlsStream<BufReader<TcpStream>>;

/// A protected connection's answering side.
pub type ServerStream = tokio_rustls::server::TlsStream<BufReader<TcpStream>>;

/// A protected connection, whichever side of it we are.
pub type Stream = tokio_rustls::TlsStream<BufReader<TcpStream>>;

/// Who we are to other parts of the cluster, and whom we believe. Clones share it.
#[derive(Clone)]
pub struct Tls(Arc<Watched<Sides>>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.paths()).finish()
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// `Invalid` if one cannot be read or is invalid, or others than its owner can open a key.
    pub fn load(files: Files) -> Result<Tls> {
        let watched = Watched::new(files.paths(), move || Sides::load(&files))?;
        Ok(Tls(Arc::new(watched)))
    }

    /// What an answering side needs that is not asynchronous. Ask for it anew for each connection.
    pub fn server(&self) -> Arc<ServerConfig> {
        self.0.get().server.clone()
    }

    /// Protects a connection that we have made to `address`, `host:port`.
    ///
    /// # Errors
    /// `Denied` if the other side does not belong to the cluster, or speaks something else;
    /// `Unavailable` if the connection broke.
    pub async fn connect(&self, stream: TcpStream, address: &str) -> Result<ClientStream> {
        let sides = self.0.get();
        let name = match sides.name {
            Some(name) => ServerName::try_from(name),
            None => ServerName::try_from(host(address).to_owned()),
        };
        let name = name.map_err(|error| {
            let message = format!("no certificate can be for {address}");
            Error::with_source(ErrorKind::Invalid, message, error)
        })?;
        let connector = TlsConnector::from(sides.client.clone());
        let stream = BufReader::with_capacity(READ_BYTES, stream);
        let connecting = connector.connect_with(name, stream, |connection| {
            connection.set_buffer_limit(Some(SEND_BYTES));
        });
        connecting
            .await
            .map_err(|error| Rejection::of_handshake(address, error))
    }

    /// Protects a connection that somebody has made to us; `peer` is where from, for the error.
    ///
    /// # Errors
    /// As [`Tls::connect`].
    pub async fn accept(&self, stream: TcpStream, peer: &str) -> Result<ServerStream> {
        let acceptor = TlsAcceptor::from(self.server());
        let stream = BufReader::with_capacity(READ_BYTES, stream);
        let accepting = acceptor.accept(stream);
        accepting
            .await
            .map_err(|error| Rejection::of_handshake(peer, error))
    }
}

/// The host of `host:port`, without an IPv6 address's brackets.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    bare.unwrap_or(host)
}
