//! Upgrades of Understudy itself: which forms of what is stored may be written, who reads them, and the end of an upgrade.
//!
//! Processes of two releases work side by side until an operator says that the upgrade is finished; until then each of them
//! can go back. Nothing is raised by itself, because nobody but the operator knows whether the new release has proved itself.

use coordination::channel::Request;
use coordination::records::{Member, MemberState, Record, check_raise, written_forms};
use dax::forms::Forms;
use dax::ids::NodeName;
use serde::Serialize;

use crate::operate::{OperateError, Operator, Result};

/// How far an upgrade is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Upgrade {
    /// Which forms may be written now.
    pub written: Forms,
    /// Those that this program knows.
    pub newest: Forms,
    /// Forms that each node reads.
    pub nodes: Vec<NodeReads>,
    /// Forms that each zone knows.
    pub zones: Vec<ZoneKnows>,
    /// Why it cannot be finished yet, if it is not finished.
    pub behind: Option<String>,
}

/// Forms that a node reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeReads {
    /// Name of the node.
    pub node: NodeName,
    /// Its state, as its record says.
    pub state: MemberState,
    /// Newest form that it reads.
    pub reads: Forms,
}

/// Forms that a zone knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ZoneKnows {
    /// Address of the zone's server, as configured.
    pub address: String,
    /// Newest form that its release knows, if it answers.
    pub knows: Option<Forms>,
}

impl Upgrade {
    /// True if everything may be written that this program knows.
    pub fn is_finished(&self) -> bool {
        self.written >= self.newest
    }
}

impl Operator {
    /// Tells how far an upgrade is.
    ///
    /// # Errors
    /// [`OperateError::Record`] if the registry does not answer.
    pub async fn upgrade(&self) -> Result<Upgrade> {
        let storage = self.storage.as_ref();
        let written = written_forms(storage).await?;
        let nodes = Member::list(storage).await?;
        let zones = storage.replicas();
        let refused = check_raise(Forms::NEWEST, &nodes, &zones).err();
        let read = |node: Member| NodeReads {
            node: node.name,
            state: node.state,
            reads: node.reads,
        };
        Ok(Upgrade {
            written,
            newest: Forms::NEWEST,
            behind: refused
                .filter(|_| written < Forms::NEWEST)
                .map(|why| why.to_string()),
            nodes: nodes.into_iter().map(read).collect(),
            zones: zones
                .into_iter()
                .map(|zone| ZoneKnows {
                    address: zone.address,
                    knows: zone.reads,
                })
                .collect(),
        })
    }

    /// Ends the upgrade: what the new release knows may be written from now on, and the one before is not let in.
    ///
    /// # Errors
    /// [`OperateError::Refused`] with all that are behind; [`OperateError::Channel`] if the active refused.
    pub async fn finish_upgrade(&self) -> Result<Upgrade> {
        let before = self.upgrade().await?;
        if before.is_finished() {
            return Ok(before);
        }
        if let Some(behind) = before.behind {
            return Err(OperateError::Refused(behind));
        }
        self.order(Request::FinishUpgrade).await?;
        self.upgrade().await
    }
}
