//! Syncs of the log that are answered before they are durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dax::ids::Generation;
use parking_lot::Mutex;
use volume::active::{ActiveView, WriteObserver};
use volume::error::Result;
use volume::view::{Ino, NewInode, Timestamp, View};

use crate::common::{Life, Volume};

/// Lets syncs of `wal/1` be answered early, and notes how they end.
#[derive(Default)]
struct Observer {
    /// None is.
    is_strict: AtomicBool,
    ended: Mutex<Vec<String>>,
    next: Mutex<u64>,
    has_failed: AtomicBool,
}

#[async_trait]
impl WriteObserver for Observer {
    fn log_written(&self, _: &str, _: u64, _: &Bytes) {}

    fn log_sync_started(&self, path: &str) -> u64 {
        let mut next = self.next.lock();
        *next += 1;
        if path == "wal/1" { *next } else { 0 }
    }

    fn may_answer_early(&self, token: u64) -> bool {
        token > 0 && !self.is_strict.load(Ordering::Acquire)
    }

    fn log_synced(&self, path: &str, token: u64) {
        self.ended.lock().push(format!("synced {path} {token}"));
    }

    fn log_sync_failed(&self, path: &str, token: u64) {
        self.ended.lock().push(format!("failed {path} {token}"));
        self.has_failed.store(true, Ordering::Release);
    }

    fn log_has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    fn data_written(&self, _: &str, _: u64, _: &Bytes, _: Generation) {}

    async fn control_written(&self, view: &ActiveView, data: Bytes, now: Timestamp) -> Result<()> {
        view.write_control(data, now).await
    }
}

impl Observer {
    async fn ended(&self, syncs: usize) -> Vec<String> {
        let wait = async {
            while self.ended.lock().len() < syncs {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wait)
            .await
            .expect("they end");
        self.ended.lock().clone()
    }
}

/// A volume with a segment, which is ordered, another log file and a data file.
async fn start() -> (Volume, Life, Arc<Observer>, [Ino; 3]) {
    let volume = Volume::format().await;
    let observer = Arc::new(Observer::default());
    let life = volume.open_with(observer.clone(), None).await;
    life.create("wal", NewInode::Directory);
    let files = ["wal/1", "wal/history", "data"];
    let files = files.map(|path| life.create(path, NewInode::File).ino);
    (volume, life, observer, files)
}

async fn waits(life: &Life, file: Ino) -> bool {
    let synced = tokio::time::timeout(Duration::from_millis(50), life.view.fsync(file));
    synced.await.is_err()
}

#[tokio::test]
async fn a_sync_is_answered_at_once_and_tells_when_it_is_done() {
    let (volume, life, observer, [segment, ..]) = start().await;
    volume.cluster.hold_syncs(true);
    for text in [b"abc", b"def"] {
        life.write(segment, 0, *text).await;
        life.view.fsync(segment).await.unwrap();
    }
    assert!(!life.storage.unsynced().is_empty(), "it is on its way");
    assert!(observer.ended.lock().is_empty());
    volume.cluster.hold_syncs(false);
    let mut ended = observer.ended(2).await;
    ended.sort();
    assert_eq!(ended, ["synced wal/1 1", "synced wal/1 2"]);
    // Contents, and the name that the journal has.
    life.storage.crash(|_| false);
    let next = volume.open().await;
    assert_eq!(&next.contents(segment).await[..3], b"def");
    assert!(next.find("wal/1").is_some());
}

#[tokio::test]
async fn syncs_of_other_files_are_answered_when_they_are_done() {
    let (volume, life, _, [_, history, data]) = start().await;
    volume.cluster.hold_syncs(true);
    for file in [history, data] {
        life.write(file, 0, *b"abc").await;
        assert!(waits(&life, file).await);
    }
}

/// Nobody can be told that the early answer was wrong, so nobody goes on.
#[tokio::test]
async fn after_one_that_failed_every_sync_of_the_log_fails() {
    let (volume, life, observer, [segment, history, _]) = start().await;
    volume.cluster.hold_syncs(true);
    life.write(segment, 0, *b"abc").await;
    life.view.fsync(segment).await.unwrap();
    let _other = volume.owner().await;
    volume.cluster.hold_syncs(false);
    assert_eq!(observer.ended(1).await, ["failed wal/1 1"]);
    for file in [segment, history] {
        assert!(life.view.fsync(file).await.unwrap_err().is_fenced());
    }
}

#[tokio::test]
async fn a_fenced_view_answers_none_early() {
    let (volume, life, observer, [segment, ..]) = start().await;
    life.write(segment, 0, *b"abc").await;
    let _other = volume.owner().await;
    assert!(life.view.fsync(segment).await.unwrap_err().is_fenced());
    assert_eq!(*observer.ended.lock(), ["failed wal/1 1"]);
}

/// Its number stayed open: what is durable stood still before it, and all commits behind it waited.
// hazard: ORDER-22
#[tokio::test]
async fn a_sync_that_nobody_waits_for_any_more_has_failed() {
    let (volume, life, observer, [segment, ..]) = start().await;
    observer.is_strict.store(true, Ordering::Release);
    volume.cluster.hold_syncs(true);
    life.write(segment, 0, *b"abc").await;
    assert!(waits(&life, segment).await, "and is dropped");
    assert_eq!(*observer.ended.lock(), ["failed wal/1 1"]);
    // Nobody knows what of it is durable, whatever the storage says next.
    volume.cluster.hold_syncs(false);
    let refused = life.view.fsync(segment).await.unwrap_err();
    assert!(!refused.is_fenced(), "{refused}");
    assert_eq!(observer.ended.lock().len(), 1);
}

/// It goes on by itself, until what it goes on in ends.
// hazard: ORDER-22
#[test]
fn so_has_one_that_was_answered_and_can_not_go_on() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (volume, life, observer, [segment, ..]) = runtime.block_on(start());
    volume.cluster.hold_syncs(true);
    runtime.block_on(async {
        life.write(segment, 0, *b"abc").await;
        life.view.fsync(segment).await.unwrap();
    });
    assert!(observer.ended.lock().is_empty(), "it is under way");
    drop(runtime);
    volume.cluster.hold_syncs(false);
    assert_eq!(*observer.ended.lock(), ["failed wal/1 1"]);
}
