//! The active gives up the claims of standbys that are gone for good, so that space comes back.
//!
//! Invariant: a claim is given up only after its node's record stood still for [`PATIENCE`]. A
//! standby that was merely asleep finds its claim missing before it takes over (the check follows
//! the fence, after which nothing can be given up any more) and attaches afresh.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dax::ids::NodeName;
use dax::storage::Storage;
use tokio::time::Instant;
use volume::claim::Claim;

use super::error::Result;
use crate::records::{Member, Record};

/// How long a silent standby keeps its claim.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often claims are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// What a node's record said, and since when it says so.
type Marks = HashMap<NodeName, (String, u64, Instant)>;

/// Runs for as long as this node is the active.
pub(super) async fn drop_silent(storage: Arc<dyn Storage>, me: NodeName) {
    let mut marks = Marks::new();
    loop {
        if let Err(error) = look(&storage, &me, &mut marks).await {
            tracing::info!(%error, "claims could not be looked at; trying again");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn look(storage: &Arc<dyn Storage>, me: &NodeName, marks: &mut Marks) -> Result<()> {
    let claims = Claim::all(storage).await?;
    let members = Member::list(storage.as_ref()).await?;
    let now = Instant::now();
    for node in claims
        .into_iter()
        .map(|claim| claim.node)
        .filter(|node| node != me)
    {
        let member = members.iter().find(|member| member.name == node);
        let says = member.map_or((String::new(), 0), |m| (m.incarnation.0.clone(), m.updated));
        let known = marks
            .get(&node)
            .filter(|known| (&known.0, known.1) == (&says.0, says.1));
        let since = known.map_or(now, |known| known.2);
        if now.duration_since(since) < PATIENCE {
            marks.insert(node, (says.0, says.1, since));
            continue;
        }
        tracing::warn!(%node, "silent for {} minutes: what it needs kept is given back; it attaches afresh when it returns", PATIENCE.as_secs() / 60);
        Claim::revoke(storage, &node).await?;
        marks.remove(&node);
    }
    Ok(())
}
