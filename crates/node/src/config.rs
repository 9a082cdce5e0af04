//! A node's configuration file: what the operator decides, checked before anything starts.
//!
//! Invariant: a [`Config`] that exists is usable as far as can be told without touching the world;
//! every refusal names the key and says what to change. The file holds no secrets.

mod check;
mod keys;
mod past;
mod paths;
mod postgres;
mod standby;

use std::path::{Path, PathBuf};
use std::time::Duration;

use coordination::config::{
    ByteSize, ChannelConfig, ClusterConfig, ConfigError, RestConfig, StorageConfig, Tags,
    check_keys,
};
use serde::Deserialize;
use volume::past::Policy;

use past::PastConfig;
pub use paths::Paths;
pub use postgres::PostgresConfig;
pub use standby::{OnLag, StandbyConfig};

/// One node, as its operator wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Who the node is, and how it reaches its cluster.
    pub cluster: ClusterConfig,
    /// The node's local directory.
    pub paths: Paths,
    /// The server.
    pub postgres: PostgresConfig,
    /// The direct channel to other nodes and to the command line.
    pub channel: ChannelConfig,
    /// The HTTP interface.
    pub rest: RestConfig,
    /// Bounds of what the mount keeps in memory.
    pub memory: MemoryConfig,
    /// What the active does about the storage tier in the background.
    pub storage: StorageConfig,
    /// Images of the past that the active keeps in the zones; none without rules.
    pub past: Option<Policy>,
    /// How this node follows while it is a standby.
    pub standby: StandbyConfig,
    /// What this node may become.
    pub tags: Tags,
    /// True if a proxy runs beside the agent (`[proxy]`).
    pub has_proxy: bool,
    /// True if backups are made beside the agent (`[backup]`).
    pub has_backup: bool,
}

/// `[memory]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MemoryConfig {
    /// Cache of blocks that were read. The kernel caches them as well.
    pub cache: ByteSize,
    /// A standby's private changes. More of them spill to the local disk.
    pub overlay: ByteSize,
    /// Permits the active's kernel to cache blocks, in memory that nothing else needs.
    pub kernel_cache: bool,
    /// Time between two lists of the blocks in the active's memory, by which standbys warm theirs. `"0s"`: never. The
    /// active's list is from PostgreSQL's `pg_prewarm`.
    #[serde(with = "humantime_serde")]
    pub warm_every: Duration,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        MemoryConfig {
            cache: ByteSize::mib(64),
            overlay: ByteSize::mib(64),
            kernel_cache: true,
            warm_every: Duration::from_secs(30),
        }
    }
}

/// What only a node's file has.
#[derive(Debug, Deserialize)]
struct Raw {
    /// Local directory for the mount point, private files, sockets and the server log.
    data: PathBuf,
    /// The PostgreSQL server of this node.
    postgres: PostgresConfig,
    /// Channel between nodes, and from the command line.
    #[serde(default)]
    channel: ChannelConfig,
    /// HTTP interface: health checks for load balancers, state, metrics, requests to change something.
    #[serde(default)]
    rest: RestConfig,
    /// Limits of memory.
    #[serde(default)]
    memory: MemoryConfig,
    /// Work of the active on the storage tier in the background.
    #[serde(default)]
    storage: StorageConfig,
    /// Images of the past that the active keeps in the zones.
    #[serde(default)]
    past: PastConfig,
    /// Behaviour while the node is a standby.
    #[serde(default)]
    standby: StandbyConfig,
    /// Roles that the node may have.
    #[serde(default)]
    tags: Tags,
    /// A proxy beside the agent, with the keys of a proxy.
    proxy: Option<toml::Table>,
    /// Backups beside the agent, with the keys of an archiver.
    backup: Option<toml::Table>,
}

impl Config {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`]; each says what to change.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        Config::load_on(path, None)
    }

    /// The same, on this storage tier instead of the file's, if one is given.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_on(path: &Path, store: Option<&str>) -> Result<Config, ConfigError> {
        let text = coordination::config::read(path)?;
        Config::parse_on(&text, store)
    }

    /// Reads and checks the text of a configuration.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse_on(text, None)
    }

    fn parse_on(text: &str, store: Option<&str>) -> Result<Config, ConfigError> {
        check_keys(text, keys::OWN)?;
        let cluster = ClusterConfig::parse(text, store)?;
        let raw: Raw = toml::from_str(text)?;
        raw.check(&cluster)?;
        Ok(Config {
            cluster,
            paths: Paths::new(raw.data),
            postgres: raw.postgres,
            channel: raw.channel,
            rest: raw.rest,
            memory: raw.memory,
            storage: raw.storage,
            past: raw.past.policy()?,
            standby: raw.standby,
            tags: raw.tags,
            has_proxy: raw.proxy.is_some(),
            has_backup: raw.backup.is_some(),
        })
    }

    /// Refuses a key of a node's or a proxy's file that nothing reads.
    ///
    /// # Errors
    /// As [`check_keys`].
    pub fn check_keys(text: &str) -> Result<(), ConfigError> {
        check_keys(text, keys::OWN)
    }

    /// A commented configuration with every key at its default.
    pub fn example() -> &'static str {
        include_str!("config/example.toml")
    }
}

#[cfg(test)]
mod tests;
