//! The first checkpoint of an active that took over.
//!
//! Who attaches begins at the newest seal, the last completed checkpoint; until this active has completed one,
//! that is its predecessor's. PostgreSQL spreads the checkpoint after a promotion over most of
//! `checkpoint_timeout`: a node that comes back meanwhile has all log since then to redo, and with takeovers
//! that follow one another sooner the log since the newest seal would grow without bound. So where there is
//! much, the checkpoint is hurried, once.

use crate::postgres::{Result, Session, StartOptions};

/// So much log is redone in about a second.
const MUCH_BYTES: u64 = 16 << 20;

/// Hurries it if that is worth it.
pub(super) async fn run(postgres: StartOptions) {
    if let Err(error) = hurry(&postgres).await {
        tracing::info!(%error, "the first checkpoint is not hurried: who attaches now has more to redo");
    }
}

async fn hurry(postgres: &StartOptions) -> Result<()> {
    let session = Session::open(&postgres.run, postgres.port, &postgres.superuser).await?;
    let log_bytes = session.log_since_checkpoint_bytes().await?;
    if log_bytes >= MUCH_BYTES {
        session.checkpoint().await?;
        tracing::debug!(log_bytes, "hurried the first checkpoint");
    }
    Ok(())
}
