//! What the proxy looks up in the catalogs, by a session of its own: verifiers of passwords, and which
//! functions are volatile.

mod names;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio_postgres::config::SslMode;
use tokio_postgres::error::{DbError, Severity};
use tokio_postgres::{Client, NoTls};

use crate::config::{Config, Control};
use crate::core::sql::Catalog;
use crate::core::topology::Address;

use super::cluster::Cluster;
use super::dial::{DialError, Dialer};

/// What is known of functions is looked up again when it is older: functions come and go rarely.
const VALID: Duration = Duration::from_secs(30);
/// It is not looked up again sooner than this, however often it turns out to be wrong.
const LEARN_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked whether they are known for the first time.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long the first clients of a database wait for them.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A verifier that is remembered counts if there is no answer within this time.
const REMEMBERED_AFTER: Duration = Duration::from_secs(1);
/// No more of them are remembered.
const MOST_VERIFIERS: usize = 10_000;
/// How long to wait before a verifier is asked for again.
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// How long a server may take to let the proxy in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What PostgreSQL keeps of a password that counts now.
const VERIFIER: &str = "SELECT rolpassword FROM pg_catalog.pg_authid WHERE rolname = $1 AND rolcanlogin \
    AND (rolvaliduntil IS NULL OR rolvaliduntil > pg_catalog.now())";

/// A catalog could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// Nobody is known to be active.
    #[error("no server is known to be active")]
    NoActive,
    /// The active does not answer, or refuses.
    #[error("the active's catalogs cannot be read")]
    Postgres(#[from] tokio_postgres::Error),
    /// The server cannot be connected to.
    #[error("the server cannot be connected to")]
    Dial(#[from] DialError),
    /// The server does not answer.
    #[error("the server did not answer in time")]
    Timeout,
    /// The file with the control user's password cannot be read.
    #[error("the file with the control user's password cannot be read")]
    PasswordFile(#[source] std::io::Error),
}

/// What is known of one database's functions, for all its sessions.
pub type Functions = Arc<RwLock<Arc<Catalog>>>;

/// The same, and since when.
struct Known {
    functions: Functions,
    asked: Option<Instant>,
    /// It is asked for once more in a moment.
    is_due: Arc<AtomicBool>,
}

impl Default for Known {
    fn default() -> Known {
        Known {
            functions: Arc::new(RwLock::new(Arc::new(Catalog::unread()))),
            asked: None,
            is_due: Arc::default(),
        }
    }
}

/// How the proxy logs in for itself. Clones share it.
#[derive(Clone)]
pub struct OwnLogin {
    control: Control,
    dialer: Dialer,
}

/// A session of the proxy's own that is used again and again, on one server at a time.
pub struct OwnSession {
    login: OwnLogin,
    current: tokio::sync::Mutex<Option<(Address, Arc<Client>)>>,
}

impl OwnSession {
    /// None yet.
    pub fn new(login: OwnLogin) -> OwnSession {
        OwnSession {
            login,
            current: tokio::sync::Mutex::default(),
        }
    }

    /// The session on this server: the one that is there, or a new one if that is on another server or has ended.
    pub async fn on(&self, server: &Address) -> Result<Arc<Client>, CatalogError> {
        let mut current = self.current.lock().await;
        if let Some((address, client)) = &*current
            && address == server
            && !client.is_closed()
        {
            return Ok(client.clone());
        }
        let client = Arc::new(self.login.to_server(server).await?);
        *current = Some((server.clone(), client.clone()));
        Ok(client)
    }

    /// Whoever asks next gets another one than `ended`.
    async fn forget(&self, ended: &Arc<Client>) {
        let mut current = self.current.lock().await;
        current.take_if(|(_, client)| Arc::ptr_eq(client, ended));
    }
}

/// Reads catalogs.
pub struct Catalogs {
    login: OwnLogin,
    cluster: Arc<Cluster>,
    known: Mutex<HashMap<String, Known>>,
    /// What verifiers are read by.
    session: OwnSession,
    /// Those that were read last.
    verifiers: Mutex<HashMap<String, String>>,
}

impl Catalogs {
    /// Reads as `login` says.
    pub fn new(login: OwnLogin, cluster: Arc<Cluster>) -> Catalogs {
        Catalogs {
            session: OwnSession::new(login.clone()),
            verifiers: Mutex::default(),
            login,
            cluster,
            known: Mutex::default(),
        }
    }

    /// The functions of a database. Whoever asks before they are known waits for that, but not for long.
    pub async fn of(&self, database: &str) -> Functions {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let functions = self.now(database);
            if !functions.read().is_unread || Instant::now() >= deadline {
                return functions;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// The same without waiting: functions may do anything until they are known.
    pub fn now(&self, database: &str) -> Functions {
        let (functions, is_old) = self.look(database, VALID);
        if is_old {
            self.learn(database, &functions);
        }
        functions
    }

    /// What is known of the functions of a database is wrong.
    pub fn learn_again(&self, database: &str) {
        let (functions, is_old) = self.look(database, LEARN_EVERY);
        if is_old {
            self.learn(database, &functions);
            return;
        }
        // What was read a moment ago may lack it: once more, in a moment.
        let is_due = self
            .known
            .lock()
            .entry(database.to_owned())
            .or_default()
            .is_due
            .clone();
        if !is_due.swap(true, Ordering::AcqRel) {
            let learning = learn(
                self.login.clone(),
                self.cluster.clone(),
                database.to_owned(),
                functions,
            );
            tokio::spawn(async move {
                tokio::time::sleep(LEARN_EVERY).await;
                is_due.store(false, Ordering::Release);
                learning.await;
            });
        }
    }

    fn learn(&self, database: &str, functions: &Functions) {
        let (login, cluster) = (self.login.clone(), self.cluster.clone());
        tokio::spawn(learn(
            login,
            cluster,
            database.to_owned(),
            functions.clone(),
        ));
    }

    /// Functions as they are known, and true if they are to be asked for: nobody has for so long.
    fn look(&self, database: &str, valid: Duration) -> (Functions, bool) {
        let mut all = self.known.lock();
        let known = all.entry(database.to_owned()).or_default();
        let valid = match known.functions.read().is_unread {
            true => LEARN_EVERY,
            false => valid,
        };
        let is_old = known.asked.is_none_or(|asked| asked.elapsed() > valid);
        if is_old {
            known.asked = Some(Instant::now());
        }
        (known.functions.clone(), is_old)
    }

    /// What PostgreSQL keeps of a user's password; `None` if there is no such user, or no password. If nobody can be asked now,
    /// what was kept before counts, if that is known; otherwise it is asked again until there is an answer.
    pub async fn verifier(
        &self,
        user: &str,
        within: Duration,
    ) -> Result<Option<String>, CatalogError> {
        let deadline = Instant::now() + within;
        loop {
            let remembered = self.verifiers.lock().get(user).cloned();
            let asking = self.ask_verifier(user);
            let answer = match &remembered {
                Some(_) => tokio::time::timeout(REMEMBERED_AFTER, asking).await,
                None => Ok(asking.await),
            };
            match answer {
                Ok(Ok(verifier)) => {
                    let mut all = self.verifiers.lock();
                    match &verifier {
                        Some(text) if all.len() < MOST_VERIFIERS || all.contains_key(user) => {
                            all.insert(user.to_owned(), text.clone());
                        }
                        Some(_) => {}
                        None => drop(all.remove(user)),
                    }
                    return Ok(verifier);
                }
                _ if remembered.is_some() => return Ok(remembered),
                Ok(Err(error @ CatalogError::PasswordFile(_))) => return Err(error),
                Ok(Err(error)) if Instant::now() >= deadline => return Err(error),
                Ok(Err(error)) => tracing::debug!(%error, "a verifier cannot be read yet"),
                Err(_) => {}
            }
            self.cluster.news_within(TRY_AGAIN).await;
        }
    }

    async fn ask_verifier(&self, user: &str) -> Result<Option<String>, CatalogError> {
        let client = self.session().await?;
        match self.ask(&client, user).await {
            // It had ended, and nobody had noticed.
            Err(CatalogError::Postgres(error)) if has_ended(&client, &error) => {
                self.session.forget(&client).await;
                let client = self.session().await?;
                self.ask(&client, user).await
            }
            answer => answer,
        }
    }

    async fn ask(&self, client: &Arc<Client>, user: &str) -> Result<Option<String>, CatalogError> {
        let asking = async { client.query_opt(VERIFIER, &[&user]).await };
        let Ok(row) = tokio::time::timeout(ANSWER_TIMEOUT, asking).await else {
            self.session.forget(client).await;
            return Err(CatalogError::Timeout);
        };
        Ok(row?.and_then(|row| row.get(0)))
    }

    /// The session on the active, for all that log in: one for each of them would cost more than all the rest.
    async fn session(&self) -> Result<Arc<Client>, CatalogError> {
        self.session.on(&active_of(&self.cluster)?).await
    }
}

/// True if an error was the session's last word: PostgreSQL's farewell may be read before the connection is seen to be
/// closed.
fn has_ended(client: &Client, error: &tokio_postgres::Error) -> bool {
    let severity = error.as_db_error().and_then(DbError::parsed_severity);
    client.is_closed()
        || error.is_closed()
        || matches!(severity, Some(Severity::Fatal | Severity::Panic))
}

fn active_of(cluster: &Cluster) -> Result<Address, CatalogError> {
    let active = cluster.topology().active.clone();
    active.ok_or(CatalogError::NoActive)
}

async fn learn(login: OwnLogin, cluster: Arc<Cluster>, database: String, to: Functions) {
    match read_catalog(&login, &cluster, &database).await {
        Ok(catalog) => *to.write() = Arc::new(catalog),
        Err(error) if to.read().is_unread => tracing::warn!(
            error = &error as &dyn std::error::Error,
            database,
            "functions cannot be read: until they can, clients wait to log in, and each of their functions counts as \
             one that may do anything"
        ),
        Err(error) => tracing::debug!(%error, database, "functions were not read again"),
    }
}

async fn read_catalog(
    login: &OwnLogin,
    cluster: &Cluster,
    database: &str,
) -> Result<Catalog, CatalogError> {
    let client = login.to(&active_of(cluster)?, database).await?;
    Ok(names::read(&client).await?)
}

impl OwnLogin {
    /// As the configuration says, over connections that `dialer` makes.
    pub fn new(config: &Config, dialer: Dialer) -> OwnLogin {
        OwnLogin {
            control: config.control.clone(),
            dialer,
        }
    }

    /// A session on any server, in the database of such sessions. It ends when the client is dropped.
    pub async fn to_server(&self, address: &str) -> Result<Client, CatalogError> {
        self.to(address, &self.control.database).await
    }

    async fn to(&self, address: &str, database: &str) -> Result<Client, CatalogError> {
        let mut config = tokio_postgres::Config::new();
        config
            .user(&self.control.user)
            .dbname(database)
            .application_name("understudy proxy")
            // What encryption there is, the dialer has seen to.
            .ssl_mode(SslMode::Disable);
        if let Some(path) = &self.control.password_file {
            let password = std::fs::read_to_string(path).map_err(CatalogError::PasswordFile)?;
            config.password(password.trim_end_matches('\n'));
        }
        let connecting = async {
            let socket = self.dialer.dial(address).await?;
            Ok::<_, CatalogError>(config.connect_raw(socket, NoTls).await?)
        };
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
        let (client, connection) = connected.map_err(|_| CatalogError::Timeout)??;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the proxy's own session ended");
            }
        });
        Ok(client)
    }
}
