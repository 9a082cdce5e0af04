//! The active that waits for slow standbys (CAC-DB 4.4.2): its commits are held while a standby that
//! makes progress is farther behind than it may be. Only for comparison: it costs throughput, and what
//! it prevents is no danger here, where log is kept for standbys and one too far behind attaches afresh.
//!
//! Invariant: a standby whose replay does not move for [`STALLED`], or that is not connected, is not
//! waited for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use coordination::channel::Server;
use dax::ids::NodeName;
use parking_lot::Mutex;
use pgdata::sealer::Sealer;
use serde::Serialize;
use tokio::time::Instant;
use volume::lsn::Lsn;

/// A standby that stands still for so long is not waited for.
const STALLED: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// For the node's status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Waits {
    /// How often commits began to be held.
    pub count: u64,
    /// How long they were held in all.
    pub total_ms: u64,
}

/// Which standbys move.
#[derive(Debug, Default)]
struct SlowStandbys {
    /// How far each is, and since when.
    seen: HashMap<NodeName, (Lsn, Instant)>,
}

impl SlowStandbys {
    /// True if commits must wait, with the log at `end` and the standbys as they say.
    fn holds(
        &mut self,
        end: Lsn,
        bound_bytes: u64,
        standbys: &[(NodeName, Lsn)],
        now: Instant,
    ) -> bool {
        let connected = |node: &NodeName| standbys.iter().any(|(name, _)| name == node);
        self.seen.retain(|node, _| connected(node));
        let mut holds = false;
        for (node, applied) in standbys {
            let seen = self.seen.entry(node.clone()).or_insert((*applied, now));
            if seen.0 != *applied {
                *seen = (*applied, now);
            }
            let behind = end.bytes_since(*applied) > bound_bytes;
            holds |= behind && now.duration_since(seen.1) < STALLED;
        }
        holds
    }
}

/// Holds and releases the active's commits; runs until it is aborted.
pub(super) async fn run(
    server: Arc<Server>,
    sealer: Arc<Sealer>,
    bound_bytes: u64,
    told: Arc<Mutex<Waits>>,
) {
    let _release = Release(Arc::clone(&sealer));
    let (mut slow, mut since) = (SlowStandbys::default(), None);
    let synced = sealer.synced();
    loop {
        let subscribers = server.subscribers().into_iter();
        let standbys: Vec<_> = subscribers
            .filter_map(|s| Some((s.who.node, s.progress?.applied)))
            .collect();
        let (now, end) = (Instant::now(), synced.borrow().end);
        let holds = slow.holds(end, bound_bytes, &standbys, now);
        if holds && since.is_none() {
            told.lock().count += 1;
            tracing::debug!("commits wait for a slow standby");
        }
        if let Some(since) = since {
            told.lock().total_ms += now.duration_since(since).as_millis() as u64;
        }
        since = holds.then_some(now);
        sealer.hold_commits(holds);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// However this ends, nobody waits any longer.
struct Release(Arc<Sealer>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.hold_commits(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_active_waits_for_who_moves_and_for_nobody_else() {
        let node = |name: &str| NodeName::new(name).unwrap();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut slow = SlowStandbys::default();
        let mut holds = |end, standbys: &[(&str, u64)], at| {
            let standbys: Vec<_> = standbys
                .iter()
                .map(|(n, lsn)| (node(n), Lsn(*lsn)))
                .collect();
            slow.holds(Lsn(end), 100, &standbys, at)
        };
        assert!(!holds(1000, &[], start), "no standby");
        assert!(!holds(1000, &[("a", 900)], start), "near enough");
        assert!(holds(1001, &[("a", 900)], start));
        assert!(holds(1001, &[("a", 900), ("b", 1001)], after(4)));
        assert!(!holds(1001, &[("a", 900)], after(5)), "it stands still");
        assert!(holds(1101, &[("a", 901)], after(6)), "it goes on");
        assert!(!holds(1101, &[], after(6)), "it is gone");
        assert!(holds(1101, &[("a", 901)], after(60)), "it is back");
    }
}
