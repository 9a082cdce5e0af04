//! What a takeover makes of a standby's view (hazards N5, N6, H6, H7).

use std::sync::Arc;

use dax::ids::NodeName;
use dax::storage::Storage;
use volume::active::{NoObserver, Options};
use volume::error::Error;
use volume::latest::Latest;
use volume::lsn::Lsn;
use volume::seal::load_seals;
use volume::view::View;

use super::support::{BLOCK, Database, NOW, TestLayout, Volume, blocks, shared};

// hazard: H3
#[tokio::test]
async fn the_view_becomes_the_volume_and_the_dead_actives_later_work_does_not() {
    let volume = Volume::new();
    let (old, active) = volume.init().await;
    active.put("base/5/1000", &blocks(&[1, 2, 3, 4])).await;
    active.put("base/5/1001", &blocks(&[5, 5])).await;
    active.put("base/5/1002", &blocks(&[6])).await;
    active.put("a.conf", b"one").await;
    active.seal(100).await;
    let (view, standby) = volume.attach().await;

    // Unfinished work of the active, all of it durable.
    active
        .write("base/5/1000", 0, &blocks(&[91, 92, 93, 94, 95]))
        .await
        .unwrap();
    active.truncate("base/5/1001", 0).await.unwrap();
    active.unlink("base/5/1002").unwrap();
    active.mkdir("base/6").unwrap();
    active.put("base/6/2000", &blocks(&[99])).await;
    active.write("a.conf", 0, b"two").await.unwrap();
    active.view.sync_all().await.unwrap();
    old.crash(|_| true);

    // What redo did.
    standby
        .write("base/5/1000", BLOCK as u64, &blocks(&[22]))
        .await
        .unwrap();
    standby
        .truncate("base/5/1000", 3 * BLOCK as u64)
        .await
        .unwrap();
    let made = standby.put("base/5/3000", &blocks(&[31, 32])).await;
    view.open(made).unwrap();
    let before = standby.tree("base").await;

    let (_, next) = volume.take_over(&view).await;
    assert_eq!(next.tree("base").await, before);
    assert_eq!(next.read("base/5/1000").await.unwrap(), blocks(&[1, 22, 3]));
    assert_eq!(next.read("base/5/1001").await.unwrap(), blocks(&[5, 5]));
    assert_eq!(next.read("base/5/1002").await.unwrap(), blocks(&[6]));
    assert_eq!(
        next.read("a.conf").await.unwrap(),
        b"two",
        "configuration stays the latest"
    );
    assert_eq!(next.names("base"), ["5"]);

    // Inode numbers and handles that the kernel knows stay; the old view leads to the new one.
    assert_eq!(standby.ino("base/5/3000").unwrap(), made);
    assert_eq!(standby.read_ino(made).await.unwrap(), blocks(&[31, 32]));
    standby
        .write("base/5/3000", 0, &blocks(&[41]))
        .await
        .unwrap();
    assert_eq!(next.read("base/5/3000").await.unwrap(), blocks(&[41, 32]));
    standby.unlink("base/5/3000").unwrap();
    assert_eq!(standby.read_ino(made).await.unwrap(), blocks(&[41, 32]));
    view.release(made);
    assert!(!next.exists("base/5/3000"));

    // The next standby sees the same.
    next.seal(200).await;
    assert_eq!(next.active.as_ref().unwrap().inherited_left(), 0);
    let (_, second) = volume.attach().await;
    assert_eq!(second.tree("base").await, next.tree("base").await);
}

// H6, N6: what ResetUnloggedRelations does at promotion must not meet a file.
// hazard: H6
#[tokio::test]
async fn forks_of_unlogged_relations_do_not_reappear() {
    let volume = Volume::new();
    let (old, active) = volume.init().await;
    active.put("base/5/1000", &blocks(&[1])).await;
    active.put("base/5/1000_init", &blocks(&[0])).await;
    active.put("base/5/1000_vm", &blocks(&[1])).await;
    // The cut fell between the main fork and its init fork.
    active.put("base/5/1100", &blocks(&[2])).await;
    active.seal(100).await;
    let (view, standby) = volume.attach().await;
    active.put("base/5/1100_init", &blocks(&[0])).await;
    active.put("base/5/1200", &blocks(&[3])).await;
    active.put("base/5/1200_init", &blocks(&[0])).await;
    active.view.sync_all().await.unwrap();
    old.crash(|_| true);
    standby.put("base/5/1100_init", &blocks(&[7])).await;
    standby.put("base/5/1200_init", &blocks(&[7])).await;

    let (_, next) = volume.take_over(&view).await;
    assert_eq!(
        next.names("base/5"),
        ["1000_init", "1100_init", "1200_init"]
    );
    for main in ["base/5/1000", "base/5/1100", "base/5/1200"] {
        next.put(main, &blocks(&[8])).await;
        assert_eq!(next.read(main).await.unwrap(), blocks(&[8]));
        assert_eq!(standby.read(main).await.unwrap(), blocks(&[8]));
    }
}

// H7, H8
// hazard: H7
#[tokio::test]
async fn private_state_is_published_where_the_layout_says_so() {
    let volume = Volume::new();
    let (old, active) = volume.init().await;
    active.put("global/pg_control", &[1; 8192]).await;
    active.put("pg_twophase/0001", b"kept by the active").await;
    active.put("pg_twophase/0002", b"both").await;
    active.put("pg_logical/snapshots/s1", b"slot").await;
    active.seal(100).await;
    let (view, standby) = volume.attach().await;
    active.put("pg_twophase/0003", b"of the future").await;
    active
        .write("global/pg_control", 0, &[2; 8192])
        .await
        .unwrap();
    active.view.sync_all().await.unwrap();
    old.crash(|_| true);

    standby.put("global/pg_control", &[3; 8192]).await;
    standby.put("pg_twophase/0002", b"both, mine").await;
    standby.put("pg_twophase/0004", &[4; 5000]).await;
    standby.put("base/5/pg_internal.init", b"cache").await;
    standby.put("pg_logical/snapshots/s1", b"another").await;
    standby.put("pg_logical/snapshots/s2", b"mine").await;
    standby.mkdir("pg_logical/snapshots/own").unwrap();
    let private = "pg_logical/snapshots/own/pg_internal.init";
    standby.put(private, b"cache").await;

    let (_, next) = volume.take_over(&view).await;
    assert_eq!(next.read("global/pg_control").await.unwrap(), [3; 8192]);
    assert_eq!(next.names("pg_twophase"), ["0002", "0004"]);
    assert_eq!(next.read("pg_twophase/0002").await.unwrap(), b"both, mine");
    assert_eq!(next.read("pg_twophase/0004").await.unwrap(), [4; 5000]);
    assert_eq!(next.read("pg_logical/snapshots/s1").await.unwrap(), b"slot");
    assert_eq!(next.read("pg_logical/snapshots/s2").await.unwrap(), b"mine");
    assert_eq!(
        next.read("base/5/pg_internal.init").await.unwrap(),
        b"cache",
        "stays local"
    );
    next.seal(200).await;
    let (_, second) = volume.attach().await;
    assert!(!second.exists("base/5/pg_internal.init"));
    let stored = shared(&volume.cluster.client());
    let seal = load_seals(&stored).await.unwrap().pop().unwrap();
    let base = volume::seal::Base::load(&stored, &seal).await.unwrap();
    assert!(base.namespace.resolve("pg_twophase/0004").is_ok());
    assert!(base.namespace.resolve("pg_twophase/0003").is_err());
}

// hazard: SL2
#[tokio::test]
async fn a_new_owner_makes_what_is_needed_and_removes_what_was_not_completed() {
    let volume = Volume::new();
    let (old, active) = volume.init().await;
    for directory in ["base/5/1000", "base/5/1000/deep"] {
        active.mkdir(directory).unwrap();
    }
    active.put("base/5/1000/deep/file", b"one").await;
    active.put("base/5/1000/file", b"two").await;
    active.put("base/5/kept", b"three").await;
    active.seal(100).await;
    old.crash(|_| true);

    let storage = shared(&volume.owning("next").await);
    let mut latest = Latest::recover(storage.clone(), NOW).await.unwrap();
    let id = |latest: &Latest, path: &str| latest.namespace().resolve(path);
    latest.make_needed_directories(&TestLayout, NOW).unwrap();
    let made = id(&latest, "slots.conf").unwrap();
    latest.make_needed_directories(&TestLayout, NOW).unwrap();
    assert_eq!(
        id(&latest, "slots.conf").unwrap(),
        made,
        "it is there already"
    );
    let directory = id(&latest, "base/5").unwrap();
    latest.remove_tree(directory, b"1000", NOW).unwrap();
    latest.remove_file(directory, b"kept", NOW).unwrap();
    assert!(latest.remove_file(directory, b"kept", NOW).is_err());
    latest.commit().await.unwrap();

    let again = shared(&volume.owning("again").await);
    let latest = Latest::recover(again, NOW).await.unwrap();
    assert!(id(&latest, "slots.conf").is_ok());
    assert!(id(&latest, "base/5/1000").is_err() && id(&latest, "base/5/kept").is_err());
}

// Rule 5 and section 5 step 6: what redo left in the log's directory is not the volume's.
#[tokio::test]
async fn stubs_in_the_log_give_way_to_the_latest_names() {
    let volume = Volume::new();
    let (old, active) = volume.init().await;
    active.put("pg_wal/1", &blocks(&[1, 1, 1, 1])).await;
    active.seal(100).await;
    let (view, standby) = volume.attach().await;
    let stub = standby.put("pg_wal/2", &blocks(&[9])).await;
    standby.put("pg_wal/xlogtemp", &blocks(&[9])).await;
    view.open(stub).unwrap();
    active.put("pg_wal/2", &blocks(&[2, 2, 2, 2])).await;
    active.view.sync_all().await.unwrap();
    old.crash(|_| true);
    let (_, next) = volume.take_over(&view).await;
    assert_eq!(next.names("pg_wal"), ["1", "2"]);
    assert_eq!(standby.read_ino(stub).await.unwrap(), blocks(&[2, 2, 2, 2]));
}

#[tokio::test]
async fn a_switch_that_is_fenced_leaves_a_standby() {
    let volume = Volume::new();
    let (old, active) = volume.init().await;
    active.put("base/5/1000", &blocks(&[1])).await;
    active.seal(100).await;
    let (view, standby) = volume.attach().await;
    standby.put("base/5/2000", &blocks(&[2])).await;
    old.crash(|_| false);

    let storage = volume.owning("slow").await;
    let latest = Latest::recover(storage.clone(), NOW).await.unwrap();
    volume.owning("fast").await;
    let observer = Arc::new(NoObserver);
    let lost = view
        .become_active(latest, observer, Options::default(), NOW)
        .await;
    assert!(lost.err().is_some_and(|e| e.is_fenced()));
    assert_eq!(standby.read("base/5/2000").await.unwrap(), blocks(&[2]));
    standby.put("base/5/2001", &blocks(&[3])).await;

    let (_, next) = volume.take_over(&view).await;
    assert_eq!(next.names("base/5"), ["1000", "2000", "2001"]);
    let storage = volume.owning("late").await;
    let latest = Latest::recover(storage, NOW).await.unwrap();
    let observer = Arc::new(NoObserver);
    let again = view
        .become_active(latest, observer, Options::default(), NOW)
        .await;
    assert!(matches!(again.err(), Some(Error::Invalid(_))));
}

/// True if an operation would wait.
async fn is_frozen(view: &Arc<volume::standby::StandbyView>) -> bool {
    let brief = std::time::Duration::from_millis(5);
    tokio::time::timeout(brief, view.sync_all()).await.is_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_wait_for_the_switch_and_go_on_at_the_active() {
    let volume = Volume::new();
    let (old, active) = volume.init().await;
    active.put("base/5/1000", &blocks(&[1])).await;
    active.seal(100).await;
    let (view, standby) = volume.attach().await;
    old.crash(|_| false);
    let storage = volume.owning("next").await;
    let latest = Latest::recover(storage, NOW).await.unwrap();
    volume.cluster.hold_syncs(true);
    let switch = {
        let view = view.clone();
        tokio::spawn(async move {
            let observer = Arc::new(NoObserver);
            view.become_active(latest, observer, Options::default(), NOW)
                .await
        })
    };
    while !is_frozen(&view).await {
        tokio::task::yield_now().await;
    }
    let writer = {
        let standby = standby.clone();
        tokio::spawn(async move { standby.put("base/5/2000", &blocks(&[2])).await })
    };
    let thread = std::thread::spawn(move || standby.create("base/5/3000").map(|a| a.ino));
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!writer.is_finished() && !thread.is_finished());
    volume.cluster.hold_syncs(false);
    let next = switch.await.unwrap().unwrap();
    writer.await.unwrap();
    thread.join().unwrap().unwrap();
    let next = Database::new(Arc::new(next));
    assert_eq!(next.names("base/5"), ["1000", "2000", "3000"]);
    assert_eq!(next.read("base/5/2000").await.unwrap(), blocks(&[2]));
}

// Section 5: any crash in between is harmless.
// hazard: H4
#[tokio::test]
async fn after_a_crash_in_the_middle_of_the_switch_the_last_seal_is_as_it_was() {
    for survives in [false, true] {
        let volume = Volume::new();
        let (old, active) = volume.init().await;
        active.put("base/5/1000", &blocks(&[1, 2])).await;
        active.put("base/5/1001", &blocks(&[3])).await;
        active.seal(100).await;
        let sealed = active.tree("base").await;
        let (view, standby) = volume.attach().await;
        active.unlink("base/5/1001").unwrap();
        active
            .write("base/5/1000", 0, &blocks(&[77]))
            .await
            .unwrap();
        active.view.sync_all().await.unwrap();
        old.crash(|_| true);
        standby
            .write("base/5/1000", 0, &blocks(&[66]))
            .await
            .unwrap();
        standby.put("base/5/2000", &blocks(&[5])).await;
        let replayed = standby.tree("base").await;

        let storage = volume.cluster.client();
        storage
            .own_epoch(&NodeName::new("dies").unwrap())
            .await
            .unwrap();
        let latest = Latest::recover(storage.clone(), NOW).await.unwrap();
        volume.cluster.hold_syncs(true);
        let observer = Arc::new(NoObserver);
        let switch = view.become_active(latest, observer, Options::default(), NOW);
        let brief = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(brief, switch).await.is_err());
        volume.cluster.hold_syncs(false);
        storage.crash(|_| survives);

        // Another node attaches, replays the same and takes over.
        let (third, view3) = volume.attach().await;
        assert_eq!(view3.tree("base").await, sealed);
        view3.write("base/5/1000", 0, &blocks(&[66])).await.unwrap();
        view3.put("base/5/2000", &blocks(&[5])).await;
        let (_, next) = volume.take_over(&third).await;
        assert_eq!(next.tree("base").await, replayed);
        next.seal(200).await;
        assert_eq!(volume.attach().await.1.tree("base").await, replayed);
        assert!(third.replay_limit() >= Lsn(100));
    }
}
