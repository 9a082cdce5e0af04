//! A standby that has replayed everything moves its base to the last seal before it is promoted.
//!
//! An old active that stops cleanly seals last of all, and the standby's base is always an older one.
//! Going on from there would leave what was sealed since on a branch that nobody continues: the old
//! active, which joins again at its own last seal, and every other standby whose base is newer, would
//! have to attach afresh as soon as the new active seals. With redo at rest at the end of the log a
//! move is as good as any other ([`volume::standby`]), and leaves less to write back.
//!
//! Invariant: nothing depends on it. What cannot be done at once is left, and the base stays.
//! No claim is needed: only the owner of the epoch reclaims, and that is this node.

use std::time::Duration;

use pgserver::Session;
use volume::latest::Latest;
use volume::seal::Seal;

use super::LogTail;
use crate::agent::error::Result;
use crate::agent::standby::Standby;

/// Clients wait meanwhile.
const WITHIN: Duration = Duration::from_millis(300);

/// Has PostgreSQL write the state of prepared transactions into files. It would read it from the log when it is promoted, and
/// the old active may have removed that segment behind a checkpoint, which wrote its own files: the promotion would fail.
pub(crate) async fn keep_prepared(session: &Session) {
    let kept = async {
        if session.may_have_prepared().await? {
            session.checkpoint().await?;
        }
        Ok::<(), pgserver::PostgresError>(())
    };
    if let Err(error) = kept.await {
        tracing::warn!(%error, "the standby did not write the state of prepared transactions into files");
    }
}

/// See the module. PostgreSQL has replayed to the end of the log.
pub(crate) async fn settle(standby: &Standby, latest: &Latest, tail: LogTail) {
    let base = standby.view.base_seal();
    let last = latest.seals().last();
    let Some(seal) = last.filter(|seal| seal.end <= tail.end && seal.continues(&base)) else {
        return;
    };
    match tokio::time::timeout(WITHIN, move_to(standby, seal)).await {
        Ok(Ok(true)) => tracing::info!(
            was = %base.generation,
            now = %seal.generation,
            "the base moved to the last seal before the promotion"
        ),
        Ok(Ok(false)) => {}
        Ok(Err(error)) => tracing::info!(%error, "continuing from an older seal than the last one"),
        Err(_) => tracing::info!("continuing from an older seal: a move would take too long now"),
    }
}

async fn move_to(standby: &Standby, seal: &Seal) -> Result<bool> {
    let next = standby.view.load_next(seal).await?;
    let plan = standby.view.plan_move(next).await?;
    Ok(standby.view.move_base(plan)?)
}
