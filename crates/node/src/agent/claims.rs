//! What is kept for whom, and when a standby loses its claim, so that space comes back.
//!
//! ```text
//!   kept ── the node's record stood still for 10 minutes ─────────────────────▶ given back
//!     └──── it needs more log than the cap ──▶ revoked ── 30 s, and still so ──▶ given back
//! ```
//!
//! Invariants: the active is never held back for a standby. Nothing that a live standby reads is given
//! back before it had time to notice: it looks at its claim every second, and attaches afresh when
//! that does not stand. One that was merely asleep finds its claim missing before it takes over (the
//! check follows the fence, after which nothing can be given up any more).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use coordination::config::ByteSize;
use coordination::records::{Member, Record};
use dax::ids::NodeName;
use dax::storage::Storage;
use parking_lot::Mutex;
use pgdata::sealer::SyncedLog;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;
use volume::active::ActiveView;
use volume::claim::Claim;
use volume::lsn::Lsn;

use super::error::Result;

/// How long a silent standby keeps its claim.
const TIMEOUT: Duration = Duration::from_secs(600);
/// How long a live one has to let go of what it reads.
const GRACE: Duration = Duration::from_secs(30);
/// How often claims are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What is retained for one seal or node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Retained {
    /// `seal <generation>` or `node <name>`.
    pub holder: String,
    /// Log from there on.
    pub log_from: Lsn,
    /// How much that is.
    pub log_bytes: u64,
    /// It needs everything: it is about to attach.
    pub everything: bool,
}

/// Where it is told; part of the node's status.
pub(crate) type Told = Arc<Mutex<Vec<Retained>>>;

/// Looks after the claims for as long as this node is the active.
pub(super) struct Keeper {
    pub storage: Arc<dyn Storage>,
    pub view: Arc<ActiveView>,
    pub me: NodeName,
    /// The end of the synced log.
    pub synced: watch::Receiver<SyncedLog>,
    /// Log that a standby may need before it loses its claim.
    pub cap: ByteSize,
    pub told: Told,
}

/// What is known of a claiming node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    /// What its record said.
    says: (String, u64),
    /// Since when it says so.
    since: Instant,
    /// When its claim was revoked.
    revoked: Option<Instant>,
}

/// What becomes of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Keep,
    /// Tell its owner to let go.
    Revoke,
    GiveBackSilent,
    GiveBackRevoked,
}

/// Decides; `needed` is the log that the claim keeps, in bytes.
fn judge(mark: &Mark, needed: u64, cap: u64, now: Instant) -> Verdict {
    if now.duration_since(mark.since) >= TIMEOUT {
        return Verdict::GiveBackSilent;
    }
    match mark.revoked {
        _ if needed <= cap => Verdict::Keep,
        None => Verdict::Revoke,
        Some(at) if now.duration_since(at) >= GRACE => Verdict::GiveBackRevoked,
        Some(_) => Verdict::Keep,
    }
}

impl Keeper {
    /// Runs until it is aborted.
    pub async fn run(self) {
        let mut marks = HashMap::new();
        loop {
            if let Err(error) = self.look(&mut marks).await {
                tracing::info!(%error, "claims could not be looked at; trying again");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&self, marks: &mut HashMap<NodeName, Mark>) -> Result<()> {
        let claims = Claim::all(&self.storage).await?;
        let members = Member::list(self.storage.as_ref()).await?;
        let (now, end) = (Instant::now(), self.synced.borrow().end);
        *self.told.lock() = self.retained(&claims, end);
        marks.retain(|node, _| claims.iter().any(|claim| claim.node == *node));
        for claim in claims.into_iter().filter(|claim| claim.node != self.me) {
            let member = members.iter().find(|member| member.name == claim.node);
            let says = member.map_or((String::new(), 0), |m| (m.incarnation.0.clone(), m.updated));
            let mark = marks.entry(claim.node.clone()).or_insert_with(|| Mark {
                says: says.clone(),
                since: now,
                revoked: None,
            });
            if mark.says != says {
                (mark.says, mark.since) = (says, now);
            }
            let needed = needed_bytes(&claim, end);
            if needed <= self.cap.0 {
                mark.revoked = None;
            }
            let verdict = judge(mark, needed, self.cap.0, now);
            if verdict == Verdict::Revoke {
                mark.revoked = Some(now);
            }
            self.carry_out(verdict, &claim.node, needed).await?;
        }
        Ok(())
    }

    async fn carry_out(&self, verdict: Verdict, node: &NodeName, needed: u64) -> Result<()> {
        match verdict {
            Verdict::Keep => {}
            Verdict::Revoke => {
                tracing::warn!(%node, needed_bytes = needed, cap = %self.cap, "too far behind: it loses its claim and attaches afresh");
                Claim::revoke(&self.storage, node).await?;
            }
            Verdict::GiveBackSilent => {
                tracing::warn!(%node, "silent for {} minutes: what it needs kept is given back; it attaches afresh when it returns", TIMEOUT.as_secs() / 60);
                Claim::revoke(&self.storage, node).await?;
                Claim::release(&self.storage, node).await?;
            }
            Verdict::GiveBackRevoked => {
                tracing::warn!(%node, "it did not let go: what it needs kept is given back");
                Claim::release(&self.storage, node).await?;
            }
        }
        Ok(())
    }

    fn retained(&self, claims: &[Claim], end: Lsn) -> Vec<Retained> {
        let seals = self.view.seals();
        let seals = seals.iter().map(|seal| Retained {
            holder: format!("seal {}", seal.generation),
            log_from: seal.redo,
            log_bytes: end.bytes_since(seal.redo),
            everything: false,
        });
        let nodes = claims.iter().map(|claim| Retained {
            holder: format!("node {}", claim.node),
            log_from: claim.log_from,
            log_bytes: needed_bytes(claim, end),
            everything: claim.everything,
        });
        seals.chain(nodes).collect()
    }
}

/// A claim on everything counts as nothing: it lasts as long as an attach.
fn needed_bytes(claim: &Claim, end: Lsn) -> u64 {
    match claim.everything {
        true => 0,
        false => end.bytes_since(claim.log_from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_lost_by_silence_and_by_lag_but_not_at_once() {
        let start = Instant::now();
        let mark = |revoked| Mark {
            says: (String::new(), 0),
            since: start,
            revoked,
        };
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(judge(&mark(None), 10, 10, after(1)), Verdict::Keep);
        assert_eq!(judge(&mark(None), 11, 10, after(1)), Verdict::Revoke);
        let revoked = mark(Some(after(1)));
        assert_eq!(judge(&revoked, 11, 10, after(5)), Verdict::Keep);
        assert_eq!(judge(&revoked, 11, 10, after(31)), Verdict::GiveBackRevoked);
        assert_eq!(judge(&revoked, 9, 10, after(31)), Verdict::Keep);
        for needed in [0, 11] {
            let silent = judge(&mark(None), needed, 10, after(600));
            assert_eq!(silent, Verdict::GiveBackSilent);
        }
    }
}
