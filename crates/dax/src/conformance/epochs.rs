//! Epochs, the fence, and what survives from one to the next.

use bytes::Bytes;

use super::{Volume, contents, key, latest, owner, sync, write};
use crate::error::ErrorKind;
use crate::ids::{FileId, Generation, NodeName};
use crate::storage::{Authority, SyncScope};

/// Writing, syncing, promoting and removing need an epoch.
pub async fn nobody_writes_without_an_epoch(volume: &dyn Volume) {
    let a = volume.open().await;
    assert_eq!(a.epoch(), None);
    let invalid = |kind| assert_eq!(kind, ErrorKind::Invalid);
    let data = contents(&*a, 1);
    invalid(
        a.write(key(9, 0), Generation::SINGLE, data)
            .unwrap_err()
            .kind(),
    );
    invalid(a.next_version().unwrap_err().kind());
    invalid(a.confirm().await.unwrap_err().kind());
    invalid(a.csync(SyncScope::Volume).await.unwrap_err().kind());
    invalid(a.read_promote(key(9, 0)).await.unwrap_err().kind());
    invalid(a.remove_files(&[FileId(9)]).await.unwrap_err().kind());
    let put = a.put_record("r", Bytes::new(), Authority::Owner).await;
    invalid(put.unwrap_err().kind());
    assert_eq!(latest(&*a, key(9, 0)).await, None);
}

/// Each owner gets a higher epoch, and everybody can see who has it.
pub async fn epochs_ascend_and_name_their_owner(volume: &dyn Volume) {
    let observer = volume.open().await;
    let none = observer.accepted_epoch().await.unwrap();
    let unowned = observer.settings().unowned();
    assert_eq!((none.epoch, none.owner.as_str()), (unowned, ""));
    let (a, first) = owner(volume, "a").await;
    assert_eq!(a.epoch(), Some(first));
    let (_b, second) = owner(volume, "b").await;
    assert!(second > first);
    let grant = observer.accepted_epoch().await.unwrap();
    assert_eq!(grant.epoch, second);
    assert!(grant.owner.starts_with("b/"), "{}", grant.owner);
    let grant = a.accepted_epoch().await.unwrap();
    assert_eq!(grant.epoch, second, "also a fenced client may look");
}

/// Whoever asks whether its epoch stands is told so until a newer one is owned, and never after that.
pub async fn an_epoch_is_confirmed_until_a_newer_one_is_owned(volume: &dyn Volume) {
    let (a, first) = owner(volume, "a").await;
    assert_eq!(a.confirm().await.unwrap(), first);
    let (b, second) = owner(volume, "b").await;
    assert!(a.confirm().await.unwrap_err().is_fenced());
    assert_eq!(b.confirm().await.unwrap(), second);
}

/// After `own_epoch` returned, no older sync completes, for good.
pub async fn a_new_owner_fences_the_old_one(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    write(&*a, key(9, 0), Generation::SINGLE, 1);
    sync(&*a).await;
    let (b, _) = owner(volume, "b").await;
    // The old owner may not have heard of it when it writes; it has when it syncs.
    let _ = a.write(key(9, 0), Generation::SINGLE, contents(&*a, 2));
    assert!(a.csync(SyncScope::Volume).await.unwrap_err().is_fenced());
    a.fenced().await;
    let again = a.write(key(9, 0), Generation::SINGLE, contents(&*a, 3));
    assert!(again.unwrap_err().is_fenced());
    assert!(a.csync(SyncScope::Volume).await.unwrap_err().is_fenced());
    assert!(a.own_epoch(&NodeName::new("a").unwrap()).await.is_err());
    // A zone that heard of the new owner last may have taken the 2: the promotion chooses.
    let block = b.read_promote(key(9, 0)).await.unwrap();
    let survivor = block.expect("1 is synced").data[0];
    assert!(survivor == 1 || survivor == 2, "{survivor}");
    for _ in 0..20 {
        assert_eq!(latest(&*b, key(9, 0)).await, Some(survivor));
    }
    write(&*b, key(9, 0), Generation::SINGLE, 4);
    sync(&*b).await;
    assert_eq!(latest(&*b, key(9, 0)).await, Some(4));
}

/// What a promoted read returned is not overtaken by a dead epoch's writes.
pub async fn late_writes_of_a_fenced_owner_never_appear(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    write(&*a, key(9, 0), Generation::SINGLE, 1);
    sync(&*a).await;
    let unsynced = 20;
    for byte in 0..unsynced {
        write(&*a, key(9, 0), Generation::SINGLE, 10 + byte);
    }
    let (b, _) = owner(volume, "b").await;
    let block = b
        .read_promote(key(9, 0))
        .await
        .unwrap()
        .expect("1 is synced");
    let survivor = block.data[0];
    assert!(survivor == 1 || (10..10 + unsynced).contains(&survivor));
    for byte in 0..unsynced {
        let _ = a.write(key(9, 0), Generation::SINGLE, contents(&*a, 100 + byte));
    }
    assert!(a.csync(SyncScope::Volume).await.is_err());
    for _ in 0..20 {
        assert_eq!(latest(&*b, key(9, 0)).await, Some(survivor));
    }
    let (c, _) = owner(volume, "c").await;
    let block = c.read_promote(key(9, 0)).await.unwrap();
    assert_eq!(block.map(|b| b.data[0]), Some(survivor));
}

/// Every version is above every earlier one, of this and of older epochs.
pub async fn versions_ascend_across_epochs(volume: &dyn Volume) {
    let mut last = crate::ids::Version::ZERO;
    for name in ["a", "b"] {
        let (storage, epoch) = owner(volume, name).await;
        for block in 0..3 {
            let data = contents(&*storage, 1);
            let written = storage
                .write(key(9, block), Generation::SINGLE, data)
                .unwrap();
            let marked = storage.next_version().unwrap();
            assert!(last < written && written < marked);
            assert_eq!(marked.epoch, epoch);
            last = marked;
        }
    }
}

/// The first promoted read decides; every later read returns the same.
pub async fn promoted_blocks_are_stable(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    for block in 0..10 {
        write(&*a, key(9, block), Generation::SINGLE, block as u8);
    }
    sync(&*a).await;
    let (b, epoch) = owner(volume, "b").await;
    for block in 0..10 {
        let promoted = b.read_promote(key(9, block)).await.unwrap().unwrap();
        assert_eq!(promoted.data[0], block as u8);
        let again = b.read_promote(key(9, block)).await.unwrap().unwrap();
        assert_eq!(again.data, promoted.data);
        assert_eq!(latest(&*b, key(9, block)).await, Some(block as u8));
    }
    write(&*b, key(9, 0), Generation::SINGLE, 77);
    sync(&*b).await;
    let block = b.read_promote(key(9, 0)).await.unwrap().unwrap();
    assert_eq!((block.data[0], block.version.epoch), (77, epoch));
}

/// A block that the owner wrote itself is settled already.
pub async fn promotion_sees_own_writes(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    write(&*a, key(9, 0), Generation::SINGLE, 1);
    let block = a.read_promote(key(9, 0)).await.unwrap().unwrap();
    assert_eq!(block.data[0], 1);
    sync(&*a).await;
    let block = a.read_promote(key(9, 0)).await.unwrap().unwrap();
    assert_eq!(block.data[0], 1);
}

/// "No such block" is an answer, and the block can be written after it.
pub async fn absent_blocks_are_not_promoted(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    assert_eq!(a.read_promote(key(9, 0)).await.unwrap(), None);
    write(&*a, key(9, 0), Generation::SINGLE, 1);
    sync(&*a).await;
    let block = a.read_promote(key(9, 0)).await.unwrap().unwrap();
    assert_eq!(block.data[0], 1);
}
