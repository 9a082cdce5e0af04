//! What blocks were when they were last sent, so that only what has changed since is sent.
//!
//! PostgreSQL writes a page whose rows changed once for each checkpoint, and most of it is as it was. So a block is packed as
//! the difference from what it was ([`packing`](super::packing)), behind which a zone, that has this, puts it.
//!
//! Invariant: nothing depends on what is remembered here being right: a zone compares the checksum of the whole, and asks
//! for the whole if it is another one.
//!
//! Blocks are written in turn, from one checkpoint to the next, so where not all fit, to forget the oldest would forget each
//! just before it is needed. So a new one takes the place of one that was not written in this checkpoint's generation or the one
//! before, or has none.

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;
use parking_lot::Mutex;

use super::hash::IdMap;
use super::packing::{difference, is_base, pack};
use crate::contents::Base;
pub use crate::contents::Contents;
use crate::ids::{BlockKey, Generation};

/// What a remembered block takes beside its bytes.
const ENTRY_BYTES: usize = 120;
/// So many blocks are looked at for a place.
const LOOKS: usize = 4;
/// Places that the order may have beside two for each block.
const ORDER_SPARE: usize = 64;

/// A block as it was last sent.
#[derive(Debug)]
struct Sent {
    generation: Generation,
    /// Its packed form, without a difference.
    base: Bytes,
}

impl Sent {
    fn bytes(&self) -> usize {
        self.base.len() + ENTRY_BYTES
    }

    /// True if it is written no more, as far as `now` tells.
    fn is_old(&self, now: Generation) -> bool {
        self.generation.epoch != now.epoch || self.generation.number + 1 < now.number
    }
}

#[derive(Debug, Default)]
struct Memory {
    blocks: IdMap<BlockKey, Sent>,
    /// The remembered blocks, in the order in which they are looked at.
    order: VecDeque<BlockKey>,
    bytes: usize,
}

/// Pages as they were last sent, to send only the difference of the next version.
#[derive(Debug)]
pub struct Differences {
    memory: Mutex<Memory>,
    bytes_max: usize,
}

impl Differences {
    /// Remembers so many bytes at most.
    pub fn new(bytes_max: usize) -> Differences {
        Differences {
            memory: Mutex::default(),
            bytes_max,
        }
    }

    /// The contents of a block that has generations as they are kept, and what of them zones have already.
    pub fn pack(&self, key: BlockKey, generation: Generation, data: Bytes) -> Contents {
        if self.bytes_max == 0 {
            return pack(data).into();
        }
        let known = self.memory.lock().advance(key, generation);
        if let Some((base, before)) = known
            && let Some(difference) = difference(&before, &data)
        {
            return Contents {
                base: Some(base),
                data: [&before[..], &difference].concat().into(),
            };
        }
        let block_bytes = data.len();
        let packed = pack(data);
        let base = is_base(&packed, block_bytes).then(|| packed.clone());
        self.memory
            .lock()
            .remember(key, generation, base, self.bytes_max);
        packed.into()
    }
}

impl Memory {
    /// What zones have of a block that is written in this generation now.
    fn advance(&mut self, key: BlockKey, generation: Generation) -> Option<(Base, Bytes)> {
        let sent = self.blocks.get_mut(&key)?;
        let base = Base {
            generation: std::mem::replace(&mut sent.generation, generation),
            bytes: u32::try_from(sent.base.len()).ok()?,
        };
        Some((base, sent.base.clone()))
    }

    /// A block was sent as a whole; without a `base` it is forgotten.
    fn remember(
        &mut self,
        key: BlockKey,
        generation: Generation,
        base: Option<Bytes>,
        bytes_max: usize,
    ) {
        let Some(base) = base else {
            return self.forget(key);
        };
        let sent = Sent { generation, base };
        let bytes = sent.bytes();
        if let Some(known) = self.blocks.get_mut(&key) {
            self.bytes = self.bytes + bytes - known.bytes();
            *known = sent;
            return;
        }
        self.make_room(bytes_max.saturating_sub(bytes), generation);
        if self.bytes + bytes <= bytes_max {
            self.bytes += bytes;
            self.blocks.insert(key, sent);
            self.order.push_back(key);
            self.tidy();
        }
    }

    /// A block that is forgotten keeps its place in the order; one that comes back again and again must not have many.
    fn tidy(&mut self) {
        if self.order.len() <= 2 * self.blocks.len() + ORDER_SPARE {
            return;
        }
        let mut seen = HashSet::with_capacity(self.blocks.len());
        let blocks = &self.blocks;
        self.order
            .retain(|key| blocks.contains_key(key) && seen.insert(*key));
    }

    fn forget(&mut self, key: BlockKey) {
        if let Some(sent) = self.blocks.remove(&key) {
            self.bytes -= sent.bytes();
        }
    }

    /// Forgets a few that are written no more, until the rest takes so many bytes at most.
    fn make_room(&mut self, bytes_max: usize, now: Generation) {
        for _ in 0..LOOKS {
            if self.bytes <= bytes_max {
                return;
            }
            let Some(key) = self.order.pop_front() else {
                return;
            };
            match self.blocks.get(&key) {
                Some(sent) if !sent.is_old(now) => self.order.push_back(key),
                _ => self.forget(key),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Epoch, FileId};
    use crate::writer::packing::unpack;

    fn key(block: u64) -> BlockKey {
        BlockKey::new(FileId(7), block)
    }

    fn generation(number: u32) -> Generation {
        Generation {
            epoch: Epoch(1),
            number,
        }
    }

    /// A page of which little repeats.
    fn page(seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut bytes = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        };
        let mut page: Vec<u8> = (0..4096).map(|_| bytes()).collect();
        page.resize(8192, 0);
        page
    }

    #[test]
    fn of_a_page_whose_row_changed_little_is_sent() {
        let differences = Differences::new(1 << 20);
        let mut data = page(1);
        let first = differences.pack(key(0), generation(1), data.clone().into());
        assert!(first.base.is_none() && first.data.len() > 4000);
        let first = first.data;
        for number in 2..20 {
            data[number * 100] ^= 1;
            let Contents { base, data: whole } =
                differences.pack(key(0), generation(number as u32), data.clone().into());
            let base = base.expect("it was sent before");
            assert_eq!(base.generation, generation(number as u32 - 1));
            assert_eq!(whole[..base.bytes as usize], first);
            assert!(whole.len() - first.len() < 300, "{}", whole.len());
            assert_eq!(unpack(whole, 8192).unwrap(), data);
        }
    }

    #[test]
    fn replaced_pages_are_sent_whole_and_become_the_base_of_differences() {
        let differences = Differences::new(1 << 20);
        differences.pack(key(0), generation(1), page(1).into());
        let Contents { base, data: whole } =
            differences.pack(key(0), generation(2), page(2).into());
        assert!(base.is_none());
        assert_eq!(unpack(whole, 8192).unwrap(), page(2));
        let Contents { base, .. } = differences.pack(key(0), generation(3), page(2).into());
        assert_eq!(base.unwrap().generation, generation(2));
    }

    #[test]
    fn everything_is_whole_without_memory() {
        let without = Differences::new(0);
        for _ in 0..2 {
            let Contents { base, .. } = without.pack(key(0), generation(1), page(1).into());
            assert!(base.is_none());
        }
    }

    /// A page that was packed now and as it is then took one more place in the order each time.
    #[test]
    fn a_page_that_alternates_around_the_threshold_takes_little() {
        let differences = Differences::new(1 << 20);
        let noise: Bytes = [page(1)[..4096].to_vec(), page(9)[..4096].to_vec()]
            .concat()
            .into();
        for number in 0..2000 {
            let data = match number % 2 {
                0 => page(u64::from(number) + 1).into(),
                _ => noise.clone(),
            };
            differences.pack(key(0), generation(number + 1), data);
        }
        let memory = differences.memory.lock();
        assert!(memory.order.len() <= 2 * memory.blocks.len() + ORDER_SPARE);
    }

    #[test]
    fn noise_that_is_not_packed_is_no_base() {
        let differences = Differences::new(1 << 20);
        let noise: Bytes = [page(1)[..4096].to_vec(), page(9)[..4096].to_vec()]
            .concat()
            .into();
        for number in 1..3 {
            let Contents { base, data: kept } =
                differences.pack(key(0), generation(number), noise.clone());
            assert!(base.is_none() && kept.len() == 8192);
        }
    }

    #[test]
    fn pages_that_do_not_fit_displace_none_that_are_written_often() {
        let differences = Differences::new(10 * 4400);
        let write = |number: u32, blocks: std::ops::Range<u64>| {
            blocks
                .filter(|block| {
                    let data = page(block + 1).into();
                    let Contents { base, .. } =
                        differences.pack(key(*block), generation(number), data);
                    base.is_some()
                })
                .count()
        };
        assert_eq!(write(1, 0..20), 0);
        for number in 2..5 {
            let found = write(number, 0..20);
            assert!((9..=11).contains(&found), "{found}");
        }
        // These are written no more.
        (5..9).for_each(|number| {
            write(number, 100..110);
        });
        assert!(write(9, 100..110) > 8);
        let memory = differences.memory.lock();
        assert!(memory.bytes <= 10 * 4400 && memory.order.len() >= memory.blocks.len());
        let bytes: usize = memory.blocks.values().map(Sent::bytes).sum();
        assert_eq!(memory.bytes, bytes);
    }
}
