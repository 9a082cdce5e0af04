//! A member that is not what the log says: what becomes of it, and of whoever still writes there.
//!
//! Invariant: nothing is dropped here. A difference waits for an operator, and what is replaced is kept.

use std::sync::atomic::Ordering;

use super::hub::{Hub, READ_AGAIN};
use super::level::Surplus;
use super::rows;
use super::state;
use super::wire::Postgres;
use crate::core::manager::{Life, Manager};
use crate::core::record::Number;
use crate::core::rows::Lsn;

impl Hub {
    /// Ends all that clients have begun at the member, which serves nobody any more: their commits would wait for ever. Not once it serves
    /// again: the sessions are those of the next epoch then.
    pub(super) async fn end_writers(&self) {
        let life = self.look(Manager::life);
        let is_due = || {
            let stands = self.look(|manager| manager.life() == life && !manager.role().serves());
            stands && self.capture.began.lock().is_none()
        };
        // Nobody else does it, and the member serves nobody before that.
        while is_due() && !self.end_writers_of(life).await {
            tokio::time::sleep(READ_AGAIN).await;
        }
    }

    /// The same once, in a life of the member's server; false if that could not be done.
    async fn end_writers_of(&self, life: Life) -> bool {
        let _no_client_is_let_in = self.doorway.lock().await;
        let serves_nobody = || !self.role().serves();
        let ended = async {
            let mut session = Postgres::connect(&self.member.target, "understudy mirror").await?;
            rows::end_writers(&mut session, &self.member.managers, serves_nobody).await
        };
        match ended.await {
            Ok(began) => self.act(|manager, _| {
                if manager.life() == life && !manager.role().serves() {
                    manager.own_ends(began);
                    *self.capture.began.lock() = Some(began);
                }
                true
            }),
            Err(error) => {
                tracing::debug!(%error, "clients' sessions at the member cannot be ended now");
                false
            }
        }
    }

    /// The member has committed something else than what the log has.
    pub fn differs(&self, life: Life, number: Number, why: String) {
        let why = match number {
            Number(0) => why,
            number => format!("transaction {number}: {why}"),
        };
        tracing::error!(why, "the member differs from the log");
        self.difference.lock().get_or_insert(why);
        self.act(|manager, out| manager.differs(life, number, out));
    }

    /// The member has committed what the log does not have: it was primary, and lost its epoch before that was logged. Nobody was told
    /// that it has happened. They are undone, or the member is replaced.
    pub fn has_surplus(&self, end: Lsn, surplus: Option<Surplus>) {
        tracing::warn!(%end, "the member has commits that the log does not have");
        *self.capture.surplus.lock() = surplus.filter(|surplus| !surplus.commits.is_empty());
        self.replaces.store(true, Ordering::Release);
        self.act(|manager, out| manager.has_surplus(out));
    }

    /// The member's slot has lost commits: nobody can say any more what it has committed. It serves nobody, and is replaced.
    pub fn has_no_slot(&self) {
        const WHY: &str = "the member has no replication slot any more: its commits since then are not known, and it is replaced";
        tracing::error!(WHY);
        *self.hindrance.lock() = Some(WHY.to_owned());
        self.replaces.store(true, Ordering::Release);
        self.act(|manager, out| manager.has_surplus(out));
    }

    /// Remembers in the member that it differs.
    pub(super) async fn mark(&self) {
        let marked = async {
            let mut session = Postgres::connect(&self.member.target, "understudy mirror").await?;
            let difference = self.difference.lock().clone().unwrap_or_default();
            state::mark(&mut session, &difference).await
        };
        if let Err(error) = marked.await {
            tracing::error!(%error, "the member cannot be marked as one that differs");
        }
    }
}
