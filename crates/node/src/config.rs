//! A node's configuration file: what the operator decides, checked before anything starts.
//!
//! Invariant: a [`Config`] that exists is usable as far as can be told without touching the world;
//! every refusal names the key and says what to change. The file holds no secrets.

mod cassandra;
mod check;
mod keys;
mod paths;
mod postgres;
mod rest;
mod size;
mod standby;
mod timing;
mod tls;

use std::path::{Path, PathBuf};
use std::time::Duration;

use dax::client::ClientConfig;
use dax::credentials::VolumeKey;
use dax::ids::{NodeName, VolumeName};
use dax::storage::VolumeSettings;
use dax::tls::Tls;
use serde::Deserialize;

use crate::address::Address;

pub use cassandra::{CassandraConfig, FencingChoice, Place};
pub use paths::{AgentLock, Paths};
pub use postgres::{Parameter, PostgresConfig};
pub use rest::RestConfig;
pub use size::ByteSize;
pub use standby::{Slow, StandbyConfig};
pub use timing::{Heartbeat, HeartbeatChoice, Preset};
pub use tls::TlsConfig;

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no TOML, or a value has the wrong type.
    #[error("the configuration makes no sense: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A key that nothing reads.
    #[error("line {line}: unknown key \"{key}\"; {advice}")]
    UnknownKey {
        /// With its table in front.
        key: String,
        /// Counted from 1.
        line: usize,
        /// What was probably meant.
        advice: String,
    },
    /// A value that cannot work.
    #[error("\"{key}\": {why}")]
    Invalid {
        /// With its table in front.
        key: String,
        /// What is wrong and what to change.
        why: String,
    },
}

impl ConfigError {
    pub(crate) fn invalid(key: &str, why: impl Into<String>) -> ConfigError {
        ConfigError::Invalid {
            key: key.to_owned(),
            why: why.into(),
        }
    }
}

/// One node, as its operator wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The node's name, unique in the cluster.
    pub name: NodeName,
    /// The volume that holds the database.
    pub volume: VolumeName,
    /// The zones of the storage tier, in the order that every node uses; none on Cassandra.
    pub zones: Vec<Zone>,
    /// Where Cassandra is, if that is the storage tier.
    pub store: Option<Place>,
    /// What is to be known of Cassandra.
    pub cassandra: CassandraConfig,
    /// The file with the volume's key, if the zones have a secret.
    pub key: Option<PathBuf>,
    /// The node's local directory.
    pub paths: Paths,
    /// The server.
    pub postgres: PostgresConfig,
    /// How quickly a silent active is given up.
    pub heartbeat: Heartbeat,
    /// The direct channel to other nodes and to the command line.
    pub channel: ChannelConfig,
    /// The HTTP interface.
    pub rest: RestConfig,
    /// Bounds of what the mount keeps in memory.
    pub memory: MemoryConfig,
    /// What the active does about the storage tier in the background.
    pub storage: StorageConfig,
    /// How this node follows while it is a standby.
    pub standby: StandbyConfig,
    /// What this node may become.
    pub tags: Tags,
    /// Who belongs to the cluster.
    pub tls: TlsConfig,
}

/// The servers of a zone, each of which keeps a copy of every block.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Zone {
    /// The usual case.
    One(Address),
    /// Several copies in the zone.
    Several(Vec<Address>),
}

impl Zone {
    /// Their addresses.
    pub fn servers(&self) -> &[Address] {
        match self {
            Zone::One(address) => std::slice::from_ref(address),
            Zone::Several(addresses) => addresses,
        }
    }
}

/// `[channel]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelConfig {
    /// Where this node's agent listens. Other machines can reach it only with `[tls]`.
    #[serde(default = "default_channel")]
    pub listen: Address,
    /// Where other nodes reach it, if that differs.
    pub advertise: Option<Address>,
}

impl ChannelConfig {
    /// What goes into the node's record.
    pub fn advertised(&self) -> &Address {
        self.advertise.as_ref().unwrap_or(&self.listen)
    }
}

impl Default for ChannelConfig {
    fn default() -> Self {
        ChannelConfig {
            listen: default_channel(),
            advertise: None,
        }
    }
}

/// `[storage]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StorageConfig {
    /// How long after a scrub of all copies the next one begins.
    #[serde(with = "humantime_serde")]
    pub scrub_every: Duration,
    /// Bytes of blocks that a scrub, or bringing a zone up to date, compares in a second.
    pub scrub_rate: ByteSize,
    /// Log that is kept for a standby at most: one that needs more loses its claim and attaches afresh.
    /// The active is never held back.
    pub claim_cap: ByteSize,
}

impl Default for StorageConfig {
    fn default() -> Self {
        StorageConfig {
            scrub_every: Duration::from_secs(24 * 3600),
            scrub_rate: ByteSize::mib(32),
            claim_cap: ByteSize::mib(16 << 10),
        }
    }
}

/// `[memory]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryConfig {
    /// Blocks written but not yet durable; writers wait when it is full.
    pub pending: ByteSize,
    /// Blocks read, kept for the next reader.
    pub cache: ByteSize,
    /// A standby's private changes; what exceeds it goes to the spill directory.
    pub overlay: ByteSize,
    /// Whether the active's kernel keeps blocks as well, in memory that nothing else needs. Without,
    /// reads show the storage tier as it is.
    pub kernel_cache: bool,
    /// How often the active tells standbys which blocks it has in memory, so that they have them, too;
    /// 0 for never. PostgreSQL's `pg_prewarm` tells it.
    #[serde(with = "humantime_serde")]
    pub warm_every: Duration,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        MemoryConfig {
            pending: ByteSize::mib(64),
            cache: ByteSize::mib(64),
            overlay: ByteSize::mib(128),
            kernel_cache: true,
            warm_every: Duration::from_secs(30),
        }
    }
}

/// `[tags]`
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(default)]
pub struct Tags {
    /// Never becomes the active.
    pub nofailover: bool,
    /// Among standbys that could take over, higher goes first.
    pub priority: u8,
    /// Starts no PostgreSQL until the cluster needs a standby.
    pub spare: bool,
    /// The zone (by place in `zones`) that this node is in, to prefer another one for a standby.
    pub zone: Option<u8>,
    /// Goes before standbys of equal priority if the active that is gone was in the same zone, or in
    /// another one, as this says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failover_zone: Option<FailoverZone>,
}

/// Where an active was whose successor a node likes to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailoverZone {
    /// In this node's own zone: its clients stay near.
    Same,
    /// In another zone: whatever was wrong with that one is far.
    Other,
}

/// The file as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: NodeName,
    volume: VolumeName,
    #[serde(default)]
    zones: Vec<Zone>,
    store: Option<String>,
    #[serde(default)]
    cassandra: CassandraConfig,
    key: Option<PathBuf>,
    data: PathBuf,
    postgres: PostgresConfig,
    #[serde(default)]
    heartbeat: HeartbeatChoice,
    #[serde(default)]
    channel: ChannelConfig,
    #[serde(default)]
    rest: RestConfig,
    #[serde(default)]
    memory: MemoryConfig,
    #[serde(default)]
    storage: StorageConfig,
    #[serde(default)]
    standby: StandbyConfig,
    #[serde(default)]
    tags: Tags,
    #[serde(default)]
    tls: TlsConfig,
}

fn default_channel() -> Address {
    Address::Tcp {
        host: "127.0.0.1".to_owned(),
        port: 7432,
    }
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
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
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
        let table = toml::de::DeTable::parse(text)?;
        keys::check(text, table.get_ref())?;
        let mut raw: Raw = toml::from_str(text)?;
        if let Some(store) = store {
            raw.zones.clear();
            raw.key = None;
            raw.store = Some(store.to_owned());
        }
        raw.check()?;
        let heartbeat = raw.heartbeat.resolve()?;
        let store = raw.store.as_deref().map(Place::parse).transpose()?;
        if let Some(place) = &store {
            raw.cassandra.check_way(place)?;
            raw.cassandra.check_lease(&heartbeat)?;
        }
        Ok(Config {
            heartbeat,
            name: raw.name,
            volume: raw.volume,
            zones: raw.zones,
            store,
            cassandra: raw.cassandra,
            key: raw.key,
            paths: Paths::new(raw.data),
            postgres: raw.postgres,
            channel: raw.channel,
            rest: raw.rest,
            memory: raw.memory,
            storage: raw.storage,
            standby: raw.standby,
            tags: raw.tags,
            tls: raw.tls,
        })
    }

    /// The addresses of all replicas, zone by zone, as a storage client wants them.
    pub fn replicas(&self) -> Vec<String> {
        let servers = self.zones.iter().flat_map(Zone::servers);
        servers.map(Address::to_string).collect()
    }

    /// The zone that this node is in, as the zone servers' network file names it: its place in
    /// `zones`, counted from 0.
    pub fn zone_name(&self) -> Option<String> {
        self.tags.zone.map(|zone| zone.to_string())
    }

    /// The volume's key from its file, if one is configured.
    ///
    /// # Errors
    /// `Invalid` if the file cannot be read, others than its owner can read it, or it holds no key.
    pub fn volume_key(&self) -> dax::Result<Option<VolumeKey>> {
        self.key.as_deref().map(VolumeKey::load).transpose()
    }

    /// What protects connections to zones and other nodes, if that is configured; then nobody else is
    /// talked to.
    ///
    /// # Errors
    /// `Invalid` if a file cannot be read or makes no sense, or others than its owner can open a key.
    pub fn tls(&self) -> dax::Result<Option<Tls>> {
        self.tls.files().map(Tls::load).transpose()
    }

    /// A storage client's configuration for this volume.
    ///
    /// # Errors
    /// As [`Config::volume_key`] and [`Config::tls`].
    pub fn client(&self, client_name: &str) -> dax::Result<ClientConfig> {
        let volume = self.volume.clone();
        let mut client = ClientConfig::new(volume, self.replicas(), client_name);
        client.key = self.volume_key()?;
        client.tls = self.tls()?;
        client.zone = self.zone_name();
        client.pending_bytes_max = self.memory.pending.bytes();
        Ok(client)
    }

    /// The same for Cassandra; none if zones are the storage tier.
    ///
    /// # Errors
    /// As [`CassandraConfig::client`].
    pub fn cassandra_client(&self) -> dax::Result<Option<::cassandra::Config>> {
        let Some(place) = &self.store else {
            return Ok(None);
        };
        let (volume, zone) = (self.volume.clone(), self.tags.zone);
        let client = self
            .cassandra
            .client(place, volume, zone, self.memory.pending)?;
        Ok(Some(client))
    }

    /// How a volume is spread over these zones.
    pub fn volume_settings(&self) -> VolumeSettings {
        if self.store.is_some() {
            return self.cassandra.volume_settings();
        }
        let per_zone = self.zones.first().map_or(0, |zone| zone.servers().len());
        // The check bounds both numbers.
        VolumeSettings::spread(self.zones.len() as u8, per_zone as u8)
    }

    /// A commented configuration with every key at its default.
    pub fn example() -> &'static str {
        include_str!("config/example.toml")
    }
}

#[cfg(test)]
mod tests;
