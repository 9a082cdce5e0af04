//! The work of each state of a node, on what its life holds.
//!
//! Invariant: what a life holds is gone before the next one begins, PostgreSQL before its mount.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use coordination::records::{Heartbeat, Record};
use dax::storage::Storage;
use futures_util::FutureExt;
use serde_json::json;
use tokio::sync::mpsc;

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

/// Waits for a beat of whoever owns the highest epoch, if `beat` is an older one: what the standby holds is
/// part of the next active's history as well, so it goes on with that one. Says why if that cannot be: then
/// only a look at everything tells who is to be followed.
async fn await_owner(
    context: &Context,
    storage: &Arc<dyn Storage>,
    beat: &mut Heartbeat,
) -> Result<std::result::Result<(), String>> {
    if storage.fenced().now_or_never().is_some() {
        return Ok(Err(
            "this handle to the volume owned an epoch and lost it".to_owned()
        ));
    }
    let owner = storage.accepted_epoch().await?.epoch;
    let deadline = context.now() + context.heartbeat().timeout;
    let before = beat.epoch;
    while beat.epoch < owner {
        if context.now() > deadline {
            return Ok(Err(format!("whoever owns epoch {owner} does not beat")));
        }
        if let Some(newer) = Heartbeat::load(storage.as_ref()).await?
            && newer.epoch > beat.epoch
        {
            *beat = newer;
            continue;
        }
        tokio::time::sleep(context.heartbeat().poll).await;
    }
    if beat.epoch > before {
        tracing::info!(active = %beat.node, epoch = %beat.epoch, "following the new active");
    }
    Ok(Ok(()))
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
            AgentError::Refused("nobody ever served whom a standby could follow".to_owned())
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
        let (Body::Standby(standby, known), Some(beat)) = (&mut self.body, &mut self.beat) else {
            return Err(AgentError::Refused("no standby runs".to_owned()));
        };
        let owner = await_owner(context, &standby.storage, beat);
        match attend(context, orders, |s| s.is_candidate(), owner).await {
            None => return Ok(()),
            Some(beats) => {
                if let Err(why) = beats? {
                    context.driver.tell(Event::MustReattach(why));
                    return Ok(());
                }
            }
        }
        self.seen = self.seen.max(beat.epoch);
        let follower = Follower::new(context, standby, beat, *known);
        let Ended {
            sight,
            known: reached,
            ended,
        } = follower.live(orders).await;
        *known = reached;
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
