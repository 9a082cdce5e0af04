//! What is kept for whom, and when a standby loses its claim, so that space comes back.
//!
//! ```text
//!   kept ── the node's record stood still for 10 minutes ──┐
//!     ├──── it needs more log than the cap ────────────────┼──▶ revoked ── GRACE ──▶ given back
//!     └──── an operator removed the node ──────────────────┘       │
//!     ▲                                                            │
//!     └──────────────── the node attached again ───────────────────┘
//! ```
//!
//! Invariants: the active is never held back for a standby. Nothing is given back but after the revocation has been
//! durable for [`GRACE`]: a live standby has noticed by then, because it looks at its claim with every look at
//! the heartbeat, and one that was merely asleep, or cut off, passes nothing on that it read later than its last
//! look allows ([`volume::standby::ClaimWatch`]). It also looks before it takes over, after the fence, when
//! nothing can be given up any more.

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
use volume::claim::{Claim, GRACE};
use volume::lsn::Lsn;

use super::error::Result;

/// How long a silent standby keeps its claim.
const TIMEOUT: Duration = Duration::from_secs(600);
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

/// Retained log by holder, for the node's status.
pub(crate) type RetainedStatus = Arc<Mutex<Vec<Retained>>>;

/// Looks after the claims for as long as this node is the active.
pub(super) struct Keeper {
    pub storage: Arc<dyn Storage>,
    pub view: Arc<ActiveView>,
    pub me: NodeName,
    /// The end of the synced log.
    pub synced: watch::Receiver<SyncedLog>,
    /// Log that a standby may need before it loses its claim.
    pub cap: ByteSize,
    pub told: RetainedStatus,
}

/// What is known of a claiming node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    /// What its record said.
    says: (String, u64),
    /// Since when it says so.
    since: Instant,
    /// Since when the revocation of its claim is known to be durable.
    revoked: Option<Instant>,
}

/// What becomes of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Keep,
    /// Tell its owner to let go.
    Revoke(Why),
    GiveBack,
}

/// Why a claim is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Silent,
    TooFarBehind,
    /// Somebody else has revoked it already: done again, because that may not be durable.
    Ordered,
}

/// Decides; `revoked`: there is a revocation; `needed` is the log that the claim keeps, in bytes.
fn judge(mark: &Mark, revoked: bool, needed: u64, cap: u64, now: Instant) -> Verdict {
    match mark.revoked.filter(|_| revoked) {
        Some(at) if now.duration_since(at) >= GRACE => Verdict::GiveBack,
        Some(_) => Verdict::Keep,
        None if revoked => Verdict::Revoke(Why::Ordered),
        None if now.duration_since(mark.since) >= TIMEOUT => Verdict::Revoke(Why::Silent),
        None if needed > cap => Verdict::Revoke(Why::TooFarBehind),
        None => Verdict::Keep,
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
        let revoked = Claim::revoked(&self.storage).await?;
        let members = Member::list(self.storage.as_ref()).await?;
        let (now, end) = (Instant::now(), self.synced.borrow().end);
        *self.told.lock() = self.retained(&claims, end);
        marks.retain(|node, _| claims.iter().any(|claim| claim.node == *node));
        for claim in claims.into_iter().filter(|claim| claim.node != self.me) {
            let member = members.iter().find(|member| member.name == claim.node);
            // Who is no node says that it is there by registering its claim again.
            let token = &claim.token;
            let says = member.map_or((token.attach.clone(), token.number), |m| {
                (m.incarnation.0.clone(), m.updated)
            });
            let mark = marks.entry(claim.node.clone()).or_insert_with(|| Mark {
                says: says.clone(),
                since: now,
                revoked: None,
            });
            if mark.says != says {
                (mark.says, mark.since) = (says, now);
            }
            let is_revoked = revoked.contains(&claim.node);
            if !is_revoked {
                mark.revoked = None;
            }
            let needed = needed_bytes(&claim, end);
            match judge(mark, is_revoked, needed, self.cap.0, now) {
                Verdict::Keep => {}
                Verdict::Revoke(why) => {
                    self.revoke(&claim.node, needed, why).await?;
                    mark.revoked = Some(Instant::now());
                }
                Verdict::GiveBack => {
                    tracing::warn!(node = %claim.node, "what it needs kept is given back");
                    Claim::give_back(&self.storage, &claim.node).await?;
                }
            }
        }
        Ok(())
    }

    async fn revoke(&self, node: &NodeName, needed: u64, why: Why) -> Result<()> {
        match why {
            Why::Silent => {
                tracing::warn!(%node, "silent for {} minutes: it loses its claim, and reattaches when it returns", TIMEOUT.as_secs() / 60);
            }
            Why::TooFarBehind => {
                tracing::warn!(%node, needed_bytes = needed, cap = %self.cap, "too far behind: the standby loses its claim and reattaches");
            }
            Why::Ordered => {}
        }
        Ok(Claim::revoke(&self.storage, node).await?)
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

    // A revocation that could not be written once still let the claim be removed 30 s later, and `understudy remove` removed
    // a claim at once: a live standby had no time to notice.
    // hazard: NODE-6
    #[test]
    fn a_claim_is_lost_by_silence_by_lag_and_by_order_and_given_back_only_after_the_grace() {
        let start = Instant::now();
        let mark = |revoked| Mark {
            says: (String::new(), 0),
            since: start,
            revoked,
        };
        let after = |seconds| start + Duration::from_secs(seconds);
        let judge = |revoked, is_revoked, needed, now| {
            judge(&mark(revoked), is_revoked, needed, 10, after(now))
        };
        assert_eq!(judge(None, false, 10, 1), Verdict::Keep);
        assert_eq!(
            judge(None, false, 11, 1),
            Verdict::Revoke(Why::TooFarBehind)
        );
        assert_eq!(judge(None, false, 0, 600), Verdict::Revoke(Why::Silent));
        // A revocation that was found is as good as none until it has been repeated.
        assert_eq!(judge(None, true, 11, 700), Verdict::Revoke(Why::Ordered));
        let revoked = Some(after(1));
        for (needed, now) in [(11, 5), (9, 30)] {
            assert_eq!(judge(revoked, true, needed, now), Verdict::Keep);
        }
        for (needed, now) in [(11, 31), (0, 31), (9, 800)] {
            assert_eq!(judge(revoked, true, needed, now), Verdict::GiveBack);
        }
        // It attached again in time.
        assert_eq!(judge(revoked, false, 0, 31), Verdict::Keep);
    }
}
