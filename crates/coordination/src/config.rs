//! The part of a configuration file that every process of a cluster has: who it is, which volume and storage
//! tier it uses, who belongs to the cluster, and how quickly a silent active is given up.
//!
//! Invariant: a [`ClusterConfig`] that exists is usable as far as can be told without touching the world;
//! every refusal names the key and says what to change. The file holds no secrets. What only one kind of
//! process needs (a node's server, its memory, its directory) is that one's own.

mod cassandra;
mod channel;
mod check;
mod keys;
mod parameter;
mod renamed;
mod rest;
mod size;
mod storage;
mod timing;
mod tls;

use std::path::{Path, PathBuf};

use dax::client::ClientConfig;
use dax::credentials::VolumeKey;
use dax::ids::{NodeName, VolumeName};
use dax::storage::VolumeSettings;
use dax::tls::Tls;
use serde::Deserialize;

use crate::address::Address;
use crate::records::Moved;

pub use cassandra::{CassandraConfig, FencingChoice, Place};
pub use channel::ChannelConfig;
pub use keys::{Keys, SHARED_KEYS, check_keys};
pub use parameter::Parameter;
pub use renamed::{RENAMED, Renamed, renamed_keys};
pub use rest::RestConfig;
pub use size::ByteSize;
pub use storage::{StorageConfig, WalSync};
pub use timing::{Heartbeat, HeartbeatChoice, Preset};
pub use tls::TlsConfig;

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}", path = path.display())]
    Read {
        /// Path of the configuration file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no TOML, or a value has the wrong type.
    #[error("the configuration cannot be understood: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A key that nothing reads.
    #[error("line {line}: unknown key \"{key}\"")]
    UnknownKey {
        /// With its table in front.
        key: String,
        /// Counted from 1.
        line: usize,
        /// What was probably meant, as a sentence.
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

/// The text of a configuration file.
///
/// # Errors
/// [`ConfigError::Read`]
pub fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })
}

impl ConfigError {
    /// What to write instead, if that is known.
    pub fn hint(&self) -> Option<&str> {
        match self {
            ConfigError::UnknownKey { advice, .. } => Some(advice),
            _ => None,
        }
    }

    /// A refusal of the value at `key`, with its table in front; `why` says what to change.
    pub fn invalid(key: &str, why: impl Into<String>) -> ConfigError {
        ConfigError::Invalid {
            key: key.to_owned(),
            why: why.into(),
        }
    }
}

/// Who a process is, and how it reaches its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
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
    /// The zone that this process is in, by its place in `zones` (`tags.zone`).
    pub zone: Option<u8>,
    /// Blocks written but not yet durable; writers wait when it is full (`memory.pending`).
    pub pending: ByteSize,
    /// Blocks that an active remembers as it sent them, so that only what changed is sent (`memory.differences`).
    pub differences: ByteSize,
    /// How quickly a silent active is given up.
    pub heartbeat: Heartbeat,
    /// Who belongs to the cluster.
    pub tls: TlsConfig,
    /// Where the database went from the volume of the file, if it did; filled by [`tier::current`](crate::tier::current).
    pub moved: Option<Moved>,
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

/// `[tags]`
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(default)]
pub struct Tags {
    /// Never becomes the active.
    pub nofailover: bool,
    /// Priority among the standbys that can take over: the highest goes first.
    pub priority: u8,
    /// Starts PostgreSQL only when the cluster needs a standby.
    pub spare: bool,
    /// Zone of this process: its position in `zones`, or in `cassandra.data_centres`, counted from 0. A standby in
    /// another zone is preferred.
    pub zone: Option<u8>,
    /// Takes over before standbys of equal priority if the lost active was in the zone that is given here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failover_zone: Option<FailoverZone>,
}

/// Where an active was whose successor a node likes to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailoverZone {
    /// The node's own zone, so that clients stay near.
    Same,
    /// Another zone, so that its failure does not concern the node.
    Other,
}

/// The keys of a file that make a [`ClusterConfig`]; others are somebody else's.
#[derive(Debug, Deserialize)]
struct Raw {
    /// Name of the process, unique in the cluster: `a` to `z`, `0` to `9`, `-` and `_`.
    name: NodeName,
    /// Volume that holds the data of the cluster, in the same characters as `name`.
    volume: VolumeName,
    /// Zones of the storage tier, in the same order in every file. A zone with several copies is a list of addresses.
    /// Either `zones` or `store` is required.
    #[serde(default)]
    zones: Vec<Zone>,
    /// Apache Cassandra in place of zones: `cassandra://host,host:port/keyspace`, with some of its nodes.
    store: Option<String>,
    /// Apache Cassandra, if it is the storage tier.
    #[serde(default)]
    cassandra: CassandraConfig,
    /// File with the volume's key, required if the zones have a secret.
    key: Option<PathBuf>,
    /// Time until a silent active is given up.
    #[serde(default)]
    heartbeat: HeartbeatChoice,
    /// Limits of memory.
    #[serde(default)]
    memory: Memory,
    /// Role that this process may have.
    #[serde(default)]
    tags: Tags,
    /// Certificates of the cluster, required as soon as zones or nodes are on other machines.
    #[serde(default)]
    tls: TlsConfig,
}

/// Keys of `[memory]` that the storage tier's client uses.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Memory {
    /// Blocks that are written and not yet durable. Writers wait when it is full.
    pending: ByteSize,
    /// Blocks that an active remembers as it sent them, so that it sends only what changed. `"0B"`: whole blocks are sent.
    differences: ByteSize,
}

impl Default for Memory {
    fn default() -> Self {
        Memory {
            pending: ByteSize::mib(64),
            differences: ByteSize::mib(0),
        }
    }
}

impl ClusterConfig {
    /// Reads and checks these keys of a configuration, whose other keys it passes over
    /// ([`check_keys`] refuses those that nothing reads); on the storage tier `store` instead of the
    /// file's, if one is given.
    ///
    /// # Errors
    /// [`ConfigError`]; each says what to change.
    pub fn parse(text: &str, store: Option<&str>) -> Result<ClusterConfig, ConfigError> {
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
        let cluster = ClusterConfig {
            name: raw.name,
            volume: raw.volume,
            zones: raw.zones,
            store,
            cassandra: raw.cassandra,
            key: raw.key,
            zone: raw.tags.zone,
            pending: raw.memory.pending,
            differences: raw.memory.differences,
            heartbeat,
            tls: raw.tls,
            moved: None,
        };
        for server in cluster.zones.iter().flat_map(Zone::servers) {
            cluster.check_protected("zones", server)?;
        }
        Ok(cluster)
    }

    /// The addresses of all replicas, zone by zone, as a storage client wants them.
    pub fn replicas(&self) -> Vec<String> {
        let servers = self.zones.iter().flat_map(Zone::servers);
        servers.map(Address::to_string).collect()
    }

    /// The zone that this node is in, as the zone servers' network file names it: its place in
    /// `zones`, counted from 0.
    pub fn zone_name(&self) -> Option<String> {
        self.zone.map(|zone| zone.to_string())
    }

    /// The volume's key from its file, if one is configured.
    ///
    /// # Errors
    /// `Invalid` if the file cannot be read, others than its owner can read it, or it holds no key.
    pub fn volume_key(&self) -> dax::Result<Option<VolumeKey>> {
        match &self.moved {
            Some(moved) => Ok(moved.key.clone()),
            None => self.key.as_deref().map(VolumeKey::load).transpose(),
        }
    }

    /// The volume that the database is in.
    pub fn stored_in(&self) -> &VolumeName {
        self.moved
            .as_ref()
            .map_or(&self.volume, |moved| &moved.volume)
    }

    /// The same for a database that has moved there; for the volume that the file names, if that is `None`.
    pub fn moved_to(&self, moved: Option<Moved>) -> ClusterConfig {
        ClusterConfig {
            moved,
            ..self.clone()
        }
    }

    /// How often the database has moved to where it is.
    pub fn moves(&self) -> u64 {
        self.moved.as_ref().map_or(0, |moved| moved.number)
    }

    /// What protects connections to zones and other nodes, if that is configured; then nobody else is
    /// talked to.
    ///
    /// # Errors
    /// `Invalid` if a file cannot be read or is invalid, or others than its owner can open a key.
    pub fn tls(&self) -> dax::Result<Option<Tls>> {
        self.tls.files().map(Tls::load).transpose()
    }

    /// A storage client's configuration for this volume.
    ///
    /// # Errors
    /// As [`Self::volume_key`] and [`Self::tls`].
    pub fn client(&self, client_name: &str) -> dax::Result<ClientConfig> {
        let volume = self.stored_in().clone();
        let mut client = ClientConfig::new(volume, self.replicas(), client_name);
        client.key = self.volume_key()?;
        client.tls = self.tls()?;
        client.zone = self.zone_name();
        client.pending_bytes_max = self.pending.bytes();
        client.differences_bytes_max = self.differences.bytes();
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
        let (volume, zone) = (self.stored_in().clone(), self.zone);
        let client = self.cassandra.client(place, volume, zone, self.pending)?;
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
}
