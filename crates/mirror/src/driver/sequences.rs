//! Values of sequences: the one thing that a transaction changes and its rows do not say.
//!
//! Invariant: what is logged of a sequence is at or beyond every value that a logged transaction has taken of it. A sequence that a
//! transaction has locked, or waits to lock, is not asked: hardly anybody else takes values of it, and it is asked soon after.

use std::collections::BTreeMap;
use std::time::Duration;

use super::wire::{Postgres, WireError};

/// Values ahead of the last one that are logged of a sequence, so that most values need not be.
const AHEAD: i64 = 32;
/// Attempts while somebody locks one at that moment.
const ATTEMPTS: u32 = 20;
const TRY_AGAIN: Duration = Duration::from_millis(5);
/// A lock was not free in time.
const LOCKED: &str = "55P03";

const QUESTION: &str = "SET lock_timeout = '50ms'; WITH free AS MATERIALIZED ( \
    SELECT s.*, pg_catalog.format('%I.%I', n.nspname, c.relname) AS name FROM pg_catalog.pg_sequence s \
      JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE c.relpersistence <> 't' AND NOT EXISTS (SELECT FROM pg_catalog.pg_locks l WHERE l.relation = s.seqrelid \
      AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'))) \
    SELECT name, pg_catalog.pg_sequence_last_value(seqrelid), seqincrement, seqmin, seqmax FROM free";

/// Sequences as they were logged: the last value, and the one that was logged.
#[derive(Debug, Default)]
pub struct Sequences(BTreeMap<String, (i64, i64)>);

impl Sequences {
    /// Standbys may have sequences elsewhere than was logged: they are logged again.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    /// Sequences that are elsewhere than what was logged of them, and what is to be logged: ahead, as PostgreSQL itself does.
    pub async fn advanced(
        &mut self,
        session: &mut Postgres,
    ) -> Result<Vec<(String, i64)>, WireError> {
        let asked = ask(session).await?;
        let values = asked.into_iter().filter_map(|row| {
            let mut row = row.into_iter().flatten();
            let name = row.next()?;
            let mut next = || row.next()?.parse::<i64>().ok();
            Some((name, next()?, next()?, (next()?, next()?)))
        });
        let advanced = values.filter_map(|(name, value, increment, (least, most))| {
            let is_known = self.0.get(&name).is_some_and(|(from, to)| {
                // Between what was told last and what it stands for.
                (*from.min(to)..=*from.max(to)).contains(&value)
            });
            if is_known {
                return None;
            }
            let ahead = value.saturating_add(increment.saturating_mul(AHEAD));
            let ahead = ahead.clamp(least, most);
            self.0.insert(name.clone(), (value, ahead));
            Some((name, ahead))
        });
        Ok(advanced.collect())
    }
}

async fn ask(session: &mut Postgres) -> Result<Vec<Vec<Option<String>>>, WireError> {
    for _ in 0..ATTEMPTS {
        match session.query(QUESTION).await {
            Err(WireError::Server(said)) if said.code == LOCKED => {
                tokio::time::sleep(TRY_AGAIN).await
            }
            asked => return asked.map(|reply| reply.rows()),
        }
    }
    // No commit waits for whoever holds one that long: it is asked again soon.
    Ok(Vec::new())
}
