//! The configuration of a proxy, in TOML.
//!
//! Every key has a default but the source: without one a proxy knows no server.

mod access;
mod reads;
mod scope;
mod tls;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::core::session::{PoolMode, Rules};
use crate::core::version::ReadMode;

/// A configuration that is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// File that could not be read.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// It is not understood.
    #[error("invalid configuration in {path}: {reason}")]
    Parse {
        /// File that has the fault.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// A rule of `auth_hba_file` is not understood.
    #[error("{path}, line {line}: {reason}")]
    Rule {
        /// File of rules that has the fault.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Reason, with what is allowed.
        reason: String,
    },
    /// A value is invalid.
    #[error("{key}: {reason}")]
    Value {
        /// Which key.
        key: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },
}

/// A value that is not allowed: its key, and what is.
fn value(key: &str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Value {
        key: key.to_owned(),
        reason: reason.into(),
    }
}

impl ConfigError {
    /// The same, of this file.
    fn of_file(self, path: &Path) -> ConfigError {
        match self {
            ConfigError::Parse { reason, .. } => ConfigError::Parse {
                path: path.to_owned(),
                reason,
            },
            other => other,
        }
    }
}

/// The database that shows and controls the proxy.
pub const ADMIN_DATABASE: &str = "understudy";

/// How clients prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Auth {
    /// SCRAM, with the verifiers that PostgreSQL keeps.
    #[default]
    Scram,
    /// No authentication: a client that reaches the proxy may be any user.
    Trust,
}

/// Who looks things up in the catalogs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// Role that may read `pg_authid`.
    pub user: String,
    /// Database that the role connects to.
    pub database: String,
    /// File with the role's password, if it needs one.
    pub password_file: Option<PathBuf>,
}

impl Default for Control {
    fn default() -> Control {
        Control {
            user: "postgres".to_owned(),
            database: "postgres".to_owned(),
            password_file: None,
        }
    }
}

pub use reads::Reads;
pub use scope::{Database, Scope, User};
pub use tls::{ServerTls, ServerTlsMode, TlsConfig};

/// A proxy's configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address that the proxy listens on.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Unit for which a client has a server.
    #[serde(default)]
    pub pool_mode: Mode,
    /// Most connections of one user to one database of one server.
    #[serde(default = "default_pool_size")]
    pub pool_size: usize,
    /// Most connections to one server in all pools of a database. 0: no limit.
    #[serde(default)]
    pub max_db_connections: usize,
    /// Most connections to one server in all pools of a user. 0: no limit.
    #[serde(default)]
    pub max_user_connections: usize,
    /// Most clients at a time.
    #[serde(default = "default_max_clients")]
    pub max_clients: usize,
    /// Most prepared statements that a connection keeps when clients share it. The least recently used are closed.
    #[serde(default = "default_max_prepared_statements")]
    pub max_prepared_statements: usize,
    /// Longest time that a client waits for a connection to a healthy server.
    #[serde(with = "humantime_serde", default = "default_query_wait")]
    pub query_wait_timeout: Duration,
    /// Longest time that a client waits for a takeover.
    #[serde(with = "humantime_serde", default = "default_takeover_wait")]
    pub takeover_wait: Duration,
    /// Time without use after which a connection to a server is closed. `"0s"`: never.
    #[serde(with = "humantime_serde", default = "default_server_idle_timeout")]
    pub server_idle_timeout: Duration,
    /// Age at which a connection to a server is closed, once it is not in use. `"0s"`: never.
    #[serde(with = "humantime_serde", default = "default_server_lifetime")]
    pub server_lifetime: Duration,
    /// Longest time that a statement may take, with the wait for a connection. Then it is cancelled, and its client's connection
    /// ends. `"0s"`: no limit.
    #[serde(with = "humantime_serde", default)]
    pub query_timeout: Duration,
    /// Longest time that a client may leave a transaction open without a statement under way. `"0s"`: no limit.
    #[serde(with = "humantime_serde", default)]
    pub idle_transaction_timeout: Duration,
    /// Longest time that a client may do nothing between two transactions. `"0s"`: no limit.
    #[serde(with = "humantime_serde", default)]
    pub client_idle_timeout: Duration,
    /// Adds the client's address to its `application_name`, so that PostgreSQL's log and `pg_stat_activity` have it.
    #[serde(default)]
    pub application_name_add_host: bool,
    /// Longest time for a client's authentication.
    #[serde(with = "humantime_serde", default = "default_login_timeout")]
    pub login_timeout: Duration,
    /// Time that a shutdown waits for open transactions.
    #[serde(with = "humantime_serde", default = "default_shutdown_timeout")]
    pub shutdown_timeout: Duration,
    /// Longest time that clients which cannot be handed over stay, when another process replaces this one.
    #[serde(with = "humantime_serde", default = "default_handover_timeout")]
    pub handover_timeout: Duration,
    /// Authentication of clients.
    #[serde(default)]
    pub auth: Auth,
    /// File with rules of who may come from where, in the format of PostgreSQL's `pg_hba.conf`. Their methods count in place of
    /// `auth`, and who fits no rule is refused. It is read again at a reload.
    pub auth_hba_file: Option<PathBuf>,
    /// Directory of a Unix socket to listen on beside `listen`, named by the port of that: `.s.PGSQL.6432`.
    pub unix_socket_dir: Option<PathBuf>,
    /// Permissions of the Unix socket, as an octal number.
    #[serde(default = "default_unix_socket_mode")]
    pub unix_socket_mode: String,
    /// Role with which the proxy reads the catalogs.
    #[serde(default)]
    pub control: Control,
    /// Certificate that clients are shown. Without this table, their connections are not encrypted.
    pub tls: Option<TlsConfig>,
    /// Encryption of connections to servers. Connections over a Unix socket are not encrypted.
    #[serde(default)]
    pub server_tls: ServerTls,
    /// Transactions that a takeover interrupts.
    #[serde(default)]
    pub takeover: Takeover,
    /// Servers for transactions that only read.
    #[serde(default)]
    pub reads: Reads,
    /// Databases with settings of their own, by the names that clients ask for.
    #[serde(default)]
    pub databases: BTreeMap<String, Database>,
    /// Users with settings of their own, which count before those of databases.
    #[serde(default)]
    pub users: BTreeMap<String, User>,
    /// Users who may connect to the database `understudy`, which shows and controls the proxy.
    #[serde(default = "default_admin_users")]
    pub admin_users: Vec<String>,
    /// Number of threads that serve clients.
    #[serde(default = "default_threads")]
    pub threads: usize,
    /// Address for metrics and a health check over HTTP. Without it, there is no HTTP interface.
    pub rest: Option<SocketAddr>,
    /// File that describes the cluster, for a PostgreSQL that Understudy does not run.
    pub cluster_file: Option<PathBuf>,
}

/// `pool_mode`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A session: the client has a server for itself.
    #[default]
    Session,
    /// A transaction: between transactions, other clients use the server.
    Transaction,
}

/// `[takeover]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Takeover {
    /// Runs open transactions again on the new active.
    #[serde(alias = "replay")]
    pub replay_transactions: bool,
    /// Most bytes of statements of a transaction that is run again.
    pub replay_bytes: usize,
    /// Finds out if a commit whose answer was lost has happened; for that, the proxy asks for the ids of transactions.
    #[serde(alias = "decide")]
    pub resolve_in_doubt_commits: bool,
    /// Time without proof that the active still owns its epoch after which nothing goes to its clients and nothing comes from them,
    /// until it is proved or there is another active. `0s`: no limit.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
}

impl Default for Takeover {
    fn default() -> Takeover {
        Takeover {
            replay_transactions: true,
            replay_bytes: 1 << 20,
            resolve_in_doubt_commits: true,
            lease: Duration::from_secs(3),
        }
    }
}

fn default_listen() -> SocketAddr {
    ([127, 0, 0, 1], 6432).into()
}

fn default_unix_socket_mode() -> String {
    "0777".to_owned()
}

fn default_pool_size() -> usize {
    80
}

fn default_max_clients() -> usize {
    10_000
}

fn default_query_wait() -> Duration {
    Duration::from_secs(120)
}

fn default_takeover_wait() -> Duration {
    Duration::from_secs(60)
}

fn default_server_idle_timeout() -> Duration {
    Duration::from_secs(600)
}

fn default_server_lifetime() -> Duration {
    Duration::from_secs(3600)
}

fn default_login_timeout() -> Duration {
    Duration::from_secs(60)
}

fn default_shutdown_timeout() -> Duration {
    Duration::from_secs(30)
}

fn default_handover_timeout() -> Duration {
    Duration::from_secs(30 * 60)
}

fn default_admin_users() -> Vec<String> {
    vec!["postgres".to_owned()]
}

fn default_max_prepared_statements() -> usize {
    Rules::default().max_prepared
}

fn default_threads() -> usize {
    1
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read or is invalid.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Config::parse(&text).map_err(|error| error.of_file(path))
    }

    /// Reads a text.
    ///
    /// # Errors
    /// If it is invalid.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|error| ConfigError::Parse {
            path: PathBuf::from("[proxy]"),
            reason: error.to_string(),
        })?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.pool_size == 0 {
            return Err(value("pool_size", "must be at least 1"));
        }
        if self.threads == 0 {
            return Err(value("threads", "must be at least 1"));
        }
        if !(0.0..=1.0).contains(&self.reads.spare) {
            return Err(value("reads.spare", "must be between 0 and 1"));
        }
        let of_servers = self.server_tls.check();
        of_servers.map_err(|reason| value("server_tls.root", reason))?;
        self.reads
            .mode
            .parse::<ReadMode>()
            .map_err(|reason| value("reads.mode", reason))?;
        self.check_access()?;
        self.check_scopes()
    }

    /// The names of what differs in `other` and cannot change while a proxy runs.
    pub fn fixed_that_differ(&self, other: &Config) -> Vec<&'static str> {
        let all = [
            ("listen", self.listen == other.listen),
            (
                "unix_socket_dir",
                self.unix_socket_dir == other.unix_socket_dir,
            ),
            (
                "unix_socket_mode",
                self.unix_socket_mode == other.unix_socket_mode,
            ),
            ("control", self.control == other.control),
            ("tls", self.tls == other.tls),
            ("reads.spares", self.reads.spares == other.reads.spares),
            ("server_tls", self.server_tls == other.server_tls),
            ("rest", self.rest == other.rest),
            ("threads", self.threads == other.threads),
            ("cluster_file", self.cluster_file == other.cluster_file),
        ];
        let differ = all.into_iter().filter(|(_, is_same)| !is_same);
        differ.map(|(name, _)| name).collect()
    }

    /// What the sessions go by.
    pub fn rules(&self) -> Rules {
        let spare_every = if self.reads.spare > 0.0 {
            (1.0 / self.reads.spare).round() as u64
        } else {
            0
        };
        Rules {
            mode: match self.pool_mode {
                Mode::Session => PoolMode::Session,
                Mode::Transaction => PoolMode::Transaction,
            },
            replays: self.takeover.replay_transactions,
            replay_bytes: self.takeover.replay_bytes,
            decides: self.takeover.resolve_in_doubt_commits,
            read: self.reads.mode.parse().unwrap_or_default(),
            read_wait: self.reads.wait,
            near: self.reads.near.clone(),
            spare_every,
            max_prepared: self.max_prepared_statements,
            ..Rules::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn every_key_has_a_default() {
        let config = parse("").expect("valid");
        assert_eq!(config.pool_mode, Mode::Session);
        assert_eq!(config.rules().spare_every, 100);
    }

    #[test]
    fn unchangeable_keys_are_named() {
        let before = parse("").expect("valid");
        let other = |text: &str| before.fixed_that_differ(&parse(text).expect("valid"));
        assert_eq!(other("pool_size = 3\n[reads]\nmode = \"any\""), [""; 0]);
        assert_eq!(
            other("listen = \"[::]:1\"\nthreads = 2\npool_mode = \"transaction\""),
            ["listen", "threads"]
        );
    }

    /// Nobody believes that servers are verified who only says by whom.
    #[test]
    fn authorities_go_with_modes_that_ask_for_them() {
        let of = |mode: &str, root: &str| {
            let parsed = parse(&format!("[server_tls]\nmode = \"{mode}\"\n{root}"));
            parsed.map(|config| config.server_tls.mode.name())
        };
        let root = "root = \"/etc/ca.pem\"";
        for mode in ["verify-ca", "verify-full"] {
            assert_eq!(of(mode, root).as_deref(), Ok(mode));
            let refused = of(mode, "").expect_err("no authority");
            assert!(refused.contains("server_tls.root"), "{refused}");
        }
        assert_eq!(of("require", root).as_deref(), Ok("require"));
        for mode in ["disable", "prefer"] {
            assert_eq!(of(mode, "").as_deref(), Ok(mode));
            assert!(of(mode, root).is_err(), "{mode}");
        }
    }

    /// A file of an earlier version must start its proxy.
    #[test]
    fn takeover_keys_have_their_former_names_as_well() {
        let of = |keys: &str| parse(&format!("[takeover]\n{keys}"));
        for (old, new) in [
            ("decide = false", "resolve_in_doubt_commits = false"),
            ("replay = false", "replay_transactions = false"),
        ] {
            assert_eq!(of(old), of(new));
            assert!(of(old).is_ok());
            assert!(of(&format!("{old}\n{new}")).is_err(), "both names");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let told = |text: &str| parse(text).expect_err("a mistake");
        assert!(told("pool_size = 0").contains("pool_size"));
        assert!(told("pool_sise = 1").contains("pool_sise"));
        assert!(told("auth = \"trust\"\nauth_hba_file = \"/x\"").contains("auth_hba_file"));
        assert!(told("unix_socket_dir = \"run\"").contains("unix_socket_dir"));
        for mode in ["888", "01777", "", "rwx"] {
            assert!(told(&format!("unix_socket_mode = \"{mode}\"")).contains("octal"));
        }
        assert!(told("[reads]\nmode = \"weak\"").contains("bounded:BYTES"));
        assert!(told("[server_tls]\nmode = \"verify_full\"").contains("verify-full"));
    }
}
