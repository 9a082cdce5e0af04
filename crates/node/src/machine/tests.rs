//! The machine against its table, and against stories.

mod stories;
mod table;

use super::*;

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
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
