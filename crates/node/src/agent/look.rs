//! Looking around before a life begins: does somebody serve, or must this node?
//!
//! Nobody is asked; the registry is watched (CAC-DB, appendix A). A node becomes the active only if
//! no heartbeat moves for Tmax and no standby is alive that would do it faster. Being wrong is
//! safe: whoever owns the higher epoch wins, the other one follows.

use std::collections::HashMap;
use std::sync::Arc;

use dax::ids::{Epoch, NodeName};
use dax::storage::Storage;
use tokio::time::{Instant, sleep};

use super::context::Context;
use super::error::{AgentError, Result};
use crate::postgres::{ExitReport, PostgresError};
use crate::records::{Heartbeat, Member, MemberState, Record, Role};

/// How much longer than Tmax a living standby is given to take over.
const STANDBY_PATIENCE: u32 = 3;

/// What a node remembers between its lives.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// Redo failed at the last attach: the next one starts from the seal before the last (N7).
    redo_failed: bool,
}

/// Who serves.
#[derive(Debug)]
pub(crate) enum Seen {
    /// The one whose heartbeat moves.
    Active(Box<Heartbeat>),
    /// Nobody.
    Nobody {
        /// The last one who did.
        previous: Option<NodeName>,
        /// The highest epoch when the look began.
        epoch: Epoch,
    },
}

impl Look {
    pub(crate) fn redo_failed(&self) -> bool {
        self.redo_failed
    }

    /// A standby's PostgreSQL ended.
    pub(crate) fn ended(&mut self, report: &ExitReport) {
        if report.redo_failed() {
            tracing::error!("redo failed: attaching at the seal before the last one next time");
            self.redo_failed = true;
        }
    }

    /// A life failed: perhaps because redo did, on the way to serving.
    pub(crate) fn failed(&mut self, error: &AgentError) {
        if let AgentError::Postgres(PostgresError::Exited(report)) = error {
            self.ended(report);
        }
    }

    /// Redo worked: the node served, or its base moved on from where it attached.
    pub(crate) fn redo_worked(&mut self) {
        self.redo_failed = false;
    }

    /// Watches the registry until it is clear who serves.
    pub(crate) async fn around(
        &self,
        context: &Context,
        storage: &Arc<dyn Storage>,
    ) -> Result<Seen> {
        let began = Instant::now();
        let epoch = storage.accepted_epoch().await?.epoch;
        let first = Heartbeat::load(storage.as_ref()).await?;
        let Some(first) = first else {
            return Ok(Seen::Nobody {
                previous: None,
                epoch,
            });
        };
        let mut standbys = Standbys::default();
        standbys.alive(context, storage).await?;
        loop {
            // What operators say of them may become known meanwhile.
            let timing = first.patience(context.heartbeat());
            sleep(timing.poll).await;
            let now = Heartbeat::load(storage.as_ref())
                .await?
                .unwrap_or_else(|| first.clone());
            let moved = (now.epoch, now.counter) > (first.epoch, first.counter);
            let mine = now.node == context.me.node && now.epoch == first.epoch;
            if moved && !now.state.is_vacant() && !mine {
                return Ok(Seen::Active(Box::new(now)));
            }
            let standby_alive = standbys.alive(context, storage).await?;
            let waited = began.elapsed();
            // Our own earlier life does not beat any more.
            let quiet = mine || now.state.is_vacant() || waited >= timing.timeout;
            // Two of their reports are awaited before nobody counts as alive.
            let looked = waited >= STANDBY_REPORTS;
            let given_up = waited >= timing.timeout * STANDBY_PATIENCE + STANDBY_REPORTS;
            if quiet && looked && (!standby_alive || given_up) {
                return Ok(Seen::Nobody {
                    previous: Some(now.node),
                    epoch,
                });
            }
        }
    }
}

/// A living standby writes its record at least this often, twice over.
const STANDBY_REPORTS: std::time::Duration = std::time::Duration::from_millis(1200);

/// Which standbys' records move.
#[derive(Default)]
struct Standbys {
    seen: HashMap<NodeName, (String, u64)>,
    alive: bool,
}

impl Standbys {
    /// Whether a standby that may take over was seen to be alive.
    async fn alive(&mut self, context: &Context, storage: &Arc<dyn Storage>) -> Result<bool> {
        for member in Member::list(storage.as_ref()).await? {
            let ready = matches!(member.state, MemberState::Warm | MemberState::CatchingUp);
            let other = member.name != context.me.node;
            if member.role != Role::Standby || !ready || !other || member.tags.nofailover {
                continue;
            }
            let mark = (member.incarnation.0, member.updated);
            let before = self.seen.insert(member.name, mark.clone());
            self.alive |= before.is_some_and(|before| before != mark);
        }
        Ok(self.alive)
    }
}
