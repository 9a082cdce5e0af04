//! Work of operators on a running cluster, for the command line and HTTP: pauses, restarts, reloads, new beginnings, switchovers.
//!
//! Orders go to the agents over the direct channel, wishes into the control record. Nothing here holds
//! anything up that is needed for correctness: whoever gives up waiting leaves a cluster that goes on.

use std::sync::Arc;
use std::time::Duration;

use coordination::channel::{self, ChannelError, Party, Request};
use coordination::records::{
    Control, EditError, Libraries, Member, MemberState, Paused, Record, RecordError, Role,
    ScheduledSwitchover, ServerStart, edit_control, remove_probe, unix_ms,
};
use dax::ids::NodeName;
use dax::storage::Storage;
use serde_json::Value;
use tokio::time::Instant;
use volume::claim::Claim;

use crate::handover::{self, HandoverError, How};

/// How long other editors of the control record may keep one waiting.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long an agent may take to say how it is.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long an agent may take to restart the active's PostgreSQL, which stops with a checkpoint.
const RESTART_WITHIN: Duration = Duration::from_secs(150);
/// How long a node may take to read a new configuration.
const CONFIGURED_WITHIN: Duration = Duration::from_secs(10);
/// How long a node may take to be warm again.
const WARM_WITHIN: Duration = Duration::from_secs(600);
/// How often it is looked whether something is done.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A living node writes its record several times in this time.
const SILENT_FOR: Duration = Duration::from_secs(3);

/// Why an operator's wish was not fulfilled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperateError {
    /// Nobody has this name.
    #[error("there is no node {0}")]
    NoSuchNode(NodeName),
    /// It must not be done; says why.
    #[error("{0}")]
    Refused(String),
    /// It cannot be done during a takeover; says why.
    #[error("{0}")]
    NotNow(String),
    /// It was begun, and is not done yet; says what.
    #[error("{0}; the order stays in effect: see understudy status")]
    NotInTime(String),
    /// The control record was not changed.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The node that was asked refused, or did not answer.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The active did not change.
    #[error(transparent)]
    Handover(#[from] HandoverError),
    /// The registry could not be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The claim of a node could not be taken away.
    #[error(transparent)]
    Volume(#[from] volume::error::Error),
}

impl From<dax::error::Error> for OperateError {
    fn from(error: dax::error::Error) -> OperateError {
        OperateError::Record(error.into())
    }
}

/// Shorthand for results of this module.
pub type Result<T, E = OperateError> = std::result::Result<T, E>;

/// Who operates on what.
#[derive(Clone)]
pub struct Operator {
    /// A handle to the volume that owns no epoch.
    pub storage: Arc<dyn Storage>,
    /// Who asks.
    pub me: Party,
}

impl Operator {
    pub(crate) fn by(&self) -> &str {
        self.me.me.node.as_str()
    }

    pub(crate) async fn members(&self) -> Result<Vec<Member>> {
        Ok(Member::list(self.storage.as_ref()).await?)
    }

    async fn member(&self, node: &NodeName) -> Result<Member> {
        let members = self.members().await?;
        let found = members.into_iter().find(|m| m.name == *node);
        found.ok_or_else(|| OperateError::NoSuchNode(node.clone()))
    }

    /// What a node says of itself.
    pub(crate) async fn status(&self, member: &Member) -> Result<Value> {
        let ask = channel::request(&member.channel, &self.me, Request::Status, ANSWER_WITHIN);
        Ok(ask.await?)
    }

    /// Switches takeovers off.
    ///
    /// # Errors
    /// [`OperateError::Edit`]; also if they are off already.
    pub async fn pause(&self, reason: Option<String>) -> Result<Control> {
        let by = self.by().to_owned();
        let change = |control: &mut Control| {
            if let Some(paused) = &control.paused {
                let why = format!("it is paused already, by {}", paused.by);
                return Err(EditError::Refused(why));
            }
            control.paused = Some(Paused {
                since_unix_ms: unix_ms(),
                by,
                reason,
            });
            Ok(())
        };
        Ok(edit_control(self.storage.as_ref(), self.by(), None, TIMEOUT, change).await?)
    }

    /// Switches takeovers on again.
    ///
    /// # Errors
    /// [`OperateError::Edit`]; also if they are on.
    pub async fn resume(&self) -> Result<Control> {
        let change = |control: &mut Control| match control.paused.take() {
            Some(_) => Ok(()),
            None => Err(EditError::Refused("it is not paused".to_owned())),
        };
        Ok(edit_control(self.storage.as_ref(), self.by(), None, TIMEOUT, change).await?)
    }

    /// Waits until every node that answers goes by this version of the control record.
    ///
    /// # Errors
    /// [`OperateError::NotInTime`] with those that do not.
    pub async fn wait_known(&self, version: u64, within: Duration) -> Result<()> {
        let knows = |status: &Value| status["control"]["version"].as_u64() >= Some(version);
        self.wait_all(knows, within).await.map(drop)
    }

    /// Waits until every node that answers and runs PostgreSQL has this version of the configuration in its files; returns
    /// who that is.
    ///
    /// # Errors
    /// [`OperateError::NotInTime`] with those that do not.
    pub async fn wait_configured(&self, version: u64, within: Duration) -> Result<Vec<NodeName>> {
        self.wait_all(|status| is_configured(status, version), within)
            .await
    }

    /// Waits until this holds of the status of every node that answers, and returns their names. A dead node goes by nothing.
    async fn wait_all(
        &self,
        holds: impl Fn(&Value) -> bool,
        within: Duration,
    ) -> Result<Vec<NodeName>> {
        let deadline = Instant::now() + within;
        loop {
            let (mut there, mut behind) = (Vec::new(), Vec::new());
            for member in self.members().await? {
                match self.status(&member).await {
                    Ok(status) if holds(&status) => there.push(member.name),
                    Ok(status) => behind.push(format!("{}{}", member.name, trouble(&status))),
                    Err(_) => {}
                }
            }
            if behind.is_empty() {
                return Ok(there);
            }
            if Instant::now() > deadline {
                let who = behind.join(", ");
                return Err(OperateError::NotInTime(format!("not read yet by {who}")));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Restarts a node's PostgreSQL, and waits until it serves, or is warm, again.
    ///
    /// # Errors
    /// [`OperateError`]
    pub async fn restart(&self, node: &NodeName) -> Result<()> {
        self.begin_anew(node, Request::Restart).await
    }

    /// Has a standby attach afresh without what it had in memory, and waits until it is warm.
    ///
    /// # Errors
    /// [`OperateError`]
    pub async fn reinitialize(&self, node: &NodeName) -> Result<()> {
        self.begin_anew(node, Request::Reinitialize).await
    }

    async fn begin_anew(&self, node: &NodeName, order: Request) -> Result<()> {
        let member = self.member(node).await?;
        self.newest_configuration(node, &member).await?;
        let before = started(&self.status(&member).await?);
        channel::request(&member.channel, &self.me, order, RESTART_WITHIN).await?;
        self.wait_started(node, before).await
    }

    /// Waits until a node has the newest configuration in its files: a restart begins with what is there.
    async fn newest_configuration(&self, node: &NodeName, member: &Member) -> Result<()> {
        let version = Control::read(self.storage.as_ref()).await?.version;
        let deadline = Instant::now() + CONFIGURED_WITHIN;
        loop {
            let status = self.status(member).await?;
            if is_configured(&status, version) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let why = trouble(&status);
                return Err(OperateError::Refused(format!(
                    "{node} has not read version {version} of the configuration{why}; a restart would begin with an \
                     earlier one"
                )));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until a node does its work with another server than the one that started `before`.
    async fn wait_started(&self, node: &NodeName, before: Option<ServerStart>) -> Result<()> {
        let deadline = Instant::now() + WARM_WITHIN;
        loop {
            if let Ok(member) = self.member(node).await
                && let Ok(status) = self.status(&member).await
                && works(&status)
                && started(&status).is_some_and(|now| Some(now) != before)
            {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(OperateError::NotInTime(format!("{node} is not warm yet")));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Restarts every PostgreSQL with one short pause for clients: the standbys one after the other, each
    /// awaited, then a switchover to one of them, with which the old active begins anew. Without a
    /// standby the active is restarted in place. `tell` hears of each step.
    ///
    /// # Errors
    /// [`OperateError`]; what was not reached yet runs on as it was.
    pub async fn restart_rolling(&self, mut tell: impl FnMut(&str)) -> Result<()> {
        let members = self.members().await?;
        let (standbys, active) = self.parts(&members).await?;
        for standby in &standbys {
            tell(&format!("restarting the standby {standby}"));
            self.restart(standby).await?;
        }
        let Some(first) = standbys.first() else {
            tell(&format!(
                "restarting {active} in place: there is no standby"
            ));
            return self.restart(&active).await;
        };
        let before = started(&self.status(&self.member(&active).await?).await?);
        tell(&format!("switching over from {active} to {first}"));
        let to = Some(first.clone());
        handover::hand_over(self.storage.as_ref(), &self.me, to, How::Planned).await?;
        tell(&format!("waiting for {active} to follow as a standby"));
        self.wait_started(&active, before).await
    }

    /// Restarts every PostgreSQL, the active's in place and last. `tell` hears of each step.
    ///
    /// # Errors
    /// [`OperateError`]
    pub async fn restart_all(&self, mut tell: impl FnMut(&str)) -> Result<()> {
        let members = self.members().await?;
        let (standbys, active) = self.parts(&members).await?;
        for node in standbys.iter().chain([&active]) {
            tell(&format!("restarting {node}"));
            self.restart(node).await?;
        }
        Ok(())
    }

    /// The standbys that answer, those that may take over first, and the active.
    async fn parts(&self, members: &[Member]) -> Result<(Vec<NodeName>, NodeName)> {
        let mut standbys = Vec::new();
        let mut active = None;
        for member in members {
            let status = self.status(member).await.unwrap_or(Value::Null);
            match serde_json::from_value(status["role"].clone()) {
                Ok(Role::Standby) => standbys.push((member.tags.nofailover, member.name.clone())),
                Ok(Role::Active) => active = Some(member.name.clone()),
                _ => {}
            }
        }
        standbys.sort();
        let names = standbys.into_iter().map(|(_, name)| name).collect();
        let nobody = || OperateError::Refused("no node is active".to_owned());
        Ok((names, active.ok_or_else(nobody)?))
    }

    /// Has every PostgreSQL read its configuration files again; returns who did not answer, and why.
    ///
    /// # Errors
    /// [`OperateError`] if nobody serves: the files are the active's.
    pub async fn reload(&self) -> Result<Vec<(NodeName, String)>> {
        let members = self.members().await?;
        let (standbys, active) = self.parts(&members).await?;
        let order = |node: &NodeName, journal| {
            let member = members.iter().find(|m| m.name == *node).cloned();
            let me = self.me.clone();
            async move {
                let Some(member) = member else {
                    return Ok(Value::Null);
                };
                let order = Request::Reload { journal };
                channel::request(&member.channel, &me, order, 2 * ANSWER_WITHIN).await
            }
        };
        let journal = order(&active, 0).await?["journal"].as_u64().unwrap_or(0);
        let mut silent = Vec::new();
        for standby in standbys {
            if let Err(error) = order(&standby, journal).await {
                silent.push((standby, error.to_string()));
            }
        }
        Ok(silent)
    }

    /// Forgets a dead node: its record and what is kept for it.
    ///
    /// # Errors
    /// [`OperateError::Refused`] if it lives.
    pub async fn remove(&self, node: &NodeName) -> Result<()> {
        let member = self.member(node).await?;
        let alive = |how| {
            let why = format!("{node} is alive ({how}); stop its agent first");
            Err(OperateError::Refused(why))
        };
        if self.status(&member).await.is_ok() {
            return alive("it answers");
        }
        // Nobody may be able to reach its agent, and it live all the same.
        tokio::time::sleep(SILENT_FOR).await;
        if self.member(node).await? != member {
            return alive("its record moves");
        }
        // The active gives back what is kept for it, once it had time to notice should it live all the same.
        Claim::revoke(&self.storage, node).await?;
        self.storage
            .remove_record(&member.name(), Member::AUTHORITY)
            .await?;
        remove_probe(self.storage.as_ref(), node).await?;
        Ok(())
    }

    /// Takes the libraries of a node for those that the volume's indexes agree with.
    ///
    /// # Errors
    /// [`OperateError::Refused`] if the node does not say which it has.
    pub async fn accept_collations(&self, node: &NodeName) -> Result<Libraries> {
        let libraries = self.member(node).await?.libraries;
        if libraries == Libraries::default() {
            let why = format!(
                "{node} does not report its versions of glibc and ICU; it may run an earlier version of Understudy"
            );
            return Err(OperateError::Refused(why));
        }
        let accepted = libraries.clone();
        let change = |control: &mut Control| {
            control.libraries = Some(accepted.clone());
            Ok(())
        };
        edit_control(self.storage.as_ref(), self.by(), None, TIMEOUT, change).await?;
        Ok(libraries)
    }

    /// Plans a switchover; the active carries it out.
    ///
    /// # Errors
    /// [`OperateError::Refused`] if the time is past, the standby unknown, or another is planned.
    pub async fn schedule(&self, at_unix_ms: u64, to: Option<NodeName>) -> Result<Control> {
        if at_unix_ms <= unix_ms() {
            return Err(OperateError::Refused("that time is past".to_owned()));
        }
        if let Some(to) = &to
            && self.member(to).await?.role != Role::Standby
        {
            return Err(OperateError::Refused(format!("{to} is no standby")));
        }
        let by = self.by().to_owned();
        let change = |control: &mut Control| {
            if control.scheduled_switchover.is_some() {
                let why = "another switchover is scheduled already; cancel it first";
                return Err(EditError::Refused(why.to_owned()));
            }
            control.scheduled_switchover = Some(ScheduledSwitchover { at_unix_ms, to, by });
            Ok(())
        };
        Ok(edit_control(self.storage.as_ref(), self.by(), None, TIMEOUT, change).await?)
    }

    /// Cancels the planned switchover.
    ///
    /// # Errors
    /// [`OperateError::Edit`] if there is none.
    pub async fn unschedule(&self) -> Result<Control> {
        let change = |control: &mut Control| match control.scheduled_switchover.take() {
            Some(_) => Ok(()),
            None => Err(EditError::Refused("no switchover is scheduled".to_owned())),
        };
        Ok(edit_control(self.storage.as_ref(), self.by(), None, TIMEOUT, change).await?)
    }
}

/// True if a node has this version of the configuration in its files, as its status says. One without PostgreSQL has none.
fn is_configured(status: &Value, version: u64) -> bool {
    let configured = status["configured"].as_u64();
    configured.is_none_or(|configured| configured >= version)
}

/// Why a node could not write a configuration, as a detail in brackets.
fn trouble(status: &Value) -> String {
    let trouble = status["configuration_trouble"].as_str();
    trouble.map_or(String::new(), |trouble| format!(" ({trouble})"))
}

/// Which start of PostgreSQL a status is about.
fn started(status: &Value) -> Option<ServerStart> {
    serde_json::from_value(status.pointer("/server/started")?.clone()).ok()
}

/// True if a node does what it is there for.
fn works(status: &Value) -> bool {
    let state = serde_json::from_value(status["state"].clone());
    matches!(state, Ok(MemberState::Warm | MemberState::Serving))
}

/// A time as operators write it: RFC 3339, or `in 5m` from now on.
///
/// # Errors
/// What is wrong with it.
pub fn parse_time(text: &str, now_unix_ms: u64) -> Result<u64, String> {
    let text = text.trim();
    if let Some(wait) = text.strip_prefix("in ") {
        let wait = humantime::parse_duration(wait.trim())
            .map_err(|e| format!("{e}; write for example \"in 5m\""))?;
        let wait = u64::try_from(wait.as_millis()).map_err(|e| e.to_string())?;
        return Ok(now_unix_ms.saturating_add(wait));
    }
    let (day, offset) = zone_of(text);
    let at = humantime::parse_rfc3339_weak(day).map_err(|e| {
        format!(
            "{e}; write for example 2026-01-31T04:00:00Z, 2026-01-31T04:00:00+02:00 or \"in 5m\""
        )
    })?;
    let since = at.duration_since(std::time::SystemTime::UNIX_EPOCH);
    let unix_ms = since.map_err(|e| e.to_string())?.as_millis() as i64 - offset * 60_000;
    u64::try_from(unix_ms).map_err(|e| e.to_string())
}

/// The time without its offset from UTC, and that in minutes.
fn zone_of(text: &str) -> (&str, i64) {
    let Some(at) = text
        .len()
        .checked_sub(6)
        .filter(|at| text.is_char_boundary(*at))
    else {
        return (text, 0);
    };
    let (day, zone) = text.split_at(at);
    let sign = match zone.as_bytes()[0] {
        b'+' => 1,
        b'-' if day.contains([':']) => -1,
        _ => return (text, 0),
    };
    let minutes = zone[1..].split_once(':').and_then(|(hours, minutes)| {
        Some(hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?)
    });
    minutes.map_or((text, 0), |minutes| (day, sign * minutes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_operators_write_them() {
        let now = 1_000;
        assert_eq!(parse_time("in 5m", now), Ok(301_000));
        for (text, unix_ms) in [
            ("2023-11-14T22:13:20Z", 1_700_000_000_000),
            ("2023-11-15T00:13:20+02:00", 1_700_000_000_000),
            ("2023-11-14T17:43:20-04:30", 1_700_000_000_000),
            ("2023-11-14 22:13:20", 1_700_000_000_000),
        ] {
            assert_eq!(parse_time(text, now), Ok(unix_ms), "{text}");
        }
        for bad in ["tomorrow", "in a while", "", "é", "22:13"] {
            assert!(parse_time(bad, now).is_err(), "{bad}");
        }
    }
}
