//! What a crash leaves of files that keep one version: all that was synced, and of the rest what
//! POSIX allows.

use dax::ids::{BlockIndex, BlockKey, FileId, Generation};
use dax::memory::UnsyncedWrite;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use volume::latest::Latest;
use volume::view::{AttrChange, NewInode, Timestamp, View};

use crate::common::{BLOCK, Volume};

const NOW: Timestamp = Timestamp(4);

#[tokio::test]
async fn synced_writes_are_there_after_any_crash() {
    for seed in 0..80 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let volume = Volume::format().await;
        let mut life = volume.open().await;
        life.create("conf", NewInode::Directory);
        let file = life.create("conf/f", NewInode::File).ino;
        let mut now: Vec<u8> = Vec::new();
        for _ in 0..4 {
            for _ in 0..rng.random_range(1..8) {
                let data: Vec<u8> = (0..rng.random_range(1..2 * BLOCK))
                    .map(|_| rng.random())
                    .collect();
                match rng.random_range(0..4) {
                    0 => {
                        let size = rng.random_range(0..4 * BLOCK);
                        now.resize(size, 0);
                        let change = AttrChange {
                            size: Some(size as u64),
                            ..AttrChange::default()
                        };
                        life.view.set_attr(file, change, NOW).await.unwrap();
                    }
                    _ => {
                        let offset = rng.random_range(0..3 * BLOCK);
                        let end = offset + data.len();
                        now.resize(now.len().max(end), 0);
                        now[offset..end].copy_from_slice(&data);
                        life.write(file, offset as u64, data).await;
                    }
                }
            }
            life.view.fsync(file).await.unwrap();
            let dir = life.find("conf").unwrap().ino;
            life.view.fsync(dir).await.unwrap();
            life.view.fsync(volume::view::Ino::ROOT).await.unwrap();
            // Another file is written and lost in part; it must not matter.
            let other = life
                .create(&format!("conf/{}", rng.random::<u32>()), NewInode::File)
                .ino;
            life.write(other, 0, vec![1; 3 * BLOCK]).await;
            let mut chosen = SmallRng::seed_from_u64(rng.random());
            life.storage
                .crash(|_: &UnsyncedWrite| chosen.random_bool(0.5));
            life = volume.open().await;
            assert_eq!(life.contents(file).await, now, "seed {seed}");
        }
    }
}

/// A block that was cut off must not come back because a later epoch promotes it.
#[tokio::test]
async fn a_cut_off_block_stays_zero_in_every_later_epoch() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    life.create("conf", NewInode::Directory);
    let file = life.create("conf/f", NewInode::File).ino;
    let size = |size: usize| AttrChange {
        size: Some(size as u64),
        ..AttrChange::default()
    };
    life.write(file, 0, vec![1; 3 * BLOCK]).await;
    life.view.set_attr(file, size(BLOCK), NOW).await.unwrap();
    life.view
        .set_attr(file, size(3 * BLOCK), NOW)
        .await
        .unwrap();
    life.view.sync_all().await.unwrap();
    let mut expected = vec![1; BLOCK];
    expected.resize(3 * BLOCK, 0);
    for _ in 0..3 {
        let next = volume.open().await;
        assert_eq!(next.contents(file).await, expected);
        next.view.sync_all().await.unwrap();
        assert_eq!(next.contents(file).await, expected);
    }
}

/// H12: what a dead epoch wrote past the end of the log is zeros for its successors.
// hazard: H12
#[tokio::test]
async fn the_log_is_cut_at_its_end_and_keeps_its_size() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    life.create("wal", NewInode::Directory);
    let segment = life.create("wal/1", NewInode::File).ino;
    let file = FileId(segment.0);
    life.write(segment, 0, vec![1; 4 * BLOCK]).await;
    life.view.sync_all().await.unwrap();

    let storage = volume.owner().await;
    let mut latest = Latest::recover(storage.clone(), NOW).await.unwrap();
    assert_eq!(
        latest
            .read_log_block(file, BlockIndex(2))
            .await
            .unwrap()
            .unwrap()[..],
        [1; BLOCK]
    );
    latest.cut_log(file, BlockIndex(2), NOW).unwrap();
    assert_eq!(
        latest
            .read_log_block(file, BlockIndex(1))
            .await
            .unwrap()
            .unwrap()[..],
        [1; BLOCK]
    );
    let after = latest.read_log_block(file, BlockIndex(2)).await.unwrap();
    assert!(after.is_none_or(|data| data[..] == [0; BLOCK]));
    latest.commit().await.unwrap();
    drop(latest);

    for _ in 0..2 {
        let next = volume.open().await;
        let mut expected = vec![1; 2 * BLOCK];
        expected.resize(4 * BLOCK, 0);
        assert_eq!(next.contents(segment).await, expected);
        next.write(segment, 3 * BLOCK as u64, vec![3; BLOCK]).await;
        expected[3 * BLOCK..].fill(3);
        assert_eq!(next.contents(segment).await, expected);
        // Not synced: gone with the view.
    }
    let reader = volume.reader();
    let stored = reader
        .read(
            BlockKey {
                file,
                block: BlockIndex(3),
            },
            Generation::SINGLE,
        )
        .await
        .unwrap();
    assert_ne!(stored.unwrap().data[..], [3; BLOCK]);
}

/// Blocks that reached the replicas without the journal's word for the new size.
#[tokio::test]
async fn blocks_of_a_dead_epoch_behind_the_end_stay_hidden_when_the_file_grows() {
    for by_write in [true, false] {
        let volume = Volume::format().await;
        let life = volume.open().await;
        life.create("conf", NewInode::Directory);
        let file = life.create("conf/f", NewInode::File).ino;
        life.write(file, 0, vec![1; 100]).await;
        life.view.sync_all().await.unwrap();
        life.write(file, 0, vec![2; 4 * BLOCK]).await;
        life.storage
            .crash(|write| write.key == BlockKey::new(FileId(file.0), 2));

        let next = volume.open().await;
        let mut expected = vec![1; 100];
        assert_eq!(next.contents(file).await, expected);
        expected.resize(4 * BLOCK, 0);
        if by_write {
            expected[3 * BLOCK..].fill(3);
            next.write(file, 3 * BLOCK as u64, vec![3; BLOCK]).await;
        } else {
            let change = AttrChange {
                size: Some(4 * BLOCK as u64),
                ..AttrChange::default()
            };
            next.view.set_attr(file, change, NOW).await.unwrap();
        }
        assert_eq!(next.contents(file).await, expected);
        next.view.sync_all().await.unwrap();
        assert_eq!(volume.open().await.contents(file).await, expected);
    }
}
