//! Asking for another active, and waiting until it serves: what the command line and the HTTP
//! interface do when an operator wants it.

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
    #[error("nobody serves that could hand over")]
    NobodyServes,
    /// The node that was asked refused, or did not answer.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The registry could not be read.
    #[error(transparent)]
    Record(#[from] RecordError),
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
    let asked = whom(&members, to.as_ref(), how)?;
    let force = how == How::Forced;
    let order = Request::Failover { to, force };
    channel::request(&asked.channel, me, order, ANSWER_WITHIN).await?;
    tracing::info!(asked = %asked.name, ?how, "requested another active");
    let deadline = Instant::now() + DONE_WITHIN;
    loop {
        let beat = Heartbeat::load(storage).await?;
        let new = beat.filter(|b| b.epoch.0 > before && b.state == ActiveState::Serving);
        if let Some(beat) = new {
            return Ok(beat);
        }
        if Instant::now() > deadline {
            return Err(HandoverError::NotInTime);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Who must be asked: the active if it shall cooperate, else the standby.
fn whom<'m>(
    members: &'m [Member],
    to: Option<&NodeName>,
    how: How,
) -> Result<&'m Member, HandoverError> {
    let named = |member: &&Member| to.is_none_or(|to| member.name == *to);
    // Where another server than PostgreSQL is hosted, those who may take over hold nothing: spares.
    let of_role = |role: Role| members.iter().filter(move |m| m.role == role);
    let standby = of_role(Role::Standby)
        .find(named)
        .or_else(|| of_role(Role::Spare).find(named));
    let active = members
        .iter()
        .find(|m| m.role == Role::Active && m.state == MemberState::Serving);
    let Some(standby) = standby else {
        let whom = to.map_or("there is no standby".to_owned(), |to| {
            format!("{to} is no standby")
        });
        return Err(HandoverError::NoCandidate(whom));
    };
    match (how, active) {
        (How::Planned | How::IfPossible, Some(active)) => Ok(active),
        (How::Planned, None) => Err(HandoverError::NobodyServes),
        (How::IfPossible | How::Forced, _) => Ok(standby),
    }
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

    #[test]
    fn the_active_is_asked_to_hand_over_unless_forced_or_gone() {
        let members = [
            member("a", "active", "serving"),
            member("b", "standby", "warm"),
        ];
        let asked = |members, how| whom(members, None, how).map(|m| m.name.to_string());
        for (how, both, standby_only) in [
            (How::Planned, "a", None),
            (How::IfPossible, "a", Some("b")),
            (How::Forced, "b", Some("b")),
        ] {
            assert_eq!(asked(&members, how).unwrap(), both);
            assert_eq!(asked(&members[1..], how).ok().as_deref(), standby_only);
            assert!(asked(&members[..1], how).is_err(), "nobody to follow");
        }
        let a = NodeName::new("a").unwrap();
        assert!(whom(&members, Some(&a), How::Planned).is_err());
    }
}
