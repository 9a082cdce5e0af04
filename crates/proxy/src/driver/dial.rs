//! Connecting to servers, encrypted if they are asked to be.
//!
//! Invariant: nothing is said on a connection that proves less than [`ServerTls`] asks for. What was received before
//! encryption begins is never read as if it came after it.

use std::io;

use bytes::BytesMut;
use dax::error::{Error, ErrorKind};
use dax::tls::{PostgresClient, Proof};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::config::{ServerTls, ServerTlsMode};

use super::socket::Socket;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The server cannot be reached: try again.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// It does not prove who it is, as far as that is asked.
    #[error(transparent)]
    Untrusted(Error),
    /// It does not speak TLS.
    #[error("{0} does not offer TLS")]
    NotOffered(String),
}

/// Connects to servers. Clones share what they believe.
#[derive(Debug, Clone)]
pub struct Dialer {
    mode: ServerTlsMode,
    tls: Option<PostgresClient>,
}

impl Dialer {
    /// Reads the file of authorities, if there is one.
    ///
    /// # Errors
    /// If it cannot be read or makes no sense.
    pub fn new(config: &ServerTls) -> Result<Dialer, Error> {
        use ServerTlsMode as Mode;
        let proof = match (config.mode, config.root.clone()) {
            (Mode::Disable, _) => None,
            (Mode::VerifyFull, Some(root)) => Some(Proof::Host(root)),
            // As libpq: with a file of authorities, `require` is `verify-ca`.
            (_, Some(root)) => Some(Proof::Authority(root)),
            (_, None) => Some(Proof::None),
        };
        Ok(Dialer {
            mode: config.mode,
            tls: proof.map(PostgresClient::load).transpose()?,
        })
    }

    /// Connects to `address`: `host:port`, or `/directory:port` of a socket, which is never encrypted.
    ///
    /// # Errors
    /// If the server cannot be reached, or does not prove what it must.
    pub async fn dial(&self, address: &str) -> Result<Socket, DialError> {
        let tls = match &self.tls {
            Some(tls) if !address.starts_with('/') => tls,
            _ => return Ok(dial_plain(address).await?),
        };
        match encrypt(tls, address).await {
            Ok(Ok(socket)) => Ok(socket),
            Ok(Err(stream)) if self.mode == ServerTlsMode::Prefer => Ok(Socket::Tcp(stream)),
            Ok(Err(_)) => Err(DialError::NotOffered(address.to_owned())),
            Err(DialError::Untrusted(error)) if self.mode == ServerTlsMode::Prefer => {
                // As libpq: better without than not at all.
                tracing::debug!(%error, address, "TLS failed; trying without");
                Ok(Socket::Tcp(connect(address).await?))
            }
            Err(error) => Err(error),
        }
    }
}

/// Connects to such an address, without encryption.
///
/// # Errors
/// If the server cannot be reached.
pub async fn dial_plain(address: &str) -> io::Result<Socket> {
    if address.starts_with('/') {
        let (directory, port) = address.rsplit_once(':').unwrap_or((address, "5432"));
        let path = format!("{directory}/.s.PGSQL.{port}");
        return Ok(Socket::Unix(UnixStream::connect(path).await?));
    }
    Ok(Socket::Tcp(connect(address).await?))
}

async fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// An encrypted connection, or the plain one if the server does not offer encryption.
async fn encrypt(
    tls: &PostgresClient,
    address: &str,
) -> Result<Result<Socket, TcpStream>, DialError> {
    let mut stream = connect(address).await?;
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await?;
    // One byte and no more: what follows is TLS, or was put there by somebody in between.
    match stream.read_u8().await? {
        b'S' => match tls.connect(stream, address).await {
            Ok(stream) => Ok(Ok(Socket::tls(stream))),
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                Err(io::Error::other(error).into())
            }
            Err(error) => Err(DialError::Untrusted(error)),
        },
        b'N' => Ok(Err(stream)),
        // An error, before the server knows whom it speaks to: it is full, or about to stop.
        _ => Err(io::Error::other(format!("{address} refuses connections now")).into()),
    }
}
