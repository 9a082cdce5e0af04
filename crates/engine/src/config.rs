//! The configuration of a node that hosts a server of any kind: a node's file with `[engine]` in place of
//! `[postgres]`.
//!
//! Invariant: a [`Config`] that exists is usable as far as can be told without touching the world; every refusal
//! names the key and says what to change. The file holds no secrets.

mod paths;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use coordination::config::{
    ByteSize, ChannelConfig, ClusterConfig, ConfigError, Keys, Parameter, RestConfig,
    StorageConfig, Tags, check_keys,
};
use nix::sys::signal::Signal;
use serde::Deserialize;

pub use self::paths::Paths;
use crate::layout::Pattern;
use crate::recipe::mariadb::MariaDb;
use crate::recipe::{Places, Ready, Recipe};

/// By table; the top level has no name. `engine.parameters` takes any setting of the server.
const OWN: Keys<'_> = &[
    ("", &["data", "engine", "channel", "rest", "storage"]),
    (
        "engine",
        &[
            "kind",
            "bin",
            "port",
            "listen",
            "advertise",
            "run_as",
            "ready_within",
            "stop_within",
            "log_size",
            "log_kept",
            "parameters",
            "command",
            "init",
            "ready",
            "stop_signal",
            "private",
            "page_size",
            "version",
        ],
    ),
    ("channel", &["listen", "advertise", "drain_timeout"]),
    (
        "rest",
        &[
            "listen",
            "advertise",
            "token",
            "certificate",
            "key",
            "client_ca",
        ],
    ),
    ("memory", &["cache", "kernel_cache"]),
    ("storage", &["scrub_every", "scrub_rate"]),
    ("tags", &["nofailover", "priority"]),
];

/// One node, as its operator wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Who the node is, and how it reaches its cluster.
    pub cluster: ClusterConfig,
    /// The node's local directory.
    pub paths: Paths,
    /// The hosted server.
    pub engine: EngineConfig,
    /// The direct channel to other nodes and to the command line.
    pub channel: ChannelConfig,
    /// The HTTP interface.
    pub rest: RestConfig,
    /// Bounds of what the mount keeps in memory.
    pub memory: MemoryConfig,
    /// What the active does about the storage tier in the background.
    pub storage: StorageConfig,
    /// What this node may become.
    pub tags: Tags,
}

/// `[memory]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MemoryConfig {
    /// Cache of blocks that were read.
    pub cache: ByteSize,
    /// Permits the kernel to cache blocks as well.
    pub kernel_cache: bool,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        MemoryConfig {
            cache: ByteSize::mib(64),
            kernel_cache: true,
        }
    }
}

/// Which server a volume hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// MariaDB.
    MariaDb,
    /// Any other server, by `command`, `init` and `ready`.
    Command,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::MariaDb => "mariadb",
            Kind::Command => "command",
        })
    }
}

/// `[engine]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// Kind of server.
    pub kind: Kind,
    /// MariaDB: directory of its programs. Without it, the usual directories are searched.
    pub bin: Option<PathBuf>,
    /// Port that clients connect to. MariaDB: 3306 if it is not given.
    pub port: Option<u16>,
    /// Address that the server listens on.
    #[serde(default = "default_listen")]
    pub listen: String,
    /// Address at which clients reach the server, `host:port`, if it is not where the server listens.
    pub advertise: Option<String>,
    /// User that the server runs as when the agent is root.
    #[serde(default = "default_user")]
    pub run_as: String,
    /// Longest time for a start, recovery included.
    #[serde(default = "default_ready_within", with = "humantime_serde")]
    pub ready_within: Duration,
    /// Longest time for a clean stop. After it the server is killed.
    #[serde(default = "default_stop_within", with = "humantime_serde")]
    pub stop_within: Duration,
    /// Size at which the server log is rotated. `"0B"`: never.
    #[serde(default = "default_log_size")]
    pub log_size: ByteSize,
    /// Number of rotated server logs to keep.
    #[serde(default = "default_log_kept")]
    pub log_kept: u32,
    /// MariaDB: system variables by name.
    #[serde(default)]
    pub parameters: BTreeMap<String, Parameter>,
    /// Command: program and arguments of the server. `{data}`, `{run}` and `{tmp}` stand for its directories, `{listen}` and
    /// `{port}` for those keys.
    #[serde(default)]
    pub command: Vec<String>,
    /// Command: program and arguments that create a new database in the empty volume.
    #[serde(default)]
    pub init: Vec<String>,
    /// Command: `["connects", "host:port"]`, or a program that exits with 0 when the server is ready.
    #[serde(default)]
    pub ready: Vec<String>,
    /// Command: signal that makes the server stop cleanly.
    #[serde(default = "default_stop_signal")]
    pub stop_signal: String,
    /// Command: files at the top of the volume that do not outlive a run of the server, such as `"tmp/"`, `"lock"` and
    /// `"*.pid"`.
    #[serde(default)]
    pub private: Vec<String>,
    /// Command: size of the largest write that must not be torn.
    #[serde(default = "default_page_size")]
    pub page_size: ByteSize,
    /// Command: program and arguments that print the server's version. A server older than the one that wrote the volume is
    /// refused.
    #[serde(default)]
    pub version: Vec<String>,
}

fn default_listen() -> String {
    "127.0.0.1".to_owned()
}

fn default_user() -> String {
    "mysql".to_owned()
}

fn default_ready_within() -> Duration {
    Duration::from_secs(300)
}

fn default_stop_within() -> Duration {
    Duration::from_secs(60)
}

fn default_log_size() -> ByteSize {
    ByteSize::mib(64)
}

fn default_log_kept() -> u32 {
    4
}

fn default_stop_signal() -> String {
    "SIGTERM".to_owned()
}

fn default_page_size() -> ByteSize {
    ByteSize(4096)
}

const MARIADB_PORT: u16 = 3306;
/// How `ready` says that a connection is enough.
const CONNECTS: &str = "connects";

/// What only such a node's file has.
#[derive(Debug, Deserialize)]
struct Raw {
    /// Local directory for the mount point, private files, sockets and the server log.
    data: PathBuf,
    /// The server of this node.
    engine: EngineConfig,
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
    /// Roles that the node may have.
    #[serde(default)]
    tags: Tags,
}

impl Config {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`]; each says what to change.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = coordination::config::read(path)?;
        Config::parse(&text)
    }

    /// Reads and checks the text of a configuration.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        check_keys(text, OWN)?;
        let cluster = ClusterConfig::parse(text, None)?;
        let raw: Raw = toml::from_str(text)?;
        let config = Config {
            cluster,
            paths: Paths::new(raw.data),
            engine: raw.engine,
            channel: raw.channel,
            rest: raw.rest,
            memory: raw.memory,
            storage: raw.storage,
            tags: raw.tags,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        if !self.paths.base().is_absolute() {
            let why = format!("{:?} is not absolute", self.paths.base());
            return Err(ConfigError::invalid("data", why));
        }
        self.rest.check()?;
        self.channel.check(&self.cluster)?;
        self.memory.cache.check("memory.cache")?;
        self.storage.scrub_rate.check("storage.scrub_rate")?;
        self.engine.check()
    }

    /// The places that the server uses.
    pub fn places(&self) -> Places {
        Places {
            data: self.paths.mount(),
            run: self.paths.run(),
            tmp: self.paths.tmp(),
        }
    }

    /// How the server is run on a volume with blocks of this size. `owner` is the account of the system that may
    /// administrate a new database.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] that says what is missing or refused.
    pub fn recipe(&self, block_bytes: u32, owner: &str) -> Result<Recipe, ConfigError> {
        let refused = |why: String| ConfigError::invalid("engine", why);
        match self.engine.kind {
            Kind::MariaDb => {
                let recipe = self
                    .engine
                    .mariadb()
                    .recipe(&self.places(), block_bytes, owner);
                recipe.map_err(refused)
            }
            Kind::Command => self.engine.by_command(&self.places(), block_bytes),
        }
    }

    /// A commented configuration with every key at its default.
    pub fn example() -> &'static str {
        include_str!("config/example.toml")
    }
}

impl EngineConfig {
    fn check(&self) -> Result<(), ConfigError> {
        let commands = [
            ("engine.command", !self.command.is_empty()),
            ("engine.init", !self.init.is_empty()),
            ("engine.ready", !self.ready.is_empty()),
            ("engine.private", !self.private.is_empty()),
            ("engine.version", !self.version.is_empty()),
        ];
        let only_mariadb = [
            ("engine.bin", self.bin.is_some()),
            ("engine.parameters", !self.parameters.is_empty()),
        ];
        let (wrong, kind) = match self.kind {
            Kind::MariaDb => (commands.iter().find(|(_, given)| *given), "command"),
            Kind::Command => (only_mariadb.iter().find(|(_, given)| *given), "mariadb"),
        };
        if let Some((key, _)) = wrong {
            let why = format!("is for engine.kind = \"{kind}\" only");
            return Err(ConfigError::invalid(key, why));
        }
        if self.kind == Kind::Command && self.command.is_empty() {
            let why = "name the server's program and its arguments";
            return Err(ConfigError::invalid("engine.command", why));
        }
        if self.kind == Kind::Command && self.ready.is_empty() {
            let why = "say how to see that the server is ready: [\"connects\", \"127.0.0.1:6379\"], or a program";
            return Err(ConfigError::invalid("engine.ready", why));
        }
        for (key, command) in [
            ("engine.command", &self.command),
            ("engine.init", &self.init),
            ("engine.version", &self.version),
        ] {
            if command
                .first()
                .is_some_and(|program| !program.starts_with('/'))
            {
                let why = format!("{:?} is not the absolute path of a program", command[0]);
                return Err(ConfigError::invalid(key, why));
            }
        }
        if self.port == Some(0) {
            return Err(ConfigError::invalid(
                "engine.port",
                "choose one from 1 to 65535",
            ));
        }
        for pattern in &self.private {
            Pattern::parse(pattern).map_err(|why| ConfigError::invalid("engine.private", why))?;
        }
        self.signal()?;
        Ok(())
    }

    fn signal(&self) -> Result<Signal, ConfigError> {
        self.stop_signal.parse().map_err(|_| {
            let why = format!(
                "{:?} is no signal; write for example \"SIGTERM\"",
                self.stop_signal
            );
            ConfigError::invalid("engine.stop_signal", why)
        })
    }

    fn mariadb(&self) -> MariaDb {
        let parameters = self.parameters.iter();
        MariaDb {
            bin: self.bin.clone(),
            port: self.port.unwrap_or(MARIADB_PORT),
            listen: self.listen.clone(),
            run_as: self.run_as.clone(),
            ready_within: self.ready_within,
            stop_within: self.stop_within,
            parameters: parameters
                .map(|(name, value)| (name.clone(), value.to_string()))
                .collect(),
        }
    }

    /// A configured command that knows where the server listens.
    fn with_port(&self, command: &[String]) -> Vec<String> {
        let port = self.port.map(|port| port.to_string()).unwrap_or_default();
        let replaced = |word: &String| {
            let word = word.replace("{listen}", &self.listen);
            word.replace("{port}", &port)
        };
        command.iter().map(replaced).collect()
    }

    fn by_command(&self, places: &Places, block_bytes: u32) -> Result<Recipe, ConfigError> {
        let server = places.expand(&self.with_port(&self.command));
        let server =
            server.ok_or_else(|| ConfigError::invalid("engine.command", "name a program"))?;
        let ready = self.with_port(&self.ready);
        let ready = match (ready.first().map(String::as_str), ready.get(1)) {
            (Some(CONNECTS), Some(address)) => {
                Ready::Connects(address.replace("{run}", &places.run.to_string_lossy()))
            }
            _ => {
                let program = places.expand(&ready);
                Ready::Program(
                    program
                        .ok_or_else(|| ConfigError::invalid("engine.ready", "name a program"))?,
                )
            }
        };
        let page_bytes = u32::try_from(self.page_size.0).unwrap_or(u32::MAX);
        let private = self.private.iter().map(|text| Pattern::parse(text));
        let private: Result<Vec<Pattern>, String> = private.collect();
        let reached = self.port.map_or(self.listen.clone(), |port| {
            format!("{}:{port}", self.listen)
        });
        let name = server
            .program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let torn = format!(
            "pages of {page_bytes} bytes do not fit the volume's blocks of {block_bytes}: one may be torn when the \
             machine is lost"
        );
        Ok(Recipe {
            name,
            run_as: self.run_as.clone(),
            init: places.expand(&self.init),
            server,
            ready,
            ready_within: self.ready_within,
            stop_signal: self.signal()?,
            stop_within: self.stop_within,
            private: private.map_err(|why| ConfigError::invalid("engine.private", why))?,
            listens: self
                .port
                .map(|port| (self.listen.clone(), port))
                .into_iter()
                .collect(),
            reached,
            warnings: (page_bytes > block_bytes)
                .then_some(torn)
                .into_iter()
                .collect(),
            page_bytes,
            version: places.expand(&self.version),
        })
    }
}

#[cfg(test)]
mod tests;
