//! A standby whose base moves while it replays, behind an active that works as PostgreSQL does: pages
//! are written long after their log, files are removed late, or before the record says so.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use volume::claim::Claim;
use volume::lsn::Lsn;
use volume::seal::{Base, Seal};
use volume::standby::{MovePlan, StandbyView};

use super::database::{Change, Files, assert_same, change, perform, prelude, removal};
use super::reads::move_to;
use super::support::{BLOCK, Database, Volume, blocks, node, shared};

#[derive(Debug, Clone)]
enum Step {
    Change(Change),
    /// The same, but a removal lags behind its record, or goes ahead of it.
    Odd(Change),
    /// The page writer flushes something.
    Flush(u8),
    CheckpointStarts,
    CheckpointEnds,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => change().prop_map(Step::Change),
        2 => removal().prop_map(Step::Odd),
        2 => any::<u8>().prop_map(Step::Flush),
        2 => Just(Step::CheckpointStarts),
        4 => Just(Step::CheckpointEnds),
    ];
    prop::collection::vec(step, 0..100)
}

/// A page in the active's buffers.
struct Dirty {
    path: String,
    offset: u64,
    byte: u8,
}

struct Active {
    database: Database,
    /// What the log says.
    model: Files,
    log: Vec<Change>,
    dirty: Vec<Dirty>,
    /// Removed by the log, not yet from the files.
    late: BTreeSet<String>,
    /// Removed from the files, not yet by the log.
    early: Option<Change>,
    redo: Option<u64>,
    seals: Vec<(Seal, usize)>,
}

impl Active {
    async fn step(&mut self, step: &Step) {
        match step {
            Step::Change(change) => self.change(change, false).await,
            Step::Odd(change) => self.change(change, true).await,
            Step::Flush(which) if !self.dirty.is_empty() => {
                let at = usize::from(*which) % self.dirty.len();
                let page = self.dirty.remove(at);
                self.write(&page).await;
            }
            Step::Flush(_) => {}
            Step::CheckpointStarts => {
                self.redo = Some(self.log.len() as u64);
                for page in std::mem::take(&mut self.dirty) {
                    self.write(&page).await;
                }
            }
            Step::CheckpointEnds => {
                if let Some(redo) = self.redo.take() {
                    let active = self.database.active.as_ref().unwrap();
                    let cut = active.cut().await.unwrap();
                    let end = Lsn(self.log.len() as u64);
                    let seal = active.commit_seal(cut, Lsn(redo), end, Vec::new()).await;
                    self.seals.push((seal.unwrap(), self.log.len()));
                }
            }
        }
    }

    async fn write(&self, page: &Dirty) {
        let data = vec![page.byte; BLOCK];
        self.database
            .write(&page.path, page.offset, &data)
            .await
            .unwrap();
    }

    async fn change(&mut self, change: &Change, odd: bool) {
        let touched = change.paths();
        if let Some(early) = &self.early
            && (odd
                || early
                    .paths()
                    .iter()
                    .any(|p| touched.iter().any(|t| related(p, t))))
        {
            let early = self.early.take().unwrap();
            self.model.apply(&early);
            self.log.push(early);
        }
        if odd && matches!(change, Change::DropDatabase(_)) && self.early.is_none() {
            if self.model.clone().apply(change) {
                self.settle(&touched, true).await;
                perform(&self.database, change).await;
                self.early = Some(change.clone());
            }
            return;
        }
        if !self.model.apply(change) {
            return;
        }
        self.log.push(change.clone());
        match change {
            Change::Write {
                offset, len, byte, ..
            } if offset.is_multiple_of(BLOCK as u32) && *len == BLOCK as u32 => {
                self.settle(&touched, false).await;
                let path = touched[0].clone();
                let size = self.database.read(&path).await.unwrap().len() as u64;
                let end = u64::from(*offset) + BLOCK as u64;
                if end > size {
                    self.database.truncate(&path, end).await.unwrap();
                }
                let offset = u64::from(*offset);
                self.dirty
                    .retain(|d| (d.path.as_str(), d.offset) != (path.as_str(), offset));
                self.dirty.push(Dirty {
                    path,
                    offset,
                    byte: *byte,
                });
            }
            Change::Drop(_) if odd => {
                self.dirty.retain(|d| d.path != touched[0]);
                self.late.insert(touched[0].clone());
            }
            Change::Drop(_) | Change::DropDatabase(_) => {
                self.settle(&touched, true).await;
                perform(&self.database, change).await;
            }
            _ => {
                self.settle(&touched, false).await;
                for page in std::mem::take(&mut self.dirty) {
                    match touched.contains(&page.path) {
                        true => self.write(&page).await,
                        false => self.dirty.push(page),
                    }
                }
                perform(&self.database, change).await;
            }
        }
    }

    /// Does late removals that are in the way; forgets pages of what is removed.
    async fn settle(&mut self, touched: &[String], removed: bool) {
        for path in std::mem::take(&mut self.late) {
            match touched.iter().any(|t| related(&path, t)) {
                true => self.database.unlink(&path).unwrap(),
                false => drop(self.late.insert(path)),
            }
        }
        if removed {
            self.dirty
                .retain(|d| !touched.iter().any(|t| related(&d.path, t)));
        }
    }
}

/// True if one is the other, or is below it.
fn related(a: &str, b: &str) -> bool {
    let below = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
    a == b || below(a, b) || below(b, a)
}

async fn run(before: Vec<Change>, steps: Vec<Step>, lucks: Vec<u8>) {
    let volume = Volume::new();
    let (storage, database) = volume.init().await;
    database.rmdir("base/5").unwrap();
    let mut model = Files::default();
    for change in prelude().into_iter().chain(before) {
        if model.apply(&change) {
            perform(&database, &change).await;
        }
    }
    database.seal(0).await;
    let client = shared(&volume.cluster.client());
    Claim::everything(node("standby"))
        .put(&client)
        .await
        .unwrap();
    let (view, standby) = volume.attach().await;
    if lucks[0] & 64 != 0 {
        view.learn_versions().await.unwrap();
    }
    let mut replayed = model.clone();
    let mut active = Active {
        database,
        model,
        log: Vec::new(),
        dirty: Vec::new(),
        late: BTreeSet::new(),
        early: None,
        redo: None,
        seals: Vec::new(),
    };
    for step in &steps {
        active.step(step).await;
    }
    if let Some(early) = active.early.take() {
        active.model.apply(&early);
        active.log.push(early);
    }
    active.database.view.sync_all().await.unwrap();
    storage.crash(|_| true);

    let live = active.database.active.as_ref().unwrap().namespace();
    let mut seals = std::mem::take(&mut active.seals);
    seals.reverse();
    let mut moves = Moves {
        seals,
        planned: None,
    };
    for (at, change) in active.log.iter().enumerate() {
        let luck = lucks[at % lucks.len()];
        let ahead = u64::from(luck % 4);
        view.show_log(live.clone(), Lsn(at as u64 + 1 + ahead));
        replayed.apply(change);
        perform(&standby, change).await;
        if luck & 32 != 0 && moves.planned.is_none() {
            moves.plan(&view, usize::from(luck >> 6)).await;
        }
        if luck & 16 != 0 {
            moves.go(&view, at + 1);
        }
        assert_same(
            &standby.tree("base").await,
            &replayed,
            &format!("after {change:?}"),
        );
    }
    moves.go(&view, active.log.len());
    moves.plan(&view, 0).await;
    moves.go(&view, active.log.len());
    assert_same(
        &standby.tree("base").await,
        &replayed,
        "after the last move",
    );
    assert_eq!(replayed, active.model);

    let (_, next) = volume.take_over(&view).await;
    assert_same(&next.tree("base").await, &replayed, "taken over");
    next.seal(1_000).await;
    assert_same(
        &volume.attach().await.1.tree("base").await,
        &replayed,
        "the next standby",
    );
}

/// Seals to come, newest first, and the move that was planned.
struct Moves {
    seals: Vec<(Seal, usize)>,
    planned: Option<(MovePlan, usize)>,
}

impl Moves {
    /// Plans to move to the newest seal that the log shown has passed; redo may be behind it. So many of
    /// the oldest lists that the seal names are gone.
    async fn plan(&mut self, view: &Arc<StandbyView>, gone: usize) {
        let shown = view.replay_limit().0 as usize;
        let mut newest = None;
        while let Some(seal) = self.seals.pop_if(|(_, end)| *end <= shown) {
            newest = Some(seal);
        }
        if let Some((mut seal, end)) = newest {
            seal.lists.drain(..gone.min(seal.lists.len()));
            let base = view.load_next(&seal).await.unwrap();
            let full = Base::load(view.storage(), &seal).await.unwrap();
            assert!(
                base.namespace
                    .changed_inodes(&full.namespace)
                    .next()
                    .is_none()
            );
            self.planned = Some((view.plan_move(base).await.unwrap(), end));
        }
    }

    /// Moves as planned, perhaps long ago, if redo has passed the seal.
    fn go(&mut self, view: &Arc<StandbyView>, applied: usize) {
        if let Some((plan, _)) = self.planned.take_if(|(_, end)| *end <= applied) {
            let seal = plan.seal().clone();
            assert!(view.move_base(plan).unwrap());
            assert_eq!(view.base_seal(), seal);
        }
    }
}

proptest! {
    #![proptest_config(super::support::cases(64))]

    // hazard: H2, N3
    #[test]
    fn a_move_of_the_base_is_invisible(
        before in prop::collection::vec(change(), 0..24),
        steps in steps(),
        moves in prop::collection::vec(any::<u8>(), 1..24),
    ) {
        super::model::block_on(run(before, steps, moves));
    }
}

/// Overlay items go when the base that has them arrives, and the old base with the last reader.
#[tokio::test]
async fn the_overlay_shrinks_with_each_move() {
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    active.put("base/5/1000", &blocks(&[1; 16])).await;
    active.seal(100).await;
    let (view, standby) = volume.attach().await;
    for database in [&active, &standby] {
        let data = blocks(&[2; 12]);
        database.write("base/5/1000", 0, &data).await.unwrap();
    }
    let seal = active.seal(200).await;
    let base = view.load_next(&seal).await.unwrap();
    assert!(
        view.plan_move(base.clone()).await.is_err(),
        "the log was not shown that far"
    );
    view.show_log(base.namespace.clone(), Lsn(300));
    assert!(view.stats().memory_bytes > 0);
    let plan = view.plan_move(base.clone()).await.unwrap();
    let again = view.plan_move(base).await.unwrap();
    assert!(view.move_base(plan).unwrap());
    assert_eq!((view.stats().items, view.stats().memory_bytes), (0, 0));
    assert_eq!(view.bases_in_use(), std::slice::from_ref(&seal));
    let expected = blocks(&[2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1]);
    assert_eq!(standby.read("base/5/1000").await.unwrap(), expected);
    assert!(view.move_base(again).is_err(), "it is there already");
    assert_eq!(view.base_seal(), seal);
    assert!(view.load_next(&seal).await.is_err());
}

/// What the overlay changed after the plan was made stays, whatever the plan says of it.
#[tokio::test]
async fn a_change_between_plan_and_move_stays() {
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    active.put("base/5/1000", &blocks(&[1; 4])).await;
    active.seal(100).await;
    let (view, standby) = volume.attach().await;
    for database in [&active, &standby] {
        let data = blocks(&[2; 4]);
        database.write("base/5/1000", 0, &data).await.unwrap();
    }
    let seal = active.seal(200).await;
    let base = view.load_next(&seal).await.unwrap();
    view.show_log(base.namespace.clone(), Lsn(300));
    let plan = view.plan_move(base).await.unwrap();
    standby
        .write("base/5/1000", 0, &blocks(&[3]))
        .await
        .unwrap();
    standby.put("base/5/2000", &blocks(&[4])).await;
    assert!(view.move_base(plan).unwrap());
    assert_eq!(view.stats().memory_bytes, 2 * BLOCK as u64);
    let now = standby.read("base/5/1000").await.unwrap();
    assert_eq!(now, blocks(&[3, 2, 2, 2]));
    assert_eq!(standby.read("base/5/2000").await.unwrap(), blocks(&[4]));
}

/// Redo wrote a block out and had changed it again in its buffers when the base moved; the move kept what was
/// written in the cache. Then redo wrote the block out once more, to a full overlay, so this copy went to the local
/// disk and the next move did not keep it: redo read the first one again, without the change.
#[tokio::test]
async fn blocks_not_kept_by_a_move_are_read_from_the_base_and_not_from_an_earlier_move() {
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    active.put("base/5/1000", &blocks(&[1; 4])).await;
    let seal = active.seal(100).await;
    let (view, standby) = volume.attach_at(&seal, BLOCK as u64).await;
    let write = async |database: &Database, block: u64, byte: u8| {
        let (at, data) = (block * BLOCK as u64, blocks(&[byte]));
        database.write("base/5/1000", at, &data).await.unwrap();
    };
    write(&standby, 0, 2).await;
    write(&active, 0, 3).await;
    move_to(&view, &active.seal(200).await).await;
    write(&standby, 0, 3).await;
    for (block, byte) in [(1, 4), (2, 5)] {
        write(&standby, block, byte).await;
        write(&active, block, byte).await;
    }
    assert_eq!(view.stats().spill_bytes, 2 * BLOCK as u64);
    move_to(&view, &active.seal(300).await).await;
    let read = standby.read("base/5/1000").await.unwrap();
    assert_eq!(read, blocks(&[3, 4, 5, 1]));
}

/// A standby plans a move to a seal of the active; another node takes over from an earlier one, so that
/// seal is on a dead branch. The plan does not lead there any more once the base is on the new line.
#[tokio::test]
async fn a_plan_to_a_seal_of_a_dead_branch_is_dropped() {
    let volume = Volume::new();
    let (_, active) = volume.init().await;
    active.put("base/5/1000", &blocks(&[1; 4])).await;
    active.seal(100).await;
    let (view, standby) = volume.attach().await;
    let (successor, successors) = volume.attach().await;

    let dead = active.seal(200).await;
    let base = view.load_next(&dead).await.unwrap();
    for view in [&view, &successor] {
        view.show_log(base.namespace.clone(), Lsn(400));
    }
    let planned = view.plan_move(base).await.unwrap();
    let both = blocks(&[2; 4]);
    for database in [&successors, &standby] {
        database.write("base/5/1000", 0, &both).await.unwrap();
    }
    let (_, next) = volume.take_over(&successor).await;
    let alive = next.seal(300).await;
    assert!(
        !alive.continues(&dead),
        "the successor stood on the seal before"
    );

    let base = view.load_next(&alive).await.unwrap();
    let plan = view.plan_move(base).await.unwrap();
    assert!(view.move_base(plan).unwrap());
    assert!(
        view.move_base(planned).is_err(),
        "it leads to a dead branch"
    );
    assert_eq!(view.base_seal(), alive);
    assert_eq!(standby.read("base/5/1000").await.unwrap(), both);
}
