//! A view that takes a standby's overlay over.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use dax::ids::{BlockIndex, BlockKey, FileId, Generation};
use parking_lot::Mutex;
use volume::active::{ActiveView, Inherited, InheritedBlocks, WriteObserver};
use volume::error::Result;
use volume::lsn::Lsn;
use volume::view::{AttrChange, Ino, NewInode, PageCache, Timestamp, View};

use crate::common::{BLOCK, Volume};

const NOW: Timestamp = Timestamp(6);

#[derive(Default)]
struct Overlay(Mutex<BTreeMap<BlockKey, Bytes>>);

impl InheritedBlocks for Overlay {
    fn get(&self, key: BlockKey) -> Result<Option<Bytes>> {
        Ok(self.0.lock().get(&key).cloned())
    }

    fn discard(&self, key: BlockKey) {
        self.0.lock().remove(&key);
    }

    fn discard_from(&self, file: FileId, first: BlockIndex) {
        self.0
            .lock()
            .retain(|key, _| key.file != file || key.block < first);
    }

    fn some(&self, max: usize) -> Result<Vec<(BlockKey, Bytes)>> {
        let blocks = self.0.lock();
        let some = blocks.iter().take(max);
        Ok(some.map(|(key, data)| (*key, data.clone())).collect())
    }

    fn contains(&self, key: BlockKey) -> bool {
        self.0.lock().contains_key(&key)
    }

    fn len(&self) -> usize {
        self.0.lock().len()
    }
}

#[tokio::test]
async fn the_overlay_is_readable_throughout_and_part_of_the_first_seal() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let ino = life.create("f", NewInode::File).ino;
    let file = FileId(ino.0);
    const BLOCKS: u64 = 200;
    life.write(ino, 0, vec![1; BLOCKS as usize * BLOCK]).await;
    let base = life.seal(0).await;
    // What the dead epoch wrote after the base is not part of the image.
    life.write(ino, 0, vec![9; BLOCKS as usize * BLOCK]).await;
    life.view.sync_all().await.unwrap();

    let overlay = Arc::new(Overlay::default());
    for block in (0..BLOCKS).step_by(2) {
        overlay
            .0
            .lock()
            .insert(BlockKey::new(file, block), Bytes::from(vec![2; BLOCK]));
    }
    let alias = Ino(1 << 62 | 5);
    let inherited = Inherited {
        blocks: overlay.clone(),
        aliases: HashMap::from([(alias, file)]),
        open_counts: HashMap::from([(file, 1)]),
        base: None,
        cache: None,
        lineage: base.lineage.clone(),
        log: Vec::new(),
    };
    let next = volume
        .open_with(Arc::new(volume::active::NoObserver), Some(inherited))
        .await;
    assert_eq!(
        next.find("f").unwrap().ino,
        alias,
        "numbers stay what the kernel knows"
    );
    let cache = next.view.open(alias).unwrap();
    assert_eq!(cache, PageCache::Kept, "the kernel caches again");
    next.view.release(alias);

    let mut expected = Vec::new();
    for block in 0..BLOCKS {
        expected.extend_from_slice(&[if block % 2 == 0 { 2 } else { 1 }; BLOCK]);
    }
    assert_eq!(next.contents(alias).await, expected);
    // A new write wins over the inherited block, in part and whole; a cut removes the rest.
    next.write(alias, 10 * BLOCK as u64, vec![3; BLOCK]).await;
    next.write(alias, 12 * BLOCK as u64 + 5, vec![4; 5]).await;
    expected[10 * BLOCK..11 * BLOCK].fill(3);
    expected[12 * BLOCK + 5..12 * BLOCK + 10].fill(4);
    let size = |blocks: usize| AttrChange {
        size: Some((blocks * BLOCK) as u64),
        ..AttrChange::default()
    };
    next.view.set_attr(alias, size(150), NOW).await.unwrap();
    next.view.set_attr(alias, size(200), NOW).await.unwrap();
    expected[150 * BLOCK..].fill(0);
    assert_eq!(next.contents(alias).await, expected);

    let cut = next.view.cut().await.unwrap();
    assert_eq!(next.view.inherited_left(), 0);
    assert_eq!(next.contents(alias).await, expected);
    let seal = next
        .view
        .commit_seal(cut.clone(), Lsn(1), Lsn(2), Vec::new())
        .await
        .unwrap();
    assert!(!seal.lineage.contains(base.generation.next()));
    for block in 0..BLOCKS {
        let found = next
            .view
            .read_image(&cut, file, BlockIndex(block))
            .await
            .unwrap();
        let found = found.map_or(vec![0; BLOCK], |data| data.to_vec());
        assert_eq!(
            found,
            expected[block as usize * BLOCK..][..BLOCK],
            "block {block}"
        );
    }
    // The open handle that came along keeps an unlinked file alive.
    next.view.unlink(Ino::ROOT, b"f", NOW).unwrap();
    assert_eq!(next.contents(alias).await, expected);
    next.view.release(alias);
    assert!(next.view.attr(alias).is_err());
}

/// A step of the write-back took eight blocks out of the overlay, and the storage refused the fourth: the last
/// five were nowhere any more, and a session that was still open on the fenced server read the base's instead.
// hazard: PAGE-8
#[tokio::test]
async fn blocks_that_a_fenced_write_back_did_not_write_are_still_there() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let file = FileId(life.create("f", NewInode::File).ino.0);
    life.write(Ino(file.0), 0, vec![1; 8 * BLOCK]).await;
    let base = life.seal(0).await;
    let overlay = Arc::new(Overlay::default());
    let blocks = (0..8).map(|block| (BlockKey::new(file, block), Bytes::from(vec![2; BLOCK])));
    overlay.0.lock().extend(blocks);
    let inherited = Inherited {
        blocks: overlay.clone(),
        aliases: HashMap::new(),
        open_counts: HashMap::new(),
        base: None,
        cache: None,
        lineage: base.lineage.clone(),
        log: Vec::new(),
    };
    let next = volume
        .open_with(Arc::new(volume::active::NoObserver), Some(inherited))
        .await;
    volume.cluster.fence_after_writes(Some(3));
    assert!(next.view.cut().await.unwrap_err().is_fenced());
    assert_eq!(next.view.inherited_left(), 5, "three are written");
    for block in 3..8 {
        let at = block * BLOCK as u64;
        let read = next.view.read(Ino(file.0), at, BLOCK as u32).await;
        assert_eq!(read.unwrap(), vec![2; BLOCK], "block {block}");
    }
}

/// Records what it is told, and seals at every control write.
#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

#[async_trait]
impl WriteObserver for Recorder {
    fn log_written(&self, path: &str, offset: u64, data: &Bytes) {
        self.0
            .lock()
            .push(format!("log {path} {offset} {}", data.len()));
    }
    fn log_sync_started(&self, path: &str) -> u64 {
        self.0.lock().push(format!("sync {path}"));
        42
    }
    fn log_synced(&self, path: &str, token: u64) {
        self.0.lock().push(format!("synced {path} {token}"));
    }
    fn data_written(&self, path: &str, offset: u64, data: &Bytes, _: Generation) {
        self.0
            .lock()
            .push(format!("data {path} {offset} {}", data.len()));
    }
    async fn control_written(&self, view: &ActiveView, data: Bytes, now: Timestamp) -> Result<()> {
        let cut = view.cut().await?;
        view.commit_seal(cut, Lsn(1), Lsn(2), data.to_vec()).await?;
        view.write_control(data, now).await
    }
}

#[tokio::test]
async fn the_observer_sees_log_and_data_and_decides_about_control() {
    let volume = Volume::format().await;
    let recorder = Arc::new(Recorder::default());
    let life = volume.open_with(recorder.clone(), None).await;
    life.create("wal", NewInode::Directory);
    let log = life.create("wal/1", NewInode::File).ino;
    let data = life.create("f", NewInode::File).ino;
    let control = life.create("control", NewInode::File).ino;
    life.write(log, 3, *b"abc").await;
    life.view.fsync(log).await.unwrap();
    life.write(data, BLOCK as u64, vec![1; 2 * BLOCK]).await;
    let data_line = format!("data f {BLOCK} {}", 2 * BLOCK);
    assert_eq!(
        *recorder.0.lock(),
        ["log wal/1 3 3", "sync wal/1", "synced wal/1 42", &data_line]
    );

    life.write(control, 0, *b"first").await;
    life.write(control, 1, *b"xx").await;
    assert_eq!(
        life.view.seals()[1].payload,
        b"fxxst",
        "the observer gets the whole contents"
    );
    life.storage.crash(|_| false);
    let next = volume.open().await;
    assert_eq!(
        next.contents(control).await,
        b"fxxst",
        "durable when the write returned"
    );
    assert_eq!(next.contents(data).await[BLOCK..], [1; 2 * BLOCK]);
}
