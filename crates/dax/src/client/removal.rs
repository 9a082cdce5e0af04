//! Removing a volume from its replicas, for good.
//!
//! ```text
//!   which replicas have it? ──▶ own an epoch at all of them ──▶ close it at all ──▶ remove it at all
//!                                  (its owner is fenced)           └ another volume lies over it: nothing is removed
//! ```
//!
//! Invariant: nothing is removed before all replicas have closed it: then no volume is laid over it any more, and each
//! replica removes it, now or when this is repeated. A replica that was away is told when this is repeated.

use tokio::task::JoinSet;

use super::ClientConfig;
use super::core::Arrival;
use super::greeting::{Greeted, Greeting, Introduction, unexpected};
use super::setup::patiently;
use super::stream::{Stream, within};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Epoch, NodeName};
use crate::wire::{Request, Response};

/// Removes the volume that `config` names from all of its replicas, for good: its name is not used again. Whoever owned it is
/// fenced. Waits while replicas are missing; repeating is harmless, and finishes what was interrupted.
///
/// # Errors
/// `Conflict` if another volume is laid over it, which the message names; if its members are changing; or if somebody else
/// owns an epoch meanwhile, which another attempt fences. `Denied` if a replica refuses the key, or is refused.
pub async fn remove_volume(config: &ClientConfig, remover: &NodeName) -> Result<()> {
    let introduction = Introduction::new(config);
    let replicas = replicas(config, &introduction).await?;
    let mut holders = Vec::new();
    for known in visit(&replicas, &introduction).await? {
        if let (address, Some(greeted)) = known {
            holders.push((address, greeted.arrival, greeted.stream));
        }
    }
    let Some(highest) = holders
        .iter()
        .map(|(_, arrival, _)| arrival.grant.epoch)
        .max()
    else {
        return Ok(());
    };
    let removal = Removal {
        epoch: highest.next(),
        owner: format!("{remover}/{:016x}", super::random()),
    };
    // Those that do not count believe that the others have accepted it.
    holders.sort_by_key(|(_, arrival, _)| arrival.rebuilding);
    for (address, arrival, stream) in &mut holders {
        removal.own(address, arrival, stream).await?;
    }
    for close in [true, false] {
        for (address, _, stream) in &mut holders {
            let epoch = removal.epoch;
            let request = Request::RemoveVolume { epoch, close };
            ask(address, stream, &request).await?;
        }
    }
    Ok(())
}

/// An epoch under which a volume is removed.
struct Removal {
    epoch: Epoch,
    owner: String,
}

impl Removal {
    async fn own(&self, address: &str, arrival: &Arrival, stream: &mut Stream) -> Result<()> {
        let own = Request::OwnEpoch {
            epoch: self.epoch,
            owner: self.owner.clone(),
            settled: arrival.rebuilding,
        };
        match within(address, stream.request(&own)).await?.into_result()? {
            Response::Owned { accepted: true, .. } => Ok(()),
            Response::Owned { grant, .. } => Err(Error::new(
                ErrorKind::Conflict,
                format!("{} owns {} at {address}", grant.owner, grant.epoch),
            )),
            other => Err(unexpected(address, &other)),
        }
    }
}

async fn ask(address: &str, stream: &mut Stream, request: &Request) -> Result<()> {
    match within(address, stream.request(request))
        .await?
        .into_result()?
    {
        Response::Done => Ok(()),
        other => Err(unexpected(address, &other)),
    }
}

/// Addresses of all members; of a volume without recorded ones, those that are configured.
async fn replicas(config: &ClientConfig, introduction: &Introduction) -> Result<Vec<String>> {
    let mut newest = None;
    for (_, known) in visit(&config.replicas, introduction).await? {
        let membership = known.and_then(|greeted| greeted.arrival.membership);
        newest = newest.max_by_version(membership);
    }
    let Some(membership) = newest else {
        return Ok(config.replicas.clone());
    };
    if membership.change.is_some() {
        let text = "the volume's zones are being exchanged: end that first";
        return Err(Error::new(ErrorKind::Conflict, text));
    }
    let addresses = membership.members.into_iter().map(|member| member.address);
    Ok(addresses.collect())
}

trait Newest {
    fn max_by_version(self, other: Self) -> Self;
}

impl Newest for Option<Box<crate::membership::Membership>> {
    fn max_by_version(self, other: Self) -> Self {
        [self, other]
            .into_iter()
            .flatten()
            .max_by_key(|m| m.version)
    }
}

/// Greets all replicas, until each has answered; those that do not know the volume are named without more.
async fn visit(
    replicas: &[String],
    introduction: &Introduction,
) -> Result<Vec<(String, Option<Box<Greeted>>)>> {
    let mut attempts = JoinSet::new();
    for address in replicas {
        let (address, introduction) = (address.clone(), introduction.clone());
        attempts.spawn(async move {
            let greeting = patiently(&address, || introduction.greet(&address)).await?;
            Ok((
                address,
                match greeting {
                    Greeting::Known(greeted) => Some(greeted),
                    Greeting::Unknown(_) => None,
                },
            ))
        });
    }
    attempts.join_all().await.into_iter().collect()
}
