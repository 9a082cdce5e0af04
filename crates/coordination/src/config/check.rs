//! What is refused of a file whose syntax is right.

use dax::storage::MAX_REPLICAS;

use super::{ByteSize, ClusterConfig, ConfigError, Raw, Zone};
use crate::address::Address;

impl Raw {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.check_zones()?;
        self.check_key()?;
        self.tls.check()?;
        self.memory.pending.check("memory.pending")
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

    fn check_key(&self) -> Result<(), ConfigError> {
        match &self.key {
            Some(key) if !key.is_absolute() => {
                let why = format!("{key:?} is not absolute");
                Err(ConfigError::invalid("key", why))
            }
            _ => Ok(()),
        }
    }
}

impl ClusterConfig {
    /// Refuses the address at `key` if other machines can reach it, or read what is said on the way there,
    /// and nothing protects that.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] that says what to set.
    pub fn check_protected(&self, key: &str, address: &Address) -> Result<(), ConfigError> {
        if address.is_local() || self.tls.files().is_some() {
            return Ok(());
        }
        Err(ConfigError::invalid(
            key,
            format!(
                "{address} is not on this machine, so connections to it must be encrypted: set \
                 identity = \"/etc/understudy/cluster.pem\" in [tls]; understudy init makes the file"
            ),
        ))
    }
}

impl ByteSize {
    /// Refuses less memory, or less of a rate, than anything works with.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] that says how much is needed.
    pub fn check(self, key: &str) -> Result<(), ConfigError> {
        let least = ByteSize::mib(1);
        if self < least {
            let why = format!("{self} is too little to work with; use at least {least}");
            return Err(ConfigError::invalid(key, why));
        }
        Ok(())
    }
}
