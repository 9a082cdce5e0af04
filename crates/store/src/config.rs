//! How a zone is set up.

use std::time::Duration;

use dax::credentials::Secret;
use dax::tls::Tls;

use crate::network::Emulated;

/// How a zone is set up. The defaults suit a machine that does other things as well.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// Bytes of the file system to leave free: block writes are refused below it, so that the engine
    /// never meets a full disk, and epochs, records and removals still find room.
    pub reserve_bytes: u64,
    /// Bytes of memory for the engine's cache of what it read. The kernel caches its files as well.
    pub cache_bytes: u64,
    /// How long a write waits for others to share its fsync when nobody asks for it.
    #[serde(with = "humantime_serde")]
    pub commit_delay: Duration,
    /// Bytes of waiting writes that are made durable without waiting longer, and at once: volumes that
    /// have more waiting share each round.
    pub commit_bytes: usize,
    /// Bytes of received writes held in memory before connections are made to wait; each volume may
    /// have another MiB when others fill it.
    pub queue_bytes: usize,
    /// Threads that serve reads which arrive faster than one by one.
    pub read_threads: usize,
    /// Distances to clients that are emulated, in tests and demonstrations.
    pub network: Option<Emulated>,
    /// How long a client may take to prove that it knows its volume's key.
    #[serde(with = "humantime_serde")]
    pub greeting_timeout: Duration,
    /// Connections that have not proved it yet, at most; more are turned away.
    pub strangers_max: usize,
    /// Connections of one volume, at most; more are turned away. Each may take a megabyte for what it sends.
    pub connections_max: usize,
    /// What volumes' keys are made from. Without one a client need not prove that it may use the volume
    /// that it names.
    #[serde(skip)]
    pub secret: Option<Secret>,
    /// What protects connections over TCP, and says who may connect. Without it only this machine may.
    #[serde(skip)]
    pub tls: Option<Tls>,
}

impl Default for StoreConfig {
    fn default() -> StoreConfig {
        StoreConfig {
            reserve_bytes: 1 << 30,
            cache_bytes: 16 << 20,
            commit_delay: Duration::from_millis(20),
            commit_bytes: 4 << 20,
            queue_bytes: 64 << 20,
            read_threads: 4,
            network: None,
            greeting_timeout: Duration::from_secs(10),
            strangers_max: 256,
            connections_max: 256,
            secret: None,
            tls: None,
        }
    }
}
