//! What the active is to proxies: it tells them that it serves, which standbys there are and how far, and positions of the
//! log with proof; and it has them hold while its PostgreSQL stops on purpose.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
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
use pgserver::{PostgresError, Session, StartOptions};
use tokio::sync::Mutex;
use volume::lsn::Lsn;

use super::Active;
use crate::agent::context::Context;

/// The server may take so long to tell what it shows.
const LOOKS_WITHIN: Duration = Duration::from_millis(200);
/// A standby that is not in the registry yet is looked for so often, and what the server shows if nobody asks.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long a stop and whatever follows may take before proxies hold no longer.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);

struct Source {
    sealer: Arc<Sealer>,
    storage: Arc<dyn Storage>,
    postgres: StartOptions,
    /// The session by which it is looked what the server shows.
    session: Mutex<Option<Session>>,
}

impl Source {
    /// Sees what the server shows. One look at a time: who waits for another's is content with it, or looks again.
    async fn look(&self) {
        let mut kept = self.session.lock().await;
        let StartOptions {
            run,
            port,
            superuser,
            ..
        } = &self.postgres;
        let session = match kept.take().filter(|session| !session.is_closed()) {
            Some(session) => Ok(session),
            None => Session::open(run, *port, superuser).await,
        };
        let looked = async {
            let session = session?;
            let snapshot = session.snapshot().await?;
            Ok::<_, PostgresError>((session, snapshot))
        };
        match looked.await {
            Ok((session, snapshot)) => {
                self.sealer.looked(&snapshot);
                *kept = Some(session);
            }
            Err(error) => tracing::debug!(%error, "the server does not tell what it shows"),
        }
    }
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

    async fn shown(&self, durable: Lsn) -> Lsn {
        if self.sealer.shown(durable) < durable {
            // A server that does not answer shows nothing, and others must not wait for it.
            let _ = tokio::time::timeout(LOOKS_WITHIN, self.look()).await;
        }
        self.sealer.shown(durable)
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
        let source = Arc::new(Source {
            sealer: Arc::clone(&self.sealer),
            storage: self.storage.clone(),
            postgres: self.postgres.options().clone(),
            session: Mutex::default(),
        });
        tokio::spawn(look_now_and_then(Arc::downgrade(&source)));
        context.server.serve_proxies(serving, source);
    }

    /// Has proxies begin no transaction until PostgreSQL serves again, here or elsewhere, and waits a while for those that
    /// are open to end. A higher epoch ends the wait.
    pub(super) async fn hold_proxies(&self, context: &Context) {
        let drain = context.config.channel.drain_timeout;
        let at_most = drain + STOPPED_WITHIN;
        tokio::select! {
            () = context.server.hold(self.epoch, drain, at_most) => {}
            () = self.storage.fenced() => {}
        }
    }
}

/// Looks what the server shows whenever many commits have gathered of which nobody knows, until nobody is answered any more.
async fn look_now_and_then(source: Weak<Source>) {
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        let Some(source) = source.upgrade() else {
            return;
        };
        if source.sealer.wants_look() {
            source.look().await;
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
