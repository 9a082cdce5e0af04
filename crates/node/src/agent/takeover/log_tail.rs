//! Fixing the end of the log (hazard H12).
//!
//! Owns: which timeline the log is on, where it ends, and that nothing of a dead epoch can be read
//! behind that end. Invariant: the end found is at or behind every commit that was acknowledged,
//! because the new epoch's reads meet every sync of the old one, and what was read once stays.

use dax::ids::{BlockIndex, FileId};
use futures_util::future::try_join_all;
use pgdata::layout::LOG;
use pgdata::segment::{LOG_PAGE_BYTES, SegmentName, SegmentSize};
use pgdata::timeline::{History, TimelineId};
use pgdata::wal::{Follower, Start, Stop};
use volume::error::{Error, Result};
use volume::latest::Latest;
use volume::lsn::Lsn;
use volume::namespace::Namespace;
use volume::view::Timestamp;

const PAGE: u64 = LOG_PAGE_BYTES as u64;
/// Blocks read at a time.
const READ_AHEAD_MAX: u64 = 128;

/// Where a log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogTail {
    /// The end of the last complete record.
    pub end: Lsn,
    /// The timeline that it is on.
    pub timeline: TimelineId,
}

/// The newest timeline whose history file is in the namespace, with its ancestors.
///
/// # Errors
/// `Damaged` if that file cannot be understood.
pub async fn newest_history(latest: &Latest, fallback: TimelineId) -> Result<History> {
    let namespace = latest.namespace();
    let directory = namespace.resolve(LOG)?;
    let names = namespace.directory(directory)?.iter();
    let newest = names
        .filter_map(|(name, file)| Some((history_of(name)?, *file)))
        .max_by_key(|(timeline, _)| *timeline);
    // The file of the fallback itself is read as well: the log may still begin on an ancestor of it.
    let Some((timeline, file)) = newest.filter(|(timeline, _)| *timeline >= fallback) else {
        return Ok(History::of_first(fallback));
    };
    let size = namespace.file(file)?.size as usize;
    let mut text = Vec::new();
    for block in 0..(size as u64).div_ceil(PAGE) {
        let found = latest.read_log_block(file, BlockIndex(block)).await?;
        text.extend_from_slice(&found.unwrap_or_else(|| vec![0; PAGE as usize].into()));
    }
    text.truncate(size);
    let damaged = |why: String| Error::Damaged(format!("{}: {why}", timeline.history_file_name()));
    let text = String::from_utf8(text).map_err(|e| damaged(e.to_string()))?;
    History::parse(timeline, &text).map_err(|e| damaged(e.to_string()))
}

fn history_of(name: &[u8]) -> Option<TimelineId> {
    TimelineId::from_history_file_name(std::str::from_utf8(name).ok()?)
}

/// The log file that holds `at`: of the newest timeline of the history that has one, as PostgreSQL
/// itself looks for it; never one of a timeline that had been left before `at`.
pub fn segment_file(
    namespace: &Namespace,
    history: &History,
    at: Lsn,
    size: SegmentSize,
) -> Option<(SegmentName, FileId)> {
    let directory = namespace.resolve(LOG).ok()?;
    SegmentName::candidates(history, at, size).find_map(|segment| {
        let name = segment.file_name(size);
        let live = namespace.lookup(directory, name.as_bytes()).ok();
        let retained = || namespace.retained(directory)?.get(name.as_bytes()).copied();
        Some((segment, live.or_else(retained)?))
    })
}

/// Reads the log from `from`, the end of a record, to its end.
///
/// Usually a block or two: `from` is what was announced as synced. More are read ahead the further
/// it goes (a start after an announcement was lost).
pub async fn find_end(
    latest: &Latest,
    history: &History,
    from: Lsn,
    size: SegmentSize,
) -> Result<LogTail> {
    let mut follower = Follower::new(size, Start::Record(from));
    let mut ahead = 1;
    while let Stop::Missing(at) = follower.stop() {
        let page = Lsn(at.0 - at.0 % PAGE);
        let Some((_, file)) = segment_file(latest.namespace(), history, page, size) else {
            break;
        };
        let first = size.offset(page) / PAGE;
        let last = (first + ahead).min(size.bytes() / PAGE);
        let reads = (first..last).map(|block| latest.read_log_block(file, BlockIndex(block)));
        for (contents, index) in try_join_all(reads).await?.into_iter().zip(0..) {
            let Some(contents) = contents else { break };
            follower.feed(Lsn(page.0 + index * PAGE), &contents, &mut |_| {});
        }
        if follower.stop() == Stop::Missing(at) {
            break;
        }
        ahead = (ahead * 2).min(READ_AHEAD_MAX);
    }
    Ok(LogTail {
        end: follower.end(),
        timeline: history.timeline(),
    })
}

/// Makes everything behind `end` read as zeros: the blocks after its page in its own segment, and
/// later segments from their start. Durable with the next commit of `latest`.
pub fn cut_behind(latest: &mut Latest, end: Lsn, size: SegmentSize, now: Timestamp) -> Result<()> {
    let directory = latest.namespace().resolve(LOG)?;
    let names = latest.namespace().directory(directory)?.clone();
    for (name, file) in &names {
        let Some(segment) = std::str::from_utf8(name)
            .ok()
            .and_then(|n| SegmentName::parse(n, size))
        else {
            continue;
        };
        let range = segment.range(size);
        if range.end <= end {
            continue;
        }
        let kept = end.bytes_since(range.start).div_ceil(PAGE);
        latest.cut_log(*file, BlockIndex(kept), now)?;
    }
    Ok(())
}
