//! Values of sequences: the one thing that a transaction changes and its rows do not say.
//!
//! Invariant: what is logged of a sequence is at or beyond every value that a logged transaction has taken of it. A sequence that a
//! transaction has locked, or waits to lock, is not asked: hardly anybody else takes values of it, and it is asked soon after.
//!
//! Commits wait for the question. So which sequences there are is looked for when a transaction with definitions is logged, and now and
//! then; between, only their values are asked, and nothing where there are none.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::rows::{Header, Rows};

use super::wire::{Postgres, WireError};

/// Values ahead of the last one that are logged of a sequence, so that most values need not be.
const AHEAD: i64 = 32;
/// Attempts while somebody locks or drops one at that moment.
const ATTEMPTS: u32 = 20;
const TRY_AGAIN: Duration = Duration::from_millis(5);
/// A lock was not free in time; a relation is gone, as PostgreSQL says it of one that was named by its id.
const PASSES: [&str; 2] = ["55P03", "XX000"];

/// The oldest transaction that nobody else sees yet, and sequences, if there are any.
const LOOK: &str = "SET lock_timeout = '50ms'; SELECT now.oldest, s.* \
    FROM (SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()) AS oldest) now LEFT JOIN (\
      SELECT s.seqrelid, pg_catalog.format('%I.%I', n.nspname, c.relname), seqincrement, seqmin, seqmax \
      FROM pg_catalog.pg_sequence s JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid \
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relpersistence <> 't') s ON true";

/// A sequence that there is.
#[derive(Debug)]
struct Sequence {
    id: u32,
    name: String,
    increment: i64,
    /// The least and the most value.
    limits: (i64, i64),
}

/// Sequences as they were logged.
#[derive(Debug, Default)]
pub struct Sequences {
    /// The last value, and the one that was logged.
    logged: BTreeMap<String, (i64, i64)>,
    /// Those that there were when it was looked last; nothing if that may be others now.
    known: Option<Vec<Sequence>>,
    /// The newest transaction that has made some, and that was not seen yet: it waits for the log when it is noted.
    unseen: Option<u32>,
}

impl Sequences {
    /// Notes a transaction that is about to be logged, or a piece of one. True if sequences are elsewhere once it is executed.
    pub fn note(&mut self, header: &Header, rows: &Rows) -> bool {
        let resets = rows.resets_sequences();
        if resets {
            // Standbys may have them elsewhere than was logged: they are logged again.
            self.logged.clear();
        }
        // What a long transaction has made came with an earlier piece.
        if resets || header.piece > 0 {
            let xid = header.origin.xid;
            let is_newer = self.unseen.is_none_or(|unseen| is_before(unseen, xid));
            self.unseen = if is_newer { Some(xid) } else { self.unseen };
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
        let (known, values) = self.ask(session).await?;
        let logged = &mut self.logged;
        let advanced = known.iter().filter_map(|sequence| {
            let value = *values.get(&sequence.id)?;
            let is_known = logged.get(&sequence.name).is_some_and(|(from, to)| {
                // Between what was told last and what it stands for.
                (*from.min(to)..=*from.max(to)).contains(&value)
            });
            if is_known {
                return None;
            }
            let ahead = value.saturating_add(sequence.increment.saturating_mul(AHEAD));
            let ahead = ahead.clamp(sequence.limits.0, sequence.limits.1);
            logged.insert(sequence.name.clone(), (value, ahead));
            Some((sequence.name.clone(), ahead))
        });
        let advanced = advanced.collect();
        // Whoever could have made others meanwhile must have been seen.
        self.known = self.unseen.is_none().then_some(known);
        Ok(advanced)
    }

    /// Those that there are, and the values of those that have one, by their ids.
    async fn ask(
        &mut self,
        session: &mut Postgres,
    ) -> Result<(Vec<Sequence>, BTreeMap<u32, i64>), WireError> {
        for attempt in 0..ATTEMPTS {
            let known = match self.known.take() {
                Some(known) => known,
                None => self.look(session).await?,
            };
            if known.is_empty() {
                return Ok((known, BTreeMap::new()));
            }
            let ids: Vec<String> = known.iter().map(|one| one.id.to_string()).collect();
            match session.query(&question(&ids.join(","), attempt > 0)).await {
                Err(WireError::Server(said)) if PASSES.contains(&said.code.as_str()) => {
                    if attempt > 0 {
                        tokio::time::sleep(TRY_AGAIN).await;
                    }
                }
                asked => {
                    let values = asked?.rows().into_iter().filter_map(value);
                    return Ok((known, values.collect()));
                }
            }
        }
        // No commit waits for whoever holds one that long: it is asked again soon.
        Ok((self.look(session).await?, BTreeMap::new()))
    }

    async fn look(&mut self, session: &mut Postgres) -> Result<Vec<Sequence>, WireError> {
        let rows = session.query(LOOK).await?.rows();
        let oldest = rows.first().and_then(|row| row.first()?.as_deref());
        // Without its epoch, as the log has it.
        let oldest = oldest.and_then(|xid| Some(xid.parse::<u64>().ok()? as u32));
        let is_unseen = |xid: &u32| oldest.is_none_or(|oldest| !is_before(*xid, oldest));
        self.unseen = self.unseen.filter(is_unseen);
        Ok(rows.into_iter().filter_map(sequence).collect())
    }
}

/// True if a transaction has begun before another one: ids go in a circle, as PostgreSQL compares them.
fn is_before(xid: u32, other: u32) -> bool {
    other.wrapping_sub(xid) as i32 > 0
}

fn sequence(row: Vec<Option<String>>) -> Option<Sequence> {
    let mut row = row.into_iter().flatten().skip(1);
    let (id, name) = (row.next()?.parse().ok()?, row.next()?);
    let mut next = || row.next()?.parse::<i64>().ok();
    Some(Sequence {
        id,
        name,
        increment: next()?,
        limits: (next()?, next()?),
    })
}

/// Asks these for their values: at first whoever locks one is hoped to be nobody, and then those that are locked are left out.
fn question(ids: &str, is_locked: bool) -> String {
    let (patience, free) = match is_locked {
        false => ("1ms", ""),
        true => (
            "50ms",
            "WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_locks l WHERE l.relation = s.id \
               AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'))",
        ),
    };
    format!(
        "SET LOCAL lock_timeout = '{patience}'; WITH free AS MATERIALIZED ( \
           SELECT s.id FROM pg_catalog.unnest('{{{ids}}}'::pg_catalog.oid[]) s (id) {free}) \
         SELECT id, pg_catalog.pg_sequence_last_value(id) FROM free"
    )
}

fn value(row: Vec<Option<String>>) -> Option<(u32, i64)> {
    let mut row = row.into_iter().flatten();
    Some((row.next()?.parse().ok()?, row.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use crate::core::rows::{Change, Origin};

    use super::*;

    fn truncated(restarts: bool) -> Rows {
        let truncate = Change::Truncate {
            relations: Vec::new(),
            restarts,
        };
        Rows {
            changes: vec![truncate],
            ..Rows::default()
        }
    }

    fn header(xid: u32, piece: u32) -> Header {
        let origin = Origin {
            xid,
            ..Origin::default()
        };
        Header {
            origin,
            piece,
            is_last: true,
        }
    }

    #[test]
    fn sequences_are_looked_for_until_the_newest_that_made_some_is_seen() {
        let mut sequences = Sequences {
            known: Some(Vec::new()),
            ..Sequences::default()
        };
        assert!(!sequences.note(&header(7, 0), &truncated(false)));
        assert!(sequences.known.is_some() && sequences.unseen.is_none());
        assert!(sequences.note(&header(u32::MAX, 0), &truncated(true)));
        assert!(sequences.known.is_none());
        // Three later, in the circle, by the last piece of a long transaction; then an older one.
        assert!(!sequences.note(&header(2, 1), &truncated(false)));
        assert!(sequences.note(&header(u32::MAX - 1, 0), &truncated(true)));
        assert_eq!(sequences.unseen, Some(2));
    }
}
