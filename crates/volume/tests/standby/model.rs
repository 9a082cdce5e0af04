//! Random databases: an active works and seals, a standby replays later, takes over, and is followed
//! in turn. At each step every view must hold exactly what the model says.

use proptest::prelude::*;
use volume::lsn::Lsn;

use super::database::{Change, Files, assert_same, change, perform, prelude};
use super::support::{Database, Volume};

/// One life of an active and of the standby that follows it.
#[derive(Debug, Clone)]
struct Life {
    before_seal: Vec<Change>,
    /// Sealed, but the standby stays at the seal before.
    after_attach: Vec<Change>,
    after_second_seal: Vec<Change>,
    /// Done to the files and never logged: it is not the volume's after a takeover.
    unfinished: Vec<Change>,
    /// What of the active's unsynced writes survives its death.
    survives: u8,
    /// The active syncs in the middle of its last changes.
    syncs: bool,
    checks: u8,
}

fn life() -> impl Strategy<Value = Life> {
    let some = |n| prop::collection::vec(change(), 0..n);
    let work = (some(24), some(16), some(16), some(8));
    let chance = (any::<u8>(), any::<bool>(), any::<u8>());
    (work, chance).prop_map(|(work, (survives, syncs, checks))| Life {
        before_seal: work.0,
        after_attach: work.1,
        after_second_seal: work.2,
        unfinished: work.3,
        survives,
        syncs,
        checks,
    })
}

/// Does to the active and the model what fits; returns what was logged.
async fn work(active: &Database, model: &mut Files, changes: &[Change]) -> Vec<Change> {
    let mut log = Vec::new();
    for change in changes {
        if model.apply(change) {
            perform(active, change).await;
            log.push(change.clone());
        }
    }
    assert_same(&active.tree("base").await, model, "the active");
    log
}

async fn run(lives: Vec<Life>) {
    let volume = Volume::new();
    let (mut storage, mut active) = volume.init().await;
    active.rmdir("base/5").unwrap();
    let mut model = Files::default();
    work(&active, &mut model, &prelude()).await;
    let mut lsn = 100;
    for life in lives {
        work(&active, &mut model, &life.before_seal).await;
        lsn += 100;
        active.seal(lsn).await;
        let (view, standby) = volume.attach().await;
        let mut replayed = model.clone();
        assert_same(&standby.tree("base").await, &replayed, "a fresh standby");

        let mut log = work(&active, &mut model, &life.after_attach).await;
        active.seal(lsn + 50).await;
        log.extend(work(&active, &mut model, &life.after_second_seal).await);
        work(&active, &mut model.clone(), &life.unfinished).await;
        if life.syncs {
            active.view.sync_all().await.unwrap();
        }
        view.show_log(active.active.as_ref().unwrap().namespace(), Lsn(lsn + 99));
        assert_same(&standby.tree("base").await, &replayed, "before redo");

        let mut survivors = life.survives;
        let mut dead = false;
        for (at, change) in log.iter().enumerate() {
            replayed.apply(change);
            perform(&standby, change).await;
            if at % 8 == usize::from(life.checks % 8) {
                assert_same(
                    &standby.tree("base").await,
                    &replayed,
                    &format!("redo of {change:?}"),
                );
                if !dead {
                    storage.crash(|_| {
                        survivors = survivors.rotate_left(1);
                        survivors & 1 == 1
                    });
                    dead = true;
                }
            }
        }
        assert_same(&standby.tree("base").await, &replayed, "all replayed");
        assert_eq!(replayed, model);

        let (next_storage, next) = volume.take_over(&view).await;
        assert_same(&next.tree("base").await, &model, "taken over");
        assert_same(&standby.tree("base").await, &model, "through the old view");
        (storage, active) = (next_storage, next);
    }
    lsn += 100;
    active.seal(lsn).await;
    let (_, last) = volume.attach().await;
    assert_same(&last.tree("base").await, &model, "the last standby");
}

pub fn block_on(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future);
}

proptest! {
    #![proptest_config(super::support::cases(64))]

    #[test]
    fn every_view_holds_what_its_part_of_the_log_says(lives in prop::collection::vec(life(), 1..4)) {
        block_on(run(lives));
    }
}
