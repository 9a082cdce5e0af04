//! The suite that every storage backend must pass, over three zone servers and their sockets.

#![allow(clippy::unwrap_used)] // helpers of tests are not seen as tests

use std::sync::Arc;

use async_trait::async_trait;
use dax::client::{Client, ClientConfig, create_volume};
use dax::conformance::{Volume, fill_around_an_image};
use dax::conformance_tests;
use dax::ids::VolumeName;
use dax::layer::Layer;
use dax::storage::{Storage, VolumeSettings};
use store::{StoreConfig, Zone};
use tempfile::TempDir;

/// Three zones in this process.
struct ThreeZones {
    addresses: Vec<String>,
    volume: VolumeName,
    _zones: Vec<Zone>,
    _dir: TempDir,
}

impl ThreeZones {
    async fn start() -> ThreeZones {
        let dir = tempfile::tempdir().unwrap();
        let start = |zone: usize| {
            let path = dir.path().join(zone.to_string());
            let config = StoreConfig {
                reserve_bytes: 0,
                cache_bytes: 4 << 20,
                read_threads: 1,
                ..StoreConfig::default()
            };
            let server = Zone::open(&path, config).unwrap();
            let socket = format!("unix:{}.socket", path.display());
            (server.serve(&socket).unwrap(), server)
        };
        let (addresses, zones): (Vec<_>, Vec<_>) = (0..3).map(start).unzip();
        let zones = ThreeZones {
            addresses,
            volume: VolumeName::new("conformance").unwrap(),
            _zones: zones,
            _dir: dir,
        };
        zones.create(&VolumeSettings::default()).await;
        zones
    }

    async fn create(&self, settings: &VolumeSettings) {
        let config = ClientConfig::new(self.volume.clone(), self.addresses.clone(), "test");
        create_volume(&config, settings).await.unwrap();
    }

    /// A volume that is laid over the first one.
    async fn layered() -> ThreeZones {
        let mut zones = ThreeZones::start().await;
        let parent = zones.open().await;
        let image = fill_around_an_image(&*parent).await;
        let layer = Layer {
            parent: std::mem::replace(&mut zones.volume, VolumeName::new("child").unwrap()),
            first_epoch: parent.accepted_epoch().await.unwrap().epoch.next(),
            image,
            proof: None,
        };
        zones.create(&parent.settings().under(layer)).await;
        zones
    }
}

#[async_trait]
impl Volume for ThreeZones {
    async fn open(&self) -> Arc<dyn Storage> {
        let config = ClientConfig::new(self.volume.clone(), self.addresses.clone(), "conformance");
        Client::connect(config).await.unwrap()
    }
}

conformance_tests!(ThreeZones::start().await);

mod of_a_layered_volume {
    use super::*;
    conformance_tests!(ThreeZones::layered().await);
}
