//! Which store a zone is: found out by whoever counts it, whatever it is reached as.

use std::time::Duration;

use dax::client::{Client, ClientConfig, create_volume};
use dax::credentials::Nonce;
use dax::error::ErrorKind;
use dax::ids::{NodeName, StoreId, VolumeName};
use dax::storage::{Storage, VolumeSettings};
use dax::wire::{Request, Response};

use super::client;
use super::replicas::three_zones;
use super::{TestZone, config};
use crate::Zone;
use crate::engine::{Batch, DiskEngine, Engine};

fn id_of(address: &str) -> StoreId {
    let answer = client::Client::silent(address).hello("some", Nonce([1; 32]));
    match answer {
        Response::NoVolume { store } => store,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_store_keeps_its_id_and_no_other_has_it() {
    let zone = TestZone::new();
    let id = id_of(&zone.address);
    assert_ne!(id_of(&TestZone::new().address), id);
    let zone = zone.restart();
    assert_eq!(id_of(&zone.address), id);
    drop(client::Client::volume(&zone.address, "v"));
    let welcome = client::Client::silent(&zone.address).hello("v", Nonce([2; 32]));
    assert!(matches!(welcome, Response::Welcome { store, .. } if store == Some(id)));
}

#[test]
fn a_directory_of_the_version_before_gets_an_id_at_its_first_start() {
    let dir = tempfile::tempdir().unwrap();
    let zone = Zone::open(dir.path().join("zone"), config()).unwrap();
    zone.stop().unwrap();
    drop(zone);
    let engine = DiskEngine::open(&dir.path().join("zone"), 1 << 20).unwrap();
    let mut batch = Batch::default();
    batch.remove_meta(b"id");
    engine.commit(batch).unwrap();
    drop(engine);
    let (zone, address) = super::open(&dir, config());
    let zone = TestZone { zone, address, dir };
    let id = id_of(&zone.address);
    assert_eq!(id_of(&zone.restart().address), id);
}

#[test]
fn a_client_of_the_version_before_is_answered_as_before() {
    let zone = TestZone::new();
    let hello = |volume: &str| Request::Hello {
        protocol: 1,
        volume: VolumeName::new(volume).unwrap(),
        client: "old".into(),
        zone: None,
        nonce: Nonce([1; 32]),
    };
    let answer = client::Client::silent(&zone.address).ask(hello("v"));
    assert_eq!(client::kind(&answer), Some(ErrorKind::NotFound));
    drop(client::Client::volume(&zone.address, "v"));
    let answer = client::Client::silent(&zone.address).ask(hello("v"));
    assert!(matches!(answer, Response::Welcome { protocol: 1, .. }));
}

/// One server under two addresses: k = 2 would be one disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_store_under_two_addresses_counts_once() {
    let zones = three_zones().await;
    let other = zones[0].dir.path().join("other");
    let other = format!("unix:{}", other.display());
    let other = zones[0].zone.serve(&other).unwrap();
    let config = |volume: &str| {
        let addresses = vec![
            zones[0].address.clone(),
            other.clone(),
            zones[1].address.clone(),
        ];
        ClientConfig::new(VolumeName::new(volume).unwrap(), addresses, "test")
    };
    // A volume is not made so.
    let made = create_volume(&config("w"), &VolumeSettings::default()).await;
    let error = made.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("are one store"), "{error}");

    // Whoever uses one so counts two zones, and says what is wrong.
    let client = Client::connect(config("v")).await.unwrap();
    let up = || client.replicas().iter().filter(|r| r.up).count();
    let trouble = || client.replicas().into_iter().find_map(|r| r.trouble);
    while up() < 2 || trouble().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let trouble = trouble().unwrap();
    assert!(trouble.contains("are one store"), "{trouble}");
    zones[1].zone.stop().unwrap();
    let owner = NodeName::new("a").unwrap();
    let own = client.own_epoch(&owner);
    let owned = tokio::time::timeout(Duration::from_millis(300), own).await;
    assert!(owned.is_err(), "one store is no majority of three");
}
