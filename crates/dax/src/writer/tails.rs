//! What blocks that grow were when they were last sent, so that only what was put behind them is sent.
//!
//! PostgreSQL writes the last page of its log with every flush, and in front of what is new stands what was flushed before;
//! the journal and the small files of a single version often grow in the same way. So such a block is packed in pieces
//! ([`packing`](super::packing)), of which zones have all but the last.
//!
//! Invariant: nothing depends on what is remembered here being right: a zone compares the checksum of the whole, and asks
//! for the whole if it is another one.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;

use super::differences::Contents;
use super::packing::{pack, piece};
use crate::ids::{BlockKey, Generation};
use crate::wire::Base;

/// So many blocks grow at the same time, about: the log, the journal, and a few files.
const REMEMBERED: usize = 8;
/// More pieces would make reading dear.
const PIECES_MAX: usize = 64;

/// A block as it was last sent.
#[derive(Debug)]
struct Tail {
    key: BlockKey,
    data: Bytes,
    /// Behind these, it is zeros.
    used_bytes: usize,
    /// Its packed form, in pieces.
    kept: Bytes,
    pieces: usize,
}

/// Last blocks of files that grow, to send only what was appended.
#[derive(Debug, Default)]
pub struct Tails {
    /// Those that were written last come first.
    memory: Mutex<VecDeque<Tail>>,
}

impl Tails {
    /// The contents of a block of a single version as they are kept, and what of them zones have already.
    pub fn pack(&self, key: BlockKey, data: Bytes) -> Contents {
        let before = self.take(key);
        let used_bytes = used_bytes(&data);
        let grown = before.and_then(|before| before.grown(&data, used_bytes));
        let (base, kept, pieces) = match grown {
            Some(grown) => grown,
            // One that is full grows no more, and as a whole it is packed best.
            None if used_bytes == 0 || used_bytes == data.len() => return pack(data).into(),
            None => match piece(&[], &[], &data[..used_bytes], data.len()) {
                Some(first) => (None, first, 1),
                None => return pack(data).into(),
            },
        };
        if used_bytes < data.len() {
            self.remember(Tail {
                key,
                data,
                used_bytes,
                kept: kept.clone(),
                pieces,
            });
        }
        Contents { base, data: kept }
    }

    /// What is remembered of the block, which is being written anew.
    fn take(&self, key: BlockKey) -> Option<Tail> {
        let mut memory = self.memory.lock();
        let found = memory.iter().position(|tail| tail.key == key)?;
        memory.remove(found)
    }

    fn remember(&self, tail: Tail) {
        let mut memory = self.memory.lock();
        memory.push_front(tail);
        memory.truncate(REMEMBERED);
    }
}

impl Tail {
    /// The block with a piece more, if it has only grown.
    fn grown(self, data: &[u8], used_bytes: usize) -> Option<(Option<Base>, Bytes, usize)> {
        let (before, new) = data[..used_bytes].split_at_checked(self.used_bytes)?;
        if self.pieces == PIECES_MAX || new.is_empty() || *before != self.data[..self.used_bytes] {
            return None;
        }
        let base = Base {
            generation: Generation::SINGLE,
            bytes: u32::try_from(self.kept.len()).ok()?,
        };
        let kept = piece(&self.kept, before, new, data.len())?;
        Some((Some(base), kept, self.pieces + 1))
    }
}

/// How long the block is without the zeros at its end.
fn used_bytes(data: &[u8]) -> usize {
    // Comparing many at once is much faster than one by one.
    const ZEROS: [u8; 64] = [0; 64];
    let part = data
        .rchunks(ZEROS.len())
        .position(|part| *part != ZEROS[..part.len()]);
    let Some(part) = part else {
        return 0;
    };
    let end = data.len() - part * ZEROS.len();
    let last = data[..end].iter().rposition(|byte| *byte != 0);
    last.map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::FileId;
    use crate::writer::packing::unpack;

    fn key(block: u64) -> BlockKey {
        BlockKey::new(FileId(7), block)
    }

    /// A page of the log that has come this far: what stands in it repeats a little, and ends with zeros now and then.
    fn page(records: usize) -> Vec<u8> {
        let record = |at: usize| {
            let number = (at as u32).wrapping_mul(2_654_435_761).to_le_bytes();
            [&b"pgbench_accounts row "[..], &number, &[0; 3], &number].concat()
        };
        let mut page: Vec<u8> = (0..records).flat_map(record).collect();
        page.resize(8192, 0);
        page
    }

    #[test]
    fn of_a_page_of_the_log_that_grows_only_what_is_new_is_sent() {
        let tails = Tails::default();
        let mut before = tails.pack(key(0), page(10).into());
        assert!(before.base.is_none());
        for records in 11..100 {
            let page = page(records);
            let now = tails.pack(key(0), page.clone().into());
            if let Some(base) = now.base {
                let bytes = base.bytes as usize;
                assert_eq!(base.generation, Generation::SINGLE);
                assert_eq!(now.data[..bytes], before.data);
                let new = now.data.len() - bytes;
                assert!(new < 60, "{new}");
            }
            assert_eq!(now.base.is_none(), records == 10 + PIECES_MAX);
            assert_eq!(unpack(now.data.clone(), 8192).unwrap(), page);
            before = now;
        }
    }

    #[test]
    fn blocks_changed_in_front_or_shrunk_are_sent_whole() {
        let tails = Tails::default();
        tails.pack(key(0), page(10).into());
        let mut changed = page(12);
        changed[3] ^= 1;
        assert!(tails.pack(key(0), changed.into()).base.is_none());
        assert!(tails.pack(key(0), page(12).into()).base.is_none());
        assert!(tails.pack(key(0), page(11).into()).base.is_none());
        assert!(
            tails.pack(key(0), page(11).into()).base.is_none(),
            "the same"
        );
        assert!(tails.pack(key(0), page(12).into()).base.is_some());
    }

    #[test]
    fn remembered_tails_are_the_last_few_and_never_full() {
        let tails = Tails::default();
        (0..20).for_each(|block| {
            tails.pack(key(block), page(10).into());
        });
        assert!(tails.pack(key(0), page(11).into()).base.is_none());
        assert!(tails.pack(key(19), page(11).into()).base.is_some());
        let full = tails.pack(key(19), page(400).into());
        assert_eq!(unpack(full.data, 8192).unwrap(), page(400));
        let memory = tails.memory.lock();
        assert!(memory.len() < REMEMBERED && memory.iter().all(|tail| tail.key != key(19)));
    }

    #[test]
    fn noise_is_kept_as_it_is() {
        let tails = Tails::default();
        let mut state = 1u64;
        let mut noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .take(8192)
        .collect();
        noise[8000..].fill(0);
        for used in [7900, 7950, 8000] {
            let mut page = noise.clone();
            page[used..].fill(0);
            let kept = tails.pack(key(0), page.clone().into());
            assert!(kept.base.is_none() && kept.data.len() == 8192);
            assert_eq!(kept.data, page);
        }
    }

    proptest! {
        #[test]
        fn written_blocks_are_read(
            writes in prop::collection::vec((0u64..3, prop::collection::vec(any::<u8>(), 0..900), any::<bool>()), 1..40),
        ) {
            let tails = Tails::default();
            let mut blocks = [(); 3].map(|()| Vec::new());
            for (block, new, anew) in writes {
                let data = &mut blocks[block as usize];
                if anew {
                    data.clear();
                }
                data.extend(new);
                data.truncate(4096);
                let mut page = data.clone();
                page.resize(4096, 0);
                let kept = tails.pack(key(block), page.clone().into());
                prop_assert!(kept.data.len() <= 4096);
                prop_assert_eq!(unpack(kept.data, 4096).unwrap(), page);
            }
        }
    }
}
