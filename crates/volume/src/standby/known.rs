//! What a standby knows of the blocks of its base: which version each must have, and the bytes of some.
//!
//! ```text
//!             attach: the last lists           a quorum said so: true for ever
//!                        ▼                        ▼
//!   block ──▶ since which image, version     (bounded)     ──▶ Read(1), or nobody is asked at all
//!                        ▲
//!             move B to C: the lists of (B, C] replace what they name, and nothing else
//! ```
//!
//! Invariant: everything known holds for each image from the one since which it is known up to
//! `as_of`, the last base that was followed to: no image in between has another version of the block.
//! All bases of a view go on from each other, so this is a span of one line; a base outside of the
//! span is not answered. A move takes two steps: nothing is learned from then on, the lists are
//! applied; then the span is longer. What a read learns that began before, it learns in vain. Where a
//! list of the way is missing, everything is forgotten (N3).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use dax::ids::{BlockKey, Generation, Version};
use parking_lot::RwLock;
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};

use crate::cache::{self, BlockCache, Cached};
use crate::lists::Lists;
use crate::seal::Base;

/// How many blocks' versions are known, at most (4 GiB of 8 KiB blocks); some 70 bytes each. Those that
/// nobody asks for go first.
const KNOWN_BLOCKS: usize = 1 << 19;
/// Entries that are put in at once while others may want to learn.
const SEED_BLOCKS: usize = 1024;

/// The version that a block has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The first image for which this is known.
    pub since: Generation,
    /// The version; [`Version::ZERO`] if the image has none.
    pub version: Version,
}

impl Expected {
    /// What a quorum found in an image.
    pub fn found(block: Option<&Cached>) -> Expected {
        Expected {
            since: block.map_or(Generation::SINGLE, |b| b.generation),
            version: block.map_or(Version::ZERO, |b| b.version),
        }
    }

    /// True if there is no such block.
    pub fn is_absent(self) -> bool {
        self.version == Version::ZERO
    }
}

/// How reads of data blocks were answered since the attach, and what is known for those to come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadStats {
    /// From the cache.
    pub cached: u64,
    /// By one replica, because the version was known. The storage's counters have those of them that
    /// met a stale replica, and those that a quorum had to answer in the end.
    pub expected: u64,
    /// By nobody: there is no such block.
    pub absent: u64,
    /// By a quorum, because the version was not known.
    pub unknown: u64,
    /// Blocks whose version is known.
    pub known_blocks: u64,
    /// Moves of the base for which lists told what changed.
    pub moves_listed: u64,
    /// Moves of the base after which nothing was known.
    pub moves_unlisted: u64,
}

#[derive(Debug, Default)]
struct Counters {
    cached: AtomicU64,
    expected: AtomicU64,
    absent: AtomicU64,
    unknown: AtomicU64,
    moves_listed: AtomicU64,
    moves_unlisted: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Up to where everything known holds.
#[derive(Debug, Clone, Copy)]
struct Span {
    as_of: Generation,
    /// Where it began; blocks are cached under it, so that what was cached before a gap is not found.
    from: Generation,
    /// Counts the moves.
    moves: u64,
    /// Nothing can be learned: the base moves, or the view was switched.
    still: bool,
}

impl Span {
    /// True if a base within it has the block as it was cached.
    fn holds(self, base: &Base, cached: &Cached) -> bool {
        let image = base.seal.generation;
        cached.generation <= image && image <= self.as_of
    }
}

pub(crate) struct Known {
    span: RwLock<Span>,
    versions: Cache<BlockKey, Expected>,
    cache: Arc<BlockCache>,
    counters: Counters,
}

/// The moment before a read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    moves: u64,
    block: cache::Ticket,
}

impl Known {
    /// Nothing is known of the first base yet.
    pub fn new(base: Generation, cache: Arc<BlockCache>) -> Known {
        Known::of_at_most(KNOWN_BLOCKS, base, cache)
    }

    fn of_at_most(blocks: usize, base: Generation, cache: Arc<BlockCache>) -> Known {
        let span = Span {
            as_of: base,
            from: base,
            moves: 0,
            still: false,
        };
        Known {
            span: RwLock::new(span),
            versions: Cache::new(blocks),
            cache,
            counters: Counters::default(),
        }
    }

    /// The last base that was followed to.
    pub fn as_of(&self) -> Generation {
        self.span.read().as_of
    }

    /// A block of a base from the cache, counted as read.
    pub fn cached(&self, base: &Base, key: BlockKey) -> Option<Cached> {
        let found = self.find(base, key)?;
        count(&self.counters.cached);
        Some(found)
    }

    /// A block of a base that is cached.
    pub fn find(&self, base: &Base, key: BlockKey) -> Option<Cached> {
        let span = *self.span.read();
        let cached = self.cache.get(key, span.from)?;
        span.holds(base, &cached).then_some(cached)
    }

    /// True if a block of a base is cached. To ask is not to use it.
    pub fn has(&self, base: &Base, key: BlockKey) -> bool {
        let span = *self.span.read();
        let cached = self.cache.peek(key, span.from);
        cached.is_some_and(|cached| span.holds(base, &cached))
    }

    /// Gives the place of a block up to others: nobody will read it here again.
    pub fn give_up(&self, key: BlockKey) {
        let from = self.span.read().from;
        self.cache.give_up(key, from);
    }

    /// The version that a base has of a block; counted as what the read that asks for it will be.
    pub fn expect(&self, base: &Base, key: BlockKey) -> Option<Expected> {
        let as_of = self.as_of();
        let image = base.seal.generation;
        let known = self.versions.get(&key);
        let known = known.filter(|k| k.since <= image && image <= as_of);
        count(match known {
            None => &self.counters.unknown,
            Some(known) if known.is_absent() => &self.counters.absent,
            Some(_) => &self.counters.expected,
        });
        known
    }

    /// The version that a coming base has of a block, if the lists that lead there from
    /// [`as_of`](Self::as_of) tell.
    pub fn expect_after(&self, lists: &Lists, key: BlockKey) -> Option<Expected> {
        match lists.get(key) {
            Some((since, version)) => Some(Expected { since, version }),
            None if lists.complete => self.versions.get(&key),
            None => None,
        }
    }

    /// Takes note of the moment before a read of a base, for [`learn`](Self::learn). `None` if nothing
    /// can be learned from it.
    pub fn ticket(&self, base: &Base, key: BlockKey) -> Option<Ticket> {
        let span = self.span.read();
        let current = span.as_of == base.seal.generation && !span.still;
        current.then(|| Ticket {
            moves: span.moves,
            block: self.cache.ticket(key),
        })
    }

    /// Keeps what was read, unless the base moved since the ticket.
    pub fn learn(&self, ticket: Ticket, key: BlockKey, found: Option<&Cached>) {
        let span = self.span.read();
        if span.moves != ticket.moves {
            return;
        }
        self.versions.insert(key, Expected::found(found));
        if let Some(block) = found {
            let from = span.from;
            self.cache.fill(key, from, ticket.block, block.clone());
        }
    }

    /// Learns from the lists that lead to a base, unless it is not the base any more. Returns how many
    /// blocks are known. Of each block only the newest list speaks, also when what that one said had no room.
    pub fn seed(&self, base: &Base, lists: &Lists) -> usize {
        let newest_first = lists.lists.iter().rev();
        let all = newest_first.flat_map(|list| list.iter().map(|(k, v)| (list.to, k, v)));
        let mut all = all.peekable();
        while all.peek().is_some() {
            let span = self.span.read();
            if span.as_of != base.seal.generation || span.still {
                break;
            }
            for (since, key, version) in all.by_ref().take(SEED_BLOCKS) {
                let newest = || lists.get(key) == Some((since, version));
                if self.versions.peek(&key).is_none() && newest() {
                    self.versions.insert(key, Expected { since, version });
                }
            }
        }
        self.versions.len()
    }

    /// The base has moved to the image `to`. `lists` lead there from [`as_of`](Self::as_of), or from
    /// before it; `found` is what was read of the image already.
    pub fn follow(&self, to: Generation, lists: &Lists, found: Vec<(BlockKey, Expected)>) {
        let from = self.begin_move(lists.complete);
        for list in &lists.lists {
            let since = list.to;
            for (key, version) in list.iter() {
                self.versions.insert(key, Expected { since, version });
                self.cache.remove(key, from);
            }
        }
        for (key, expected) in found {
            self.versions.insert(key, expected);
        }
        self.end_move(to, lists.complete);
    }

    /// Nothing is learned from now on. Returns under what blocks are cached.
    fn begin_move(&self, complete: bool) -> Generation {
        let mut span = self.span.write();
        span.still = true;
        span.moves += 1;
        if !complete {
            // It holds for older bases still, which is not worth the memory.
            self.versions.clear();
        }
        span.from
    }

    /// What is known holds up to `to`.
    fn end_move(&self, to: Generation, complete: bool) {
        let mut span = self.span.write();
        span.as_of = to;
        span.still = false;
        if !complete {
            span.from = to;
        }
        count(match complete {
            true => &self.counters.moves_listed,
            false => &self.counters.moves_unlisted,
        });
    }

    /// Takes blocks out of the cache: what is kept of them may be older than what the overlay had since.
    pub fn uncache(&self, keys: impl Iterator<Item = BlockKey>) {
        let from = self.span.read().from;
        for key in keys {
            self.cache.remove(key, from);
        }
    }

    /// Keeps what the overlay had of a block that the base has as well: from this base on as good as the
    /// base's own bytes.
    pub fn carry(&self, base: &Base, key: BlockKey, data: Bytes) {
        let span = self.span.read();
        if span.as_of != base.seal.generation || span.still {
            return;
        }
        let expected = self.versions.peek(&key).filter(|known| !known.is_absent());
        if let Some(Expected { version, .. }) = expected {
            let block = Cached {
                version,
                // An older base does not have what redo did since.
                generation: base.seal.generation,
                data,
            };
            self.cache.write(key, span.from, block);
        }
    }

    /// Nothing is learned any more, not by reads that began before either: somebody else writes from now on,
    /// and [forgets](Self::forget) what is written.
    pub fn close(&self) {
        let mut span = self.span.write();
        span.still = true;
        span.moves += 1;
    }

    /// Forgets a block.
    pub fn forget(&self, key: BlockKey) {
        let from = self.span.read().from;
        self.versions.remove(&key);
        self.cache.remove(key, from);
    }

    /// See [`ReadStats`].
    pub fn stats(&self) -> ReadStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ReadStats {
            cached: read(&self.counters.cached),
            expected: read(&self.counters.expected),
            absent: read(&self.counters.absent),
            unknown: read(&self.counters.unknown),
            known_blocks: self.versions.len() as u64,
            moves_listed: read(&self.counters.moves_listed),
            moves_unlisted: read(&self.counters.moves_unlisted),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dax::ids::{Epoch, FileId};

    use super::super::testing::Builder;
    use super::*;
    use crate::lists::{BlockList, Seqs};

    fn g(number: u32) -> Generation {
        Generation {
            epoch: Epoch(1),
            number,
        }
    }

    fn base(number: u32) -> Base {
        Builder::new().seal(number, 0, 0)
    }

    fn key(block: u64) -> BlockKey {
        BlockKey::new(FileId(9), block)
    }

    fn block(number: u32, seq: u64) -> Cached {
        let epoch = Epoch(1);
        Cached {
            version: Version { epoch, seq },
            generation: g(number),
            data: Bytes::from(vec![seq as u8; 4096]),
        }
    }

    /// Base 3, of which block 1 was read.
    fn known() -> Known {
        let known = Known::new(g(3), Arc::new(BlockCache::new(1 << 20, 4096)));
        let ticket = known.ticket(&base(3), key(1)).unwrap();
        known.learn(ticket, key(1), Some(&block(2, 20)));
        known
    }

    /// The lists of the given images, each with the blocks that it wrote.
    fn lists(complete: bool, of: &[(u32, &[(u64, u64)])]) -> Lists {
        let list = |(number, blocks): &(u32, &[(u64, u64)])| {
            let seqs: Seqs = blocks.iter().map(|(b, s)| (key(*b), *s)).collect();
            BlockList::new(g(*number), &seqs)
        };
        let lists = of.iter().map(list).collect();
        Lists { lists, complete }
    }

    fn seq(known: &Known, number: u32, block: u64) -> Option<u64> {
        let expected = known.expect(&base(number), key(block))?;
        Some(expected.version.seq)
    }

    #[test]
    fn read_blocks_hold_from_their_generation_to_the_base() {
        let known = known();
        assert_eq!(known.cached(&base(3), key(1)), Some(block(2, 20)));
        for (number, holds) in [(1, false), (2, true), (3, true), (4, false)] {
            assert_eq!(known.cached(&base(number), key(1)).is_some(), holds);
            assert_eq!(seq(&known, number, 1), holds.then_some(20));
        }
        assert!(known.ticket(&base(2), key(1)).is_none());
        assert!(known.ticket(&base(4), key(1)).is_none());
    }

    #[test]
    fn a_move_replaces_what_the_lists_name() {
        let known = known();
        let ticket = known.ticket(&base(3), key(2)).unwrap();
        known.learn(ticket, key(2), Some(&block(3, 30)));
        let ahead = lists(true, &[(4, &[(1, 40), (5, 41)]), (5, &[(1, 50)])]);
        let expected = |k| known.expect_after(&ahead, key(k)).map(|e| e.version.seq);
        assert_eq!(
            [1, 2, 5, 6].map(expected),
            [Some(50), Some(30), Some(41), None]
        );
        known.follow(g(5), &ahead, vec![(key(6), Expected::found(None))]);
        assert_eq!(known.cached(&base(5), key(1)), None);
        assert_eq!(known.cached(&base(5), key(2)), Some(block(3, 30)));
        assert_eq!(
            [1, 2, 5, 6].map(|k| seq(&known, 5, k)),
            [50, 30, 41, 0].map(Some)
        );
        // Who still reads the old base is not answered with the new one.
        assert_eq!([1, 2, 5].map(|k| seq(&known, 3, k)), [None, Some(30), None]);
        assert_eq!(known.cached(&base(3), key(2)), Some(block(3, 30)));
    }

    #[test]
    fn a_read_that_began_before_a_move_teaches_nothing() {
        let known = known();
        let before = known.ticket(&base(3), key(1)).unwrap();
        known.begin_move(true);
        assert!(known.ticket(&base(3), key(1)).is_none());
        assert!(known.ticket(&base(4), key(1)).is_none());
        known.learn(before, key(1), Some(&block(3, 30)));
        assert_eq!(seq(&known, 3, 1), Some(20), "this one holds longer");
        known.end_move(g(4), true);
        known.learn(before, key(1), Some(&block(3, 30)));
        assert_eq!(seq(&known, 4, 1), Some(20));
        let after = known.ticket(&base(4), key(1)).unwrap();
        known.learn(after, key(1), Some(&block(4, 44)));
        assert_eq!(known.cached(&base(4), key(1)), Some(block(4, 44)));
    }

    #[test]
    fn after_the_switch_nothing_is_learned_and_what_is_written_is_forgotten() {
        let known = known();
        let before = known.ticket(&base(3), key(1)).unwrap();
        known.close();
        known.forget(key(1));
        assert!(known.ticket(&base(3), key(1)).is_none());
        // A read ahead that ends only now has what was there before the write.
        known.learn(before, key(1), Some(&block(3, 20)));
        known.seed(&base(3), &lists(true, &[(3, &[(1, 20)])]));
        known.carry(&base(3), key(1), Bytes::from(vec![7; 4096]));
        assert_eq!(seq(&known, 3, 1), None);
        assert_eq!(known.find(&base(3), key(1)), None);
    }

    #[test]
    fn overlay_blocks_are_kept_for_the_base_that_has_them_and_later_ones() {
        let known = known();
        let ours = Bytes::from(vec![7; 4096]);
        known.follow(
            g(4),
            &lists(true, &[(4, &[(5, 40)])]),
            vec![(key(6), Expected::found(None))],
        );
        for k in [1, 5, 6, 7] {
            known.carry(&base(3), key(k), ours.clone());
        }
        assert_eq!(known.cached(&base(4), key(5)), None, "that is not the base");
        for k in [1, 5, 6, 7] {
            known.carry(&base(4), key(k), ours.clone());
        }
        let kept = |number, k| {
            known
                .cached(&base(number), key(k))
                .map(|b| (b.version.seq, b.data))
        };
        assert_eq!(kept(4, 1), Some((20, ours.clone())));
        assert_eq!(kept(4, 5), Some((40, ours.clone())));
        assert_eq!(kept(4, 6), None, "the base has no such block");
        assert_eq!(kept(4, 7), None, "whether it has is not known");
        assert_eq!(kept(3, 1), None, "an older base has other bytes");
        known.follow(g(5), &lists(true, &[(5, &[(5, 50)])]), Vec::new());
        assert_eq!(kept(5, 1), Some((20, ours)));
        assert_eq!(kept(5, 5), None, "the next base has another version");
    }

    #[test]
    fn a_gap_in_the_lists_forgets_everything_before_it() {
        let known = known();
        let ahead = lists(false, &[(5, &[(2, 50)])]);
        assert!(known.expect_after(&ahead, key(1)).is_none());
        known.follow(g(5), &ahead, Vec::new());
        assert_eq!((seq(&known, 5, 1), seq(&known, 3, 1)), (None, None));
        assert!(known.cached(&base(5), key(1)).is_none());
        assert_eq!(seq(&known, 5, 2), Some(50));
        let stats = known.stats();
        assert_eq!((stats.moves_listed, stats.moves_unlisted), (0, 1));
    }

    #[test]
    fn old_lists_do_not_undo_what_is_known() {
        let known = known();
        let past = lists(true, &[(1, &[(1, 10), (7, 11)]), (2, &[(1, 20), (8, 21)])]);
        assert_eq!(known.seed(&base(3), &past), 3);
        assert_eq!([1, 7, 8].map(|k| seq(&known, 3, k)), [20, 11, 21].map(Some));
        known.follow(g(4), &lists(true, &[(4, &[(7, 40)])]), Vec::new());
        known.seed(&base(3), &past);
        assert_eq!(seq(&known, 4, 7), Some(40));
    }

    /// What the newest list said of a block had been given up for want of room when an older list was read, which
    /// named the block as well: its older version was then taken for the base's, and read.
    #[test]
    fn an_older_list_says_nothing_of_a_block_that_a_newer_one_names() {
        const BLOCKS: u64 = 2000;
        let cache = Arc::new(BlockCache::new(1 << 20, 4096));
        let known = Known::of_at_most(100, g(3), cache);
        let blocks = |seq: u64| (0..BLOCKS).map(|b| (b, seq)).collect::<Vec<_>>();
        let (older, newer) = (blocks(20), blocks(30));
        known.seed(&base(3), &lists(true, &[(2, &older), (3, &newer)]));
        let found = (0..BLOCKS).filter_map(|block| seq(&known, 3, block));
        let found: Vec<u64> = found.collect();
        assert!(!found.is_empty() && found.iter().all(|seq| *seq == 30));
    }
}
