//! What a client was answered, as a short sum of it.

use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Answers so far: how many messages, and a sum of them all.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    /// Messages.
    pub frames: u64,
    sum: u128,
}

impl Digest {
    /// Another message.
    pub fn add(&mut self, frame: &[u8]) {
        self.frames += 1;
        self.sum = xxh3_128_with_seed(frame, self.sum as u64) ^ (self.sum >> 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_contents_count() {
        let of = |frames: &[&str]| {
            let mut digest = Digest::default();
            frames.iter().for_each(|frame| digest.add(frame.as_bytes()));
            digest
        };
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        assert_ne!(of(&["a", "b"]), of(&["b", "a"]));
        assert_ne!(of(&["ab"]), of(&["a", "b"]));
        assert_ne!(of(&["a"]), of(&["a", "a"]));
    }
}
