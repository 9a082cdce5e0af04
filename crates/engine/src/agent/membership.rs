//! The node's own record: whatever it is doing, others see that it is alive, and what it is.

use std::sync::Arc;
use std::time::Duration;

use coordination::address::Address;
use coordination::records::{Control, Libraries, Member, Record, ServerFacts, written_forms};
use dax::forms::Forms;
use tokio::task::JoinHandle;
use volume::lsn::Lsn;

use super::Context;
use crate::error::Result;
use crate::machine::Event;

/// How often it is written; at once when the state changes.
const EVERY: Duration = Duration::from_millis(500);
/// How long the zones may take to hear that the node ends.
const SAY_WITHIN: Duration = Duration::from_secs(2);

/// Writes the record, and reads what operators want, for as long as the agent runs.
pub(super) struct Membership(JoinHandle<()>);

impl Membership {
    pub(super) fn start(context: Arc<Context>) -> Membership {
        Membership(tokio::spawn(run(context)))
    }

    /// The agent ends in order, and takes its record along.
    pub(super) async fn end(self, context: &Context) {
        self.0.abort();
        // Nothing is written any more when this returns.
        let _ = self.0.await;
        let name = Member::record_name(&context.party.me.node);
        let removed = context.registry.remove_record(&name, Member::AUTHORITY);
        if !matches!(tokio::time::timeout(SAY_WITHIN, removed).await, Ok(Ok(()))) {
            tracing::info!("the record of this node stays, although it ends");
        }
    }
}

async fn run(context: Arc<Context>) {
    let mut states = context.driver.states();
    for updated in 1.. {
        states.mark_unchanged();
        if let Err(error) = write(&context, updated).await {
            tracing::debug!(%error, "node record not written");
        }
        match Control::read(context.registry.as_ref()).await {
            Ok(control) => {
                context.driver.tell(Event::Paused(control.paused.is_some()));
                *context.control.lock() = control;
            }
            Err(error) => tracing::debug!(%error, "the control record was not read"),
        }
        match written_forms(context.registry.as_ref()).await {
            Ok(forms) => context.board.use_forms(forms.min(Forms::NEWEST)),
            Err(error) => tracing::debug!(%error, "the number of forms was not read"),
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            changed = states.changed() => if changed.is_err() { return },
        }
    }
}

async fn write(context: &Context, updated: u64) -> Result<()> {
    let (role, state) = context.driver.member();
    let config = &context.config;
    let reached = config
        .engine
        .advertise
        .as_deref()
        .unwrap_or(&context.recipe.reached);
    let nowhere = || Address::Unix(config.paths.run());
    let member = Member {
        name: context.party.me.node.clone(),
        role,
        state,
        incarnation: context.party.me.incarnation.clone(),
        postgres: reached.parse().unwrap_or_else(|_| nowhere()),
        channel: config.channel.advertised().clone(),
        rest: Some(config.rest.advertised().clone()),
        tags: config.tags.clone(),
        received: Lsn::ZERO,
        applied: Lsn::ZERO,
        server: ServerFacts::default(),
        libraries: Libraries::default(),
        misfit: None,
        reads: Forms::NEWEST,
        control: context.control.lock().version,
        updated,
    };
    Ok(member.store(context.registry.as_ref()).await?)
}
