//! What the agent asks its PostgreSQL again and again, on one session that stays open.
//!
//! Invariant: never in the way. Nobody waits long for an answer, and the session is given up where there is none; the
//! next question is asked on another one.

use std::time::Duration;

use pgserver::{Result, Session, StartOptions};

/// How long PostgreSQL may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Asking {
    postgres: StartOptions,
    session: Option<Session>,
}

impl Asking {
    /// At the PostgreSQL that was started with these options; it is not connected to before the first question.
    pub(super) fn new(postgres: StartOptions) -> Asking {
        Asking {
            postgres,
            session: None,
        }
    }

    /// Nothing if PostgreSQL does not say `what` in time.
    pub(super) async fn ask<T>(
        &mut self,
        what: &str,
        question: impl AsyncFnOnce(&Session) -> Result<T>,
    ) -> Option<T> {
        let answer = async { question(self.session().await?).await };
        let answer = tokio::time::timeout(ANSWER_WITHIN, answer).await;
        match answer {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => tracing::debug!(%error, "PostgreSQL did not tell {what}"),
            Err(_) => {}
        }
        self.session = None;
        None
    }

    /// The open session, or a new one.
    async fn session(&mut self) -> Result<&Session> {
        let open = match self.session.take().filter(|session| !session.is_closed()) {
            Some(open) => open,
            None => {
                let postgres = &self.postgres;
                Session::open(&postgres.run, postgres.port, &postgres.superuser).await?
            }
        };
        Ok(self.session.insert(open))
    }
}
