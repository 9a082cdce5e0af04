//! What became of a commit whose answer did not come.
//!
//! Owns the rule that decides it (R5). Invariant: "committed" is told only of a transaction whose commit is
//! in the log of the present epoch, "not committed" only of one whose commit is not and never will be.
//!
//! ```text
//!  epoch e                    epoch e+1                     now
//!  xid 90 commits   horizon(e+1) = 100    xid 100 is somebody else's
//!  xid 99, 100 ...  ────────┤
//!                           │ xid < 100: pg_xact_status knows
//!                           │ xid >= 100: did not commit; the number may be another's by now
//! ```

use std::collections::BTreeMap;

use dax::ids::Epoch;

/// An id of a transaction, with its epoch of ids: an `xid8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xid(pub u64);

/// The first id that no transaction of the log before a takeover has committed with:
/// `pg_snapshot_xmax(pg_current_snapshot())` on the standby that took over, when it had replayed all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Horizon(pub u64);

/// What `pg_xact_status` answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XactStatus {
    /// It committed.
    Committed,
    /// It was rolled back, or ended with its server.
    Aborted,
    /// It runs, or is prepared.
    InProgress,
    /// PostgreSQL has forgotten, or could not be asked.
    Unknown,
}

/// What can be said of a transaction before anybody is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// The active's `pg_xact_status` tells.
    Ask,
    /// It did not commit.
    NotCommitted,
    /// Nobody can tell.
    Unknown,
}

/// Judges transaction `xid` of epoch `ran_in`, in epoch `now`, by what the takeovers recorded.
pub fn judge(
    xid: Xid,
    ran_in: Epoch,
    now: Epoch,
    horizons: &BTreeMap<Epoch, Option<Horizon>>,
) -> Judgement {
    if now == ran_in {
        return Judgement::Ask;
    }
    if now < ran_in {
        return Judgement::Unknown;
    }
    // The first takeover after the transaction's epoch: later horizons count ids given since.
    let Some((_, Some(horizon))) = horizons.range(ran_in.next()..=now).next() else {
        return Judgement::Unknown;
    };
    if xid.0 >= horizon.0 {
        Judgement::NotCommitted
    } else {
        Judgement::Ask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn horizons(list: &[(u32, Option<u64>)]) -> BTreeMap<Epoch, Option<Horizon>> {
        list.iter()
            .map(|&(epoch, horizon)| (Epoch(epoch), horizon.map(Horizon)))
            .collect()
    }

    #[test]
    fn the_first_takeover_counts() {
        let known = horizons(&[(2, Some(100)), (3, Some(200))]);
        let judged = |xid| judge(Xid(xid), Epoch(1), Epoch(3), &known);
        assert_eq!(judged(99), Judgement::Ask);
        assert_eq!(judged(100), Judgement::NotCommitted);
        assert_eq!(
            judged(150),
            Judgement::NotCommitted,
            "given again in epoch 2"
        );
        assert_eq!(judge(Xid(150), Epoch(2), Epoch(3), &known), Judgement::Ask);
    }

    #[test]
    fn without_a_horizon_nobody_can_tell() {
        let known = horizons(&[(2, None), (3, Some(200))]);
        assert_eq!(
            judge(Xid(1), Epoch(1), Epoch(3), &known),
            Judgement::Unknown
        );
        assert_eq!(
            judge(Xid(1), Epoch(3), Epoch(4), &known),
            Judgement::Unknown
        );
    }

    #[test]
    fn in_the_same_epoch_the_server_is_asked() {
        assert_eq!(
            judge(Xid(1), Epoch(3), Epoch(3), &BTreeMap::new()),
            Judgement::Ask
        );
    }
}
