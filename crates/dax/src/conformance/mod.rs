//! What every storage backend must do, as tests over the [`Storage`] trait.
//!
//! A backend implements [`Volume`] and calls [`conformance_tests!`](crate::conformance_tests) with an
//! expression that makes a fresh one; each function here becomes a `#[tokio::test]`. The tests use
//! several clients of one volume, as the nodes of a cluster do, and no timing.

mod blocks;
mod epochs;
mod records;
mod removal;

pub use blocks::*;
pub use epochs::*;
pub use records::*;
pub use removal::*;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::ids::{BlockKey, Epoch, FileId, Generation, NodeName};
use crate::storage::{Lineage, Storage, SyncScope};

/// A fresh, empty volume of some backend.
#[async_trait]
pub trait Volume: Send + Sync {
    /// Another client of it, as a node that starts.
    async fn open(&self) -> Arc<dyn Storage>;
}

/// Fills a volume that others will be laid over, and gives an image of it in which no block of the suite is: they are of one
/// version, or came later. So a volume over that image is as empty as a fresh one.
pub async fn fill_around_an_image(parent: &dyn Storage) -> Lineage {
    let name = NodeName::new("parent").expect("a valid name");
    let epoch = parent.own_epoch(&name).await.expect("nobody contends");
    for file in 1..=12 {
        for block in 0..4 {
            write(parent, key(file, block), Generation::SINGLE, 77);
            write(parent, key(file, block), generation(epoch, 2), 78);
        }
    }
    write(parent, key(99, 0), generation(epoch, 1), 79);
    sync(parent).await;
    Lineage::up_to(generation(epoch, 1))
}

/// Makes the suite's tests: `conformance_tests!(expression)`, where the expression is evaluated in an
/// async function and gives a fresh `impl Volume`. With `, ignore = "why"` behind it they are ignored tests.
#[macro_export]
macro_rules! conformance_tests {
    ($volume:expr) => {
        $crate::conformance_tests!(@all each, $volume);
    };
    ($volume:expr, ignore = $why:literal) => {
        $crate::conformance_tests!(@all ignored $why, $volume);
    };
    (@all $how:ident $($why:literal)?, $volume:expr) => {
        $crate::conformance_tests!(@$how $($why)? $volume,
            own_writes_are_seen_at_once,
            synced_writes_are_seen_by_everybody,
            a_sync_of_one_file_covers_that_file,
            blocks_that_were_never_written_are_absent,
            the_newest_write_of_a_generation_wins,
            each_generation_keeps_its_version,
            an_expected_version_is_read_from_one_replica,
            pending_writes_of_two_generations_both_arrive,
            nobody_writes_without_an_epoch,
            wrong_sizes_are_refused,
            epochs_ascend_and_name_their_owner,
            an_epoch_is_confirmed_until_a_newer_one_is_owned,
            a_new_owner_fences_the_old_one,
            late_writes_of_a_fenced_owner_never_appear,
            versions_ascend_across_epochs,
            promoted_blocks_are_stable,
            promotion_sees_own_writes,
            absent_blocks_are_not_promoted,
            records_are_read_back,
            records_are_listed_by_prefix,
            removed_records_are_gone,
            owner_records_are_fenced,
            node_records_need_no_epoch,
            nodes_take_turns_at_a_record,
            promoted_records_are_stable,
            removed_files_are_gone,
            blocks_before_are_gone,
            retained_images_stay_readable,
            a_takeover_leaves_dead_generations_out,
            many_writers_tasks_and_syncs,
            room_and_zones_are_reported,
        );
    };
    (@each $volume:expr, $($name:ident,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let volume = $volume;
            $crate::conformance::$name(&volume).await;
        }
    )*};
    (@ignored $why:literal $volume:expr, $($name:ident,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = $why]
        async fn $name() {
            let volume = $volume;
            $crate::conformance::$name(&volume).await;
        }
    )*};
}

fn key(file: u64, block: u64) -> BlockKey {
    BlockKey::new(FileId(file), block)
}

fn generation(epoch: Epoch, number: u32) -> Generation {
    Generation { epoch, number }
}

fn contents(storage: &dyn Storage, byte: u8) -> Bytes {
    Bytes::from(vec![byte; storage.settings().block_size_bytes as usize])
}

async fn owner(volume: &dyn Volume, name: &str) -> (Arc<dyn Storage>, Epoch) {
    let storage = volume.open().await;
    let name = NodeName::new(name).expect("a valid name");
    let epoch = storage.own_epoch(&name).await.expect("nobody contends");
    (storage, epoch)
}

fn write(storage: &dyn Storage, key: BlockKey, generation: Generation, byte: u8) {
    let data = contents(storage, byte);
    storage
        .write(key, generation, data)
        .expect("the owner writes");
}

async fn sync(storage: &dyn Storage) {
    storage
        .csync(SyncScope::Volume)
        .await
        .expect("the owner syncs");
}

/// The first byte of a block, which is all that these tests write.
async fn read(storage: &dyn Storage, key: BlockKey, up_to: Generation) -> Option<u8> {
    let block = storage.read(key, up_to).await.expect("zones are there");
    block.map(|b| {
        assert!(b.generation <= up_to);
        assert!(b.data.iter().all(|byte| *byte == b.data[0]));
        b.data[0]
    })
}

async fn latest(storage: &dyn Storage, key: BlockKey) -> Option<u8> {
    read(storage, key, Generation::MAX).await
}
