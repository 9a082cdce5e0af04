//! What the running PostgreSQL says of itself: its version, and which of its parameters wait for a
//! restart. Asked over one session, on the active and on standbys alike, whenever it has read its
//! files again.
//!
//! Invariant: a standby is asked to read files only after it was told to read them anyway. The query
//! has a snapshot meanwhile, and redo waits for snapshots that see what it removes: far from the
//! storage that would be most of a second each time.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use coordination::channel::ServerStarted;
use coordination::records::{ServerFacts, ServerStart};
use parking_lot::Mutex;
use pgdata::settings::{self, Configuration, Derived, NODE_FILE};
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
        let options = postgres.options().clone();
        let own = context.config.postgres.parameters.keys();
        let derived = Derived::new(&options.settings, own);
        let run = Arc::<OnceLock<_>>::default();
        let asking = Asking {
            options,
            derived,
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

/// Parameters that wait for a restart, but for those that the command line has.
const PENDING: &str = "SELECT string_agg(name, ',') FROM pg_settings \
                       WHERE pending_restart AND source <> 'command line'";

/// A query for what the shared files say of these parameters, as a JSON object.
fn said_in_files<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(settings::quoted).collect();
    format!(
        "SELECT json_object_agg(name, setting)::text FROM \
         (SELECT DISTINCT ON (name) lower(name) AS name, setting FROM pg_file_settings \
          WHERE sourcefile NOT LIKE '%/{NODE_FILE}' AND lower(name) IN ({}) ORDER BY name, seqno DESC) f",
        names.join(", ")
    )
}

/// Names of parameters that a restart would change.
async fn pending(session: &Session, derived: &Derived) -> Result<Vec<String>, PostgresError> {
    let others = session.value(PENDING).await?.unwrap_or_default();
    let others = others.split(',').filter(|name| !name.is_empty());
    let mut pending: Vec<String> = others.map(str::to_owned).collect();
    if derived.names().next().is_some() {
        let said = session.value(&said_in_files(derived.names())).await?;
        let said: BTreeMap<String, String> = said
            .and_then(|said| serde_json::from_str(&said).ok())
            .unwrap_or_default();
        let mut shared = Configuration::default();
        for (name, value) in said {
            shared.set(&name, value);
        }
        let recovers = session.value("SELECT pg_is_in_recovery()::text").await?;
        pending.extend(derived.pending(&shared, recovers.as_deref() == Some("true")));
    }
    pending.sort();
    Ok(pending)
}

/// What is asked, of whom, and where the answers go.
struct Asking {
    options: StartOptions,
    derived: Derived,
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
            let pending_restart = pending(&session, &self.derived).await?;
            *self.facts.lock() = ServerFacts {
                server_version: version.clone(),
                started: Some(self.started),
                pending_restart,
            };
        }
    }
}
