//! A socket of a client or a server, whatever protects it.
//!
//! Reads go through one buffer of the thread, so that a connection with nothing to say has no buffer at all.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BytesMut};
use dax::tls::PostgresServer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// What is read at once.
const READ_BYTES: usize = 64 << 10;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// A connected socket.
pub enum Socket {
    /// Over a network.
    Tcp(TcpStream),
    /// On this machine.
    Unix(UnixStream),
    /// Over a network, encrypted.
    Tls(Box<Encrypted>),
    /// It was taken away to be encrypted, and that failed.
    Gone,
}

/// An encrypted connection. What is written to it may wait in it for the network.
pub struct Encrypted {
    stream: dax::tls::Stream,
    has_unsent: bool,
}

/// What can be both read and written.
trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

impl Socket {
    /// An encrypted connection.
    pub fn tls(stream: dax::tls::Stream) -> Socket {
        Socket::Tls(Box::new(Encrypted {
            stream,
            has_unsent: false,
        }))
    }

    /// Encrypts a client's connection from `peer`, after it was told that this happens: what the client can bind its proof to.
    /// If it fails the connection is gone.
    ///
    /// # Errors
    /// If the connection is encrypted already, or the client speaks something else.
    pub async fn encrypt(
        &mut self,
        tls: &PostgresServer,
        peer: &str,
    ) -> io::Result<Option<Arc<[u8]>>> {
        let Socket::Tcp(stream) = std::mem::replace(self, Socket::Gone) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let accepted = tls.accept(stream, peer).await.map_err(io::Error::other)?;
        *self = Socket::tls(accepted.stream);
        Ok(accepted.endpoint)
    }

    fn stream(&mut self) -> io::Result<Pin<&mut dyn Stream>> {
        Ok(match self {
            Socket::Gone => return Err(io::ErrorKind::NotConnected.into()),
            Socket::Tcp(stream) => Pin::new(stream),
            Socket::Unix(stream) => Pin::new(stream),
            Socket::Tls(encrypted) => Pin::new(&mut encrypted.stream),
        })
    }

    /// Appends what is there to `to`; `Ready(0)` at the end.
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buf = ReadBuf::new(scratch);
            ready!(self.stream()?.poll_read(cx, &mut buf))?;
            to.extend_from_slice(buf.filled());
            Poll::Ready(Ok(buf.filled().len()))
        })
    }

    /// Writes what can be written of `from`; ready when it is empty and all of it on its way.
    pub fn poll_drain(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut BytesMut,
    ) -> Poll<io::Result<()>> {
        while !from.is_empty() {
            let written = ready!(self.stream()?.poll_write(cx, from))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            from.advance(written);
            if let Socket::Tls(encrypted) = self {
                encrypted.has_unsent = true;
            }
        }
        if let Socket::Tls(encrypted) = self
            && encrypted.has_unsent
        {
            ready!(Pin::new(&mut encrypted.stream).poll_flush(cx))?;
            encrypted.has_unsent = false;
        }
        Poll::Ready(Ok(()))
    }

    /// True if something that was taken by [`Socket::poll_drain`] is still to be sent: it must be called again, also with
    /// nothing more to write.
    pub fn has_unsent(&self) -> bool {
        matches!(self, Socket::Tls(encrypted) if encrypted.has_unsent)
    }

    /// Reads more.
    pub async fn read(&mut self, to: &mut BytesMut) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read(cx, to)).await
    }

    /// Writes all of it.
    pub async fn drain(&mut self, from: &mut BytesMut) -> io::Result<()> {
        poll_fn(|cx| self.poll_drain(cx, from)).await
    }

    /// Writes what can be written at once. What comes of it does not matter.
    pub fn drain_some(&mut self, from: &mut BytesMut) {
        let mut cx = Context::from_waker(Waker::noop());
        let _ = self.poll_drain(&mut cx, from);
    }

    /// True if a connection that nobody uses is well: nothing was said on it, not even its end.
    pub fn is_quiet(&mut self) -> bool {
        let mut unasked = BytesMut::new();
        let mut cx = Context::from_waker(Waker::noop());
        self.poll_read(&mut cx, &mut unasked).is_pending()
    }

    /// True if it is a socket on this machine.
    pub fn is_unix(&self) -> bool {
        matches!(self, Socket::Unix(_))
    }

    /// User of the operating system at the other end of a socket on this machine.
    pub fn peer_user(&self) -> Option<u32> {
        match self {
            Socket::Unix(stream) => Some(stream.peer_cred().ok()?.uid()),
            _ => None,
        }
    }

    /// True if it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Socket::Tls(_))
    }
}

/// For libraries that speak PostgreSQL's protocol by themselves.
impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.get_mut().stream()?.poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().stream()?.poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream()?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream()?.poll_shutdown(cx)
    }
}
