//! What a client of Cassandra needs to know.

use std::path::PathBuf;
use std::time::Duration;

use dax::error::Result;
use dax::ids::VolumeName;
use zeroize::Zeroizing;

use crate::schema::Keyspace;

/// A lease of an active, unless told otherwise.
pub const LEASE: Duration = Duration::from_secs(2);

/// Proof that an owner needs before it acknowledges anything ("The gate" in docs/understand/protocol-cassandra.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fencing {
    /// Its lease of this length, by its own clock. A takeover waits it out.
    Lease(Duration),
    /// The epoch row, by a quorum, every time: a second round trip, and no clocks.
    Verify,
}

impl Fencing {
    /// How long a successor waits.
    pub fn lease(self) -> Duration {
        match self {
            Fencing::Lease(length) => length,
            Fencing::Verify => Duration::ZERO,
        }
    }
}

/// A user of Cassandra.
#[derive(Clone)]
pub struct Credentials {
    /// Role that the client logs in as.
    pub user: String,
    /// Its password.
    pub password: Zeroizing<String>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Files in PEM that protect the connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Whose certificates are believed.
    pub authority: PathBuf,
    /// This client's own certificate and key, if the nodes ask for one.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// Settings of a client of Cassandra.
#[derive(Debug, Clone)]
pub struct Config {
    /// Some of the nodes: `host` or `host:port`.
    pub contact_points: Vec<String>,
    /// The keyspace; several volumes may share one.
    pub keyspace: Keyspace,
    /// Volume that the client works for.
    pub volume: VolumeName,
    /// The data centre that this client is in. Default: none is nearer than another.
    pub data_centre: Option<String>,
    /// The data centres that a keyspace is made in. Default: all that the cluster has.
    pub data_centres: Vec<String>,
    /// What must be true before anything is acknowledged. Default: a lease of 2 s.
    pub fencing: Fencing,
    /// A user, if Cassandra asks for one.
    pub credentials: Option<Credentials>,
    /// What protects the connections. Default: nothing.
    pub tls: Option<TlsFiles>,
    /// Bytes of blocks that may wait for acknowledgements before writers wait. Default 64 MiB.
    pub pending_bytes_max: usize,
    /// Entries of the version list. Default 262,144 (2 GiB of 8 KiB blocks).
    pub version_list_max: usize,
    /// Requests with blocks on their way at a time. Default 64, and as many for the log.
    pub requests_max: usize,
    /// After how long another coordinator is asked as well. Default 100 ms.
    pub speculate_after: Duration,
}

impl Config {
    /// The defaults.
    ///
    /// # Errors
    /// `Invalid` if the keyspace's name is.
    pub fn new(contact_points: Vec<String>, keyspace: &str, volume: VolumeName) -> Result<Config> {
        Ok(Config {
            contact_points,
            keyspace: Keyspace::new(keyspace)?,
            volume,
            data_centre: None,
            data_centres: Vec::new(),
            fencing: Fencing::Lease(LEASE),
            credentials: None,
            tls: None,
            pending_bytes_max: 64 << 20,
            version_list_max: 1 << 18,
            requests_max: 64,
            speculate_after: Duration::from_millis(100),
        })
    }
}
