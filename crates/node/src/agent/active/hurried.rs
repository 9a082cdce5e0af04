//! A checkpoint that somebody asks for, so that who begins at its image has little log to replay.

use std::sync::Arc;
use std::time::Duration;

use pgserver::{Result, Session, StartOptions};
use serde_json::json;
use volume::active::ActiveView;

use super::super::driver::Order;
use super::first_checkpoint::MUCH_BYTES;

/// Time that the seal behind the checkpoint may take.
const SEALED_WITHIN: Duration = Duration::from_secs(5);

/// Has it written, if it is worth it, and answers when its image is sealed.
pub(super) fn order(postgres: StartOptions, view: Arc<ActiveView>, order: Order) {
    tokio::spawn(async move {
        let answer = match attend(&postgres, &view).await {
            Ok(log_bytes) => Ok(json!({ "log_bytes": log_bytes })),
            Err(error) => Err(error.to_string()),
        };
        // Whoever asked may have gone.
        let _ = order.answer.send(answer);
    });
}

/// Returns the bytes of log since the checkpoint before.
async fn attend(postgres: &StartOptions, view: &ActiveView) -> Result<u64> {
    let session = Session::open(&postgres.run, postgres.port, &postgres.superuser).await?;
    let log_bytes = session.log_since_checkpoint_bytes().await?;
    if log_bytes >= MUCH_BYTES {
        let mut sealed = view.watch_sealed();
        let before = *sealed.borrow_and_update();
        session.checkpoint().await?;
        let is_later = sealed.wait_for(|now| *now > before);
        // The last image is as good as before, if this one is late.
        let _ = tokio::time::timeout(SEALED_WITHIN, is_later).await;
    }
    Ok(log_bytes)
}
