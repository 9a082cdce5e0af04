//! The node's own record: whatever it is doing, others see that it is alive, and what it is.

use std::sync::Arc;
use std::time::Duration;

use coordination::records::{Control, Libraries, Member, Record, Role, ServerFacts};
use dax::storage::Storage;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use volume::lsn::Lsn;

use super::context::{Context, Reached, SAY_WITHIN};
use super::driver::MachineDriver;
use super::error::Result;

/// How often it is written; at once when the state changes.
const EVERY: Duration = Duration::from_millis(500);

/// Writes the record for as long as the agent runs.
pub(super) struct Membership(JoinHandle<()>);

struct Writer {
    member: Member,
    driver: Arc<MachineDriver>,
    registry: Arc<dyn Storage>,
    reached: Arc<Reached>,
    control: watch::Receiver<Control>,
    facts: Arc<Mutex<ServerFacts>>,
    built_with: Option<Libraries>,
}

impl Writer {
    async fn run(mut self) {
        let mut states = self.driver.states();
        loop {
            states.mark_unchanged();
            if let Err(error) = self.write().await {
                tracing::debug!(%error, "node record not written");
            }
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                changed = states.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn write(&mut self) -> Result<()> {
        let member = &mut self.member;
        member.updated += 1;
        let control = self.control.borrow().clone();
        member.control = control.version;
        member.misfit = control.misfit(&member.libraries, self.built_with.as_ref());
        member.server = self.facts.lock().clone();
        (member.role, member.state) = self.driver.member();
        (member.received, member.applied) = match member.role {
            Role::Standby => self.reached.get(),
            Role::Active | Role::Spare => (Lsn::ZERO, Lsn::ZERO),
        };
        Ok(member.store(self.registry.as_ref()).await?)
    }
}

impl Membership {
    pub(super) fn start(context: &Context) -> Membership {
        let writer = Writer {
            member: context.member(),
            driver: Arc::clone(&context.driver),
            registry: Arc::clone(&context.registry),
            reached: Arc::clone(&context.reached),
            control: context.control.clone(),
            facts: Arc::clone(&context.facts),
            built_with: context.built_with.clone(),
        };
        Membership(tokio::spawn(writer.run()))
    }

    /// The agent ends in order, and takes its record along.
    pub(super) async fn end(self, context: &Context) {
        self.0.abort();
        // Nothing is written any more when this returns.
        let _ = self.0.await;
        let registry = context.registry.as_ref();
        let name = Member::record_name(&context.me.node);
        let removed = registry.remove_record(&name, Member::AUTHORITY);
        let removed = tokio::time::timeout(SAY_WITHIN, removed).await;
        if !matches!(removed, Ok(Ok(()))) {
            tracing::info!("this node's record was not removed at the stop");
        }
    }
}
