//! The sockets that clients connect to: one of a network, and one on this machine.
//!
//! Invariant: the file of a Unix socket is removed by the process that accepts connections on it, or that finds that nobody
//! does. One that is in use is left alone.

use std::fs::Permissions;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket};

use crate::config::Config;

use super::socket::Socket;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// An address cannot be listened at.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {address}")]
pub struct ListenError {
    address: String,
    source: io::Error,
}

/// Sockets that accept connections.
pub struct Endpoints {
    tcp: TcpListener,
    unix: Option<(UnixListener, PathBuf)>,
}

/// Listening sockets of another process, at this process's own addresses.
#[derive(Default)]
pub struct Inherited {
    /// Socket that listens on a network address.
    pub tcp: Option<OwnedFd>,
    /// Unix socket that listens.
    pub unix: Option<OwnedFd>,
}

impl Endpoints {
    /// Listens where the configuration says, with the sockets that are there already.
    pub fn listen(config: &Config, inherited: Inherited) -> Result<Endpoints, ListenError> {
        let failed = |address: String| |source| ListenError { address, source };
        let tcp = match inherited.tcp {
            Some(tcp) => adopt_tcp(tcp).map_err(failed(config.listen.to_string()))?,
            None => listen(config.listen)?,
        };
        let Some(path) = config.unix_socket() else {
            return Ok(Endpoints { tcp, unix: None });
        };
        let unix = match inherited.unix {
            Some(unix) => adopt_unix(unix),
            None => listen_unix(&path, config.unix_socket_mode().unwrap_or(0o777)),
        };
        let unix = unix.map_err(failed(path.display().to_string()))?;
        Ok(Endpoints {
            tcp,
            unix: Some((unix, path)),
        })
    }

    /// The next connection, and the address that it is from if it is from a network.
    pub async fn accept(&self) -> io::Result<(Socket, Option<IpAddr>)> {
        let local = async {
            match &self.unix {
                Some((unix, _)) => unix.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = self.tcp.accept() => {
                let (stream, peer) = accepted?;
                // Latency is all that Nagle's algorithm would bring.
                let _ = stream.set_nodelay(true);
                Ok((Socket::Tcp(stream), Some(peer.ip())))
            }
            accepted = local => Ok((Socket::Unix(accepted?.0), None)),
        }
    }

    /// The sockets, for another process: that of the network first.
    pub fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let unix = self.unix.as_ref().map(|(unix, _)| unix.as_fd());
        let all = std::iter::once(self.tcp.as_fd()).chain(unix);
        all.map(|fd| fd.try_clone_to_owned()).collect()
    }

    /// Nobody accepts connections any more, here or elsewhere.
    pub fn remove(&self) {
        if let Some((_, path)) = &self.unix {
            remove(path);
        }
    }
}

/// Removes the file of a socket.
pub fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::debug!(%error, path = %path.display(), "the socket cannot be removed");
    }
}

fn adopt_tcp(fd: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(fd);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

fn adopt_unix(fd: OwnedFd) -> io::Result<UnixListener> {
    let listener = std::os::unix::net::UnixListener::from(fd);
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Several processes may listen at the same address: a new one begins before the old one has ended.
pub fn listen(address: SocketAddr) -> Result<TcpListener, ListenError> {
    listen_tcp(address).map_err(|source| ListenError {
        address: address.to_string(),
        source,
    })
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn listen_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    remove_stale(path)?;
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    // Nobody can connect before it listens.
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    socket.listen(BACKLOG)
}

/// Removes what a process has left that ended without removing it.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::other("there is a file that is no socket"));
        }
        Ok(_) => {}
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::other("another process listens there")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(directory: &Path, mode: &str) -> Config {
        let text = format!(
            "listen = \"127.0.0.1:0\"\nunix_socket_dir = \"{}\"\nunix_socket_mode = \"{mode}\"",
            directory.display()
        );
        Config::parse(&text).expect("valid")
    }

    #[tokio::test]
    async fn a_socket_is_taken_from_nobody_who_listens() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = config(directory.path(), "0700");
        let path = config.unix_socket().expect("there is one");
        let listen = || Endpoints::listen(&config, Inherited::default());
        let first = listen().expect("it listens");
        let mode = std::fs::metadata(&path).expect("it is there").permissions();
        assert_eq!(mode.mode() & 0o777, 0o700);
        assert!(listen().is_err(), "the first one listens");
        // It ended without removing it.
        drop(first);
        let second = listen().expect("nobody listens");
        second.remove();
        assert!(!path.exists());
        drop(second);
        std::fs::write(&path, "no socket").expect("written");
        assert!(listen().is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("left"), "no socket");
    }

    #[tokio::test]
    async fn another_process_goes_on_with_the_same_sockets() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = config(directory.path(), "0777");
        let first = Endpoints::listen(&config, Inherited::default()).expect("it listens");
        let mut descriptors = first.descriptors().expect("there are").into_iter();
        let inherited = Inherited {
            tcp: descriptors.next(),
            unix: descriptors.next(),
        };
        let second = Endpoints::listen(&config, inherited).expect("it listens");
        drop(first);
        let path = config.unix_socket().expect("there is one");
        let client = tokio::net::UnixStream::connect(path).await;
        let (accepted, peer) = second.accept().await.expect("it is there");
        assert!(client.is_ok() && accepted.is_unix() && peer.is_none());
        let own = nix::unistd::geteuid().as_raw();
        assert_eq!(accepted.peer_user(), Some(own));
    }
}
