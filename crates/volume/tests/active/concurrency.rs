//! Requests at the same time: read-modify-write of one block, and cuts among writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dax::ids::{BlockIndex, BlockKey, FileId, Generation};
use dax::storage::Storage;
use futures_util::future::try_join_all;
use volume::active::NoObserver;
use volume::latest::Latest;
use volume::view::{AttrChange, NewInode, Timestamp, View};

use crate::common::{BLOCK, Life, Volume};
use crate::yielding::Yielding;

const NOW: Timestamp = Timestamp(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partial_writes_of_one_block_all_survive() {
    let volume = Volume::format().await;
    let life = Arc::new(volume.open().await);
    let ino = life.create("f", NewInode::File).ino;
    let mut writers = tokio::task::JoinSet::new();
    for i in 0..64u64 {
        let life = life.clone();
        writers.spawn(async move {
            // Whole blocks of the neighbour in between.
            life.write(ino, BLOCK as u64, vec![9; BLOCK]).await;
            life.write(ino, i * 8, (i + 1).to_le_bytes()).await;
        });
    }
    writers.join_all().await;
    let contents = life.contents(ino).await;
    for i in 0..64 {
        assert_eq!(contents[i * 8..][..8], (i as u64 + 1).to_le_bytes());
    }
    assert_eq!(contents[BLOCK..], [9; BLOCK]);
}

/// A new owner opens the volume on a storage that makes it wait.
async fn open_yielding(volume: &Volume) -> (Arc<Yielding>, Life) {
    let owner = volume.owner().await;
    let storage = Yielding::over(owner.clone());
    let below: Arc<dyn Storage> = storage.clone();
    let latest = Latest::recover(below, volume.now()).await.unwrap();
    let life = volume.open_latest(owner, latest, Arc::new(NoObserver), None);
    (storage, life.await)
}

/// Every read of old contents lets the other writers run before it returns.
#[tokio::test]
async fn partial_writes_of_one_block_are_all_kept() {
    let volume = Volume::format().await;
    let before = volume.open().await;
    before.create("wal", NewInode::Directory);
    let ino = before.create("wal/f", NewInode::File).ino;
    before.write(ino, 0, vec![9; 2 * BLOCK]).await;
    before.view.sync_all().await.unwrap();
    // Nothing is cached: the first old contents come from the storage.
    let (_, life) = open_yielding(&volume).await;
    let life = Arc::new(life);
    let mut writers = tokio::task::JoinSet::new();
    for slot in 0..8 {
        let life = life.clone();
        writers.spawn(async move {
            life.write(ino, slot * 8, [slot as u8; 8]).await;
            life.write(ino, BLOCK as u64 - 4, [7; 8]).await;
        });
    }
    writers.join_all().await;
    let contents = life.contents(ino).await;
    for slot in 0..8 {
        assert_eq!(contents[slot * 8..][..8], [slot as u8; 8]);
    }
    assert_eq!(contents[BLOCK - 4..][..8], [7; 8]);
    assert_eq!(contents[BLOCK + 4..], [9; BLOCK - 4]);
}

/// A commit waited until the pages of others were packed: both need the lock that orders all writes.
#[tokio::test]
async fn packing_blocks_no_other_writer() {
    let volume = Volume::format().await;
    let (storage, life) = open_yielding(&volume).await;
    let life = Arc::new(life);
    let ino = life.create("f", NewInode::File).ino;
    let packed = Arc::new(AtomicBool::new(false));
    let (opened, seen) = (life.clone(), packed.clone());
    let others_go_on = move || {
        let (life, (done, waits)) = (opened.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || done.send(life.view.namespace().inodes().count()));
        waits
            .recv_timeout(std::time::Duration::from_secs(10))
            .expect("the lock is free while a block is packed");
        seen.store(true, Ordering::Relaxed);
    };
    *storage.packing.lock().unwrap() = Some(Box::new(others_go_on));
    life.write(ino, 0, vec![7; 2 * BLOCK]).await;
    assert!(packed.load(Ordering::Relaxed), "nothing was packed");
    *storage.packing.lock().unwrap() = None;
    assert_eq!(life.contents(ino).await, [7; 2 * BLOCK]);
}

/// Each writer writes a number to its file `a`, then the same to `b`: at any cut `a` is at most one
/// ahead of `b`, never behind.
// hazard: N10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_is_one_point_of_all_writers() {
    let volume = Volume::format().await;
    let life = Arc::new(volume.open().await);
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = tokio::task::JoinSet::new();
    let mut pairs = Vec::new();
    for writer in 0..4 {
        let a = life.create(&format!("a{writer}"), NewInode::File).ino;
        let b = life.create(&format!("b{writer}"), NewInode::File).ino;
        pairs.push((FileId(a.0), FileId(b.0)));
        let (life, stop) = (life.clone(), stop.clone());
        writers.spawn(async move {
            let mut number = 1u64;
            while !stop.load(Ordering::Relaxed) {
                for ino in [a, b] {
                    let mut block = vec![0; BLOCK];
                    block[..8].copy_from_slice(&number.to_le_bytes());
                    life.view.write(ino, 0, block.into(), NOW).await.unwrap();
                }
                number += 1;
                tokio::task::yield_now().await;
            }
        });
    }
    let mut cuts = Vec::new();
    for _ in 0..30 {
        tokio::task::yield_now().await;
        cuts.push(life.view.cut().await.unwrap());
    }
    stop.store(true, Ordering::Relaxed);
    writers.join_all().await;
    for cut in &cuts {
        for (a, b) in &pairs {
            let mut numbers = [0, 0];
            for (number, file) in numbers.iter_mut().zip([a, b]) {
                if let Some(data) = life
                    .view
                    .read_image(cut, *file, BlockIndex(0))
                    .await
                    .unwrap()
                {
                    *number = u64::from_le_bytes(data[..8].try_into().unwrap());
                }
            }
            assert!(
                numbers[0] == numbers[1] || numbers[0] == numbers[1] + 1,
                "{numbers:?}"
            );
        }
    }
}

// hazard: N10
#[tokio::test]
async fn a_cut_waits_for_a_write_received_earlier_that_back_pressure_holds() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let ino = life.create("f", NewInode::File).ino;
    life.write(ino, 0, vec![1; BLOCK]).await;
    life.view.sync_all().await.unwrap();
    volume.cluster.hold_syncs(true);
    volume.cluster.set_pending_bytes_max(BLOCK);
    life.write(ino, 0, vec![2; BLOCK]).await;
    // Received, not even polled: still before the cut.
    let held = life.view.write(ino, 0, vec![3; BLOCK].into(), NOW);
    let cut = {
        let view = life.view.clone();
        tokio::spawn(async move { view.cut().await })
    };
    tokio::task::yield_now().await;
    assert!(!cut.is_finished());
    volume.cluster.hold_syncs(false);
    held.await.unwrap();
    let cut = cut.await.unwrap().unwrap();
    life.write(ino, 0, vec![4; BLOCK]).await;
    let image = life
        .view
        .read_image(&cut, FileId(ino.0), BlockIndex(0))
        .await
        .unwrap();
    assert_eq!(image.unwrap()[..], [3; BLOCK]);
}

/// A promotion copies the log segment that it ends in. The kernel reads it ahead, many blocks in one
/// request and several requests at once, and so does the view: the two must not multiply. They did, and
/// a takeover took 15 seconds.
#[tokio::test]
async fn old_log_is_read_about_once_however_it_is_asked_for() {
    const BLOCKS: usize = 256;
    let volume = Volume::format().await;
    let first = volume.open().await;
    first.create("wal", NewInode::Directory);
    let segment = first.create("wal/1", NewInode::File).ino;
    for block in 0..BLOCKS {
        let data = vec![block as u8; BLOCK];
        first.write(segment, (block * BLOCK) as u64, data).await;
    }
    first.view.sync_all().await.unwrap();
    drop(first);

    let (storage, life) = open_yielding(&volume).await;
    storage.promotions.store(0, Ordering::Relaxed);
    let request = 32 * BLOCK;
    let reads = (0..BLOCKS * BLOCK).step_by(request).map(|offset| {
        let view = &life.view;
        async move { view.read(segment, offset as u64, request as u32).await }
    });
    let read = try_join_all(reads).await.unwrap();
    for (block, data) in read.concat().chunks(BLOCK).enumerate() {
        assert!(
            data.iter().all(|byte| *byte == block as u8),
            "block {block}"
        );
    }
    let promoted = storage.promotions.load(Ordering::Relaxed);
    assert!(
        promoted <= 2 * BLOCKS as u64,
        "{promoted} reads of {BLOCKS} blocks"
    );
}

/// A reload of the configuration gives up after a few seconds. What it had taken out of the journal's memory to write was gone, and later
/// syncs said that it was durable.
// hazard: PAGE-13
#[tokio::test]
async fn a_sync_that_is_given_up_takes_nothing_out_of_the_journal() {
    const FILES: usize = 400;
    let volume = Volume::format().await;
    let (storage, life) = open_yielding(&volume).await;
    for number in 0..FILES {
        life.create(&format!("f{number}"), NewInode::File);
    }
    storage.is_full.send_replace(true);
    let sync = tokio::time::timeout(std::time::Duration::from_millis(50), life.view.sync_all());
    sync.await.unwrap_err();
    storage.is_full.send_replace(false);
    life.view.sync_all().await.unwrap();
    drop(life);
    let next = volume.open().await;
    for number in 0..FILES {
        assert!(
            next.find(&format!("f{number}")).is_some(),
            "f{number} is gone"
        );
    }
}

/// Blocks share counters of changes, so the change of any other block may look like one of the block that is settled.
// hazard: PAGE-10
#[tokio::test]
async fn a_block_is_settled_although_others_are_written_meanwhile() {
    const MANY: usize = 4096;
    let volume = Volume::format().await;
    let before = volume.open().await;
    before.create("conf", NewInode::Directory);
    let file = before.create("conf/f", NewInode::File).ino;
    let other = before.create("conf/g", NewInode::File).ino;
    before.write(file, 0, vec![1; BLOCK]).await;
    let cut = AttrChange {
        size: Some(0),
        ..AttrChange::default()
    };
    before.view.set_attr(file, cut, Timestamp(3)).await.unwrap();
    before.write(file, 0, vec![2; BLOCK]).await;
    before.view.sync_all().await.unwrap();

    let (storage, life) = open_yielding(&volume).await;
    let read = life.view.read(file, 0, BLOCK as u32);
    let (read, ()) = tokio::join!(read, life.write(other, 0, vec![3; MANY * BLOCK]));
    assert_eq!(read.unwrap()[..], [2; BLOCK]);
    let key = BlockKey::new(FileId(file.0), 0);
    let stored = storage.memory.read(key, Generation::SINGLE).await.unwrap();
    assert_eq!(stored.unwrap().version.epoch, life.view.epoch());
}
