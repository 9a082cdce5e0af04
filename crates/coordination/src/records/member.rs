//! `node/<name>`: who is in the cluster, where it is reached, and how far it is.
//!
//! Each node writes its own. The counter lets others see, without comparing clocks, whether a node
//! is alive .

use std::fmt;

use dax::forms::Forms;
use dax::ids::NodeName;
use dax::storage::{Authority, Storage};
use serde::{Deserialize, Serialize};
use volume::lsn::Lsn;

use crate::address::Address;
use crate::config::Tags;

use super::{Libraries, Record, Result};

/// One life of a node's agent: a restarted agent is somebody else.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub String);

impl Incarnation {
    /// An incarnation that no other has: from the kernel's random source.
    ///
    /// # Errors
    /// If that source cannot be read.
    pub fn random() -> std::io::Result<Incarnation> {
        let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        Ok(Incarnation(uuid.trim().to_owned()))
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a node is to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Serves writes.
    Active,
    /// Replays the log, answers reads.
    Standby,
    /// Runs no PostgreSQL until it is needed.
    Spare,
}

/// How a node is doing in its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// On its way: attaching, or taking over.
    Starting,
    /// Replaying, not yet level with the active.
    CatchingUp,
    /// Could take over at once.
    Warm,
    /// Serves as the active.
    Serving,
    /// Is the active, and starts its server again as an operator wants.
    Restarting,
    /// Its server failed; it tries again.
    Failing,
    /// Stopped by its operator.
    Stopped,
}

/// A node as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Name of the node, unique in the cluster.
    pub name: NodeName,
    /// What it is to the cluster.
    pub role: Role,
    /// How it is doing.
    pub state: MemberState,
    /// Which life of it this is.
    pub incarnation: Incarnation,
    /// Where clients reach its PostgreSQL, `host:port`.
    pub postgres: Address,
    /// Where other agents reach its direct channel.
    pub channel: Address,
    /// Where its HTTP interface is reached.
    #[serde(default)]
    pub rest: Option<Address>,
    /// What it may become; `tags.zone` says where it is.
    #[serde(default)]
    pub tags: Tags,
    /// The end of the log that its PostgreSQL was given.
    #[serde(default)]
    pub received: Lsn,
    /// The end of the log that its PostgreSQL has replayed.
    #[serde(default)]
    pub applied: Lsn,
    /// What its PostgreSQL says of itself.
    #[serde(default, flatten)]
    pub server: ServerFacts,
    /// Libraries of its host.
    #[serde(default)]
    pub libraries: Libraries,
    /// Why texts would sort otherwise if it took over; it does not by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misfit: Option<String>,
    /// The newest forms of what is stored that it reads; a node of release 0.1 does not say.
    #[serde(default)]
    pub reads: Forms,
    /// The version of the control record that it goes by.
    #[serde(default)]
    pub control: u64,
    /// Grows while the node is alive.
    #[serde(default)]
    pub updated: u64,
}

/// What a running PostgreSQL says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerFacts {
    /// Its version, as `SHOW server_version` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_version: Option<String>,
    /// Which start of it this is: the agent's pid for it, and when it began, Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<ServerStart>,
    /// Parameters whose new values need a restart.
    pub pending_restart: Vec<String>,
}

impl ServerFacts {
    /// The version as `server_version_num`, such as 150018.
    pub fn number(&self) -> Option<u32> {
        let version = self.server_version.as_deref()?;
        let version = version.split(' ').next()?;
        let (major, minor) = version.split_once('.')?;
        Some(major.parse::<u32>().ok()? * 10_000 + minor.parse::<u32>().ok()?)
    }
}

/// One start of a PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStart {
    /// The postmaster's process id.
    pub pid: i32,
    /// When, Unix milliseconds; for people only.
    pub unix_ms: u64,
}

impl Record for Member {
    const PREFIX: &'static str = "node/";
    const AUTHORITY: Authority = Authority::Node;

    fn name(&self) -> String {
        Member::record_name(&self.name)
    }
}

impl Member {
    /// A node that has just begun this life of it, before anything of its server is known.
    pub fn starting(
        name: NodeName,
        incarnation: Incarnation,
        postgres: Address,
        channel: Address,
    ) -> Member {
        Member {
            name,
            role: Role::Standby,
            state: MemberState::Starting,
            incarnation,
            postgres,
            channel,
            rest: None,
            tags: Tags::default(),
            received: Lsn::ZERO,
            applied: Lsn::ZERO,
            server: ServerFacts::default(),
            libraries: Libraries::default(),
            misfit: None,
            reads: Forms::default(),
            control: 0,
            updated: 0,
        }
    }

    /// Reads the record of one node, if it has one.
    ///
    /// # Errors
    /// `Damaged` if it cannot be understood.
    pub async fn of(storage: &dyn Storage, node: &NodeName) -> Result<Option<Member>> {
        Member::load_named(storage, &Member::record_name(node)).await
    }

    /// What the record of a node is called.
    pub fn record_name(node: &NodeName) -> String {
        format!("{}{node}", Self::PREFIX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incarnations_differ() {
        assert_ne!(
            Incarnation::random().unwrap(),
            Incarnation::random().unwrap()
        );
    }
}
