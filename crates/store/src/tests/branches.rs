//! Clients of a volume that is laid over another one, in three zones.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dax::client::{Client, ClientConfig, create_volume, remove_volume};
use dax::error::ErrorKind;
use dax::ids::{Epoch, Generation, NodeName, VolumeName};
use dax::layer::{FILL, FILLED, Layer};
use dax::storage::{Authority, Fill, Lineage, Storage, SyncScope, VolumeSettings};

use super::TestZone;
use super::client::key;
use super::rebuild::{lose_disk, scrub, until};
use super::replicas::{connect, three_zones};

const BLOCKS: u64 = 40;

fn g(epoch: u32, number: u32) -> Generation {
    Generation {
        epoch: Epoch(epoch),
        number,
    }
}

fn contents(byte: u8) -> Bytes {
    vec![byte; 8192].into()
}

fn name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

fn config(zones: &[TestZone], volume: &str) -> ClientConfig {
    let addresses = zones.iter().map(|z| z.address.clone()).collect();
    ClientConfig::new(VolumeName::new(volume).unwrap(), addresses, "test")
}

async fn open(zones: &[TestZone], volume: &str) -> Arc<Client> {
    Client::connect(config(zones, volume)).await.unwrap()
}

async fn write(owner: &Client, blocks: std::ops::Range<u64>, generation: Generation, byte: u8) {
    for block in blocks {
        owner
            .write(key(1, block), generation, contents(byte))
            .unwrap();
    }
    owner.csync(SyncScope::Volume).await.unwrap();
    until(|| owner.replicas().iter().all(|r| r.pending_bytes == 0)).await;
}

/// The first byte of a block, as a client reads it that knows nothing of it.
async fn byte(zones: &[TestZone], volume: &str, block: u64) -> Option<u8> {
    let reader = open(zones, volume).await;
    let read = reader.read(key(1, block), Generation::MAX).await.unwrap();
    read.map(|block| block.data[0])
}

/// A parent whose owner has gone on after the image, and a child of the image.
async fn branch(zones: &[TestZone]) -> (Arc<Client>, VolumeSettings) {
    let parent = connect(zones).await;
    parent.own_epoch(&name("a")).await.unwrap();
    write(&parent, 0..BLOCKS, g(1, 1), 1).await;
    write(&parent, 0..BLOCKS / 2, g(1, 2), 2).await;
    let layer = Layer {
        parent: VolumeName::new("v").unwrap(),
        image: Lineage::up_to(g(1, 1)),
        first_epoch: parent.accepted_epoch().await.unwrap().epoch.next(),
        proof: None,
    };
    let members = parent.membership().unwrap();
    let settings = members.settings(parent.settings()).under(layer);
    create_volume(&config(zones, "child"), &settings)
        .await
        .unwrap();
    (parent, settings)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_is_read_written_scrubbed_and_removed() {
    let zones = three_zones().await;
    let (parent, settings) = branch(&zones).await;
    let child = open(&zones, "child").await;
    assert_eq!(child.settings(), &settings);
    assert_eq!(child.own_epoch(&name("b")).await.unwrap(), Epoch(2));
    for block in 0..BLOCKS {
        let read = child
            .read(key(1, block), Generation::MAX)
            .await
            .unwrap()
            .unwrap();
        assert_eq!((read.generation, read.data[0]), (g(1, 1), 1));
        let expected = child.read_expected(key(1, block), g(2, 0), read.version);
        assert_eq!(expected.await.unwrap().unwrap().version, read.version);
    }
    write(&child, 10..20, g(2, 1), 3).await;
    // Somebody in between goes on.
    write(&parent, 0..BLOCKS, g(1, 3), 4).await;
    let (mended, _) = scrub(&child).await;
    assert_eq!(mended, 0, "what is the parent's is no difference");
    let page = child.scrub(None).await.unwrap();
    assert_eq!((page.blocks, page.next), (10, None));
    assert_eq!(byte(&zones, "child", 10).await, Some(3));
    assert_eq!(byte(&zones, "child", 0).await, Some(1));
    assert_eq!(byte(&zones, "v", 0).await, Some(4));

    let relatives = async |client: &Client| {
        let (_, usage) = client.usage().await.unwrap().remove(0);
        usage
            .relatives
            .into_iter()
            .map(|one| (one.volume.to_string(), one.used_bytes))
    };
    let of_parent: Vec<_> = relatives(&parent).await.collect();
    assert_eq!(of_parent, [("child".to_owned(), 10 * 8192)]);
    let of_child: Vec<_> = relatives(&child).await.map(|(name, _)| name).collect();
    assert_eq!(of_child, ["v"]);

    let refused = remove_volume(&config(&zones, "v"), &name("c"))
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.to_string().contains("child"), "{refused}");
    let refused = create_volume(&config(&zones, "child"), parent.settings()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
    for _ in 0..2 {
        remove_volume(&config(&zones, "child"), &name("c"))
            .await
            .unwrap();
    }
    tokio::time::timeout(Duration::from_secs(20), child.fenced())
        .await
        .unwrap();
    let again = create_volume(&config(&zones, "child"), &settings).await;
    assert_eq!(
        again.unwrap_err().kind(),
        ErrorKind::Conflict,
        "a name is used once"
    );
    remove_volume(&config(&zones, "v"), &name("c"))
        .await
        .unwrap();
}

// hazard: LAYER-8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_childs_rebuild_copies_its_own_blocks_and_the_parents_rebuild_the_others() {
    let mut zones = three_zones().await;
    let (parent, _) = branch(&zones).await;
    let child = open(&zones, "child").await;
    child.own_epoch(&name("b")).await.unwrap();
    write(&child, 0..10, g(2, 1), 3).await;
    let lost = zones.remove(0);
    zones.insert(0, lose_disk(lost));
    let joined = |owner: &Client| owner.replicas().iter().any(|r| r.rebuilding);
    until(|| joined(&child) && joined(&parent)).await;
    let is_changing = |owner: &Client| {
        let up = owner.replicas().iter().all(|r| r.up && !r.rebuilding);
        !up || owner.membership().unwrap().change.is_some()
    };
    for _ in 0..5 {
        scrub(&child).await;
        assert!(is_changing(&child), "before the parent");
    }
    // Reads go on, from those that have both.
    assert_eq!(byte(&zones, "child", 30).await, Some(1));
    while is_changing(&parent) {
        scrub(&parent).await;
    }
    while is_changing(&child) {
        scrub(&child).await;
    }
    let parents = BLOCKS as usize + BLOCKS as usize / 2;
    until(|| zones[0].zone.stored_slots() == 10 + parents).await;
    // The rebuilt zone and one other make the quorum now.
    let last = zones.remove(2);
    last.zone.stop().unwrap();
    for (block, expected) in [(0, 3), (15, 1), (30, 1)] {
        assert_eq!(byte(&zones, "child", block).await, Some(expected));
    }
}

// hazard: LAYER-10, LAYER-12, LAYER-13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filled_child_outlives_its_parent_and_a_disk() {
    let mut zones = three_zones().await;
    let (parent, _) = branch(&zones).await;
    let child = open(&zones, "child").await;
    child.own_epoch(&name("b")).await.unwrap();
    write(&child, 0..10, g(2, 1), 3).await;
    let put = async |record| {
        let value = Bytes::from_static(b"{}");
        child
            .put_record(record, value, Authority::Node)
            .await
            .unwrap();
    };
    put(FILL).await;
    // The child is written meanwhile.
    write(&child, 5..15, g(2, 2), 4).await;
    let all = async |is: fn(&Fill) -> bool| {
        let usage = child.usage().await.unwrap();
        usage.len() == 3
            && usage
                .iter()
                .all(|(_, usage)| usage.fill.is_some_and(|f| is(&f)))
    };
    while !all(|fill| fill.done).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (mended, _) = scrub(&child).await;
    assert_eq!(mended, 0, "all zones have the same");
    let refused = remove_volume(&config(&zones, "v"), &name("c")).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
    put(FILLED).await;
    while !all(|fill| fill.ended).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    remove_volume(&config(&zones, "v"), &name("c"))
        .await
        .unwrap();
    drop(parent);
    let lost = zones.remove(0);
    zones.insert(0, lose_disk(lost));
    let is_changing = |owner: &Client| {
        let up = owner.replicas().iter().all(|r| r.up && !r.rebuilding);
        !up || owner.membership().unwrap().change.is_some()
    };
    until(|| child.replicas().iter().any(|r| r.rebuilding)).await;
    while is_changing(&child) {
        scrub(&child).await;
    }
    let joined = child.usage().await.unwrap();
    assert!(
        joined.iter().all(|(_, usage)| usage.fill.unwrap().ended),
        "{joined:?}"
    );
    // The rebuilt zone and one other make the quorum now.
    let last = zones.remove(2);
    last.zone.stop().unwrap();
    for (block, expected) in [(0, 3), (7, 4), (12, 4), (30, 1)] {
        assert_eq!(byte(&zones, "child", block).await, Some(expected));
    }
    assert_eq!(byte(&zones, "child", BLOCKS).await, None);
}
