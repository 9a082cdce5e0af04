//! The work of each state of a node, on what its life holds.
//!
//! Invariant: what a life holds is gone before the next one begins, PostgreSQL before its mount.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use coordination::config;
use coordination::records::{ActiveState, Heartbeat, Record};
use dax::ids::NodeName;
use dax::storage::{EpochGrant, Storage};
use futures_util::FutureExt;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::context::Context;
use super::driver::Order;
use super::error::{AgentError, Result};
use super::follow::{Ended, Follower};
use super::life::{Body, Life};
use super::standby::Standby;
use super::{look, start};
use crate::machine::{Event, State};

/// The wait after something could not be cleared away.
const CLEAR_AGAIN: Duration = Duration::from_millis(500);

/// Does `work` while the node is in one of these states, and answers orders meanwhile; `None` if the
/// state changed before it was done.
pub(super) async fn attend<T>(
    context: &Context,
    orders: &mut mpsc::Receiver<Order>,
    stays: impl Fn(&State) -> bool,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            () = context.driver.until(|state| !stays(state)) => return None,
            done = &mut work => return Some(done),
            Some(order) = orders.recv() => context.driver.order(order),
        }
    }
}

/// Whom a standby goes on with.
#[derive(Debug)]
enum Next {
    /// The writer of this heartbeat, or who owns the epoch and has not written one yet.
    Active(Box<Heartbeat>),
    /// Only a look at everything tells; why.
    Unknown(&'static str),
}

/// Looks who is to be followed after the writer of `last`: whoever owns the highest epoch. What the standby holds is part
/// of that one's history as well.
///
/// A heartbeat of that owner is waited for; it comes in moments. If none comes, the owner died before it, or owns nothing,
/// because it proposed the epoch to too few zones; or this node's own look is slow. It is followed all the same, by
/// a heartbeat that it has not written: the detector judges it as any active, and what this standby holds stays of use.
/// An owner changes nothing before its first heartbeat is durable.
async fn next_active(
    storage: &Arc<dyn Storage>,
    timings: config::Heartbeat,
    last: &Heartbeat,
) -> Result<Next> {
    if storage.fenced().now_or_never().is_some() {
        return Ok(Next::Unknown(
            "this handle to the volume owned an epoch and lost it",
        ));
    }
    let grant = storage.accepted_epoch().await?;
    let deadline = Instant::now() + timings.timeout;
    let mut beat = last.clone();
    while beat.epoch < grant.epoch {
        let newer = Heartbeat::load(storage.as_ref()).await?;
        match newer.filter(|newer| newer.epoch > beat.epoch) {
            Some(newer) => beat = newer,
            None if Instant::now() > deadline => return Ok(Next::Active(silent(&grant, beat))),
            None => tokio::time::sleep(timings.poll).await,
        }
    }
    if beat.epoch > last.epoch {
        tracing::info!(active = %beat.node, epoch = %beat.epoch, "following the new active");
    }
    Ok(Next::Active(Box::new(beat)))
}

/// The heartbeat that the owner of `grant` has not written, after `last`.
fn silent(grant: &EpochGrant, last: Heartbeat) -> Box<Heartbeat> {
    let node = node_of(grant).unwrap_or_else(|| last.node.clone());
    tracing::info!(owner = %node, epoch = %grant.epoch, "following the owner of the epoch, which has written no \
        heartbeat yet");
    Box::new(Heartbeat {
        epoch: grant.epoch,
        counter: 0,
        node,
        starts: 0,
        state: ActiveState::TakingOver,
        ..last
    })
}

/// The node that proposed an epoch.
fn node_of(grant: &EpochGrant) -> Option<NodeName> {
    let (node, _incarnation) = grant.owner.split_once('/')?;
    NodeName::new(node).ok()
}

impl Life {
    /// Does what the state asks for, until it changes.
    pub(super) async fn step(
        &mut self,
        context: &Context,
        orders: &mut mpsc::Receiver<Order>,
    ) -> Result<()> {
        match context.driver.state() {
            State::Looking | State::Spare => {
                let watching = look::watch(context, self);
                let watched = attend(context, orders, |s| s.is_watching(), watching).await;
                watched.unwrap_or(Ok(()))
            }
            State::Attaching => self.attach(context, orders).await,
            State::CatchingUp | State::Warm => self.follow(context, orders).await,
            State::TakingOver(_) => self.take_over(context, orders).await,
            State::Serving | State::Stalled | State::Restarting => {
                self.serve(context, orders).await
            }
            State::BackingOff => {
                let now = context.driver.now();
                let until = context.driver.look(|machine| machine.wake_at());
                let wait = until.unwrap_or(now).saturating_sub(now);
                let stays = |s: &State| *s == State::BackingOff;
                attend(context, orders, stays, tokio::time::sleep(wait)).await;
                context.driver.tell(Event::Tick);
                Ok(())
            }
            State::HandingOver | State::Fenced | State::Discarding | State::Stopping => {
                self.clear(context, orders).await;
                Ok(())
            }
            State::Stopped => Ok(()),
        }
    }

    async fn attach(
        &mut self,
        context: &Context,
        orders: &mut mpsc::Receiver<Order>,
    ) -> Result<()> {
        let beat = self.beat.clone().ok_or_else(|| {
            AgentError::Refused("no node was ever active that a standby could follow".to_owned())
        })?;
        let joining = async {
            let storage = self.storage(context).await?;
            start::join(context, storage, &beat, context.driver.before_last()).await
        };
        let stays = |s: &State| *s == State::Attaching;
        let Some(joined) = attend(context, orders, stays, joining).await else {
            return Ok(());
        };
        let (standby, known) = joined?;
        tracing::info!(active = %beat.node, epoch = %beat.epoch, "following as a standby");
        self.body = Body::Standby(Box::new(standby), known);
        context.driver.tell(Event::Attached);
        Ok(())
    }

    async fn follow(
        &mut self,
        context: &Context,
        orders: &mut mpsc::Receiver<Order>,
    ) -> Result<()> {
        let (Body::Standby(standby, known), Some(last)) = (&mut self.body, &mut self.beat) else {
            return Err(AgentError::Refused("no standby runs".to_owned()));
        };
        let next = async {
            context.check_moved(standby.storage.as_ref()).await?;
            next_active(&standby.storage, context.heartbeat(), last).await
        };
        let next = attend(context, orders, |s| s.is_candidate(), next).await;
        let beat = match next.transpose()? {
            None => return Ok(()),
            Some(Next::Unknown(why)) => {
                context.driver.tell(Event::MustReattach(why.to_owned()));
                return Ok(());
            }
            Some(Next::Active(beat)) => beat,
        };
        self.seen = self.seen.max(beat.epoch);
        let follower = Follower::new(context, standby, &beat, *known);
        let Ended {
            sight,
            known: reached,
            beat,
            ended,
        } = follower.live(orders).await;
        *known = reached;
        if beat.counter > 0 {
            // One that was written: what its epoch wrote, this standby has followed. The next look begins from that.
            *last = beat;
        }
        self.forgets = sight.forgets || standby.postgres.exit().is_some();
        self.sight = sight;
        ended
    }

    async fn take_over(
        &mut self,
        context: &Context,
        orders: &mut mpsc::Receiver<Order>,
    ) -> Result<()> {
        let stays = |s: &State| matches!(s, State::TakingOver(_));
        let taking = Box::pin(start::take_over(context, self));
        match attend(context, orders, stays, taking).await {
            Some(taken) => taken.map(|phase| drop(context.driver.tell(Event::PhaseDone(phase)))),
            None => Ok(()),
        }
    }

    async fn serve(&mut self, context: &Context, orders: &mut mpsc::Receiver<Order>) -> Result<()> {
        match std::mem::take(&mut self.body) {
            Body::Active(active) => active.live(context, orders).await,
            other => {
                self.body = other;
                Err(AgentError::Refused("no active runs".to_owned()))
            }
        }
    }

    /// Ends what still runs: an active as its state says, a standby at once.
    async fn clear(&mut self, context: &Context, orders: &mut mpsc::Receiver<Order>) {
        let stops = context.driver.state() == State::Stopping;
        let cleared = match std::mem::take(&mut self.body) {
            Body::Nothing => Ok(()),
            Body::Active(active) => active.live(context, orders).await,
            Body::Standby(standby, _) => {
                if !self.forgets {
                    remember_hot(context, &standby);
                }
                match stops {
                    true => start::leave(*standby).await,
                    false => start::drop_standby(*standby).await,
                }
            }
        };
        if let Err(error) = cleared {
            tracing::error!(%error, "the previous role could not be ended in order");
            tokio::time::sleep(CLEAR_AGAIN).await;
        }
        *self = Life::default();
        context.board.report(json!({ "node": context.me.node }));
        context.driver.tell(Event::Cleared);
    }
}

/// What a standby holds is worth having again when it attaches afresh.
fn remember_hot(context: &Context, standby: &Standby) {
    let block_bytes = standby.storage.settings().block_size_bytes as usize;
    let most = context.config.memory.cache.bytes() / 2 / block_bytes;
    context.skips.remember(standby.view.hot_blocks(most));
}

#[cfg(test)]
mod tests {
    use dax::ids::Epoch;
    use dax::memory::MemoryCluster;
    use dax::storage::VolumeSettings;

    use super::*;

    fn beat(node: &NodeName, epoch: Epoch) -> Heartbeat {
        Heartbeat {
            epoch,
            counter: 7,
            node: node.clone(),
            synced_lsn: volume::lsn::Lsn(800),
            journal_synced: 3,
            timeline: 2,
            starts: 1,
            configured: 4,
            interval_ms: 200,
            state: ActiveState::Serving,
        }
    }

    fn patient_for(timeout: Duration) -> config::Heartbeat {
        config::Heartbeat {
            timeout,
            poll: Duration::from_millis(1),
            ..config::Preset::Fast.timings()
        }
    }

    /// An owner that died before its first heartbeat, or was never one, made all others throw their warm standbys away.
    // hazard: NODE-11
    #[tokio::test]
    async fn an_owner_that_does_not_beat_is_followed_until_it_is_suspected() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let [north, south] = ["north", "south"].map(|name| NodeName::new(name).unwrap());
        let served: Arc<dyn Storage> = cluster.client();
        let first = served.own_epoch(&north).await.unwrap();
        let last = beat(&north, first);
        last.store(served.as_ref()).await.unwrap();
        let winner: Arc<dyn Storage> = cluster.client();
        let second = winner.own_epoch(&south).await.unwrap();

        let standby: Arc<dyn Storage> = cluster.client();
        let soon = patient_for(Duration::ZERO);
        let next = next_active(&standby, soon, &last).await.unwrap();
        let Next::Active(silent) = next else {
            panic!("{next:?}");
        };
        let made_up = (silent.epoch, silent.counter, &silent.node);
        assert_eq!(made_up, (second, 0, &south));
        assert_eq!(
            (silent.synced_lsn, silent.journal_synced),
            (last.synced_lsn, 3)
        );

        beat(&south, second).store(winner.as_ref()).await.unwrap();
        let next = next_active(&standby, soon, &last).await.unwrap();
        assert!(matches!(next, Next::Active(beat) if (beat.counter, &beat.node) == (7, &south)));

        assert!(last.store(served.as_ref()).await.is_err(), "it was fenced");
        let next = next_active(&served, soon, &last).await.unwrap();
        assert!(matches!(next, Next::Unknown(_)), "{next:?}");
    }
}
