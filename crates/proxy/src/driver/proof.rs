//! Proof that the active still owns its epoch (R14): one that is cut off from the zones, and from the news of a takeover, would
//! answer reads with what was true once, for as long as its clients reach it.
//!
//! Invariant: what a client is told was on its way before the last proof was older than the lease.

use std::sync::Arc;
use std::time::Duration;

use volume::lsn::Lsn;

use super::cluster::Cluster;
use crate::core::topology::News;

/// The share of the lease after which the next proof is asked for.
const ASK_AFTER: u32 = 3;
/// How long to wait where no proof is asked for.
const NOTHING_TO_ASK: Duration = Duration::from_secs(1);

/// Asks for proof, as long as `lease` tells how long one counts; no limit if it is zero. `ask` answers when there is one, or
/// with nothing.
pub async fn watch<A>(
    cluster: Arc<Cluster>,
    lease: impl Fn() -> Option<Duration>,
    ask: impl Fn() -> Option<A>,
) where
    A: Future<Output = Option<Lsn>>,
{
    while let Some(lease) = lease() {
        if lease.is_zero() || cluster.topology().active.is_none() {
            tell(&cluster, false);
            tokio::time::sleep(NOTHING_TO_ASK).await;
            continue;
        }
        let pause = lease / ASK_AFTER;
        let Some(answer) = ask() else {
            return;
        };
        let answer = tokio::time::timeout(lease - pause, answer).await;
        let is_proof = matches!(answer, Ok(Some(_)));
        tell(&cluster, !is_proof);
        if is_proof {
            tokio::time::sleep(pause).await;
        }
    }
}

fn tell(cluster: &Cluster, is_unproven: bool) {
    if cluster.topology().is_unproven == is_unproven {
        return;
    }
    match is_unproven {
        true => {
            tracing::warn!(
                "the active does not prove that it is still active: its answers are held back"
            )
        }
        false => tracing::info!("the active proves that it still is"),
    }
    cluster.hear(News::Unproven(is_unproven));
}
