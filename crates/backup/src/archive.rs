//! Copying the log into a repository, as it becomes durable.
//!
//! Invariant: what is copied is durable in the zones and on the history of the volume, so a takeover neither leaves a gap nor
//! adds what the new active does not have.

use volume::lsn::Lsn;

use crate::error::Result;
use crate::log::LogIndex;
use crate::repository::Repository;
use crate::source::{Shown, Source};

/// How far the log is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// All of it up to here, which is all that is durable.
    To(Lsn),
    /// The zones do not have the log from here on any more: only a newer image has what was there.
    Gap(Lsn),
    /// A timeline begins just now: the next look shows where.
    Later,
}

/// See the module.
pub struct Archiver {
    repository: Repository,
    index: LogIndex,
    /// The beginning of the segment that is copied next.
    at: Lsn,
}

impl Archiver {
    /// Goes on behind `from`.
    ///
    /// # Errors
    /// Those of the repository.
    pub async fn begin(source: &Source, repository: &Repository, from: Lsn) -> Result<Archiver> {
        let size = source.segment_size();
        Ok(Archiver {
            index: repository.log(size).await?,
            repository: repository.clone(),
            at: size.start(from),
        })
    }

    /// Where it reads next: the log before that is not needed any more.
    pub fn at(&self) -> Lsn {
        self.at
    }

    /// Copies what is durable.
    ///
    /// # Errors
    /// The claim was given up; those of the zones and of the repository.
    pub async fn copy(&mut self, source: &mut Source) -> Result<Copied> {
        let Some(shown) = source.look().await? else {
            return Ok(Copied::Later);
        };
        let size = source.segment_size();
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
        Ok(Copied::To(self.index.reaches(&shown.history, start)))
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
