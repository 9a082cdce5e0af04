//! TLS as PostgreSQL's protocol has it: what clients are shown, and how a server proves who it is.
//!
//! Unlike the parts of a cluster, its clients come with whatever their drivers have: TLS 1.2 is spoken as well, and a
//! client's certificate is not asked for. [`endpoint`] has what both sides of a channel binding compare.

mod endpoint;
#[cfg(test)]
mod tests;
mod verifier;

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::server::NoClientAuth;
use rustls::version::{TLS12, TLS13};
use rustls::{CertificateError, ClientConfig, Error as TlsError, OtherError, ServerConfig};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::identity::{certificates, private_key, provider, read_key, read_public, unusable};
use super::watched::Watched;
use super::{Rejection, Stream, host};
use crate::error::{Error, ErrorKind, Result};

use verifier::Verifier;

/// The protocol's name where TLS negotiates one.
const ALPN: &[u8] = b"postgresql";

/// What is read at once from a server, whose answers are long.
const FROM_SERVER_BYTES: usize = 64 << 10;

/// What is read at once from a client: there are many of them, and most are idle.
const FROM_CLIENT_BYTES: usize = 4 << 10;

/// The certificate that clients of PostgreSQL's protocol are shown. Clones share it.
#[derive(Clone)]
pub struct PostgresServer(Arc<Watched<Shown>>);

struct Shown {
    config: Arc<ServerConfig>,
    endpoint: Option<Arc<[u8]>>,
}

/// A client's connection, encrypted.
pub struct Accepted {
    /// Connection after its TLS handshake.
    pub stream: Stream,
    /// What `tls-server-end-point` (RFC 5929) binds to: a hash of the certificate that the client was shown. None if its
    /// signature is of a kind for which the RFC names no hash.
    pub endpoint: Option<Arc<[u8]>>,
}

impl fmt::Debug for PostgresServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresServer")
            .field(&self.0.paths())
            .finish()
    }
}

impl PostgresServer {
    /// Reads a certificate, with those between it and an authority's that clients know, and its key.
    ///
    /// # Errors
    /// `Invalid` if a file cannot be read or is invalid, or others than its owner can open the key.
    pub fn load(certificate: PathBuf, key: PathBuf) -> Result<PostgresServer> {
        let paths = vec![certificate.clone(), key.clone()];
        let watched = Watched::new(paths, move || Shown::load(&certificate, &key))?;
        Ok(PostgresServer(Arc::new(watched)))
    }

    /// Encrypts a connection from `peer`, whose client has asked for it.
    ///
    /// # Errors
    /// `Denied` if it speaks something else; `Unavailable` if the connection broke.
    pub async fn accept(&self, stream: TcpStream, peer: &str) -> Result<Accepted> {
        let shown = self.0.get();
        let acceptor = TlsAcceptor::from(shown.config.clone());
        let stream = BufReader::with_capacity(FROM_CLIENT_BYTES, stream);
        let accepted = acceptor.accept(stream).await;
        let stream = accepted.map_err(|error| Rejection::of_handshake(peer, error))?;
        Ok(Accepted {
            stream: stream.into(),
            endpoint: shown.endpoint.clone(),
        })
    }
}

impl Shown {
    fn load(certificate: &Path, key: &Path) -> Result<Shown> {
        let unusable = |error| unusable(certificate, error);
        let own = certificates(certificate, &read_public(certificate)?)?;
        let endpoint = endpoint::of(&own[0]).map(Arc::from);
        let key = private_key(key, &read_key(key)?)?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(unusable)?
            .with_client_cert_verifier(Arc::new(NoClientAuth))
            .with_single_cert(own, key)
            .map_err(unusable)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // As in PostgreSQL.
        config.send_tls13_tickets = 0;
        Ok(Shown {
            config: Arc::new(config),
            endpoint,
        })
    }
}

/// How a server proves who it is, in the order of libpq's `sslmode`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// Not at all: the connection is encrypted to whoever answers (`require`).
    None,
    /// By a certificate from an authority in this file, or one that the file holds itself (`verify-ca`).
    Authority(PathBuf),
    /// In addition the certificate must be for the host that was called (`verify-full`).
    Host(PathBuf),
}

/// What a client of PostgreSQL's protocol asks of servers. Clones share it.
#[derive(Clone)]
pub struct PostgresClient {
    config: Arc<Watched<ClientConfig>>,
    proof: Proof,
}

impl fmt::Debug for PostgresClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresClient").field(&self.proof).finish()
    }
}

impl PostgresClient {
    /// Reads the authorities' file, if there is one.
    ///
    /// # Errors
    /// `Invalid` if it cannot be read or is invalid.
    pub fn load(proof: Proof) -> Result<PostgresClient> {
        let paths = proof.root().map(Path::to_owned).into_iter().collect();
        let of = proof.clone();
        let config = Arc::new(Watched::new(paths, move || client_config(&of))?);
        Ok(PostgresClient { config, proof })
    }

    /// Encrypts a connection to `address`, `host:port`, whose server has agreed to it.
    ///
    /// # Errors
    /// `Denied` if the server does not prove who it is, or breaks the rules of TLS; `Unavailable` if the connection broke.
    pub async fn connect(&self, stream: TcpStream, address: &str) -> Result<Stream> {
        let name = match ServerName::try_from(host(address).to_owned()) {
            Ok(name) => name,
            Err(error) if matches!(self.proof, Proof::Host(_)) => {
                let message = format!("no certificate can be for {address}");
                return Err(Error::with_source(ErrorKind::Invalid, message, error));
            }
            // It matters to nobody, and an address is not sent.
            Err(_) => ServerName::IpAddress(Ipv4Addr::UNSPECIFIED.into()),
        };
        let connector = TlsConnector::from(self.config.get());
        let stream = BufReader::with_capacity(FROM_SERVER_BYTES, stream);
        let connected = connector.connect(name, stream).await;
        let stream = connected.map_err(|error| self.distrusts(address, error))?;
        Ok(stream.into())
    }

    /// Why a server is not talked to.
    fn distrusts(&self, address: &str, error: io::Error) -> Error {
        use CertificateError as Of;
        let of_tls = error.get_ref().and_then(|error| error.downcast_ref());
        let Some(of_tls) = of_tls else {
            let message = format!("the connection to {address} broke where TLS begins");
            return Error::with_source(ErrorKind::Unavailable, message, error);
        };
        let why = match of_tls {
            TlsError::InvalidCertificate(Of::UnknownIssuer | Of::BadSignature) => {
                let root = self.proof.root().unwrap_or(Path::new(""));
                format!("its certificate is from no authority in {}", root.display())
            }
            TlsError::InvalidCertificate(
                why @ (Of::NotValidForName | Of::NotValidForNameContext { .. }),
            ) => format!("its certificate is for another host: {why}"),
            TlsError::InvalidCertificate(Of::Other(why)) if is_of_authority(why) => {
                let root = self.proof.root().unwrap_or(Path::new(""));
                format!(
                    "its certificate is an authority's own, and not in {}",
                    root.display()
                )
            }
            TlsError::InvalidCertificate(why) => format!("its certificate cannot be used: {why}"),
            other => other.to_string(),
        };
        let message = format!("{address} does not show a trusted certificate: {why}");
        Error::new(ErrorKind::Denied, message)
    }
}

impl Proof {
    fn root(&self) -> Option<&Path> {
        match self {
            Proof::None => None,
            Proof::Authority(root) | Proof::Host(root) => Some(root),
        }
    }
}

/// The library names what it does not have an error of its own for only in words.
fn is_of_authority(why: &OtherError) -> bool {
    format!("{why:?}").contains("CaUsedAsEndEntity")
}

fn client_config(proof: &Proof) -> Result<ClientConfig> {
    let verifier = Verifier::load(proof)?;
    let path = proof.root().unwrap_or(Path::new("TLS"));
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| unusable(path, error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}
