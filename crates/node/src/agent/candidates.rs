//! Looking at the records of the other nodes: those of standbys tell who goes first at a takeover
//! ([`crate::machine::ranking`]), the active's where its channel is.

use std::convert::Infallible;
use std::time::Duration;

use coordination::address::Address;
use coordination::records::{Member, Record};
use dax::ids::NodeName;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::context::Context;
use super::error::Result;
use crate::machine::Event;
use crate::machine::ranking::Ranking;

/// How often the records are looked at: a living standby writes its own three times meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(1500);

pub(super) struct Candidates {
    ranking: Ranking,
    active: NodeName,
    /// Where the active's channel was at the last look.
    address: Option<Address>,
    look_at: Instant,
    look: Option<JoinHandle<Result<Vec<Member>>>>,
}

impl Candidates {
    /// Of a standby that follows `active`.
    pub(super) fn new(me: NodeName, active: NodeName) -> Candidates {
        Candidates {
            ranking: Ranking::new(me, active.clone()),
            active,
            address: None,
            look_at: Instant::now(),
            look: None,
        }
    }

    /// Where the active's channel is, if its record was seen.
    pub(super) fn address(&self) -> Option<Address> {
        self.address.clone()
    }

    /// Keeps looking at the records; never returns. Can be dropped at any time and called again.
    pub(super) async fn watch(&mut self, context: &Context) -> Infallible {
        loop {
            if self.look.is_none() {
                tokio::time::sleep_until(self.look_at).await;
                self.look_at = Instant::now() + LOOK_EVERY;
                let registry = context.registry.clone();
                self.look = Some(tokio::spawn(async move {
                    Ok(Member::list(registry.as_ref()).await?)
                }));
            }
            let Some(look) = &mut self.look else { continue };
            let found = look.await;
            self.look = None;
            match found.expect("a look neither panics nor is cancelled") {
                Ok(members) => {
                    let active = members.iter().find(|member| member.name == self.active);
                    self.address = active.map(|member| member.channel.clone());
                    let better = self.ranking.look(members);
                    context.driver.tell(Event::Better(better));
                }
                Err(error) => tracing::debug!(%error, "the nodes' records could not be read"),
            }
        }
    }
}
