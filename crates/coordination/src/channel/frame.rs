//! Frames on a byte stream: a 4-byte little-endian length, then that many bytes of JSON.
//!
//! Invariant: nobody is sent to for ever. A peer whose machine is lost, or whose process stands still, takes nothing any more;
//! whoever waits for it does nothing else meanwhile, not even notice its silence.

use std::io;

use dax::tls::Tls;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::address::Address;

use super::message::{Message, SILENCE};

/// A longer frame closes the connection: no peer of ours sends one.
pub const MAX_FRAME_BYTES: usize = 4 << 20;
/// Read at once, at least.
const READ_BYTES: usize = 4096;

pub(super) type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub(super) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A connection that nothing was said on yet.
pub(super) enum Socket {
    /// With the other side's address.
    Tcp(TcpStream, String),
    Unix(UnixStream),
}

impl Socket {
    /// Opens a connection.
    pub(super) async fn connect(address: &Address) -> io::Result<Socket> {
        match address {
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                Socket::tcp(stream, address.to_string())
            }
            Address::Unix(path) => Ok(Socket::Unix(UnixStream::connect(path).await?)),
        }
    }

    fn tcp(stream: TcpStream, peer: String) -> io::Result<Socket> {
        // Triggers are small and urgent.
        stream.set_nodelay(true)?;
        Ok(Socket::Tcp(stream, peer))
    }

    /// True if only those who belong to the cluster, or own the socket's file, can speak through it.
    pub(super) fn is_private(&self, tls: Option<&Tls>) -> bool {
        match self {
            Socket::Tcp(..) => tls.is_some(),
            Socket::Unix(_) => true,
        }
    }

    /// What the calling side speaks through.
    pub(super) async fn call(self, tls: Option<&Tls>) -> dax::Result<(Reader, Writer)> {
        Ok(match (self, tls) {
            (Socket::Tcp(stream, peer), Some(tls)) => halves(tls.connect(stream, &peer).await?),
            (socket, _) => socket.plain(),
        })
    }

    /// What the answering side speaks through.
    pub(super) async fn answer(self, tls: Option<&Tls>) -> dax::Result<(Reader, Writer)> {
        Ok(match (self, tls) {
            (Socket::Tcp(stream, peer), Some(tls)) => halves(tls.accept(stream, &peer).await?),
            (socket, _) => socket.plain(),
        })
    }

    fn plain(self) -> (Reader, Writer) {
        match self {
            Socket::Tcp(stream, _) => {
                let (read, write) = stream.into_split();
                (Box::new(read), Box::new(write))
            }
            Socket::Unix(stream) => {
                let (read, write) = stream.into_split();
                (Box::new(read), Box::new(write))
            }
        }
    }
}

fn halves(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> (Reader, Writer) {
    let (read, write) = tokio::io::split(stream);
    (Box::new(read), Box::new(write))
}

/// A listening socket of either kind.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens at `address`; the socket file that a dead agent left behind is replaced.
    pub(super) async fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp { host, port } => {
                let listener = TcpListener::bind((host.as_str(), *port)).await?;
                Ok(Listener::Tcp(listener))
            }
            Address::Unix(path) => {
                if path.exists() && UnixStream::connect(path).await.is_err() {
                    std::fs::remove_file(path)?;
                }
                let listener = UnixListener::bind(path)?;
                let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                std::fs::set_permissions(path, owner_only)?;
                Ok(Listener::Unix(listener))
            }
        }
    }

    /// Where it listens, with the port that the system chose if 0 was asked for.
    pub(super) fn address(&self, asked: &Address) -> io::Result<Address> {
        match (self, asked) {
            (Listener::Tcp(listener), Address::Tcp { host, .. }) => Ok(Address::Tcp {
                host: host.clone(),
                port: listener.local_addr()?.port(),
            }),
            _ => Ok(asked.clone()),
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Socket::tcp(stream, peer.to_string())
            }
            Listener::Unix(listener) => Ok(Socket::Unix(listener.accept().await?.0)),
        }
    }
}

/// Sends one message.
pub(super) async fn send(writer: &mut Writer, message: &Message) -> io::Result<()> {
    send_with(writer, message, &[]).await
}

/// Sends one message with what follows it. An error leaves the peer with a part of a frame: the connection is over.
pub(super) async fn send_with(
    writer: &mut Writer,
    message: &Message,
    followed_by: &[u8],
) -> io::Result<()> {
    let body = serde_json::to_vec(message).map_err(io::Error::other)?;
    if body.len() > MAX_FRAME_BYTES {
        return Err(io::Error::other("a message longer than a frame may be"));
    }
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut frame = Vec::with_capacity(4 + body.len() + followed_by.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&body);
    frame.extend_from_slice(followed_by);
    let mut left = frame.as_slice();
    while !left.is_empty() {
        // Each piece has the whole time: a slow network is no silence.
        let taken = taken(writer.write(left)).await?;
        if taken == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        left = &left[taken..];
    }
    taken(writer.flush()).await
}

/// What became of a write, unless the peer takes nothing for [`SILENCE`].
async fn taken<T>(write: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(SILENCE, write).await {
        Ok(written) => written,
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the peer has stopped reading",
        )),
    }
}

/// Takes frames off a stream. Safe to cancel: what was read of a frame is kept for the next call.
pub(super) struct Frames {
    reader: Reader,
    buffer: Vec<u8>,
}

impl Frames {
    pub(super) fn new(reader: Reader) -> Frames {
        Frames {
            reader,
            buffer: Vec::new(),
        }
    }

    /// The next message; `None` if the peer closed the stream between two.
    pub(super) async fn next(&mut self) -> io::Result<Option<Message>> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            self.buffer.reserve(READ_BYTES);
            if self.reader.read_buf(&mut self.buffer).await? > 0 {
                continue;
            }
            return match self.buffer.is_empty() {
                true => Ok(None),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
    }

    /// The stream, and what was read of it already: no frames follow.
    pub(super) fn into_parts(self) -> (Reader, Vec<u8>) {
        (self.reader, self.buffer)
    }

    /// The bytes that follow a message.
    pub(super) async fn bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        if count > MAX_FRAME_BYTES {
            let what = format!("{count} bytes behind a message");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        while self.buffer.len() < count {
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let rest = self.buffer.split_off(count);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    /// A message that is complete in the buffer.
    fn take(&mut self) -> io::Result<Option<Message>> {
        let Some((head, rest)) = self.buffer.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*head) as usize;
        if length > MAX_FRAME_BYTES {
            let what = format!("a frame of {length} bytes, which no agent sends");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        if rest.first().is_some_and(|byte| *byte != b'{') {
            let what = "no message; one side may have been started without [tls]";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let message = serde_json::from_slice(&rest[..length])
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        self.buffer.drain(..4 + length);
        Ok(Some(message))
    }
}

/// A peer that does not keep to what was agreed.
pub(super) fn unexpected(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipe() -> (Writer, Frames) {
        let (near, far) = tokio::io::duplex(64);
        (Box::new(near), Frames::new(Box::new(far)))
    }

    #[tokio::test]
    async fn messages_survive_being_cut_into_pieces() {
        let (mut writer, mut frames) = pipe();
        let refused = Message::Refused {
            why: "x".repeat(300),
        };
        let sent = refused.clone();
        let task = tokio::spawn(async move {
            send(&mut writer, &sent).await.unwrap();
            send(&mut writer, &Message::Ping).await.unwrap();
        });
        assert_eq!(frames.next().await.unwrap(), Some(refused));
        assert_eq!(frames.next().await.unwrap(), Some(Message::Ping));
        assert_eq!(frames.next().await.unwrap(), None);
        task.await.unwrap();
    }

    #[tokio::test]
    async fn bytes_follow_a_message() {
        let (mut writer, mut frames) = pipe();
        let task = tokio::spawn(async move {
            let log = vec![b'{'; 300];
            send_with(&mut writer, &Message::Ping, &log).await.unwrap();
            send(&mut writer, &Message::Ping).await.unwrap();
        });
        assert_eq!(frames.next().await.unwrap(), Some(Message::Ping));
        assert_eq!(frames.bytes(300).await.unwrap(), [b'{'; 300]);
        assert_eq!(frames.next().await.unwrap(), Some(Message::Ping));
        assert!(frames.bytes(1).await.is_err());
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_cut_or_senseless_stream_is_an_error() {
        let (mut writer, mut frames) = pipe();
        writer.write_all(&[9, 0, 0, 0, b'{']).await.unwrap();
        drop(writer);
        let error = frames.next().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);

        let (mut writer, mut frames) = pipe();
        writer.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        let error = frames.next().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
