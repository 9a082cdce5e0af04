//! Does the active's PostgreSQL let anybody in? Its process may be there and do nothing: stopped by a signal or a freezer, or
//! unable to start a process for one more client. The agent beats meanwhile, so no standby suspects anything.
//!
//! Nothing is done about it but to say so: in the log, in the node's status, and in the health checks, which load
//! balancers go by. Whether another node should take over is for operators to say.

use std::sync::Arc;
use std::time::Duration;

use pgserver::{Postgres, PostgresError, Session, StartOptions};
use tokio::task::JoinHandle;

use crate::agent::driver::MachineDriver;
use crate::machine::State;

/// How often it is tried.
const EVERY: Duration = Duration::from_secs(5);
/// How long PostgreSQL may take to let the agent in.
const WITHIN: Duration = Duration::from_secs(5);
/// So many attempts in a row without an answer: PostgreSQL is not slow, it stands still.
const IN_A_ROW: u32 = 4;

const TROUBLE: &str = "PostgreSQL runs but has not let the agent in for a while, so clients may wait in vain; \
                       see whether its processes are stopped or cannot be started (limits of processes and memory), then \
                       order \"understudy restart\" or \"understudy switchover\"";

/// Tries until it is dropped; what was found is forgotten then.
pub(super) struct Answering {
    driver: Arc<MachineDriver>,
    task: JoinHandle<()>,
}

impl Answering {
    pub(super) fn start(driver: &Arc<MachineDriver>, postgres: &Postgres) -> Answering {
        let task = tokio::spawn(run(Arc::clone(driver), postgres.options().clone()));
        Answering {
            driver: Arc::clone(driver),
            task,
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.task.abort();
        self.driver.server_stands_still(None);
    }
}

async fn run(driver: Arc<MachineDriver>, postgres: StartOptions) {
    let mut attempts = Attempts::default();
    loop {
        tokio::time::sleep(EVERY).await;
        let answers = answers(&postgres, WITHIN).await;
        // Without zones it waits for them, as everybody does.
        let counts = driver.state() == State::Serving;
        match attempts.count(answers, counts) {
            Some(Found::StandsStill) => {
                tracing::error!("{TROUBLE}");
                driver.server_stands_still(Some(TROUBLE));
            }
            Some(Found::Answers) => {
                tracing::info!("PostgreSQL lets the agent in again");
                driver.server_stands_still(None);
            }
            None => {}
        }
    }
}

/// True if it says anything, if only that there are too many clients.
async fn answers(postgres: &StartOptions, within: Duration) -> bool {
    let opening = Session::open(&postgres.run, postgres.port, &postgres.superuser);
    match tokio::time::timeout(within, opening).await {
        Ok(Ok(_)) => true,
        Ok(Err(PostgresError::Sql(error))) => error.as_db_error().is_some(),
        Ok(Err(_)) | Err(_) => false,
    }
}

/// What is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    StandsStill,
    Answers,
}

#[derive(Debug, Default)]
struct Attempts {
    /// Without an answer, in a row.
    failed: u32,
    told: bool,
}

impl Attempts {
    /// One more attempt; a failed one that does not `count` proves nothing, nor do those before it.
    fn count(&mut self, answers: bool, counts: bool) -> Option<Found> {
        self.failed = match answers || !counts {
            true => 0,
            false => self.failed.saturating_add(1),
        };
        let found = match self.told {
            false if self.failed >= IN_A_ROW => Found::StandsStill,
            true if answers => Found::Answers,
            _ => return None,
        };
        self.told = found == Found::StandsStill;
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_stands_still_after_some_attempts_in_a_row_and_is_told_once() {
        let mut attempts = Attempts::default();
        let mut after = |answers: &[bool]| {
            let found: Vec<_> = answers.iter().map(|a| attempts.count(*a, true)).collect();
            found
        };
        let slow = [false, false, false, true];
        assert_eq!(after(&slow), [None; 4], "it was slow");
        let stands = Some(Found::StandsStill);
        assert_eq!(after(&[false; 6]), [None, None, None, stands, None, None]);
        assert_eq!(after(&[true, true]), [Some(Found::Answers), None]);
    }

    #[test]
    fn waits_for_zones_are_not_held_against_the_server() {
        let mut attempts = Attempts::default();
        for _ in 0..10 {
            assert_eq!(attempts.count(false, false), None);
        }
        for _ in 1..IN_A_ROW {
            assert_eq!(attempts.count(false, true), None);
        }
        assert_eq!(attempts.count(false, true), Some(Found::StandsStill));
        assert_eq!(attempts.count(false, false), None, "it is told already");
        assert_eq!(attempts.count(true, false), Some(Found::Answers));
    }

    /// A postmaster that is stopped takes connections, by way of the kernel, and says nothing.
    #[tokio::test]
    async fn server_that_accepts_and_stays_silent_does_not_answer() {
        let run = tempfile::tempdir().unwrap();
        let options = StartOptions {
            data: run.path().join("data"),
            run: run.path().to_owned(),
            log: run.path().join("log"),
            port: 5432,
            listen_addresses: String::new(),
            superuser: "postgres".to_owned(),
            settings: Vec::new(),
            run_as: None,
        };
        let within = Duration::from_millis(10);
        assert!(!answers(&options, within).await, "nobody listens");
        let _silent = tokio::net::UnixListener::bind(run.path().join(".s.PGSQL.5432")).unwrap();
        assert!(!answers(&options, within).await);
    }
}
