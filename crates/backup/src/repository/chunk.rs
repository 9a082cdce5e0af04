//! Pieces of files, named by what is in them: what is there already is not written again, whichever file and image it was of.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::object::LEVEL;
use super::{Repository, busy};
use crate::error::{Error, Result};

/// The longest piece.
pub const CHUNK_BYTES: usize = 1 << 20;

/// The SHA-256 of a piece, or if the repository has a key, one that nobody else can make.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ChunkId([u8; 32]);

impl ChunkId {
    /// Its name in a repository.
    pub(crate) fn name(self) -> String {
        let digits = self.to_string();
        format!("chunks/{}/{digits}", &digits[..2])
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<ChunkId> for String {
    fn from(id: ChunkId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for ChunkId {
    type Error = hex::FromHexError;

    fn try_from(digits: String) -> std::result::Result<ChunkId, hex::FromHexError> {
        let mut sum = [0; 32];
        hex::decode_to_slice(digits, &mut sum)?;
        Ok(ChunkId(sum))
    }
}

impl Repository {
    /// The name of a piece with these contents.
    pub(crate) async fn chunk_id(&self, contents: Bytes) -> Result<ChunkId> {
        let repository = self.clone();
        busy(move || repository.id_of(&contents)).await
    }

    fn id_of(&self, contents: &[u8]) -> ChunkId {
        ChunkId(match &self.cipher {
            Some(cipher) => cipher.name_of(contents),
            None => Sha256::digest(contents).into(),
        })
    }

    /// Writes a piece. Returns how many bytes that took; 0 if it was there.
    pub(crate) async fn put_chunk(&self, id: ChunkId, contents: Bytes) -> Result<u64> {
        let packed = busy(move || zstd::bulk::compress(&contents, LEVEL));
        let packed = packed.await?.map_err(Error::system("cannot compress"))?;
        let bytes = packed.len() as u64;
        let is_new = self.create(&id.name(), packed.into()).await?;
        Ok(if is_new { bytes } else { 0 })
    }

    /// The contents of a piece.
    pub(crate) async fn chunk(&self, id: ChunkId) -> Result<Vec<u8>> {
        let name = id.name();
        let found = self.get(&name).await?;
        let repository = self.clone();
        let read = move || {
            let contents = zstd::bulk::decompress(&found, CHUNK_BYTES)
                .map_err(|error| format!("it cannot be unpacked: {error}"))?;
            match repository.id_of(&contents) == id {
                true => Ok(contents),
                false => Err("its contents have another checksum".to_owned()),
            }
        };
        busy(read).await?.map_err(|why| Error::damaged(name, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_piece_is_written_once_and_read_as_it_was_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().to_str().unwrap();
        let repository = Repository::open(place, None).unwrap();
        let contents = Bytes::from(vec![7; 100_000]);
        let id = repository.chunk_id(contents.clone()).await.unwrap();
        assert!(repository.put_chunk(id, contents.clone()).await.unwrap() > 0);
        assert_eq!(repository.put_chunk(id, contents.clone()).await.unwrap(), 0);
        assert_eq!(repository.chunk(id).await.unwrap(), contents);
        let place = directory.path().join(id.name());
        let mut bytes = std::fs::read(&place).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&place, bytes).unwrap();
        let error = repository.chunk(id).await.unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        std::fs::remove_file(&place).unwrap();
        let error = repository.chunk(id).await.unwrap_err();
        assert!(matches!(error, Error::Missing(_)), "{error}");
        let digits: String = id.into();
        assert_eq!(ChunkId::try_from(digits).unwrap(), id);
    }
}
