//! A major upgrade: what is to be done next, decided from what both managers say.
//!
//! ```text
//!   older is primary, newer follows ──▶ compared, and equal ──▶ switched over ──▶ newer is primary, older follows: the way back is open
//!                 ▲                                                                    │            │ older is set aside, or lost
//!                 └───────────────────── the same, the other way round ◀───────────────┘            ▼
//!                                                                                          the way back is closed
//! ```
//!
//! Pure. Invariant: nothing is kept of an upgrade: its state follows from the members' versions and the managers' states.

mod advice;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::Serialize;

use super::command::Status;
use super::verify::Verdict;
use crate::core::manager::{Role, Why};

pub use advice::{newer_member, replacement, second_member};

/// The major version of a `server_version_num`.
pub fn major(version: u32) -> u32 {
    version / 10_000
}

/// A `server_version_num` as a person writes it: `18.1`.
pub fn release(version: u32) -> String {
    format!("{}.{}", major(version), version % 10_000)
}

/// The member that is to become primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The newer one.
    Forward,
    /// The older one.
    Back,
}

/// A manager, and its member's version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Side {
    /// The manager's name.
    pub manager: String,
    /// The version of its member's server.
    pub version: String,
}

impl Side {
    fn new(status: &Status, version: u32) -> Side {
        Side {
            manager: status.name.clone(),
            version: release(version),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.manager, self.version)
    }
}

/// A reason for which an upgrade does not go on. Each says who it is about; [`Refusal::advice`] says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// A manager does not answer.
    Unreachable,
    /// A manager does not know its member's version.
    Unknown(String),
    /// No member is newer: both have these versions.
    SameVersion([Side; 2]),
    /// The member that is to become primary is that already.
    Serves(Direction, Side),
    /// The newer member is not primary, so there is nothing to finish.
    NotSwitchedOver(Side),
    /// A member waits for an operator.
    SetAside(Side, String),
    /// A member does not answer.
    NoMember(String),
    /// The members differ.
    Differs(Vec<String>),
    /// The other member did not become primary, and this one is again.
    Stayed(Side),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Unreachable => f.write_str("a manager cannot be reached"),
            Refusal::Unknown(manager) => {
                write!(
                    f,
                    "the manager {manager} does not say which version its member has"
                )
            }
            Refusal::SameVersion([one, other]) => {
                write!(
                    f,
                    "no member has a newer major version: they are {one} and {other}"
                )
            }
            Refusal::Serves(Direction::Forward, side) => {
                write!(
                    f,
                    "the member of the newer version is primary already: {side}"
                )
            }
            Refusal::Serves(Direction::Back, side) => {
                write!(
                    f,
                    "the member of the older version is primary already: {side}"
                )
            }
            Refusal::NotSwitchedOver(side) => {
                write!(f, "the member of the newer version is not primary: {side}")
            }
            Refusal::SetAside(side, why) => write!(f, "the member of {side} is set aside: {why}"),
            Refusal::NoMember(side) => write!(f, "the member of {side} does not answer"),
            Refusal::Differs(differences) => {
                write!(f, "the members differ: {}", differences.join("; "))
            }
            Refusal::Stayed(side) => {
                write!(
                    f,
                    "the other manager did not take over, and {side} is primary again"
                )
            }
        }
    }
}

impl Refusal {
    /// The thing to do.
    pub fn advice(&self) -> &'static str {
        match self {
            Refusal::Unreachable => {
                "Start it: understudy mirror run. understudy mirror status shows both managers."
            }
            Refusal::Unknown(_) => {
                "Run this version of Understudy on both sides, and start the member's server."
            }
            Refusal::SameVersion(_) => {
                "Replace the standby's server by an empty one of the new version, as the lines above say."
            }
            Refusal::Serves(Direction::Forward, _) => {
                "understudy mirror upgrade --back switches over to the older version, and --finish ends the upgrade."
            }
            Refusal::Serves(Direction::Back, _) => {
                "understudy mirror upgrade switches over to the newer version."
            }
            Refusal::NotSwitchedOver(_) => "Switch over first: understudy mirror upgrade.",
            Refusal::SetAside(..) => {
                "Decide which member is right: understudy mirror resolve --keep NAME."
            }
            Refusal::NoMember(_) => {
                "Start its server, and wait until understudy mirror status shows a standby."
            }
            Refusal::Differs(_) => {
                "Find out which member is right; make it primary, and keep it: understudy mirror resolve --keep NAME."
            }
            Refusal::Stayed(_) => {
                "The log of the other manager says why it did not take over. Then try again."
            }
        }
    }
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Wait for this.
    Wait(String),
    /// Compare the members.
    Verify,
    /// Switch over.
    SwitchOver,
    /// Nothing is left to be done.
    Done,
    /// Stop.
    Refused(Refusal),
}

/// Both members, by version.
#[derive(Debug, Clone, Copy)]
struct Pair<'a> {
    older: (&'a Status, u32),
    newer: (&'a Status, u32),
}

impl<'a> Pair<'a> {
    /// Reads it from what both managers say.
    fn read(statuses: &'a [Option<Status>]) -> Result<Pair<'a>, Refusal> {
        let [Some(one), Some(other)] = statuses else {
            return Err(Refusal::Unreachable);
        };
        let version = |status: &'a Status| match (status.server_version_num, status.role) {
            (Some(version), _) => Ok((status, version)),
            (None, Role::Recovering(Why::NoMember)) => Err(Refusal::NoMember(status.name.clone())),
            (None, _) => Err(Refusal::Unknown(status.name.clone())),
        };
        let (one, other) = (version(one)?, version(other)?);
        match major(one.1).cmp(&major(other.1)) {
            std::cmp::Ordering::Less => Ok(Pair {
                older: one,
                newer: other,
            }),
            std::cmp::Ordering::Greater => Ok(Pair {
                older: other,
                newer: one,
            }),
            std::cmp::Ordering::Equal => {
                let sides = [one, other].map(|(status, version)| Side::new(status, version));
                Err(Refusal::SameVersion(sides))
            }
        }
    }
}

/// Refuses a member that does not become a standby by itself.
fn must_return((status, version): (&Status, u32)) -> Result<(), Refusal> {
    let side = Side::new(status, version);
    match status.role {
        Role::Recovering(why) if why.is_set_aside() => Err(Refusal::SetAside(side, reason(status))),
        Role::Recovering(Why::NoMember) if !status.is_filling => {
            Err(Refusal::NoMember(side.to_string()))
        }
        _ => Ok(()),
    }
}

/// The reason for which a manager is no standby, as far as it says one.
fn reason(status: &Status) -> String {
    let said = status.difference.as_ref().or(status.advice.as_ref());
    said.cloned().unwrap_or_else(|| state(status))
}

/// The state of a manager that is no standby.
fn state(status: &Status) -> String {
    if let Some(filling) = &status.filling {
        return format!("it is being filled: {filling}");
    }
    let lacks = status.logged.saturating_sub(status.applied.unwrap_or(0));
    match status.role {
        Role::Recovering(Why::Starting) => "it is starting".to_owned(),
        Role::Recovering(Why::NoMember) => "its member does not answer".to_owned(),
        Role::Recovering(Why::CatchingUp) => format!("it lacks {lacks} transactions"),
        Role::Recovering(Why::TakingOver) => "it is taking over".to_owned(),
        Role::Recovering(Why::Behind) => "it is to be filled".to_owned(),
        Role::Recovering(Why::Replaced) => "it has lost its epoch".to_owned(),
        Role::Recovering(_) => "it is set aside".to_owned(),
        _ => format!("it lacks {lacks} transactions"),
    }
}

/// The next step of an upgrade, or of the way back. `verdict` is that of this run, and `has_switched` says that it has switched over.
pub fn next(
    direction: Direction,
    statuses: &[Option<Status>],
    verdict: Option<&Verdict>,
    has_switched: bool,
) -> Next {
    let pair = match Pair::read(statuses) {
        Ok(pair) => pair,
        // A manager may be silent for a moment while the epoch changes.
        Err(Refusal::Unreachable) if has_switched => {
            return Next::Wait("both managers to answer".to_owned());
        }
        Err(refusal) => return Next::Refused(refusal),
    };
    let (from, to) = match direction {
        Direction::Forward => (pair.older, pair.newer),
        Direction::Back => (pair.newer, pair.older),
    };
    match has_switched {
        true => after(from, to),
        false => before(direction, from, to, verdict).unwrap_or_else(Next::Refused),
    }
}

fn before(
    direction: Direction,
    from: (&Status, u32),
    to: (&Status, u32),
    verdict: Option<&Verdict>,
) -> Result<Next, Refusal> {
    if to.0.role == Role::Primary {
        return Err(Refusal::Serves(direction, Side::new(to.0, to.1)));
    }
    must_return(to)?;
    must_return(from)?;
    if from.0.role != Role::Primary {
        let side = Side::new(from.0, from.1);
        return Ok(Next::Wait(format!(
            "{side} to be primary: {}",
            state(from.0)
        )));
    }
    if to.0.role != Role::Standby || !from.0.has_standby {
        let side = Side::new(to.0, to.1);
        let why = to.0.advice.clone().unwrap_or_else(|| state(to.0));
        return Ok(Next::Wait(format!("{side} to follow: {why}")));
    }
    match verdict {
        None => Ok(Next::Verify),
        Some(verdict) if verdict.equal => Ok(Next::SwitchOver),
        Some(verdict) => Err(Refusal::Differs(verdict.differences.clone())),
    }
}

fn after(from: (&Status, u32), to: (&Status, u32)) -> Next {
    let (left, taking) = (Side::new(from.0, from.1), Side::new(to.0, to.1));
    if from.0.role == Role::Primary {
        return Next::Refused(Refusal::Stayed(left));
    }
    if to.0.role != Role::Primary {
        return Next::Wait(format!("{taking} to serve: {}", state(to.0)));
    }
    let follows = from.0.role == Role::Standby && to.0.has_standby;
    match must_return(from) {
        Ok(()) if !follows => Next::Wait(format!("{left} to follow: {}", state(from.0))),
        // If it does not return, the way back is closed, and the switchover is done all the same.
        _ => Next::Done,
    }
}

/// State of an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The older member is primary.
    NotSwitchedOver,
    /// The newer member is primary, and the older one follows.
    WayBackOpen,
    /// The newer member is primary, and the older one does not follow.
    WayBackClosed,
}

/// An upgrade that is under way: the members have different major versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Upgrade {
    /// The older member.
    pub from: Side,
    /// The newer member.
    pub to: Side,
    /// State of the upgrade.
    pub state: Stage,
    /// The reason for which the older member does not follow.
    pub why: Option<String>,
}

impl fmt::Display for Upgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "upgrade from {} to {}: ", self.from, self.to)?;
        match (self.state, &self.why) {
            (Stage::NotSwitchedOver, _) => f.write_str("not switched over yet"),
            (Stage::WayBackOpen, _) => f.write_str("the way back is open"),
            (Stage::WayBackClosed, Some(why)) => write!(f, "the way back is closed: {why}"),
            (Stage::WayBackClosed, None) => f.write_str("the way back is closed"),
        }
    }
}

/// The upgrade that both managers' statuses show; nothing if the major versions are the same, or one is unknown.
pub fn upgrade(statuses: &[Option<Status>]) -> Option<Upgrade> {
    let Pair { older, newer } = Pair::read(statuses).ok()?;
    let follows = older.0.role == Role::Standby && newer.0.has_standby;
    let (state, why) = match newer.0.role {
        Role::Primary if follows => (Stage::WayBackOpen, None),
        Role::Primary => (Stage::WayBackClosed, Some(reason(older.0))),
        _ => (Stage::NotSwitchedOver, None),
    };
    Some(Upgrade {
        from: Side::new(older.0, older.1),
        to: Side::new(newer.0, newer.1),
        state,
        why,
    })
}

/// Ends an upgrade: the manager whose member is to be replaced, and the version that it gets.
///
/// # Errors
/// The newer member is not primary.
pub fn finish(statuses: &[Option<Status>]) -> Result<(Side, Side), Refusal> {
    let Pair { older, newer } = Pair::read(statuses)?;
    let to = Side::new(newer.0, newer.1);
    match newer.0.role {
        Role::Primary => Ok((Side::new(older.0, older.1), to)),
        _ => Err(Refusal::NotSwitchedOver(to)),
    }
}
