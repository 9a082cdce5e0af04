//! The journal through crashes, readers and successors.

use dax::ids::FileId;
use dax::memory::UnsyncedWrite;
use dax::storage::Storage;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use volume::journal::{JournalPos, JournalTail};
use volume::latest::Latest;
use volume::namespace::op::Op;
use volume::namespace::{Namespace, ROOT};
use volume::seal::{self, Base};
use volume::view::{Ino, NewInode, RenameMode, Timestamp, View};

use crate::common::{BLOCK, Life, OWNER, Volume};

/// Makes random changes; after each, the namespace as it is then.
async fn churn(life: &Life, rng: &mut SmallRng, steps: usize) -> Vec<(JournalPos, Namespace)> {
    let mut history = Vec::new();
    for step in 0..steps {
        let name = format!(
            "{}{}",
            "n".repeat(rng.random_range(1..200)),
            rng.random_range(0..20)
        );
        let other = format!("o{}", rng.random_range(0..20));
        let (name, other) = (name.as_bytes(), other.as_bytes());
        let now = Timestamp(step as i64);
        let root = Ino::ROOT;
        match rng.random_range(0..6) {
            0..=2 => drop(life.view.create(root, name, NewInode::File, OWNER, now)),
            3 => drop(life.view.unlink(root, other, now)),
            4 => {
                if let Some(entry) = life.view.read_dir(root).unwrap().first() {
                    let from = (root, &entry.name[..]);
                    drop(
                        life.view
                            .rename(from, (root, other), RenameMode::Replace, now),
                    );
                }
            }
            _ => life.view.fsync(Ino::ROOT).await.unwrap(),
        }
        history.push((life.view.journal_synced(), life.view.namespace()));
    }
    history
}

#[tokio::test]
async fn a_crash_that_keeps_any_subset_of_unsynced_blocks_leaves_a_prefix() {
    for seed in 0..60 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let volume = Volume::format().await;
        for _ in 0..3 {
            let life = volume.open().await;
            let before = life.view.namespace();
            let history = churn(&life, &mut rng, 60).await;
            // Some of the rest is on its way when the end comes.
            volume.cluster.hold_syncs(true);
            let flush =
                tokio::time::timeout(std::time::Duration::from_millis(1), life.view.sync_all());
            assert!(flush.await.is_err());
            let mut chosen = SmallRng::seed_from_u64(rng.random());
            let share = rng.random_range(0.0..1.0);
            life.storage
                .crash(|_: &UnsyncedWrite| chosen.random_bool(share));
            volume.cluster.hold_syncs(false);

            let synced = life.view.journal_synced();
            let storage = volume.owner().await;
            let latest = Latest::recover(storage, Timestamp(0)).await.unwrap();
            let found = latest.namespace();
            let at_least = history
                .iter()
                .rposition(|(at, _)| *at < synced)
                .map_or(0, |i| i + 1);
            let states = [before]
                .into_iter()
                .chain(history.into_iter().map(|(_, n)| n));
            let states: Vec<Namespace> = states.collect();
            let place = states.iter().rposition(|state| state == found);
            assert!(
                place.is_some(),
                "seed {seed}: not a prefix of what was done"
            );
            assert!(
                place >= Some(at_least),
                "seed {seed}: {place:?} lost what was synced at {at_least}"
            );
        }
    }
}

#[tokio::test]
async fn a_tail_follows_to_every_announced_position_and_a_successor_goes_on_behind_it() {
    let mut rng = SmallRng::seed_from_u64(1);
    let volume = Volume::format().await;
    let life = volume.open().await;
    let reader = volume.reader();
    let seals = seal::load_seals(&reader).await.unwrap();
    let base = Base::load(&reader, seals.last().unwrap()).await.unwrap();
    let mut tail: JournalTail = base.tail(&reader);
    for _ in 0..20 {
        churn(&life, &mut rng, 20).await;
        life.view.sync_all().await.unwrap();
        tail.advance(life.view.journal_synced()).await.unwrap();
        assert_eq!(tail.namespace(), &life.view.namespace());
    }
    let old = tail.position();
    let next = volume.open().await;
    churn(&next, &mut rng, 20).await;
    next.view.sync_all().await.unwrap();
    assert!(next.view.journal_synced() > old);
    tail.advance(next.view.journal_synced()).await.unwrap();
    assert_eq!(tail.namespace(), &next.view.namespace());
}

#[tokio::test]
async fn a_standby_that_follows_recovers_from_where_it_is() {
    let mut rng = SmallRng::seed_from_u64(2);
    let volume = Volume::format().await;
    let life = volume.open().await;
    churn(&life, &mut rng, 50).await;
    life.view.sync_all().await.unwrap();
    let storage = volume.cluster.client();
    let shared: Arc<dyn Storage> = storage.clone();
    let seals = seal::load_seals(&shared).await.unwrap();
    let mut tail = Base::load(&shared, &seals[0]).await.unwrap().tail(&shared);
    tail.advance(life.view.journal_synced()).await.unwrap();
    churn(&life, &mut rng, 50).await;
    life.view.sync_all().await.unwrap();
    storage
        .own_epoch(&dax::ids::NodeName::new("b").unwrap())
        .await
        .unwrap();
    let latest = Latest::recover_behind(tail, Timestamp(0)).await.unwrap();
    assert_eq!(latest.namespace(), &life.view.namespace());
}

#[tokio::test]
async fn a_switch_is_one_record_all_or_nothing() {
    let volume = Volume::format().await;
    let storage = volume.owner().await;
    let mut latest = Latest::recover(storage.clone(), Timestamp(0))
        .await
        .unwrap();
    let root = latest.namespace().get(ROOT).unwrap().clone();
    let id = latest.allocate();
    let mut inode = root.clone();
    inode.kind = volume::view::FileKind::File;
    inode.nlink = 1;
    inode.name = (*b"made").into();
    let ops = vec![
        Op::PutInode { id, inode },
        Op::PutName {
            parent: ROOT,
            name: b"made".to_vec(),
            id,
        },
    ];
    let mut broken = ops.clone();
    broken.push(Op::DropName {
        parent: ROOT,
        name: b"absent".to_vec(),
    });
    assert!(latest.apply(broken).is_err());
    assert!(latest.namespace().resolve("made").is_err());
    latest.apply(ops).unwrap();
    latest.commit().await.unwrap();
    let next = Latest::recover(volume.owner().await, Timestamp(0))
        .await
        .unwrap();
    assert_eq!(next.namespace().resolve("made").unwrap(), id);
    assert!(next.changed_since_seal());
}

/// At a takeover a file that the dead active had removed may be the view's still.
#[tokio::test]
async fn a_file_brought_back_keeps_its_blocks() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let file = FileId(life.create("f", NewInode::File).ino.0);
    life.write(Ino(file.0), 0, vec![1; BLOCK]).await;
    life.seal(0).await;
    let inode = life.view.namespace().get(file).unwrap().clone();
    life.view.unlink(Ino::ROOT, b"f", Timestamp(1)).unwrap();
    life.view.sync_all().await.unwrap();

    let storage = volume.owner().await;
    let mut latest = Latest::recover(storage.clone(), Timestamp(0))
        .await
        .unwrap();
    assert!(latest.namespace().removed().any(|id| id == file));
    let put = Op::PutInode { id: file, inode };
    let name = Op::PutName {
        parent: ROOT,
        name: b"f".to_vec(),
        id: file,
    };
    latest.apply(vec![put, name]).unwrap();
    let observer = Arc::new(volume::active::NoObserver);
    volume.open_latest(storage, latest, observer, None).await;
    let last = volume.open().await;
    for _ in 0..4 {
        last.seal(0).await;
        last.view.reclaim().await.unwrap();
    }
    assert_eq!(last.contents(Ino(file.0)).await, vec![1; BLOCK]);
}
