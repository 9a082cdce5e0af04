//! Do commits wait for the agent's connection? A small commit of the agent's own shows it: while nothing new is
//! confirmed, it must be seen waiting.
//!
//! The setting alone would not do: PostgreSQL's checkpointer passes it on to the sessions, which do not wait before.

use std::time::Duration;

use pgdata::sealer::Sealer;
use pgserver::{Session, StartOptions};
use tokio::sync::watch;
use volume::lsn::Lsn;

/// How long the commit may take to be seen.
const PROVED_WITHIN: Duration = Duration::from_secs(10);
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

/// Shows that commits wait, or says what is in the way.
pub(super) async fn prove(
    postgres: &StartOptions,
    sealer: &Sealer,
    at_most: &watch::Sender<Option<Lsn>>,
) -> Result<(), String> {
    let proved = tokio::time::timeout(PROVED_WITHIN, see_one_wait(postgres, sealer, at_most));
    proved.await.unwrap_or_else(|_| {
        Err("it could not be seen in time whether commits wait for the agent".to_owned())
    })
}

async fn see_one_wait(
    postgres: &StartOptions,
    sealer: &Sealer,
    at_most: &watch::Sender<Option<Lsn>>,
) -> Result<(), String> {
    let open = || Session::open(&postgres.run, postgres.port, &postgres.superuser);
    let text = |error: pgserver::PostgresError| error.to_string();
    let (commits, looks) = (open().await.map_err(text)?, open().await.map_err(text)?);
    if let Some(why) = what_is_in_the_way(&looks).await.map_err(text)? {
        return Err(why);
    }
    let pid = commits.value("SELECT pg_backend_pid()").await;
    let pid = pid.map_err(text)?.unwrap_or_default();
    commits
        .value("SET synchronous_commit = on")
        .await
        .map_err(text)?;
    let held = HeldBack::at(sealer.synced().borrow().end, at_most);
    let commit = commits.value("SELECT pg_logical_emit_message(true, 'understudy', '')");
    tokio::pin!(commit);
    tokio::select! {
        biased;
        committed = &mut commit => {
            committed.map_err(text)?;
            return Err("commits do not wait for the agent".to_owned());
        }
        waits = waits(&looks, &pid) => waits.map_err(text)?,
    }
    drop(held);
    commit.await.map_err(text)?;
    Ok(())
}

/// What this server's files say against it, of what may have been in an included one.
async fn what_is_in_the_way(session: &Session) -> pgserver::Result<Option<String>> {
    let names = "SELECT setting FROM pg_file_settings WHERE name = 'synchronous_standby_names' AND setting <> '' LIMIT 1";
    if let Some(names) = session.value(names).await? {
        return Ok(Some(format!(
            "synchronous_standby_names = '{names}' is in PostgreSQL's configuration and has no effect; remove it, or set \
             [storage] log = \"strict\" and restart PostgreSQL"
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
