//! The node that serves, and orders for it.

use std::time::Duration;

use coordination::channel::{self, Request};
use coordination::records::{Member, MemberState, Role};
use serde_json::Value;

use crate::operate::{OperateError, Operator, Result};

/// Time that the active may take until enough zones have recorded an order.
const ORDER_WITHIN: Duration = Duration::from_secs(20);
/// Time that the active may take for a checkpoint and its seal.
const CHECKPOINT_WITHIN: Duration = Duration::from_secs(300);

impl Operator {
    /// The node that serves, and what it says of itself.
    pub(crate) async fn serving(&self) -> Result<(Member, Value)> {
        for node in self.members().await? {
            let Ok(status) = self.status(&node).await else {
                continue;
            };
            let role = serde_json::from_value(status["role"].clone());
            let state = serde_json::from_value(status["state"].clone());
            if matches!((role, state), (Ok(Role::Active), Ok(MemberState::Serving))) {
                return Ok((node, status));
            }
        }
        Err(OperateError::NotNow(
            "no node is active, and only the active can do that".to_owned(),
        ))
    }

    pub(crate) async fn order(&self, order: Request) -> Result<()> {
        let (active, _) = self.serving().await?;
        channel::request(&active.channel, &self.me, order, ORDER_WITHIN).await?;
        Ok(())
    }

    /// Has the active write a checkpoint now, if much log was written since the last one.
    ///
    /// # Errors
    /// [`OperateError::NotNow`] if nobody serves, [`OperateError::Channel`] if the active does not do it.
    pub async fn checkpoint(&self) -> Result<()> {
        let (active, _) = self.serving().await?;
        let order = Request::Checkpoint;
        channel::request(&active.channel, &self.me, order, CHECKPOINT_WITHIN).await?;
        Ok(())
    }
}
