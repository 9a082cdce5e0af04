//! What of the memory goes to the standby: asynchronous checkpoint compression and disk read tracking.
//!
//! ```text
//!   a page that was written ── as it was? ──▶ nothing
//!                           ── zeros? ──────▶ its number
//!                           ── a block that was read from the disk since the last checkpoint? ──▶ the block's number
//!                           ── in the cache as it was? ──▶ runs of bytes that differ
//!                           ── otherwise ──▶ runs of bytes that are not zero
//! ```
//!
//! Without compression, and that can change at any checkpoint, a page that is no block is sent as it is.
//!
//! Invariant: the cache holds pages exactly as they were sent last, so what they differ from is what the standby has. Runs carry the
//! new bytes rather than the XOR of new and old: as long, and a page that gets them twice is the same.

mod cache;
mod packing;
mod runs;

pub use cache::Cache;
pub use packing::{Packer, Unpacker};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// A page of memory.
pub type Page = [u8; PAGE_BYTES];

/// All zeros.
pub const ZEROS: Page = [0; PAGE_BYTES];

/// What cannot have been encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid encoding of pages")]
pub struct Malformed;

const SAME_BLOCK: u8 = 1;
const FROM_OLD: u8 = 2;
const FROM_ZEROS: u8 = 3;
const AS_IT_IS: u8 = 4;

/// How many pages were sent in which way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages that were given.
    pub pages: u64,
    /// They were as they had been sent.
    pub unchanged: u64,
    /// They are a block of the disk.
    pub blocks: u64,
    /// They are told by how they differ.
    pub differing: u64,
    /// They are sent whole, but for zeros.
    pub whole: u64,
    /// Bytes of what is sent.
    pub bytes: u64,
}

impl Counts {
    /// Adds another one's.
    pub fn add(&mut self, more: &Counts) {
        self.pages += more.pages;
        self.unchanged += more.unchanged;
        self.blocks += more.blocks;
        self.differing += more.differing;
        self.whole += more.whole;
        self.bytes += more.bytes;
    }
}

/// Encodes pages for one standby.
#[derive(Debug)]
pub struct Encoder {
    cache: Cache,
    compresses: bool,
}

impl Encoder {
    /// With room for so many pages as they were.
    pub fn new(pages: usize) -> Encoder {
        Encoder {
            cache: Cache::new(pages),
            compresses: true,
        }
    }

    /// True if pages are told by how they differ; otherwise as they are, all 4096 bytes.
    pub fn compress(&mut self, compresses: bool) {
        self.compresses = compresses;
    }

    /// Puts a page at the end of `out`. `block_of` says which block of the disk a page equals, at the moment of the checkpoint.
    pub fn put(
        &mut self,
        number: u32,
        page: &Page,
        block_of: impl FnOnce(&Page) -> Option<u64>,
        counts: &mut Counts,
        out: &mut Vec<u8>,
    ) {
        counts.pages += 1;
        let before = out.len();
        if !self.compresses {
            self.put_as_it_is(number, page, block_of(page), counts, out);
            counts.bytes += (out.len() - before) as u64;
            return;
        }
        let old = self.cache.get(number);
        if old == Some(page) {
            counts.unchanged += 1;
            return;
        }
        out.extend_from_slice(&number.to_le_bytes());
        if let Some(block) = block_of(page) {
            counts.blocks += 1;
            out.push(SAME_BLOCK);
            runs::put_number(block, out);
        } else if let Some(old) = old {
            counts.differing += 1;
            out.push(FROM_OLD);
            runs::put(old, page, out);
        } else {
            counts.whole += 1;
            out.push(FROM_ZEROS);
            runs::put(&ZEROS, page, out);
        }
        self.cache.set(number, page);
        counts.bytes += (out.len() - before) as u64;
    }
}

impl Encoder {
    fn put_as_it_is(
        &mut self,
        number: u32,
        page: &Page,
        block: Option<u64>,
        counts: &mut Counts,
        out: &mut Vec<u8>,
    ) {
        // What the cache has is not what was sent last any more.
        self.cache.forget(number);
        out.extend_from_slice(&number.to_le_bytes());
        if let Some(block) = block {
            counts.blocks += 1;
            out.push(SAME_BLOCK);
            runs::put_number(block, out);
        } else {
            counts.whole += 1;
            out.push(AS_IT_IS);
            out.extend_from_slice(page);
        }
    }

    /// A page is not what was sent last any more: something else has changed it on the standby.
    pub fn forget(&mut self, number: u32) {
        self.cache.forget(number);
    }
}

fn page_at(state: &[u8], at: usize) -> Page {
    let mut page = ZEROS;
    let rest = state.get(at..).unwrap_or_default();
    let len = rest.len().min(PAGE_BYTES);
    page[..len].copy_from_slice(&rest[..len]);
    page
}

/// Adds how a state of any length differs from the one before.
pub fn put_state(old: &[u8], new: &[u8], out: &mut Vec<u8>) {
    runs::put_number(new.len() as u64, out);
    for at in (0..new.len()).step_by(PAGE_BYTES) {
        runs::put(&page_at(old, at), &page_at(new, at), out);
    }
}

/// The state that [`put_state`] was given, from the one before.
///
/// # Errors
/// If that is not what was added, or if the state would be longer than `limit`.
pub fn take_state(old: &[u8], mut input: &[u8], limit: usize) -> Result<Vec<u8>, Malformed> {
    let len = usize::try_from(runs::take_number(&mut input)?).map_err(|_| Malformed)?;
    if len > limit {
        return Err(Malformed);
    }
    let mut new = Vec::with_capacity(len.next_multiple_of(PAGE_BYTES));
    for at in (0..len).step_by(PAGE_BYTES) {
        let mut page = page_at(old, at);
        runs::apply(runs::take(&mut input)?, &mut page);
        new.extend_from_slice(&page);
    }
    new.truncate(len);
    if input.is_empty() {
        Ok(new)
    } else {
        Err(Malformed)
    }
}

/// What a page becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// What this block of the disk holds.
    Block(u64),
    /// What it was, but for these runs.
    Runs(&'a [u8]),
    /// Zeros, but for these runs.
    Whole(&'a [u8]),
    /// This.
    Is(&'a Page),
}

impl Change<'_> {
    /// Makes the page what it became; `block` is what the disk's block holds.
    pub fn apply(&self, page: &mut Page) {
        match self {
            Change::Block(_) => {}
            Change::Runs(runs) => runs::apply(runs, page),
            Change::Whole(runs) => {
                *page = ZEROS;
                runs::apply(runs, page);
            }
            Change::Is(new) => *page = **new,
        }
    }
}

/// All changes, each with the page's number. Every one of them makes sense, or none is given.
///
/// # Errors
/// If that is not what an encoder made, or if a number is not below `pages`.
pub fn changes(mut input: &[u8], pages: u32) -> Result<Vec<(u32, Change<'_>)>, Malformed> {
    let mut all = Vec::new();
    while let Some((number, rest)) = input.split_first_chunk() {
        let number = u32::from_le_bytes(*number);
        let (kind, rest) = rest.split_first().ok_or(Malformed)?;
        if number >= pages {
            return Err(Malformed);
        }
        input = rest;
        let change = match *kind {
            SAME_BLOCK => Change::Block(runs::take_number(&mut input)?),
            FROM_OLD => Change::Runs(runs::take(&mut input)?),
            FROM_ZEROS => Change::Whole(runs::take(&mut input)?),
            AS_IT_IS => {
                let (page, rest) = input.split_first_chunk().ok_or(Malformed)?;
                input = rest;
                Change::Is(page)
            }
            _ => return Err(Malformed),
        };
        all.push((number, change));
    }
    if input.is_empty() {
        Ok(all)
    } else {
        Err(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: u32 = 12;

    #[derive(Debug, Clone)]
    enum Step {
        Write(u32, Vec<(usize, u8, usize)>),
        Fill(u32, u8),
        FromDisk(u32, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let runs = proptest::collection::vec((0..PAGE_BYTES, any::<u8>(), 1..80_usize), 1..6);
        prop_oneof![
            (0..PAGES, runs).prop_map(|(page, runs)| Step::Write(page, runs)),
            (0..PAGES, any::<u8>()).prop_map(|(page, byte)| Step::Fill(page, byte)),
            (0..PAGES, 0..4_u64).prop_map(|(page, block)| Step::FromDisk(page, block)),
        ]
    }

    fn block(number: u64) -> Page {
        std::array::from_fn(|at| (at as u8).wrapping_mul(number as u8 + 3))
    }

    proptest! {
        #[test]
        fn the_standby_has_what_was_sent(
            epochs in proptest::collection::vec((proptest::collection::vec(step(), 0..12), any::<bool>()), 1..12),
            room in 1..16_usize,
        ) {
            let mut memory = vec![ZEROS; PAGES as usize];
            let mut mirror = memory.clone();
            let mut encoder = Encoder::new(room);
            let mut counts = Counts::default();
            for (steps, compresses) in epochs {
                encoder.compress(compresses);
                let mut dirty = std::collections::BTreeSet::new();
                for step in steps {
                    match step {
                        Step::Write(page, runs) => {
                            for (at, byte, len) in runs {
                                let end = (at + len).min(PAGE_BYTES);
                                memory[page as usize][at..end].fill(byte);
                            }
                            dirty.insert(page);
                        }
                        Step::Fill(page, byte) => {
                            memory[page as usize] = [byte; PAGE_BYTES];
                            dirty.insert(page);
                        }
                        Step::FromDisk(page, number) => {
                            memory[page as usize] = block(number);
                            dirty.insert(page);
                        }
                    }
                }
                let mut sent = Vec::new();
                for number in dirty {
                    let find = |page: &Page| (0..4).find(|at| block(*at) == *page);
                    encoder.put(number, &memory[number as usize], find, &mut counts, &mut sent);
                }
                for (number, change) in changes(&sent, PAGES).expect("it was encoded") {
                    let page = &mut mirror[number as usize];
                    match change {
                        Change::Block(number) => *page = block(number),
                        change => change.apply(page),
                    }
                }
                prop_assert!(memory == mirror);
            }
        }

        #[test]
        fn a_state_is_told_by_how_it_differs(
            states in proptest::collection::vec(proptest::collection::vec(0..3_u8, 0..9000), 1..5),
        ) {
            let mut old: Vec<u8> = Vec::new();
            for new in states {
                let mut sent = Vec::new();
                put_state(&old, &new, &mut sent);
                prop_assert!(take_state(&old, &sent, 9000) == Ok(new.clone()));
                prop_assert!(new.is_empty() || take_state(&old, &sent, new.len() - 1).is_err());
                old = new;
            }
        }

        #[test]
        fn random_bytes_do_no_harm(input in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(all) = changes(&input, PAGES) {
                let mut page = ZEROS;
                all.iter().for_each(|(_, change)| change.apply(&mut page));
            }
        }
    }

    #[test]
    fn a_few_changed_bytes_cost_a_few_bytes() {
        let mut encoder = Encoder::new(4);
        let (mut page, mut counts) = ([7; PAGE_BYTES], Counts::default());
        encoder.put(0, &page, |_| None, &mut counts, &mut Vec::new());
        page[100..104].fill(9);
        let mut out = Vec::new();
        encoder.put(0, &page, |_| None, &mut counts, &mut out);
        assert!(out.len() < 32, "{}", out.len());
        out.clear();
        encoder.put(0, &page, |_| None, &mut counts, &mut out);
        assert!(out.is_empty());
        assert_eq!(
            (
                counts.pages,
                counts.unchanged,
                counts.differing,
                counts.whole
            ),
            (3, 1, 1, 1)
        );
    }
}
