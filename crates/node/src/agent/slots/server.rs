//! The slots of a running standby's server, as it shows and moves them.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use pgdata::parse_lsn;
use pgdata::slot::{Decoding, Slot};
use pgserver::{PostgresError, Session, StartOptions};
use serde::Deserialize;
use volume::lsn::Lsn;

use super::compare::{self, Plan, Step};

/// A database in which every slot is seen.
const ANY_DATABASE: &str = "postgres";

/// No limits of the cluster's own: a slot is moved as a whole or not at all. PostgreSQL 17 has the last of them.
const NO_LIMIT: &str = "SELECT count(set_config(name, '0', false)) FROM pg_settings \
    WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_session_timeout', 'transaction_timeout')";
/// True if slots that decode can be moved on a standby: since PostgreSQL 16.
const DECODES_ON_STANDBY: &str = "SELECT current_setting('server_version_num')::int >= 160000";

/// Why a server's slots are not the stored ones.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// They cannot be made so.
    #[error("{0}")]
    Differs(String),
    /// The server did not do what was asked: perhaps the next time.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
}

pub(super) struct Server {
    postgres: StartOptions,
    /// A statement may take so long, if there is a limit.
    limit: Option<Duration>,
    /// A slot that decodes is moved in its own database.
    sessions: HashMap<String, Session>,
    databases: HashMap<String, String>,
}

impl Server {
    /// The server that was started with these options.
    pub(super) fn new(postgres: &StartOptions) -> Server {
        Server {
            postgres: postgres.clone(),
            limit: None,
            sessions: HashMap::new(),
            databases: HashMap::new(),
        }
    }

    /// The same server, with sessions of its own.
    pub(super) fn another(&self) -> Server {
        Server {
            databases: self.databases.clone(),
            ..Server::new(&self.postgres)
        }
    }

    /// The same server, with sessions whose statements take at most so long.
    pub(super) fn within(&self, limit: Duration) -> Server {
        Server {
            limit: Some(limit),
            ..self.another()
        }
    }

    /// True if slots that decode can be moved while it is a standby.
    ///
    /// # Errors
    /// The server's.
    pub(super) async fn decodes_on_standby(&mut self) -> Result<bool, PostgresError> {
        let session = self.session(ANY_DATABASE).await?;
        Ok(session.value(DECODES_ON_STANDBY).await?.as_deref() == Some("t"))
    }

    /// Steps from the server's slots to the stored ones.
    ///
    /// # Errors
    /// The server's.
    pub(super) async fn plan(
        &mut self,
        stored: &[Slot],
        copied: &BTreeSet<String>,
        oldest: Lsn,
    ) -> Result<Plan, PostgresError> {
        let own = self.slots().await?;
        Ok(compare::plan(stored, &own, copied, oldest))
    }

    /// Takes a step, as far as the server has replayed.
    ///
    /// # Errors
    /// The server's.
    pub(super) async fn take(&mut self, step: &Step) -> Result<(), PostgresError> {
        match step {
            Step::Advance { name, to, .. } => {
                let database = self.databases.get(name).cloned();
                let database = database.unwrap_or_else(|| ANY_DATABASE.to_owned());
                self.session(&database).await?.advance_slot(name, *to).await
            }
            Step::Drop { name } => self.session(ANY_DATABASE).await?.drop_slot(name).await,
        }
    }

    /// Has the server write all its slots.
    ///
    /// # Errors
    /// The server's.
    pub(super) async fn checkpoint(&mut self) -> Result<(), PostgresError> {
        self.session(ANY_DATABASE).await?.checkpoint().await
    }

    async fn session(&mut self, database: &str) -> Result<&Session, PostgresError> {
        let known = self.sessions.remove(database);
        let session = match known.filter(|session| !session.is_closed()) {
            Some(session) => session,
            None => {
                let StartOptions {
                    run,
                    port,
                    superuser,
                    ..
                } = &self.postgres;
                let session = Session::open_in(database, run, *port, superuser).await?;
                session.value(NO_LIMIT).await?;
                if let Some(limit) = self.limit {
                    let ms = limit.as_millis();
                    let set = format!("SELECT set_config('statement_timeout', '{ms}', false)");
                    session.value(&set).await?;
                }
                session
            }
        };
        Ok(self.sessions.entry(database.to_owned()).or_insert(session))
    }

    async fn slots(&mut self) -> Result<Vec<Slot>, PostgresError> {
        let text = self.session(ANY_DATABASE).await?.slots().await?;
        let slots: Vec<Shown> =
            serde_json::from_str(&text).map_err(|_| PostgresError::Answer(text))?;
        let databases = slots.iter().filter_map(|slot| {
            let database = slot.database.clone()?;
            Some((slot.slot_name.clone(), database))
        });
        self.databases = databases.collect();
        slots.into_iter().map(Shown::into_slot).collect()
    }
}

/// A line of [`Session::slots`].
#[derive(Deserialize)]
struct Shown {
    slot_name: String,
    plugin: Option<String>,
    datoid: Option<u32>,
    database: Option<String>,
    two_phase: bool,
    restart_lsn: Option<String>,
    confirmed_flush_lsn: Option<String>,
    is_lost: Option<bool>,
}

impl Shown {
    fn into_slot(self) -> Result<Slot, PostgresError> {
        let lsn = |text: Option<String>| match text {
            Some(text) => parse_lsn(&text).ok_or(PostgresError::Answer(text)),
            None => Ok(Lsn::ZERO),
        };
        let confirmed = lsn(self.confirmed_flush_lsn)?;
        Ok(Slot {
            name: self.slot_name,
            restart: lsn(self.restart_lsn)?,
            is_invalid: self.is_lost.unwrap_or(false),
            decoding: self.datoid.map(|database| Decoding {
                database,
                plugin: self.plugin.unwrap_or_default(),
                two_phase: self.two_phase,
                confirmed,
            }),
        })
    }
}
