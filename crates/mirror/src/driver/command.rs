//! What a manager answers operators.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use page::put_metric;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::advice::advice;
use super::hub::Hub;
use super::jobs::unused_identity;
use super::peer::Question;
use super::rows;
use super::state::{Tokens, install_with};
use super::verify;
use super::wire::Postgres;
use crate::core::ledger::Ledger;
use crate::core::manager::{CommitAck, Manager, Role};
use crate::core::verifying::Verified;

/// How long a handover waits for transactions to end.
const HANDOVER: Duration = Duration::from_secs(30);

/// So long it may take until nobody attends to the member.
const LEAVES_WITHIN: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// What a manager says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Which state it is in.
    #[serde(flatten)]
    pub role: Role,
    /// The epoch it serves in.
    pub epoch: Option<u32>,
    /// The last transaction of the log, as far as it knows.
    pub logged: u64,
    /// Its member has everything up to here.
    pub applied: Option<u64>,
    /// The other member has everything up to here, as far as it knows.
    pub other_applied: Option<u64>,
    /// The other manager is a standby.
    pub has_standby: bool,
    /// When commits are acknowledged.
    pub ack: CommitAck,
    /// Sessions of clients.
    pub clients: u64,
    /// What made the member differ: the transaction, and what it says.
    pub difference: Option<String>,
    /// What an operator has to do, where nothing is done by itself.
    #[serde(default)]
    pub advice: Option<String>,
    /// The time since which the member waits for an operator's decision, in milliseconds of the Unix epoch.
    #[serde(default)]
    pub aside_since: Option<u64>,
    /// Databases of the member's server that were kept when others took their place.
    #[serde(default)]
    pub kept: Vec<String>,
    /// Which log its member belongs to.
    #[serde(default)]
    pub log: Option<String>,
    /// Its member is being filled from the other one.
    pub is_filling: bool,
    /// How far that is.
    #[serde(default)]
    pub filling: Option<String>,
    /// The version of its member's server, as `server_version_num` says it.
    #[serde(default)]
    pub server_version_num: Option<u32>,
    /// The last time that it compared both members, and what it found.
    #[serde(default)]
    pub verified: Option<Verified>,
    /// The reason for which members that are to be compared are not.
    #[serde(default)]
    pub unverified: Option<String>,
}

pub(super) fn status(hub: &Hub) -> Status {
    hub.look(|manager| Status {
        name: hub.name.clone(),
        role: manager.role(),
        epoch: manager.epoch(),
        logged: manager.last().0,
        applied: manager.ledger().map(|ledger| ledger.floor().0),
        other_applied: manager.follower().map(|(floor, _)| floor.0),
        has_standby: manager.follower().is_some_and(|(_, is_standby)| is_standby),
        ack: hub.config.commit_ack,
        clients: hub.counters.clients.load(Ordering::Relaxed),
        difference: hub.difference.lock().clone(),
        advice: advice(manager).or_else(|| hub.hindrance.lock().clone()),
        aside_since: *hub.aside_since.lock(),
        kept: hub.kept.lock().clone(),
        log: manager.log().map(|log| log.to_string()),
        is_filling: hub.is_filling.load(Ordering::Relaxed),
        filling: hub
            .filling
            .lock()
            .map(|(step, since)| format!("{step}, for {} s in all", since.elapsed().as_secs())),
        server_version_num: *hub.version.lock(),
        verified: hub.verifications.last.lock().clone(),
        unverified: hub.verifications.hindrance.lock().clone(),
    })
}

/// Answers a question, in JSON.
pub async fn answer(hub: &Arc<Hub>, question: Question) -> Result<String, String> {
    let of_a_mirror = matches!(
        question,
        Question::History
            | Question::Switchover
            | Question::SwitchoverIn(_)
            | Question::Verify
            | Question::Adopt
            | Question::Replace
    );
    if hub.config.single && of_a_mirror {
        return Err(
            "this manager's member is the only one (single = true): there is no mirror".to_owned(),
        );
    }
    match question {
        Question::Status => serde_json::to_string(&status(hub)).map_err(|error| error.to_string()),
        Question::Metrics => Ok(metrics(hub)),
        Question::History => {
            let history = hub
                .zones
                .history()
                .await
                .map_err(|error| error.to_string())?;
            Ok(format!("[{}]", history.join(",")))
        }
        Question::Switchover => switch_over(hub, None).await,
        Question::SwitchoverIn(epoch) => switch_over(hub, Some(epoch)).await,
        Question::Verify => verify::verify(hub).await,
        Question::Adopt => adopt(hub).await,
        Question::Replace => replace(hub),
    }
}

/// The epoch in which a manager of this role may hand over; `meant` is the one that was looked at before.
///
/// # Errors
/// The manager is not primary, or in another epoch: what was looked at is not so any more.
fn handed_over(role: Role, epoch: Option<u32>, meant: Option<u32>) -> Result<u32, String> {
    match (role, epoch, meant) {
        (Role::Primary, Some(epoch), Some(meant)) if epoch != meant => Err(format!(
            "this manager is primary in epoch {epoch} and not {meant} any more; look at both again with understudy mirror status"
        )),
        (Role::Primary, Some(epoch), _) => Ok(epoch),
        _ => Err("this manager is not primary".to_owned()),
    }
}

async fn switch_over(hub: &Hub, meant: Option<u32>) -> Result<String, String> {
    let may = |meant| hub.look(|manager| handed_over(manager.role(), manager.epoch(), meant));
    let epoch = may(meant)?;
    if !status(hub).has_standby {
        return Err("there is no standby that has everything".to_owned());
    }
    let _gate = hub.verifications.gate.lock().await;
    // A comparison may have had the gate for long.
    may(Some(epoch))?;
    hub.close_gate();
    match hand_over(hub, epoch).await {
        Ok(()) => Ok("{\"handed_over\":true}".to_owned()),
        Err(why) => {
            hub.act(|manager, _| manager.stay());
            hub.open_gate();
            Err(why)
        }
    }
}

/// Waits until what is under way has ended, and this manager is not primary any more; why it stays that otherwise.
async fn hand_over(hub: &Hub, epoch: u32) -> Result<(), String> {
    let started = Instant::now();
    let mut standby = Instant::now();
    let mut is_asked = false;
    while let (Role::Primary, now) = hub.look(|manager| (manager.role(), manager.epoch())) {
        handed_over(Role::Primary, now, Some(epoch))?;
        if !is_asked && hub.is_quiet() {
            rows::is_logged(&hub.member, &hub.capture, HANDOVER).await?;
            hub.act(|manager, out| {
                if manager.epoch() == Some(epoch) {
                    manager.switch_over(out);
                }
            });
            is_asked = true;
            continue;
        }
        let has_standby = hub
            .look(Manager::follower)
            .is_some_and(|(_, is_standby)| is_standby);
        if has_standby {
            standby = Instant::now();
        }
        if standby.elapsed() > hub.config.timeout {
            return Err("the standby was lost meanwhile; try again when there is one".to_owned());
        }
        if started.elapsed() > HANDOVER {
            return Err(match hub.is_quiet() {
                true => "the standby does not get on with what was committed; look at the log of its manager",
                false => "transactions are open for longer than 30 s; end them, and try again",
            }
            .to_owned());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Replaces the member as soon as there is a primary.
fn replace(hub: &Hub) -> Result<String, String> {
    if hub.role().serves() {
        return Err("this manager is primary: its member is not replaced".to_owned());
    }
    // Nor is it rewound.
    hub.capture.surplus.lock().take();
    hub.replaces.store(true, Ordering::Release);
    Ok("{\"replaces\":true}".to_owned())
}

/// Takes the member for the right one, with what it has.
async fn adopt(hub: &Arc<Hub>) -> Result<String, String> {
    let is_aside = |role| matches!(role, Role::Recovering(why) if why.is_set_aside());
    if !is_aside(hub.role()) || hub.is_filling.swap(true, Ordering::AcqRel) {
        return Err("this manager's member waits for no decision".to_owned());
    }
    // Whoever attends to the member leaves it then.
    let deadline = Instant::now() + LEAVES_WITHIN;
    while hub.look(|manager| manager.ledger().is_some()) && Instant::now() < deadline {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    let adopted = adopt_alone(hub).await;
    hub.zones.release().await;
    hub.is_filling.store(false, Ordering::Release);
    adopted.map(|()| "{\"adopted\":true}".to_owned())
}

/// The same while nobody uses the member.
async fn adopt_alone(hub: &Hub) -> Result<(), String> {
    fn told(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let epoch = hub.zones.own().await.map_err(told)?;
    let last = hub.zones.read(drop).await.map_err(told)?;
    let log = unused_identity().map_err(told)?;
    tracing::warn!(%last, %log, "an operator says that this member is the right one");
    let member = &hub.member.target;
    let session = Postgres::connect(member, "understudy mirror").await;
    let mut session = session.map_err(told)?;
    let ledger = Ledger::new(last, []);
    let more = format!(
        "DELETE FROM understudy_mirror.applied WHERE number > {last}; {}",
        rows::FORGET_EPOCHS
    );
    // Nothing that is defined here is anybody's but the manager's.
    session.query(rows::OWN).await.map_err(told)?;
    let tokens = Tokens::up_to(epoch);
    let made = install_with(&mut session, &ledger, &tokens, Some(log), &more).await;
    made.map_err(told)?;
    session.query(rows::SETTLE).await.map_err(told)?;
    hub.zones.name(log).await.map_err(told)?;
    hub.act(|manager: &mut Manager, _| manager.log_renamed(epoch, log));
    hub.difference.lock().take();
    Ok(())
}

/// What was counted, as Prometheus reads it.
pub fn metrics(hub: &Hub) -> String {
    let status = status(hub);
    let counters = &hub.counters;
    let role = match status.role {
        Role::Primary | Role::Single => 2,
        Role::Standby => 1,
        Role::Recovering(_) => 0,
    };
    let lag = status.logged.saturating_sub(status.applied.unwrap_or(0));
    let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let mut gauges = vec![
        ("role", "0 recovering, 1 standby, 2 primary or single", role),
        (
            "lag_transactions",
            "transactions of the log that the member lacks",
            lag,
        ),
        (
            "logged_transaction",
            "the last transaction of the log",
            status.logged,
        ),
        (
            "has_standby",
            "whether the other member is waited for",
            u64::from(status.has_standby),
        ),
        ("clients", "sessions of clients", status.clients),
        (
            "diverged",
            "whether the member answered differently",
            u64::from(status.difference.is_some()),
        ),
    ];
    // A standby's are those of before: the primary compares.
    if let Some(verified) = status.verified.filter(|_| status.role == Role::Primary) {
        gauges.push((
            "verified_timestamp_seconds",
            "the time of the last comparison of both members",
            verified.unix_ms / 1000,
        ));
        gauges.push((
            "verified_equal",
            "whether both members were equal then",
            u64::from(verified.equal),
        ));
    }
    let counts = [
        (
            "statements_total",
            "messages of clients",
            of(&counters.statements),
        ),
        (
            "logged_total",
            "transactions written to the log",
            of(&counters.logged),
        ),
        (
            "applied_total",
            "transactions executed from the log",
            of(&counters.applied),
        ),
        (
            "refused_total",
            "statements that cannot be mirrored",
            of(&counters.refused),
        ),
        (
            "compared_total",
            "transactions of the standby that were compared with the log",
            of(&counters.compared),
        ),
        (
            "uncompared_total",
            "transactions that the standby had executed before its manager looked at it, and that were not compared",
            of(&counters.uncompared),
        ),
        (
            "transfers_total",
            "state transfers",
            of(&counters.transfers),
        ),
        (
            "rewinds_total",
            "returns of a member whose own commits were undone",
            of(&counters.rewinds),
        ),
        (
            "sessions_moved_total",
            "sessions that went on at the other manager",
            of(&counters.moved),
        ),
    ];
    let mut text = String::new();
    for (kind, list) in [("gauge", gauges.as_slice()), ("counter", counts.as_slice())] {
        for (name, help, value) in list {
            let name = format!("understudy_mirror_{name}");
            put_metric(&mut text, &name, help, kind, *value);
        }
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::core::manager::Why;

    /// An order after a look at one primary made another one hand over, or the same one after it had been a standby.
    #[test]
    fn a_handover_is_refused_in_another_epoch_than_was_looked_at() {
        assert_eq!(handed_over(Role::Primary, Some(7), Some(7)), Ok(7));
        // A command of an earlier version does not say which.
        assert_eq!(handed_over(Role::Primary, Some(7), None), Ok(7));
        let why = handed_over(Role::Primary, Some(9), Some(7)).expect_err("it is refused");
        assert!(why.contains("in epoch 9 and not 7"), "{why}");
        for role in [Role::Standby, Role::Recovering(Why::Starting)] {
            handed_over(role, None, Some(7)).expect_err("it is not primary");
        }
    }

    /// A manager that answers, in this state.
    pub fn status(name: &str, role: Role) -> Status {
        Status {
            name: name.to_owned(),
            role,
            epoch: (role == Role::Primary).then_some(7),
            logged: 120,
            applied: Some(118),
            other_applied: Some(100),
            has_standby: role == Role::Primary,
            ack: CommitAck::Both,
            clients: 3,
            difference: None,
            advice: None,
            aside_since: None,
            kept: Vec::new(),
            log: None,
            is_filling: false,
            filling: None,
            server_version_num: Some(150_014),
            verified: None,
            unverified: None,
        }
    }
    /// Metrics of a manager that has compared nothing have no time of a comparison, so an alarm of its age alone is silent.
    #[test]
    fn alarm_of_members_that_are_not_compared_hears_of_those_that_never_were() {
        let rules = include_str!("../../../../packaging/monitoring/alerts.yml");
        let (_, rule) = rules
            .split_once("alert: MirrorNotCompared")
            .expect("it is there");
        let rule: Vec<&str> = rule.split_whitespace().collect();
        let rule = rule.join(" ");
        let never = "or max by (job) (understudy_mirror_logged_transaction) > 0 \
            unless on (job) max by (job) (understudy_mirror_verified_timestamp_seconds)";
        assert!(rule.contains(never), "{rule}");
    }
}
