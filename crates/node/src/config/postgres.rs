//! The table `[postgres]`: this node's server.

use std::collections::BTreeMap;
use std::path::PathBuf;

use coordination::address::Address;
use coordination::config::{ByteSize, ConfigError, Parameter};
use serde::Deserialize;

/// Parameters that have a key of their own, or that would undo what the node relies on.
const RESERVED: &[(&str, &str)] = &[
    ("port", "use postgres.port"),
    ("listen_addresses", "use postgres.listen_addresses"),
    ("data_directory", "the node mounts it itself; see \"data\""),
    (
        "unix_socket_directories",
        "every client of the agent's socket is superuser, so it stays in <data>/run",
    ),
    ("external_pid_file", "the agent keeps its own"),
    ("hot_standby", "standbys always answer queries"),
    ("hot_standby_feedback", "use standby.feedback"),
    (
        "max_standby_streaming_delay",
        "use standby.max_streaming_delay",
    ),
    (
        "max_standby_archive_delay",
        "standby.max_streaming_delay is used for both",
    ),
    ("fsync", "without it nothing is durable"),
];

/// `[postgres]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostgresConfig {
    /// Directory of `postgres`, `initdb` and `pg_controldata`.
    pub bin: PathBuf,
    /// Port that clients connect to.
    #[serde(default = "default_port")]
    pub port: u16,
    /// Addresses that PostgreSQL listens on, spelled as in its own parameter.
    #[serde(default = "default_listen")]
    pub listen_addresses: String,
    /// Address at which clients reach the server, `host:port`, if it is not where the server listens.
    pub advertise: Option<Address>,
    /// User that PostgreSQL runs as when the agent is root.
    #[serde(default = "default_user")]
    pub run_as: String,
    /// Role that the agent uses, over a private Unix socket.
    #[serde(default = "default_user")]
    pub superuser: String,
    /// Size at which the server log is rotated. `"0B"`: never.
    #[serde(default = "default_log_size")]
    pub log_size: ByteSize,
    /// Number of rotated server logs to keep.
    #[serde(default = "default_log_kept")]
    pub log_kept: u32,
    /// Parameters of PostgreSQL on this node alone. `understudy edit-config` sets those of all nodes.
    #[serde(default)]
    pub parameters: BTreeMap<String, Parameter>,
}

fn default_port() -> u16 {
    5432
}

fn default_listen() -> String {
    "localhost".to_owned()
}

fn default_user() -> String {
    "postgres".to_owned()
}

fn default_log_size() -> ByteSize {
    ByteSize::mib(64)
}

fn default_log_kept() -> u32 {
    4
}

impl PostgresConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !self.bin.is_absolute() {
            let why = format!(
                "{:?} is not absolute; for example /usr/lib/postgresql/15/bin",
                self.bin
            );
            return Err(ConfigError::invalid("postgres.bin", why));
        }
        if self.port == 0 {
            return Err(ConfigError::invalid(
                "postgres.port",
                "choose one from 1 to 65535",
            ));
        }
        for (name, value) in &self.parameters {
            let key = format!("postgres.parameters.{name}");
            if let Some((_, why)) = RESERVED.iter().find(|(r, _)| r == name) {
                return Err(ConfigError::invalid(
                    &key,
                    format!("cannot be set here: {why}"),
                ));
            }
            let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'.';
            if name.is_empty() || !name.bytes().all(fits) {
                return Err(ConfigError::invalid(
                    &key,
                    "no name of a PostgreSQL parameter",
                ));
            }
            if value.to_string().contains('\0') {
                return Err(ConfigError::invalid(&key, "contains a zero byte"));
            }
        }
        Ok(())
    }
}
