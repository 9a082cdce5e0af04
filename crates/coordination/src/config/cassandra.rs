//! `store = "cassandra://..."` and `[cassandra]`: Apache Cassandra in place of zones.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cassandra::{Credentials, Fencing, TlsFiles};
use dax::error::{Error, ErrorKind};
use dax::ids::VolumeName;
use dax::storage::VolumeSettings;
use serde::{Deserialize, Serialize};

use super::{ByteSize, ConfigError, Heartbeat};

/// What an address begins with.
const SCHEME: &str = "cassandra://";
/// A lightweight transaction across regions fits in, and a pause of Java.
const LEASE_MIN: Duration = Duration::from_millis(500);
const LEASE_MAX: Duration = Duration::from_secs(60);
/// How much longer than Tmax a lease may be.
const LEASE_BEYOND_TIMEOUT: Duration = Duration::from_secs(1);

/// What an owner looks at before it acknowledges anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FencingChoice {
    /// The lease. A takeover after a silent death waits until the lease has ended.
    #[default]
    Lease,
    /// The row of the epoch, at every sync: a second round trip, and no clocks.
    Verify,
}

/// `[cassandra]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CassandraConfig {
    /// Data centres that keep copies. `tags.zone` is a position in this list.
    pub data_centres: Vec<String>,
    /// Number of copies in each data centre.
    pub copies: u8,
    /// Proof that the active still owns the epoch, before it acknowledges a commit.
    pub fencing: FencingChoice,
    /// Length of a lease: the longest time that a takeover waits after the active died silently. From 500 ms to 60 s, and
    /// at most 1 s longer than `heartbeat.timeout`.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// File with a user and its password, on two lines.
    pub user: Option<PathBuf>,
    /// File with the authority of the nodes' certificates. With it, connections are encrypted.
    pub ca: Option<PathBuf>,
    /// File with this machine's certificate, if the nodes ask for one. Requires `key` and `ca`.
    pub certificate: Option<PathBuf>,
    /// File with the key of `certificate`.
    pub key: Option<PathBuf>,
    /// Permits connections to nodes on other machines that are not encrypted.
    pub plaintext: bool,
}

impl Default for CassandraConfig {
    fn default() -> Self {
        CassandraConfig {
            data_centres: ["dc1", "dc2", "dc3"].map(String::from).to_vec(),
            copies: 1,
            fencing: FencingChoice::Lease,
            lease: cassandra::config::LEASE,
            user: None,
            ca: None,
            certificate: None,
            key: None,
            plaintext: false,
        }
    }
}

/// Where Cassandra is: some of its nodes, and the keyspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// `host` or `host:port`.
    pub nodes: Vec<String>,
    /// The keyspace.
    pub keyspace: String,
}

impl Place {
    /// Understands `cassandra://host,host:port/keyspace`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(address: &str) -> Result<Place, ConfigError> {
        let usage = "use \"cassandra://host,host/keyspace\"";
        let wrong = || ConfigError::invalid("store", format!("{address:?} is no address; {usage}"));
        let rest = address.strip_prefix(SCHEME).ok_or_else(wrong)?;
        let (nodes, keyspace) = rest.split_once('/').ok_or_else(wrong)?;
        let nodes: Vec<String> = nodes.split(',').map(str::to_owned).collect();
        if nodes.iter().any(String::is_empty) {
            return Err(wrong());
        }
        if let Err(error) = cassandra::schema::Keyspace::new(keyspace) {
            return Err(ConfigError::invalid("store", error.to_string()));
        }
        Ok(Place {
            nodes,
            keyspace: keyspace.to_owned(),
        })
    }
}

impl CassandraConfig {
    pub(super) fn check(&self, zone: Option<u8>) -> Result<(), ConfigError> {
        let invalid = |key: &str, why: &str| Err(ConfigError::invalid(key, why));
        if self.data_centres.is_empty() || self.copies == 0 {
            return invalid("cassandra.data_centres", "name at least one, with a copy");
        }
        if let Err(error) = self.volume_settings().check() {
            return invalid("cassandra.copies", &error.to_string());
        }
        if zone.is_some_and(|zone| usize::from(zone) >= self.data_centres.len()) {
            let many = self.data_centres.len();
            let why = format!("there are {many} data centres, counted from 0");
            return invalid("tags.zone", &why);
        }
        if !(LEASE_MIN..=LEASE_MAX).contains(&self.lease) {
            let why = format!("use {LEASE_MIN:?} to {LEASE_MAX:?}");
            return invalid("cassandra.lease", &why);
        }
        let own = [&self.certificate, &self.key];
        let given = own.iter().filter(|path| path.is_some()).count();
        if given == 1 || (given == 2 && self.ca.is_none()) {
            return invalid(
                "cassandra",
                "certificate and key belong together, and need ca",
            );
        }
        for (key, path) in [
            ("cassandra.user", &self.user),
            ("cassandra.ca", &self.ca),
            ("cassandra.certificate", &self.certificate),
            ("cassandra.key", &self.key),
        ] {
            if path.as_ref().is_some_and(|path| !path.is_absolute()) {
                return invalid(key, "not absolute");
            }
        }
        Ok(())
    }

    /// Blocks and a password do not cross a network that others can read.
    pub(super) fn check_way(&self, place: &Place) -> Result<(), ConfigError> {
        let far = place.nodes.iter().find(|node| !is_local(node));
        match far {
            Some(node) if self.ca.is_none() && !self.plaintext => Err(ConfigError::invalid(
                "cassandra.ca",
                format!(
                    "{node} is not on this machine, so connections to it must be encrypted: name the authority of the \
                     certificates of Cassandra's nodes, or set plaintext = true if nothing else can read the network"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// A lease is not so long that a takeover waits for it long after the active was given up.
    pub(super) fn check_lease(&self, heartbeat: &Heartbeat) -> Result<(), ConfigError> {
        let most = (heartbeat.timeout + LEASE_BEYOND_TIMEOUT).max(LEASE_MIN);
        if self.fencing == FencingChoice::Lease && self.lease > most {
            let why = format!(
                "{:?} is long after a silent active is given up (heartbeat.timeout is {:?}), and a takeover \
                 would wait for it: use at most {most:?}, or a longer timeout",
                self.lease, heartbeat.timeout
            );
            return Err(ConfigError::invalid("cassandra.lease", why));
        }
        Ok(())
    }

    /// How a volume is spread over these data centres.
    pub fn volume_settings(&self) -> VolumeSettings {
        VolumeSettings::spread(self.data_centres.len() as u8, self.copies)
    }

    /// A client's configuration.
    ///
    /// # Errors
    /// `Invalid` if the user's file cannot be read, others can read it, or it is invalid.
    pub fn client(
        &self,
        place: &Place,
        volume: VolumeName,
        zone: Option<u8>,
        pending: ByteSize,
    ) -> dax::Result<cassandra::Config> {
        let nodes = place.nodes.clone();
        let mut client = cassandra::Config::new(nodes, &place.keyspace, volume)?;
        let here = zone.and_then(|zone| self.data_centres.get(usize::from(zone)));
        client.data_centre = here.cloned();
        client.data_centres = self.data_centres.clone();
        client.pending_bytes_max = pending.bytes();
        client.fencing = match self.fencing {
            FencingChoice::Lease => Fencing::Lease(self.lease),
            FencingChoice::Verify => Fencing::Verify,
        };
        client.credentials = self.user.as_deref().map(credentials).transpose()?;
        client.tls = self.ca.clone().map(|authority| TlsFiles {
            authority,
            own: self.certificate.clone().zip(self.key.clone()),
        });
        Ok(client)
    }
}

/// True if a node, with or without a port, is on this machine for sure.
fn is_local(node: &str) -> bool {
    let host = match node.parse::<SocketAddr>() {
        Ok(address) => return address.ip().is_loopback(),
        Err(_) => node.split_once(':').map_or(node, |(host, _)| host),
    };
    let address = node.parse().or_else(|_| host.parse::<IpAddr>());
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// A user and its password from a file that only its owner can read.
fn credentials(path: &Path) -> dax::Result<Credentials> {
    use std::os::unix::fs::PermissionsExt;
    let invalid =
        |why: String| Error::new(ErrorKind::Invalid, format!("{}: {why}", path.display()));
    let unreadable = |e: std::io::Error| invalid(format!("cannot be read: {e}"));
    let mode = std::fs::metadata(path)
        .map_err(unreadable)?
        .permissions()
        .mode();
    if mode & 0o077 != 0 {
        return Err(invalid("others can read it: chmod 600".to_owned()));
    }
    let text = zeroize::Zeroizing::new(std::fs::read_to_string(path).map_err(unreadable)?);
    let mut lines = text.lines();
    let (Some(user), Some(password)) = (lines.next(), lines.next()) else {
        return Err(invalid(
            "write the user and its password in two lines".to_owned(),
        ));
    };
    Ok(Credentials {
        user: user.to_owned(),
        password: zeroize::Zeroizing::new(password.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Preset;

    #[test]
    fn addresses_name_nodes_and_a_keyspace() {
        let place = Place::parse("cassandra://a,b:9043/main").unwrap();
        assert_eq!(place.nodes, ["a", "b:9043"]);
        assert_eq!(place.keyspace, "main");
        for wrong in [
            "cassandra://a",
            "cassandra:///x",
            "http://a/x",
            "cassandra://a/X",
            "cassandra://a,/x",
        ] {
            assert!(Place::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn impossible_settings_are_refused() {
        type Change = fn(&mut CassandraConfig);
        let table: [(Change, Option<u8>, &str); 6] = [
            (|c| c.data_centres.clear(), None, "data_centres"),
            (|c| c.copies = 9, None, "copies"),
            (|_| {}, Some(3), "tags.zone"),
            (|c| c.lease = Duration::ZERO, None, "cassandra.lease"),
            (|c| c.key = Some("/k".into()), None, "belong together"),
            (|c| c.user = Some("u".into()), None, "not absolute"),
        ];
        CassandraConfig::default().check(Some(2)).unwrap();
        for (change, zone, what) in table {
            let mut config = CassandraConfig::default();
            change(&mut config);
            let error = config.check(zone).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn a_lease_fits_the_heartbeats() {
        let lease = |lease, fencing| CassandraConfig {
            lease: Duration::from_millis(lease),
            fencing,
            ..CassandraConfig::default()
        };
        let timeout = |ms| Heartbeat {
            timeout: Duration::from_millis(ms),
            ..Heartbeat::default()
        };
        let (held, verified) = (FencingChoice::Lease, FencingChoice::Verify);
        for (length, heartbeat, fits) in [
            (lease(2000, held), timeout(1500), true),
            (lease(3000, held), timeout(1500), false),
            (lease(3000, verified), timeout(1500), true),
            (lease(9000, held), timeout(9000), true),
        ] {
            assert_eq!(length.check_lease(&heartbeat).is_ok(), fits, "{length:?}");
        }
        for preset in [Preset::Fast, Preset::Normal, Preset::Wide] {
            let own = CassandraConfig::default();
            own.check_lease(&preset.timings()).unwrap();
        }
    }

    #[test]
    fn connections_over_a_network_are_encrypted_or_declared_plain() {
        let open = CassandraConfig::default();
        let knowing = CassandraConfig {
            plaintext: true,
            ..CassandraConfig::default()
        };
        let protected = CassandraConfig {
            ca: Some("/ca".into()),
            ..CassandraConfig::default()
        };
        for (nodes, local) in [
            ("127.0.0.1,127.0.3.2:9042", true),
            ("localhost:9042,[::1]:9042,::1", true),
            ("127.0.0.1,10.0.0.1", false),
            ("db.example:9042", false),
        ] {
            let place = Place::parse(&format!("cassandra://{nodes}/x")).unwrap();
            assert_eq!(open.check_way(&place).is_ok(), local, "{nodes}");
            knowing.check_way(&place).unwrap();
            protected.check_way(&place).unwrap();
        }
    }

    #[test]
    fn a_password_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("user");
        std::fs::write(&path, "understudy\nsecret\n").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(
            credentials(&path)
                .unwrap_err()
                .to_string()
                .contains("chmod 600")
        );
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let found = credentials(&path).unwrap();
        assert_eq!(
            (found.user.as_str(), found.password.as_str()),
            ("understudy", "secret")
        );
        assert!(!format!("{found:?}").contains("secret"));
    }
}
