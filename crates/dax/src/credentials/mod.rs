//! Who may use a volume: the zones' secret, each volume's key, and the proofs of a greeting.
//!
//! ```text
//! key          HMAC-SHA256(secret, "understudy volume" | volume name)
//! zone proves  HMAC-SHA256(key, "zone"   | volume name | client's nonce | zone's nonce)
//! client       HMAC-SHA256(key, "client" | volume name | client's nonce | zone's nonce)
//! layer        HMAC-SHA256(key, "layer"  | child's name | 0 | first epoch | spans of the image)
//! ```
//!
//! A zone derives keys and is never sent one; a client has the keys of its volumes only. Both nonces
//! are in both proofs, so a proof is good for one greeting; the two differ in their first word, so
//! one side's is never the other's. A layer's proof is kept with the child's settings: it is good for that child and that image
//! only. Invariant: secrets and keys are never shown by `Debug`, never put
//! on the wire, and wiped where they were kept.

mod file;

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::entropy::fill;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::VolumeName;

pub(crate) use file::read as read_file;
pub use file::write_new;

/// The fewest bytes of a secret.
pub const MIN_SECRET_BYTES: usize = 32;

/// What the zones of a cluster know: every volume's key follows from it.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

/// What the clients of one volume know.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeKey(Zeroizing<[u8; 32]>);

/// Random bytes that one side of one greeting chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonce(pub [u8; 32]);

/// Shows that a side knows the key; see the module.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Proof(pub [u8; 32]);

/// Records that only holders of another volume's key can read have keys.
impl TryFrom<String> for VolumeKey {
    type Error = Error;

    fn try_from(digits: String) -> Result<VolumeKey> {
        VolumeKey::parse(Zeroizing::new(digits).as_bytes())
    }
}

impl From<VolumeKey> for String {
    fn from(key: VolumeKey) -> String {
        key.to_hex().as_str().to_owned()
    }
}

impl TryFrom<String> for Proof {
    type Error = hex::FromHexError;

    fn try_from(digits: String) -> std::result::Result<Proof, hex::FromHexError> {
        let mut proof = [0; 32];
        hex::decode_to_slice(digits, &mut proof)?;
        Ok(Proof(proof))
    }
}

impl From<Proof> for String {
    fn from(proof: Proof) -> String {
        hex::encode(proof.0)
    }
}

/// A layer's proof is part of settings, which are shown in messages.
impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof(..)")
    }
}

/// Who proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The zone server.
    Zone,
    /// The client, which connects to a zone.
    Client,
}

/// What the proofs of one greeting are about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// The volume that the client asked for.
    pub volume: VolumeName,
    /// What the client chose.
    pub client: Nonce,
    /// What the zone chose.
    pub zone: Nonce,
}

impl Secret {
    /// A new one from the system's random numbers.
    ///
    /// # Errors
    /// `Unavailable` if the system has none.
    pub fn random() -> Result<Secret> {
        let mut bytes = Zeroizing::new(vec![0; MIN_SECRET_BYTES]);
        fill(&mut bytes)?;
        Ok(Secret(bytes))
    }

    /// A secret as a file holds it: hexadecimal digits and white space around them, or raw bytes.
    ///
    /// # Errors
    /// `Invalid` if it is too short, or half a byte is missing.
    pub fn parse(contents: &[u8]) -> Result<Secret> {
        let text = contents.trim_ascii();
        let bytes = match !text.is_empty() && text.iter().all(u8::is_ascii_hexdigit) {
            true => hex::decode(text).map_err(|error| {
                let message = "a secret of hexadecimal digits must have an even number of them";
                Error::with_source(ErrorKind::Invalid, message, error)
            })?,
            false => contents.to_vec(),
        };
        let bytes = Zeroizing::new(bytes);
        if bytes.len() < MIN_SECRET_BYTES {
            let message = format!(
                "a secret of {} bytes can be guessed: it must have at least {MIN_SECRET_BYTES}",
                bytes.len()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(Secret(bytes))
    }

    /// The key of a volume, whether it exists or not.
    pub fn key(&self, volume: &VolumeName) -> VolumeKey {
        let mac = mac(&self.0)
            .chain_update(b"understudy volume")
            .chain_update(volume.as_str());
        VolumeKey(Zeroizing::new(mac.finalize().into_bytes().into()))
    }

    /// A key for another purpose, from which nothing follows about the secret or its other keys.
    pub fn derive(&self, purpose: &str) -> Zeroizing<[u8; 32]> {
        let mac = mac(&self.0)
            .chain_update(b"understudy purpose")
            .chain_update(purpose);
        Zeroizing::new(mac.finalize().into_bytes().into())
    }

    /// The secret in hexadecimal digits, for its file and nothing else.
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(&*self.0))
    }
}

impl VolumeKey {
    /// A key as a file holds it: 64 hexadecimal digits, with white space around them.
    ///
    /// # Errors
    /// `Invalid` if it is anything else.
    pub fn parse(contents: &[u8]) -> Result<VolumeKey> {
        let mut key = Zeroizing::new([0; 32]);
        hex::decode_to_slice(contents.trim_ascii(), &mut *key).map_err(|_| {
            // The decoder's own words quote the digits.
            let message = "a volume's key is 64 hexadecimal digits, as understudy key prints them";
            Error::new(ErrorKind::Invalid, message)
        })?;
        Ok(VolumeKey(key))
    }

    /// The key in hexadecimal digits, for its file and nothing else.
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(*self.0))
    }

    /// What `side` shows in a greeting.
    pub fn proof(&self, side: Side, greeting: &Greeting) -> Proof {
        Proof(self.mac(side, greeting).finalize().into_bytes().into())
    }

    /// True if `side` has shown that it knows the key. Takes the same time whatever the proof.
    pub fn is_proven(&self, side: Side, greeting: &Greeting, proof: &Proof) -> bool {
        self.mac(side, greeting).verify_slice(&proof.0).is_ok()
    }

    /// Shows, to whoever knows the key, that it was known when these bytes were put together. They begin with a word that no
    /// [`Side`] has.
    pub fn prove(&self, bytes: &[u8]) -> Proof {
        Proof(self.mac_of(bytes).finalize().into_bytes().into())
    }

    /// True if the proof was made with this key for these bytes. Takes the same time whatever the proof.
    pub fn is_proof_of(&self, bytes: &[u8], proof: &Proof) -> bool {
        self.mac_of(bytes).verify_slice(&proof.0).is_ok()
    }

    fn mac_of(&self, bytes: &[u8]) -> Hmac<Sha256> {
        mac(&*self.0).chain_update(bytes)
    }

    fn mac(&self, side: Side, greeting: &Greeting) -> Hmac<Sha256> {
        let side: &[u8] = match side {
            Side::Zone => b"zone",
            Side::Client => b"client",
        };
        // Only the name varies in length, and lies between parts that do not.
        mac(&*self.0)
            .chain_update(side)
            .chain_update(greeting.volume.as_str())
            .chain_update(greeting.client.0)
            .chain_update(greeting.zone.0)
    }
}

impl Nonce {
    /// A nonce that nobody has seen.
    ///
    /// # Errors
    /// `Unavailable` if the system has no random numbers.
    pub fn random() -> Result<Nonce> {
        let mut bytes = [0; 32];
        fill(&mut bytes)?;
        Ok(Nonce(bytes))
    }
}

fn mac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VolumeKey(..)")
    }
}

#[cfg(test)]
mod tests;
