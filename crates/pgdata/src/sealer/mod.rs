//! What happens on the active around a checkpoint, and how far its log is durable.
//!
//! The [`Sealer`] watches the writes of the active's view. It decodes the log as it is written, so
//! it knows the end of the last complete record; it knows which part of that was synced (the
//! replay limit of standbys); and when PostgreSQL completes a checkpoint by rewriting `global/pg_control`
//! it holds that write, seals the open generation, and lets the write go on (CAC-DB's semi-fuzzy
//! checkpoint, 4.5.2, made exact).
//!
//! Invariants: [`Sealer::synced`] never exceeds what k replicas hold; a seal is made only in the
//! states that may be sealed (N11), its W is read after the cut (N10), and every page that a bulk
//! writer logged whole below its redo point is in its image (N2), or there is no seal. Where the log is
//! *ordered* ([`volume::log_syncs`]), its syncs are answered before they are durable: then W is what was answered, and
//! neither a seal nor a control file is written before the log is durable up to there.
//!
//! ```text
//!   pg_control written ──▶ is the answered log durable? ──not yet──▶ wait
//!                              │ yes
//!                          may it seal? ──no──▶ write it durably
//!                              │ yes
//!                     bulk pages missing? ──still, after a while──▶ write it durably, no seal
//!                              │ none
//!                      cut ─▶ read W ─▶ log durable up to W ─▶ commit the seal ─▶ write it durably
//! ```

mod bulk;
mod ends;
mod log;
#[cfg(test)]
mod ordered_test;
mod shown;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use dax::ids::{Epoch, Generation};
use parking_lot::Mutex;
use tokio::sync::watch;
use volume::active::{ActiveView, WriteObserver};
use volume::error::{Error, Result};
use volume::layout::Layout;
use volume::lsn::Lsn;
use volume::namespace::Namespace;
use volume::recent_log::RecentLog;
use volume::view::Timestamp;

use self::bulk::BulkPages;
use self::log::Log;
use crate::control::{ClusterState, ControlFile};
use crate::layout::PostgresLayout;
use crate::page;
use crate::relation::{Relation, RelationBlock, RelationPath};
use crate::timeline::TimelineId;
use crate::wal::{BlockRef, Detail, Record};
use crate::xid::Snapshot;

/// How often a checkpoint looks again for bulk pages that are not in the image yet, and how many
/// times, before it passes without a seal.
const BULK_PAUSE: Duration = Duration::from_millis(50);
const BULK_ATTEMPTS: u32 = 20;

/// How far the log is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncedLog {
    /// The end of the last complete record that k replicas hold.
    pub end: Lsn,
    /// The timeline that the log is on.
    pub timeline: TimelineId,
}

/// Watches the active's writes. See the module.
pub struct Sealer {
    layout: Arc<PostgresLayout>,
    log: Mutex<Log>,
    recent: Arc<RecentLog>,
    synced: watch::Sender<SyncedLog>,
    /// True if commits wait, although they are durable.
    held: watch::Sender<bool>,
    /// True if a sync of the log failed.
    failed: watch::Sender<bool>,
    sealed_checkpoint: Mutex<Option<Lsn>>,
    blocks_per_segment: u32,
    started: Instant,
}

impl Sealer {
    /// Starts to watch a log whose last complete record ends at `end` on `timeline`, all of it
    /// durable. `sealed_checkpoint` is the checkpoint of the last seal, if there is one.
    pub fn new(
        layout: Arc<PostgresLayout>,
        end: Lsn,
        timeline: TimelineId,
        sealed_checkpoint: Option<Lsn>,
        blocks_per_segment: u32,
        epoch: Epoch,
    ) -> Arc<Sealer> {
        let size = layout.segment_size();
        Arc::new(Sealer {
            layout,
            log: Mutex::new(Log::new(size, end)),
            recent: Arc::new(RecentLog::new(epoch)),
            synced: watch::Sender::new(SyncedLog { end, timeline }),
            held: watch::Sender::new(false),
            failed: watch::Sender::new(false),
            sealed_checkpoint: Mutex::new(sealed_checkpoint),
            blocks_per_segment,
            started: Instant::now(),
        })
    }

    /// Follows how far the log is durable; what standbys may see.
    pub fn synced(&self) -> watch::Receiver<SyncedLog> {
        self.synced.subscribe()
    }

    /// The end of the last complete record that is durable: every commit is below that PostgreSQL has acknowledged after a
    /// wait, which is not so with `synchronous_commit = off`, nor with `local` where the log is ordered. `None` if the log
    /// was not followed to what was written last.
    pub fn position(&self) -> Option<Lsn> {
        let log = self.log.lock();
        log.follower
            .starved()
            .is_none()
            .then(|| self.synced.borrow().end)
    }

    /// Up to where in the log the active's PostgreSQL itself shows all commits to whoever asks it from now on, for all that is
    /// known; no more than `durable`. Standbys may show more.
    pub fn shown(&self, durable: Lsn) -> Lsn {
        self.log.lock().unshown.shown(durable)
    }

    /// So it has shown them, at some moment since the server of this log was started.
    pub fn looked(&self, snapshot: &Snapshot) {
        self.log.lock().unshown.looked(snapshot);
    }

    /// True if many commits have gathered of which it is not known whether they are shown: somebody should look.
    pub fn wants_look(&self) -> bool {
        self.log.lock().unshown.wants_look()
    }

    /// The server has stopped: the next one on this log shows all of it.
    pub fn server_stopped(&self) {
        self.log.lock().unshown.stopped();
    }

    /// What was written of the log last, synced or not.
    pub fn recent_log(&self) -> &Arc<RecentLog> {
        &self.recent
    }

    /// True if syncs of segments are answered before they are durable from now on. Only where commits wait for
    /// [`synced`](Self::synced) in another way, and nobody else is sent what is synced. Strict at first.
    ///
    /// To be strict again is not to be done with what was answered early: [`answered_is_durable`](Self::answered_is_durable)
    /// waits for that.
    pub fn order_log(&self, ordered: bool) {
        self.log.lock().is_ordered = ordered;
    }

    /// True if it is ordered now.
    pub fn is_ordered(&self) -> bool {
        self.log.lock().is_ordered
    }

    /// Where the log cannot be followed now, although more of it was synced. If that lasts, nothing behind is ever durable
    /// for anybody, and no checkpoint is sealed.
    pub fn stuck(&self) -> Option<Lsn> {
        self.log.lock().stuck()
    }

    /// Waits until all log is durable whose syncs were answered before the call.
    ///
    /// # Errors
    /// `Fenced`, or `Invalid` if a sync failed.
    pub async fn answered_is_durable(&self, view: &ActiveView) -> Result<()> {
        let answered = self.log.lock().syncs.answered();
        self.durable_up_to(view, answered).await
    }

    async fn durable_up_to(&self, view: &ActiveView, end: Lsn) -> Result<()> {
        let (mut synced, mut failed) = (self.synced.subscribe(), self.failed.subscribe());
        tokio::select! {
            biased;
            // The senders live in `self`, so waiting cannot fail.
            _ = synced.wait_for(|synced| synced.end >= end) => Ok(()),
            _ = failed.wait_for(|failed| *failed) => {
                view.storage().next_version()?;
                Err(Error::Invalid("a sync of the log failed"))
            }
        }
    }

    /// The checkpoint of the last seal, if there is one.
    pub fn sealed_checkpoint(&self) -> Option<Lsn> {
        *self.sealed_checkpoint.lock()
    }

    /// True if commits are held.
    pub fn watch_held(&self) -> watch::Receiver<bool> {
        self.held.subscribe()
    }

    /// Holds commits that are durable, so that slow standbys come nearer (CAC-DB 4.4.2), or lets them go.
    pub fn hold_commits(&self, hold: bool) {
        self.held
            .send_if_modified(|held| std::mem::replace(held, hold) != hold);
    }

    /// Seals a database that was shut down and is not running: what `init` and a clean stop leave
    /// behind, so that nothing follows the last seal and the next start is direct (N1).
    ///
    /// # Errors
    /// `Invalid` if the control file does not say that the database was shut down.
    pub async fn seal_shutdown(&self, view: &ActiveView, control: &[u8]) -> Result<()> {
        let parsed = parse(control)?;
        if parsed.state != ClusterState::ShutDown {
            return Err(Error::Invalid("the database was not shut down cleanly"));
        }
        self.seal(view, &parsed, control).await
    }

    async fn seal(&self, view: &ActiveView, parsed: &ControlFile, control: &[u8]) -> Result<()> {
        let cut = view.cut().await?;
        // Pages of the image may reflect log that was answered and is not durable yet.
        let end = self.log.lock().syncs.answered();
        if end <= parsed.checkpoint {
            // With too low a W standbys would show what they have not replayed.
            tracing::warn!(%end, checkpoint = %parsed.checkpoint, "not sealed: the log was not followed to its checkpoint; restart this node");
            return Ok(());
        }
        self.durable_up_to(view, end).await?;
        view.commit_seal(cut, parsed.redo, end, control.to_vec())
            .await?;
        *self.sealed_checkpoint.lock() = Some(parsed.checkpoint);
        self.log.lock().pages.sealed(parsed.redo);
        tracing::debug!(redo = %parsed.redo, %end, state = ?parsed.state, "sealed");
        Ok(())
    }

    /// Waits a while for pages that bulk writers logged whole below `redo` to reach the image.
    async fn bulk_pages_settled(&self, view: &ActiveView, redo: Lsn) -> bool {
        for attempt in 0..BULK_ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(BULK_PAUSE).await;
            }
            let namespace = view.namespace();
            let exists = |page: &RelationBlock| self.is_in(&namespace, page);
            match self
                .log
                .lock()
                .pages
                .missing(redo, self.started.elapsed(), exists)
            {
                Some(missing) if missing.is_empty() => return true,
                Some(_) => {}
                None => {
                    tracing::warn!(
                        "more pages were logged whole in a minute than can be followed; \
                         a checkpoint that comes a minute after the last of them is sealed"
                    );
                    return false;
                }
            }
        }
        false
    }

    fn is_in(&self, namespace: &Namespace, page: &RelationBlock) -> bool {
        let Some((path, block)) = page.location(self.blocks_per_segment) else {
            return false;
        };
        let file = namespace.resolve(&path).and_then(|id| namespace.inode(id));
        file.is_ok_and(|inode| inode.size > block * page::PAGE_BYTES as u64)
    }

    fn page_of(&self, path: &RelationPath, index: u64) -> Option<RelationBlock> {
        let RelationPath {
            tablespace,
            database,
            file,
        } = *path;
        let block = path.block(index, self.blocks_per_segment)?;
        let relation = Relation {
            tablespace,
            database,
            number: file.number,
        };
        Some(RelationBlock {
            relation,
            fork: file.fork,
            block,
        })
    }

    fn note(pages: &mut BulkPages, record: &Record, at: Duration) {
        if !matches!(record.detail, Detail::FullPages) {
            return;
        }
        for BlockRef {
            relation,
            fork,
            block,
            ..
        } in record.blocks.iter().copied()
        {
            pages.logged(
                RelationBlock {
                    relation,
                    fork,
                    block,
                },
                record.end,
                at,
            );
        }
    }
}

fn parse(control: &[u8]) -> Result<ControlFile> {
    ControlFile::parse(control).map_err(|e| Error::Damaged(format!("global/pg_control: {e}")))
}

#[async_trait]
impl WriteObserver for Sealer {
    fn log_written(&self, path: &str, offset: u64, data: &Bytes) {
        let Some(range) = self.layout.log_range(path) else {
            return;
        };
        let mut log = self.log.lock();
        let Log {
            follower,
            ends,
            pages,
            unshown,
            written,
            ..
        } = &mut *log;
        let at = Lsn(range.start.0 + offset);
        *written = Lsn(at.0 + data.len() as u64);
        self.recent.put(at, data);
        let now = self.started.elapsed();
        follower.feed(at, data, &mut |record| {
            ends.record(record.end);
            if let Detail::Commit { xid } = record.detail {
                unshown.committed(record.end, xid);
            }
            Sealer::note(pages, record, now);
        });
    }

    fn log_sync_started(&self, path: &str) -> u64 {
        let Some(range) = self.layout.log_range(path) else {
            return 0;
        };
        let mut log = self.log.lock();
        log.sync_begins();
        // A sync of a segment that was made ahead says nothing of the log before it.
        let end = log.ends.up_to(range.end).filter(|end| *end > range.start);
        end.map_or(0, |end| log.syncs.begin(end))
    }

    fn may_answer_early(&self, token: u64) -> bool {
        token != 0 && (self.log.lock()).answer_early(self.layout.segment_size(), token)
    }

    fn log_synced(&self, _path: &str, token: u64) {
        let (durable, timeline) = {
            let mut log = self.log.lock();
            log.sync_done(token);
            (log.syncs.durable(), log.follower.timeline())
        };
        self.synced.send_if_modified(|synced| {
            let grew = durable > synced.end;
            if grew {
                synced.end = durable;
                synced.timeline = synced.timeline.max(timeline);
            }
            grew
        });
    }

    fn log_sync_failed(&self, _path: &str, token: u64) {
        let mut log = self.log.lock();
        log.syncs.failed(token);
        self.failed.send_replace(log.syncs.has_failed());
    }

    fn log_has_failed(&self) -> bool {
        *self.failed.borrow()
    }

    async fn before_commits_return(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.held.subscribe().wait_for(|held| !held).await;
    }

    fn data_written(&self, path: &str, offset: u64, data: &Bytes, _generation: Generation) {
        const PAGE: u64 = page::PAGE_BYTES as u64;
        let Some(relation) = RelationPath::parse(path) else {
            return;
        };
        if !offset.is_multiple_of(PAGE) {
            return;
        }
        let mut log = self.log.lock();
        let seen = log.follower.end();
        for (index, contents) in data.chunks_exact(page::PAGE_BYTES).enumerate() {
            let index = offset / PAGE + index as u64;
            if let Some(page) = self.page_of(&relation, index) {
                log.pages.written(page, page::lsn(contents), seen);
            }
        }
    }

    async fn control_written(&self, view: &ActiveView, data: Bytes, now: Timestamp) -> Result<()> {
        let parsed = parse(&data)?;
        // Its positions are in log that was answered.
        self.answered_is_durable(view).await?;
        let sealed = *self.sealed_checkpoint.lock();
        if may_seal(sealed, &parsed) {
            if self.bulk_pages_settled(view, parsed.redo).await {
                self.seal(view, &parsed, &data).await?;
            } else {
                tracing::info!(
                    redo = %parsed.redo,
                    "checkpoint not sealed: a bulk writer's pages are not all written yet; \
                     the next checkpoint seals"
                );
            }
        }
        view.write_control(data, now).await
    }
}

/// True if a control file with these contents ends a checkpoint that may be sealed, if the last seal
/// was of the checkpoint `sealed` (N11).
fn may_seal(sealed: Option<Lsn>, parsed: &ControlFile) -> bool {
    let moved = sealed != Some(parsed.checkpoint);
    // At the end of recovery the state is in production already, but the point up to which
    // recovery must go is still set: an attach would believe itself consistent there, before W.
    // The checkpoint that follows a promotion clears it.
    let recovering = parsed.min_recovery_point > Lsn::ZERO;
    let completed = moved && !recovering;
    parsed.state.seals() && (completed || parsed.state == ClusterState::ShutDown)
}

#[cfg(test)]
mod tests {
    use super::*;

    // hazard: N11
    #[test]
    fn recovery_never_seals_and_a_shutdown_always_does() {
        let real = &include_bytes!("../../tests/control/16.pg_control")[..];
        let mut control = ControlFile::parse(real).unwrap();
        control.min_recovery_point = Lsn::ZERO;
        let before = Some(Lsn(control.checkpoint.0 - 8));
        let same = Some(control.checkpoint);
        let mut seals = |state, sealed, recovering| {
            control.state = state;
            control.min_recovery_point = Lsn(if recovering { 8 } else { 0 });
            may_seal(sealed, &control)
        };
        assert!(seals(ClusterState::InProduction, before, false));
        assert!(seals(ClusterState::InProduction, None, false));
        // Only a checkpoint does, and not the one that is sealed already.
        assert!(!seals(ClusterState::InProduction, same, false));
        // The promotion's own writes, before its first checkpoint.
        assert!(!seals(ClusterState::InProduction, before, true));
        // A restartpoint moves the checkpoint too.
        assert!(!seals(ClusterState::InArchiveRecovery, before, false));
        assert!(!seals(ClusterState::InCrashRecovery, before, false));
        assert!(!seals(ClusterState::ShuttingDown, before, false));
        assert!(!seals(ClusterState::ShutDownInRecovery, before, false));
        // Programs that work on a stopped cluster rewrite it without a new checkpoint.
        assert!(seals(ClusterState::ShutDown, same, false));
    }
}
