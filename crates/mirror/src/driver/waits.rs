//! Frees whoever decodes the member's commits from locks of those that wait for just that.
//!
//! ```text
//!   commit, which has locked pg_class ──waits for──▶ the log ──▶ decoder ──waits for──▶ the lock of pg_class
//! ```
//!
//! Others may wait in between, as a REINDEX of a catalog does. PostgreSQL does not see this circle: waiting for a standby is no lock. The manager ends that wait, so the commit becomes visible; its
//! session tells its client nothing before the log has it.
//!
//! Invariant: nothing here needs a lock in the member's database: it asks in another database, in a session that is there beforehand.

use std::sync::Arc;
use std::time::Duration;

use super::hub::Hub;
use super::rows::NAME;
use super::target::Target;
use super::wire::{Postgres, WireError};
use crate::core::cancelled::Cancelled;

/// Circles are looked for so often.
const EVERY: Duration = Duration::from_millis(500);
/// Time in which the server answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// Looks for circles for as long as the process lives.
pub async fn watch(hub: Arc<Hub>) {
    loop {
        if let Err(error) = look(&hub).await {
            tracing::debug!(%error, "nobody looks for commits that whoever decodes them waits for");
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// A session in another database: not in `template1`, which nobody could make a database of meanwhile, unless there is no other one.
async fn connect(target: &Target) -> Result<Postgres, WireError> {
    const NAME: &str = "understudy mirror waits";
    const USUAL: &str = "postgres";
    if target.database != USUAL
        && let Ok(session) = Postgres::connect(&target.at(USUAL), NAME).await
    {
        return Ok(session);
    }
    Postgres::connect(&target.elsewhere(), NAME).await
}

async fn look(hub: &Hub) -> Result<(), WireError> {
    let mut session = connect(&hub.member.target).await?;
    let holders = format!(
        "WITH RECURSIVE blocking (pid) AS ( \
           SELECT waiting.pid FROM pg_catalog.pg_stat_get_activity(NULL) waiting WHERE waiting.wait_event_type = 'Lock' \
             AND (waiting.application_name ~ '^understudy (mirror|applier)' \
               OR waiting.pid IN (SELECT active_pid FROM pg_catalog.pg_get_replication_slots() WHERE slot_name = '{NAME}')) \
           UNION SELECT b.pid FROM blocking CROSS JOIN LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(blocking.pid)) b (pid)) \
         SELECT holder.pid FROM blocking JOIN pg_catalog.pg_stat_get_activity(NULL) holder ON holder.pid = blocking.pid \
         WHERE holder.wait_event = 'SyncRep'"
    );
    loop {
        let mut freed = 0;
        for pid in ask(&mut session, &holders).await? {
            // Its session knows beforehand that an answer says nothing of the log.
            hub.cancels.tell(pid, Cancelled::sent);
            let cancelled = format!(
                "SELECT pid FROM pg_catalog.pg_stat_get_activity({pid}) WHERE wait_event = 'SyncRep' AND pg_catalog.pg_cancel_backend(pid)"
            );
            freed += ask(&mut session, &cancelled).await?.len();
            hub.cancels.tell(pid, Cancelled::arrived);
        }
        if freed > 0 {
            tracing::warn!(
                "a commit has locked what whoever decodes it needs: it does not wait for the log any longer, its client does"
            );
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Asks for processes, which the server must answer in time.
async fn ask(session: &mut Postgres, text: &str) -> Result<Vec<u32>, WireError> {
    let asked = tokio::time::timeout(PATIENCE, session.query(text)).await;
    let asked = asked.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    let pids = asked.rows().into_iter().flatten().flatten();
    Ok(pids.filter_map(|pid| pid.parse().ok()).collect())
}
