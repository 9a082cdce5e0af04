//! How long a client may keep still, and a statement run: the limits that PgBouncer has under the same names.

use std::future::Future;
use std::pin::Pin;
use std::task::Context as Wake;
use std::time::Duration;

use tokio::time::Sleep;

use crate::config::Scope;
use crate::core::session::Session;
use protocol::frame::Refusal;

/// Activity of a client, each with a limit of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// Nothing, between two transactions.
    Nothing,
    /// Nothing, within a transaction.
    NothingInTransaction,
    /// A statement is on a server, or waits for one.
    Statement,
}

impl Doing {
    fn of(session: &Session) -> Doing {
        match (session.is_idle(), session.is_idle_in_transaction()) {
            (true, _) => Doing::Nothing,
            (_, true) => Doing::NothingInTransaction,
            _ => Doing::Statement,
        }
    }

    fn limit(self, scope: &Scope) -> Duration {
        match self {
            Doing::Nothing => scope.client_idle_timeout,
            Doing::NothingInTransaction => scope.idle_transaction_timeout,
            Doing::Statement => scope.query_timeout,
        }
    }

    fn refusal(self) -> Refusal {
        let (code, text) = match self {
            Doing::Nothing => (
                "57P05",
                "client_idle_timeout: nothing was asked for too long",
            ),
            Doing::NothingInTransaction => (
                "25P03",
                "idle_transaction_timeout: a transaction was left open for too long",
            ),
            Doing::Statement => ("57014", "query_timeout: a statement took too long"),
        };
        Refusal::fatal(code, text).hint("The proxy's configuration has this limit.")
    }
}

/// The limit that counts now, since the client has begun what it does.
#[derive(Default)]
pub struct Limit {
    since: Option<(Doing, u64)>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Limit {
    /// Notes what the client does now; `units` tells one statement from the next.
    pub fn watch(&mut self, session: &Session, units: u64, scope: &Scope) {
        let now = (Doing::of(session), units);
        if self.since == Some(now) {
            return;
        }
        self.since = Some(now);
        let limit = now.0.limit(scope);
        self.timer = (!limit.is_zero()).then(|| Box::pin(tokio::time::sleep(limit)));
    }

    /// Last word for the client, if the time is over; and whether a statement has to be cancelled.
    pub fn poll(&mut self, wake: &mut Wake<'_>) -> Option<(Refusal, bool)> {
        let (doing, _) = self.since?;
        poll_timer(&mut self.timer, wake).then(|| (doing.refusal(), doing == Doing::Statement))
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
