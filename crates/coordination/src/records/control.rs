//! `control`: what operators want of the whole cluster, and the way to change it.
//!
//! Every node reads it, any operator may change it, also while nobody serves: so it has no single
//! writer as the other records do, and no epoch guards it. Two invariants instead. An edit names the
//! version that it was made from, and is refused if that is not the last any more. And edits exclude
//! each other: an editor writes an intent of its own, then lists all; of two editors at least one
//! sees the other's, because a completed write is seen by every later read, and who sees another's
//! steps back. An intent that nobody takes back (its editor died) is removed once it has been seen
//! for longer than any editor goes on with one.

use std::collections::BTreeMap;
use std::time::Duration;

use dax::ids::NodeName;
use dax::storage::{Authority, Storage};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use super::{Incarnation, Libraries, Record, RecordError};
use crate::config::{ConfigError, Heartbeat, HeartbeatChoice};

/// What editors agree on.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// An editor writes only so long after its intent.
    edit_within: Duration,
    /// Another editor's intent that has been there for so long is left over.
    left_over_after: Duration,
    /// An editor that met another one looks again after this to twice this.
    look_every: Duration,
}

const LIMITS: Limits = Limits {
    edit_within: Duration::from_secs(5),
    left_over_after: Duration::from_secs(15),
    look_every: Duration::from_millis(100),
};

/// What operators want of the whole cluster. A cluster that was never told anything has the default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Control {
    /// Grows by one with every edit; 0 if there was none.
    pub version: u64,
    /// No takeover happens by itself, if set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    /// PostgreSQL's parameters, on every node.
    pub parameters: BTreeMap<String, String>,
    /// Replaces what the nodes' configurations say of heartbeats, as far as it is given.
    pub heartbeat: HeartbeatChoice,
    /// How many standbys the cluster wants; every node that is no spare, if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standbys: Option<u8>,
    /// A change of roles that the active will carry out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_switchover: Option<ScheduledSwitchover>,
    /// Libraries that the volume's indexes agree with, if an operator said so since the database was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub libraries: Option<Libraries>,
    /// What a later version wrote: kept by edits of this one.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Since when takeovers do not happen by themselves, and who wanted that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// Unix milliseconds; for people only.
    pub since_unix_ms: u64,
    /// Who asked for it.
    pub by: String,
    /// Why, if that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A switchover at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledSwitchover {
    /// When, in Unix milliseconds by the active's clock.
    pub at_unix_ms: u64,
    /// Who shall become the active; the standby that is furthest then, if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<NodeName>,
    /// Who asked for it.
    pub by: String,
}

impl Record for Control {
    const PREFIX: &'static str = "control";
    const AUTHORITY: Authority = Authority::Node;
}

impl Control {
    /// The record, or the default if there was never an edit.
    ///
    /// # Errors
    /// As [`Record::load_named`].
    pub async fn read(storage: &dyn Storage) -> Result<Control, RecordError> {
        Ok(Control::load(storage).await?.unwrap_or_default())
    }

    /// True if no takeover may happen by itself.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Difference of a node's libraries from those that the volume's indexes agree with: `built_with`, unless an operator has
    /// accepted others since.
    pub fn misfit(&self, node: &Libraries, built_with: Option<&Libraries>) -> Option<String> {
        let volume = self.libraries.as_ref().or(built_with)?;
        node.collation_difference(volume)
    }

    /// How many standbys are wanted; `None`: every node that is no spare.
    pub fn wanted_standbys(&self) -> Option<usize> {
        self.standbys.map(usize::from)
    }

    /// The timings of a node whose own configuration says `own`. What is invalid for this node
    /// is not used: a node with unusual timings of its own must not stop working by an edit.
    pub fn heartbeat(&self, own: Heartbeat) -> Heartbeat {
        self.heartbeat.over(own).unwrap_or(own)
    }
}

/// Why the control record was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// It was changed since it was read.
    #[error(
        "the configuration was changed meanwhile: it was version {expected}, and is {found} now; read it again"
    )]
    Changed {
        /// The version that the edit was made from.
        expected: u64,
        /// The version that is stored now.
        found: u64,
    },
    /// Somebody else is changing it.
    #[error("\"{by}\" is changing the configuration; try again")]
    Busy {
        /// Name that the other editor works under.
        by: String,
    },
    /// The registry answered so late that another editor may have come in between.
    #[error("the zones were too slow to change the configuration safely; check whether it changed")]
    TooSlow,
    /// The request is invalid.
    #[error("{0}")]
    Refused(String),
    /// The registry could not be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl From<dax::error::Error> for EditError {
    fn from(error: dax::error::Error) -> EditError {
        EditError::Record(error.into())
    }
}

impl From<ConfigError> for EditError {
    fn from(error: ConfigError) -> EditError {
        EditError::Refused(error.to_string())
    }
}

/// That somebody is about to change the control record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Intent {
    /// Who; unique.
    token: Incarnation,
    /// In words.
    by: String,
}

impl Record for Intent {
    const PREFIX: &'static str = "control-intent/";
    const AUTHORITY: Authority = Authority::Node;

    fn name(&self) -> String {
        format!("{}{}", Self::PREFIX, self.token)
    }
}

/// Changes the control record and returns it as it is then.
///
/// `change` gets the record as it is. With `expected` the edit is refused if that is not its version;
/// without, `change` must be right whatever is there (a pause is). It waits for another editor for
/// `timeout` at most.
///
/// # Errors
/// [`EditError`]; also what `change` says. Nothing has changed then, except after `TooSlow`, or if the
/// storage tier failed while it wrote.
pub async fn edit_control(
    storage: &dyn Storage,
    by: &str,
    expected: Option<u64>,
    timeout: Duration,
    change: impl FnOnce(&mut Control) -> Result<(), EditError>,
) -> Result<Control, EditError> {
    edit_within(LIMITS, storage, by, expected, timeout, change).await
}

async fn edit_within(
    limits: Limits,
    storage: &dyn Storage,
    by: &str,
    expected: Option<u64>,
    timeout: Duration,
    change: impl FnOnce(&mut Control) -> Result<(), EditError>,
) -> Result<Control, EditError> {
    let token = Incarnation::random().map_err(|e| EditError::Refused(e.to_string()))?;
    let intent = Intent {
        token,
        by: by.to_owned(),
    };
    let begun = enter(limits, storage, &intent, timeout).await?;
    let done = change_alone(limits, storage, &intent, begun, expected, change).await;
    // One that stays is removed by the next editor, only later.
    let left = storage
        .remove_record(&intent.name(), Intent::AUTHORITY)
        .await;
    if let Err(error) = left {
        tracing::info!(%error, "the intent of an edit was not removed, and expires later");
    }
    done
}

/// Waits until no other editor has an intent, and returns when ours was about to be written.
async fn enter(
    limits: Limits,
    storage: &dyn Storage,
    intent: &Intent,
    timeout: Duration,
) -> Result<Instant, EditError> {
    let deadline = Instant::now() + timeout;
    // Since when each other intent has been seen.
    let mut seen: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        let begun = Instant::now();
        intent.store(storage).await?;
        let others = others(storage, intent).await?;
        if others.is_empty() {
            return Ok(begun);
        }
        storage
            .remove_record(&intent.name(), Intent::AUTHORITY)
            .await?;
        let mut busy = String::new();
        for other in others {
            let since = *seen.entry(other.name()).or_insert(begun);
            if since.elapsed() > limits.left_over_after {
                tracing::info!(by = other.by, "removing what an interrupted edit left");
                storage
                    .remove_record(&other.name(), Intent::AUTHORITY)
                    .await?;
            }
            busy = other.by;
        }
        if Instant::now() > deadline {
            return Err(EditError::Busy { by: busy });
        }
        // Two that step back at the same time must not do so again.
        let spread = f64::from(begun.elapsed().subsec_nanos() % 1_000) / 1_000.0;
        tokio::time::sleep(limits.look_every.mul_f64(1.0 + spread)).await;
    }
}

async fn others(storage: &dyn Storage, intent: &Intent) -> Result<Vec<Intent>, RecordError> {
    let all = Intent::list(storage).await?;
    Ok(all
        .into_iter()
        .filter(|other| other.token != intent.token)
        .collect())
}

async fn change_alone(
    limits: Limits,
    storage: &dyn Storage,
    intent: &Intent,
    begun: Instant,
    expected: Option<u64>,
    change: impl FnOnce(&mut Control) -> Result<(), EditError>,
) -> Result<Control, EditError> {
    let mut control = Control::read(storage).await?;
    let found = control.version;
    if let Some(expected) = expected.filter(|expected| *expected != found) {
        return Err(EditError::Changed { expected, found });
    }
    change(&mut control)?;
    control.version = found + 1;
    if begun.elapsed() > limits.edit_within {
        return Err(EditError::TooSlow);
    }
    control.store(storage).await?;
    // Who was held up on the way may have been taken for dead.
    let stands = Intent::load_named(storage, &intent.name()).await?.is_some();
    if !stands {
        return Err(EditError::TooSlow);
    }
    Ok(control)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dax::memory::{MemoryCluster, MemoryStorage};
    use dax::storage::VolumeSettings;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    /// Nobody waits for what is left over.
    const HASTY: Limits = Limits {
        edit_within: LONG,
        left_over_after: Duration::ZERO,
        look_every: Duration::from_millis(1),
    };

    fn storage() -> (Arc<MemoryCluster>, Arc<MemoryStorage>) {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let client = cluster.client();
        (cluster, client)
    }

    fn pause(control: &mut Control) -> Result<(), EditError> {
        control.paused = Some(Paused {
            since_unix_ms: 1,
            by: "north".into(),
            reason: None,
        });
        Ok(())
    }

    fn count(control: &mut Control) -> Result<(), EditError> {
        let before = control.standbys.unwrap_or(0);
        control.standbys = Some(before + 1);
        Ok(())
    }

    #[tokio::test]
    async fn an_edit_is_seen_by_everybody_and_leaves_the_rest() {
        let (cluster, storage) = storage();
        let first = edit_control(&*storage, "a", None, LONG, count).await;
        assert_eq!(first.unwrap().version, 1);
        edit_control(&*cluster.client(), "b", Some(1), LONG, pause)
            .await
            .unwrap();
        let read = Control::read(&*storage).await.unwrap();
        assert_eq!((read.version, read.wanted_standbys()), (2, Some(1)));
        assert!(read.is_paused());
        assert!(Intent::list(&*storage).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn an_edit_of_an_old_version_is_refused() {
        let (_cluster, storage) = storage();
        edit_control(&*storage, "a", Some(0), LONG, count)
            .await
            .unwrap();
        let late = edit_control(&*storage, "b", Some(0), LONG, pause).await;
        assert!(matches!(
            late,
            Err(EditError::Changed {
                expected: 0,
                found: 1
            })
        ));
        assert!(!Control::read(&*storage).await.unwrap().is_paused());
    }

    #[tokio::test]
    async fn concurrent_edits_are_all_kept() {
        let (cluster, storage) = storage();
        let edits = (0..8).map(|_| {
            let storage = cluster.client();
            tokio::spawn(async move { edit_control(&*storage, "one", None, LONG, count).await })
        });
        let edits: Vec<_> = edits.collect();
        let mut done = 0;
        for edit in edits {
            match edit.await.unwrap() {
                Ok(_) => done += 1,
                Err(error) => assert!(matches!(error, EditError::Busy { .. }), "{error}"),
            }
        }
        let control = Control::read(&*storage).await.unwrap();
        assert!(done > 0);
        assert_eq!(
            (control.standbys, control.version),
            (Some(done), done.into())
        );
    }

    #[tokio::test]
    async fn an_editor_waits_for_another_and_survives_one_that_died() {
        let (_cluster, storage) = storage();
        let dead = Intent {
            token: Incarnation("dead".into()),
            by: "somebody".into(),
        };
        dead.store(&*storage).await.unwrap();
        let busy = edit_control(&*storage, "b", None, Duration::ZERO, pause).await;
        assert!(matches!(busy, Err(EditError::Busy { by }) if by == "somebody"));
        assert!(!Control::read(&*storage).await.unwrap().is_paused());
        edit_within(HASTY, &*storage, "b", None, LONG, pause)
            .await
            .unwrap();
        assert!(Intent::list(&*storage).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn refused_changes_change_nothing() {
        let (_cluster, storage) = storage();
        let refuse = |control: &mut Control| {
            control.standbys = Some(9);
            Err(EditError::Refused("no".into()))
        };
        let refused = edit_control(&*storage, "a", None, LONG, refuse).await;
        assert!(matches!(refused, Err(EditError::Refused(_))));
        assert_eq!(Control::read(&*storage).await.unwrap(), Control::default());
        assert!(Intent::list(&*storage).await.unwrap().is_empty());
    }

    #[test]
    fn keys_of_a_later_version_are_kept() {
        let text = r#"{"version": 7, "witness": {"at": "z"}, "parameters": {"work_mem": "8MB"}}"#;
        let control: Control = serde_json::from_str(text).unwrap();
        assert_eq!(control.parameters["work_mem"], "8MB");
        let again = serde_json::to_value(&control).unwrap();
        assert_eq!(again["witness"]["at"], "z");
    }

    #[test]
    fn heartbeats_are_replaced_as_far_as_given() {
        let own = Heartbeat::default();
        let control: Control =
            serde_json::from_str(r#"{"heartbeat": {"preset": "wide", "poll": "1s"}}"#).unwrap();
        let timings = control.heartbeat(own);
        assert_eq!(timings.timeout, Duration::from_secs(9));
        assert_eq!(timings.poll, Duration::from_secs(1));
        let nonsense: Control =
            serde_json::from_str(r#"{"heartbeat": {"timeout": "50ms"}}"#).unwrap();
        assert_eq!(nonsense.heartbeat(own), own);
        assert_eq!(Control::default().heartbeat(own), own);
    }
}
