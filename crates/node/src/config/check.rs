//! What is refused of a file whose syntax is right.

use dax::storage::MAX_REPLICAS;

use super::{ByteSize, ConfigError, Paths, Raw, Zone};
use crate::address::UNIX_PATH_MAX;

impl Raw {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.check_zones()?;
        self.check_key()?;
        self.tls.check()?;
        self.check_data()?;
        self.postgres.check()?;
        self.rest.check()?;
        self.standby.check()?;
        if self.channel.advertised().is_wildcard() {
            return Err(ConfigError::invalid(
                "channel.advertise",
                format!(
                    "other nodes cannot connect to {}; set it to a name or address of this machine",
                    self.channel.advertised()
                ),
            ));
        }
        self.check_protected()?;
        let least = ByteSize::mib(1);
        for (key, size) in [
            ("memory.pending", self.memory.pending),
            ("memory.cache", self.memory.cache),
            ("memory.overlay", self.memory.overlay),
            ("storage.scrub_rate", self.storage.scrub_rate),
            ("storage.claim_cap", self.storage.claim_cap),
            ("standby.slow_after", self.standby.slow_after),
        ] {
            if size < least {
                let why = format!("{size} is too little to work with; use at least {least}");
                return Err(ConfigError::invalid(key, why));
            }
        }
        Ok(())
    }

    fn check_zones(&self) -> Result<(), ConfigError> {
        if self.store.is_some() {
            if !self.zones.is_empty() {
                let why = "give either zones or an address of Cassandra";
                return Err(ConfigError::invalid("store", why));
            }
            if self.key.is_some() {
                let why =
                    "is of zones, and there are none: a user of Cassandra is in cassandra.user";
                return Err(ConfigError::invalid("key", why));
            }
            return self.cassandra.check(self.tags.zone);
        }
        if self.zones.is_empty() {
            return Err(ConfigError::invalid(
                "zones",
                "name at least one zone server, or set store = \"cassandra://host,host/keyspace\"",
            ));
        }
        let invalid = |why: String| Err(ConfigError::invalid("zones", why));
        let per_zone = self.zones[0].servers().len();
        if self.zones.iter().any(|z| z.servers().len() != per_zone) || per_zone == 0 {
            return invalid("list the same number of servers in each zone".into());
        }
        let servers: Vec<_> = self.zones.iter().flat_map(Zone::servers).collect();
        if servers.len() > usize::from(MAX_REPLICAS) {
            return invalid(format!("at most {MAX_REPLICAS} servers can keep copies"));
        }
        for (i, server) in servers.iter().enumerate() {
            if servers[..i].contains(server) {
                let why =
                    format!("{server} is listed twice: two copies on one server are one copy");
                return invalid(why);
            }
        }
        match self.tags.zone {
            Some(zone) if usize::from(zone) >= self.zones.len() => Err(ConfigError::invalid(
                "tags.zone",
                format!("there are {} zones, counted from 0", self.zones.len()),
            )),
            _ => Ok(()),
        }
    }

    /// What other machines can reach, or read on its way, is not said in plaintext.
    fn check_protected(&self) -> Result<(), ConfigError> {
        if self.tls.files().is_some() {
            return Ok(());
        }
        let zones = self.zones.iter().flat_map(Zone::servers);
        let zones = zones.map(|address| ("zones", address));
        let channel = [
            ("channel.listen", &self.channel.listen),
            ("channel.advertise", self.channel.advertised()),
        ];
        match zones.chain(channel).find(|(_, at)| !at.is_local()) {
            Some((key, address)) => Err(ConfigError::invalid(
                key,
                format!(
                    "{address} is not on this machine, so what is said must be protected: set \
                     identity = \"/etc/understudy/cluster.pem\" in [tls]; understudy init makes the file"
                ),
            )),
            None => Ok(()),
        }
    }

    fn check_key(&self) -> Result<(), ConfigError> {
        match &self.key {
            Some(key) if !key.is_absolute() => {
                let why = format!("{key:?} is not absolute");
                Err(ConfigError::invalid("key", why))
            }
            _ => Ok(()),
        }
    }

    fn check_data(&self) -> Result<(), ConfigError> {
        let refuse = |why: String| Err(ConfigError::invalid("data", why));
        let text = self.data.to_string_lossy();
        if !self.data.is_absolute() {
            return refuse(format!("{text:?} is not absolute"));
        }
        if text.contains([',', '"', '\'', '\\', '\n']) {
            return refuse(
                "a path with commas, quotes or backslashes cannot be handed to PostgreSQL".into(),
            );
        }
        let socket = Paths::new(&self.data).socket(65535);
        let length = socket.as_os_str().len();
        if length > UNIX_PATH_MAX {
            return refuse(format!(
                "too long by {} bytes for the Unix socket {}",
                length - UNIX_PATH_MAX,
                socket.display()
            ));
        }
        Ok(())
    }
}
