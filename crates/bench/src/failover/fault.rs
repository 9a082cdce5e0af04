//! The ways in which an active is lost, and how each is undone.

use std::time::SystemTime;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

use super::stage::Stage;

/// What happens to the active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Its postmaster gets SIGKILL.
    PostgresKilled,
    /// All processes of the node get SIGKILL, its agent as well.
    NodeKilled,
    /// Its network loses every packet, without a sign to anybody.
    NetworkCut,
    /// All its processes stop, and go on after the takeover.
    NodeFrozen,
    /// An operator wants another active.
    Switchover,
}

impl Fault {
    /// As it is called in reports.
    pub fn name(self) -> &'static str {
        match self {
            Fault::PostgresKilled => "PostgreSQL killed",
            Fault::NodeKilled => "node killed",
            Fault::NetworkCut => "network cut",
            Fault::NodeFrozen => "node frozen",
            Fault::Switchover => "switchover",
        }
    }

    /// Does it to a node; the moment just before.
    pub(super) async fn strike(self, stage: &mut Stage, node: &str) -> anyhow::Result<SystemTime> {
        let now = SystemTime::now();
        match self {
            Fault::PostgresKilled => return stage.cluster.kill_postgres(node),
            Fault::NodeKilled => {
                let kill = tokio::task::block_in_place(|| stage.cluster.kill_node(node));
                return Ok(kill.context("the active does not run")?.at);
            }
            Fault::NetworkCut => stage.sites.cut(node)?,
            Fault::NodeFrozen => {
                stage.process(node)?.pause();
            }
            Fault::Switchover => {
                let config = stage.cluster.node(node)?.config.display().to_string();
                let arguments = ["switchover", "--config", &config];
                stage.cluster.run(&arguments).await?;
            }
        }
        Ok(now)
    }

    /// Gives the node back after the takeover.
    pub(super) fn undo(self, stage: &mut Stage, node: &str) -> anyhow::Result<()> {
        match self {
            // Its agent lives and joins by itself.
            Fault::PostgresKilled | Fault::Switchover => Ok(()),
            Fault::NodeKilled => stage.cluster.start_node(node),
            Fault::NetworkCut => stage.sites.heal(node),
            Fault::NodeFrozen => {
                stage.process(node)?.resume();
                Ok(())
            }
        }
    }
}
