//! What a standby shows and does not show.

use std::sync::Arc;
use std::time::Duration;

use volume::error::Error;
use volume::lsn::Lsn;
use volume::recent_log::RecentLog;
use volume::standby::StandbyView;
use volume::view::{Fallocate, Ino, PageCache, View};

use super::reads::move_to;
use super::support::{BLOCK, Database, NOW, SEGMENT, Volume, blocks};

// hazard: H3
#[tokio::test]
async fn a_standby_shows_the_sealed_image_whatever_the_active_does_later() {
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    active.put("base/5/1000", &blocks(&[1, 2, 3, 4])).await;
    active.put("base/5/1001", &blocks(&[9])).await;
    active.seal(100).await;
    let (view, standby) = volume.attach().await;

    active
        .write("base/5/1000", BLOCK as u64, &blocks(&[7]))
        .await
        .unwrap();
    active
        .truncate("base/5/1000", 2 * BLOCK as u64)
        .await
        .unwrap();
    active
        .truncate("base/5/1000", 6 * BLOCK as u64)
        .await
        .unwrap();
    active.unlink("base/5/1001").unwrap();
    active.put("base/5/1002", &blocks(&[8])).await;
    active.view.sync_all().await.unwrap();
    active.seal(200).await;
    view.show_log(active.active.as_ref().unwrap().namespace(), Lsn(300));

    assert_eq!(standby.names("base/5"), ["1000", "1001"]);
    assert_eq!(
        standby.read("base/5/1000").await.unwrap(),
        blocks(&[1, 2, 3, 4])
    );
    assert_eq!(standby.read("base/5/1001").await.unwrap(), blocks(&[9]));
    assert_eq!(view.base_seal().redo, Lsn(100));
    assert_eq!(view.replay_limit(), Lsn(300));
}

// hazard: N5
#[tokio::test]
async fn the_kernel_caches_nothing_of_a_standby() {
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    active.put("base/5/1000", &blocks(&[1])).await;
    active.seal(100).await;
    let (view, standby) = volume.attach().await;
    assert_eq!(view.cache_policy().metadata, Duration::ZERO);
    assert_eq!(view.keep_missing(Ino::ROOT, b"promote"), Duration::ZERO);
    let cache = view.open(standby.ino("base/5/1000").unwrap()).unwrap();
    assert_eq!(cache, PageCache::Bypassed);
}

#[tokio::test]
async fn partial_writes_and_zeroing_keep_the_bytes_around_them() {
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    let mut expected = blocks(&[1, 2, 3, 4]);
    active.put("base/5/1000", &expected).await;
    active.seal(100).await;
    let (view, standby) = volume.attach().await;
    let ino = standby.ino("base/5/1000").unwrap();

    standby
        .write("base/5/1000", 4000, &[5; 5000])
        .await
        .unwrap();
    expected[4000..9000].fill(5);
    view.fallocate(ino, 100..12_300, Fallocate::Zero { keep_size: true }, NOW)
        .await
        .unwrap();
    expected[100..12_300].fill(0);
    assert_eq!(standby.read("base/5/1000").await.unwrap(), expected);

    standby.truncate("base/5/1000", 13_000).await.unwrap();
    standby.truncate("base/5/1000", 16_000).await.unwrap();
    view.fallocate(ino, 16_000..20_000, Fallocate::Extend, NOW)
        .await
        .unwrap();
    expected.truncate(13_000);
    expected.resize(20_000, 0);
    assert_eq!(standby.read("base/5/1000").await.unwrap(), expected);
    let part = view.read(ino, 12_000, 2_000).await.unwrap();
    assert_eq!(part, &expected[12_000..14_000]);
    assert!(view.read(ino, 20_000, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn nothing_that_a_standby_writes_reaches_the_storage() {
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    active.put("base/5/1000", &blocks(&[1; 8])).await;
    let seal = active.seal(100).await;
    let stored = volume.cluster.stored_versions();
    let (view, standby) = volume.attach_at(&seal, 4 * BLOCK as u64).await;
    for round in 2..6 {
        for block in 0..8 {
            standby
                .write("base/5/1000", block * BLOCK as u64, &blocks(&[round]))
                .await
                .unwrap();
        }
    }
    standby.put("base/5/2000", &blocks(&[1, 0, 3])).await;
    view.fsync(standby.ino("base/5/1000").unwrap())
        .await
        .unwrap();
    view.sync_all().await.unwrap();

    assert_eq!(volume.cluster.stored_versions(), stored);
    let stats = view.stats();
    assert!(stats.memory_bytes <= 4 * BLOCK as u64, "{stats:?}");
    assert_eq!(
        stats.memory_bytes + stats.spill_bytes,
        10 * BLOCK as u64,
        "zeros take no room"
    );
    assert_eq!(standby.read("base/5/1000").await.unwrap(), blocks(&[5; 8]));
    assert_eq!(
        standby.read("base/5/2000").await.unwrap(),
        blocks(&[1, 0, 3])
    );
    // A file that is gone gives its room back, when nobody has it open any more.
    let ino = standby.ino("base/5/1000").unwrap();
    view.open(ino).unwrap();
    standby.unlink("base/5/1000").unwrap();
    assert_eq!(standby.read_ino(ino).await.unwrap(), blocks(&[5; 8]));
    view.release(ino);
    assert_eq!(
        view.stats().memory_bytes + view.stats().spill_bytes,
        2 * BLOCK as u64
    );
}

// Rule 5
#[tokio::test]
async fn log_is_read_up_to_the_replay_limit_and_again_when_there_is_more() {
    let volume = Volume::new();
    let (active, view, standby) = follow_segment(&volume).await;
    let mut log = vec![0u8; SEGMENT as usize];
    let segment = standby.ino("pg_wal/1").unwrap();
    let mut written = 0;
    for (step, chunk) in [(1u8, 3000), (2, 3000), (3, 5000), (4, 1000)] {
        log[written..written + chunk].fill(step);
        active
            .write("pg_wal/1", written as u64, &vec![step; chunk])
            .await
            .unwrap();
        active.view.sync_all().await.unwrap();
        // The replay limit stays a bit behind what is stored.
        written += chunk;
        let shown = written - 500;
        view.show_log(
            active.active.as_ref().unwrap().namespace(),
            Lsn(SEGMENT + shown as u64),
        );
        let mut expected = log.clone();
        expected[shown..].fill(0);
        assert_eq!(standby.read("pg_wal/1").await.unwrap(), expected);
        assert_eq!(standby.view.attr(segment).unwrap().size, SEGMENT);
        let fed = view.read_log_file("pg_wal/1", 1000, 1 << 20).await.unwrap();
        assert_eq!(fed, &log[1000..shown]);
        assert!(
            view.read_log_file("pg_wal/1", shown as u64, 1)
                .await
                .unwrap()
                .is_empty()
        );
    }
    // The walreceiver repeats what is shared.
    standby.write("pg_wal/1", 0, &[99; 8192]).await.unwrap();
    standby.truncate("pg_wal/1", 0).await.unwrap();
    assert_eq!(
        &standby.read("pg_wal/1").await.unwrap()[..3000],
        &log[..3000]
    );
    assert!(matches!(
        view.read_log_file("pg_wal/7", 0, 1).await,
        Err(Error::NotFound)
    ));
}

// Rule 8, N5
#[tokio::test]
async fn the_kernel_may_keep_directories_of_the_image_and_nothing_else() {
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    active.put("base/5/1000", &blocks(&[1])).await;
    let seal = active.seal(100).await;
    let (view, standby) = volume.attach_at(&seal, 1 << 20).await;
    standby.mkdir("base/6").unwrap();
    let kept = |path: &str| {
        let attr = standby.view.attr(standby.ino(path).unwrap()).unwrap();
        !standby.view.keep(&attr).is_zero()
    };
    // Redo's own directories and private ones get other inodes at a takeover, files other sizes.
    let paths = ["", "base", "base/5", "base/5/1000", "base/6", "pg_twophase"];
    assert_eq!(paths.map(kept), [true, true, true, false, false, false]);
    // The directory is what it was after a move and after the takeover.
    let before = standby.ino("base/5").unwrap();
    active.unlink("base/5/1000").unwrap();
    active.rmdir("base/5").unwrap();
    let seal = active.seal(200).await;
    move_to(&view, &seal).await;
    assert_eq!(standby.ino("base/5").unwrap(), before);
    let (_, next) = volume.take_over(&view).await;
    assert_eq!(next.ino("base/5").unwrap(), before);
    assert_eq!(next.read("base/5/1000").await.unwrap(), blocks(&[1]));
}

/// A segment of the log that nothing is in yet, and a standby that is there.
async fn follow_segment(volume: &Volume) -> (Database, Arc<StandbyView>, Database) {
    let (_, active) = volume.init().await;
    active.create("pg_wal/1").unwrap();
    active.truncate("pg_wal/1", SEGMENT).await.unwrap();
    active.seal(SEGMENT).await;
    let (view, standby) = volume.attach().await;
    (active, view, standby)
}

/// The feed and redo want the same end of the log, one after the other.
#[tokio::test]
async fn the_last_block_of_the_log_is_read_once_for_each_move_of_the_replay_limit() {
    let volume = Volume::new();
    let (active, view, standby) = follow_segment(&volume).await;
    let segment = standby.ino("pg_wal/1").unwrap();
    let mut names = None;
    for step in 1..=3u8 {
        let at = 100 * u64::from(step);
        active.write("pg_wal/1", at, &[step; 100]).await.unwrap();
        active.view.sync_all().await.unwrap();
        let names = names.get_or_insert_with(|| active.active.as_ref().unwrap().namespace());
        view.show_log(names.clone(), Lsn(SEGMENT + at + 100));
        let before = view.storage().counters().reads_quorum;
        let fed = view.read_log_file("pg_wal/1", 0, 1 << 20).await.unwrap();
        assert_eq!(fed[at as usize..], [step; 100]);
        for _ in 0..2 {
            let read = standby.view.read(segment, 0, BLOCK as u32).await.unwrap();
            assert_eq!(read[..fed.len()], fed[..]);
            assert!(read[fed.len()..].iter().all(|byte| *byte == 0));
        }
        let asked = view.storage().counters().reads_quorum - before;
        assert_eq!(asked, 1, "at step {step}");
    }
}

/// Log that was read ahead for redo was gone before redo came to it, because what redo had read stayed.
#[tokio::test]
async fn log_that_redo_has_read_makes_room_unless_the_log_ends_in_its_segment() {
    let volume = Volume::new();
    let (active, view, standby) = follow_segment(&volume).await;
    active.create("pg_wal/2").unwrap();
    for segment in ["pg_wal/1", "pg_wal/2"] {
        let log = vec![7; SEGMENT as usize];
        active.write(segment, 0, &log).await.unwrap();
    }
    active.view.sync_all().await.unwrap();
    let names = active.active.as_ref().unwrap().namespace();
    let (view, standby) = (&view, &standby);
    let show = |end: u64| view.show_log(names.clone(), Lsn(end));
    // How many blocks of a segment are asked of the zones when all of it is read as the feed reads.
    let asked = async |segment: &str| {
        let before = view.storage().counters().reads_quorum;
        view.read_log_file(segment, 0, 1 << 20).await.unwrap();
        view.storage().counters().reads_quorum - before
    };
    let redo_reads = async |segment: &str, block: u64| {
        let ino = standby.ino(segment).unwrap();
        let read = standby.view.read(ino, block * BLOCK as u64, BLOCK as u32);
        assert_eq!(read.await.unwrap()[..], [7; BLOCK]);
    };

    show(2 * SEGMENT + 3 * BLOCK as u64);
    assert_eq!(asked("pg_wal/1").await, 4);
    assert_eq!(asked("pg_wal/1").await, 0, "it was read ahead");
    redo_reads("pg_wal/1", 0).await;
    redo_reads("pg_wal/1", 1).await;
    assert_eq!(asked("pg_wal/1").await, 2, "what redo has read has left");
    assert_eq!(asked("pg_wal/2").await, 3);
    redo_reads("pg_wal/2", 0).await;
    assert_eq!(asked("pg_wal/2").await, 0, "the log ends in it");
    assert_eq!(asked("pg_wal/1").await, 4, "redo is beyond it");
}

/// What a standby was sent it does not read; what it was not sent, or what was cut off since, it does.
#[tokio::test]
async fn log_that_was_sent_is_not_read_unless_its_file_was_cut() {
    let volume = Volume::new();
    let (active, view, standby) = follow_segment(&volume).await;
    let namespace = || active.active.as_ref().unwrap().namespace();
    let reads = || view.storage().counters().reads_quorum;
    let sent = Arc::new(RecentLog::new(active.active.as_ref().unwrap().epoch()));
    view.read_recent_log(Some(Arc::clone(&sent)));
    let log = [[7; BLOCK].as_slice(), &[8; 100]].concat();
    active.write("pg_wal/1", 0, &log).await.unwrap();
    active.view.sync_all().await.unwrap();
    sent.put(Lsn(SEGMENT), &log);
    let before = reads();
    view.show_log(namespace(), Lsn(SEGMENT + log.len() as u64));
    let fed = view.read_log_file("pg_wal/1", 0, 1 << 20).await.unwrap();
    assert_eq!(fed, log);
    let mut expected = [log.clone(), vec![0; SEGMENT as usize - log.len()]].concat();
    assert_eq!(standby.read("pg_wal/1").await.unwrap(), expected);
    assert_eq!(reads(), before);
    // More that did not come.
    active
        .write("pg_wal/1", log.len() as u64, &[9; 100])
        .await
        .unwrap();
    active.view.sync_all().await.unwrap();
    view.show_log(namespace(), Lsn(SEGMENT + log.len() as u64 + 100));
    expected[log.len()..log.len() + 100].fill(9);
    assert_eq!(standby.read("pg_wal/1").await.unwrap(), expected);
    assert_eq!(reads(), before + 1, "the block that did not come whole");
    active.truncate("pg_wal/1", 0).await.unwrap();
    active.truncate("pg_wal/1", SEGMENT).await.unwrap();
    active.view.sync_all().await.unwrap();
    view.show_log(namespace(), Lsn(2 * SEGMENT));
    let read = standby.read("pg_wal/1").await.unwrap();
    assert!(read.iter().all(|byte| *byte == 0), "a mark hides all of it");
}

#[tokio::test]
async fn configuration_is_the_latest_one() {
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    active.put("a.conf", b"one").await;
    active.seal(100).await;
    let (view, standby) = volume.attach().await;
    assert_eq!(standby.read("a.conf").await.unwrap(), b"one");
    active.write("a.conf", 0, b"twos").await.unwrap();
    active.put("b.conf", b"new").await;
    active.view.sync_all().await.unwrap();
    view.show_log(active.active.as_ref().unwrap().namespace(), Lsn(100));
    assert_eq!(standby.read("a.conf").await.unwrap(), b"twos");
    assert_eq!(standby.read("b.conf").await.unwrap(), b"new");
    standby.write("a.conf", 0, b"mine").await.unwrap();
    assert_eq!(standby.read("a.conf").await.unwrap(), b"mine");
    assert_eq!(active.read("a.conf").await.unwrap(), b"twos");
}

/// A server that read its configuration while the active put another one in its place got an error in the middle,
/// or, once it had been opened, at the beginning, and did not start.
#[tokio::test]
async fn configuration_that_is_open_is_read_to_its_end_as_it_was() {
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    let old = [b'a'; 3 * BLOCK];
    let files = ["a.conf", "b.conf"];
    for file in files {
        active.put(file, &old).await;
    }
    active.seal(100).await;
    let (view, standby) = volume.attach().await;
    let inos = files.map(|file| standby.ino(file).unwrap());
    for ino in inos {
        standby.view.open(ino).unwrap();
    }
    let first = standby.view.read(inos[0], 0, BLOCK as u32).await.unwrap();
    assert_eq!(first[..], old[..BLOCK]);
    for file in files {
        active.put("new.conf", b"new").await;
        active.rename("new.conf", file).unwrap();
    }
    active.view.sync_all().await.unwrap();
    view.show_log(active.active.as_ref().unwrap().namespace(), Lsn(100));
    for (file, ino) in files.into_iter().zip(inos) {
        let rest = standby.view.read(ino, BLOCK as u64, 1 << 20).await.unwrap();
        assert_eq!(rest[..], old[BLOCK..], "{file}");
        standby.view.release(ino);
        assert_eq!(standby.read(file).await.unwrap(), b"new");
    }
}

// Rule 6, H7
#[tokio::test]
async fn private_files_are_on_the_local_disk_beside_shared_ones() {
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    active.put("global/pg_control", b"the active's").await;
    active.put("global/1262", &blocks(&[1])).await;
    active.put("pg_twophase/0001", b"prepared").await;
    active.seal(100).await;
    let (view, standby) = volume.attach().await;
    assert!(!standby.exists("global/pg_control"));
    assert!(standby.names("pg_twophase").is_empty());

    standby.put("global/pg_control", b"mine").await;
    standby.put("base/5/pg_internal.init", b"cache").await;
    standby.put("postmaster.pid", b"1").await;
    assert_eq!(standby.names("global"), ["1262", "pg_control"]);
    assert_eq!(standby.names("base/5"), ["pg_internal.init"]);
    assert!(standby.names("").contains(&"postmaster.pid".into()));
    assert_eq!(
        std::fs::read(view.private().place("global/pg_control").unwrap()).unwrap(),
        b"mine"
    );
    assert_eq!(standby.read("global/pg_control").await.unwrap(), b"mine");
    assert!(matches!(
        standby.rename("global/pg_control", "global/1262"),
        Err(Error::CrossDevice)
    ));
    assert!(matches!(standby.rmdir("base/5"), Err(Error::NotEmpty)));
    standby.unlink("base/5/pg_internal.init").unwrap();
    standby.rmdir("base/5").unwrap();
    standby.mkdir("base/5").unwrap();
    assert!(standby.names("base/5").is_empty());
    let twophase = standby.ino("pg_twophase").unwrap();
    assert_eq!(view.parent(twophase).unwrap(), standby.ino("").unwrap());
}

#[tokio::test]
async fn reads_from_many_tasks_and_writes_agree() {
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    active.put("base/5/1000", &blocks(&[1; 64])).await;
    active.seal(100).await;
    let (view, standby) = volume.attach().await;
    let ino = standby.ino("base/5/1000").unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    // Each task owns a quarter of every block.
    for part in 0..4u64 {
        let view = view.clone();
        tasks.spawn(async move {
            for block in 0..64u64 {
                let at = block * BLOCK as u64 + part * 1024;
                let data = bytes::Bytes::from(vec![10 + part as u8; 1024]);
                view.write(ino, at, data, NOW).await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let expected: Vec<u8> = (0..256)
        .flat_map(|i| vec![10 + (i % 4) as u8; 1024])
        .collect();
    assert_eq!(
        Database::new(view).read("base/5/1000").await.unwrap(),
        expected
    );
}
