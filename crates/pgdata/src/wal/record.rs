//! Records of the log: which blocks they change, and the few whose contents matter here.
//!
//! Layouts of versions 13 to 18; what differs is the flags of page images (15).

use volume::lsn::Lsn;

use crate::bytes_at::{u16_at, u32_at, u64_at};
use crate::control::{Capacity, WalLevel};
use crate::relation::{Fork, Relation};
use crate::timeline::TimelineId;

/// Bytes of a record's fixed header.
pub(super) const HEADER_BYTES: usize = 24;
const CHECKSUM_AT: usize = 20;
/// Longer records are not written (`XLogRecordMaxSize`).
pub(super) const MAX_BYTES: usize = 1020 << 20;

const RESOURCE_LOG: u8 = 0;
const RESOURCE_TRANSACTION: u8 = 1;
const RESOURCE_DATABASE: u8 = 4;

/// A block that a record changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRef {
    /// The relation.
    pub relation: Relation,
    /// Its fork.
    pub fork: Fork,
    /// The block's number in the fork.
    pub block: u32,
    /// True if the record holds an image of the page.
    pub has_image: bool,
    /// True if redo restores that image (it need not: consistency checks log images too).
    pub apply_image: bool,
    /// True if redo makes the page anew, without reading it.
    pub will_init: bool,
}

/// A checkpoint record's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// True if it is of a shutdown (or of the end of recovery).
    pub shutdown: bool,
    /// Where recovery from it starts.
    pub redo: Lsn,
    /// Its timeline.
    pub timeline: TimelineId,
    /// The timeline before, if it begins one; else the same.
    pub previous_timeline: TimelineId,
}

/// What is known of a record beyond its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// A checkpoint was completed.
    Checkpoint(Checkpoint),
    /// A promotion ended recovery without a checkpoint.
    EndOfRecovery {
        /// The new timeline.
        timeline: TimelineId,
        /// The one before.
        previous_timeline: TimelineId,
    },
    /// Settings changed that a hot standby depends on (N12).
    Parameters {
        /// What a standby must not undercut.
        capacity: Capacity,
        /// How much is logged from now on; `None` for a level not known here.
        wal_level: Option<WalLevel>,
    },
    /// A database was copied file by file (H5).
    FileCopy {
        /// Object id of the new database.
        database: u32,
        /// Object id of its tablespace.
        tablespace: u32,
        /// Object id of the database copied.
        source_database: u32,
        /// Object id of that database's tablespace.
        source_tablespace: u32,
    },
    /// A transaction committed.
    Commit {
        /// Transaction that committed.
        xid: u32,
    },
    /// Pages were logged whole: nearly always by a bulk writer (N2).
    FullPages,
    /// A page was logged whole because of a hint bit; without an image it does nothing.
    FullPageForHint,
    /// The rest of the segment is not used.
    Switch,
    /// Anything else.
    Other,
}

/// A complete record with a right checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Position of its first byte.
    pub start: Lsn,
    /// PostgreSQL's `EndRecPtr`: one past its last byte, rounded up to 8. If that is the end of a
    /// page it is the start of the next page, not of that page's first record. For a segment switch
    /// it is the start of the next segment. Applied, flushed and page positions are of this kind.
    pub end: Lsn,
    /// The timeline in the header of the page that it starts on. The first records after a
    /// promotion may still be on a page that was begun on the timeline before.
    pub timeline: TimelineId,
    /// Number of the resource manager.
    pub rmid: u8,
    /// The resource manager's own bits (the high four).
    pub info: u8,
    /// The transaction, 0 if none.
    pub xid: u32,
    /// The blocks that it changes.
    pub blocks: Vec<BlockRef>,
    /// The rest that is understood.
    pub detail: Detail,
}

/// Where a record lies and how its pages were written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub start: Lsn,
    pub end: Lsn,
    pub timeline: TimelineId,
    pub new_image_flags: bool,
}

/// The start of the record before, as a record's header has it.
pub(super) fn previous(header: &[u8]) -> Lsn {
    Lsn(u64_at(header, 8))
}

/// True if the bytes of a whole record give its checksum.
pub(super) fn checksum_is_right(record: &[u8]) -> bool {
    let contents = crc32c::crc32c(&record[HEADER_BYTES..]);
    crc32c::crc32c_append(contents, &record[..CHECKSUM_AT]) == u32_at(record, CHECKSUM_AT)
}

/// True if the record is a segment switch.
pub(super) fn is_switch(record: &[u8]) -> bool {
    record[17] == RESOURCE_LOG && record[16] & 0xF0 == 0x40
}

/// Decodes a whole record whose checksum is right.
pub(super) fn decode(record: &[u8], place: Place) -> Result<Record, &'static str> {
    let (info, rmid) = (record[16] & 0xF0, record[17]);
    let mut headers = Headers::new(&record[HEADER_BYTES..], place.new_image_flags);
    headers.read_all()?;
    Ok(Record {
        start: place.start,
        end: place.end,
        timeline: place.timeline,
        rmid,
        info,
        xid: u32_at(record, 4),
        detail: detail(
            rmid,
            info,
            u32_at(record, 4),
            &record[record.len() - headers.main_bytes..],
        ),
        blocks: headers.blocks,
    })
}

fn detail(rmid: u8, info: u8, xid: u32, main: &[u8]) -> Detail {
    match (rmid, info) {
        (RESOURCE_TRANSACTION, 0x00 | 0x80) if xid != 0 => Detail::Commit { xid },
        // Whoever commits what was prepared has no transaction of its own.
        (RESOURCE_TRANSACTION, 0xB0) => match prepared(main) {
            Some(xid) => Detail::Commit { xid },
            None => Detail::Other,
        },
        (RESOURCE_LOG, 0x00 | 0x10) => Detail::Checkpoint(Checkpoint {
            shutdown: info == 0x00,
            redo: Lsn(u64_at(main, 0)),
            timeline: TimelineId(u32_at(main, 8)),
            previous_timeline: TimelineId(u32_at(main, 12)),
        }),
        (RESOURCE_LOG, 0x40) => Detail::Switch,
        (RESOURCE_LOG, 0x60) => Detail::Parameters {
            capacity: Capacity {
                max_connections: u32_at(main, 0),
                max_worker_processes: u32_at(main, 4),
                max_wal_senders: u32_at(main, 8),
                max_prepared_transactions: u32_at(main, 12),
                max_locks_per_transaction: u32_at(main, 16),
            },
            wal_level: WalLevel::from_number(u32_at(main, 20)),
        },
        (RESOURCE_LOG, 0x90) => Detail::EndOfRecovery {
            timeline: TimelineId(u32_at(main, 8)),
            previous_timeline: TimelineId(u32_at(main, 12)),
        },
        (RESOURCE_LOG, 0xA0) => Detail::FullPageForHint,
        (RESOURCE_LOG, 0xB0) => Detail::FullPages,
        (RESOURCE_DATABASE, 0x00) => Detail::FileCopy {
            database: u32_at(main, 0),
            tablespace: u32_at(main, 4),
            source_database: u32_at(main, 8),
            source_tablespace: u32_at(main, 12),
        },
        _ => Detail::Other,
    }
}

/// The prepared transaction that a commit is of: what comes before its id has counts, and items of a known size, but for
/// dropped statistics, which are larger since version 18.
fn prepared(main: &[u8]) -> Option<u32> {
    const TIME_BYTES: usize = 8;
    const INFO: [(u32, usize); 5] = [(1, 0), (1 << 1, 4), (1 << 2, 12), (1 << 8, 0), (1 << 3, 16)];
    const TWO_PHASE: u32 = 1 << 4;
    let number = |at: usize| Some(u32::from_le_bytes(main.get(at..at + 4)?.try_into().ok()?));
    let info = number(TIME_BYTES)?;
    let read = |statistics_bytes: usize| {
        let mut at = TIME_BYTES + 4;
        for (bit, item_bytes) in INFO.into_iter().filter(|(bit, _)| info & bit != 0) {
            at = match bit {
                1 => at + 8,
                _ => {
                    let item_bytes = if bit == 1 << 8 {
                        statistics_bytes
                    } else {
                        item_bytes
                    };
                    let items = usize::try_from(number(at)?).ok()?;
                    at.checked_add(4)?
                        .checked_add(items.checked_mul(item_bytes)?)?
                }
            };
        }
        Some((number(at)?, at + 4))
    };
    let ends = |(_, end): &(u32, usize)| *end == main.len() || info & (1 << 5 | 1 << 7) != 0;
    let mut sizes = [12, 16].into_iter().filter_map(read).filter(ends);
    (info & TWO_PHASE != 0)
        .then(|| sizes.next())?
        .map(|(xid, _)| xid)
}

const ID_MAIN_SHORT: u8 = 255;
const ID_MAIN_LONG: u8 = 254;
const ID_ORIGIN: u8 = 253;
const ID_TOP_XID: u8 = 252;
const MAX_BLOCK_ID: u8 = 32;

/// Reads the headers that stand between a record's fixed header and its data.
struct Headers<'a> {
    rest: &'a [u8],
    new_image_flags: bool,
    data_bytes: usize,
    main_bytes: usize,
    blocks: Vec<BlockRef>,
}

impl<'a> Headers<'a> {
    fn new(rest: &'a [u8], new_image_flags: bool) -> Headers<'a> {
        Headers {
            rest,
            new_image_flags,
            data_bytes: 0,
            main_bytes: 0,
            blocks: Vec::new(),
        }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self
            .rest
            .split_at_checked(bytes)
            .ok_or("record header cut short")?;
        self.rest = rest;
        Ok(taken)
    }

    fn read_all(&mut self) -> Result<(), &'static str> {
        while self.rest.len() > self.data_bytes {
            match self.take(1)?[0] {
                ID_MAIN_SHORT => self.main(1)?,
                ID_MAIN_LONG => self.main(4)?,
                ID_ORIGIN => drop(self.take(2)?),
                ID_TOP_XID => drop(self.take(4)?),
                id if id <= MAX_BLOCK_ID => self.block()?,
                _ => return Err("unknown part of a record"),
            }
        }
        if self.rest.len() == self.data_bytes {
            Ok(())
        } else {
            Err("record data cut short")
        }
    }

    /// The main data's length; it is the last header.
    fn main(&mut self, width: usize) -> Result<(), &'static str> {
        let length = self.take(width)?;
        self.main_bytes = if width == 1 {
            length[0].into()
        } else {
            u32_at(length, 0) as usize
        };
        self.data_bytes += self.main_bytes;
        if self.rest.len() == self.data_bytes {
            Ok(())
        } else {
            Err("main data of another length")
        }
    }

    fn block(&mut self) -> Result<(), &'static str> {
        let header = self.take(3)?;
        let flags = header[0];
        self.data_bytes += usize::from(u16_at(header, 1));
        let has_image = flags & 0x10 != 0;
        let apply_image = has_image && self.image()?;
        let relation = self.relation(flags & 0x80 != 0)?;
        let block = u32_at(self.take(4)?, 0);
        let fork = Fork::from_number(flags & 0x0F).ok_or("unknown fork")?;
        let will_init = flags & 0x40 != 0;
        self.blocks.push(BlockRef {
            relation,
            fork,
            block,
            has_image,
            apply_image,
            will_init,
        });
        Ok(())
    }

    /// An image's header; whether redo applies the image.
    fn image(&mut self) -> Result<bool, &'static str> {
        let header = self.take(5)?;
        let flags = header[4];
        self.data_bytes += usize::from(u16_at(header, 0));
        let (compressed, applied) = if self.new_image_flags {
            (0x1C, 0x02)
        } else {
            (0x02, 0x04)
        };
        if flags & compressed != 0 && flags & 0x01 != 0 {
            self.take(2)?;
        }
        Ok(flags & applied != 0)
    }

    fn relation(&mut self, same: bool) -> Result<Relation, &'static str> {
        if same {
            let last = self
                .blocks
                .last()
                .ok_or("a first block of the same relation as none")?;
            return Ok(last.relation);
        }
        let words = self.take(12)?;
        let word = |at| u32_at(words, at);
        Ok(Relation {
            tablespace: word(0),
            database: word(4),
            number: word(8),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A commit of the prepared transaction 777 with these parts behind the time.
    fn commit(info: u32, parts: &[&[u32]]) -> Vec<u8> {
        let words = [&[0, 0, info], parts.concat().as_slice()].concat();
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn a_commit_of_a_prepared_transaction_tells_whose_it_is() {
        let (database, subtransactions) = ([5, 1663], [2, 778, 779]);
        let (files, messages) = ([1, 1663, 5, 16384], [1, 0, 0, 0, 0]);
        let commits = [
            commit(1 << 4, &[&[777]]),
            commit(
                0x1F,
                &[&database, &subtransactions, &files, &messages, &[777]],
            ),
            // Dropped statistics: of versions 15 to 17, and since 18.
            commit(0x119, &[&database, &[1, 1, 5, 9], &messages, &[777]]),
            commit(0x119, &[&database, &[1, 1, 5, 9, 0], &messages, &[777]]),
            // With the name and the origin behind it.
            commit(0xB0, &[&[777], &[0x0067_6967], &[0, 0, 0, 0]]),
        ];
        for (at, main) in commits.iter().enumerate() {
            assert_eq!(prepared(main), Some(777), "{at}");
            let detail = detail(RESOURCE_TRANSACTION, 0xB0, 0, main);
            assert_eq!(detail, Detail::Commit { xid: 777 });
        }
        assert_eq!(prepared(&commit(1 << 1, &[&[u32::MAX, 1]])), None);
        assert_eq!(prepared(&[]), None);
        assert_eq!(prepared(&commit(0x0F, &[&database])), None);
    }
}
