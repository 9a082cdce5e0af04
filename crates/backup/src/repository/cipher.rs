//! Encryption of a repository's objects: who has no key learns how many there are, how long, and when they were written.
//!
//! ```text
//! key of an object   HMAC-SHA256(key "objects" of the secret, its name)
//! an object          12 random bytes | AES-256-GCM(contents), authenticated with its name
//! name of a piece    HMAC-SHA256(key "names" of the secret, its contents)
//! ```
//!
//! Invariant: what opens is what was sealed under this name by somebody with the secret. Each object has a key of its own, so
//! the random bytes need to differ between the writes of one name only.

use dax::credentials::Secret;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::{Error, Result};

pub(super) struct Cipher {
    objects: hmac::Key,
    names: hmac::Key,
    random: SystemRandom,
}

impl Cipher {
    pub(super) fn new(secret: &Secret) -> Cipher {
        let key = |purpose: &str| hmac::Key::new(hmac::HMAC_SHA256, &*secret.derive(purpose));
        Cipher {
            objects: key("backup objects"),
            names: key("backup names"),
            random: SystemRandom::new(),
        }
    }

    /// Shows which secret it is of, and nothing else about it.
    pub(super) fn check(&self) -> String {
        hex::encode(hmac::sign(&self.names, b"understudy backup check").as_ref())
    }

    /// The name of contents: nobody without the secret can tell whether a repository has them.
    pub(super) fn name_of(&self, contents: &[u8]) -> [u8; 32] {
        let mut of_contents = hmac::Context::with_key(&self.names);
        of_contents.update(b"contents");
        of_contents.update(contents);
        let mut sum = [0; 32];
        sum.copy_from_slice(of_contents.sign().as_ref());
        sum
    }

    fn key(&self, name: &str) -> LessSafeKey {
        let key = hmac::sign(&self.objects, name.as_bytes());
        let key = UnboundKey::new(&AES_256_GCM, key.as_ref());
        LessSafeKey::new(key.expect("a key of AES-256 has 32 bytes"))
    }

    pub(super) fn seal(&self, name: &str, contents: &[u8]) -> Result<Vec<u8>> {
        let failed = |_| Error::Refused("the system has no random numbers".to_owned());
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).map_err(failed)?;
        let mut sealed = nonce.to_vec();
        sealed.extend_from_slice(contents);
        let tag = self.key(name).seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(name),
            &mut sealed[NONCE_LEN..],
        );
        sealed.extend_from_slice(tag.map_err(failed)?.as_ref());
        Ok(sealed)
    }

    pub(super) fn open(&self, name: &str, object: &[u8]) -> std::result::Result<Vec<u8>, String> {
        let (nonce, sealed) = object
            .split_first_chunk::<NONCE_LEN>()
            .ok_or("it is too short")?;
        let mut opened = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let len = self
            .key(name)
            .open_in_place(nonce, Aad::from(name), &mut opened)
            .map_err(|_| "it was changed, or it is another object under this name")?
            .len();
        opened.truncate(len);
        Ok(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_or_foreign_objects_do_not_open() {
        let cipher = Cipher::new(&Secret::random().unwrap());
        let sealed = cipher.seal("log/a", b"secret").unwrap();
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        assert_eq!(cipher.open("log/a", &sealed).unwrap(), b"secret");
        assert!(cipher.open("log/b", &sealed).is_err());
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(cipher.open("log/a", &changed).is_err(), "bit {bit}");
        }
        for len in 0..sealed.len() {
            assert!(cipher.open("log/a", &sealed[..len]).is_err());
        }
        let other = Cipher::new(&Secret::random().unwrap());
        assert!(other.open("log/a", &sealed).is_err());
        assert_ne!(other.check(), cipher.check());
        assert_ne!(other.name_of(b"x"), cipher.name_of(b"x"));
    }
}
