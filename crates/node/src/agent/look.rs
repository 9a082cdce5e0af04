//! Watching the registry, as a node without PostgreSQL does: what it sees goes to the machine
//! ([`crate::machine`]), which decides.

use std::sync::Arc;

use coordination::detector::Beat;
use coordination::liveness::Liveness;
use coordination::records::{Heartbeat, Member, MemberState, Record, Role};
use dax::storage::Storage;
use tokio::time::sleep;

use super::context::Context;
use super::error::Result;
use super::life::Life;
use crate::machine::ranking::may_take_over;
use crate::machine::{Event, LastBeat, Registry};

/// Watches until the node has something else to do.
pub(super) async fn watch(context: &Context, life: &mut Life) -> Result<()> {
    let storage = life.storage(context).await?;
    let mut looked = Looked::default();
    life.seen = storage.accepted_epoch().await?.epoch;
    loop {
        context.check_moved(storage.as_ref()).await?;
        let (registry, beat) = looked.look(context, &storage).await?;
        // A decision is based on all that was seen, and the first look may be old.
        life.seen = life.seen.max(beat.as_ref().map_or(life.seen, |b| b.epoch));
        life.beat = beat;
        context.load_control().await?;
        let own = context.heartbeat();
        let timings = life.beat.as_ref().map_or(own, |beat| beat.timeout(own));
        context.driver.be_patient(timings.timeout);
        context.driver.tell(Event::Seen(registry));
        if !context.driver.state().is_watching() {
            return Ok(());
        }
        sleep(timings.poll).await;
    }
}

/// What was seen so far.
#[derive(Default)]
struct Looked {
    liveness: Liveness,
    standby_alive: bool,
}

impl Looked {
    async fn look(
        &mut self,
        context: &Context,
        storage: &Arc<dyn Storage>,
    ) -> Result<(Registry, Option<Heartbeat>)> {
        let beat = Heartbeat::load(storage.as_ref()).await?;
        let members = Member::list(storage.as_ref()).await?;
        let now = context.driver.now();
        self.liveness.note(&members, now);
        let timeout = context.heartbeat().timeout;
        let others = || members.iter().filter(|m| m.name != context.me.node);
        // Once seen, always: one that takes over now is no standby any more.
        self.standby_alive |=
            others().any(|m| may_take_over(m) && self.liveness.has_moved(&m.name));
        let stands = |m: &&Member| {
            let ready = [
                MemberState::Warm,
                MemberState::CatchingUp,
                MemberState::Starting,
            ];
            m.role == Role::Standby && ready.contains(&m.state)
        };
        let standbys = others()
            .filter(stands)
            .filter(|m| self.liveness.is_fresh(&m.name, timeout, now))
            .count();
        let registry = Registry {
            beat: beat.as_ref().map(last),
            standby_alive: self.standby_alive,
            standbys,
        };
        Ok((registry, beat))
    }
}

fn last(beat: &Heartbeat) -> LastBeat {
    LastBeat {
        node: beat.node.clone(),
        beat: Beat {
            epoch: beat.epoch,
            counter: beat.counter,
        },
        state: beat.state.clone(),
    }
}
