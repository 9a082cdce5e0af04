//! What a client and a zone server say to each other, and how it is put into bytes.
//!
//! Owns the frame format, [`Request`], [`Response`] and the block [`checksum`]. Everything is pure;
//! `read_frame` and `FrameReader` are the only places that touch a stream. Invariant: hostile input
//! gives an error, never a panic and never more memory than [`MAX_FRAME_BYTES`] per connection.
//!
//! ```text
//! frame   u32 length of the rest | u64 request id | u8 tag | body          all little endian
//! ```
//!
//! A reply repeats the id of its request; pushes ([`Response::Ack`], [`Response::WriteRefused`],
//! [`Response::Fenced`]) carry 0. The id of a [`Request::Write`] is its number: writes count from 1
//! on each connection, and have no reply of their own. A zone handles the requests of a connection
//! in order as far as fencing and writing go; replies to reads may overtake.
//!
//! A connection begins with a greeting. Until it is over, frames stay below [`MAX_GREETING_BYTES`].
//!
//! ```text
//! client   Hello{volume, nonce}                    Proof        CreateVolume      Hello ...
//! zone                          Challenge{nonce, proof}   NoVolume           Done
//!                               or Welcome                or Welcome
//! ```
//!
//! Later protocol versions may append fields to a body. A decoder ignores what it does not know at
//! the end, so an older peer still understands; a newer one finds the field missing only if
//! [`Request::Hello`] told it an older version, and takes the default.

mod codec;
mod frame;
mod members;
mod request;
mod response;
mod write;

pub use crate::contents::Base;
pub use frame::{
    Frame, FrameReader, MAX_FRAME_BYTES, MAX_GREETING_BYTES, MAX_REQUEST_BYTES, MAX_WELCOME_BYTES,
    read_frame,
};
pub use request::Request;
pub use response::{InventoryEntry, RecordEntry, Response, StoredBlock, StoredRecord};
pub use write::BlockWrite;

use bytes::Bytes;

use crate::ids::{BlockKey, Generation, Version};

/// The version of the protocol that this code speaks.
///
/// 2: a zone says which store it is. 3: and who the volume's members are. 4: a write may begin with what the zone
/// has already ([`Base`]). 5: a client looks at the number of [`Forms`](crate::forms::Forms), and reads those up to 2.
/// 6: and those up to 3; a volume may be laid over another one ([`Layer`](crate::layer::Layer)), and be removed.
pub const PROTOCOL: u16 = 6;

/// The first version in which a write may have a [`Base`].
pub const PROTOCOL_OF_BASES: u16 = 4;

/// The first version whose speakers look at the number of [`Forms`](crate::forms::Forms) of a volume.
pub const PROTOCOL_OF_FORMS: u16 = 5;

/// The first version whose speakers read [`Forms::PINS`](crate::forms::Forms::PINS).
pub const PROTOCOL_OF_PINS: u16 = 6;

/// The largest value of a record, in bytes.
pub const MAX_RECORD_BYTES: usize = 1 << 20;

/// A zone ends a [`Response::Records`] page once its values take this many bytes.
pub const RECORDS_PAGE_BYTES: usize = 2 << 20;

/// A zone ends a [`Response::Inventory`] page after so many entries, or after verifying so many bytes.
pub const INVENTORY_PAGE_ENTRIES: usize = 2048;
/// See [`INVENTORY_PAGE_ENTRIES`].
pub const INVENTORY_PAGE_BYTES: usize = 4 << 20;

/// The most ids in one [`Request::RemoveFiles`].
pub const MAX_FILES_PER_REQUEST: usize = 65_536;

/// CRC-32C over a block and everything that says which block it is, so that a block stored or sent
/// under a wrong name is found out too.
///
/// The writer computes it; a zone checks it on receipt and when it reads the block from disk; the
/// reader checks it on receipt.
pub fn checksum(key: BlockKey, generation: Generation, version: Version, data: &[u8]) -> u32 {
    let mut head = [0u8; 36];
    head[..8].copy_from_slice(&key.file.0.to_le_bytes());
    head[8..16].copy_from_slice(&key.block.0.to_le_bytes());
    head[16..20].copy_from_slice(&generation.epoch.0.to_le_bytes());
    head[20..24].copy_from_slice(&generation.number.to_le_bytes());
    head[24..28].copy_from_slice(&version.epoch.0.to_le_bytes());
    head[28..].copy_from_slice(&version.seq.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&head), data)
}

impl StoredBlock {
    /// A block with its checksum.
    pub fn new(
        key: BlockKey,
        generation: Generation,
        version: Version,
        data: Bytes,
    ) -> StoredBlock {
        StoredBlock {
            version,
            generation,
            checksum: checksum(key, generation, version, &data),
            data,
        }
    }

    /// True if the contents are what was written as `key`.
    pub fn is_intact(&self, key: BlockKey) -> bool {
        self.checksum == checksum(key, self.generation, self.version, &self.data)
    }
}

#[cfg(test)]
mod golden_test;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
