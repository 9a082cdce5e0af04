//! What is written to a disk, and how it is sent to the other host.
//!
//! Invariant: what [`decode`] gives is within the image, whatever was sent.

use std::io;

use super::BLOCK_BYTES;
use crate::encoding::{self, Change, Counts, Encoder};

/// Something that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Offset in the disk, in bytes.
    pub offset: u64,
    /// Bytes, or zeros, that are written.
    pub contents: Contents,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contents {
    /// These bytes.
    Bytes(Vec<u8>),
    /// So many zeros.
    Zeros(u32),
    /// How whole blocks differ from what is there, encoded; only between hosts.
    Blocks(Vec<u8>),
}

impl Write {
    /// How many bytes it is.
    pub fn len(&self) -> u64 {
        match &self.contents {
            Contents::Bytes(bytes) | Contents::Blocks(bytes) => bytes.len() as u64,
            Contents::Zeros(count) => u64::from(*count),
        }
    }

    /// True if it is nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A write as it is sent: of whole blocks, how they differ from what was sent before.
pub fn encode_differing(write: &Write, sent: &mut Encoder, out: &mut Vec<u8>) {
    let (first, len) = (write.offset / BLOCK_BYTES as u64, write.len());
    let is_whole =
        write.offset.is_multiple_of(BLOCK_BYTES as u64) && len.is_multiple_of(BLOCK_BYTES as u64);
    let blocks = first..(write.offset + len).div_ceil(BLOCK_BYTES as u64);
    let numbers = blocks.map(|block| u32::try_from(block).ok());
    match &write.contents {
        Contents::Bytes(bytes) if is_whole && numbers.clone().all(|number| number.is_some()) => {
            let mut encoded = Vec::new();
            for (number, block) in numbers.flatten().zip(bytes.chunks_exact(BLOCK_BYTES)) {
                let block = block.try_into().expect("a block has the length of a page");
                sent.put(
                    number,
                    block,
                    |_| None,
                    &mut Counts::default(),
                    &mut encoded,
                );
            }
            if !encoded.is_empty() {
                out.extend_from_slice(&0_u64.to_le_bytes());
                out.push(2);
                out.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
                out.extend_from_slice(&encoded);
            }
        }
        _ => {
            numbers.flatten().for_each(|number| sent.forget(number));
            encode(std::slice::from_ref(write), out);
        }
    }
}

/// Writes as they are sent.
pub fn encode(writes: &[Write], out: &mut Vec<u8>) {
    for write in writes {
        out.extend_from_slice(&write.offset.to_le_bytes());
        match &write.contents {
            Contents::Bytes(bytes) => {
                out.push(1);
                out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Contents::Blocks(bytes) => {
                out.push(2);
                out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Contents::Zeros(count) => {
                out.push(0);
                out.extend_from_slice(&count.to_le_bytes());
            }
        }
    }
}

/// The writes that were sent; all of them are within an image of `bytes`.
///
/// # Errors
/// If that is not what was encoded.
pub fn decode(mut input: &[u8], bytes: u64) -> io::Result<Vec<Write>> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    let mut writes = Vec::new();
    while !input.is_empty() {
        let (head, rest) = input.split_first_chunk::<13>().ok_or_else(wrong)?;
        let offset = u64::from_le_bytes(*head.first_chunk().ok_or_else(wrong)?);
        let len = u32::from_le_bytes(*head.last_chunk().ok_or_else(wrong)?);
        input = rest;
        let contents = match head[8] {
            0 => Contents::Zeros(len),
            kind => {
                let (data, rest) = input.split_at_checked(len as usize).ok_or_else(wrong)?;
                input = rest;
                if kind == 1 {
                    Contents::Bytes(data.to_vec())
                } else {
                    Contents::Blocks(data.to_vec())
                }
            }
        };
        if let Contents::Blocks(encoded) = &contents {
            let blocks = u32::try_from(bytes / BLOCK_BYTES as u64).unwrap_or(u32::MAX);
            let changes = encoding::changes(encoded, blocks).map_err(|_| wrong())?;
            if changes
                .iter()
                .any(|(_, change)| matches!(change, Change::Block(_)))
            {
                return Err(wrong());
            }
        } else if offset
            .checked_add(u64::from(len))
            .is_none_or(|end| end > bytes)
        {
            return Err(wrong());
        }
        writes.push(Write { offset, contents });
    }
    Ok(writes)
}
