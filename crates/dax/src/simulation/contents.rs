//! Contents of blocks and records: numbers, and how they look as bytes.

use bytes::Bytes;

use super::history::{Content, DAMAGED, NOTHING};
use crate::writer::packing::unpack;

/// Bytes in a block: enough to be packed, in parts too, and no more, because all of it takes time.
pub(crate) const BLOCK_BYTES: usize = 256;
/// So many contents in turn begin alike, and each is the one before with a word more: as pages of a log do, and pages of
/// which a row has changed.
const ALIKE: Content = 32;
/// Words of four bytes that a block begins with.
const HEAD_WORDS: u64 = 16;
/// Spreads numbers over words; odd, so that no two become one.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// The data of a block with these contents: they do not pack, and zeros follow.
pub(crate) fn block_of(content: Content) -> Bytes {
    let beginning = content / ALIKE;
    let words = HEAD_WORDS + content % ALIKE + 1;
    let word = |at: u64| {
        let spread = (beginning * ALIKE + at + 1).wrapping_mul(SPREAD);
        // The last byte of a word is never zero.
        (spread >> 32) as u32 | 1 << 24
    };
    let mut block = beginning.to_le_bytes().to_vec();
    block.extend((0..words).flat_map(|at| word(at).to_le_bytes()));
    block.resize(BLOCK_BYTES, 0);
    block.into()
}

/// The contents of a block, as it is kept; [`DAMAGED`] if nobody wrote such a one.
pub(crate) fn content_of(kept: &Bytes) -> Content {
    let Ok(block) = unpack(kept.clone(), BLOCK_BYTES) else {
        return DAMAGED;
    };
    let beginning = block.first_chunk().copied().map(Content::from_le_bytes);
    let used = block.iter().rposition(|byte| *byte != 0);
    let (Some(beginning), Some(used)) = (beginning, used) else {
        return DAMAGED;
    };
    let words = (used as u64 + 1).saturating_sub(8) / 4;
    let content = beginning.wrapping_mul(ALIKE) + words.saturating_sub(HEAD_WORDS + 1);
    match words > HEAD_WORDS && block_of(content) == block {
        true => content,
        false => DAMAGED,
    }
}

/// The value of a record with these contents.
pub(crate) fn value_of(content: Content) -> Bytes {
    content.to_le_bytes().to_vec().into()
}

/// The contents of a record.
pub(crate) fn content_of_value(value: &Bytes) -> Content {
    let number = value.first_chunk().copied();
    number.map_or(NOTHING, Content::from_le_bytes)
}
