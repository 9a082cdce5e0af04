//! What a member has of the log, in tables of its own there.
//!
//! Invariants: they are made all at once, and say which log the member belongs to from then on; the floor rises only, and is written
//! to the disk with everything that was committed before it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use proxy::core::settings::quote_literal;

use super::rows::OWN;
use super::wire::{Postgres, WireError};
use crate::core::ledger::Ledger;
use crate::core::log::Identity;
use crate::core::record::Number;

/// What a manager needs in its member.
const INSTALL: &str = include_str!("install.sql");
/// Has commits wait for the disk; not for the manager itself, if it is what the member's commits wait for.
const DURABLY: &str = "SELECT pg_catalog.set_config('synchronous_commit', \
    CASE WHEN pg_catalog.current_setting('synchronous_standby_names') ~ 'understudy_mirror' THEN 'local' ELSE 'on' END, false)";
/// Transactions of which it is remembered by which token they can be asked about.
const REMEMBERED: u64 = 100_000;
/// So long at least.
const REMEMBERED_FOR: Duration = Duration::from_secs(300);

/// What a member has.
#[derive(Debug)]
pub enum Contents {
    /// It belongs to the mirror.
    Known {
        ledger: Ledger,
        /// It has everything up to here on its disk.
        saved: Number,
        is_diverged: bool,
        /// Which log it belongs to; an earlier version did not say.
        log: Option<Identity>,
        /// Difference from the primary's answer, and since when that is known, in milliseconds of the Unix epoch.
        difference: Option<(String, u64)>,
    },
    /// It has never belonged to one.
    Empty {
        /// It has something all the same.
        is_occupied: bool,
    },
}

/// Owners, who are no superusers, of what the manager's own sessions run into: what is the manager's own, and the event triggers that fire
/// when it makes that.
const OTHERS: &str = "SELECT pg_catalog.string_agg(DISTINCT pg_catalog.quote_ident(r.rolname), ', ') FROM ( \
    SELECT nspowner FROM pg_catalog.pg_namespace WHERE nspname = 'understudy_mirror' \
    UNION ALL SELECT relowner FROM pg_catalog.pg_class WHERE relnamespace = pg_catalog.to_regnamespace('understudy_mirror') \
    UNION ALL SELECT proowner FROM pg_catalog.pg_proc WHERE pronamespace = pg_catalog.to_regnamespace('understudy_mirror') \
      AND (proname <> 'write' OR proowner IS DISTINCT FROM pg_catalog.to_regrole('understudy_as_rows')::pg_catalog.oid) \
      AND (proname !~ '^write_as_[0-9]+_(code|forced)$' OR proowner IS DISTINCT FROM \
        pg_catalog.to_regrole('understudy_as_' || pg_catalog.substr(proname, 10))::pg_catalog.oid) \
    UNION ALL SELECT p.proowner FROM pg_catalog.pg_event_trigger e JOIN pg_catalog.pg_proc p ON p.oid = e.evtfoid \
      WHERE e.evtenabled <> 'D') o (owner) JOIN pg_catalog.pg_roles r ON r.oid = o.owner WHERE NOT r.rolsuper";

/// Asks whether a database has anything that neither PostgreSQL nor an extension has made.
const OCCUPIED: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_largeobject_metadata) OR EXISTS ( \
    SELECT FROM (SELECT 'pg_class'::regclass, oid FROM pg_catalog.pg_class \
      UNION ALL SELECT 'pg_proc'::regclass, oid FROM pg_catalog.pg_proc \
      UNION ALL SELECT 'pg_type'::regclass, oid FROM pg_catalog.pg_type \
      UNION ALL SELECT 'pg_namespace'::regclass, oid FROM pg_catalog.pg_namespace WHERE nspname !~ '^pg_') o (class, oid) \
    WHERE o.oid >= 16384 AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d \
      WHERE d.classid = o.class AND d.objid = o.oid AND d.deptype IN ('e', 'i')))";

/// Brings what an earlier version has made in a member to what this one needs.
pub async fn renew(session: &mut Postgres) -> Result<(), WireError> {
    if !is_of_mirror(session).await? {
        return Ok(());
    }
    let is_older = session
        .query("SELECT pg_catalog.to_regprocedure('understudy_mirror.has(bigint,text)') IS NULL OR NOT EXISTS \
             (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = pg_catalog.to_regclass('understudy_mirror.state') \
              AND attname = 'differs_since')")
        .await?;
    if is_older.value().as_deref() == Some("t") {
        session.query(OWN).await?;
        session.query(INSTALL).await?;
    }
    Ok(())
}

/// True if a member has ever belonged to a mirror. Fails if what is there is not a superuser's: it would be executed as one.
pub async fn is_of_mirror(session: &mut Postgres) -> Result<bool, WireError> {
    if let Some(others) = session.query(OTHERS).await?.value() {
        let text = format!(
            "what is in the schema understudy_mirror, or an event trigger's function, belongs to {others}, who is no superuser; drop it, \
             or let a superuser own it"
        );
        return Err(WireError::Lost(std::io::Error::other(text)));
    }
    let there = session
        .query("SELECT pg_catalog.to_regclass('understudy_mirror.state') IS NOT NULL")
        .await?;
    Ok(there.value().as_deref() == Some("t"))
}

/// Reads what a member has. If it shall belong to a new mirror, it is made for a log of this identity first.
pub async fn contents(
    session: &mut Postgres,
    new: Option<Identity>,
) -> Result<Contents, WireError> {
    if !is_of_mirror(session).await? {
        if new.is_none() {
            return empty(session).await;
        }
        install_with(session, &Ledger::default(), &Tokens::default(), new, "").await?;
    }
    session.query(DURABLY).await?;
    let state = session
        .query(
            "SELECT floor, is_diverged, log, difference, (extract(epoch FROM differs_since) * 1000)::bigint \
             FROM understudy_mirror.state",
        )
        .await?;
    let Some(row) = state.rows().into_iter().next() else {
        return empty(session).await;
    };
    let mut row = row.into_iter();
    let mut next = || row.next().flatten();
    let (saved, is_diverged, log) = (next(), next(), next());
    let (difference, since) = (next(), next());
    let ledger = ledger(session, saved.clone()).await?;
    Ok(Contents::Known {
        ledger,
        saved: number(saved),
        is_diverged: is_diverged.as_deref() == Some("t"),
        log: log.as_deref().and_then(Identity::parse),
        difference: difference.map(|difference| (difference, number(since).0)),
    })
}

/// A member that belongs to no mirror: whether it has anything that somebody could miss.
async fn empty(session: &mut Postgres) -> Result<Contents, WireError> {
    let occupied = session.query(OCCUPIED).await?.value();
    Ok(Contents::Empty {
        is_occupied: occupied.as_deref() == Some("t"),
    })
}

fn number(text: Option<String>) -> Number {
    Number(text.and_then(|text| text.parse().ok()).unwrap_or_default())
}

async fn ledger(session: &mut Postgres, floor: Option<String>) -> Result<Ledger, WireError> {
    let floor = number(floor);
    let above = session
        .query(&format!(
            "SELECT number FROM understudy_mirror.applied WHERE number > {floor}"
        ))
        .await?;
    let above = above
        .rows()
        .into_iter()
        .map(|row| number(row.into_iter().next().flatten()));
    Ok(Ledger::new(floor, above))
}

/// What a member says of transactions by their tokens.
#[derive(Debug, Default)]
pub struct Tokens {
    /// Those that it remembers: the number and the token of each.
    remembered: Vec<(String, String)>,
    /// The epoch and the count of the last one that it may have forgotten.
    forgotten: (u64, u64),
}

impl Tokens {
    /// Nothing is known of transactions up to the end of this epoch, but of those that the member itself remembers.
    pub fn up_to(epoch: u32) -> Tokens {
        Tokens {
            remembered: Vec::new(),
            forgotten: (u64::from(epoch), i64::MAX.unsigned_abs()),
        }
    }
}

/// Reads what a member says of transactions by their tokens.
pub async fn tokens(session: &mut Postgres) -> Result<Tokens, WireError> {
    let state = session
        .query("SELECT forgotten_epoch, forgotten_count FROM understudy_mirror.state")
        .await?;
    let mut forgotten = state.row().into_iter().map(|text| number(text).0);
    let forgotten = (
        forgotten.next().unwrap_or_default(),
        forgotten.next().unwrap_or_default(),
    );
    let forgotten = forgotten.max(own(session).await?);
    let applied = session
        .query("SELECT number, token FROM understudy_mirror.applied")
        .await?;
    let rows = applied.rows().into_iter();
    let remembered = rows.filter_map(|row| {
        let mut row = row.into_iter().flatten();
        Some((row.next()?, row.next()?))
    });
    Ok(Tokens {
        remembered: remembered.collect(),
        forgotten,
    })
}

/// The last transaction that a member whose rows are logged may have made itself, of which it remembers no token.
async fn own(session: &mut Postgres) -> Result<(u64, u64), WireError> {
    let there = "SELECT pg_catalog.to_regclass('understudy_mirror.served') IS NOT NULL";
    if session.query(there).await?.value().as_deref() != Some("t") {
        return Ok((0, 0));
    }
    let last = session
        .query(
            "SELECT pg_catalog.max(epoch), pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint & 4294967295 \
             FROM understudy_mirror.served",
        )
        .await?;
    let mut last = last.row().into_iter().map(|text| number(text).0);
    Ok((
        last.next().unwrap_or_default(),
        last.next().unwrap_or_default(),
    ))
}

/// Makes what a manager needs in its member, which has this of this log, and does `more`: all of it, or nothing.
pub async fn install_with(
    session: &mut Postgres,
    ledger: &Ledger,
    tokens: &Tokens,
    log: Option<Identity>,
    more: &str,
) -> Result<(), WireError> {
    session.query(DURABLY).await?;
    session.query("BEGIN").await?;
    session.query(INSTALL).await?;
    for some in tokens.remembered.chunks(1000) {
        let values: Vec<String> = some
            .iter()
            .map(|(number, token)| format!("({number}, {})", quote_literal(token)))
            .collect();
        let values = values.join(", ");
        session
            .query(&format!(
                "INSERT INTO understudy_mirror.applied VALUES {values}"
            ))
            .await?;
    }
    let (floor, (epoch, count)) = (ledger.floor(), tokens.forgotten);
    let log = log.map_or_else(|| "NULL".to_owned(), |log| format!("'{log}'"));
    session
        .query(&format!(
            "INSERT INTO understudy_mirror.state (floor, forgotten_epoch, forgotten_count, log) \
             VALUES ({floor}, {epoch}, {count}, {log}) ON CONFLICT (one) DO UPDATE \
             SET floor = excluded.floor, is_diverged = false, log = excluded.log, difference = NULL, differs_since = NULL, \
             forgotten_epoch = excluded.forgotten_epoch, forgotten_count = excluded.forgotten_count; \
             {more} COMMIT"
        ))
        .await?;
    Ok(())
}

/// Writes down that a member differs.
pub async fn mark(session: &mut Postgres, difference: &str) -> Result<(), WireError> {
    let difference = quote_literal(difference);
    session
        .query(&format!(
            "UPDATE understudy_mirror.state SET is_diverged = true, difference = coalesce(difference, {difference}), \
             differs_since = coalesce(differs_since, pg_catalog.now())"
        ))
        .await
        .map(drop)
}

/// Has the member write to its disk that it has everything up to `floor`, and with it everything that it committed before; and which
/// log it belongs to, if it does not say that yet.
pub async fn save(
    session: &mut Postgres,
    floor: Number,
    log: Option<Identity>,
    more: &str,
) -> Result<(), WireError> {
    let (sets, or) = match log {
        Some(log) => (format!(", log = coalesce(log, '{log}')"), " OR log IS NULL"),
        None => Default::default(),
    };
    session
        .query(&format!(
            "UPDATE understudy_mirror.state SET floor = greatest(floor, {floor}){sets}{more} WHERE floor < {floor}{or}"
        ))
        .await
        .map(drop)
}

/// What may be forgotten of a member's transactions: all but the last of them, and but those of the last minutes.
#[derive(Debug, Default)]
pub struct Memory(VecDeque<(Instant, Number)>);

impl Memory {
    /// The member has everything up to `floor` now: up to where it may forget.
    pub fn forgets(&mut self, now: Instant, floor: Number) -> Number {
        self.0.push_back((now, floor));
        let is_old = |(at, _): &(Instant, Number)| now.duration_since(*at) >= REMEMBERED_FOR;
        // The last one that is old enough stays.
        while self.0.get(1).is_some_and(is_old) {
            self.0.pop_front();
        }
        let old = self.0.front().filter(|one| is_old(one));
        let old = old.map_or(0, |(_, floor)| floor.0);
        Number(old.min(floor.0.saturating_sub(REMEMBERED)))
    }
}

/// So many numbers are forgotten at a time at most: a member that was away has those of minutes, and is asked meanwhile.
const PRUNED_MAX: u32 = 50_000;

/// Forgets numbers up to this one, for which the floor stands that was saved, and remembers which tokens may be among them.
pub async fn prune(session: &mut Postgres, oldest: Number) -> Result<(), WireError> {
    session
        .query(&format!(
            "WITH gone AS (DELETE FROM understudy_mirror.applied WHERE number <= least({oldest}, \
               (SELECT pg_catalog.min(number) FROM understudy_mirror.applied) + {PRUNED_MAX}) RETURNING token), \
             named AS (SELECT pg_catalog.split_part(token, '-', 1)::bigint AS epoch, \
               pg_catalog.split_part(token, '-', 2)::bigint AS count FROM gone WHERE token <> ''), \
             last AS (SELECT epoch, count FROM named ORDER BY epoch DESC, count DESC LIMIT 1) \
             UPDATE understudy_mirror.state s SET forgotten_epoch = last.epoch, forgotten_count = last.count \
             FROM last WHERE (last.epoch, last.count) > (s.forgotten_epoch, s.forgotten_count)"
        ))
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At some thousands a second the last hundred thousand were gone before a client could ask.
    // hazard: MIRROR-9
    #[test]
    fn what_is_young_is_remembered_however_much_there_was() {
        let mut memory = Memory::default();
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        assert_eq!(memory.forgets(at(0), Number(5_000_000)), Number(0));
        assert_eq!(memory.forgets(at(100), Number(6_000_000)), Number(0));
        assert_eq!(
            memory.forgets(at(300), Number(7_000_000)),
            Number(5_000_000)
        );
        assert_eq!(
            memory.forgets(at(390), Number(7_000_000)),
            Number(5_000_000)
        );
        assert_eq!(
            memory.forgets(at(400), Number(7_000_000)),
            Number(6_000_000)
        );
        assert_eq!(
            memory.forgets(at(9_000), Number(7_000_100)),
            Number(6_900_100)
        );
    }
}
