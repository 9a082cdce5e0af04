//! What the running PostgreSQL says of itself: its version, and which of its parameters wait for a
//! restart. Asked over one session, on the active and on standbys alike, whenever it has read its
//! files again.
//!
//! Invariant: a standby is asked to read files only after it was told to read them anyway. The query
//! has a snapshot meanwhile, and redo waits for snapshots that see what it removes: far from the
//! storage that would be most of a second each time.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use coordination::channel::ServerStarted;
use coordination::records::{ServerFacts, ServerStart};
use parking_lot::Mutex;
use pgdata::control::Capacity;
use pgdata::settings;
use pgserver::{Postgres, PostgresError, Session, StartOptions};
use tokio::task::JoinHandle;

use super::context::Context;

/// When it read its files last. Needs none of them.
const LOADED: &str = "SELECT pg_conf_load_time()";
/// How often it is asked for that.
const ASK_EVERY: Duration = Duration::from_secs(3);
/// How long it is left alone after it did not answer.
const PAUSE: Duration = Duration::from_millis(500);

/// Asks until it is dropped; what was said is forgotten then.
pub(super) struct ServerWatch {
    facts: Arc<Mutex<ServerFacts>>,
    run: Arc<OnceLock<ServerStarted>>,
    task: JoinHandle<()>,
}

impl Drop for ServerWatch {
    fn drop(&mut self) {
        self.task.abort();
        *self.facts.lock() = ServerFacts::default();
    }
}

impl ServerWatch {
    /// Begins to ask a server that was just started.
    pub(super) fn start(context: &Context, postgres: &Postgres) -> ServerWatch {
        let facts = Arc::clone(&context.facts);
        let started = ServerStart {
            pid: postgres.pid(),
            unix_ms: postgres.started_unix_ms(),
        };
        *facts.lock() = ServerFacts::default();
        let own = &context.config.postgres.parameters;
        let own: Vec<String> = own.keys().map(|name| name.to_ascii_lowercase()).collect();
        let asked = pending_restart(&own);
        let options = postgres.options().clone();
        let run = Arc::<OnceLock<_>>::default();
        let asking = Asking {
            options,
            asked,
            started,
            facts: Arc::clone(&facts),
            run: Arc::clone(&run),
        };
        let task = tokio::spawn(asking.go_on());
        ServerWatch { facts, run, task }
    }

    /// Which run of the server it is, once the server has said so.
    pub(super) fn started(&self) -> Option<ServerStarted> {
        self.run.get().copied()
    }
}

/// A query for the parameters that wait for a restart, without those that are this node's `own`.
///
/// PostgreSQL knows, but for what its command line says: there a standby has the capacities that it must
/// not undercut (N12 i), and keeps them when it is promoted. Those are compared with the files.
fn pending_restart(own: &[String]) -> String {
    let capacities = settings::capacity(Capacity::default());
    let names = capacities.iter().map(|setting| setting.name);
    let names = names.filter(|name| !own.iter().any(|own| own == name));
    let names: Vec<String> = names.map(|name| format!("'{name}'")).collect();
    let pinned = match names.is_empty() {
        true => String::new(),
        false => format!(
            "UNION SELECT s.name FROM pg_settings s JOIN \
               (SELECT DISTINCT ON (name) name, setting FROM pg_file_settings ORDER BY name, seqno DESC) f \
               USING (name) \
             WHERE name IN ({}) AND s.source = 'command line' \
               AND CASE WHEN f.setting !~ '^[0-9]{{1,9}}$' THEN false \
                        WHEN pg_is_in_recovery() THEN f.setting::int > s.setting::int \
                        ELSE f.setting::int <> s.setting::int END",
            names.join(", ")
        ),
    };
    format!(
        "SELECT string_agg(name, ',' ORDER BY name) FROM \
         (SELECT name FROM pg_settings WHERE pending_restart {pinned}) waiting"
    )
}

/// What is asked, of whom, and where the answers go.
struct Asking {
    options: StartOptions,
    asked: String,
    started: ServerStart,
    facts: Arc<Mutex<ServerFacts>>,
    run: Arc<OnceLock<ServerStarted>>,
}

impl Asking {
    async fn go_on(self) {
        loop {
            // It does not let anybody in yet, or is about to end.
            if let Err(error) = self.ask().await {
                tracing::debug!(%error, "PostgreSQL does not say how it is");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn ask(&self) -> Result<(), PostgresError> {
        let options = &self.options;
        let session = Session::open(&options.run, options.port, &options.superuser).await?;
        let started = session.postmaster_started_us().await?;
        self.run.get_or_init(|| ServerStarted(started));
        let version = session.value("SHOW server_version").await?;
        let mut known = None;
        loop {
            let loaded = session.value(LOADED).await?;
            if loaded == known {
                tokio::time::sleep(ASK_EVERY).await;
                continue;
            }
            known = loaded;
            let pending = session.value(&self.asked).await?.unwrap_or_default();
            let names = pending.split(',').filter(|name| !name.is_empty());
            *self.facts.lock() = ServerFacts {
                server_version: version.clone(),
                started: Some(self.started),
                pending_restart: names.map(str::to_owned).collect(),
            };
        }
    }
}
