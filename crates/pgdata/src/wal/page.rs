//! The header of a log page.

use volume::lsn::Lsn;

use crate::bytes_at::{u16_at, u32_at, u64_at};
use crate::segment::{LOG_PAGE_BYTES, SegmentSize};
use crate::timeline::TimelineId;

const FIRST_IS_CONTINUATION: u16 = 0x0001;
const LONG_HEADER: u16 = 0x0002;
const ALL_FLAGS: u16 = 0x000F;
const FIRST_OVERWRITES: u16 = 0x0008;
const SHORT_BYTES: usize = 24;
const LONG_BYTES: usize = 40;

/// The magic numbers of PostgreSQL 13, 14, 15, 16, 17 and 18.
const MAGICS: [u16; 6] = [0xD106, 0xD10D, 0xD110, 0xD113, 0xD116, 0xD118];
const MAGIC_15: u16 = 0xD110;

/// A verified page header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageHeader {
    /// True if images have the flags of version 15 and later.
    pub new_image_flags: bool,
    /// The timeline that the page was written on.
    pub timeline: TimelineId,
    /// True if the page begins with the rest of a record that began on an earlier page.
    pub continues: bool,
    /// True if the page overwrites such a rest with new records.
    pub overwrites: bool,
    /// How much of the continued record is left, from this page on.
    pub rest: usize,
    /// Bytes of the header itself.
    pub bytes: usize,
}

impl PageHeader {
    /// Reads and verifies the header of the page at `at`.
    pub fn parse(page: &[u8], at: Lsn, size: SegmentSize) -> Result<PageHeader, &'static str> {
        let (magic, flags) = (u16_at(page, 0), u16_at(page, 2));
        if !MAGICS.contains(&magic) {
            return Err(if magic == 0 {
                "no page header"
            } else {
                "unknown page magic number"
            });
        }
        if flags & !ALL_FLAGS != 0 {
            return Err("unknown page flags");
        }
        if u64_at(page, 8) != at.0 {
            return Err("page of another position");
        }
        let long = flags & LONG_HEADER != 0;
        if long != (size.offset(at) == 0) {
            return Err("long page header elsewhere than at the start of a segment");
        }
        if long
            && (u64::from(u32_at(page, 32)), u32_at(page, 36) as usize)
                != (size.bytes(), LOG_PAGE_BYTES)
        {
            return Err("page of a log with other segment or page sizes");
        }
        Ok(PageHeader {
            new_image_flags: magic >= MAGIC_15,
            timeline: TimelineId(u32_at(page, 4)),
            continues: flags & FIRST_IS_CONTINUATION != 0,
            overwrites: flags & FIRST_OVERWRITES != 0,
            rest: u32_at(page, 16) as usize,
            bytes: if long { LONG_BYTES } else { SHORT_BYTES },
        })
    }
}
