//! The copy of an image into the zones, killed after every piece.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use coordination::records::{Filling, Record};
use dax::beneath::{Beneath, VERSION};
use dax::ids::{BlockKey, Epoch, Generation, VolumeName};
use dax::memory::{MemoryCluster, MemoryStorage};
use dax::storage::{Storage, VolumeSettings};
use futures_util::FutureExt;
use volume::view::Ownership;

use super::database::Files;
use super::{before, name, open};
use crate::beneath::Image;
use crate::manifest::{self, ImageId, Manifest};

/// Contents of the image's files as a volume shows them: blocks of the zones, or from beneath, or zeros.
async fn files_of(image: &Image, zones: &Arc<dyn Storage>) -> Files {
    let owner = Ownership {
        mode: 0o700,
        uid: 0,
        gid: 0,
    };
    let names = image.base(owner).unwrap().namespace;
    let mut files = Files::new();
    for id in image.ids() {
        let inode = names.file(id).unwrap();
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < inode.size {
            let key = BlockKey::new(id, bytes.len() as u64 / 8192);
            let stored = zones.read(key, Generation::MAX).await.unwrap();
            let beneath = image.block(key).await.unwrap();
            assert!(
                beneath
                    .as_ref()
                    .is_none_or(|block| block.version == VERSION)
            );
            if let (Some(stored), Some(beneath)) = (&stored, &beneath) {
                assert!(stored.data == beneath.data, "{key:?}");
            }
            let block = stored.map(|block| block.data);
            bytes.extend(block.unwrap_or_else(|| vec![0; 8192].into()));
        }
        bytes.truncate(inode.size as usize);
        let name = String::from_utf8(inode.name.to_vec()).unwrap();
        files.insert(format!("base/5/{name}"), bytes);
    }
    files
}

/// The record of a copy that has not begun.
fn not_begun(image: &ImageId, before_epoch: Epoch) -> Filling {
    Filling {
        repository: String::new(),
        key_file: None,
        image: image.to_string(),
        into: VolumeName::new("image").unwrap(),
        key: None,
        before_epoch,
        next_file: 0,
        next_piece: 0,
        done: false,
    }
}

async fn owner(zones: &Arc<MemoryCluster>) -> Arc<MemoryStorage> {
    let owner = zones.client();
    owner.own_epoch(&name()).await.unwrap();
    owner
}

/// A node copies until it is killed after so many pieces, with what was not synced. True if it was done before.
async fn copy(
    image: &Image,
    over: &Arc<dyn Storage>,
    into: &Arc<MemoryCluster>,
    pieces: usize,
) -> bool {
    let filling = Filling::load(over.as_ref()).await.unwrap().unwrap();
    let owner = owner(into).await;
    let handle: Arc<dyn Storage> = owner.clone();
    let mut told = 0;
    let tell = |_| {
        told += 1;
        if told > pieces {
            std::panic::resume_unwind(Box::new("killed"));
        }
    };
    let filling = image.fill(over, &handle, filling, tell);
    let is_done = match AssertUnwindSafe(filling).catch_unwind().await {
        Ok(filled) => filled.map(|()| true).unwrap(),
        Err(_) => false,
    };
    owner.crash(|_| false);
    is_done
}

// hazard: FILL-2
#[tokio::test]
async fn a_copy_that_is_killed_after_any_piece_leaves_no_hole() {
    let (database, store) = before().await;
    let repository = open(&store).await.unwrap();
    let id = manifest::images(&repository).await.unwrap().pop().unwrap();
    let manifest = Manifest::load(&repository, &id).await.unwrap();
    let expected = &database.images[&manifest.generation];
    for pieces in 0.. {
        let image = Image::open(repository.clone(), &id, 8192).await.unwrap();
        let into = MemoryCluster::new(VolumeSettings::default());
        let over: Arc<dyn Storage> = MemoryCluster::new(VolumeSettings::default()).client();
        let filling = not_begun(&id, Epoch(100));
        filling.store(over.as_ref()).await.unwrap();
        let was_done = copy(&image, &over, &into, pieces).await;
        let reader: Arc<dyn Storage> = into.client();
        let is_done = Filling::load(over.as_ref()).await.unwrap().unwrap().done;
        assert_eq!(is_done, was_done, "after {pieces} pieces");
        if !is_done {
            assert!(copy(&image, &over, &into, usize::MAX).await);
        }
        assert!(
            files_of(&image, &reader).await == *expected,
            "after {pieces} pieces"
        );
        if was_done {
            assert!(pieces > 2, "it was killed a few times");
            return;
        }
    }
}

#[tokio::test]
async fn nodes_that_copy_for_ever_are_refused() {
    let (_, store) = before().await;
    let repository = open(&store).await.unwrap();
    let id = manifest::images(&repository).await.unwrap().pop().unwrap();
    let image = Image::open(repository, &id, 8192).await.unwrap();
    let zones = MemoryCluster::new(VolumeSettings::default());
    let into: Arc<dyn Storage> = owner(&zones).await;
    let filling = not_begun(&id, Epoch(1));
    let refused = image.fill(&into, &into, filling, |_| ()).await.unwrap_err();
    assert!(
        refused.to_string().contains("make the branch again"),
        "{refused}"
    );
}
