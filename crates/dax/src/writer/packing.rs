//! How a block's contents are kept and sent: packed with zstd if that makes them shorter, else as they are.
//!
//! Every block has the volume's block size, so the length alone tells: what is shorter is packed.
//! Checksums, replicas and zones see the packed form only, and never look into it.
//!
//! A block that was written before can be kept as it was packed then, followed by what has changed since:
//!
//! ```text
//!   zstd frame: the block as it was │ zstd frame: the block, with that as its dictionary │ CRC-32C of the block
//!   ───────── the base ─────────────┼────────────────── the difference ────────────────────────────────────────
//! ```
//!
//! The base is sent once, and a difference is a twentieth of it where a row has changed (docs/evidence/peers.md). The
//! checksum is of what comes out, because a dictionary that is another one makes another block and no error.
//!
//! A block that grows, as the last page of the log does with every flush, can be kept as the pieces that were put one behind
//! the other; what follows is zeros. The first frame tells which form it is: here, it is shorter than the block.
//!
//! ```text
//!   zstd frame │ XXH3 of its bytes │ zstd frame, with all bytes before as its dictionary │ XXH3 │ ...
//!   ─ a piece ─────────────────────┼─ a piece ──────────────────────────────────────────────────
//! ```
//!
//! These checksums, of which 32 bits are kept, are no CRC-32C, because that of the whole block is one. A frame may end with
//! its bytes as they are, and whatever is followed by its own CRC has the same CRC as everything else of this length: a
//! piece behind another one than it is meant for would have the right checksum.
//!
//! What PostgreSQL writes packs well: data pages have a hole in the middle. Packing once at the writer is less
//! work than sending, checking and storing the rest at every replica. zstd at its first level makes half of what
//! LZ4 does of pages and takes two to three times as long for it, 10 to 30 us more for a page (docs/evidence/peers.md).
//!
//! Earlier versions packed with LZ4, which is still read. Nothing can be both: after the four bytes that zstd
//! begins with, an LZ4 block would have to repeat what came 253 bytes or more before its third byte.

use std::cell::RefCell;
use std::io;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;
use zstd::zstd_safe::{CCtx, DCtx, compress_bound, find_frame_compressed_size, get_error_name};

use crate::error::{Error, ErrorKind, Result};

/// Packed contents must be shorter than this share of the block, in 1/16: a little less is not worth the
/// work of unpacking.
const WORTH_IT_16THS: usize = 14;
/// The least work; higher levels take far longer for little.
const LEVEL: i32 = 1;
/// Of each checksum here.
const CHECKSUM_BYTES: usize = 4;
/// What zstd begins with.
const ZSTD: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

thread_local! {
    /// Memory that zstd works in; to make it takes longer than to pack a block.
    static PACKING: RefCell<CCtx<'static>> = RefCell::new(CCtx::create());
    static UNPACKING: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// The contents as they are kept: shorter than `data`, or the same.
pub fn pack(data: Bytes) -> Bytes {
    // What is as long as this is not worth it.
    let mut packed = vec![0; data.len() * WORTH_IT_16THS / 16];
    let length = PACKING.with_borrow_mut(|work| work.compress(&mut packed[..], &data, LEVEL));
    match length {
        // Kept until every replica has it: not with room for the longest.
        Ok(length) => Bytes::copy_from_slice(&packed[..length]),
        // It does not fit.
        Err(_) => data,
    }
}

/// The difference that makes `data` of a block that was packed as `base`, by itself; none if it is so long that the whole
/// is better sent.
pub fn difference(base: &[u8], data: &[u8]) -> Option<Bytes> {
    let mut before = vec![0; data.len()];
    let length = unpack_zstd(base, &mut before).ok()?;
    // Longer ones would make reading dear, and keep much.
    let mut packed = vec![0; (base.len() / 2).min(data.len() * WORTH_IT_16THS / 16 - base.len())];
    let length = (length == data.len()).then(|| {
        PACKING
            .with_borrow_mut(|work| work.compress_using_dict(&mut packed[..], data, &before, LEVEL))
    })?;
    packed.truncate(length.ok()?);
    packed.extend(crc32c::crc32c(data).to_le_bytes());
    Some(packed.into())
}

/// A block of `block_bytes` bytes that was kept as `kept` and had the bytes `before`, with the bytes `new` behind them;
/// none if it is so long then that the whole is better sent.
pub fn piece(kept: &[u8], before: &[u8], new: &[u8], block_bytes: usize) -> Option<Bytes> {
    let room = (block_bytes * WORTH_IT_16THS / 16).checked_sub(kept.len() + CHECKSUM_BYTES)?;
    let mut packed = vec![0; room.min(compress_bound(new.len()))];
    let length = PACKING
        .with_borrow_mut(|work| work.compress_using_dict(&mut packed[..], new, before, LEVEL));
    let length = length.ok()?;
    let mut grown = Vec::with_capacity(kept.len() + length + CHECKSUM_BYTES);
    grown.extend_from_slice(kept);
    grown.extend_from_slice(&packed[..length]);
    grown.extend(piece_checksum(new));
    Some(grown.into())
}

/// Of the bytes of a piece.
fn piece_checksum(new: &[u8]) -> [u8; CHECKSUM_BYTES] {
    // The lower half.
    (xxh3_64(new) as u32).to_le_bytes()
}

/// True if blocks can be differences of one that was packed like this.
pub fn is_base(packed: &[u8], block_bytes: usize) -> bool {
    packed.len() < block_bytes && packed.starts_with(&ZSTD)
}

/// The contents of a block of `block_bytes` bytes that was kept as `packed`.
///
/// # Errors
/// `Corrupt` if it was not made by [`pack`], [`difference`] and [`piece`] of so many bytes; its checksum was right, so who wrote it
/// was another program.
pub fn unpack(packed: Bytes, block_bytes: usize) -> Result<Bytes> {
    if packed.len() == block_bytes {
        return Ok(packed);
    }
    let mut data = vec![0; block_bytes];
    let unpacked = match packed.starts_with(&ZSTD) {
        true => unpack_zstd(&packed, &mut data),
        false => lz4_flex::block::decompress_into(&packed, &mut data).map_err(io::Error::other),
    };
    match unpacked {
        Ok(length) if length == block_bytes => Ok(data.into()),
        Ok(length) => {
            let text = format!("{length} bytes were packed in a block of {block_bytes}");
            Err(Error::new(ErrorKind::Corrupt, text))
        }
        Err(error) => {
            let text = "a block that was not packed by this program";
            Err(Error::with_source(ErrorKind::Corrupt, text, error))
        }
    }
}

/// True if a block that was kept as `packed` was packed as more than a whole: a program that reads [whole blocks](crate::forms::Forms::WHOLE_BLOCKS) does not understand it.
#[cfg(test)]
pub(crate) fn is_in_parts(packed: &[u8]) -> bool {
    let is_whole = |frame: usize| frame == packed.len();
    packed.starts_with(&ZSTD) && !find_frame_compressed_size(packed).is_ok_and(is_whole)
}

fn unpack_zstd(packed: &[u8], data: &mut [u8]) -> io::Result<usize> {
    let first = find_frame_compressed_size(packed).map_err(zstd_error)?;
    let (base, difference) = packed.split_at(first);
    let length = UNPACKING.with_borrow_mut(|work| work.decompress(data, base));
    let length = length.map_err(zstd_error)?;
    match difference.is_empty() {
        _ if length < data.len() => unpack_pieces(length, difference, data),
        true => Ok(length),
        false => unpack_difference(difference, data),
    }
}

/// Makes the block of its pieces, the first of which is in `data` and has so many bytes, with the rest of what was kept
/// behind its frame; what they do not reach is zeros.
fn unpack_pieces(first: usize, mut rest: &[u8], data: &mut [u8]) -> io::Result<usize> {
    let (mut used, mut length) = (0, first);
    loop {
        let cut = || io::Error::other("a piece without its checksum");
        let (checksum, behind) = rest.split_first_chunk().ok_or_else(cut)?;
        if piece_checksum(&data[used..used + length]) != *checksum {
            return Err(io::Error::other("a piece from another block"));
        }
        used += length;
        if behind.is_empty() {
            break;
        }
        let frame = find_frame_compressed_size(behind).map_err(zstd_error)?;
        let (piece, left) = behind.split_at(frame);
        let (before, after) = data.split_at_mut(used);
        let unpacked = UNPACKING
            .with_borrow_mut(|work| work.decompress_using_dict(&mut *after, piece, before));
        length = unpacked.map_err(zstd_error)?;
        rest = left;
    }
    data[used..].fill(0);
    Ok(data.len())
}

/// Makes the block of what it was, which is in `data`.
fn unpack_difference(difference: &[u8], data: &mut [u8]) -> io::Result<usize> {
    let before = data.to_vec();
    let cut = || io::Error::other("a difference without its checksum");
    let (difference, checksum) = difference.split_last_chunk().ok_or_else(cut)?;
    let length =
        UNPACKING.with_borrow_mut(|work| work.decompress_using_dict(data, difference, &before));
    let length = length.map_err(zstd_error)?;
    match crc32c::crc32c(&data[..length]) == u32::from_le_bytes(*checksum) {
        true => Ok(length),
        false => Err(io::Error::other("a difference from another block")),
    }
}

fn zstd_error(code: usize) -> io::Error {
    io::Error::other(get_error_name(code))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_of_the_log_that_is_half_empty_is_kept_in_less_than_half() {
        let mut page = vec![0; 8192];
        for (at, byte) in page[..4096].iter_mut().enumerate() {
            *byte = (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3];
        }
        let kept = pack(page.clone().into());
        assert!(kept.len() < 4096 + 100, "{}", kept.len());
        assert_eq!(unpack(kept, 8192).unwrap(), page);
    }

    #[test]
    fn noise_is_kept_as_it_is_without_a_copy() {
        let mut state = 1u64;
        let noise = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        });
        let page: Bytes = noise.take(8192).collect();
        let kept = pack(page.clone());
        assert_eq!(kept.as_ptr(), page.as_ptr());
        assert_eq!(unpack(kept, 8192).unwrap().as_ptr(), page.as_ptr());
    }

    #[test]
    fn blocks_packed_by_an_earlier_version_are_unpacked() {
        let mut page = vec![0; 8192];
        page[..3000].copy_from_slice(&b"abc".repeat(1000));
        let kept = lz4_flex::block::compress(&page);
        assert_eq!(unpack(kept.into(), 8192).unwrap(), page);
        // What zstd begins with is no beginning of an LZ4 block.
        for last in 0..=255 {
            let mut kept = ZSTD.to_vec();
            kept.extend([last; 20]);
            let mut data = vec![0; 8192];
            assert!(lz4_flex::block::decompress_into(&kept, &mut data).is_err());
        }
    }

    proptest! {
        #[test]
        fn packed_blocks_are_unpacked(
            parts in prop::collection::vec((any::<u8>(), 0usize..300), 0..60),
            noise in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            let mut page: Vec<u8> = parts.iter().flat_map(|(byte, n)| vec![*byte; *n]).collect();
            page.extend(noise);
            page.resize(8192, 0);
            let kept = pack(page.clone().into());
            prop_assert!(kept.len() <= page.len());
            prop_assert_eq!(unpack(kept, 8192).unwrap(), page);
        }

        #[test]
        fn a_difference_behind_its_base_is_the_block(
            noise in prop::collection::vec(any::<u8>(), 0..4000),
            changes in prop::collection::vec((0usize..8192, any::<u8>()), 0..200),
        ) {
            let mut page = noise;
            page.resize(8192, 0);
            let base = pack(page.clone().into());
            changes.iter().for_each(|(at, byte)| page[*at] = *byte);
            if let Some(difference) = difference(&base, &page) {
                let kept: Bytes = [&base[..], &difference].concat().into();
                prop_assert!(kept.len() < 8192 && difference.len() <= base.len() / 2 + 4);
                prop_assert_eq!(unpack(kept.clone(), 8192).unwrap(), page.clone());
                // Behind another base it is an error, and never another block.
                let other = pack(vec![7; 8192].into());
                let kept: Bytes = [&other[..], &difference].concat().into();
                if let Ok(data) = unpack(kept, 8192) {
                    prop_assert_eq!(data, page);
                }
            }
        }

        /// Most nonsense does not come behind the first frame.
        #[test]
        fn damaged_pieces_are_an_error_and_never_a_panic(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 1..8),
            flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..3),
            cut in any::<Option<prop::sample::Index>>(),
        ) {
            let (mut kept, mut block) = (Bytes::new(), Vec::new());
            for part in &parts {
                kept = piece(&kept, &block, part, 8192).unwrap();
                block.extend_from_slice(part);
            }
            block.resize(8192, 0);
            prop_assert_eq!(unpack(kept.clone(), 8192).unwrap(), block);
            let mut damaged = kept.to_vec();
            for (at, flip) in flips {
                *at.get_mut(&mut damaged) ^= flip;
            }
            damaged.truncate(cut.map_or(kept.len(), |cut| cut.index(kept.len())));
            if let Ok(data) = unpack(damaged.into(), 8192) {
                prop_assert_eq!(data.len(), 8192);
            }
        }

        #[test]
        fn nonsense_is_an_error_and_never_a_panic(
            as_zstd in any::<bool>(),
            mut kept in prop::collection::vec(any::<u8>(), 0..8192),
        ) {
            if as_zstd && let Some(head) = kept.first_chunk_mut() {
                *head = ZSTD;
            }
            if let Ok(data) = unpack(kept.into(), 8192) {
                prop_assert_eq!(data.len(), 8192);
            }
        }
    }
}
