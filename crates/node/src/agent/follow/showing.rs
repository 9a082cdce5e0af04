//! What a standby shows its PostgreSQL of the log that the active announced.
//!
//! ```text
//!   announced (known) ─▶ read ([`super::reading`]) ─▶ at hand ─ unless held ─▶ shown (the replay limit)
//! ```
//!
//! Invariant: names are applied before log that may need them is shown, and both become visible at once.

use volume::journal::JournalPos;
use volume::namespace::Namespace;

use super::Follower;
use super::reading::Arrived;
use crate::agent::error::Result;
use crate::agent::standby::{self, Known};

impl Follower<'_> {
    /// The active announced more.
    pub(super) fn advance(&mut self, to: Known) {
        // A heartbeat may be older than what was announced already.
        self.known = self.known.max(to);
        self.reading.ask(self.known);
    }

    /// What was announced is at hand.
    pub(super) async fn arrived(&mut self, (at_hand, read): Arrived) -> Result<()> {
        if let Some(part) = read? {
            self.standby.tail.apply(&part)?;
        }
        self.at_hand = at_hand;
        self.reading.ask(self.known);
        self.show().await
    }

    /// Shows what is at hand of the log, unless it is held: names and replay limit as one.
    pub(super) async fn show(&mut self) -> Result<()> {
        self.behind = self.mover.is_holding();
        if self.behind {
            return Ok(());
        }
        let Known { end, timeline, .. } = self.at_hand;
        let names = self.standby.tail.namespace().clone();
        if end > self.standby.log.replay_limit().end && self.is_outgrown(&names).await? {
            self.must_reattach("the active's PostgreSQL was started with larger settings");
            return Ok(());
        }
        self.standby.log.show(names, end, timeline).await?;
        self.reload_if_there();
        Ok(())
    }

    /// True if the active's PostgreSQL has more connections, locks and so on than this one: redo would
    /// stand still, and a promotion be refused (N12).
    ///
    /// They change when the active's server starts, at the beginning of an epoch or again, and no log
    /// of it is announced before it serves: so one look before the first of that is shown is enough.
    async fn is_outgrown(&mut self, live: &Namespace) -> Result<bool> {
        if self.capacity_known {
            return Ok(false);
        }
        self.capacity_known = self.serves && self.at_hand.journal >= self.capacity_from;
        let needed = standby::active_capacity(&self.standby.storage, live).await?;
        let own = self.standby.capacity;
        if own.covers(needed) {
            return Ok(false);
        }
        tracing::info!(?needed, ?own, "the active's PostgreSQL has larger settings");
        Ok(true)
    }

    /// The active says that it serves, and how often its PostgreSQL was started: its capacity must be looked at
    /// (again) in the names as of `journal`, or later ones.
    pub(super) fn heard_of_server(&mut self, serves: bool, starts: u32, journal: JournalPos) {
        if (serves && !self.serves) || starts > self.starts {
            self.capacity_known = false;
            self.capacity_from = self.capacity_from.max(journal);
        }
        self.serves |= serves;
        self.starts = self.starts.max(starts);
    }

    /// Has PostgreSQL read its files again, if that is wanted and they are shown.
    fn reload_if_there(&mut self) {
        let there = |at: &mut JournalPos| !self.behind && *at <= self.at_hand.journal;
        if self.reload_at.take_if(there).is_some() {
            self.standby.postgres.reload();
        }
    }

    /// PostgreSQL shall read its files again, as they are at this place of the journal.
    pub(super) fn reload_at(&mut self, journal: JournalPos) {
        self.reload_at = self.reload_at.max(Some(journal));
        self.reload_if_there();
    }
}
