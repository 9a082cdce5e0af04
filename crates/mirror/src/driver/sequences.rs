//! Values of sequences: the one thing that a transaction changes and its rows do not say.
//!
//! Invariant: what is logged of a sequence is at or beyond every value that a logged transaction has taken of it. A sequence that a
//! transaction has locked, or waits to lock, is left out: hardly anybody else takes values of it, and it is asked soon after.
//!
//! Commits wait for the question. So which sequences there are is kept, and their values alone are asked, or nothing where there are
//! none. It is looked for again when a transaction with definitions is logged, until that can be seen: whoever commits waits for the log,
//! and nobody sees them before. Names and values come from one question while they may change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::core::catalog::Snapshot;
use crate::core::rows::{Change, Rows};

use super::wire::{Postgres, ServerError, WireError};

/// Values ahead of the last one that are logged of a sequence, so that most values need not be.
const AHEAD: i64 = 32;
/// Attempts while somebody locks or drops one at that moment.
const ATTEMPTS: u32 = 20;
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// Which transactions are seen, and sequences, if there are any: with the value unless it is locked.
const LOOK: &str = "SET lock_timeout = '50ms'; WITH found AS MATERIALIZED ( \
    SELECT s.*, pg_catalog.format('%I.%I', n.nspname, c.relname) AS name, l.relation IS NOT NULL AS is_locked \
      FROM pg_catalog.pg_sequence s JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid \
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
      LEFT JOIN (SELECT DISTINCT relation FROM pg_catalog.pg_locks \
        WHERE mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')) l \
      ON l.relation = s.seqrelid WHERE c.relpersistence <> 't') \
    SELECT pg_catalog.pg_current_snapshot(), seqrelid, name, seqincrement, seqmin, seqmax, is_locked, \
      CASE WHEN NOT is_locked THEN pg_catalog.pg_sequence_last_value(seqrelid) END \
    FROM (VALUES (true)) one LEFT JOIN found ON true";

/// A sequence that there is.
#[derive(Debug)]
struct Sequence {
    id: u32,
    name: String,
    increment: i64,
    /// The least and the most value.
    limits: (i64, i64),
}

/// Values of sequences that have one, by their ids.
type Values = BTreeMap<u32, i64>;

/// Sequences as they were logged.
#[derive(Debug, Default)]
pub struct Sequences {
    /// The last value, and the one that was logged.
    logged: BTreeMap<String, (i64, i64)>,
    /// Those that there are; nothing if that must be looked for.
    known: Option<Vec<Sequence>>,
    /// Transactions that may have defined some, and that the last look did not see.
    unseen: BTreeSet<u32>,
    /// It was looked for them before: what an earlier stream has noted was unseen then.
    has_looked: bool,
}

impl Sequences {
    /// Notes what a transaction does that is about to be logged, or a piece of it. True if sequences are elsewhere once it is executed.
    pub fn note(&mut self, xid: u32, rows: &Rows) -> bool {
        let resets = rows.resets_sequences();
        if resets {
            // Standbys may have them elsewhere than was logged: they are logged again.
            self.logged.clear();
        }
        let touches = |change: &Change| match change {
            Change::Define(said) => !said.is_nothing(),
            Change::Truncate { restarts, .. } => *restarts,
            _ => false,
        };
        if rows.changes.iter().any(touches) {
            self.unseen.insert(xid);
            self.look_again();
        }
        resets
    }

    /// There may be other ones now.
    pub fn look_again(&mut self) {
        self.known = None;
    }

    /// Sequences that are elsewhere than what was logged of them, and what is to be logged: ahead, as PostgreSQL itself does.
    pub async fn advanced(
        &mut self,
        session: &mut Postgres,
    ) -> Result<Vec<(String, i64)>, WireError> {
        for attempt in 0..ATTEMPTS {
            let asked = match self.known.take() {
                Some(known) => ask(session, &known)
                    .await
                    .map(|values| (known, values, true)),
                None => self.look(session).await,
            };
            match asked {
                Ok((found, values, is_known)) => {
                    let advanced = self.advance(&found, &values);
                    self.known = is_known.then_some(found);
                    return Ok(advanced);
                }
                Err(WireError::Server(said)) if passes(&said) => {
                    if attempt > 0 {
                        tokio::time::sleep(TRY_AGAIN).await;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        // No commit waits for whoever holds one that long: it is asked again soon.
        Ok(Vec::new())
    }

    fn advance(&mut self, found: &[Sequence], values: &Values) -> Vec<(String, i64)> {
        let advanced = found.iter().filter_map(|sequence| {
            let value = *values.get(&sequence.id)?;
            let is_known = self.logged.get(&sequence.name).is_some_and(|(from, to)| {
                // Between what was told last and what it stands for.
                (*from.min(to)..=*from.max(to)).contains(&value)
            });
            if is_known {
                return None;
            }
            let ahead = value.saturating_add(sequence.increment.saturating_mul(AHEAD));
            let ahead = ahead.clamp(sequence.limits.0, sequence.limits.1);
            self.logged.insert(sequence.name.clone(), (value, ahead));
            Some((sequence.name.clone(), ahead))
        });
        advanced.collect()
    }

    /// Those that there are, and their values. True if no others can be seen before they are noted, and none was locked.
    async fn look(
        &mut self,
        session: &mut Postgres,
    ) -> Result<(Vec<Sequence>, Values, bool), WireError> {
        let rows = session.query(LOOK).await?.rows();
        let snapshot = rows
            .first()
            .and_then(|row| Snapshot::parse(row.first()?.as_deref()?));
        let Some(snapshot) = snapshot else {
            return Ok((Vec::new(), Values::new(), false));
        };
        if !std::mem::replace(&mut self.has_looked, true) {
            self.unseen.extend(snapshot.open());
        }
        self.unseen.retain(|xid| !snapshot.sees(*xid));
        let (mut found, mut values, mut is_known) =
            (Vec::new(), Values::new(), self.unseen.is_empty());
        for row in &rows {
            let Some((sequence, is_locked, value)) = sequence(row) else {
                continue;
            };
            is_known &= !is_locked;
            values.extend(value.map(|value| (sequence.id, value)));
            found.push(sequence);
        }
        Ok((found, values, is_known))
    }
}

/// A lock was not free in time, or a sequence is gone: another attempt finds what there is then.
fn passes(said: &ServerError) -> bool {
    said.code == "55P03"
        || said.code == "XX000" && said.message.starts_with("could not open relation")
}

/// A sequence, true if it is locked, and its value.
fn sequence(row: &[Option<String>]) -> Option<(Sequence, bool, Option<i64>)> {
    let number = |at: usize| row.get(at)?.as_ref()?.parse::<i64>().ok();
    let found = Sequence {
        id: u32::try_from(number(1)?).ok()?,
        name: row.get(2)?.clone()?,
        increment: number(3)?,
        limits: (number(4)?, number(5)?),
    };
    let is_locked = row.get(6)?.as_deref() == Some("t");
    Some((found, is_locked, number(7)))
}

/// Values of these. Whoever locks one is not waited for: it is looked again then.
async fn ask(session: &mut Postgres, known: &[Sequence]) -> Result<Values, WireError> {
    if known.is_empty() {
        return Ok(Values::new());
    }
    let ids: Vec<String> = known.iter().map(|one| one.id.to_string()).collect();
    let question = format!(
        "SET LOCAL lock_timeout = '1ms'; SELECT id, pg_catalog.pg_sequence_last_value(id) \
           FROM pg_catalog.unnest('{{{}}}'::pg_catalog.oid[]) s (id)",
        ids.join(",")
    );
    let rows = session.query(&question).await?.rows();
    let value = |row: Vec<Option<String>>| {
        let mut row = row.into_iter().flatten();
        Some((row.next()?.parse().ok()?, row.next()?.parse().ok()?))
    };
    Ok(rows.into_iter().filter_map(value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truncated(restarts: bool) -> Rows {
        let relations = Vec::new();
        Rows {
            changes: vec![Change::Truncate {
                relations,
                restarts,
            }],
            ..Rows::default()
        }
    }

    #[test]
    fn sequences_are_looked_for_again_for_whoever_touches_them() {
        let mut sequences = Sequences {
            known: Some(Vec::new()),
            ..Sequences::default()
        };
        assert!(!sequences.note(7, &truncated(false)));
        assert!(sequences.known.is_some() && sequences.unseen.is_empty());
        assert!(sequences.note(8, &truncated(true)));
        assert!(sequences.known.is_none() && sequences.unseen.contains(&8));
    }

    #[test]
    fn values_are_logged_ahead_and_again_only_beyond_that() {
        let mut sequences = Sequences::default();
        let found = [Sequence {
            id: 5,
            name: "s".to_owned(),
            increment: 1,
            limits: (1, 100),
        }];
        let mut at = |value| sequences.advance(&found, &Values::from([(5, value)]));
        let ahead = |value| vec![("s".to_owned(), value)];
        assert_eq!([at(1), at(33), at(34)], [ahead(33), vec![], ahead(66)]);
        assert_eq!([at(99), at(100)], [ahead(100), vec![]]);
        // It was set back.
        assert_eq!(at(2), ahead(34));
    }
}
