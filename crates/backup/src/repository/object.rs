//! Objects that carry a checksum of their name and contents.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::{Repository, busy};
use crate::error::{Error, Result};

/// First bytes of each object.
const MAGIC: &[u8; 8] = b"undstdy1";
const SUM_BYTES: usize = 32;
/// How hard zstd tries.
pub(super) const LEVEL: i32 = 3;

fn sum_of(name: &str, packed: &[u8]) -> [u8; SUM_BYTES] {
    let mut sum = Sha256::new();
    sum.update(name.as_bytes());
    sum.update([0]);
    sum.update(packed);
    sum.finalize().into()
}

fn pack(name: &str, contents: &[u8]) -> Result<Bytes> {
    let packed = zstd::bulk::compress(contents, LEVEL).map_err(Error::system("cannot compress"))?;
    let all = [MAGIC, &sum_of(name, &packed)[..], &packed];
    Ok(all.concat().into())
}

fn unpack(name: &str, object: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let rest = object.strip_prefix(MAGIC.as_slice());
    let parts = rest.and_then(<[u8]>::split_first_chunk::<SUM_BYTES>);
    let (sum, packed) = parts.ok_or("it does not begin as an object of a repository")?;
    if sum_of(name, packed) != *sum {
        return Err("its checksum is wrong, or it is another object under this name".to_owned());
    }
    zstd::stream::decode_all(packed).map_err(|error| format!("it cannot be unpacked: {error}"))
}

fn json(value: &impl Serialize) -> Bytes {
    let json = serde_json::to_vec(value).expect("plain values, and keys that are texts or numbers");
    json.into()
}

impl Repository {
    /// Writes an object, unless it is there: then it is the same one.
    ///
    /// # Errors
    /// [`Error::Refused`] if another one is there under this name.
    pub(crate) async fn put_same(&self, name: &str, contents: Bytes) -> Result<()> {
        let is_new = self.put_object(name, contents.clone()).await?;
        match is_new || self.object(name).await? == contents {
            true => Ok(()),
            false => Err(Error::Refused(format!(
                "{name} of the repository is there with other contents: two databases write to it"
            ))),
        }
    }

    /// Writes a value, in the place of the one that is there.
    pub(crate) async fn replace_value(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let packed = self.packed(name, json(value)).await?;
        self.overwrite(name, packed).await
    }

    /// Writes a value, unless the object is there. True if it was not.
    pub(crate) async fn put_value(&self, name: &str, value: &impl Serialize) -> Result<bool> {
        self.put_object(name, json(value)).await
    }

    /// The value of an object.
    pub(crate) async fn value<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let json = self.object(name).await?;
        serde_json::from_slice(&json).map_err(|error| Error::damaged(name, error))
    }

    /// Writes an object, unless it is there. True if it was not.
    pub(crate) async fn put_object(&self, name: &str, contents: Bytes) -> Result<bool> {
        let packed = self.packed(name, contents).await?;
        self.create(name, packed).await
    }

    async fn packed(&self, name: &str, contents: Bytes) -> Result<Bytes> {
        let named = self.own(name);
        busy(move || pack(&named, &contents)).await?
    }

    /// The contents of an object, which are what was written.
    pub(crate) async fn object(&self, name: &str) -> Result<Vec<u8>> {
        let found = self.get(name).await?;
        let named = self.own(name);
        let read = busy(move || unpack(&named, &found)).await?;
        read.map_err(|why| Error::damaged(name, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_with_one_bit_changed_is_damaged_wherever_it_is() {
        let packed = pack("log/a", b"some of the log").unwrap();
        assert_eq!(unpack("log/a", &packed).unwrap(), b"some of the log");
        assert!(unpack("log/b", &packed).is_err(), "it is another one's");
        for bit in 0..packed.len() * 8 {
            let mut changed = packed.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            let read = unpack("log/a", &changed);
            assert!(read.is_err(), "bit {bit} of {}", packed.len() * 8);
        }
        for len in 0..packed.len() {
            assert!(unpack("log/a", &packed[..len]).is_err(), "{len} bytes");
        }
    }
}
