//! Asking for another active, and waiting until it serves: what the command line and the HTTP
//! interface do when an operator wants it.

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
/// How long a node may take to say that it is there.
const THERE_WITHIN: Duration = Duration::from_secs(2);
/// How long the node that is asked may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How often the registry is asked whether it is done.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// With or without the old active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The active hands over; refused if nobody serves.
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
    /// Nobody could become the active; says why.
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
        /// Who does.
        serves: NodeName,
        /// Who should.
        wanted: NodeName,
    },
    /// It was asked, and nobody serves yet.
    #[error("no new active within {DONE_WITHIN:?}")]
    NotInTime,
}

/// Has `to` (any standby, if `None`) become the active, and waits until it serves.
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
    let candidates = whom(&members, to.as_ref(), how)?;
    let order = Request::Failover {
        to: to.clone(),
        force: how == How::Forced,
    };
    let asked = first(&candidates, |member| ask(me, member, &order)).await?;
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

/// A cluster may well have another active than the one that was wanted: its operator has to hear of that.
fn as_wanted(beat: Heartbeat, wanted: Option<NodeName>) -> Result<Heartbeat, HandoverError> {
    match wanted {
        Some(wanted) if wanted != beat.node => Err(HandoverError::AnotherServes {
            serves: beat.node,
            wanted,
        }),
        _ => Ok(beat),
    }
}

/// Why one that was asked does not do it.
#[derive(Debug)]
enum No {
    /// It is not there, or will not: another one may.
    Next(ChannelError),
    /// It may do it yet, or knows that nobody can.
    Last(ChannelError),
}

/// Asks one after the other until one does it; says which.
async fn first<'m, Asked: Future<Output = Result<(), No>>>(
    candidates: &[&'m Member],
    ask: impl Fn(&'m Member) -> Asked,
) -> Result<&'m Member, HandoverError> {
    let mut refusals = Vec::new();
    for member in candidates {
        match ask(member).await {
            Ok(()) => return Ok(member),
            Err(No::Last(error)) => return Err(error.into()),
            Err(No::Next(error)) => {
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

async fn ask(me: &Party, member: &Member, order: &Request) -> Result<(), No> {
    // An order that gets no answer may be carried out all the same, and then nobody else may get it. A question harms nobody.
    let there = channel::request(&member.channel, me, Request::Status, THERE_WITHIN).await;
    there.map_err(No::Next)?;
    let done = channel::request(&member.channel, me, order.clone(), ANSWER_WITHIN).await;
    match done {
        Ok(_) => Ok(()),
        // The active speaks for all; a standby for itself.
        Err(error @ ChannelError::Refusal { .. }) if member.role != Role::Active => {
            Err(No::Next(error))
        }
        Err(error) => Err(No::Last(error)),
    }
}

/// Who is to be asked, one after the other until one does it: the active if it shall cooperate, and standbys if they may do it
/// without it. Records of dead nodes stay: whether somebody is there is not known here.
fn whom<'m>(
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
        // Where another server than PostgreSQL is hosted, those who may take over hold nothing: spares.
        standbys = of_role(Role::Spare);
    }
    standbys.sort_by(|a, b| rank(a).cmp(&rank(b)));
    let active = members
        .iter()
        .find(|m| m.role == Role::Active && m.state == MemberState::Serving);
    if standbys.is_empty() {
        let whom = to.map_or("there is no standby".to_owned(), |to| {
            format!("{to} is no standby")
        });
        return Err(HandoverError::NoCandidate(whom));
    }
    match (how, active) {
        (How::Planned, None) => Err(HandoverError::NobodyServes),
        (How::Planned, Some(active)) => Ok(vec![active]),
        (How::IfPossible, active) => Ok(active.into_iter().chain(standbys).collect()),
        (How::Forced, _) => Ok(standbys),
    }
}

/// Sorts those who may become the active, best first: roughly as they rank themselves when the active dies. Those who would not
/// by themselves come last: an order overrides that, if it must.
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
        let asked = |members, how| names(whom(members, None, how));
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
        assert!(whom(&members, Some(&a), How::Planned).is_err());
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
        let asked = |to| names(whom(&members, to, How::IfPossible));
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
        let done = first(&candidates, async |member| match member.name.as_str() {
            "b" => Ok(()),
            other => Err(No::Next(error(other))),
        });
        assert_eq!(done.await.unwrap().name.as_str(), "b");

        let unknown = first(&candidates, async |member| match member.name.as_str() {
            "a" => Err(No::Last(error("a"))),
            other => panic!("{other} was asked as well"),
        });
        assert!(matches!(unknown.await, Err(HandoverError::Channel(_))));

        let refuse = async |member: &Member| Err(No::Next(error(member.name.as_str())));
        let one = first(&candidates[..1], refuse).await.unwrap_err();
        assert!(matches!(one, HandoverError::Channel(_)));
        let all = first(&candidates, refuse).await.unwrap_err().to_string();
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
