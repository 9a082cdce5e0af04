//! Connecting to servers, encrypted if they are asked to be.
//!
//! Invariant: nothing is said on a connection that proves less than [`ServerTls`] asks for. What was received before
//! encryption begins is never read as if it came after it.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use dax::error::{Error, ErrorKind};
use dax::tls::{PostgresClient, Proof};
use nix::sys::socket::{setsockopt, sockopt};
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
    /// What is sent and not taken within this time ends the connection.
    taken_within: Option<Duration>,
}

/// A standby that takes nothing for so long is gone. (An active may stand still for longer and go on.)
const STANDBY_TAKES_WITHIN: Duration = Duration::from_secs(15);

impl Dialer {
    /// Reads the file of authorities, if there is one.
    ///
    /// # Errors
    /// If it cannot be read or is invalid.
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
            taken_within: None,
        })
    }

    /// The same for connections to standbys: what they do can be done elsewhere, so they may not keep anybody waiting.
    pub fn to_standbys(&self) -> Dialer {
        Dialer {
            taken_within: Some(STANDBY_TAKES_WITHIN),
            ..self.clone()
        }
    }

    /// Connects to `address`: `host:port`, or `/directory:port` of a socket, which is never encrypted.
    ///
    /// # Errors
    /// If the server cannot be reached, or does not prove what it must.
    pub async fn dial(&self, address: &str) -> Result<Socket, DialError> {
        if address.starts_with('/') {
            return Ok(dial_plain(address).await?);
        }
        let stream = self.connect(address).await?;
        let Some(tls) = &self.tls else {
            return Ok(Socket::Tcp(stream));
        };
        match encrypt(tls, stream, address).await {
            Ok(Ok(socket)) => Ok(socket),
            Ok(Err(stream)) if self.mode == ServerTlsMode::Prefer => Ok(Socket::Tcp(stream)),
            Ok(Err(_)) => Err(DialError::NotOffered(address.to_owned())),
            Err(DialError::Untrusted(error)) if self.mode == ServerTlsMode::Prefer => {
                // As libpq: better without than not at all.
                tracing::debug!(%error, address, "TLS failed; trying without");
                Ok(Socket::Tcp(self.connect(address).await?))
            }
            Err(error) => Err(error),
        }
    }

    async fn connect(&self, address: &str) -> io::Result<TcpStream> {
        let stream = connect(address).await?;
        if let Some(within) = self.taken_within {
            let milliseconds = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
            setsockopt(&stream, sockopt::TcpUserTimeout, &milliseconds)?;
        }
        Ok(stream)
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
    notice_silence(&stream)?;
    Ok(stream)
}

/// A host that vanishes sends no farewell: the kernel asks whether it is there while it owes an answer, and ends the
/// connection after some 15 seconds.
fn notice_silence(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &5)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &2)?;
    setsockopt(stream, sockopt::TcpKeepCount, &5)?;
    Ok(())
}

/// An encrypted connection, or the plain one if the server does not offer encryption.
async fn encrypt(
    tls: &PostgresClient,
    mut stream: TcpStream,
    address: &str,
) -> Result<Result<Socket, TcpStream>, DialError> {
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

#[cfg(test)]
mod tests {
    use nix::sys::socket::getsockopt;

    use super::*;

    /// A read on a standby whose host has vanished would wait for its answer for ever.
    // hazard: PROXY-47
    #[tokio::test]
    async fn the_kernel_asks_whether_a_silent_server_is_there() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("it listens");
        let address = listener.local_addr().expect("it has one").to_string();
        let dialer = Dialer::new(&ServerTls::default()).expect("nothing is read");
        let to_active = dialer.connect(&address).await.expect("it connects");
        assert_eq!(getsockopt(&to_active, sockopt::KeepAlive), Ok(true));
        assert_eq!(getsockopt(&to_active, sockopt::TcpKeepIdle), Ok(5));
        assert_eq!(getsockopt(&to_active, sockopt::TcpUserTimeout), Ok(0));
        let to_standby = dialer.to_standbys().connect(&address).await;
        let to_standby = to_standby.expect("it connects");
        assert_eq!(getsockopt(&to_standby, sockopt::KeepAlive), Ok(true));
        assert_eq!(getsockopt(&to_standby, sockopt::TcpUserTimeout), Ok(15_000));
    }
}
