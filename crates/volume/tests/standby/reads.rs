//! Reads of data blocks with the active's lists: what is known without asking a quorum, across moves,
//! takeovers and crashes. The nearest replica is as stale as can be (see [`Volume::new`]), so whatever
//! is expected wrongly is read wrongly.

use std::sync::Arc;
use std::time::Duration;

use dax::memory::MemoryStorage;
use dax::storage::Storage;
use volume::claim::Claim;
use volume::lists::KEPT_LISTS;
use volume::lsn::Lsn;
use volume::seal::{Seal, load_seals};
use volume::standby::{ReadStats, StandbyView};

use super::support::{BLOCK, Database, Volume, blocks, node, shared};

/// A volume of one file, sealed at 100.
async fn sealed(bytes: &[u8]) -> (Volume, Database) {
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    active.put("base/5/1000", &blocks(bytes)).await;
    active.seal(100).await;
    (volume, active)
}

/// Writes blocks of the file, each twice: an earlier version of the same generation is durable, too.
async fn overwrite(active: &Database, at: u64, bytes: &[u8]) {
    let offset = at * BLOCK as u64;
    let old = vec![77; bytes.len()];
    for bytes in [&old[..], bytes] {
        let written = active.write("base/5/1000", offset, &blocks(bytes)).await;
        written.unwrap();
        active.view.sync_all().await.unwrap();
    }
}

pub(crate) async fn move_to(view: &Arc<StandbyView>, seal: &Seal) {
    let base = view.load_next(seal).await.unwrap();
    view.show_log(base.namespace.clone(), seal.end);
    let plan = view.plan_move(base).await.unwrap();
    assert!(view.move_base(plan).unwrap());
}

/// The first byte of each block, which is all that these tests write.
fn firsts(file: Vec<u8>) -> Vec<u8> {
    file.chunks(BLOCK).map(|block| block[0]).collect()
}

/// How many reads one replica answered, and how many a quorum.
fn asked(storage: &MemoryStorage) -> (u64, u64) {
    let counters = storage.counters();
    (counters.reads_one, counters.reads_quorum)
}

/// What reading the file did, and what each of its blocks holds.
async fn reading(view: &Arc<StandbyView>, standby: &Database) -> (ReadStats, Vec<u8>) {
    let before = view.reads();
    let file = firsts(standby.read("base/5/1000").await.unwrap());
    let after = view.reads();
    let did = ReadStats {
        cached: after.cached - before.cached,
        expected: after.expected - before.expected,
        absent: after.absent - before.absent,
        unknown: after.unknown - before.unknown,
        ..after
    };
    (did, file)
}

#[tokio::test]
async fn unlisted_blocks_stay_cached_across_moves_and_listed_ones_do_not() {
    let (volume, active) = sealed(&[1, 2, 3, 4]).await;
    let (view, standby) = volume.attach().await;
    assert_eq!(reading(&view, &standby).await.0.unknown, 4);
    assert_eq!(reading(&view, &standby).await.0.cached, 4);
    for (at, seal) in [(1, 200), (3, 300)] {
        overwrite(&active, at, &[seal as u8]).await;
        let seal = active.seal(seal).await;
        move_to(&view, &seal).await;
        let (did, file) = reading(&view, &standby).await;
        assert_eq!(file, firsts(active.read("base/5/1000").await.unwrap()));
        assert_eq!((did.cached, did.expected, did.unknown), (3, 1, 0), "{at}");
    }
    let counters = view.storage().counters();
    assert_eq!((counters.reads_one, counters.reads_stale), (2, 0));
    assert_eq!(view.reads().moves_listed, 2);
}

#[tokio::test]
async fn an_attach_learns_from_the_last_lists() {
    let (volume, active) = sealed(&[1, 2, 3, 4]).await;
    overwrite(&active, 0, &[5]).await;
    active.seal(200).await;
    let (view, standby) = volume.attach().await;
    assert!(view.learn_versions().await.unwrap() >= 4);
    let (did, file) = reading(&view, &standby).await;
    assert_eq!(file, [5, 2, 3, 4]);
    assert_eq!((did.expected, did.unknown), (4, 0));
    // Late lists do not undo what is known of a newer base.
    let (view, standby) = volume.attach().await;
    overwrite(&active, 1, &[6]).await;
    move_to(&view, &active.seal(300).await).await;
    view.learn_versions().await.unwrap();
    assert_eq!(reading(&view, &standby).await.1, [5, 6, 3, 4]);
}

/// A hole is known as well as a block.
#[tokio::test]
async fn zones_are_not_asked_twice_for_an_absent_block() {
    let (volume, active) = sealed(&[1]).await;
    active
        .truncate("base/5/1000", 3 * BLOCK as u64)
        .await
        .unwrap();
    let first = active.seal(200).await;
    let (view, standby) = volume.attach_at(&first, 1 << 20).await;
    assert_eq!(reading(&view, &standby).await.0.unknown, 3);
    let (did, file) = reading(&view, &standby).await;
    assert_eq!((did.cached, did.absent), (1, 2));
    assert_eq!(file, [1, 0, 0]);
    overwrite(&active, 1, &[8]).await;
    move_to(&view, &active.seal(300).await).await;
    let (did, file) = reading(&view, &standby).await;
    assert_eq!((did.cached, did.absent, did.expected), (1, 1, 1));
    assert_eq!(file, [1, 8, 0]);
}

/// Reads that began on the old base, and those of files kept as in it, go on seeing it.
#[tokio::test]
async fn a_read_of_the_old_base_is_not_answered_with_the_new_one() {
    let (volume, active) = sealed(&[1, 2]).await;
    let (view, standby) = volume.attach().await;
    let claim = Claim::everything(node("standby"));
    claim.put(&shared(&volume.cluster.client())).await.unwrap();
    let open = standby.ino("base/5/1000").unwrap();
    standby.view.open(open).unwrap();
    active.unlink("base/5/1000").unwrap();
    active.put("base/5/1000", &blocks(&[3, 4])).await;
    let seal = active.seal(200).await;
    move_to(&view, &seal).await;
    assert_eq!(firsts(standby.read_ino(open).await.unwrap()), [1, 2]);
    move_to(&view, &active.seal(300).await).await;
    assert_eq!(firsts(standby.read_ino(open).await.unwrap()), [1, 2]);
    standby.view.release(open);
}

#[tokio::test]
async fn a_move_without_lists_forgets_and_is_right() {
    let (volume, active) = sealed(&[1, 2, 3]).await;
    let (view, standby) = volume.attach().await;
    reading(&view, &standby).await;
    overwrite(&active, 1, &[9]).await;
    let mut seal = active.seal(200).await;
    seal.lists.clear();
    move_to(&view, &seal).await;
    let (did, file) = reading(&view, &standby).await;
    assert_eq!(file, [1, 9, 3]);
    assert_eq!((did.cached, did.expected, did.unknown), (0, 0, 3));
    assert_eq!(view.reads().moves_unlisted, 1);
    // From there on it knows again.
    overwrite(&active, 0, &[8]).await;
    move_to(&view, &active.seal(300).await).await;
    let (did, file) = reading(&view, &standby).await;
    assert_eq!(file, [8, 9, 3]);
    assert_eq!((did.cached, did.expected, did.unknown), (2, 1, 0));
}

/// A list is good for as many seals as name it; then it is given back.
#[tokio::test]
async fn a_base_moves_over_several_seals_at_once() {
    for (seals, listed) in [(KEPT_LISTS, 1), (KEPT_LISTS + 1, 0)] {
        let (volume, active) = sealed(&[50; 12]).await;
        let (view, standby) = volume.attach().await;
        reading(&view, &standby).await;
        for number in 0..seals as u64 {
            overwrite(&active, number, &[number as u8 + 1]).await;
            active.seal(200 + number).await;
        }
        let storage = shared(&volume.cluster.client());
        let last = load_seals(&storage).await.unwrap().pop().unwrap();
        assert_eq!(last.lists.len(), KEPT_LISTS);
        let first = &last.lists[0].file;
        move_to(&view, &last).await;
        assert_eq!(view.reads().moves_listed, listed);
        let (did, file) = reading(&view, &standby).await;
        let mut expected = vec![50; 12];
        (0..seals).for_each(|i| expected[i] = i as u8 + 1);
        assert_eq!(file, expected);
        let known = if listed == 1 { 12 } else { KEPT_LISTS as u64 };
        assert_eq!(
            (did.unknown, did.cached + did.expected),
            (12 - known, known)
        );

        // Two seals later nobody names the first list any more, and nobody reads what named it after two
        // more.
        let stored = |file: &dax::ids::FileId| {
            let key = dax::ids::BlockKey::new(*file, 0);
            let block = volume.cluster.durable(key, dax::ids::Generation::SINGLE);
            block.is_some()
        };
        assert!(stored(first));
        for at in 400..404 {
            active.seal(at).await;
            active.active.as_ref().unwrap().reclaim().await.unwrap();
        }
        assert!(!stored(first));
        assert!(stored(&last.lists[KEPT_LISTS - 1].file));
    }
}

/// What the standby brings along at a takeover is in the first list of the new epoch, so another standby
/// moves over it, and knows what it needs.
#[tokio::test]
async fn a_takeover_is_listed() {
    let (volume, active) = sealed(&[1, 2, 3, 4]).await;
    let (view, standby) = volume.attach().await;
    let (other, others) = volume.attach().await;
    reading(&other, &others).await;
    // The dead active goes on: its seal is of another line than the next.
    overwrite(&active, 3, &[44]).await;
    let dead = active.seal(200).await;
    view.show_log(active.active.as_ref().unwrap().namespace(), Lsn(150));
    standby
        .write("base/5/1000", BLOCK as u64, &blocks(&[22]))
        .await
        .unwrap();
    standby.put("base/5/2000", &blocks(&[5])).await;
    let (_, next) = volume.take_over(&view).await;
    next.write("base/5/1000", 0, &blocks(&[11])).await.unwrap();
    let seal = next.seal(300).await;
    assert!(!seal.continues(&dead));
    let names: Vec<_> = seal.lists.iter().map(|list| list.after).collect();
    assert!(!names.contains(&dead.generation));

    move_to(&other, &seal).await;
    assert_eq!(other.reads().moves_listed, 1);
    let (did, file) = reading(&other, &others).await;
    assert_eq!(file, [11, 22, 3, 4]);
    assert_eq!((did.cached, did.expected, did.unknown), (2, 2, 0));
    assert_eq!(others.tree("base").await, next.tree("base").await);
    assert_eq!(other.reads().unknown, 4, "only what it read at first");
}

/// A list that a crash leaves without its seal is garbage, and no list of the next epoch builds on it.
// The nearest zone has what the dead active wrote after the seal, and must not be believed.
#[tokio::test]
async fn takeover_keeps_the_cache_of_its_base() {
    let (volume, active) = sealed(&[1, 2, 3, 4]).await;
    let (view, standby) = volume.attach().await;
    standby.read("base/5/1000").await.unwrap();
    overwrite(&active, 0, &[9, 9, 9, 9]).await;
    let (storage, next) = volume.take_over(&view).await;
    let before = asked(&storage);
    assert_eq!(
        firsts(next.read("base/5/1000").await.unwrap()),
        [1, 2, 3, 4]
    );
    assert_eq!(asked(&storage), before, "nobody is asked");
    overwrite(&next, 1, &[6]).await;
    assert_eq!(
        firsts(next.read("base/5/1000").await.unwrap()),
        [1, 6, 3, 4]
    );
}

#[tokio::test]
async fn takeover_asks_one_zone_for_known_blocks_of_its_base_and_prefers_its_own_writes() {
    // More than the cache holds.
    const BLOCKS: usize = 600;
    let (volume, active) = sealed(&[1; BLOCKS]).await;
    let (view, _standby) = volume.attach().await;
    view.learn_versions().await.unwrap();
    overwrite(&active, 0, &[9; BLOCKS]).await;
    let (storage, next) = volume.take_over(&view).await;
    let before = asked(&storage);
    let mut expected = vec![1; BLOCKS];
    assert_eq!(firsts(next.read("base/5/1000").await.unwrap()), expected);
    let after = (before.0 + BLOCKS as u64, before.1);
    assert_eq!(asked(&storage), after, "one zone, and no quorum");
    for at in (1..BLOCKS).step_by(2) {
        let offset = (at * BLOCK) as u64;
        let written = next.write("base/5/1000", offset, &blocks(&[6])).await;
        written.unwrap();
        expected[at] = 6;
    }
    // Cut off, and grown again over it.
    let size = |blocks: usize| (blocks * BLOCK) as u64;
    next.truncate("base/5/1000", size(500)).await.unwrap();
    next.truncate("base/5/1000", size(BLOCKS)).await.unwrap();
    expected[500..].fill(0);
    next.view.sync_all().await.unwrap();
    for _ in 0..2 {
        assert_eq!(firsts(next.read("base/5/1000").await.unwrap()), expected);
    }
}

#[tokio::test]
async fn a_crash_between_list_and_seal_leaves_garbage_only() {
    let volume = Volume::new();
    let (storage, active) = volume.init().await;
    active.put("base/5/1000", &blocks(&[1, 2])).await;
    let sealed = active.seal(100).await;
    let (view, standby) = volume.attach().await;
    reading(&view, &standby).await;
    active.write("base/5/1000", 0, &blocks(&[9])).await.unwrap();
    let before = storage.unsynced().len();
    volume.cluster.hold_syncs(true);
    let dying = tokio::spawn(async move { active.seal(200).await });
    while storage.unsynced().len() == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let list = storage.unsynced().last().unwrap().key;
    storage.crash(|_| true);
    dying.abort();
    volume.cluster.hold_syncs(false);
    let stored = || {
        let single = dax::ids::Generation::SINGLE;
        volume.cluster.durable(list, single).is_some()
    };
    assert!(stored());
    let reader = shared(&volume.cluster.client());
    let seals = load_seals(&reader).await.unwrap();
    assert_eq!(seals.last(), Some(&sealed));

    standby
        .write("base/5/1000", BLOCK as u64, &blocks(&[22]))
        .await
        .unwrap();
    let (_, next) = volume.take_over(&view).await;
    let seal = next.seal(300).await;
    let own = seal.lists.last().unwrap();
    assert_eq!((own.after, own.to), (sealed.generation, seal.generation));
    let (view, standby) = volume.attach_at(&seal, 1 << 20).await;
    view.learn_versions().await.unwrap();
    assert_eq!(reading(&view, &standby).await.1, [1, 22]);
    assert_eq!(view.reads().unknown, 0);
    let mut scrub = next.active.as_ref().unwrap().scrub().await.unwrap();
    assert_eq!(scrub.step().await.unwrap().garbage_files, 1);
    assert!(!stored());
    view.learn_versions().await.unwrap();
    assert_eq!(reading(&view, &standby).await.1, [1, 22]);
}

/// Whoever opens a volume twice in an epoch does not know what was written before.
#[tokio::test]
async fn a_second_life_in_an_epoch_lists_nothing_at_first() {
    let volume = Volume::new();
    let (storage, active) = volume.init().await;
    active.put("base/5/1000", &blocks(&[1, 2])).await;
    active.seal(100).await;
    active.write("base/5/1000", 0, &blocks(&[3])).await.unwrap();
    active.view.sync_all().await.unwrap();
    drop(active);
    let again = volume.open_again(storage).await;
    again
        .write("base/5/1000", BLOCK as u64, &blocks(&[4]))
        .await
        .unwrap();
    assert!(again.seal(200).await.lists.is_empty());
    again.write("base/5/1000", 0, &blocks(&[5])).await.unwrap();
    assert_eq!(again.seal(300).await.lists.len(), 1);
    let (view, standby) = volume.attach().await;
    view.learn_versions().await.unwrap();
    assert_eq!(reading(&view, &standby).await.1, [5, 4]);
}
