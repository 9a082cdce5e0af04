//! Frees whoever decodes the member's commits from locks of those that wait for just that.
//!
//! ```text
//!   commit, which has locked pg_class ──waits for──▶ the log ──▶ decoder ──waits for──▶ the lock of pg_class
//! ```
//!
//! PostgreSQL does not see this circle: waiting for a standby is no lock. The manager ends that wait, so the commit becomes visible; its
//! session tells its client nothing before the log has it.
//!
//! Invariant: nothing here needs a lock in the member's database: it asks in another database, in a session that is there beforehand.

use std::sync::Arc;
use std::time::Duration;

use super::config::Target;
use super::hub::Hub;
use super::rows::NAME;
use super::wire::{Postgres, WireError};

/// A database that every server has.
const ELSEWHERE: &str = "template1";
/// Circles are looked for so often.
const EVERY: Duration = Duration::from_millis(500);
/// Time in which the server answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// Looks for circles for as long as the process lives.
pub async fn watch(hub: Arc<Hub>) {
    let target = Target {
        database: ELSEWHERE.to_owned(),
        ..hub.member.target.clone()
    };
    loop {
        if let Err(error) = look(&target).await {
            tracing::debug!(%error, "nobody looks for commits that whoever decodes them waits for");
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn look(target: &Target) -> Result<(), WireError> {
    let mut session = Postgres::connect(target, "understudy mirror waits").await?;
    let freed = format!(
        "SELECT pg_catalog.count(pg_catalog.pg_cancel_backend(holder.pid)) \
         FROM pg_catalog.pg_stat_get_activity(NULL) waiting \
         CROSS JOIN LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(waiting.pid)) blocking (pid) \
         JOIN pg_catalog.pg_stat_get_activity(NULL) holder ON holder.pid = blocking.pid \
         WHERE waiting.wait_event_type = 'Lock' AND holder.wait_event = 'SyncRep' AND (waiting.application_name LIKE 'understudy mirror%' \
         OR waiting.pid IN (SELECT active_pid FROM pg_catalog.pg_get_replication_slots() WHERE slot_name = '{NAME}'))"
    );
    loop {
        let asked = tokio::time::timeout(PATIENCE, session.query(&freed)).await;
        let asked = asked.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))?;
        if asked?.value().is_some_and(|count| count != "0") {
            tracing::warn!(
                "a commit has locked what whoever decodes it needs: it does not wait for the log any longer, its client does"
            );
        }
        tokio::time::sleep(EVERY).await;
    }
}
