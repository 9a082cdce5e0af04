//! What the running PostgreSQL says of itself: its version, and which of its parameters wait for a
//! restart. Asked again and again over one session, on the active and on standbys alike.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::context::Context;
use crate::postgres::{Postgres, PostgresError, Session, StartOptions};
use crate::records::{ServerFacts, ServerStart};

/// How often it is asked.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// Asks until it is dropped; what was said is forgotten then.
pub(super) struct Inquiry {
    facts: Arc<Mutex<ServerFacts>>,
    task: JoinHandle<()>,
}

impl Drop for Inquiry {
    fn drop(&mut self) {
        self.task.abort();
        *self.facts.lock() = ServerFacts::default();
    }
}

impl Inquiry {
    /// Begins to ask a server that was just started.
    pub(super) fn start(context: &Context, postgres: &Postgres) -> Inquiry {
        let facts = Arc::clone(&context.facts);
        let started = ServerStart {
            pid: postgres.pid(),
            unix_ms: postgres.started_unix_ms(),
        };
        *facts.lock() = ServerFacts::default();
        let task = tokio::spawn(run(postgres.options().clone(), started, Arc::clone(&facts)));
        Inquiry { facts, task }
    }
}

async fn run(options: StartOptions, started: ServerStart, facts: Arc<Mutex<ServerFacts>>) {
    loop {
        // It does not let anybody in yet, or is about to end.
        if let Err(error) = ask(&options, started, &facts).await {
            tracing::debug!(%error, "PostgreSQL does not say how it is");
        }
        tokio::time::sleep(ASK_EVERY / 4).await;
    }
}

async fn ask(
    options: &StartOptions,
    started: ServerStart,
    facts: &Mutex<ServerFacts>,
) -> Result<(), PostgresError> {
    let session = Session::open(&options.run, options.port, &options.superuser).await?;
    let version = session.value("SHOW server_version").await?;
    loop {
        let pending =
            "SELECT string_agg(name, ',' ORDER BY name) FROM pg_settings WHERE pending_restart";
        let pending = session.value(pending).await?.unwrap_or_default();
        let names = pending.split(',').filter(|name| !name.is_empty());
        *facts.lock() = ServerFacts {
            server_version: version.clone(),
            started: Some(started),
            pending_restart: names.map(str::to_owned).collect(),
        };
        tokio::time::sleep(ASK_EVERY).await;
    }
}
