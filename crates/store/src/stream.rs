//! Addresses and sockets: TCP (`host:port`), protected or not, and Unix (`unix:/path`) behind one type.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dax::tls::Tls;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

use crate::error::OpenError;
use crate::secure::Secure;

/// The prefix of a Unix socket's address.
const UNIX: &str = "unix:";

/// A client that takes nothing for this long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Lets the system find out that a silent peer's machine is gone: after about 20 seconds.
fn notice_death(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &10)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &3)?;
    setsockopt(stream, sockopt::TcpKeepCount, &3)?;
    Ok(())
}

/// A connected socket. Clones share it.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(Arc<Secure>),
    Unix(UnixStream),
}

impl Stream {
    /// Connects to an address as [`Listener::bind`] takes it (to wake a listener up).
    pub fn connect(address: &str) -> io::Result<Stream> {
        Ok(match address.strip_prefix(UNIX) {
            Some(path) => Stream::Unix(UnixStream::connect(path)?),
            None => Stream::Tcp(TcpStream::connect(address)?),
        })
    }

    /// Two ends of one connection inside this process.
    pub fn pair() -> io::Result<(Stream, Stream)> {
        let (a, b) = UnixStream::pair()?;
        b.set_write_timeout(Some(WRITE_TIMEOUT))?;
        Ok((Stream::Unix(a), Stream::Unix(b)))
    }

    pub fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Tcp(s) => Stream::Tcp(s.try_clone()?),
            Stream::Tls(s) => Stream::Tls(s.clone()),
            Stream::Unix(s) => Stream::Unix(s.try_clone()?),
        })
    }

    /// Round trips before a client that has connected is heard.
    pub fn opening_round_trips(&self) -> u32 {
        match self {
            Stream::Tls(_) => 2,
            Stream::Tcp(_) | Stream::Unix(_) => 1,
        }
    }

    /// How long a read waits, of any clone; for ever if none.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(s) => s.set_read_timeout(timeout),
            Stream::Tls(s) => s.socket.set_read_timeout(timeout),
            Stream::Unix(s) => s.set_read_timeout(timeout),
        }
    }

    /// True if a short write would not wait for the peer.
    pub fn takes_a_little(&self) -> bool {
        let socket = match self {
            Stream::Tcp(s) => s.as_fd(),
            Stream::Tls(s) => s.socket.as_fd(),
            Stream::Unix(s) => s.as_fd(),
        };
        // The system says so only when a good part of the socket's buffer is free.
        let mut writable = [PollFd::new(socket, PollFlags::POLLOUT)];
        poll(&mut writable, PollTimeout::ZERO).is_ok_and(|ready| ready == 1)
            && writable[0].revents() == Some(PollFlags::POLLOUT)
    }

    /// Ends reads, writes or both, of all clones.
    pub fn shutdown(&self, how: Shutdown) {
        // The peer may have gone already, which is what we want.
        let _ = match self {
            Stream::Tcp(s) => s.shutdown(how),
            Stream::Tls(s) => s.socket.shutdown(how),
            Stream::Unix(s) => s.shutdown(how),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => s.read(buf),
            Stream::Tls(s) => s.read(buf),
            Stream::Unix(s) => s.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => s.write(buf),
            Stream::Tls(s) => s.write_vectored(&[io::IoSlice::new(buf)]),
            Stream::Unix(s) => s.write(buf),
        }
    }

    fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => s.write_vectored(bufs),
            Stream::Tls(s) => s.write_vectored(bufs),
            Stream::Unix(s) => s.write_vectored(bufs),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket that accepts connections. A Unix socket's file goes with it.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Listens on `host:port` or `unix:/path`. A socket file that nobody listens on is replaced.
    pub fn bind(address: &str) -> Result<Listener, OpenError> {
        let refused = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => OpenError::AddressInUse {
                address: address.into(),
                source,
            },
            _ => OpenError::Address {
                address: address.into(),
                source,
            },
        };
        let Some(path) = address.strip_prefix(UNIX).map(PathBuf::from) else {
            return Ok(Listener::Tcp(TcpListener::bind(address).map_err(refused)?));
        };
        let is_socket = path
            .symlink_metadata()
            .is_ok_and(|m| m.file_type().is_socket());
        if is_socket && UnixStream::connect(&path).is_err() {
            std::fs::remove_file(&path).map_err(refused)?;
        }
        let listener = UnixListener::bind(&path).map_err(refused)?;
        Ok(Listener::Unix(listener, path))
    }

    /// The address, with the port that was chosen if it was 0.
    pub fn address(&self) -> io::Result<String> {
        Ok(match self {
            Listener::Tcp(l) => l.local_addr()?.to_string(),
            Listener::Unix(_, path) => format!("{UNIX}{}", path.display()),
        })
    }

    /// True if only this machine can connect.
    pub fn is_local(&self) -> io::Result<bool> {
        Ok(match self {
            Listener::Tcp(l) => l.local_addr()?.ip().to_canonical().is_loopback(),
            Listener::Unix(..) => true,
        })
    }

    /// The next connection, protected by `tls` if it comes over TCP, and who it is.
    pub fn accept(&self, tls: Option<&Tls>) -> io::Result<(Stream, String)> {
        match self {
            Listener::Tcp(l) => {
                let (stream, peer) = l.accept()?;
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                notice_death(&stream)?;
                let stream = match tls {
                    Some(tls) => Stream::Tls(Arc::new(Secure::new(stream, tls.server())?)),
                    None => Stream::Tcp(stream),
                };
                Ok((stream, peer.to_string()))
            }
            Listener::Unix(l, path) => {
                let (stream, _) = l.accept()?;
                stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                Ok((Stream::Unix(stream), format!("{UNIX}{}", path.display())))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            // Somebody may have removed it; a stale file is replaced by the next bind.
            let _ = std::fs::remove_file(path);
        }
    }
}
