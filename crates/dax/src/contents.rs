//! A block on its way from whoever writes it: its contents, as they are kept, and what of them replicas have already.
//!
//! Plain data, which the storage, its clients and the messages to replicas use alike.

use bytes::Bytes;

use crate::ids::Generation;

/// Where the beginning of a block's contents is already: at the replica, in what it has of the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// The generation in which the replica has it.
    pub generation: Generation,
    /// So many bytes of what it keeps there.
    pub bytes: u32,
}

/// Contents of a block that is written: as they are kept, and what of them replicas have already.
#[derive(Debug, Clone)]
pub struct Contents {
    /// None if replicas are sent all of it.
    pub base: Option<Base>,
    /// All of it.
    pub data: Bytes,
}

impl From<Bytes> for Contents {
    fn from(data: Bytes) -> Contents {
        Contents { base: None, data }
    }
}

/// A block that is about to be written.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// Contents of the whole block, not packed.
    pub data: Bytes,
    /// The same as they are kept, for a write in this generation.
    packed: Option<(Generation, Contents)>,
}

impl Prepared {
    /// A block for which nothing was done in advance.
    pub fn plain(data: Bytes) -> Prepared {
        Prepared { data, packed: None }
    }

    /// A block with its contents as they are kept if it is written in this generation.
    pub fn packed(data: Bytes, generation: Generation, contents: Contents) -> Prepared {
        Prepared {
            data,
            packed: Some((generation, contents)),
        }
    }

    /// The contents as they are kept in this generation, if that was done; otherwise the block as it was.
    ///
    /// # Errors
    /// The block as it was.
    pub fn contents(self, generation: Generation) -> std::result::Result<Contents, Bytes> {
        match self.packed {
            Some((prepared, contents)) if prepared == generation => Ok(contents),
            _ => Err(self.data),
        }
    }
}
