//! What is done before PostgreSQL is stopped on purpose, while it still serves.
//!
//! - It writes what is dirty. A clean stop ends with a checkpoint, and clients wait for as long as that
//!   writes; what was written shortly before is not written again, so the pause does not grow with
//!   `shared_buffers`.
//! - A standby that is to follow gets level, if it is not: it would replay the rest in the pause.
//!
//! This only shortens the pause: an order is never refused here, and waits a few seconds at most, less
//! than who asked waits for an answer.

use std::sync::Arc;
use std::time::Duration;

use coordination::channel::{Request, Server};
use dax::ids::NodeName;
use pgserver::{Result, Session, StartOptions};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::agent::driver::Order;

/// How long a standby is given to get level.
const LEVEL_WITHIN: Duration = Duration::from_secs(2);
/// How long the server may write.
const FLUSHED_WITHIN: Duration = Duration::from_secs(6);
/// A checkpoint that took longer left more behind than is worth waiting for.
const SHORT: Duration = Duration::from_millis(250);
/// Each is shorter than the one before, unless the server writes as fast as it can anyway.
const CHECKPOINTS_MAX: usize = 3;

/// Prepares a stop, then lets the order through.
pub(super) fn prepare(
    order: Order,
    postgres: StartOptions,
    server: Arc<Server>,
    through: mpsc::Sender<Order>,
) {
    tokio::spawn(async move {
        if let Request::Failover { to, force: false } = &order.request {
            await_warm(&server, to.as_ref()).await;
        }
        flush(&postgres).await;
        // Nobody serves any more: the order's answer is that nobody answers.
        let _ = through.send(order).await;
    });
}

/// Writes out what the server has in memory, until little is left.
pub(super) async fn flush(postgres: &StartOptions) {
    match tokio::time::timeout(FLUSHED_WITHIN, checkpoints(postgres)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::info!(%error, "no checkpoint was completed before the stop: the pause is longer");
        }
        Err(_) => {
            tracing::info!(
                "the server is still writing after {FLUSHED_WITHIN:?}: the pause is longer"
            );
        }
    }
}

async fn checkpoints(postgres: &StartOptions) -> Result<()> {
    let session = Session::open(&postgres.run, postgres.port, &postgres.superuser).await?;
    for _ in 0..CHECKPOINTS_MAX {
        let began = Instant::now();
        session.checkpoint().await?;
        if began.elapsed() < SHORT {
            break;
        }
    }
    Ok(())
}

async fn await_warm(server: &Server, to: Option<&NodeName>) {
    let mut changes = server.subscribers_changed();
    let getting_level = async {
        while !server.subscribers().is_empty() && warm(server, to).is_err() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    // What becomes of the order is not decided here.
    let _ = tokio::time::timeout(LEVEL_WITHIN, getting_level).await;
}

/// True if there is a standby that could take over at once, and is the one that is named.
pub(super) fn warm(server: &Server, to: Option<&NodeName>) -> std::result::Result<(), String> {
    let subscribers = server.subscribers();
    let mut warm = subscribers
        .iter()
        .filter(|s| s.progress.is_some_and(|p| p.warm));
    match to {
        None => warm.next().map(drop).ok_or("no standby is warm".to_owned()),
        Some(to) => warm
            .find(|s| s.who.node == *to)
            .map(drop)
            .ok_or(format!("{to} is no warm standby")),
    }
}
