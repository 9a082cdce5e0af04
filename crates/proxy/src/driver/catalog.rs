//! What the proxy looks up in the catalogs, by a session of its own: verifiers of passwords, and which
//! functions are volatile.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio_postgres::{Client, NoTls};

use crate::config::Control;
use crate::core::sql::Volatile;

use super::cluster::Cluster;

/// What is known of functions is looked up again when it is older: functions come and go rarely.
const VALID: Duration = Duration::from_secs(30);
/// How long the first client of a database waits for them.
const PATIENCE: Duration = Duration::from_secs(2);

/// A catalog could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// Nobody is known to be active.
    #[error("no server is known to be active")]
    NoActive,
    /// The active does not answer, or refuses.
    #[error("the active's catalogs cannot be read")]
    Postgres(#[from] tokio_postgres::Error),
    /// The file with the control user's password cannot be read.
    #[error("the file with the control user's password cannot be read")]
    PasswordFile(#[source] std::io::Error),
}

/// What is known of one database's functions, for all its sessions.
pub type Functions = Arc<RwLock<Arc<Volatile>>>;

/// The same, and since when.
#[derive(Default)]
struct Known {
    functions: Functions,
    asked: Option<Instant>,
}

/// Reads catalogs.
pub struct Catalogs {
    control: Control,
    cluster: Arc<Cluster>,
    known: Mutex<HashMap<String, Known>>,
}

impl Catalogs {
    /// Reads as `control`.
    pub fn new(control: Control, cluster: Arc<Cluster>) -> Catalogs {
        Catalogs {
            control,
            cluster,
            known: Mutex::default(),
        }
    }

    /// The functions of a database. The first to ask waits for the answer, but not for long.
    pub async fn of(&self, database: &str) -> Functions {
        let (functions, is_first, is_old) = self.look(database);
        if is_old {
            let learning = learn(
                self.control.clone(),
                self.cluster.clone(),
                database.to_owned(),
                functions.clone(),
            );
            let learning = tokio::spawn(learning);
            if is_first {
                // Without an answer functions are taken for volatile.
                let _ = tokio::time::timeout(PATIENCE, learning).await;
            }
        }
        functions
    }

    /// What is known, whether nobody has asked before, and whether to ask.
    fn look(&self, database: &str) -> (Functions, bool, bool) {
        let mut all = self.known.lock();
        let known = all.entry(database.to_owned()).or_default();
        let is_first = known.asked.is_none();
        let is_old = known.asked.is_none_or(|asked| asked.elapsed() > VALID);
        if is_old {
            known.asked = Some(Instant::now());
        }
        (known.functions.clone(), is_first, is_old)
    }

    /// What PostgreSQL keeps of a user's password; `None` if there is no such user, or no password.
    pub async fn verifier(&self, user: &str) -> Result<Option<String>, CatalogError> {
        let client = connect(&self.control, &self.cluster, &self.control.database).await?;
        let text = "SELECT rolpassword FROM pg_catalog.pg_authid WHERE rolname = $1 AND rolcanlogin \
                    AND (rolvaliduntil IS NULL OR rolvaliduntil > pg_catalog.now())";
        let row = client.query_opt(text, &[&user]).await?;
        Ok(row.and_then(|row| row.get(0)))
    }
}

async fn learn(control: Control, cluster: Arc<Cluster>, database: String, to: Functions) {
    match read_functions(&control, &cluster, &database).await {
        Ok(volatile) => *to.write() = Arc::new(volatile),
        Err(error) => tracing::debug!(%error, database, "functions are not known"),
    }
}

async fn read_functions(
    control: &Control,
    cluster: &Cluster,
    database: &str,
) -> Result<Volatile, CatalogError> {
    let client = connect(control, cluster, database).await?;
    let text =
        "SELECT proname::text, bool_or(provolatile = 'v') FROM pg_catalog.pg_proc GROUP BY 1";
    let rows = client.query(text, &[]).await?;
    let functions = rows.iter().map(|row| {
        let name: String = row.get(0);
        (name.into(), row.get(1))
    });
    Ok(Volatile::new(functions))
}

/// A session on the active. It ends when the client is dropped.
pub async fn connect(
    control: &Control,
    cluster: &Cluster,
    database: &str,
) -> Result<Client, CatalogError> {
    let address = cluster.topology().active.clone();
    let address = address.ok_or(CatalogError::NoActive)?;
    connect_to(control, &address, database).await
}

/// A session on any server.
pub async fn connect_to(
    control: &Control,
    address: &str,
    database: &str,
) -> Result<Client, CatalogError> {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "5432"));
    let mut config = tokio_postgres::Config::new();
    config
        .host(host)
        .port(port.parse().unwrap_or(5432))
        .user(&control.user)
        .dbname(database)
        .application_name("understudy proxy")
        .connect_timeout(Duration::from_secs(5));
    if let Some(path) = &control.password_file {
        let password = std::fs::read_to_string(path).map_err(CatalogError::PasswordFile)?;
        config.password(password.trim_end_matches('\n'));
    }
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the proxy's own session ended");
        }
    });
    Ok(client)
}
