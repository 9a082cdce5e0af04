//! The first checkpoint of an active that took over.
//!
//! PostgreSQL spreads the checkpoint after a promotion over most of `checkpoint_timeout`. Who attaches
//! meanwhile begins at the predecessor's last one, and has the log since then to redo: as much as after any
//! crash. Writing everything that is dirty at once instead would cost clients most of their throughput just
//! when they come back. But where takeovers follow one another faster than checkpoints, the log since
//! the newest one would grow without bound: then the checkpoint is hurried, once.
//!
//! What the active inherited as a standby must be written back before the seal that follows the checkpoint, and
//! is spread over the same time.

use std::sync::Arc;
use std::time::Duration;

use pgserver::{Result, Session, StartOptions};
use volume::active::ActiveView;

/// So much log is redone in about a second.
pub(super) const MUCH_BYTES: u64 = 16 << 20;

/// Spreading it further makes no difference to clients.
const CARRY_WITHIN_MAX: Duration = Duration::from_secs(60);

/// How long to wait before trying again.
const PAUSE: Duration = Duration::from_secs(5);

/// Has what was inherited written back meanwhile, and hurries it if that is worth it. Tries again until PostgreSQL has
/// heard of it.
pub(super) async fn run(postgres: StartOptions, view: Arc<ActiveView>) {
    while let Err(error) = attend(&postgres, &view).await {
        tracing::info!(%error, "the first checkpoint is not sped up yet: a node that attaches now has more log to replay");
        tokio::time::sleep(PAUSE).await;
    }
}

async fn attend(postgres: &StartOptions, view: &ActiveView) -> Result<()> {
    let session = Session::open(&postgres.run, postgres.port, &postgres.superuser).await?;
    view.write_back_inherited(write_back_within(session.checkpoint_spread().await?));
    let log_bytes = session.log_since_checkpoint_bytes().await?;
    let promotions = session.promotions_since_checkpoint().await?;
    if is_worth_it(promotions, log_bytes) {
        session.checkpoint().await?;
        tracing::debug!(log_bytes, promotions, "hurried the first checkpoint");
    }
    Ok(())
}

/// Done before a checkpoint that is spread like that.
fn write_back_within(checkpoint_spread: Duration) -> Duration {
    (checkpoint_spread * 4 / 5).min(CARRY_WITHIN_MAX)
}

/// `promotions` counts this active's own.
fn is_worth_it(promotions: u32, log_bytes: u64) -> bool {
    promotions > 1 && log_bytes >= MUCH_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takeover_leaves_the_checkpoint_to_postgresql_and_the_next_one_does_not() {
        let a_minute_of_log = 10 * MUCH_BYTES;
        assert!(!is_worth_it(1, a_minute_of_log));
        assert!(is_worth_it(2, a_minute_of_log));
        assert!(
            !is_worth_it(2, MUCH_BYTES - 1),
            "that is redone in a second"
        );
        assert!(!is_worth_it(0, a_minute_of_log), "a start is no takeover");
    }
}
