//! What a node says about itself, as far as HTTP answers depend on it.

use coordination::records::{MemberState, Role, ServerFacts};
use serde::Deserialize;
use serde_json::Value;
use volume::lsn::Lsn;

/// A node's own report. What it does not say is `None`: a node that just starts says little.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Report {
    #[serde(default, deserialize_with = "known")]
    pub role: Option<Role>,
    #[serde(default, deserialize_with = "known")]
    pub state: Option<MemberState>,
    #[serde(default)]
    pub timeline: Option<u32>,
    /// Position up to which an active's WAL is durable.
    #[serde(default)]
    pub synced_lsn: Option<String>,
    #[serde(default)]
    pub received: Option<Lsn>,
    #[serde(default)]
    pub applied: Option<Lsn>,
    #[serde(default)]
    pub lag_bytes: Option<u64>,
    #[serde(default)]
    pub server: ServerFacts,
}

/// A word of ours, or nothing where it is another one ("starting", "none").
fn known<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
where
    T: serde::de::DeserializeOwned,
    D: serde::Deserializer<'de>,
{
    let value = Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

impl Report {
    /// From what the status board shows.
    pub fn new(status: &Value) -> Report {
        // A report that does not parse says nothing, and nothing is what is answered then.
        serde_json::from_value(status.clone()).unwrap_or_default()
    }

    /// True if the node serves writes.
    pub fn is_primary(&self) -> bool {
        self.role == Some(Role::Active) && self.state == Some(MemberState::Serving)
    }

    /// True if the node replays, and so answers queries.
    pub fn is_replica(&self) -> bool {
        let replays = [MemberState::CatchingUp, MemberState::Warm];
        self.role == Some(Role::Standby) && self.state.is_some_and(|s| replays.contains(&s))
    }

    /// True if it could take over at once.
    pub fn is_warm(&self) -> bool {
        self.is_replica() && self.state == Some(MemberState::Warm)
    }

    /// What Patroni calls the role.
    pub fn role_name(&self) -> &'static str {
        match self.role {
            Some(Role::Active) => "primary",
            _ => "replica",
        }
    }

    /// What Patroni calls the state.
    pub fn state_name(&self) -> &'static str {
        match self.state {
            Some(MemberState::Serving | MemberState::Warm | MemberState::CatchingUp) => "running",
            Some(MemberState::Stopped) => "stopped",
            Some(MemberState::Restarting) => "restarting",
            Some(MemberState::Failing) => "start failed",
            Some(MemberState::Starting) | None => "starting",
        }
    }

    /// True if PostgreSQL runs and answers.
    pub fn is_running(&self) -> bool {
        self.is_primary() || self.is_replica()
    }
}
