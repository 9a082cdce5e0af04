//! Frames on a byte stream. Invariant: a frame's length is checked before memory is taken for it, and
//! an announced length alone takes no more than [`FIRST_BYTES`].

use std::io::{self, Read};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, BufReader};

use super::codec::malformed;
use crate::error::Result;

/// The most bytes that a frame may have after its length field.
pub const MAX_FRAME_BYTES: usize = 4 << 20;

/// The largest frame of a client: a record, with its name and version. No other request is larger.
pub const MAX_REQUEST_BYTES: usize = super::MAX_RECORD_BYTES + (64 << 10);

/// The most bytes that a frame of a greeting may have: what a stranger may make us keep.
pub const MAX_GREETING_BYTES: usize = 4 << 10;
/// The largest answer in a greeting, which names the volume's members, and every run of a store that is being rebuilt: a process that ends
/// again and again has many. Memory is taken as it comes.
pub const MAX_WELCOME_BYTES: usize = 1 << 20;

/// Memory taken at once for a frame: a block fits. More is taken as bytes arrive.
const FIRST_BYTES: usize = 64 << 10;

/// Request id and tag.
const MIN_FRAME_BYTES: usize = 9;

/// An encoded message: its head, then a payload that was never copied (empty for most messages).
#[derive(Debug, Clone)]
pub struct Frame {
    /// Length, id, tag and fields.
    pub head: Bytes,
    /// Block data or a record's value.
    pub payload: Bytes,
}

impl Frame {
    /// Both parts, in the order they go out.
    pub fn parts(&self) -> [&[u8]; 2] {
        [&self.head, &self.payload]
    }

    /// Starts a frame in an empty `scratch`.
    pub(super) fn begin(scratch: &mut BytesMut, id: u64, tag: u8) {
        debug_assert!(
            scratch.is_empty(),
            "every frame is split off when it is done"
        );
        scratch.put_u32_le(0);
        scratch.put_u64_le(id);
        scratch.put_u8(tag);
    }

    /// Takes the frame out of `scratch`, leaving its spare room for the next one.
    pub(super) fn finish(scratch: &mut BytesMut, payload: Bytes) -> Frame {
        let bytes = scratch.len() - 4 + payload.len();
        debug_assert!(bytes <= MAX_FRAME_BYTES, "senders keep messages small");
        let len = u32::try_from(bytes).expect("senders keep messages far below 4 GiB");
        scratch[..4].copy_from_slice(&len.to_le_bytes());
        Frame {
            head: scratch.split().freeze(),
            payload,
        }
    }
}

/// True if these bytes begin a record of TLS.
fn is_tls(prefix: [u8; 4]) -> bool {
    matches!(prefix, [0x14..=0x17, 3, 1..=4, _])
}

fn checked_len(prefix: [u8; 4], max_bytes: usize) -> Result<usize> {
    let len = u32::from_le_bytes(prefix) as usize;
    if is_tls(prefix) && len > max_bytes {
        return Err(malformed(
            "TLS where plaintext is expected: one side was started without certificates",
        ));
    }
    if !(MIN_FRAME_BYTES..=max_bytes).contains(&len) {
        return Err(malformed(&format!("a length of {len} bytes")));
    }
    Ok(len)
}

/// Reads one frame without its length field, from a buffered reader; `None` if the stream ends
/// between frames. No frame may be longer than `max_bytes`, which is [`MAX_FRAME_BYTES`] or
/// [`MAX_GREETING_BYTES`].
///
/// # Errors
/// I/O errors as they are; `InvalidData` for a length out of range; `UnexpectedEof` inside a frame.
pub fn read_frame(stream: &mut impl Read, max_bytes: usize) -> io::Result<Option<Bytes>> {
    let mut prefix = [0u8; 4];
    if !read_first(stream, &mut prefix)? {
        return Ok(None);
    }
    let len = checked_len(prefix, max_bytes).map_err(invalid)?;
    let mut body = BytesMut::zeroed(len.min(FIRST_BYTES));
    stream.read_exact(&mut body)?;
    while body.len() < len {
        let got = body.len();
        body.resize(len.min(2 * got), 0);
        stream.read_exact(&mut body[got..])?;
    }
    Ok(Some(body.freeze()))
}

/// Fills `prefix`; false if the stream ends before its first byte.
fn read_first(stream: &mut impl Read, prefix: &mut [u8; 4]) -> io::Result<bool> {
    let mut got = 0;
    while got < prefix.len() {
        match stream.read(&mut prefix[got..]) {
            Ok(0) if got == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

fn invalid(error: crate::error::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Reads frames from an asynchronous stream. Each frame gets memory of its own, so that keeping a
/// block keeps nothing else.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: BufReader<R>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads from `stream`.
    pub fn new(stream: R) -> FrameReader<R> {
        FrameReader {
            stream: BufReader::with_capacity(64 << 10, stream),
        }
    }

    /// The next frame without its length field, at most `max_bytes` long as for [`read_frame`]. Not
    /// cancel safe: a dropped call loses its place.
    ///
    /// # Errors
    /// I/O errors as they are, `UnexpectedEof` at the end; `InvalidData` for a length out of range.
    pub async fn next(&mut self, max_bytes: usize) -> io::Result<Bytes> {
        let mut prefix = [0u8; 4];
        self.stream.read_exact(&mut prefix).await?;
        let len = checked_len(prefix, max_bytes).map_err(invalid)?;
        let mut body = BytesMut::with_capacity(len.min(FIRST_BYTES));
        let mut limited = (&mut self.stream).take(len as u64);
        while body.len() < len {
            if limited.read_buf(&mut body).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(body.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_out_of_range_are_refused_before_memory_is_taken() {
        for len in [0u32, 8, MAX_FRAME_BYTES as u32 + 1, u32::MAX] {
            let error = read_frame(&mut &len.to_le_bytes()[..], MAX_FRAME_BYTES).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{len}");
        }
        assert!(read_frame(&mut &[][..], MAX_FRAME_BYTES).unwrap().is_none());
        let error = read_frame(&mut &[9u8, 0][..], MAX_FRAME_BYTES).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
