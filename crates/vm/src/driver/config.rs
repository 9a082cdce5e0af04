//! The configuration of a host, in TOML: `[vm]` beside what every process of a cluster has.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::core::Rules;
use crate::host::Mac;
use crate::network::Protection;

/// A configuration that is invalid.
#[derive(Debug, thiserror::Error)]
#[error("[vm] {key}: {reason}")]
pub struct ConfigError {
    key: &'static str,
    reason: String,
}

/// `[vm]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Directory of the machine's image, as `understudy vm create` made it.
    pub image: PathBuf,
    /// File with this host's disk of the machine. It is made from the image if the machine is new.
    pub disk: PathBuf,
    /// Directory for sockets and logs. Its path must be short.
    pub run: PathBuf,
    /// Directory on a tmpfs for the machine's memory.
    #[serde(default)]
    pub memory_dir: Option<PathBuf>,
    /// Program of QEMU.
    #[serde(default = "default_qemu")]
    pub qemu: PathBuf,
    /// User that QEMU runs as, if the host's process is root's. Otherwise QEMU runs as the user of that process.
    #[serde(default)]
    pub run_as: Option<String>,
    /// Memory of the machine in MiB, at least 128.
    #[serde(default = "default_memory_mb")]
    pub memory_mb: u64,
    /// Number of processors, 1 or 2.
    #[serde(default = "default_cpus")]
    pub cpus: u32,
    /// Hardware address of the machine's network card, the same on both hosts: `52:54:00:77:00:02`.
    pub mac: String,
    /// Address of the machine with the length of the network's prefix: `10.0.0.9/24`.
    pub address: String,
    /// Gateway of the machine to other networks.
    #[serde(default)]
    pub gateway: Option<Ipv4Addr>,
    /// Name of the tap device by which the machine's frames leave this host.
    pub tap: String,
    /// Name of the bridge that the tap device joins.
    #[serde(default)]
    pub bridge: Option<String>,
    /// Address that the other host and commands connect to.
    pub peer_listen: SocketAddr,
    /// The other host's `peer_listen`.
    pub peer: String,
    /// Address for health checks, metrics and the status page over HTTP. Without it, there is no HTTP interface.
    #[serde(default)]
    pub rest: Option<SocketAddr>,
    /// True if this host boots the machine if there is none yet; of two hosts, one does.
    #[serde(skip)]
    pub first: bool,
    /// Time between two checkpoints, from 5 ms to half of `silence`.
    #[serde(
        with = "humantime_serde",
        alias = "epoch",
        default = "default_checkpoint_interval"
    )]
    pub checkpoint_interval: Duration,
    /// Output of the machine that waits until a checkpoint is safe.
    #[serde(default)]
    pub protection: Protection,
    /// Port that PostgreSQL listens on in the machine, for `protection = "commits"`.
    #[serde(default = "default_port")]
    pub port: u16,
    /// Sends only the differences of pages and blocks.
    #[serde(default = "yes")]
    pub compression: bool,
    /// Sends the number of a block in place of a page that was read from it.
    #[serde(default = "yes")]
    pub read_tracking: bool,
    /// Most writes to the disk that wait in memory for a checkpoint, in MiB, 1 to 1048576. With more, the machine's disk waits.
    #[serde(default = "default_journal_mb")]
    pub journal_mb: u64,
    /// Time without a message from the active host after which its standby takes over, at least 100 ms.
    #[serde(with = "humantime_serde", default = "default_silence")]
    pub silence: Duration,
    /// Time that a restarted host, which was the active before, waits for its standby to take over. Longer than `silence`.
    #[serde(with = "humantime_serde", default = "default_patience")]
    pub patience: Duration,
}

fn default_qemu() -> PathBuf {
    "/usr/bin/qemu-system-x86_64".into()
}

fn default_memory_mb() -> u64 {
    512
}

fn default_cpus() -> u32 {
    1
}

fn default_checkpoint_interval() -> Duration {
    Duration::from_millis(50)
}

fn default_port() -> u16 {
    5432
}

fn yes() -> bool {
    true
}

fn default_journal_mb() -> u64 {
    256
}

fn default_silence() -> Duration {
    Duration::from_millis(1500)
}

fn default_patience() -> Duration {
    Duration::from_secs(10)
}

/// Settings that can change while the host runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// See [`Config`], as for all of these.
    pub checkpoint_interval: Duration,
    /// What waits.
    pub protection: Protection,
    /// How pages are sent.
    pub compression: bool,
    /// Which are named.
    pub read_tracking: bool,
}

impl Config {
    /// What can change while the host runs.
    pub fn tuning(&self) -> Tuning {
        Tuning {
            checkpoint_interval: self.checkpoint_interval,
            protection: self.protection,
            compression: self.compression,
            read_tracking: self.read_tracking,
        }
    }

    /// The same with other settings of those that can change.
    pub fn tuned(self, to: Tuning) -> Config {
        Config {
            checkpoint_interval: to.checkpoint_interval,
            protection: to.protection,
            compression: to.compression,
            read_tracking: to.read_tracking,
            ..self
        }
    }

    /// Reads what `[vm]` says, as a table of its own.
    ///
    /// # Errors
    /// If it is invalid.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|error| ConfigError {
            key: "",
            reason: error.message().to_owned(),
        })?;
        config.check()?;
        Ok(config)
    }

    /// True if it makes sense.
    ///
    /// # Errors
    /// If it does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let config = self;
        config.card()?;
        config.network()?;
        let refused = |key, reason: &str| {
            Err(ConfigError {
                key,
                reason: reason.to_owned(),
            })
        };
        if config.checkpoint_interval < Duration::from_millis(5)
            || config.checkpoint_interval > config.silence / 2
        {
            return refused(
                "checkpoint_interval",
                "must be from 5 ms to half of the silence",
            );
        }
        if config.silence < Duration::from_millis(100) {
            return refused("silence", "must be at least 100 ms");
        }
        if config.patience <= config.silence {
            return refused("patience", "must be longer than the silence");
        }
        if config.memory_mb < 128 {
            return refused("memory_mb", "must be at least 128");
        }
        if config.journal_mb == 0 || config.journal_mb > 1 << 20 {
            return refused("journal_mb", "must be from 1 to 1,048,576");
        }
        if config.cpus == 0 || config.cpus > 2 {
            return refused("cpus", "must be 1 or 2: more have not been tested");
        }
        Ok(())
    }

    /// The address of the network card.
    ///
    /// # Errors
    /// If it is none.
    pub fn card(&self) -> Result<Mac, ConfigError> {
        self.mac
            .parse()
            .map_err(|reason| ConfigError { key: "mac", reason })
    }

    /// The machine's address, and the bits of the network.
    ///
    /// # Errors
    /// If it is none.
    pub fn network(&self) -> Result<(Ipv4Addr, u8), ConfigError> {
        let parts = self.address.split_once('/');
        let parsed = parts.and_then(|(address, bits)| {
            Some((
                address.parse().ok()?,
                bits.parse().ok().filter(|bits| *bits <= 32)?,
            ))
        });
        parsed.ok_or_else(|| ConfigError {
            key: "address",
            reason: format!(
                "{:?} is not an address with its network: write 10.0.0.9/24",
                self.address
            ),
        })
    }

    /// What the core goes by.
    pub fn rules(&self) -> Rules {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Rules {
            first: self.first,
            silence_ms: ms(self.silence),
            confirm_ms: ms(self.silence) * 3 / 5,
            heard_ms: ms(self.silence) * 4 / 5,
            stuck_ms: ms(self.silence) * 3,
            patience_ms: ms(self.patience),
            // Two hosts that want the epoch at once do not stay in step.
            retry_ms: if self.first { 170 } else { 110 },
            flaw: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
        image = "/var/lib/vm/image"
        disk = "/var/lib/vm/disk"
        run = "/run/vm"
        mac = "52:54:00:12:34:56"
        address = "10.9.0.2/24"
        tap = "tap0"
        peer_listen = "127.0.0.1:7000"
        peer = "127.0.0.1:7001"
    "#;

    // hazard: VM-28
    #[test]
    fn a_configuration_says_what_is_wrong_with_it() {
        let config = Config::parse(WHOLE).unwrap();
        assert_eq!(config.protection, Protection::Everything);
        assert_eq!(config.network().unwrap(), ([10, 9, 0, 2].into(), 24));
        for (line, key) in [
            ("checkpoint_interval = \"900ms\"", "checkpoint_interval"),
            ("memory_mb = 64", "memory_mb"),
            ("cpus = 3", "cpus"),
            ("journal_mb = 0", "journal_mb"),
            ("protection = \"some\"", "some"),
            ("speed = 3", "speed"),
            (
                "silence = \"50ms\"\ncheckpoint_interval = \"20ms\"",
                "silence",
            ),
            ("patience = \"1500ms\"", "patience"),
        ] {
            let error = Config::parse(&format!("{WHOLE}\n{line}"))
                .unwrap_err()
                .to_string();
            assert!(error.contains(key), "{error}");
        }
        let error = Config::parse(&WHOLE.replace("10.9.0.2/24", "10.9.0.2")).unwrap_err();
        assert!(error.to_string().contains("address"), "{error}");
    }

    #[test]
    fn checkpoint_interval_has_its_former_name_as_well() {
        let of = |line: &str| Config::parse(&format!("{WHOLE}\n{line}"));
        let (old, new) = ("epoch = \"20ms\"", "checkpoint_interval = \"20ms\"");
        assert_eq!(of(old).unwrap(), of(new).unwrap());
        assert!(of(&format!("{old}\n{new}")).is_err(), "both names");
    }
}
