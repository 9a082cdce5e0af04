//! The log in a repository: pieces of segments, and how far they go without a gap (pure, but for the last part).
//!
//! ```text
//!   segment 000000020000000000000005   0──────4096──────9000            ◀── pieces, as they became durable
//!                                      0──────────────────────16 MiB    ◀── the whole, when it is complete
//! ```
//!
//! Invariant: the log reaches as far as pieces from the beginning of each segment leave no gap, on one history.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use bytes::Bytes;
use pgdata::segment::{SegmentName, SegmentSize};
use pgdata::timeline::{History, TimelineId};
use volume::lsn::Lsn;

use crate::error::{Error, Result};
use crate::manifest::Manifest;
use crate::repository::Repository;

/// A part of a segment: its first byte, and the byte behind its last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    /// Offset in the segment.
    pub from: u32,
    /// Offset in the segment at which the piece ends.
    pub to: u32,
}

impl Piece {
    fn parse(name: &str) -> Option<Piece> {
        let (from, to) = name.split_once('-')?;
        let offset = |digits: &str| {
            let is_hex = digits.len() == 8;
            u32::from_str_radix(digits, 16).ok().filter(|_| is_hex)
        };
        let piece = Piece {
            from: offset(from)?,
            to: offset(to)?,
        };
        (piece.from < piece.to).then_some(piece)
    }

    fn name(self) -> String {
        format!("{:08x}-{:08x}", self.from, self.to)
    }
}

/// The log of a repository, by its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogIndex {
    size: SegmentSize,
    segments: BTreeMap<SegmentName, BTreeSet<Piece>>,
    histories: BTreeSet<TimelineId>,
}

impl LogIndex {
    fn new(size: SegmentSize) -> LogIndex {
        LogIndex {
            size,
            segments: BTreeMap::new(),
            histories: BTreeSet::new(),
        }
    }

    /// A name below `log/`; others are passed over.
    fn note(&mut self, name: &str) {
        if let Some(timeline) = TimelineId::from_history_file_name(name) {
            self.histories.insert(timeline);
        } else if let Some((segment, piece)) = name.split_once('/')
            && let Some(segment) = SegmentName::parse(segment, self.size)
            && let Some(piece) = Piece::parse(piece)
        {
            self.segments.entry(segment).or_default().insert(piece);
        }
    }

    /// The newest timeline that has a history, or any log.
    pub fn newest_timeline(&self) -> Option<TimelineId> {
        let of_segments = self.segments.keys().map(|segment| segment.timeline);
        of_segments.chain(self.histories.iter().copied()).max()
    }

    /// Pieces that make up the segment from its beginning on as far as there is no gap, and how far that is.
    fn chain(&self, segment: SegmentName) -> (Vec<Piece>, u32) {
        let all = self.segments.get(&segment);
        let (mut chain, mut end) = (Vec::new(), 0);
        loop {
            let at_hand = all.into_iter().flatten();
            let longest = at_hand
                .filter(|piece| piece.from <= end)
                .max_by_key(|piece| piece.to);
            match longest {
                Some(piece) if piece.to > end => {
                    end = piece.to;
                    chain.push(*piece);
                }
                _ => return (chain, end),
            }
        }
    }

    /// How much of a segment is there from its beginning on.
    pub(crate) fn has(&self, segment: SegmentName) -> u32 {
        self.chain(segment).1
    }

    /// The file that has most of the log at `at`, and where that ends.
    fn best(&self, history: &History, at: Lsn) -> Option<(SegmentName, Lsn)> {
        let branches = history.branches();
        let ends = SegmentName::candidates(history, at, self.size).map(|segment| {
            let range = segment.range(self.size);
            let end = Lsn(range.start.0 + u64::from(self.chain(segment).1));
            // What a timeline has behind its fork is of a dead active.
            let fork = branches.end_of(segment.timeline.0, &range);
            (segment, fork.map_or(end, |fork| fork.min(end)))
        });
        // Of two that go as far the newer one, which is the first.
        let best = ends.reduce(|best, next| if next.1 > best.1 { next } else { best });
        best.filter(|(_, end)| *end > at)
    }

    /// How far the log goes from `from` on without a gap; `from` itself if it is not there.
    pub fn reaches(&self, history: &History, from: Lsn) -> Lsn {
        let mut at = from;
        while let Some((_, end)) = self.best(history, at) {
            at = end;
        }
        at
    }

    /// The end of all log that is there, whatever is missing before it.
    pub fn end(&self, history: &History) -> Lsn {
        let newest = history.timeline();
        let of_newest = self
            .segments
            .iter()
            .filter(|(name, _)| name.timeline == newest);
        let ends = of_newest.filter_map(|(name, pieces)| {
            let last = pieces.iter().map(|piece| piece.to).max()?;
            Some(Lsn(name.range(self.size).start.0 + u64::from(last)))
        });
        ends.max()
            .unwrap_or(Lsn::ZERO)
            .max(history.branches().begin())
    }

    /// The files that hold the log from `from` up to `to`.
    pub fn files(&self, history: &History, from: Lsn, to: Lsn) -> Vec<SegmentName> {
        let mut at = from;
        let mut files = Vec::new();
        while at < to
            && let Some((segment, end)) = self.best(history, at)
        {
            files.push(segment);
            at = end;
        }
        files
    }

    /// Bytes in a segment.
    pub(crate) fn segment_size(&self) -> SegmentSize {
        self.size
    }

    /// Segments of which there is anything.
    pub(crate) fn segments(&self) -> impl Iterator<Item = SegmentName> + '_ {
        self.segments.keys().copied()
    }

    /// Timelines that have a history.
    pub fn histories(&self) -> impl Iterator<Item = TimelineId> + '_ {
        self.histories.iter().copied()
    }
}

/// The log of a repository as it was listed, on the newest history.
#[derive(Debug)]
pub struct Log {
    /// The names.
    pub(crate) index: LogIndex,
    /// The newest history.
    pub(crate) history: History,
}

impl Log {
    /// The log that images such as this one need.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Missing`]; those of the store.
    pub async fn of(repository: &Repository, manifest: &Manifest) -> Result<Log> {
        Log::load(repository, manifest.segment_size()?).await
    }

    pub(crate) async fn load(repository: &Repository, size: SegmentSize) -> Result<Log> {
        let index = repository.log(size).await?;
        let history = repository.history(&index).await?;
        Ok(Log { index, history })
    }

    /// The end of all of it, whatever is missing before.
    pub(crate) fn end(&self) -> Lsn {
        self.index.end(&self.history)
    }

    /// Where an image can be restored to: from its end up to the end of the log behind it.
    ///
    /// # Errors
    /// [`Error::OutOfReach`] if the log does not even go to its end, [`Error::Refused`] if it is not on the history.
    pub fn reach(&self, manifest: &Manifest) -> Result<Lsn> {
        let image = manifest.id();
        if !self.history.contains_log(manifest.timeline, manifest.end) {
            return Err(Error::Refused(format!(
                "the image {image} is of timeline {} up to {}, where the newest timeline {} does not come from",
                manifest.timeline.0,
                manifest.end,
                self.history.timeline().0
            )));
        }
        let reach = self.index.reaches(&self.history, manifest.redo);
        if reach < manifest.end {
            return Err(Error::OutOfReach {
                wanted: format!("the end of the image {image}, {}", manifest.end),
                from: manifest.redo,
                to: reach,
            });
        }
        Ok(reach)
    }
}

impl Repository {
    /// Lists the log that is there.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub async fn log(&self, size: SegmentSize) -> Result<LogIndex> {
        let mut index = LogIndex::new(size);
        for name in self.names("log").await? {
            index.note(&name);
        }
        Ok(index)
    }

    /// The newest history of the log.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Missing`]
    pub async fn history(&self, index: &LogIndex) -> Result<History> {
        let newest = index.newest_timeline().unwrap_or(TimelineId::FIRST);
        if !index.histories.contains(&newest) {
            return Ok(History::of_first(newest));
        }
        let name = history_name(newest);
        let text = self.object(&name).await?;
        History::parse(newest, &String::from_utf8_lossy(&text))
            .map_err(|error| Error::damaged(name, error))
    }

    /// The text of a timeline's history.
    pub(crate) async fn history_file(&self, timeline: TimelineId) -> Result<Vec<u8>> {
        self.object(&history_name(timeline)).await
    }

    pub(crate) async fn put_history(
        &self,
        index: &mut LogIndex,
        timeline: TimelineId,
        text: Bytes,
    ) -> Result<()> {
        self.put_same(&history_name(timeline), text).await?;
        index.histories.insert(timeline);
        Ok(())
    }

    /// Writes a part of a segment.
    pub(crate) async fn put_log(
        &self,
        index: &mut LogIndex,
        segment: SegmentName,
        from: u32,
        log: Bytes,
    ) -> Result<()> {
        let to = from + log.len() as u32;
        let piece = Piece { from, to };
        self.put_same(&piece_name(segment, index.size, piece), log)
            .await?;
        index.segments.entry(segment).or_default().insert(piece);
        Ok(())
    }

    /// A segment as far as it is there; zeros behind that.
    pub(crate) async fn segment(&self, index: &LogIndex, segment: SegmentName) -> Result<Vec<u8>> {
        self.of_pieces(index, segment, async |index| {
            self.pieces(index, segment).await
        })
        .await
    }

    /// Asks for something of a segment's pieces; again if whoever archives has merged them since the log was listed.
    async fn of_pieces<T>(
        &self,
        index: &LogIndex,
        segment: SegmentName,
        ask: impl AsyncFn(&LogIndex) -> Result<T>,
    ) -> Result<T> {
        let gone = match ask(index).await {
            Err(Error::Missing(gone)) => gone,
            told => return told,
        };
        let name = segment.file_name(index.size);
        let mut listed = LogIndex::new(index.size);
        for piece in self.names(&format!("log/{name}")).await? {
            listed.note(&format!("{name}/{piece}"));
        }
        match listed.has(segment) < index.has(segment) {
            true => Err(Error::Missing(gone)),
            false => ask(&listed).await,
        }
    }

    async fn pieces(&self, index: &LogIndex, segment: SegmentName) -> Result<Vec<u8>> {
        let mut bytes = vec![0; index.size.bytes() as usize];
        for piece in index.chain(segment).0 {
            let name = piece_name(segment, index.size, piece);
            let log = self.object(&name).await?;
            let place = bytes.get_mut(piece.from as usize..piece.to as usize);
            match place.filter(|place| place.len() == log.len()) {
                Some(place) => place.copy_from_slice(&log),
                None => return Err(Error::damaged(name, "it has another length")),
            }
        }
        Ok(bytes)
    }

    /// When the log before `end` was written, by the store's clock.
    pub(crate) async fn log_written(&self, log: &Log, end: Lsn) -> Result<Option<SystemTime>> {
        let Log { index, history } = log;
        let before = Lsn(end.0.saturating_sub(1));
        let Some(segment) = index.files(history, before, end).pop() else {
            return Ok(None);
        };
        self.of_pieces(index, segment, async |index| {
            let Some(piece) = index.chain(segment).0.pop() else {
                return Ok(None);
            };
            let name = piece_name(segment, index.size, piece);
            self.written(&name).await.map(Some)
        })
        .await
    }

    /// Removes all that is there of a segment.
    pub(crate) async fn remove_segment(
        &self,
        index: &LogIndex,
        segment: SegmentName,
    ) -> Result<()> {
        let pieces = index.segments.get(&segment).into_iter().flatten();
        let names = pieces.map(|piece| piece_name(segment, index.size, *piece));
        self.remove_all(names.collect()).await
    }

    /// Puts one object in the place of the pieces of a segment that is complete.
    pub(crate) async fn merge(&self, index: &mut LogIndex, segment: SegmentName) -> Result<()> {
        let bytes = self.segment(index, segment).await?;
        self.put_log(index, segment, 0, bytes.into()).await?;
        let whole = |piece: &Piece| piece.from == 0 && u64::from(piece.to) == index.size.bytes();
        let all = index.segments.entry(segment).or_default();
        for piece in all.extract_if(.., |piece| !whole(piece)) {
            self.remove(&piece_name(segment, index.size, piece)).await?;
        }
        Ok(())
    }
}

fn history_name(timeline: TimelineId) -> String {
    format!("log/{}", timeline.history_file_name())
}

fn piece_name(segment: SegmentName, size: SegmentSize, piece: Piece) -> String {
    format!("log/{}/{}", segment.file_name(size), piece.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: SegmentSize = SegmentSize::SMALL;
    const BYTES: u64 = 4 << 20;

    fn index(pieces: &[(u32, u64, u32, u32)]) -> LogIndex {
        let mut index = LogIndex::new(SIZE);
        for &(timeline, number, from, to) in pieces {
            let timeline = TimelineId(timeline);
            let name = SegmentName { timeline, number }.file_name(SIZE);
            index.note(&format!("{name}/{}", Piece { from, to }.name()));
        }
        index
    }

    fn at(segment: u64, offset: u64) -> Lsn {
        Lsn(segment * BYTES + offset)
    }

    #[test]
    fn the_log_reaches_to_the_first_gap() {
        let whole = BYTES as u32;
        let history = History::of_first(TimelineId(1));
        let index = index(&[
            (1, 2, 0, whole),
            (1, 3, 0, 100),
            (1, 3, 50, 300),
            (1, 3, 301, 900),
            (1, 4, 0, whole),
            (1, 5, 7, 9),
        ]);
        assert_eq!(index.reaches(&history, at(2, 7)), at(3, 300));
        assert_eq!(index.reaches(&history, at(4, 7)), at(5, 0));
        assert_eq!(index.reaches(&history, at(5, 0)), at(5, 0));
        assert_eq!(index.end(&history), at(5, 9));
        assert_eq!(index.files(&history, at(2, 7), at(3, 10)).len(), 2);
        assert_eq!(index.files(&history, at(2, 7), at(3, 0)).len(), 1);
    }

    #[test]
    fn wal_behind_a_timelines_fork_does_not_count() {
        let text = "1\t0/C0000C8\tno recovery target specified\n";
        let history = History::parse(TimelineId(2), text).unwrap();
        let fork = Lsn(0xC0_000C8);
        let begun = fork.0 / BYTES;
        let of_old = index(&[(1, begun, 0, 5000)]);
        assert_eq!(of_old.reaches(&history, at(begun, 1)), fork);
        let of_both = index(&[(1, begun, 0, 5000), (2, begun, 0, 4000)]);
        assert_eq!(of_both.reaches(&history, at(begun, 1)), at(begun, 4000));
        let files = of_both.files(&history, at(begun, 1), at(begun, 4000));
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].timeline, TimelineId(2));
    }

    /// A restore failed with an object that is missing while somebody archived.
    // hazard: BACKUP-12
    #[tokio::test]
    async fn a_segment_that_is_merged_while_it_is_read_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let repository = Repository::open(directory.path().to_str().unwrap(), None).unwrap();
        let segment = SegmentName {
            timeline: TimelineId(1),
            number: 7,
        };
        let half = BYTES as u32 / 2;
        let mut archiver = LogIndex::new(SIZE);
        for (from, byte) in [(0, 1), (half, 2)] {
            let log = Bytes::from(vec![byte; half as usize]);
            let put = repository.put_log(&mut archiver, segment, from, log);
            put.await.unwrap();
        }
        let listed = repository.log(SIZE).await.unwrap();
        repository.merge(&mut archiver, segment).await.unwrap();
        let read = repository.segment(&listed, segment).await.unwrap();
        assert_eq!((read[0], read[half as usize]), (1, 2));
        // So did `timeline`.
        let log = Log {
            index: listed,
            history: History::of_first(TimelineId(1)),
        };
        let written = repository
            .log_written(&log, at(7, u64::from(half) + 1))
            .await;
        assert!(written.unwrap().is_some());
        let Log { index: listed, .. } = log;
        repository.remove_segment(&archiver, segment).await.unwrap();
        let gone = repository.segment(&listed, segment).await;
        assert!(matches!(gone.unwrap_err(), Error::Missing(_)));
    }

    #[test]
    fn names_that_are_none_are_passed_over() {
        let mut index = LogIndex::new(SIZE);
        for name in [
            "x",
            "x/y",
            "000000010000000000000001/0-1",
            "00000002.history",
        ] {
            index.note(name);
        }
        assert_eq!(index.segments().count(), 0);
        assert_eq!(index.newest_timeline(), Some(TimelineId(2)));
    }
}
