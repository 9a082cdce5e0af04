//! The active looks at the other nodes: whether enough standbys protect it, and whom to enlist if not
//! ([`crate::machine::protection`] decides).

use std::convert::Infallible;
use std::time::Duration;

use coordination::channel::{self, Request};
use coordination::liveness::Liveness;
use coordination::records::{Member, Record};
use dax::ids::NodeName;

use super::context::Context;
use super::error::Result;
use crate::machine::protection::NodesSeen;
use crate::machine::{Effect, Event};

/// How often.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a spare may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Looks for as long as this node is the active; never returns.
pub(super) async fn watch(context: &Context) -> Infallible {
    let mut liveness = Liveness::default();
    loop {
        if let Err(error) = look(context, &mut liveness).await {
            tracing::info!(%error, "the other nodes could not be counted; trying again");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn look(context: &Context, liveness: &mut Liveness) -> Result<()> {
    let members = Member::list(context.registry.as_ref()).await?;
    context.driver.tell(context.known_control());
    let now = context.now();
    liveness.note(&members, now);
    let subscribers = context.server.subscribers();
    // A record is written twice a second.
    let timeout = context.heartbeat().timeout + LOOK_EVERY;
    let nodes = members.into_iter().map(|mut member| {
        let subscriber = subscribers.iter().find(|s| s.who.node == member.name);
        if let Some(progress) = subscriber.and_then(|s| s.progress) {
            member.applied = member.applied.max(progress.applied);
        }
        let alive = subscriber.is_some() || liveness.is_fresh(&member.name, timeout, now);
        (member, alive)
    });
    let nodes_seen = NodesSeen {
        nodes: nodes.collect(),
        zone: context.config.cluster.zone,
    };
    let addresses: Vec<_> = nodes_seen.nodes.iter().map(|(m, _)| m.clone()).collect();
    for effect in context.driver.tell(Event::NodesSeen(nodes_seen)) {
        if let Effect::Enlist(spare) = effect {
            enlist(context, &spare, &addresses);
        }
    }
    Ok(())
}

/// Asks a spare to become a standby. If it does not, the next censuses tell.
fn enlist(context: &Context, spare: &NodeName, members: &[Member]) {
    let Some(member) = members.iter().find(|member| member.name == *spare) else {
        return;
    };
    tracing::warn!(%spare, "a standby is missing: enlisting a spare");
    let (address, me) = (member.channel.clone(), context.party.clone());
    let spare = spare.clone();
    tokio::spawn(async move {
        let asked = channel::request(&address, &me, Request::Enlist, ANSWER_WITHIN).await;
        if let Err(error) = asked {
            tracing::warn!(%error, "the spare {spare} was not enlisted");
        }
    });
}
