//! The machine against its table, and against stories.

mod stories;
mod table;

use coordination::records::{Incarnation, Member};
use volume::lsn::Lsn;

use super::*;

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

/// A node in some role and state.
pub(super) fn member(name: &str, role: Role, state: MemberState) -> Member {
    let name = NodeName::new(name).unwrap();
    let postgres = "127.0.0.1:5432".parse().unwrap();
    let channel = "127.0.0.1:7432".parse().unwrap();
    Member {
        role,
        state,
        received: Lsn(10),
        applied: Lsn(10),
        updated: 1,
        ..Member::starting(name, Incarnation("1".into()), postgres, channel)
    }
}

pub(super) fn registry(node: &str, counter: u64, state: ActiveState) -> Registry {
    let beat = Beat {
        epoch: Epoch(3),
        counter,
    };
    Registry {
        beat: Some(LastBeat {
            node: name(node),
            beat,
            state,
        }),
        standby_alive: false,
        standbys: 0,
    }
}

pub(super) fn suspect(since: Duration) -> Verdict {
    Verdict::Suspect {
        since,
        evidence: Evidence::AgentGone,
    }
}

pub(super) fn failover(to: Option<&str>, force: bool) -> Event {
    let to = to.map(name);
    Event::Asked(Ask::Failover { to, force })
}
