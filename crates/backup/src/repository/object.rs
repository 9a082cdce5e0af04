//! Objects that carry a checksum of their name and contents.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{Repository, busy};
use crate::error::{Error, Result};

/// How each begins.
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
    let (sum, packed) = parts.ok_or("it does not begin as one of ours")?;
    if sum_of(name, packed) != *sum {
        return Err("its checksum is wrong, or it is another object under this name".to_owned());
    }
    zstd::stream::decode_all(packed).map_err(|error| format!("it cannot be unpacked: {error}"))
}

impl Repository {
    /// Writes an object, unless it is there.
    pub(crate) async fn put_object(&self, name: &str, contents: Bytes) -> Result<bool> {
        let named = name.to_owned();
        let packed = busy(move || pack(&named, &contents)).await??;
        self.create(name, packed).await
    }

    /// The contents of an object, which are what was written.
    pub(crate) async fn object(&self, name: &str) -> Result<Vec<u8>> {
        let found = self.get(name).await?;
        let named = name.to_owned();
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
