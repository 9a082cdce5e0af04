//! A zone that lost its disk, and one with damaged blocks, are mended by a scrub.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dax::client::{Client, ClientConfig, create_volume};
use dax::credentials::Nonce;
use dax::error::ErrorKind;
use dax::ids::{Generation, NodeName, ReplicaId, VolumeName};
use dax::storage::{Authority, Storage, SyncScope, VolumeSettings};
use dax::wire::{Request, Response};

use super::TestZone;
use super::client::{self, key, kind};
use super::replicas::{connect, damage, three_zones};

const BLOCKS: u64 = 3000;

fn contents(block: u64) -> Bytes {
    let mut data = vec![block as u8; 8192];
    data[..8].copy_from_slice(&block.to_be_bytes());
    data.into()
}

async fn write_all(owner: &Client) {
    for block in 0..BLOCKS {
        owner.write_room(8192).await.unwrap();
        owner
            .write(key(1, block), Generation::SINGLE, contents(block))
            .unwrap();
    }
    owner.csync(SyncScope::Volume).await.unwrap();
    until(|| owner.replicas().iter().all(|r| r.pending_bytes == 0)).await;
}

pub(super) async fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn owner(zones: &[TestZone], name: &str) -> Arc<Client> {
    let owner = connect(zones).await;
    let name = NodeName::new(name).unwrap();
    owner.own_epoch(&name).await.unwrap();
    owner
}

/// True if the volume's members are changing.
fn changes(owner: &Client) -> bool {
    owner.membership().is_some_and(|m| m.change.is_some())
}

fn hello() -> Request {
    Request::Hello {
        protocol: dax::wire::PROTOCOL,
        volume: VolumeName::new("v").unwrap(),
        client: "test".into(),
        zone: None,
        nonce: Nonce([1; 32]),
    }
}

/// A scrub from the beginning to the end; how many copies it mended.
pub(super) async fn scrub(owner: &Client) -> (usize, Vec<ReplicaId>) {
    let (mut after, mut mended) = (None, 0);
    loop {
        let page = owner.scrub(after).await.unwrap();
        mended += page.differences.len();
        owner.mend(page.differences).await.unwrap();
        after = page.next;
        if after.is_none() {
            return (mended, owner.end_scrub().await.unwrap());
        }
    }
}

/// Scrubs as an agent does, again and again while zones are left: one that is being greeted, or that
/// a busy disk kept from answering in time, takes part in the next. How many copies were mended.
async fn scrub_until(owner: &Client, mut all: impl FnMut(usize, &[ReplicaId]) -> bool) -> usize {
    let mut mended_in_all = 0;
    loop {
        let (mended, rebuilt) = scrub(owner).await;
        mended_in_all += mended;
        if all(mended_in_all, &rebuilt) {
            return mended_in_all;
        }
    }
}

/// Empties the zone's disk and starts it again at the same address.
pub(super) fn lose_disk(zone: TestZone) -> TestZone {
    let TestZone { zone, dir, .. } = zone;
    zone.stop().unwrap();
    drop(zone);
    std::fs::remove_dir_all(dir.path().join("zone")).unwrap();
    let (zone, address) = super::open(&dir, super::config());
    TestZone { zone, address, dir }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zone_that_lost_its_disk_is_rebuilt_and_counts_again() {
    let mut zones = three_zones().await;
    let owner = owner(&zones, "a").await;
    write_all(&owner).await;
    let put = owner.put_record("r", Bytes::from("x"), Authority::Owner);
    put.await.unwrap();

    let lost = zones.remove(0);
    zones.insert(0, lose_disk(lost));
    until(|| owner.replicas().iter().any(|r| r.rebuilding)).await;
    assert!(changes(&owner), "another store takes the lost one's place");
    // It takes writes, but answers nothing that would count.
    let mut stranger = client::Client::silent(&zones[0].address);
    let welcome = stranger.ask(hello());
    assert!(matches!(
        welcome,
        Response::Welcome {
            rebuilding: true,
            ..
        }
    ));
    for question in [
        Request::Epoch,
        Request::GetRecord { name: "r".into() },
        Request::Read {
            key: key(1, 1),
            up_to: Generation::MAX,
        },
    ] {
        let answer = stranger.ask(question);
        assert_eq!(kind(&answer), Some(ErrorKind::Unavailable), "{answer:?}");
    }
    owner
        .write(key(1, BLOCKS), Generation::SINGLE, contents(BLOCKS))
        .unwrap();
    owner.csync(SyncScope::Volume).await.unwrap();

    let mended = scrub_until(&owner, |_, _| !changes(&owner)).await;
    assert!(mended as u64 >= BLOCKS - 1, "{mended}");
    assert_eq!(scrub(&owner).await.0, 0, "nothing is left to mend");
    drop(owner);

    // Without zone 1 every quorum needs the rebuilt one; it is remembered across a restart.
    let first = zones.remove(0).restart();
    zones.insert(0, first);
    zones[1].zone.stop().unwrap();
    let next = self::owner(&zones, "b").await;
    for block in 0..=BLOCKS {
        let read = next.read_promote(key(1, block)).await.unwrap();
        assert_eq!(read.expect("synced").data, contents(block), "{block}");
    }
    let record = next.get_record("r").await.unwrap();
    assert_eq!(record, Some(Bytes::from("x")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scrub_mends_damaged_blocks_where_they_are() {
    let mut zones = three_zones().await;
    let first = owner(&zones, "a").await;
    write_all(&first).await;
    drop(first);
    for damaged in 0..3 {
        let zone = zones.remove(damaged);
        let from = damaged as u64 * 100;
        zones.insert(damaged, damage(zone, from..from + 50));
    }
    let owner = owner(&zones, "b").await;
    scrub_until(&owner, |mended, _| mended >= 150).await;
    assert!(owner.counters().copies_damaged >= 150);
    assert_eq!(scrub(&owner).await.0, 0, "all of it is mended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creating_a_volume_again_does_not_make_a_blank_zone_count() {
    let mut zones = three_zones().await;
    let lost = zones.remove(0);
    zones.insert(0, lose_disk(lost));
    let addresses: Vec<String> = zones.iter().map(|z| z.address.clone()).collect();
    let volume = VolumeName::new("v").unwrap();
    let config = ClientConfig::new(volume, addresses, "test");
    create_volume(&config, &VolumeSettings::default())
        .await
        .unwrap();
    let mut stranger = client::Client::silent(&zones[0].address);
    let counts = |answer: &Response| match answer {
        Response::Welcome { rebuilding, .. } => !rebuilding,
        // Two zones that know it were enough; it was not told yet.
        other => !matches!(other, Response::NoVolume { .. }),
    };
    assert!(!counts(&stranger.ask(hello())));
}
