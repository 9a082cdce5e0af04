//! Giving space back, and what must stay.

use std::time::Duration;

use super::{Volume, generation, key, latest, owner, read, sync, write};
use crate::ids::{BlockIndex, BlockKey, FileId, Generation};
use crate::storage::{Lineage, Retention, Span, Storage};

/// Removal is best effort: a zone that was just connecting is told later.
async fn vanishes(storage: &dyn Storage, key: BlockKey) {
    for _ in 0..400 {
        if latest(storage, key).await.is_none() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{key} is still there");
}

/// Removing files leaves the others alone, also with writes pending.
pub async fn removed_files_are_gone(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    for file in [7, 8, 9] {
        write(&*a, key(file, 0), Generation::SINGLE, file as u8);
    }
    sync(&*a).await;
    write(&*a, key(8, 1), Generation::SINGLE, 1);
    a.remove_files(&[FileId(7), FileId(8)]).await.unwrap();
    sync(&*a).await;
    let b = volume.open().await;
    for (file, block) in [(7, 0), (8, 0), (8, 1)] {
        vanishes(&*b, key(file, block)).await;
    }
    assert_eq!(latest(&*b, key(9, 0)).await, Some(9));
}

/// The past of a file can be given back.
pub async fn blocks_before_are_gone(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    for block in 0..6 {
        write(&*a, key(9, block), Generation::SINGLE, block as u8);
    }
    write(&*a, key(10, 0), Generation::SINGLE, 10);
    sync(&*a).await;
    let removed = a.remove_blocks_before(FileId(9), BlockIndex(4));
    removed.await.unwrap();
    let b = volume.open().await;
    for storage in [&a, &b] {
        vanishes(&**storage, key(9, 3)).await;
        assert_eq!(latest(&**storage, key(9, 4)).await, Some(4));
        assert_eq!(latest(&**storage, key(10, 0)).await, Some(10));
    }
}

/// Whatever retention reclaims, the images it names stay as they were.
pub async fn retained_images_stay_readable(volume: &dyn Volume) {
    let (a, epoch) = owner(volume, "a").await;
    for number in 1..=6 {
        write(&*a, key(9, 0), generation(epoch, number), number as u8);
        if number % 2 == 0 {
            write(&*a, key(9, 1), generation(epoch, number), number as u8);
        }
        write(&*a, key(10, 0), Generation::SINGLE, number as u8);
    }
    sync(&*a).await;
    let images = vec![
        Lineage::up_to(generation(epoch, 3)),
        Lineage::up_to(generation(epoch, 5)),
    ];
    a.retain(Retention { images }).await.unwrap();
    let b = volume.open().await;
    for storage in [&a, &b] {
        let at = |block, number| read(&**storage, key(9, block), generation(epoch, number));
        assert_eq!(at(0, 3).await, Some(3));
        assert_eq!(at(1, 3).await, Some(2));
        assert_eq!(at(0, 5).await, Some(5));
        assert_eq!(at(1, 5).await, Some(4));
        assert_eq!(at(0, 6).await, Some(6));
        assert_eq!(at(1, 6).await, Some(6));
        assert_eq!(latest(&**storage, key(10, 0)).await, Some(6));
    }
}

/// An image that leaves out generations of a dead epoch is read by asking again below them.
pub async fn a_takeover_leaves_dead_generations_out(volume: &dyn Volume) {
    let (a, dead) = owner(volume, "a").await;
    write(&*a, key(9, 0), generation(dead, 1), 1);
    write(&*a, key(9, 0), generation(dead, 3), 3);
    write(&*a, key(9, 1), generation(dead, 3), 3);
    sync(&*a).await;
    let (b, epoch) = owner(volume, "b").await;
    let lineage = Lineage::up_to(generation(dead, 2)).continued(generation(epoch, 0));
    let newest = b.read(key(9, 0), lineage.end()).await.unwrap().unwrap();
    assert_eq!(newest.generation, generation(dead, 3));
    assert!(!lineage.contains(newest.generation));
    let below = lineage.floor(newest.generation).unwrap();
    assert_eq!(read(&*b, key(9, 0), below).await, Some(1));
    let retention = Retention {
        images: vec![
            Lineage(vec![Span {
                from: Generation::SINGLE,
                to: below,
            }])
            .continued(generation(epoch, 0)),
        ],
    };
    b.retain(retention).await.unwrap();
    write(&*b, key(9, 0), generation(epoch, 1), 5);
    sync(&*b).await;
    assert_eq!(latest(&*b, key(9, 0)).await, Some(5));
    assert_eq!(read(&*b, key(9, 0), below).await, Some(1));
}
