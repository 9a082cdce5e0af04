//! Room for a copy: the database that it takes the place of gets another name.
//!
//! ```text
//!   app ──renamed, and written down──▶ app_replaced_20261128T0712        the copy is made as app, and is half made until that is unsaid
//! ```
//!
//! Invariant: a database is dropped only if it is written down as half made, which is done in one transaction with the name of the one
//! before it, or if the log had all that it had. It is written down as a setting of the manager's role, which outlives the database.

use std::time::Duration;

use postgres_protocol::escape::{escape_identifier, escape_literal};
use xxhash_rust::xxh3::xxh3_64;

use crate::driver::rows::NAME as SLOT;
use crate::driver::target::Target;
use crate::driver::wire::{Postgres, WireError};

/// So often it is tried to rename a database that somebody comes to again and again.
const ATTEMPTS: usize = 50;
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// PostgreSQL cuts names that are longer.
const NAME_BYTES: usize = 63;

/// The setting that says what was there before.
fn setting(database: &str) -> String {
    format!(
        "understudy_mirror.filling_{:x}",
        xxh3_64(database.as_bytes())
    )
}

/// True if a copy was begun as this database, and is not whole.
pub async fn is_half_made(session: &mut Postgres, member: &Target) -> Result<bool, WireError> {
    Ok(before(session, &member.database).await?.is_some())
}

/// The note of what was there before: `drop`, `keep` or `none`, and a name. The session has to have begun since.
pub(super) async fn before(
    session: &mut Postgres,
    database: &str,
) -> Result<Option<String>, WireError> {
    let asked = format!(
        "SELECT pg_catalog.current_setting('{}', true)",
        setting(database)
    );
    let value = session.query(&asked).await?.value();
    Ok(value.filter(|value| !value.is_empty()))
}

/// The statement that says that the copy is whole.
pub(super) fn is_made(database: &str) -> String {
    format!("ALTER ROLE CURRENT_USER RESET {};", setting(database))
}

/// Names of databases that were kept in place of this one, as the member's server has them.
pub async fn kept(session: &mut Postgres, member: &Target) -> Result<Vec<String>, WireError> {
    let asked = format!(
        "SELECT datname FROM pg_catalog.pg_database WHERE pg_catalog.starts_with(datname, {}) ORDER BY 1",
        escape_literal(&format!("{}_replaced_", cut(&member.database)))
    );
    let rows = session.query(&asked).await?.rows();
    Ok(rows.into_iter().flatten().flatten().collect())
}

/// So much of a name that what comes after it has room.
fn cut(database: &str) -> &str {
    let most = NAME_BYTES - "_replaced_20261128T0712_00".len();
    let mut len = database.len().min(most);
    while !database.is_char_boundary(len) {
        len -= 1;
    }
    &database[..len]
}

/// Makes room for a copy of this name.
pub(super) async fn make(
    session: &mut Postgres,
    database: &str,
    is_kept: bool,
) -> Result<(), WireError> {
    let half_made = before(session, database).await?;
    let own = escape_identifier(database);
    if half_made.is_some() {
        let gone = format!("DROP DATABASE IF EXISTS {own} WITH (FORCE)");
        return session.query(&gone).await.map(drop);
    }
    let literal = escape_literal(database);
    let there = format!("SELECT oid FROM pg_catalog.pg_database WHERE datname = {literal}");
    let note = |what: &str| {
        let what = escape_literal(what);
        format!("ALTER ROLE CURRENT_USER SET {} = {what}", setting(database))
    };
    if session.query(&there).await?.value().is_none() {
        return session.query(&note("none")).await.map(drop);
    }
    let new = free_name(session, database).await?;
    let what = if is_kept { "keep" } else { "drop" };
    let renaming = format!(
        "ALTER DATABASE {own} RENAME TO {}; {}",
        escape_identifier(&new),
        note(&format!("{what} {new}"))
    );
    let ending = format!(
        "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE datname = {literal}"
    );
    let unslotted = format!(
        "SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_catalog.pg_replication_slots \
         WHERE slot_name = '{SLOT}' AND database = {literal}"
    );
    for attempt in 1.. {
        session.query(&ending).await?;
        // It would keep the WAL for a stream that nobody reads. Its reader may not have ended yet.
        let made = match session.query(&unslotted).await {
            Ok(_) => session.query(&renaming).await,
            failed => failed,
        };
        match made {
            Err(WireError::Server(said)) if said.code == "55006" && attempt < ATTEMPTS => {
                tokio::time::sleep(TRY_AGAIN).await;
            }
            renamed => {
                renamed?;
                break;
            }
        }
    }
    tracing::warn!(
        database,
        new,
        is_kept,
        "the database has another name, and a copy takes its place"
    );
    Ok(())
}

/// A name that no database has.
async fn free_name(session: &mut Postgres, database: &str) -> Result<String, WireError> {
    let asked = "SELECT pg_catalog.to_char(pg_catalog.timezone('UTC', pg_catalog.now()), 'YYYYMMDD\"T\"HH24MI')";
    let now = session.query(asked).await?.value().unwrap_or_default();
    let stem = format!("{}_replaced_{now}", cut(database));
    let rows = session
        .query("SELECT datname FROM pg_catalog.pg_database")
        .await?
        .rows();
    let taken: Vec<String> = rows.into_iter().flatten().flatten().collect();
    let others = (2..).map(|count| format!("{stem}_{count}"));
    let mut names = std::iter::once(stem.clone()).chain(others);
    Ok(names.find(|name| !taken.contains(name)).unwrap_or(stem))
}

/// Drops the database that was before, once the copy is whole, if the log had all that it had.
pub(super) async fn drop_explained(
    session: &mut Postgres,
    before: Option<String>,
) -> Result<(), WireError> {
    let Some(name) = before
        .as_deref()
        .and_then(|before| before.strip_prefix("drop "))
    else {
        return Ok(());
    };
    let name = escape_identifier(name);
    let gone = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
    session.query(&gone).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_room_for_what_comes_after_them() {
        assert_eq!(cut("app"), "app");
        let long = "ä".repeat(31);
        assert!(cut(&long).len() <= 37 && long.starts_with(cut(&long)));
    }
}
