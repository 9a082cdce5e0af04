//! Seals, what they pin, and what is given back.

use std::sync::Arc;

use dax::ids::{BlockIndex, BlockKey, FileId, Generation, NodeName};
use dax::storage::{Storage, SyncScope};
use volume::claim::Claim;
use volume::error::Error;
use volume::latest::{self, Latest};
use volume::lsn::Lsn;
use volume::namespace::op::{self, Op};
use volume::seal::{self, Base};
use volume::view::{NewInode, Timestamp, View};

use crate::common::{BLOCK, Life, OWNER, SEGMENT, Volume};

const NOW: Timestamp = Timestamp(5);

#[tokio::test]
async fn formatting_twice_is_refused() {
    let volume = Volume::format().await;
    let storage: Arc<dyn Storage> = volume.owner().await;
    let again = latest::format(&storage, OWNER, NOW).await;
    assert!(matches!(again, Err(Error::Exists)));
    let empty = dax::memory::MemoryCluster::new(Default::default());
    let owner = empty.client();
    owner.own_epoch(&NodeName::new("a").unwrap()).await.unwrap();
    assert!(matches!(
        Latest::recover(owner, NOW).await,
        Err(Error::NotFound)
    ));
}

// hazard: N7
#[tokio::test]
async fn two_seals_are_kept_with_their_payload() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let mut made = Vec::new();
    for redo in 0..4 {
        made.push(life.seal(redo).await);
    }
    let kept = seal::load_seals(&volume.reader()).await.unwrap();
    assert_eq!(kept, made[2..]);
    assert_eq!(kept[1].payload, [1, 2, 3]);
    assert!(kept[0].generation < kept[1].generation);
    assert_eq!(life.view.seals(), kept);
    let next = volume.open().await;
    let last = next.seal(9).await;
    assert!(kept[1].generation < last.generation);
    assert!(last.lineage.contains(kept[1].generation));
}

async fn segment(life: &Life, number: u64) -> FileId {
    let ino = life.create(&format!("wal/{number}"), NewInode::File).ino;
    life.write(ino, 0, vec![number as u8; BLOCK]).await;
    FileId(ino.0)
}

#[tokio::test]
async fn removed_log_stays_until_no_seal_and_no_claim_needs_it() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let wal = life.create("wal", NewInode::Directory).ino;
    for number in 1..=3 {
        segment(&life, number).await;
        life.view
            .unlink(wal, number.to_string().as_bytes(), NOW)
            .unwrap();
    }
    // Not a segment: gone at once.
    life.create("wal/temp", NewInode::File);
    life.view.unlink(wal, b"temp", NOW).unwrap();
    let retained = |life: &Life| {
        let namespace = life.view.namespace();
        let names: Vec<String> = namespace
            .all_retained()
            .map(|(_, name, _)| String::from_utf8_lossy(name).into_owned())
            .collect();
        names
    };
    assert_eq!(retained(&life), ["1", "2", "3"]);
    assert!(life.find("wal/1").is_none());

    let reader = volume.reader();
    let mut claim = Claim::everything(NodeName::new("s").unwrap());
    claim.put(&reader).await.unwrap();
    life.seal(10 * SEGMENT).await;
    life.seal(10 * SEGMENT).await;
    life.view.reclaim().await.unwrap();
    assert_eq!(
        retained(&life),
        ["1", "2", "3"],
        "somebody claims everything"
    );

    claim.everything = false;
    claim.journal = life.view.seals()[0].journal;
    claim.log_from = Lsn(2 * SEGMENT + 1);
    claim.put(&reader).await.unwrap();
    life.view.reclaim().await.unwrap();
    assert_eq!(retained(&life), ["2", "3"]);

    Claim::release(&reader, &claim.node).await.unwrap();
    life.view.reclaim().await.unwrap();
    assert_eq!(retained(&life), Vec::<String>::new());
}

#[tokio::test]
async fn removed_files_and_old_journal_are_given_back_after_two_seals() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    for i in 0..20 {
        let ino = life.create(&format!("f{i}"), NewInode::File).ino;
        life.write(ino, 0, vec![1; 4 * BLOCK]).await;
    }
    life.seal(0).await;
    life.view.sync_all().await.unwrap();
    for i in 0..20 {
        life.view
            .unlink(volume::view::Ino::ROOT, format!("f{i}").as_bytes(), NOW)
            .unwrap();
    }
    life.seal(0).await;
    life.view.reclaim().await.unwrap();
    assert_eq!(
        life.view.namespace().removed().count(),
        20,
        "the first seal still shows them"
    );
    assert!(volume.cluster.stored_versions() >= 80);
    life.seal(0).await;
    life.seal(0).await;
    life.view.reclaim().await.unwrap();
    assert_eq!(life.view.namespace().removed().count(), 0);
    assert!(
        volume.cluster.stored_versions() < 40,
        "{}",
        volume.cluster.stored_versions()
    );
}

#[tokio::test]
async fn graves_of_a_dead_epoch_are_given_back_by_its_successor() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let ino = life.create("f", NewInode::File).ino;
    life.write(ino, 0, vec![1; 40 * BLOCK]).await;
    life.seal(0).await;
    life.view
        .unlink(volume::view::Ino::ROOT, b"f", NOW)
        .unwrap();
    life.view.sync_all().await.unwrap();
    let next = volume.open().await;
    next.seal(0).await;
    next.view.reclaim().await.unwrap();
    assert_eq!(
        next.view.namespace().removed().count(),
        1,
        "the older kept seal has it"
    );
    next.seal(0).await;
    next.seal(0).await;
    next.view.reclaim().await.unwrap();
    assert_eq!(next.view.namespace().removed().count(), 0);
    assert!(volume.cluster.stored_versions() < 40);
}

#[tokio::test]
async fn a_claimed_base_stays_readable_when_its_seal_is_no_longer_kept() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let ino = life.create("f", NewInode::File).ino;
    let gone = life.create("gone", NewInode::File).ino;
    life.write(ino, 0, vec![1; BLOCK]).await;
    life.write(gone, 0, vec![1; BLOCK]).await;
    let seal = life.seal(0).await;
    let reader = volume.reader();
    let base = Base::load(&reader, &seal).await.unwrap();
    let claim = Claim {
        node: NodeName::new("s").unwrap(),
        images: vec![seal.lineage.clone()],
        journal: seal.journal,
        log_from: Lsn(0),
        everything: false,
        token: Default::default(),
    };
    claim.put(&reader).await.unwrap();
    life.view
        .unlink(volume::view::Ino::ROOT, b"gone", NOW)
        .unwrap();
    for round in 2..6 {
        life.write(ino, 0, vec![round; BLOCK]).await;
        life.seal(0).await;
        life.view.reclaim().await.unwrap();
    }
    for file in [ino, gone].map(|ino| FileId(ino.0)) {
        let inode = base.namespace.get(file).unwrap();
        let key = dax::ids::BlockKey {
            file,
            block: BlockIndex(0),
        };
        let block = volume::image::read_block(&reader, &seal.lineage, inode, key)
            .await
            .unwrap();
        assert_eq!(block.unwrap().data[..], [1; BLOCK]);
    }
    let mut tail = base.tail(&reader);
    tail.advance(life.view.journal_synced()).await.unwrap();
}

#[tokio::test]
async fn a_long_journal_gets_a_new_snapshot_and_the_image_stays_right() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let first = life.seal(0).await;
    for i in 0..9000 {
        let name = format!("{:0>150}", i);
        let parent = volume::view::Ino::ROOT;
        life.view
            .create(parent, name.as_bytes(), NewInode::File, OWNER, NOW)
            .unwrap();
    }
    let second = life.seal(0).await;
    assert_ne!(first.snapshot, second.snapshot);
    let third = life.seal(0).await;
    assert_eq!(second.snapshot, third.snapshot);
    life.view.reclaim().await.unwrap();
    let base = Base::load(&volume.reader(), &third).await.unwrap();
    let mut expected = life.view.namespace();
    expected
        .apply(&Op::Reclaimed {
            ids: expected.removed().collect(),
        })
        .unwrap();
    assert_eq!(base.namespace, expected);
    let next = volume.open().await;
    assert_eq!(next.view.namespace().len(), 9001);
}

#[test]
fn operations_decode_to_what_was_encoded() {
    let batch = vec![
        Op::SetSize {
            id: FileId(7),
            size: 1 << 40,
            at: NOW,
        },
        Op::DropName {
            parent: FileId(1),
            name: b"x".to_vec(),
        },
    ];
    let bytes = op::encode(&batch);
    assert_eq!(op::decode(&bytes).unwrap(), batch);
    assert!(matches!(op::decode(&[99, 0]), Err(Error::Damaged(_))));
    assert!(op::decode(&bytes[..bytes.len() - 1]).is_err());
}

#[tokio::test]
async fn a_scrub_gives_back_what_a_crash_left_and_nothing_else() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    life.create("data", NewInode::Directory);
    let kept = life.create("data/kept", NewInode::File).ino;
    life.write(kept, 0, &[7; BLOCK]).await;
    let removed = life.create("data/removed", NewInode::File).ino;
    life.write(removed, 0, &[8; BLOCK]).await;
    life.seal(0).await;
    let data = life.find("data").unwrap().ino;
    life.view.unlink(data, b"removed", NOW).unwrap();
    life.view.sync_all().await.unwrap();
    // Blocks of a file whose creation did not reach the journal before the crash.
    let epoch = life.storage.epoch().unwrap();
    let lost = FileId::new(epoch, 1 << 30);
    let generation = Generation { epoch, number: 5 };
    life.storage
        .write(BlockKey::new(lost, 0), generation, vec![9; BLOCK].into())
        .unwrap();
    life.storage.csync(SyncScope::Volume).await.unwrap();
    drop(life);

    let next = volume.open().await;
    let fresh = next.create("data/fresh", NewInode::File).ino;
    next.write(fresh, 0, &[6; BLOCK]).await;
    let mut scrub = next.view.scrub().await.unwrap();
    let step = scrub.step().await.unwrap();
    assert_eq!(step.garbage_files, 1, "{step:?}");
    assert!(step.blocks >= 4 && step.complete.is_some(), "{step:?}");
    let stored = async |file: u64| {
        let key = BlockKey::new(FileId(file), 0);
        let read = next.storage.read(key, Generation::MAX).await.unwrap();
        read.is_some()
    };
    assert!(!stored(lost.0).await);
    assert!(stored(kept.0).await && stored(fresh.0).await);
    assert!(stored(removed.0).await, "the last seal still has it");
    let again = next.view.scrub().await.unwrap().step().await.unwrap();
    assert_eq!(again.garbage_files, 0);
}
