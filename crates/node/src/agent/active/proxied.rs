//! What the active is to proxies: it tells them that it serves, which standbys there are and how far, and positions of the
//! log with proof; and it has them hold while its PostgreSQL stops on purpose.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use coordination::address::Address;
use coordination::channel::{
    PositionSource, Server, ServerStarted, Serving, StandbySeen, Subscriber,
};
use coordination::records::{Horizon, Incarnation, Member, Record};
use dax::ids::{Epoch, NodeName};
use dax::storage::Storage;
use pgdata::sealer::Sealer;
use pgserver::Session;
use volume::lsn::Lsn;

use super::Active;
use crate::agent::context::Context;

/// A standby that is not in the registry yet is looked for so often.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long a stop and whatever follows may take before proxies hold no longer.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);

struct Source {
    sealer: Arc<Sealer>,
    storage: Arc<dyn Storage>,
}

#[async_trait]
impl PositionSource for Source {
    fn durable(&self) -> Result<Lsn, String> {
        let position = self.sealer.position();
        position.ok_or_else(|| "the log was not followed to its end; restart this node".to_owned())
    }

    async fn confirm(&self) -> dax::Result<Epoch> {
        self.storage.confirm().await
    }
}

impl Active {
    /// Tells proxies that this node serves. Its PostgreSQL does.
    pub(crate) fn tell_proxies(&self, context: &Context, horizons: Vec<Horizon>) {
        let serving = Serving {
            epoch: self.epoch,
            node: context.me.node.clone(),
            postgres: context.member().postgres,
            horizons,
            started: self.started,
        };
        let source = Source {
            sealer: Arc::clone(&self.sealer),
            storage: self.storage.clone(),
        };
        context.server.serve_proxies(serving, Arc::new(source));
    }

    /// Has proxies begin no transaction until PostgreSQL serves again, here or elsewhere, and waits a while for those that
    /// are open to end. A higher epoch ends the wait.
    pub(super) async fn hold_proxies(&self, context: &Context) {
        let drain = context.config.channel.drain;
        let at_most = drain + STOPPED_WITHIN;
        tokio::select! {
            () = context.server.hold(self.epoch, drain, at_most) => {}
            () = self.storage.fenced() => {}
        }
    }
}

/// Which run of its server the session is on. Proxies that do not hear of it are more careful.
pub(crate) async fn run_of(session: &Session) -> Option<ServerStarted> {
    let started = session.postmaster_started_us().await;
    started.ok().map(ServerStarted)
}

/// Tells proxies how far standbys are, until it is dropped.
pub(super) async fn tell_standbys(server: Arc<Server>, registry: Arc<dyn Storage>) {
    let mut changed = server.subscribers_changed();
    let mut known = Addresses::default();
    loop {
        changed.mark_unchanged();
        let subscribers = server.subscribers();
        let missing = subscribers.iter().any(|s| known.of(s).is_none());
        if missing && !server.proxies().is_empty() {
            known.look(registry.as_ref()).await;
        }
        let seen = subscribers.iter().filter_map(|subscriber| {
            let progress = subscriber.progress?;
            Some(StandbySeen {
                node: subscriber.who.node.clone(),
                postgres: known.of(subscriber)?.clone(),
                applied: progress.applied,
                warm: progress.warm,
                started: progress.started,
            })
        });
        server.tell_standbys(seen.collect());
        let again = tokio::time::sleep(LOOK_AGAIN);
        tokio::select! {
            changed = changed.changed() => if changed.is_err() { return },
            () = again, if missing => {}
        }
    }
}

/// Where the standbys' PostgreSQL is reached, as their records say.
#[derive(Default)]
struct Addresses(BTreeMap<NodeName, (Incarnation, Address)>);

impl Addresses {
    fn of(&self, subscriber: &Subscriber) -> Option<&Address> {
        let (incarnation, address) = self.0.get(&subscriber.who.node)?;
        (*incarnation == subscriber.who.incarnation).then_some(address)
    }

    async fn look(&mut self, registry: &dyn Storage) {
        match Member::list(registry).await {
            Ok(members) => {
                let members = members.into_iter();
                self.0 = members
                    .map(|member| (member.name, (member.incarnation, member.postgres)))
                    .collect();
            }
            Err(error) => tracing::debug!(%error, "the standbys' records cannot be read"),
        }
    }
}
