//! Bytes that are written and read as a whole, in the form that a row of single bytes has.
//!
//! `serde` takes a `Vec<u8>` byte by byte, which costs a manager more than all else that it does to long values.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::Serializer;

/// Bytes that were read.
struct Read(Vec<u8>);

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Read, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Read;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Read, E> {
                Ok(Read(bytes.to_vec()))
            }
        }
        from.deserialize_bytes(Bytes)
    }
}

pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bytes(bytes)
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    Read::deserialize(from).map(|read| read.0)
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Whole {
        #[serde(with = "super")]
        one: Vec<u8>,
    }

    #[derive(Serialize)]
    struct Single {
        one: Vec<u8>,
    }

    #[test]
    fn the_form_is_that_of_single_bytes() {
        for one in [Vec::new(), vec![0, 200, 7], vec![1; 300]] {
            let single = postcard::to_allocvec(&Single { one: one.clone() });
            let whole = Whole { one };
            let bytes = postcard::to_allocvec(&whole).expect("short");
            assert_eq!(bytes, single.expect("short"));
            assert_eq!(postcard::from_bytes(&bytes), Ok(whole));
        }
    }
}
