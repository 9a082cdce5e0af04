//! The horizon of an epoch: asked of the standby that is about to be promoted, once it has replayed everything.
//!
//! docs/understand/protocol.md (*What is the horizon of an epoch?*) argues why the larger of two numbers is right: the upper end of a snapshot of the
//! standby, and the next transaction id of the checkpoint that its redo began at.
//!
//! Invariant: nothing waits long for it. Without an answer the epoch has no horizon.

use std::time::Duration;

use pgdata::control::ControlFile;
use pgdata::xid::Xid8;
use pgserver::{Session, StartOptions};
use tokio::task::JoinHandle;

/// How long clients may wait for it.
const WITHIN: Duration = Duration::from_millis(250);
/// How long the server may take before it is asked anew whether it lets the agent in: it does not before it is consistent.
const OPEN_AGAIN: Duration = Duration::from_millis(20);

/// Opens a session in good time, while the log is still replayed: only the question is left for later.
pub(crate) struct Question {
    opening: JoinHandle<Session>,
    server: StartOptions,
    /// Of the checkpoint that redo began at.
    checkpoint: Xid8,
}

impl Drop for Question {
    fn drop(&mut self) {
        self.opening.abort();
    }
}

impl Question {
    /// Prepares to ask the standby that was started on `control`.
    pub(crate) fn prepare(server: &StartOptions, control: &ControlFile) -> Question {
        let at = server.clone();
        Question {
            opening: tokio::spawn(async move { open(&at).await }),
            server: server.clone(),
            checkpoint: control.next_xid,
        }
    }

    /// The horizon, and the session that told it, if the server tells in time. It must have replayed the whole log, whose end
    /// is fixed.
    pub(crate) async fn ask(mut self) -> Option<(Xid8, Session)> {
        match tokio::time::timeout(WITHIN, self.snapshot_end()).await {
            Ok((end, session)) => Some((end.max(self.checkpoint), session)),
            Err(_) => {
                tracing::info!(
                    "the standby did not tell which transaction ids are used: commits without an answer stay unknown"
                );
                None
            }
        }
    }

    async fn snapshot_end(&mut self) -> (Xid8, Session) {
        let opened = (&mut self.opening).await;
        let mut session = match opened {
            Ok(session) => session,
            Err(_) => open(&self.server).await,
        };
        loop {
            match session.snapshot_end().await {
                Ok(end) => return (end, session),
                // The session may have given way to redo.
                Err(error) => {
                    tracing::debug!(%error, "asking again which transaction ids are used")
                }
            }
            tokio::time::sleep(OPEN_AGAIN).await;
            session = open(&self.server).await;
        }
    }
}

/// A session, as soon as the server lets one in.
async fn open(server: &StartOptions) -> Session {
    loop {
        match Session::open(&server.run, server.port, &server.superuser).await {
            Ok(session) => return session,
            Err(error) => tracing::debug!(%error, "the standby accepts no connections yet"),
        }
        tokio::time::sleep(OPEN_AGAIN).await;
    }
}
