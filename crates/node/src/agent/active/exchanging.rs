//! An operator's wish to exchange zones, handed to the storage; the scrubber fills whoever joins, and ends it.

use std::sync::Arc;
use std::time::Duration;

use coordination::channel::Request;
use coordination::config::ClusterConfig;
use dax::error::{Error, ErrorKind};
use dax::ids::VolumeName;
use dax::membership::Change;
use dax::storage::Storage;
use serde_json::{Value, json};

use super::super::driver::Order;
use super::super::others::{Others, may_join};

/// How long the zones may take to record it; it stands all the same.
const RECORDED_WITHIN: Duration = Duration::from_secs(15);

/// A volume, and the way to it.
type Way = (ClusterConfig, Arc<dyn Storage>);

/// Has it begun, or given up, and answers once enough zones have recorded that. It is of the database's own volume if it names no other.
pub(super) fn order(own: Way, others: Others, order: Order) {
    tokio::spawn(async move {
        let recorded =
            tokio::time::timeout(RECORDED_WITHIN, carry_out(own, &others, order.request));
        let answer = match recorded.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(
                "too few zones have recorded it so far: it continues when they answer".to_owned(),
            ),
        };
        // Whoever asked may have gone.
        let _ = order.answer.send(answer);
    });
}

async fn carry_out(own: Way, others: &Others, request: Request) -> dax::Result<Value> {
    let storage = match request {
        Request::Exchange {
            volume,
            joining,
            leaving,
            sync_replicas,
        } => {
            let (cluster, storage) = chosen(own, others, volume.as_ref())?;
            for member in &joining {
                may_join(&cluster, member).await?;
            }
            tracing::info!(
                volume = %cluster.stored_in(),
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
            storage.change_members(change).await?;
            storage
        }
        Request::CancelExchange { volume } => {
            let (cluster, storage) = chosen(own, others, volume.as_ref())?;
            tracing::info!(volume = %cluster.stored_in(), "the exchange of zones is given up");
            storage.cancel_change().await?;
            storage
        }
        _ => {
            let said = "this is no order about zones";
            return Err(Error::new(ErrorKind::Invalid, said));
        }
    };
    Ok(json!({ "members": storage.membership() }))
}

fn chosen(own: Way, others: &Others, volume: Option<&VolumeName>) -> dax::Result<Way> {
    match volume {
        None => Ok(own),
        Some(volume) if volume == own.0.stored_in() => Ok(own),
        Some(volume) => match others.find(volume) {
            Some(owned) => Ok((owned.cluster.clone(), Arc::clone(&owned.storage))),
            None => {
                let said = format!("the active does not own the volume {volume} at present");
                Err(Error::new(ErrorKind::Unavailable, said))
            }
        },
    }
}
