//! The shared log as this node's standby gets it: read from the view, up to the replay limit.
//!
//! Invariants: the view shows the names and bytes before the feed is told of them, so PostgreSQL
//! never asks for a file that it cannot see. What is shown is one chain, the history of the newest timeline: a file
//! of an older one ends at its fork, and log of a timeline is shown only when its history file is.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use pgdata::feed::{Identity, LogSource, ReplayLimit, SourceError};
use pgdata::layout::LOG;
use pgdata::segment::{SegmentName, SegmentSize};
use pgdata::timeline::{History, TimelineId};
use tokio::sync::{mpsc, watch};
use volume::error::Error;
use volume::lsn::Lsn;
use volume::namespace::{Directory, Namespace};
use volume::standby::StandbyView;

/// Log files are read whole when they are histories; none is longer than this.
const HISTORY_BYTES_MAX: u32 = 1 << 20;

/// Pieces of log that may wait to be looked at as they pass by.
const PASSING_MAX: usize = 32;

/// A piece of log on its way to the standby, and where it is.
pub(crate) type Passing = (Lsn, Bytes);

pub(crate) struct SharedLog {
    view: Arc<StandbyView>,
    system_identifier: u64,
    segment_size: SegmentSize,
    replay_limit: watch::Sender<ReplayLimit>,
    /// The timeline of the base, which may be without a history file (an imported database).
    base_timeline: TimelineId,
    /// The history of the newest timeline that is shown, once its file was read.
    history: Mutex<Option<History>>,
    /// The log's names as last shown, and the newest timeline among them.
    names: Mutex<(Directory, TimelineId)>,
    /// Who looks at what is handed over.
    passing: Mutex<Option<mpsc::Sender<Passing>>>,
}

impl SharedLog {
    /// Of a view that stands on a base of this timeline.
    pub(crate) fn new(
        view: Arc<StandbyView>,
        system_identifier: u64,
        segment_size: SegmentSize,
        timeline: TimelineId,
    ) -> Arc<SharedLog> {
        let end = view.replay_limit();
        Arc::new(SharedLog {
            view,
            system_identifier,
            segment_size,
            replay_limit: watch::Sender::new(ReplayLimit { timeline, end }),
            base_timeline: timeline,
            history: Mutex::new(None),
            names: Mutex::new((Directory::new(), TimelineId(0))),
            passing: Mutex::new(None),
        })
    }

    /// Shows more of the log: its names, its history and its bytes up to `end`, which is on the timeline `announced`.
    ///
    /// The timeline is the newest that the names tell of, even if only an older one was announced: PostgreSQL looks at
    /// the names as well, and must hear the same from the feed. If the names do not tell of the announced one yet, no
    /// more bytes are shown: where the log forks is not known, and an older timeline's file may have other bytes there.
    pub(crate) async fn show(
        &self,
        names: Namespace,
        end: Lsn,
        announced: TimelineId,
    ) -> volume::error::Result<()> {
        let timeline = self.newest_timeline(&names).max(self.base_timeline);
        let history = self.history_in(&names, timeline).await?;
        let end = match announced <= timeline {
            true => end,
            false => self.replay_limit().end,
        };
        let branches = history.as_ref().map(History::branches);
        let shown = branches.unwrap_or_default();
        let end = end.max(shown.begin());
        self.view.show_history(names, end, shown);
        *self.history.lock() = history;
        self.replay_limit.send_if_modified(|known| {
            let next = ReplayLimit {
                timeline: known.timeline.max(timeline),
                end: known.end.max(end),
            };
            std::mem::replace(known, next) != next
        });
        Ok(())
    }

    /// The history of a timeline by its file; `None` if the names have no such file.
    async fn history_in(
        &self,
        names: &Namespace,
        timeline: TimelineId,
    ) -> volume::error::Result<Option<History>> {
        let known = self.history.lock().clone();
        if known.as_ref().is_some_and(|h| h.timeline() == timeline) {
            return Ok(known);
        }
        let path = format!("{LOG}/{}", timeline.history_file_name());
        let read = self
            .view
            .read_coming_log_file(names.clone(), &path, HISTORY_BYTES_MAX);
        let text = match read.await {
            Ok(text) => text,
            Err(Error::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        let parsed = History::parse(timeline, &String::from_utf8_lossy(&text));
        let damaged = |why| Error::Damaged(format!("{path}: {why}"));
        parsed.map(Some).map_err(damaged)
    }

    /// The newest timeline that has a history file; 0 if none has. Looked up only when names of
    /// log files changed.
    fn newest_timeline(&self, names: &Namespace) -> TimelineId {
        let directory = names.resolve(LOG).and_then(|id| names.directory(id));
        let Ok(directory) = directory else {
            return TimelineId(0);
        };
        let mut known = self.names.lock();
        if !known.0.ptr_eq(directory) {
            let histories = directory.keys().filter_map(|name| {
                TimelineId::from_history_file_name(std::str::from_utf8(name).ok()?)
            });
            let newest = histories.max().unwrap_or(TimelineId(0));
            *known = (directory.clone(), newest);
        }
        known.1
    }

    /// How far the log is shown.
    pub(crate) fn replay_limit(&self) -> ReplayLimit {
        *self.replay_limit.borrow()
    }

    /// Follows how far the log is shown.
    pub(crate) fn watch_replay_limit(&self) -> watch::Receiver<ReplayLimit> {
        self.replay_limit.subscribe()
    }

    /// Looks at what is handed to the standby from now on, instead of who did before. Who is too slow
    /// misses pieces.
    pub(crate) fn pass_by(&self) -> mpsc::Receiver<Passing> {
        let (to, passing) = mpsc::channel(PASSING_MAX);
        *self.passing.lock() = Some(to);
        passing
    }

    /// A timeline with its ancestors.
    async fn history_of(&self, timeline: TimelineId) -> Result<History, SourceError> {
        let known = self.history.lock().clone();
        if let Some(known) = known.filter(|h| h.timeline() == timeline) {
            return Ok(known);
        }
        Ok(match self.history(timeline).await? {
            Some(text) => History::parse(timeline, std::str::from_utf8(&text)?)?,
            None => History::of_first(timeline),
        })
    }

    /// Reads log that is durable and not shown yet: when it is shown it is at hand, and the blocks that it names
    /// are on their way. What cannot be read now is read when it is shown.
    pub(crate) async fn read_ahead(&self, range: Range<Lsn>) {
        let Range { mut start, end } = range;
        let timeline = self.replay_limit().timeline;
        while start < end {
            let len = end.bytes_since(start) as usize;
            let read = self.read_to(timeline, start, len, Some(end)).await;
            let log = read.unwrap_or_default();
            if log.is_empty() {
                return;
            }
            let from = start;
            start.0 += log.len() as u64;
            self.pass(from, log);
        }
    }

    /// Who looks at passing log gets it, if there is room: nobody waits for that.
    fn pass(&self, from: Lsn, log: Bytes) {
        if let Some(passing) = &*self.passing.lock() {
            // Full, or nobody looks any more.
            let _ = passing.try_send((from, log));
        }
    }

    /// Reads log as [`LogSource::read`] does, for others than the feed.
    pub(crate) async fn read_shared(
        &self,
        timeline: TimelineId,
        from: Lsn,
        max_len: usize,
    ) -> Result<Bytes, SourceError> {
        self.read_to(timeline, from, max_len, None).await
    }

    /// The same as if the log were shown up to `durable`.
    async fn read_to(
        &self,
        timeline: TimelineId,
        from: Lsn,
        max_len: usize,
        durable: Option<Lsn>,
    ) -> Result<Bytes, SourceError> {
        let history = self.history_of(timeline).await?;
        let size = self.segment_size;
        let offset = size.offset(from);
        let len = (size.bytes() - offset).min(max_len as u64) as u32;
        for segment in SegmentName::candidates(&history, from, size) {
            let name = segment.file_name(size);
            let path = format!("{LOG}/{name}");
            let read = match durable {
                None => self.view.read_log_file(&path, offset, len).await,
                Some(durable) => {
                    let ahead = self.view.read_log_ahead(&path, offset, len, durable);
                    ahead.await
                }
            };
            match read {
                Err(Error::NotFound) => {}
                other => return Ok(other?),
            }
        }
        Err(format!("no log file holds {from} on timeline {}", timeline.0).into())
    }
}

#[async_trait]
impl LogSource for SharedLog {
    async fn identity(&self) -> Result<Identity, SourceError> {
        Ok(Identity {
            system_identifier: self.system_identifier,
            replay_limit: self.replay_limit(),
        })
    }

    async fn wait_beyond(&self, seen: ReplayLimit) -> ReplayLimit {
        let mut replay_limit = self.replay_limit.subscribe();
        let found = replay_limit.wait_for(|now| *now != seen).await;
        // The sender lives in `self`, so waiting cannot fail.
        found.map_or(seen, |now| *now)
    }

    async fn read(
        &self,
        timeline: TimelineId,
        from: Lsn,
        max_len: usize,
    ) -> Result<Bytes, SourceError> {
        let log = self.read_shared(timeline, from, max_len).await?;
        self.pass(from, log.clone());
        Ok(log)
    }

    async fn history(&self, timeline: TimelineId) -> Result<Option<Bytes>, SourceError> {
        let path = format!("{LOG}/{}", timeline.history_file_name());
        match self.view.read_log_file(&path, 0, HISTORY_BYTES_MAX).await {
            Ok(text) => Ok(Some(text)),
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}
