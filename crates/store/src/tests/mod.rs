//! A whole zone, spoken to over its socket.

mod bases;
mod branches;
pub(crate) mod client;
mod commits;
mod crash;
mod credentials;
mod damage;
mod fairness;
mod fills;
mod golden;
mod handing_over;
mod hoarding;
mod hostile;
mod identity;
mod isolation;
mod layers;
mod power;
mod rebuild;
mod reclaim;
mod records;
mod replicas;
mod rules;
mod secure;
mod unreadable;

use tempfile::TempDir;

use crate::engine::memory::MemoryEngine;
use crate::{StoreConfig, Zone};

/// A zone in a directory of its own, and where it listens.
pub(crate) struct TestZone {
    pub zone: Zone,
    pub address: String,
    pub dir: TempDir,
}

/// What the tests use: small, and free of the machine's disk.
pub(crate) fn config() -> StoreConfig {
    StoreConfig {
        reserve_bytes: 0,
        cache_bytes: 8 << 20,
        read_threads: 2,
        ..StoreConfig::default()
    }
}

impl TestZone {
    pub fn new() -> TestZone {
        TestZone::with(config())
    }

    pub fn with(config: StoreConfig) -> TestZone {
        let dir = tempfile::tempdir().unwrap();
        let (zone, address) = open(&dir, config);
        TestZone { zone, address, dir }
    }

    /// A zone over an engine in memory.
    pub fn over(engine: MemoryEngine) -> TestZone {
        TestZone::over_with(engine, config())
    }

    pub fn over_with(engine: MemoryEngine, config: StoreConfig) -> TestZone {
        let dir = tempfile::tempdir().unwrap();
        let zone = Zone::over(Box::new(engine), dir.path(), config, None).unwrap();
        let address = serve(&zone, &dir);
        TestZone { zone, address, dir }
    }

    /// Stops the zone and opens it again.
    pub fn restart(self) -> TestZone {
        self.zone.stop().unwrap();
        let TestZone { zone, dir, .. } = self;
        drop(zone);
        let (zone, address) = open(&dir, config());
        TestZone { zone, address, dir }
    }
}

fn open(dir: &TempDir, config: StoreConfig) -> (Zone, String) {
    let zone = Zone::open(dir.path().join("zone"), config).unwrap();
    let address = serve(&zone, dir);
    (zone, address)
}

fn serve(zone: &Zone, dir: &TempDir) -> String {
    let address = format!("unix:{}", dir.path().join("socket").display());
    zone.serve(&address).unwrap()
}
