//! Parts of checkpoints on their way: packed by zstd, all of a following as one stream.
//!
//! What a guest writes is in several places at once: a record of the log is in the buffers of the database, in the guest's page cache and on
//! its disk; a row is in what the client sent, in the page and in the log. The stream names what it has had in this checkpoint or in the
//! last ones, wherever that was.
//!
//! Invariants: what is unpacked is what was packed, if every part arrives, in order; nothing is longer than it says, and it says no more
//! than the limit, whatever was sent.

use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective::ZSTD_e_flush;
use zstd::zstd_safe::{CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer};

use super::{Malformed, runs};

const AS_IT_IS: u8 = 0;
const PACKED: u8 = 1;
/// The least work. Level 3 makes a fifth less of the checkpoints of an order entry, and takes longer.
const LEVEL: i32 = 1;
/// How far back the stream can name what it has had: 2 MB.
const WINDOW: u32 = 21;

/// Packs parts for one standby.
pub struct Packer {
    /// `None` if it has failed.
    stream: Option<CCtx<'static>>,
    packs: bool,
}

impl Packer {
    /// At the beginning of a following.
    pub fn new() -> Packer {
        let mut stream = CCtx::create();
        let parameters = [
            CParameter::CompressionLevel(LEVEL),
            CParameter::WindowLog(WINDOW),
        ];
        let is_set = parameters
            .into_iter()
            .all(|it| stream.set_parameter(it).is_ok());
        Packer {
            stream: is_set.then_some(stream),
            packs: true,
        }
    }

    /// True if parts are packed; otherwise they go as they are.
    pub fn compress(&mut self, packs: bool) {
        self.packs = packs;
    }

    /// A part as it is sent.
    pub fn pack(&mut self, part: &[u8]) -> Vec<u8> {
        if let Some(stream) = self.stream.as_mut().filter(|_| self.packs) {
            let mut out = vec![PACKED];
            runs::put_number(part.len() as u64, &mut out);
            if flush(stream, part, &mut out).is_some() {
                return out;
            }
            // The other end knows nothing of this part of the stream, and so of nothing that would follow.
            self.stream = None;
        }
        [&[AS_IT_IS], part].concat()
    }
}

impl Default for Packer {
    fn default() -> Packer {
        Packer::new()
    }
}

/// Adds a part to the stream, so that all of it can be read. `None` if there is no memory for it.
fn flush(stream: &mut CCtx<'static>, part: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut input = InBuffer::around(part);
    loop {
        out.reserve(4096 + (part.len() - input.pos()) / 4);
        let filled = out.len();
        let mut output = OutBuffer::around_pos(out, filled);
        let left = stream.compress_stream2(&mut output, &mut input, ZSTD_e_flush);
        if left.ok()? == 0 && input.pos() == part.len() {
            return Some(());
        }
    }
}

/// Unpacks what a [`Packer`] has packed.
pub struct Unpacker {
    stream: DCtx<'static>,
    limit: usize,
}

impl Unpacker {
    /// At the beginning of a following. No part has more than `limit` bytes.
    pub fn new(limit: usize) -> Unpacker {
        let mut stream = DCtx::create();
        // What refers to more is refused. A library that does not know the parameter has its own limit.
        let _ = stream.set_parameter(DParameter::WindowLogMax(WINDOW));
        Unpacker { stream, limit }
    }

    /// The part that was sent as `packed`.
    ///
    /// # Errors
    /// If that is not the next one, or too long.
    pub fn unpack(&mut self, packed: Vec<u8>) -> Result<Vec<u8>, Malformed> {
        let (kind, mut rest) = packed.split_first().ok_or(Malformed)?;
        match *kind {
            AS_IT_IS if rest.len() <= self.limit => Ok(rest.to_vec()),
            PACKED => {
                let len = usize::try_from(runs::take_number(&mut rest)?).map_err(|_| Malformed)?;
                if len > self.limit {
                    return Err(Malformed);
                }
                self.read(rest, len)
            }
            _ => Err(Malformed),
        }
    }

    fn read(&mut self, packed: &[u8], len: usize) -> Result<Vec<u8>, Malformed> {
        // With room for a byte too many: what would be longer is noticed.
        let mut part = vec![0; len + 1];
        let (mut input, mut filled) = (InBuffer::around(packed), 0);
        while input.pos() < packed.len() {
            let before = (input.pos(), filled);
            let mut output = OutBuffer::around(&mut part[filled..]);
            let read = self.stream.decompress_stream(&mut output, &mut input);
            filled += output.pos();
            if read.is_err() || before == (input.pos(), filled) {
                return Err(Malformed);
            }
        }
        part.truncate(len);
        match filled == len {
            true => Ok(part),
            false => Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 10_000;

    proptest! {
        #[test]
        fn packed_pages_are_unpacked(
            parts in prop::collection::vec(
                (prop::collection::vec((any::<u8>(), 0..300_usize), 0..20), prop::collection::vec(any::<u8>(), 0..600), any::<bool>()),
                0..20,
            ),
        ) {
            let (mut packer, mut unpacker) = (Packer::new(), Unpacker::new(LIMIT));
            for (runs, noise, packs) in parts {
                let mut part: Vec<u8> = runs.iter().flat_map(|(byte, n)| vec![*byte; *n]).collect();
                part.extend(noise);
                packer.compress(packs);
                prop_assert_eq!(unpacker.unpack(packer.pack(&part)), Ok(part));
            }
        }

        #[test]
        fn nonsense_is_refused_and_never_longer_than_the_limit(
            damage in prop::collection::vec((0..400_usize, any::<u8>()), 0..4),
            noise in prop::collection::vec(any::<u8>(), 0..300),
            cut in 0..400_usize,
        ) {
            let mut packer = Packer::new();
            let mut packed = packer.pack(&[&noise[..], &[7; 300], &noise].concat());
            for (at, byte) in damage {
                let at = at % packed.len();
                packed[at] = byte;
            }
            packed.truncate(cut);
            for input in [packed, [&[PACKED, 100], &noise[..]].concat(), noise] {
                if let Ok(part) = Unpacker::new(LIMIT).unpack(input) {
                    prop_assert!(part.len() <= LIMIT);
                }
            }
        }
    }

    #[test]
    fn pages_sent_before_cost_little() {
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        });
        let record: Vec<u8> = noise.take(2000).collect();
        let (mut packer, mut unpacker) = (Packer::new(), Unpacker::new(LIMIT));
        let first = packer.pack(&record);
        assert!(first.len() < 2050, "{}", first.len());
        let again = packer.pack(&[&[1, 2, 3], &record[..], &[4]].concat());
        assert!(again.len() < 60, "{}", again.len());
        // Whoever did not get the first part cannot read the second one.
        assert_eq!(Unpacker::new(LIMIT).unpack(again.clone()), Err(Malformed));
        unpacker.unpack(first).unwrap();
        assert_eq!(unpacker.unpack(again).unwrap()[3..2003], record);
    }

    #[test]
    fn a_part_beyond_the_limit_is_refused() {
        for packs in [false, true] {
            let mut packer = Packer::new();
            packer.compress(packs);
            let fits = packer.pack(&[0; LIMIT]);
            let too_long = packer.pack(&[0; LIMIT + 1]);
            let mut unpacker = Unpacker::new(LIMIT);
            assert_eq!(unpacker.unpack(fits).unwrap().len(), LIMIT);
            assert_eq!(unpacker.unpack(too_long), Err(Malformed));
        }
        assert_eq!(Unpacker::new(LIMIT).unpack(Vec::new()), Err(Malformed));
    }

    #[test]
    fn a_part_that_says_less_than_it_holds_is_refused() {
        let mut packed = Packer::new().pack(&[5; 100]);
        assert_eq!(packed[1], 100);
        for wrong in [99, 101] {
            packed[1] = wrong;
            assert_eq!(Unpacker::new(LIMIT).unpack(packed.clone()), Err(Malformed));
        }
    }
}
