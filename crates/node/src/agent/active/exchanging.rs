//! An operator's wish to exchange zones, handed to the storage; the scrubber fills whoever joins, and ends it.

use std::sync::Arc;
use std::time::Duration;

use coordination::channel::Request;
use dax::membership::Change;
use dax::storage::Storage;
use serde_json::json;

use super::super::driver::Order;

/// How long the zones may take to record it; it stands all the same.
const RECORDED_WITHIN: Duration = Duration::from_secs(15);

/// Has it begun, or given up, and answers once enough zones have recorded that.
pub(super) fn order(storage: Arc<dyn Storage>, order: Order) {
    tokio::spawn(async move {
        let recorded =
            tokio::time::timeout(RECORDED_WITHIN, carry_out(storage.as_ref(), order.request));
        let answer = match recorded.await {
            Ok(Ok(())) => Ok(json!({ "members": storage.membership() })),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(
                "too few zones have recorded it so far: it continues when they answer".to_owned(),
            ),
        };
        // Whoever asked may have gone.
        let _ = order.answer.send(answer);
    });
}

async fn carry_out(storage: &dyn Storage, request: Request) -> dax::Result<()> {
    match request {
        Request::Exchange {
            joining,
            leaving,
            sync_replicas,
        } => {
            tracing::info!(
                ?joining,
                ?leaving,
                sync_replicas,
                "zones are being exchanged"
            );
            let change = Change {
                joining,
                leaving,
                sync_replicas,
                ..Change::default()
            };
            storage.change_members(change).await
        }
        _ => {
            tracing::info!("the exchange of zones is given up");
            storage.cancel_change().await
        }
    }
}
