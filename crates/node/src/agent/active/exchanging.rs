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

/// Time that the zones may take to say how far a branch is filled.
const ANSWERED_WITHIN: Duration = Duration::from_secs(3);
/// Time that the zones may take to record it; it stands all the same.
const RECORDED_WITHIN: Duration = Duration::from_secs(10);

/// Has it begun, or given up, and answers once enough zones have recorded that. It is of the database's own volume if it names none.
pub(super) fn order(own: Way, others: Vec<Way>, order: Order) {
    tokio::spawn(async move {
        let answer = match carry_out(&own, &others, &order).await {
            Ok(storage) => Ok(json!({ "members": storage.membership() })),
            Err(error) => Err(error.to_string()),
        };
        // Whoever asked may have gone.
        let _ = order.answer.send(answer);
    });
}

async fn carry_out(own: &Way, others: &[Way], order: &Order) -> dax::Result<Arc<dyn Storage>> {
    let (volume, request) = match &order.request {
        Request::InVolume { volume, order } => (volume, order.as_ref()),
        request => (own.0.stored_in(), request),
    };
    let all: Vec<&Way> = std::iter::once(own).chain(others).collect();
    let way = find(&all, volume).ok_or_else(|| {
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
                joining: joining.clone(),
                leaving: leaving.clone(),
                sync_replicas: *sync_replicas,
                ..Change::default()
            };
            begin(way, &all, change, order).await?;
        }
        Request::CancelExchange => {
            tracing::info!(%volume, "the exchange of zones is given up");
            in_time(way.1.cancel_change()).await?;
        }
        _ => {
            let said = "this is no order about zones";
            return Err(Error::new(ErrorKind::Invalid, said));
        }
    }
    Ok(Arc::clone(&way.1))
}

async fn begin(way: &Way, all: &[&Way], change: Change, order: &Order) -> dax::Result<()> {
    let (cluster, storage) = way;
    let below = fits(storage, all, &change).await?;
    let asked = change.joining.iter().map(|member| {
        let counts = all.iter().any(|(_, other)| {
            let members = other.membership();
            members.is_some_and(|members| members.member(member.store).is_some())
        });
        may_join(cluster, member, counts)
    });
    try_join_all(asked).await?;
    if !order.is_wanted() {
        let said = "whoever asked has gone";
        return Err(Error::new(ErrorKind::Unavailable, said));
    }
    tracing::info!(volume = %cluster.stored_in(), ?change, "zones are being exchanged");
    let begun = in_time(storage.change_members(change)).await;
    match (begun, below) {
        (Err(error), Below::Others(parent)) if error.kind() == ErrorKind::Unavailable => {
            // The zones have refused it for all that is known, and would do so for ever.
            let _ = in_time(storage.cancel_change()).await;
            Err(first_below(&parent))
        }
        (begun, _) => begun,
    }
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

/// The volume below one.
enum Below {
    /// There is none, or it is not needed, or it has the members that are wanted.
    Ready,
    /// It is not this active's: the zones know which members it has.
    Others(VolumeName),
}

/// Refuses a change before the volume below has these members. Zones refuse it, too, but each for itself.
async fn fits(storage: &Arc<dyn Storage>, all: &[&Way], change: &Change) -> dax::Result<Below> {
    let Some(layer) = &storage.settings().layer else {
        return Ok(Below::Ready);
    };
    // If they do not say it in time, the volume below is needed for all that is known.
    let usage = tokio::time::timeout(ANSWERED_WITHIN, storage.usage()).await;
    let usage = usage.unwrap_or_else(|_| Ok(Vec::new()))?;
    let has_all = |filled: Option<dax::storage::Fill>| filled.is_some_and(|fill| fill.ended);
    if !usage.is_empty() && usage.iter().all(|(_, usage)| has_all(usage.fill)) {
        return Ok(Below::Ready);
    }
    let Some((_, below)) = find(all, &layer.parent) else {
        return Ok(Below::Others(layer.parent.clone()));
    };
    let members = storage.membership();
    let begun = members
        .map(|members| members.begin(change.clone(), members.version))
        .transpose()?;
    let pair = below.membership().zip(begun);
    match pair.is_some_and(|(below, begun)| below.is_target_of(&begun)) {
        true => Ok(Below::Ready),
        false => Err(first_below(&layer.parent)),
    }
}

fn first_below(parent: &VolumeName) -> Error {
    let said = format!(
        "the volume {parent} below has other zones: exchange them first, with as many synchronous copies, or let understudy branch fill \
         make that volume unnecessary"
    );
    Error::new(ErrorKind::Conflict, said)
}
