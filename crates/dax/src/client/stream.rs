//! A stream to a zone, both directions, and how frames are written to it.

use std::io::{self, IoSlice};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::error::{Error, ErrorKind, Result};
use crate::tls::{Rejection, Tls};
use crate::wire::{Frame, FrameReader, MAX_WELCOME_BYTES, Request, Response};

/// How long connecting and greeting may take together.
const GREETING: Duration = Duration::from_secs(5);

pub(super) type Reader = FrameReader<Box<dyn AsyncRead + Send + Unpin>>;
pub(super) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Both directions of a stream.
pub(super) struct Stream {
    pub reader: Reader,
    pub writer: Writer,
}

impl Stream {
    /// Connects to `unix:/path` or, protected by `tls`, to `host:port`.
    pub async fn open(address: &str, tls: Option<&Tls>) -> Result<Stream> {
        let failed = |error: io::Error| {
            let message = format!("no connection to {address}");
            Error::with_source(ErrorKind::Unavailable, message, error)
        };
        if let Some(path) = address.strip_prefix("unix:") {
            let stream = UnixStream::connect(path).await.map_err(failed)?;
            let (reader, writer) = stream.into_split();
            return Ok(Stream {
                reader: FrameReader::new(Box::new(reader)),
                writer: Box::new(writer),
            });
        }
        let stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        if let Some(tls) = tls {
            let (reader, writer) = tokio::io::split(tls.connect(stream, address).await?);
            return Ok(Stream {
                reader: FrameReader::new(Box::new(reader)),
                writer: Box::new(writer),
            });
        }
        let (reader, writer) = stream.into_split();
        Ok(Stream {
            reader: FrameReader::new(Box::new(reader)),
            writer: Box::new(writer),
        })
    }

    /// Sends a request on a connection that has its volume, and reads its answer.
    pub async fn request(&mut self, request: &Request) -> Result<Response> {
        let mut answer = self.ask(request).await?;
        // What is pushed is for whoever works with the volume.
        while matches!(
            answer,
            Response::Members(_) | Response::Sightings(_) | Response::Fenced { .. }
        ) {
            answer = self.receive().await?;
        }
        Ok(answer)
    }

    /// Sends a request and reads the next message, in a greeting.
    pub async fn ask(&mut self, request: &Request) -> Result<Response> {
        let frame = request.encode(1, &mut BytesMut::new());
        write_all(&mut self.writer, [&frame])
            .await
            .map_err(failed)?;
        self.receive().await
    }

    async fn receive(&mut self) -> Result<Response> {
        let frame = self.reader.next(MAX_WELCOME_BYTES).await.map_err(failed)?;
        let (_, response) = Response::decode(frame)?;
        Ok(response)
    }
}

fn failed(error: io::Error) -> Error {
    match Rejection::of(&error) {
        // The zone looks at our certificate after we have looked at its own.
        Some(why) => Error::new(ErrorKind::Denied, format!("the zone {why}")),
        None => Error::with_source(ErrorKind::Unavailable, "the connection broke", error),
    }
}

/// Bounds the time of a greeting.
pub(super) async fn within<T>(
    address: &str,
    attempt: impl Future<Output = Result<T>>,
) -> Result<T> {
    let late = |_| Error::new(ErrorKind::Unavailable, format!("{address} does not answer"));
    timeout(GREETING, attempt).await.map_err(late)?
}

/// Writes frames with as few system calls as possible and without copying.
pub(super) async fn write_all<'f>(
    writer: &mut Writer,
    frames: impl IntoIterator<Item = &'f Frame>,
) -> io::Result<()> {
    let parts = frames.into_iter().flat_map(Frame::parts);
    let parts = parts.filter(|part| !part.is_empty());
    let mut slices: Vec<IoSlice<'_>> = parts.map(IoSlice::new).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let written = writer.write_vectored(rest).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut rest, written);
    }
    // What was encrypted may wait still.
    writer.flush().await
}
