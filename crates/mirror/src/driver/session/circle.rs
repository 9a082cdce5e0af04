//! Circles of transactions of which some wait in the manager, and others at the member, for what claims nothing here: rows that were
//! locked by `SKIP LOCKED` or `NOWAIT`, or by hand. Neither side sees more than its own part of one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;

use super::super::hub::Hub;
use super::Session;
use super::startup::Goes;
use crate::core::circle::is_in_circle;
use crate::core::locks::Tx;

/// How long a transaction waits before it is looked for circles, and how long until they are looked for again: as PostgreSQL's
/// `deadlock_timeout`.
const LOOK_AFTER: Duration = Duration::from_secs(1);

impl Session {
    /// The process of its session at the member, as that has said at the login.
    pub(super) fn process(&self) -> Option<i32> {
        match &*self.cancel.goes.lock() {
            Goes::Here(key) => key.get(..4).map(|mut process| process.get_i32()),
            Goes::There(_) => None,
        }
    }
}

/// Ends when the transaction waits for one that waits for it.
pub(super) async fn found_in_circle(hub: Arc<Hub>, tx: Option<Tx>) {
    let Some(tx) = tx else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(LOOK_AFTER).await;
        let waits = match hub.member.waits().await {
            Ok(waits) => waits,
            Err(error) => {
                tracing::debug!(%error, "the member does not say who waits for whom");
                continue;
            }
        };
        let processes = hub.processes();
        let here = |tx: Tx| hub.look(|manager| manager.waits_for(tx));
        if is_in_circle(tx, here, &processes, &waits) {
            return;
        }
    }
}
