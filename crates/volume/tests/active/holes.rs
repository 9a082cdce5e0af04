//! Zeros behind the end of a file are a hole: they cost no block, and nothing old shows through.

use std::sync::Arc;

use volume::active::{NoObserver, Options};
use volume::latest::Latest;
use volume::view::{AttrChange, NewInode, Timestamp, View};

use crate::common::{BLOCK, Volume};

const NOW: Timestamp = Timestamp(9);

#[tokio::test]
async fn zeros_behind_the_end_store_nothing_and_read_as_zeros() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let file = life.create("1", NewInode::File).ino;
    let before = dax::storage::Storage::counters(&*life.storage).writes;
    life.write(file, 0, vec![0; 8 * BLOCK]).await;
    assert_eq!(life.view.attr(file).unwrap().size, 8 * BLOCK as u64);
    assert_eq!(
        dax::storage::Storage::counters(&*life.storage).writes,
        before
    );
    assert_eq!(life.contents(file).await, vec![0; 8 * BLOCK]);
}

#[tokio::test]
async fn zeros_over_what_was_written_are_stored() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let file = life.create("1", NewInode::File).ino;
    life.write(file, 0, vec![7; 2 * BLOCK]).await;
    life.write(file, 0, vec![0; 2 * BLOCK]).await;
    assert_eq!(life.contents(file).await, vec![0; 2 * BLOCK]);
}

#[tokio::test]
async fn truncated_blocks_do_not_come_back_under_zeros() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let file = life.create("1", NewInode::File).ino;
    life.write(file, 0, vec![7; 3 * BLOCK]).await;
    let cut = AttrChange {
        size: Some(BLOCK as u64),
        ..AttrChange::default()
    };
    life.view.set_attr(file, cut, NOW).await.unwrap();
    life.write(file, BLOCK as u64, vec![0; 2 * BLOCK]).await;
    let mut expected = vec![7; BLOCK];
    expected.resize(3 * BLOCK, 0);
    assert_eq!(life.contents(file).await, expected);
}

/// PostgreSQL's summarizer writes one temporary file again and again.
// hazard: PAGE-9
#[tokio::test]
async fn log_that_was_written_behind_a_cut_reads_as_it_was_written_without_the_cache() {
    let volume = Volume::format().await;
    let storage = volume.owner().await;
    let latest = Latest::recover(storage.clone(), NOW).await.unwrap();
    let options = Options {
        cache_bytes: 0,
        ..Options::default()
    };
    let life = volume.open_by(storage, latest, Arc::new(NoObserver), None, options);
    let life = life.await;
    life.create("wal", NewInode::Directory);
    let file = life.create("wal/temp", NewInode::File).ino;
    life.write(file, 0, vec![7; 3 * BLOCK]).await;
    let cut = AttrChange {
        size: Some(0),
        ..AttrChange::default()
    };
    life.view.set_attr(file, cut, NOW).await.unwrap();
    life.write(file, 0, vec![8; BLOCK]).await;
    let grow = AttrChange {
        size: Some(3 * BLOCK as u64),
        ..AttrChange::default()
    };
    life.view.set_attr(file, grow, NOW).await.unwrap();
    let mut expected = vec![8; BLOCK];
    expected.resize(3 * BLOCK, 0);
    for _ in 0..2 {
        assert_eq!(life.contents(file).await, expected);
    }
}
