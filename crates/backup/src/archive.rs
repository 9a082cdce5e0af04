//! Copying of WAL into a repository, as it becomes durable.
//!
//! Invariant: only WAL is copied that is durable in the zones and on the volume's timeline. So a takeover leaves no gap in the
//! repository, and the repository has no WAL that the new active lacks.

use volume::lsn::Lsn;

use crate::error::Result;
use crate::log::LogIndex;
use crate::repository::Repository;
use crate::source::{Shown, Source};
use crate::tip::Tip;

/// Result of copying WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// All durable WAL is copied, up to this position.
    To(Lsn),
    /// The zones no longer have the WAL from this position on: only a newer image contains those changes.
    Gap(Lsn),
    /// A timeline is just beginning: its position is known at the next call.
    Later,
}

/// Copies the WAL of one volume into one repository.
pub struct Archiver {
    repository: Repository,
    index: LogIndex,
    /// The beginning of the segment that is copied next.
    at: Lsn,
    /// Timeline and position up to which WAL is copied.
    tip: Option<Tip>,
}

impl Archiver {
    /// An archiver that continues after `from`.
    ///
    /// # Errors
    /// Those of the repository.
    pub async fn begin(source: &Source, repository: &Repository, from: Lsn) -> Result<Archiver> {
        let size = source.segment_size();
        Ok(Archiver {
            index: repository.log(size).await?,
            repository: repository.clone(),
            at: size.start(from),
            tip: None,
        })
    }

    /// Position that is read next. WAL before it is no longer needed.
    pub fn at(&self) -> Lsn {
        self.at
    }

    /// Timeline and position up to which WAL is copied; `None` before the first copy.
    pub fn tip(&self) -> Option<Tip> {
        self.tip
    }

    /// Copies the WAL that is durable.
    ///
    /// # Errors
    /// The claim was given up; those of the zones and of the repository.
    pub async fn copy(&mut self, source: &mut Source) -> Result<Copied> {
        let Some(shown) = source.look().await? else {
            return Ok(Copied::Later);
        };
        let size = source.segment_size();
        self.repository.is_still_there().await?;
        self.copy_histories(source, &shown).await?;
        let mut start = self.at;
        while start < shown.end {
            let next = Lsn(start.0 + size.bytes());
            if self.index.reaches(&shown.history, start) < next {
                let Some(segment) = source.segment_at(&shown, start)? else {
                    return Ok(Copied::Gap(start));
                };
                let from = self.index.has(segment.name);
                let to = segment.end.bytes_since(start);
                if u64::from(from) < to {
                    let log = source.read_log(&segment, u64::from(from)..to).await?;
                    let index = &mut self.index;
                    self.repository
                        .put_log(index, segment.name, from, log)
                        .await?;
                    if from > 0 && to == size.bytes() {
                        self.repository.merge(index, segment.name).await?;
                    }
                }
            }
            if self.index.reaches(&shown.history, start) < next {
                break;
            }
            start = next;
        }
        self.at = start;
        let end = self.index.reaches(&shown.history, start);
        let timeline = shown.history.timeline();
        self.tip = Some(Tip { timeline, end });
        Ok(Copied::To(end))
    }

    async fn copy_histories(&mut self, source: &Source, shown: &Shown) -> Result<()> {
        for entry in shown.history.entries() {
            let is_there = self.index.histories().any(|one| one == entry.timeline);
            if !is_there && let Some(text) = source.history_file(entry.timeline).await? {
                let index = &mut self.index;
                self.repository
                    .put_history(index, entry.timeline, text)
                    .await?;
            }
        }
        Ok(())
    }
}
