//! What the replication client makes of a zone's troubles.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dax::client::{Client, ClientConfig, create_volume};
use dax::ids::{Generation, NodeName, VolumeName};
use dax::storage::{ReplicaStatus, Storage, SyncScope, VolumeSettings};

use super::client::key;
use super::damage::flip;
use super::{TestZone, open};
use crate::engine::DiskEngine;
use crate::keys::{Slot, VolumeId};
use crate::{Emulated, Network, StoreConfig};

pub(super) async fn connect(zones: &[TestZone]) -> Arc<Client> {
    let addresses = zones.iter().map(|z| z.address.clone()).collect();
    let volume = VolumeName::new("v").unwrap();
    let config = ClientConfig::new(volume, addresses, "test");
    Client::connect(config).await.unwrap()
}

pub(super) async fn three_zones() -> Vec<TestZone> {
    let zones: Vec<TestZone> = (0..3).map(|_| TestZone::new()).collect();
    create(&zones).await;
    zones
}

async fn create(zones: &[TestZone]) {
    let addresses: Vec<String> = zones.iter().map(|z| z.address.clone()).collect();
    let volume = VolumeName::new("v").unwrap();
    let config = ClientConfig::new(volume, addresses, "test");
    create_volume(&config, &VolumeSettings::default())
        .await
        .unwrap();
}

/// Stops a zone, flips a bit in every given block, and starts it again.
pub(super) fn damage(zone: TestZone, blocks: std::ops::Range<u64>) -> TestZone {
    let TestZone { zone, dir, .. } = zone;
    zone.stop().unwrap();
    drop(zone);
    let engine = DiskEngine::open(&dir.path().join("zone"), 1 << 20).unwrap();
    for block in blocks {
        let slot = Slot {
            volume: VolumeId(1),
            key: key(1, block),
            generation: Generation::SINGLE,
        };
        flip(&engine, &slot);
    }
    drop(engine);
    let (zone, address) = open(&dir, super::config());
    TestZone { zone, address, dir }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_damaged_in_one_zone_is_read_from_another() {
    let mut zones = three_zones().await;
    let writer = connect(&zones).await;
    writer
        .own_epoch(&NodeName::new("a").unwrap())
        .await
        .unwrap();
    let contents = |block: u64| bytes::Bytes::from(vec![block as u8; 8192]);
    for block in 0..20 {
        writer
            .write(key(1, block), Generation::SINGLE, contents(block))
            .unwrap();
    }
    // On all three, so that each can be damaged: a sync asks for two only.
    writer.csync(SyncScope::Volume).await.unwrap();
    while writer
        .replicas()
        .iter()
        .any(|replica| replica.pending_bytes > 0)
    {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    drop(writer);
    for damaged in 0..3 {
        let zone = zones.remove(damaged);
        let first = damaged as u64 * 6;
        zones.insert(damaged, damage(zone, first..first + 6));
    }
    let reader = connect(&zones).await;
    for round in 0..2 {
        for block in 0..20 {
            let read = reader.read(key(1, block), Generation::MAX).await.unwrap();
            let read = read.expect("it was synced");
            assert_eq!(read.data, contents(block), "block {block}, round {round}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_zone_does_not_stop_the_others() {
    let zones = three_zones().await;
    let writer = connect(&zones).await;
    writer
        .own_epoch(&NodeName::new("a").unwrap())
        .await
        .unwrap();
    zones[1].zone.set_reserve_bytes(u64::MAX);
    let contents = bytes::Bytes::from(vec![7; 8192]);
    for block in 0..20 {
        let block = key(1, block);
        writer
            .write(block, Generation::SINGLE, contents.clone())
            .unwrap();
        writer.csync(SyncScope::Volume).await.unwrap();
    }
    // Now a second zone is full as well: syncs wait, and go on when there is room again.
    zones[2].zone.set_reserve_bytes(u64::MAX);
    tokio::time::sleep(std::time::Duration::from_millis(150)).await;
    writer
        .write(key(1, 99), Generation::SINGLE, contents.clone())
        .unwrap();
    let waiting = tokio::spawn({
        let writer = writer.clone();
        async move { writer.csync(SyncScope::Volume).await }
    });
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "one copy is not durable");
    zones[2].zone.set_reserve_bytes(0);
    let synced = tokio::time::timeout(std::time::Duration::from_secs(20), waiting);
    synced.await.expect("it goes on").unwrap().unwrap();
}

/// One way, to each of three zones.
const AWAY_MS: [u64; 3] = [120, 40, 220];

/// Three zones at different distances from clients at home.
async fn three_distant_zones(dir: &tempfile::TempDir) -> Vec<TestZone> {
    let file = dir.path().join("network.toml");
    let mut network = Network::default();
    for (zone, away) in AWAY_MS.iter().enumerate() {
        let link = network.link_mut("home", &zone.to_string());
        link.latency = Duration::from_millis(*away);
    }
    network.write(&file).unwrap();
    let start = |zone: usize| {
        TestZone::with(StoreConfig {
            network: Some(Emulated {
                file: file.clone(),
                zone: zone.to_string(),
            }),
            ..super::config()
        })
    };
    let zones: Vec<TestZone> = (0..3).map(start).collect();
    create(&zones).await;
    zones
}

/// Reads blocks one after the other; how many each replica was asked for.
async fn count_reads(client: &Client, blocks: u64) -> HashMap<u8, u64> {
    let reads = async || -> HashMap<u8, u64> {
        let usage = client.usage().await.unwrap();
        let reads = usage
            .iter()
            .map(|(r, usage)| (r.0, usage.since_start.reads));
        reads.collect()
    };
    let before = reads().await;
    let singles = client.counters().reads_one;
    for block in 0..blocks {
        let read = client.read(key(1, block), Generation::SINGLE).await;
        assert!(read.unwrap().is_some());
    }
    assert_eq!(
        client.counters().reads_one - singles,
        blocks,
        "by one replica"
    );
    let after = reads().await;
    after.iter().map(|(r, n)| (*r, n - before[r])).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_reads_go_to_the_nearest_replica_and_to_the_next_when_it_dies() {
    const BLOCKS: u64 = 10;
    let dir = tempfile::tempdir().unwrap();
    let zones = three_distant_zones(&dir).await;
    let addresses = zones.iter().map(|z| z.address.clone()).collect();
    let mut config = ClientConfig::new(VolumeName::new("v").unwrap(), addresses, "test");
    config.zone = Some("home".into());
    let client = Client::connect(config).await.unwrap();
    client
        .own_epoch(&NodeName::new("a").unwrap())
        .await
        .unwrap();
    for block in 0..BLOCKS {
        let data = bytes::Bytes::from(vec![7; 8192]);
        client
            .write(key(1, block), Generation::SINGLE, data)
            .unwrap();
    }
    client.csync(SyncScope::Volume).await.unwrap();
    // All have everything, and it is known how far away each is.
    let known = |r: &ReplicaStatus| r.up && r.pending_bytes == 0 && r.round_trip.is_some();
    while !client.replicas().iter().all(known) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for (replica, away) in client.replicas().iter().zip(AWAY_MS) {
        let round_trip = replica.round_trip.unwrap();
        assert!(round_trip >= Duration::from_millis(2 * away), "{replica:?}");
    }
    // A machine that stalls may make the client ask a second replica now and then.
    let reads = count_reads(&client, BLOCKS).await;
    assert!(reads[&1] >= BLOCKS, "the nearest: {reads:?}");
    assert!(reads[&0] + reads[&2] < BLOCKS / 2, "{reads:?}");

    zones[1].zone.stop().unwrap();
    while client.replicas()[1].up {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let reads = count_reads(&client, BLOCKS).await;
    assert!(!reads.contains_key(&1));
    assert!(reads[&0] >= BLOCKS, "the next: {reads:?}");
    assert!(reads[&2] < BLOCKS / 2, "{reads:?}");
}
