//! What must hold of any bytes at all.

use bytes::{Bytes, BytesMut};
use dax::wire::{FrameReader, MAX_FRAME_BYTES, MAX_GREETING_BYTES, Request, Response, read_frame};

use super::memory::peak_of;

/// Memory that reading a frame may take whatever is announced: one step of 64 KiB, and as much for the
/// buffer of [`FrameReader`].
const READING_BYTES: usize = 130 << 10;

/// Memory for each byte of a frame that a decoder may take. A list of empty lists takes most: 4 bytes
/// on the wire, 24 in memory, twice that while it grows.
const MEMORY_PER_BYTE: usize = 16;

/// Memory for an error and its words.
const SMALL: usize = 1 << 10;

/// What became of a stream of bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub frames: usize,
    pub requests: usize,
    pub responses: usize,
}

/// Reads and decodes everything in `stream`, and checks what must hold.
pub fn run(stream: &[u8]) -> Outcome {
    let frames = frames(stream, MAX_FRAME_BYTES);
    assert_eq!(frames, frames_async(stream), "both readers see the same");
    let short = super::trial::frames(stream, MAX_GREETING_BYTES);
    assert!(frames.starts_with(&short));
    assert!(short.iter().all(|frame| frame.len() <= MAX_GREETING_BYTES));
    let mut outcome = Outcome::default();
    for frame in frames {
        outcome.frames += 1;
        outcome.requests += usize::from(request(&frame).is_some());
        outcome.responses += usize::from(response(&frame).is_some());
    }
    outcome
}

fn frames(mut stream: &[u8], max_bytes: usize) -> Vec<Bytes> {
    let mut frames = Vec::new();
    loop {
        let room = 2 * stream.len() + READING_BYTES;
        let (frame, peak) = peak_of(|| read_frame(&mut stream, max_bytes));
        assert!(peak <= room, "{peak} bytes for a frame");
        match frame {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) | Err(_) => return frames,
        }
    }
}

fn frames_async(stream: &[u8]) -> Vec<Bytes> {
    let room = 3 * stream.len() + READING_BYTES;
    let read = async {
        let mut reader = FrameReader::new(stream);
        let mut frames = Vec::new();
        while let Ok(frame) = reader.next(MAX_FRAME_BYTES).await {
            frames.push(frame);
        }
        frames
    };
    // Reading from memory never waits.
    let (frames, peak) = peak_of(|| futures_util::FutureExt::now_or_never(read));
    assert!(peak <= room, "{peak} bytes for frames");
    frames.unwrap()
}

/// The bytes of the message as it would be sent, if it is one.
pub fn request(frame: &Bytes) -> Option<Vec<u8>> {
    let (id, request) = decoded(frame, Request::decode)?;
    let sent = request.encode(id, &mut BytesMut::new()).parts().concat();
    assert!(sent.len() <= 4 + frame.len(), "nothing is made up");
    let (again, same) = Request::decode(Bytes::copy_from_slice(&sent[4..])).unwrap();
    assert_eq!((again, same), (id, request));
    Some(sent)
}

/// The same of a response.
pub fn response(frame: &Bytes) -> Option<Vec<u8>> {
    let (id, response) = decoded(frame, Response::decode)?;
    let sent = response.encode(id, &mut BytesMut::new()).parts().concat();
    assert!(sent.len() <= 4 + frame.len(), "nothing is made up");
    let (again, same) = Response::decode(Bytes::copy_from_slice(&sent[4..])).unwrap();
    assert_eq!((again, same), (id, response));
    Some(sent)
}

fn decoded<T>(frame: &Bytes, decode: impl FnOnce(Bytes) -> dax::Result<T>) -> Option<T> {
    let given = frame.clone();
    let (message, peak) = peak_of(|| decode(given));
    let room = MEMORY_PER_BYTE * frame.len() + SMALL;
    assert!(peak <= room, "{peak} bytes for a frame of {}", frame.len());
    message.ok()
}
