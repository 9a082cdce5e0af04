//! A standby's slots follow those of the active, a few seconds behind.
//!
//! Invariant: never in the way. What it cannot do is left to a takeover, or to the next attach, which [`Differs`] asks for.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pgdata::layout::SLOTS;
use pgdata::segment::SegmentSize;
use pgdata::slot::{STATE_FILE, Slot};
use pgserver::StartOptions;
use tokio::time::Instant;
use volume::lsn::Lsn;
use volume::namespace::Namespace;
use volume::standby::StandbyView;

use super::compare::Step;
use super::server::{Server, Trouble};
use super::{Copied, oldest_log, stored};
use crate::agent::error::Result;

/// How often it looks whether the active has moved its slots.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Log that a slot passes at once: a statement that takes long is cancelled when it holds redo up.
const PART_BYTES: u64 = 8 << 20;
/// How long slots must differ before the standby attaches again: many live for seconds only.
const DIFFERS_FOR: Duration = Duration::from_secs(10);

/// Why the standby's slots cannot follow those of the active, if they have not been able to for long.
pub(crate) type Differs = Arc<Mutex<Option<String>>>;

pub(crate) struct Keeper {
    view: Arc<StandbyView>,
    copied: Copied,
    server: Server,
    segment_size: SegmentSize,
    differs: Differs,
    /// Files of states that were read last, and what they said.
    seen: (Vec<u64>, Vec<Slot>),
    since: Option<Instant>,
}

impl Keeper {
    /// For a standby that began with the `copied` slots.
    pub(crate) fn new(
        view: Arc<StandbyView>,
        copied: Copied,
        postgres: &StartOptions,
        segment_size: SegmentSize,
        differs: Differs,
    ) -> Keeper {
        Keeper {
            view,
            copied,
            server: Server::new(postgres),
            segment_size,
            differs,
            seen: (Vec::new(), Vec::new()),
            since: None,
        }
    }

    /// Follows until it is aborted.
    pub(crate) async fn run(mut self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match self.look().await {
                Ok(Ok(())) => self.since = None,
                Ok(Err(Trouble::Differs(why))) => self.note(why),
                Ok(Err(Trouble::Postgres(error))) => {
                    tracing::debug!(%error, "the slots of this standby do not follow this time");
                }
                Err(error) => {
                    tracing::debug!(%error, "the active's slots were not read this time");
                }
            }
        }
    }

    fn note(&mut self, why: String) {
        let since = *self.since.get_or_insert_with(Instant::now);
        tracing::debug!(why, "the slots of this standby are not those of the active");
        if since.elapsed() >= DIFFERS_FOR {
            *self.differs.lock() = Some(why);
        }
    }

    /// Looks once.
    async fn look(&mut self) -> Result<Result<(), Trouble>> {
        let names = self.view.live();
        let files = files(&names);
        if files.is_empty() && self.copied.lock().is_empty() {
            return Ok(Ok(()));
        }
        if files != self.seen.0 {
            let stored = stored(self.view.storage(), &names).await?;
            let slots = stored.into_iter().map(|one| one.slot);
            self.seen = (files, slots.collect());
        }
        let oldest = oldest_log(&names, self.segment_size);
        Ok(self.follow(oldest).await)
    }

    async fn follow(&mut self, oldest: Lsn) -> Result<(), Trouble> {
        let copied = self.copied.lock().clone();
        let plan = self.server.plan(&self.seen.1, &copied, oldest).await?;
        let mut moved = Ok(());
        // One that cannot be moved keeps no other.
        for step in plan.steps {
            for part in step.parts(PART_BYTES) {
                if let Err(error) = self.server.take(&part).await {
                    moved = Err(error.into());
                    break;
                }
                // Another one of this name is the standby's own.
                if let Step::Drop { name } = &part {
                    self.copied.lock().remove(name);
                }
            }
        }
        match plan.differs {
            Some(why) => Err(Trouble::Differs(why)),
            None => moved,
        }
    }
}

/// The files with the states of slots: each change of a state makes a new one.
pub(super) fn files(names: &Namespace) -> Vec<u64> {
    let Ok(slots) = names.resolve(SLOTS).and_then(|id| names.directory(id)) else {
        return Vec::new();
    };
    let state = |id| names.lookup(id, STATE_FILE.as_bytes()).ok();
    let files = slots.values().filter_map(|id| state(*id));
    files.map(|file| file.0).collect()
}
