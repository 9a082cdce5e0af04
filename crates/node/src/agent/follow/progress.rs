//! How far a standby is: told to the machine, the active, the node's status, and to the mover of the base.

use std::sync::Arc;

use coordination::channel::{Progress, Subscription};
use pgdata::feed::Feedback;
use serde_json::json;
use volume::lsn::Lsn;
use volume::seal;

use super::Follower;
use crate::agent::error::Result;
use crate::agent::prefetch::Prefetcher;
use crate::machine::Event;

/// A standby this close to the end of the log is warm.
const WARM_LAG_BYTES: u64 = 16 << 20;

impl Follower<'_> {
    /// Begins anew if this standby is so far behind that this is better.
    pub(super) async fn judge_lag(&mut self) {
        if let Some(why) = self.why_skip().await {
            tracing::warn!(why, "too far behind: reattaching at the newest seal");
            self.context.skips.skipped(&why);
            self.tell(Event::MustReattach(why));
        }
    }

    async fn why_skip(&mut self) -> Option<String> {
        let now = self.context.now();
        // Before PostgreSQL reports any progress, what it reads tells.
        let (redo, _) = *self.standby.view.watch_redo().borrow();
        self.lag
            .progressed(self.applied.max(redo), self.known.end, now);
        if self.looking.is_none() && self.lag.wants_look(now) {
            let storage = Arc::clone(&self.standby.storage);
            let look = async move { seal::load_seals(&storage).await };
            self.looking = Some(tokio::spawn(look));
        }
        let looked = self.looking.take_if(|looking| looking.is_finished())?;
        let seals = looked.await.ok()?.ok()?;
        let ours = seals.iter().rev();
        let newest = ours
            .into_iter()
            .find(|s| s.generation.epoch == self.epoch)?;
        self.lag.why_skip(newest.redo)
    }

    pub(super) async fn progressed(
        &mut self,
        feedback: Option<Feedback>,
        subscription: &Subscription,
    ) -> Result<()> {
        if let Some(feedback) = feedback {
            self.applied = self.applied.max(feedback.apply);
        }
        let progress = self.progress();
        subscription.progress(progress);
        let asks = self.mover.progressed(progress.applied, self.context.now());
        self.heed(asks).await
    }

    fn progress(&self) -> Progress {
        let replay_limit = self.standby.log.replay_limit().end;
        Progress {
            received: self.standby.feed.sent(),
            applied: self.applied,
            horizon: replay_limit,
            warm: self.is_warm(),
            needed: self.standby.feed.needed(),
            started: self.server_watch.started(),
        }
    }

    fn is_warm(&self) -> bool {
        self.applied > Lsn::ZERO && self.known.end.bytes_since(self.applied) <= WARM_LAG_BYTES
    }

    pub(super) fn report(&mut self, subscription: &Subscription) {
        self.standby.feed.request_reply();
        let progress = self.progress();
        subscription.progress(progress);
        self.tell(Event::Level(progress.warm));
        if self.standby.view.base_seal().generation > self.attached_at {
            self.tell(Event::RedoWorked);
        }
        let reached = &self.context.reached;
        reached.set(progress.received, progress.applied);
        self.context.board.report(json!({
            "node": self.context.me.node,
            "epoch": self.epoch,
            "active": self.active,
            "timeline": self.known.timeline.0,
            "received": progress.received,
            "applied": progress.applied,
            "horizon": progress.horizon,
            // PostgreSQL reports no progress before it has connected to the feed.
            "redo": self.standby.view.watch_redo().borrow().0,
            "held_blocks": self.standby.view.held_blocks(),
            "lag_bytes": self.known.end.bytes_since(progress.applied),
            "overlay": self.standby.view.stats(),
            "reads": self.standby.view.reads(),
            "base": self.mover.report(),
            "warmth": *self.warmth.lock(),
            "skips": self.context.skips.report(),
            "prefetch": self.standby.prefetcher.as_ref().map(Prefetcher::report),
            "server": *self.context.facts.lock(),
            "control": self.context.control_report(),
            "forms": self.context.forms_report(),
            "configured": self.configured,
        }));
    }
}
