//! Blocks read ahead of redo: which, and that they are the right ones.

use std::sync::Arc;

use volume::seal::load_seals;
use volume::standby::StandbyView;

use super::support::{BLOCK, Database, Volume, shared};

const TABLE: &str = "base/5/16384";
const BLOCKS: u64 = 8;

async fn fill(database: &Database, byte: u8) {
    for block in 0..BLOCKS {
        let page = vec![byte; BLOCK];
        let at = block * BLOCK as u64;
        database.write(TABLE, at, &page).await.unwrap();
    }
}

/// Moves to the last seal, everything before which is replayed.
async fn follow(volume: &Volume, view: &Arc<StandbyView>) {
    let storage = shared(&volume.cluster.client());
    let seal = load_seals(&storage).await.unwrap().pop().unwrap();
    let base = view.load_next(&seal).await.unwrap();
    view.show_log(base.namespace.clone(), seal.end);
    let plan = view.plan_move(base).await.unwrap();
    assert!(view.move_base(plan).unwrap());
}

async fn attached(volume: &Volume) -> (Database, Arc<StandbyView>, Database) {
    let (_, active) = volume.init().await;
    active.create(TABLE).unwrap();
    fill(&active, 1).await;
    active.seal(10).await;
    let (view, standby) = volume.attach().await;
    (active, view, standby)
}

#[tokio::test]
async fn cached_or_absent_blocks_are_not_fetched() {
    let volume = Volume::new();
    let (_active, view, standby) = attached(&volume).await;
    for block in 0..3 {
        view.prefetch(TABLE, block).unwrap().await.unwrap();
    }
    assert!(view.prefetch(TABLE, 0).is_none(), "it is in the cache");
    standby
        .write(TABLE, 4 * BLOCK as u64, &[7; BLOCK])
        .await
        .unwrap();
    assert!(view.prefetch(TABLE, 4).is_none(), "it is in the overlay");
    assert!(view.prefetch(TABLE, BLOCKS).is_none(), "behind the end");
    assert!(view.prefetch("base/5/1", 0).is_none(), "no such file");
    standby.truncate(TABLE, 6 * BLOCK as u64).await.unwrap();
    assert!(view.prefetch(TABLE, 6).is_none(), "cut off");
    standby.create("base/5/2").unwrap();
    assert!(view.prefetch("base/5/2", 0).is_none(), "made by redo");
    let stats = view.prefetch_stats();
    assert_eq!((stats.fetched, stats.used, stats.unread), (3, 0, 3));
    standby.read(TABLE).await.unwrap();
    let stats = view.prefetch_stats();
    assert_eq!((stats.used, stats.unread, stats.joined), (3, 0, 0));
}

/// Blocks that redo had read took the places of those that it had yet to read.
#[tokio::test]
async fn blocks_read_by_redo_make_room() {
    let volume = Volume::new();
    let (_active, view, standby) = attached(&volume).await;
    view.prefetch(TABLE, 0).unwrap().await.unwrap();
    assert!(view.warm(TABLE, 1).await.unwrap());
    standby.read(TABLE).await.unwrap();
    assert!(
        view.prefetch(TABLE, 0).is_some(),
        "PostgreSQL has it, and changes it"
    );
    assert!(
        view.prefetch(TABLE, 1).is_none(),
        "clients may want it again"
    );
}

#[tokio::test]
async fn a_read_waits_for_what_is_on_its_way() {
    let volume = Volume::new();
    let (_active, view, standby) = attached(&volume).await;
    let ino = standby.ino(TABLE).unwrap();
    let read = |block: u64| {
        let view = Arc::clone(&standby.view);
        tokio::spawn(async move { view.read(ino, block * BLOCK as u64, BLOCK as u32).await })
    };
    let fetch = view.prefetch(TABLE, 2).unwrap();
    assert!(view.prefetch(TABLE, 2).is_none(), "once is enough");
    let reading = read(2);
    while view.prefetch_stats().joined == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!reading.is_finished());
    fetch.await.unwrap();
    assert_eq!(reading.await.unwrap().unwrap(), vec![1; BLOCK]);
    let stats = view.prefetch_stats();
    assert_eq!((stats.fetched, stats.used), (1, 1));

    let given_up = view.prefetch(TABLE, 3).unwrap();
    let reading = read(3);
    while view.prefetch_stats().joined < 2 {
        tokio::task::yield_now().await;
    }
    drop(given_up);
    assert_eq!(reading.await.unwrap().unwrap(), vec![1; BLOCK]);
}

#[tokio::test]
async fn blocks_fetched_while_the_base_moves_are_those_of_their_image() {
    let volume = Volume::new();
    let (active, view, standby) = attached(&volume).await;
    for round in 2..20u8 {
        fill(&active, round).await;
        active.seal(10 * u64::from(round)).await;
        // Some arrive before the move, some are on their way during it.
        let mut underway = Vec::new();
        for block in 0..BLOCKS {
            if let Some(fetch) = view.prefetch(TABLE, block) {
                match block % 2 {
                    0 => fetch.await.unwrap(),
                    _ => underway.push(fetch),
                }
            }
        }
        follow(&volume, &view).await;
        for block in 0..BLOCKS / 2 {
            if let Some(fetch) = view.prefetch(TABLE, block) {
                fetch.await.unwrap();
            }
        }
        for fetch in underway {
            fetch.await.unwrap();
        }
        let expected = vec![round; BLOCKS as usize * BLOCK];
        assert_eq!(standby.read(TABLE).await.unwrap(), expected, "{round}");
    }
    assert!(view.prefetch_stats().used > 0);
}

#[tokio::test]
async fn hot_blocks_of_one_view_are_fetched_by_the_next() {
    let volume = Volume::new();
    let (active, view, standby) = attached(&volume).await;
    view.prefetch(TABLE, 1).unwrap().await.unwrap();
    standby
        .write(TABLE, 5 * BLOCK as u64, &[7; BLOCK])
        .await
        .unwrap();
    let mut hot = view.hot_blocks(100);
    hot.sort_by_key(|key| key.block);
    let blocks: Vec<u64> = hot.iter().map(|key| key.block.0).collect();
    assert_eq!(blocks, [1, 5]);
    assert_eq!(view.hot_blocks(1).len(), 1);

    fill(&active, 2).await;
    active.seal(20).await;
    let (next, standby) = volume.attach().await;
    for key in &hot {
        next.prefetch_hot(*key).unwrap().await.unwrap();
    }
    assert!(next.prefetch(TABLE, 5).is_none(), "it is at hand");
    assert_eq!(standby.read(TABLE).await.unwrap()[..BLOCK], [2; BLOCK]);

    active.unlink(TABLE).unwrap();
    active.seal(30).await;
    let (last, _) = volume.attach().await;
    assert!(last.prefetch_hot(hot[0]).is_none(), "its file is gone");
}

#[tokio::test]
async fn the_place_where_redo_reads_is_known() {
    const SEGMENT: u64 = super::support::SEGMENT;
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    for number in 1..3 {
        active
            .put(&format!("pg_wal/{number}"), &[1; SEGMENT as usize])
            .await;
    }
    active.seal(3 * SEGMENT).await;
    let (view, standby) = volume.attach().await;
    let redo = view.watch_redo();
    let read = async |number: u64, offset: u64| {
        let ino = standby.ino(&format!("pg_wal/{number}")).unwrap();
        let read = standby.view.read(ino, offset, BLOCK as u32);
        read.await.unwrap();
        redo.borrow().0.0
    };
    let block = BLOCK as u64;
    assert_eq!(read(1, block).await, SEGMENT + block);
    assert_eq!(
        read(2, 0).await,
        SEGMENT + block,
        "a look at a segment's header"
    );
    assert_eq!(read(2, 2 * block).await, 2 * SEGMENT + 2 * block);
    assert_eq!(read(1, SEGMENT - block).await, 2 * SEGMENT - block);
    assert_eq!(read(2, 0).await, 2 * SEGMENT, "on to the next segment");
}
