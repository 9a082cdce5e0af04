//! What works with the active's running PostgreSQL, and leaves before it stops.

use std::collections::BTreeMap;
use std::sync::Arc;

use pgserver::Postgres;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use volume::lsn::Lsn;

use super::super::context::Context;
use super::super::feedback::FeedbackConnections;
use super::super::server_watch::ServerWatch;
use super::answering::Answering;
use super::leaving::DIES_WITHIN;
use super::ordering::{Confirming, GivenUp, Ordering};
use super::{Active, ActiveStatus, configuring, group_commit};
use crate::machine::Event;

pub(super) struct ServingTasks {
    /// Where commits are confirmed, that connection tells of needed rows as well.
    feedback: Option<FeedbackConnections>,
    ordering: Option<Ordering>,
    configuring: JoinHandle<()>,
    /// Where the log is not ordered.
    adapting: Option<JoinHandle<()>>,
    _server_watch: ServerWatch,
    _answering: Answering,
}

impl ServingTasks {
    pub(super) fn start(
        context: &Context,
        active: &mut Active,
        told: &ActiveStatus,
    ) -> ServingTasks {
        active.order_log(context);
        let ordering = active.take_ordering();
        let (postgres, storage) = (&active.postgres, &active.storage);
        let server = Arc::clone(&context.server);
        let (tell, suitable) = watch::channel(None);
        let adapting = match ordering.is_some() {
            // Flushes that overlap do not wait for one another.
            true => {
                tell.send_replace(Some(BTreeMap::new()));
                None
            }
            false => Some(tokio::spawn(group_commit::run(
                postgres.options().clone(),
                Arc::clone(storage),
                tell,
            ))),
        };
        let reloader = postgres.reloader();
        let configuring = configuring::run(
            context.control.clone(),
            context.config.paths.mount(),
            move || reloader.reload(),
            told.configuring.clone(),
            suitable,
        );
        let feedback = ordering
            .is_none()
            .then(|| FeedbackConnections::start(server, postgres.options()));
        ServingTasks {
            feedback,
            ordering,
            configuring: tokio::spawn(configuring),
            adapting,
            _server_watch: ServerWatch::start(context, postgres),
            _answering: Answering::start(&context.driver, postgres),
        }
    }

    /// Lets all leave, if PostgreSQL is to stop in order: one that is killed is not waited for. Who confirms commits
    /// stays, for as long as what is returned.
    pub(super) async fn end(self, in_order: bool) -> Option<Confirming> {
        self.configuring.abort();
        if let Some(adapting) = self.adapting {
            adapting.abort();
        }
        if let Some(feedback) = self.feedback {
            match in_order {
                true => feedback.end().await,
                false => feedback.abort(),
            }
        }
        match self.ordering {
            Some(ordering) if in_order => Some(ordering.leave().await),
            _ => None,
        }
    }
}

impl Active {
    /// Commits wait for what nobody would ever confirm. What has happened then; nothing if the server is to be started
    /// again.
    pub(super) async fn give_log_up(&self, context: &Context, why: GivenUp) -> Option<Event> {
        match why {
            GivenUp::Refused => {
                context.order_no_log();
                None
            }
            GivenUp::Unfollowed(at) => Some(kill_unfollowed(&self.postgres, at).await),
        }
    }
}

/// The log cannot be followed behind `at`: makes an end of its server, for somebody to take over. What has happened then.
pub(super) async fn kill_unfollowed(postgres: &Postgres, at: Lsn) -> Event {
    let report = format!(
        "its log cannot be followed behind {at}, so nothing behind that would ever be confirmed or shown to standbys"
    );
    tracing::error!(
        "PostgreSQL is killed, so that a standby takes over: {report}; this is a bug: keep the log, and report it"
    );
    // A clean stop would wait for confirmations, and end with nothing that may be sealed. If it hangs in the kernel, its
    // mount is aborted later.
    let _ = tokio::time::timeout(DIES_WITHIN, postgres.kill()).await;
    Event::PostgresExited {
        redo_failed: false,
        report,
    }
}
