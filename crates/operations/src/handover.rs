//! Change of the active by an operator's order, for the command line and the HTTP interface: asks a node, and waits until the
//! new active serves.

use std::cmp::Reverse;
use std::time::Duration;

use coordination::channel::{self, ChannelError, Party, Request};
use coordination::records::{
    ActiveState, Heartbeat, Member, MemberState, Record, RecordError, Role,
};
use dax::ids::NodeName;
use dax::storage::Storage;
use tokio::time::Instant;

/// How long the change may take.
const DONE_WITHIN: Duration = Duration::from_secs(60);
/// How long a node may take to answer that it is running.
const THERE_WITHIN: Duration = Duration::from_secs(2);
/// How long a node may take to answer the order.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How often the registry is read for the new active.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Part of the old active in the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The active hands over. Refused if there is no active.
    Planned,
    /// The active hands over if there is one, else the standby takes over by itself.
    IfPossible,
    /// The standby takes over by itself.
    Forced,
}

/// Why the active did not change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandoverError {
    /// No standby could become the active, for this reason.
    #[error("{0}")]
    NoCandidate(String),
    /// A planned change needs an active that hands over.
    #[error("no node is active that could hand over")]
    NobodyServes,
    /// The node that was asked refused, or did not answer.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The registry could not be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Another node serves than the one that should.
    #[error("{serves} is the active now, not {wanted}")]
    AnotherServes {
        /// The node that serves.
        serves: NodeName,
        /// The node that was to serve.
        wanted: NodeName,
    },
    /// A node accepted the order, and no node serves yet.
    #[error("no new active within {DONE_WITHIN:?}")]
    NotInTime,
}

/// Makes `to` the active, or the best standby if `None`, and waits until it serves.
///
/// # Errors
/// [`HandoverError`]
pub async fn hand_over(
    storage: &dyn Storage,
    me: &Party,
    to: Option<NodeName>,
    how: How,
) -> Result<Heartbeat, HandoverError> {
    let members = Member::list(storage).await?;
    let before = Heartbeat::load(storage)
        .await?
        .map_or(0, |beat| beat.epoch.0);
    let candidates = to_ask(&members, to.as_ref(), how)?;
    let order = Request::Failover {
        to: to.clone(),
        force: how == How::Forced,
    };
    let asked = first_accepting(&candidates, |member| ask(me, member, &order)).await?;
    tracing::info!(asked = %asked.name, ?how, "requested another active");
    let deadline = Instant::now() + DONE_WITHIN;
    loop {
        let beat = Heartbeat::load(storage).await?;
        let new = beat.filter(|b| b.epoch.0 > before && b.state == ActiveState::Serving);
        if let Some(beat) = new {
            return as_wanted(beat, to);
        }
        if Instant::now() > deadline {
            return Err(HandoverError::NotInTime);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Refuses a new active that is not the wanted one: the cluster works, but its operator must know.
fn as_wanted(beat: Heartbeat, wanted: Option<NodeName>) -> Result<Heartbeat, HandoverError> {
    match wanted {
        Some(wanted) if wanted != beat.node => Err(HandoverError::AnotherServes {
            serves: beat.node,
            wanted,
        }),
        _ => Ok(beat),
    }
}

/// Failure of an order to one node.
#[derive(Debug)]
enum Declined {
    /// The node is not running, or refuses: the next one is asked.
    TryNext(ChannelError),
    /// The node may still carry the order out, or has refused for all: no other one is asked.
    Final(ChannelError),
}

/// Asks the candidates one after the other. Returns the first that accepts.
async fn first_accepting<'m, Asked: Future<Output = Result<(), Declined>>>(
    candidates: &[&'m Member],
    ask: impl Fn(&'m Member) -> Asked,
) -> Result<&'m Member, HandoverError> {
    let mut refusals = Vec::new();
    for member in candidates {
        match ask(member).await {
            Ok(()) => return Ok(member),
            Err(Declined::Final(error)) => return Err(error.into()),
            Err(Declined::TryNext(error)) => {
                tracing::info!(asked = %member.name, %error, "this node does not become the active");
                refusals.push((member, error));
            }
        }
    }
    if refusals.len() == 1
        && let Some((_, error)) = refusals.pop()
    {
        return Err(error.into());
    }
    let why: Vec<String> = refusals
        .iter()
        .map(|(member, error)| format!("{}: {error}", member.name))
        .collect();
    let why = format!("no standby becomes active ({})", why.join("; "));
    Err(HandoverError::NoCandidate(why))
}

async fn ask(me: &Party, member: &Member, order: &Request) -> Result<(), Declined> {
    // An unanswered order may still be carried out, so no other node may get it. Therefore a harmless request goes first.
    let there = channel::request(&member.channel, me, Request::Status, THERE_WITHIN).await;
    there.map_err(Declined::TryNext)?;
    let done = channel::request(&member.channel, me, order.clone(), ANSWER_WITHIN).await;
    match done {
        Ok(_) => Ok(()),
        // The active refuses for the whole cluster, a standby for itself.
        Err(error @ ChannelError::Refusal { .. }) if member.role != Role::Active => {
            Err(Declined::TryNext(error))
        }
        Err(error) => Err(Declined::Final(error)),
    }
}

/// Nodes to ask, in order: the active if it is to hand over, and standbys if they may take over without it. Dead nodes may be
/// among them, because their records stay.
fn to_ask<'m>(
    members: &'m [Member],
    to: Option<&NodeName>,
    how: How,
) -> Result<Vec<&'m Member>, HandoverError> {
    let named = |member: &&Member| to.is_none_or(|to| member.name == *to);
    let of_role = |role: Role| -> Vec<&Member> {
        let all = members.iter().filter(|m| m.role == role);
        all.filter(named).collect()
    };
    let mut standbys = of_role(Role::Standby);
    if standbys.is_empty() {
        // With a hosted server, the nodes that can take over are spares, because they hold no state.
        standbys = of_role(Role::Spare);
    }
    standbys.sort_by(|a, b| rank(a).cmp(&rank(b)));
    let active = members
        .iter()
        .find(|m| m.role == Role::Active && m.state == MemberState::Serving);
    if standbys.is_empty() {
        let why = to.map_or("there is no standby".to_owned(), |to| {
            format!("{to} is no standby")
        });
        return Err(HandoverError::NoCandidate(why));
    }
    match (how, active) {
        (How::Planned, None) => Err(HandoverError::NobodyServes),
        (How::Planned, Some(active)) => Ok(vec![active]),
        (How::IfPossible, active) => Ok(active.into_iter().chain(standbys).collect()),
        (How::Forced, _) => Ok(standbys),
    }
}

/// Order of candidates, best first: roughly as they rank themselves when the active dies. Nodes that do not take over by
/// themselves come last: an order may override that.
fn rank(member: &Member) -> impl Ord + '_ {
    let ready = match member.state {
        MemberState::Warm => 0,
        MemberState::CatchingUp => 1,
        MemberState::Stopped => 3,
        _ => 2,
    };
    (
        member.tags.nofailover || member.misfit.is_some(),
        ready,
        Reverse(member.tags.priority),
        Reverse(member.applied),
        &member.name,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, role: &str, state: &str) -> Member {
        serde_json::from_value(serde_json::json!({
            "name": name, "role": role, "state": state, "incarnation": "1",
            "postgres": "127.0.0.1:5432", "channel": "127.0.0.1:7432",
        }))
        .unwrap()
    }

    fn names(asked: Result<Vec<&Member>, HandoverError>) -> Option<Vec<&str>> {
        let asked = asked.ok()?;
        Some(asked.into_iter().map(|m| m.name.as_str()).collect())
    }

    #[test]
    fn the_active_is_asked_to_hand_over_unless_forced_or_gone() {
        let members = [
            member("a", "active", "serving"),
            member("b", "standby", "warm"),
        ];
        let asked = |members, how| names(to_ask(members, None, how));
        for (how, both, standby_only) in [
            (How::Planned, vec!["a"], None),
            (How::IfPossible, vec!["a", "b"], Some(vec!["b"])),
            (How::Forced, vec!["b"], Some(vec!["b"])),
        ] {
            assert_eq!(asked(&members, how), Some(both));
            assert_eq!(asked(&members[1..], how), standby_only);
            assert!(asked(&members[..1], how).is_none(), "nobody to follow");
        }
        let a = NodeName::new("a").unwrap();
        assert!(to_ask(&members, Some(&a), How::Planned).is_err());
    }

    // `failover` without a name once asked the first standby by name, dead or not, and failed although another one was warm.
    // hazard: NODE-24
    #[test]
    fn the_best_standby_is_asked_first_whatever_it_is_called() {
        let mut members = [
            member("a", "standby", "stopped"),
            member("b", "standby", "starting"),
            member("c", "standby", "warm"),
            member("d", "standby", "catching_up"),
            member("e", "standby", "warm"),
            member("f", "standby", "warm"),
            member("g", "spare", "starting"),
        ];
        members[2].tags.nofailover = true;
        members[5].applied = volume::lsn::Lsn(7);
        let asked = |to| names(to_ask(&members, to, How::IfPossible));
        assert_eq!(asked(None), Some(vec!["f", "e", "d", "b", "a", "c"]));
        let c = NodeName::new("c").unwrap();
        assert_eq!(asked(Some(&c)), Some(vec!["c"]));
        let spare = NodeName::new("g").unwrap();
        assert_eq!(asked(Some(&spare)), Some(vec!["g"]));
    }

    fn error(name: &str) -> ChannelError {
        let address = format!("{name}:7432").parse().unwrap();
        let why = "not now".to_owned();
        ChannelError::Refusal { address, why }
    }

    // hazard: NODE-24
    #[tokio::test]
    async fn the_next_one_is_asked_only_if_one_certainly_does_not_do_it() {
        let members = ["a", "b", "c"].map(|name| member(name, "standby", "warm"));
        let candidates: Vec<&Member> = members.iter().collect();
        let done = first_accepting(&candidates, async |member| match member.name.as_str() {
            "b" => Ok(()),
            other => Err(Declined::TryNext(error(other))),
        });
        assert_eq!(done.await.unwrap().name.as_str(), "b");

        let unknown = first_accepting(&candidates, async |member| match member.name.as_str() {
            "a" => Err(Declined::Final(error("a"))),
            other => panic!("{other} was asked as well"),
        });
        assert!(matches!(unknown.await, Err(HandoverError::Channel(_))));

        let refuse = async |member: &Member| Err(Declined::TryNext(error(member.name.as_str())));
        let one = first_accepting(&candidates[..1], refuse).await.unwrap_err();
        assert!(matches!(one, HandoverError::Channel(_)));
        let all = first_accepting(&candidates, refuse)
            .await
            .unwrap_err()
            .to_string();
        assert!(all.contains("a: the agent at a:7432 refused"), "{all}");
        assert!(all.contains("c: the agent at c:7432 refused"), "{all}");
    }

    // A switchover after which another node than the named one served was once reported as a success.
    // hazard: NODE-25
    #[test]
    fn another_active_than_the_wanted_one_is_no_success() {
        let beat: Heartbeat = serde_json::from_value(serde_json::json!({
            "epoch": 7, "counter": 1, "node": "a", "synced_lsn": 0, "journal_synced": 0,
            "timeline": 1, "state": "serving",
        }))
        .unwrap();
        let name = |name| Some(NodeName::new(name).unwrap());
        assert!(as_wanted(beat.clone(), None).is_ok());
        assert!(as_wanted(beat.clone(), name("a")).is_ok());
        let error = as_wanted(beat, name("b")).unwrap_err().to_string();
        assert_eq!(error, "a is the active now, not b");
    }
}
