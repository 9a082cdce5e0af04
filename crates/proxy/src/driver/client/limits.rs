//! How long a client may keep still, and a statement run: the limits that PgBouncer has under the same names.

use std::future::Future;
use std::pin::Pin;
use std::task::Context as Wake;
use std::time::Duration;

use tokio::time::Sleep;

use crate::config::Scope;
use crate::core::session::Session;
use crate::core::stats::Activity;
use protocol::frame::Refusal;

fn limit(activity: Activity, scope: &Scope) -> Duration {
    match activity {
        Activity::Idle => scope.client_idle_timeout,
        Activity::IdleInTransaction => scope.idle_transaction_timeout,
        Activity::Statement => scope.query_timeout,
    }
}

fn refusal(activity: Activity) -> Refusal {
    let (code, text) = match activity {
        Activity::Idle => (
            "57P05",
            "client_idle_timeout: nothing was asked for too long",
        ),
        Activity::IdleInTransaction => (
            "25P03",
            "idle_transaction_timeout: a transaction was left open for too long",
        ),
        Activity::Statement => ("57014", "query_timeout: a statement took too long"),
    };
    Refusal::fatal(code, text).hint("The proxy's configuration has this limit.")
}

/// The limit that counts now, since the client has begun what it does.
#[derive(Default)]
pub struct Limit {
    since: Option<(Activity, u64)>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Limit {
    /// Notes what the client does now; `batches` tells one statement from the next.
    pub fn watch(&mut self, session: &Session, batches: u64, scope: &Scope) {
        let now = (Activity::of(session), batches);
        if self.since == Some(now) {
            return;
        }
        self.since = Some(now);
        let limit = limit(now.0, scope);
        self.timer = (!limit.is_zero()).then(|| Box::pin(tokio::time::sleep(limit)));
    }

    /// Last word for the client, if the time is over; and whether a statement has to be cancelled.
    pub fn poll(&mut self, wake: &mut Wake<'_>) -> Option<(Refusal, bool)> {
        let (activity, _) = self.since?;
        let is_statement = activity == Activity::Statement;
        poll_timer(&mut self.timer, wake).then(|| (refusal(activity), is_statement))
    }
}

/// True if the time has come, once.
pub fn poll_timer(timer: &mut Option<Pin<Box<Sleep>>>, wake: &mut Wake<'_>) -> bool {
    let is_over = timer
        .as_mut()
        .is_some_and(|timer| timer.as_mut().poll(wake).is_ready());
    if is_over {
        *timer = None;
    }
    is_over
}
