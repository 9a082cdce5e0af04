use super::*;

const KEY: BlockKey = BlockKey {
    file: FileId(9),
    block: BlockIndex(0),
};

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; 8192])
}

async fn writer(cluster: &Arc<MemoryCluster>) -> Arc<MemoryStorage> {
    let client = cluster.client();
    client
        .own_epoch(&NodeName::new("a").unwrap())
        .await
        .unwrap();
    client
}

async fn first_byte(client: &MemoryStorage) -> Option<u8> {
    let block = client.read(KEY, Generation::MAX).await.unwrap();
    block.map(|b| b.data[0])
}

#[tokio::test]
async fn a_crash_keeps_what_the_test_chooses() {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let a = writer(&cluster).await;
    a.write(KEY, Generation::SINGLE, block(1)).unwrap();
    a.csync(SyncScope::Volume).await.unwrap();
    let second = a.write(KEY, Generation::SINGLE, block(2)).unwrap();
    a.write(KEY, Generation::SINGLE, block(3)).unwrap();
    a.crash(|w| w.version == second);
    assert_eq!(first_byte(&cluster.client()).await, Some(2));
    assert!(a.read(KEY, Generation::MAX).await.is_err());
}

#[tokio::test]
async fn held_and_full_syncs_wait_and_then_finish() {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let a = writer(&cluster).await;
    for knob in [MemoryCluster::hold_syncs, MemoryCluster::set_full] {
        a.write(KEY, Generation::SINGLE, block(1)).unwrap();
        knob(&cluster, true);
        let syncing = {
            let a = Arc::clone(&a);
            tokio::spawn(async move { a.csync(SyncScope::Volume).await })
        };
        tokio::task::yield_now().await;
        assert_eq!(a.unsynced().len(), 1);
        assert!(!syncing.is_finished());
        knob(&cluster, false);
        syncing.await.unwrap().unwrap();
        assert!(a.unsynced().is_empty());
    }
}

#[tokio::test]
async fn a_client_cut_off_learns_of_the_fence_when_it_returns() {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let a = writer(&cluster).await;
    a.cut_off(true);
    let b = writer(&cluster).await;
    a.write(KEY, Generation::SINGLE, block(1)).unwrap();
    let syncing = {
        let a = Arc::clone(&a);
        tokio::spawn(async move { a.csync(SyncScope::Volume).await })
    };
    tokio::task::yield_now().await;
    assert!(!syncing.is_finished());
    a.cut_off(false);
    assert!(syncing.await.unwrap().unwrap_err().is_fenced());
    a.fenced().await;
    assert_eq!(first_byte(&b).await, None);
}

#[tokio::test]
async fn a_writer_can_be_fenced_between_two_writes() {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let a = writer(&cluster).await;
    cluster.fence_after_writes(Some(1));
    a.write(KEY, Generation::SINGLE, block(1)).unwrap();
    let refused = a.write(KEY, Generation::SINGLE, block(2));
    assert!(refused.unwrap_err().is_fenced());
    let b = writer(&cluster).await;
    b.write(KEY, Generation::SINGLE, block(3)).unwrap();
}

#[tokio::test]
async fn back_pressure_makes_room_by_itself() {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    cluster.set_pending_bytes_max(8192);
    let a = writer(&cluster).await;
    a.write(KEY, Generation::SINGLE, block(1)).unwrap();
    a.write_room(8192).await.unwrap();
    assert!(a.unsynced().is_empty());
    assert!(cluster.durable(KEY, Generation::MAX).is_some());
}

struct InProcess(Arc<MemoryCluster>);

#[async_trait]
impl crate::conformance::Volume for InProcess {
    async fn open(&self) -> Arc<dyn Storage> {
        self.0.client()
    }
}

mod conformance {
    use super::*;
    crate::conformance_tests!(InProcess(MemoryCluster::new(VolumeSettings::default())));
}

async fn child() -> Arc<MemoryCluster> {
    let parent = MemoryCluster::new(VolumeSettings::default());
    let image = crate::conformance::fill_around_an_image(&*parent.client()).await;
    MemoryCluster::over(&parent, VolumeName::new("parent").unwrap(), image)
}

mod conformance_of_a_child {
    use super::*;
    crate::conformance_tests!(InProcess(child().await));
}

// hazard: LAYER-2
#[tokio::test]
async fn a_child_shows_the_image_below_what_it_has() {
    let g = |epoch, number| Generation {
        epoch: Epoch(epoch),
        number,
    };
    let parent = MemoryCluster::new(VolumeSettings::default());
    let a = writer(&parent).await;
    for (generation, byte) in [(g(1, 1), 1), (g(1, 2), 2), (g(1, 3), 3)] {
        a.write(KEY, generation, block(byte)).unwrap();
    }
    a.csync(SyncScope::Volume).await.unwrap();
    let name = |name: &str| VolumeName::new(name).unwrap();
    let image = Lineage::up_to(g(1, 2));
    let child = MemoryCluster::over(&parent, name("parent"), image.clone());
    let b = writer(&child).await;
    assert_eq!(b.epoch(), Some(Epoch(2)));
    assert_eq!(first_byte(&b).await, Some(2));
    let image = image.continued(g(2, 0)).truncated(g(2, 1));
    let grandchild = MemoryCluster::over(&child, name("child"), image);
    b.write(KEY, g(2, 2), block(4)).unwrap();
    b.csync(SyncScope::Volume).await.unwrap();
    assert_eq!(first_byte(&b).await, Some(4));
    assert_eq!(b.read(KEY, g(1, 1)).await.unwrap().unwrap().data[0], 1);
    let c = writer(&grandchild).await;
    assert_eq!(first_byte(&c).await, Some(2));
    assert!(c.read(KEY, Generation::SINGLE).await.unwrap().is_none());
    assert_eq!(grandchild.stored_versions(), 0);
}
