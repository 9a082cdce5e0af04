//! An operator's wish to exchange zones, handed to the storage; the scrubber fills whoever joins, and ends it.
//!
//! Invariant: nothing is begun that zones would refuse. The owner goes by a change from when it begins it, so one that no zone ever
//! records would stand in the way of all others.

use std::sync::Arc;
use std::time::Duration;

use coordination::channel::Request;
use dax::error::{Error, ErrorKind};
use dax::ids::VolumeName;
use dax::membership::Change;
use dax::storage::Storage;
use futures_util::future::try_join_all;
use serde_json::json;

use super::super::driver::Order;
use super::super::others::{Way, may_join};

/// How long the zones may take to record it; it stands all the same.
const RECORDED_WITHIN: Duration = Duration::from_secs(15);

/// Has it begun, or given up, and answers once enough zones have recorded that. It is of the database's own volume if it names none.
pub(super) fn order(own: Way, others: Vec<Way>, order: Order) {
    tokio::spawn(async move {
        let answer = match carry_out(&own, &others, order.request).await {
            Ok(storage) => Ok(json!({ "members": storage.membership() })),
            Err(error) => Err(error.to_string()),
        };
        // Whoever asked may have gone.
        let _ = order.answer.send(answer);
    });
}

async fn carry_out(own: &Way, others: &[Way], request: Request) -> dax::Result<Arc<dyn Storage>> {
    let (volume, request) = match request {
        Request::InVolume { volume, order } => (volume, *order),
        request => (own.0.stored_in().clone(), request),
    };
    let all: Vec<&Way> = std::iter::once(own).chain(others).collect();
    let (cluster, storage) = find(&all, &volume).ok_or_else(|| {
        let said = format!("the active does not own the volume {volume} at present");
        Error::new(ErrorKind::Unavailable, said)
    })?;
    match request {
        Request::Exchange {
            joining,
            leaving,
            sync_replicas,
        } => {
            let change = Change {
                joining,
                leaving,
                sync_replicas,
                ..Change::default()
            };
            fits(storage, &all, &change).await?;
            let asked = change.joining.iter().map(|member| {
                let counts = all.iter().any(|(_, other)| {
                    let members = other.membership();
                    members.is_some_and(|members| members.member(member.store).is_some())
                });
                may_join(cluster, member, counts)
            });
            try_join_all(asked).await?;
            tracing::info!(%volume, ?change, "zones are being exchanged");
            in_time(storage.change_members(change)).await?;
        }
        Request::CancelExchange => {
            tracing::info!(%volume, "the exchange of zones is given up");
            in_time(storage.cancel_change()).await?;
        }
        _ => {
            let said = "this is no order about zones";
            return Err(Error::new(ErrorKind::Invalid, said));
        }
    }
    Ok(Arc::clone(storage))
}

fn find<'a>(all: &[&'a Way], volume: &VolumeName) -> Option<&'a Way> {
    let mut ways = all.iter();
    ways.find(|(cluster, _)| cluster.stored_in() == volume)
        .copied()
}

async fn in_time(recorded: impl Future<Output = dax::Result<()>>) -> dax::Result<()> {
    let Ok(recorded) = tokio::time::timeout(RECORDED_WITHIN, recorded).await else {
        let said = "too few zones have recorded it so far: it continues when they answer";
        return Err(Error::new(ErrorKind::Unavailable, said));
    };
    recorded
}

/// Refuses a change before the volume below has these members. Zones refuse it, too, but each for itself.
async fn fits(storage: &Arc<dyn Storage>, all: &[&Way], change: &Change) -> dax::Result<()> {
    let Some(layer) = &storage.settings().layer else {
        return Ok(());
    };
    let usage = storage.usage().await?;
    let has_all = |filled: Option<dax::storage::Fill>| filled.is_some_and(|fill| fill.ended);
    if !usage.is_empty() && usage.iter().all(|(_, usage)| has_all(usage.fill)) {
        return Ok(());
    }
    let members = storage.membership();
    let begun = members
        .map(|members| members.begin(change.clone(), members.version))
        .transpose()?;
    let below = find(all, &layer.parent).and_then(|(_, below)| below.membership());
    let is_ready = below
        .zip(begun)
        .is_some_and(|(below, begun)| below.is_target_of(&begun));
    match is_ready {
        true => Ok(()),
        false => {
            let said = format!(
                "the volume {} below has other zones: exchange them first, with as many synchronous copies, or let understudy branch fill \
                 make that volume unnecessary",
                layer.parent
            );
            Err(Error::new(ErrorKind::Conflict, said))
        }
    }
}
