//! Do commits wait for the agent's connection? A small commit of the agent's own shows it: while nothing new is
//! confirmed, it must be seen waiting.
//!
//! The setting alone would not do: PostgreSQL's checkpointer passes it on to the sessions, which do not wait before.

use std::time::Duration;

use pgdata::sealer::Sealer;
use pgserver::{Session, StartOptions};
use tokio::sync::watch;
use volume::lsn::Lsn;

/// How long it may take to ask and to commit.
const PROVED_WITHIN: Duration = Duration::from_secs(10);
/// How long the commit may take to be seen; everybody's are held back meanwhile.
const SEEN_WITHIN: Duration = Duration::from_secs(1);
/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Nothing beyond a position is confirmed while this lives.
struct HeldBack<'a>(&'a watch::Sender<Option<Lsn>>);

impl<'a> HeldBack<'a> {
    fn at(end: Lsn, at_most: &'a watch::Sender<Option<Lsn>>) -> HeldBack<'a> {
        at_most.send_replace(Some(end));
        HeldBack(at_most)
    }
}

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

/// Why it was not shown that commits wait.
#[derive(Debug)]
pub(super) enum Unproved {
    /// It could not be seen in time.
    NotSeen,
    /// Something is in the way.
    Why(String),
}

impl From<pgserver::PostgresError> for Unproved {
    fn from(error: pgserver::PostgresError) -> Unproved {
        Unproved::Why(error.to_string())
    }
}

/// Shows that commits wait, or says what is in the way.
pub(super) async fn prove(
    postgres: &StartOptions,
    sealer: &Sealer,
    at_most: &watch::Sender<Option<Lsn>>,
) -> Result<(), Unproved> {
    let proved = tokio::time::timeout(PROVED_WITHIN, see_one_wait(postgres, sealer, at_most));
    proved.await.unwrap_or(Err(Unproved::NotSeen))
}

async fn see_one_wait(
    postgres: &StartOptions,
    sealer: &Sealer,
    at_most: &watch::Sender<Option<Lsn>>,
) -> Result<(), Unproved> {
    let open = || Session::open(&postgres.run, postgres.port, &postgres.superuser);
    let (commits, looks) = (open().await?, open().await?);
    if let Some(why) = what_is_in_the_way(&looks).await? {
        return Err(Unproved::Why(why));
    }
    let pid = commits.value("SELECT pg_backend_pid()").await?;
    let pid = pid.unwrap_or_default();
    commits.value("SET synchronous_commit = on").await?;
    // Or nobody sees what it waits for.
    commits.value("SET track_activities = on").await?;
    let held = HeldBack::at(sealer.synced().borrow().end, at_most);
    let commit = commits.value("SELECT pg_logical_emit_message(true, 'understudy', '')");
    tokio::pin!(commit);
    tokio::select! {
        biased;
        committed = &mut commit => {
            committed?;
            return Err(Unproved::Why("commits do not wait for the agent".to_owned()));
        }
        waits = tokio::time::timeout(SEEN_WITHIN, waits(&looks, &pid)) => {
            waits.map_err(|_| Unproved::NotSeen)??;
        }
    }
    drop(held);
    commit.await?;
    Ok(())
}

/// Where it is configured that commits do not wait: for all, or for users or databases.
const COMMITS_EARLY: &str = "\
    SELECT 'synchronous_commit = ' || reset_val FROM pg_settings \
    WHERE name = 'synchronous_commit' AND reset_val IN ('local', 'off') \
    UNION ALL \
    SELECT concat_ws(' ', one, 'is set for', 'user ' || rolname, 'database ' || datname) \
    FROM pg_db_role_setting CROSS JOIN unnest(setconfig) one \
    LEFT JOIN pg_roles ON pg_roles.oid = setrole LEFT JOIN pg_database ON pg_database.oid = setdatabase \
    WHERE one ~* '^synchronous_commit=(local|off|false|no|0)$' \
    LIMIT 1";

/// What this server's files say against it, of what may have been in an included one.
async fn what_is_in_the_way(session: &Session) -> pgserver::Result<Option<String>> {
    let names = "SELECT setting FROM pg_file_settings WHERE name = 'synchronous_standby_names' AND setting <> '' LIMIT 1";
    if let Some(names) = session.value(names).await? {
        return Ok(Some(format!(
            "synchronous_standby_names = '{names}' is in PostgreSQL's configuration and has no effect; remove it, or set \
             [storage] wal_sync = \"strict\" and restart PostgreSQL"
        )));
    }
    if let Some(level) = session.value(COMMITS_EARLY).await? {
        return Ok(Some(format!(
            "{level}: such commits do not wait until their log is durable, as they nearly do with a strict log; remove it, \
             or set [storage] wal_sync = \"strict\" and restart PostgreSQL"
        )));
    }
    let level = session.value("SHOW wal_level").await?;
    Ok((level.as_deref() == Some("logical")).then(|| {
        "wal_level = logical lets slots hand out changes that are not durable yet; set it to replica and restart \
         PostgreSQL"
            .to_owned()
    }))
}

/// Waits until the session of that process waits for the agent.
async fn waits(looks: &Session, pid: &str) -> pgserver::Result<()> {
    let look = format!("SELECT wait_event FROM pg_stat_activity WHERE pid = {pid}");
    while looks.value(&look).await?.as_deref() != Some("SyncRep") {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}
