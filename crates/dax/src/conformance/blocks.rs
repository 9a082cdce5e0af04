//! Writing, syncing and reading blocks.

use std::sync::Arc;

use bytes::Bytes;

use super::{Volume, contents, generation, key, latest, owner, read, sync, write};
use crate::error::ErrorKind;
use crate::ids::{FileId, Generation, Version};
use crate::storage::{Authority, SyncScope};

/// A client sees its own writes before they are synced.
pub async fn own_writes_are_seen_at_once(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    write(&*a, key(9, 0), Generation::SINGLE, 1);
    assert_eq!(latest(&*a, key(9, 0)).await, Some(1));
    write(&*a, key(9, 0), Generation::SINGLE, 2);
    assert_eq!(latest(&*a, key(9, 0)).await, Some(2));
    assert_eq!(a.counters().writes, 2);
}

/// After a sync, every client sees a write.
pub async fn synced_writes_are_seen_by_everybody(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    for block in 0..50 {
        write(&*a, key(9, block), Generation::SINGLE, block as u8);
    }
    sync(&*a).await;
    let b = volume.open().await;
    for block in 0..50 {
        assert_eq!(latest(&*a, key(9, block)).await, Some(block as u8));
        assert_eq!(latest(&*b, key(9, block)).await, Some(block as u8));
    }
    assert_eq!(a.counters().syncs, 1);
}

/// Syncing one file, or one file up to a version, makes that much durable.
pub async fn a_sync_of_one_file_covers_that_file(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    write(&*a, key(8, 0), Generation::SINGLE, 1);
    write(&*a, key(9, 0), Generation::SINGLE, 2);
    a.csync(SyncScope::File(FileId(9))).await.unwrap();
    let b = volume.open().await;
    assert_eq!(latest(&*b, key(9, 0)).await, Some(2));
    let data = contents(&*a, 3);
    let version = a.write(key(9, 1), Generation::SINGLE, data).unwrap();
    let scope = SyncScope::FileUpTo(FileId(9), version);
    a.csync(scope).await.unwrap();
    assert_eq!(latest(&*b, key(9, 1)).await, Some(3));
    a.csync(SyncScope::File(FileId(77))).await.unwrap();
}

/// Absent stays absent, until it is written.
pub async fn blocks_that_were_never_written_are_absent(volume: &dyn Volume) {
    let (a, epoch) = owner(volume, "a").await;
    assert_eq!(latest(&*a, key(9, 0)).await, None);
    assert_eq!(latest(&*a, key(9, 0)).await, None);
    write(&*a, key(9, 0), generation(epoch, 2), 1);
    sync(&*a).await;
    assert_eq!(latest(&*a, key(9, 0)).await, Some(1));
    assert_eq!(read(&*a, key(9, 0), generation(epoch, 1)).await, None);
}

/// One version per generation.
pub async fn the_newest_write_of_a_generation_wins(volume: &dyn Volume) {
    let (a, epoch) = owner(volume, "a").await;
    for byte in 1..=5 {
        write(&*a, key(9, 0), generation(epoch, 1), byte);
    }
    sync(&*a).await;
    let b = volume.open().await;
    assert_eq!(latest(&*b, key(9, 0)).await, Some(5));
    assert_eq!(read(&*b, key(9, 0), generation(epoch, 1)).await, Some(5));
}

/// Reads as of a generation see that image, whatever was written later.
pub async fn each_generation_keeps_its_version(volume: &dyn Volume) {
    let (a, epoch) = owner(volume, "a").await;
    for number in [1, 3, 5] {
        write(&*a, key(9, 0), generation(epoch, number), number as u8);
        sync(&*a).await;
    }
    let b = volume.open().await;
    for storage in [&a, &b] {
        for (as_of, expected) in [
            (0, None),
            (1, Some(1)),
            (2, Some(1)),
            (3, Some(3)),
            (4, Some(3)),
            (9, Some(5)),
        ] {
            let found = read(&**storage, key(9, 0), generation(epoch, as_of)).await;
            assert_eq!(found, expected, "as of {as_of}");
        }
    }
}

/// Who knows what it must find is told the same as by a quorum, and one replica suffices.
pub async fn an_expected_version_is_read_from_one_replica(volume: &dyn Volume) {
    let (a, epoch) = owner(volume, "a").await;
    let data = |byte| contents(&*a, byte);
    let at = |number| generation(epoch, number);
    let write = |number, byte| a.write(key(9, 0), at(number), data(byte)).unwrap();
    write(1, 1);
    let first = write(1, 2);
    sync(&*a).await;
    let third = write(3, 3);
    sync(&*a).await;
    let b = volume.open().await;
    for (up_to, version, byte) in [(1, first, 2), (2, first, 2), (3, third, 3), (9, third, 3)] {
        for storage in [&a, &b] {
            let found = storage.read_expected(key(9, 0), at(up_to), version).await;
            let found = found.unwrap().unwrap();
            assert_eq!((found.version, found.data[0]), (version, byte));
        }
    }
    // One replica may not have had it all yet.
    let before = b.counters();
    assert_eq!(before.reads_one + before.reads_escalated, 4);
    assert_eq!(before.reads_quorum, before.reads_escalated);
    // What nobody has: a quorum says what there is, and that something is lost.
    let of_seq = |seq| Version { seq, ..third };
    let found = b.read_expected(key(9, 0), at(1), of_seq(0)).await;
    assert_eq!(found.unwrap().unwrap().version, first);
    assert!(b.counters().reads_stale > before.reads_stale);
    assert_eq!(b.counters().reads_escalated, before.reads_escalated + 1);
    let lost = b.read_expected(key(9, 0), at(3), of_seq(third.seq + 1));
    assert_eq!(lost.await.unwrap_err().kind(), ErrorKind::Corrupt);
}

/// A pending write of an earlier generation is never replaced by one of a later.
pub async fn pending_writes_of_two_generations_both_arrive(volume: &dyn Volume) {
    let (a, epoch) = owner(volume, "a").await;
    write(&*a, key(9, 0), generation(epoch, 1), 1);
    write(&*a, key(9, 0), generation(epoch, 2), 2);
    assert_eq!(read(&*a, key(9, 0), generation(epoch, 1)).await, Some(1));
    assert_eq!(latest(&*a, key(9, 0)).await, Some(2));
    sync(&*a).await;
    let b = volume.open().await;
    assert_eq!(read(&*b, key(9, 0), generation(epoch, 1)).await, Some(1));
    assert_eq!(latest(&*b, key(9, 0)).await, Some(2));
}

/// A write is one whole block.
pub async fn wrong_sizes_are_refused(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    let error = a.write(key(9, 0), Generation::SINGLE, Bytes::from_static(b"short"));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
    let big = Bytes::from(vec![0; (1 << 20) + 1]);
    let error = a.put_record("r", big, Authority::Owner).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
}

/// Concurrent tasks of one client, as the requests of a mount.
pub async fn many_writers_tasks_and_syncs(volume: &dyn Volume) {
    let (a, epoch) = owner(volume, "a").await;
    let mut tasks = tokio::task::JoinSet::new();
    for file in 0..8u64 {
        let a = Arc::clone(&a);
        tasks.spawn(async move {
            for round in 1..=20u8 {
                for block in 0..4 {
                    let data = contents(&*a, round);
                    a.write_room(data.len()).await.unwrap();
                    a.write(key(100 + file, block), generation(epoch, 1), data)
                        .unwrap();
                }
                a.csync(SyncScope::File(FileId(100 + file))).await.unwrap();
                let block = u64::from(round) % 4;
                assert_eq!(latest(&*a, key(100 + file, block)).await, Some(round));
            }
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.expect("no task fails");
    }
    let b = volume.open().await;
    for file in 0..8u64 {
        assert_eq!(latest(&*b, key(100 + file, 3)).await, Some(20));
    }
}

/// Every zone is listed; room is known.
pub async fn room_and_zones_are_reported(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    assert_eq!(a.replicas().len(), usize::from(a.settings().replicas));
    assert!(a.space().await.unwrap().free_bytes > 0);
    a.write_room(a.settings().block_size_bytes as usize)
        .await
        .unwrap();
}
