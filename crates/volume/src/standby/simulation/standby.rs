//! A standby: its PostgreSQL's buffers over the real view, attached at a seal, moved from base to
//! base, and promoted.

use std::collections::BTreeSet;
use std::sync::Arc;

use dax::ids::NodeName;
use dax::memory::MemoryStorage;
use dax::storage::{Lineage, Storage};
use rand::Rng;
use rand::rngs::SmallRng;

use super::super::moves::MovePlan;
use super::super::standing::ClaimWatch;
use super::super::view::{StandbyOptions, StandbyView};
use super::checkers::{Broken, Held, Known, Looker, broken, check_names, check_relations, failed};
use super::files::{Files, owner};
use super::flaw::Flaw;
use super::layout::{CONTROL, ModelLayout};
use super::log::{Record, Truth};
use super::page::{File, Fork, PageId, Rel, directory};
use super::pool::Pool;
use super::trace::say;
use super::work::DATABASES;
use crate::claim::Claim;
use crate::error::Error;
use crate::lsn::Lsn;
use crate::private::PrivateDir;
use crate::seal::{Base, Seal, load_seals};

pub(super) struct Standby {
    pub node: NodeName,
    pub claim: ClaimWatch,
    pub storage: Arc<MemoryStorage>,
    pub view: Arc<StandbyView>,
    pub files: Files,
    pub flaw: Option<Flaw>,
    pub pool: Pool,
    /// What the log says up to `applied`.
    pub truth: Truth,
    pub known: Known,
    pub applied: u64,
    /// What the last feedback said of it.
    pub feedback: u64,
    /// The log that was shown at the last feedback.
    pub shown_at_feedback: u64,
    /// The log is handed over up to here.
    pub shown: u64,
    pub consistent_at: u64,
    pub consistent: bool,
    /// Pages that redo missed before it was consistent.
    pub invalid: BTreeSet<PageId>,
    /// The last checkpoint record that was applied: its redo pointer and its end.
    pub checkpoint: Option<(u64, u64)>,
    /// Where the private control file says that redo starts, and how far pages have been written.
    pub restart: (u64, u64),
    pub stubs: Vec<File>,
    pub keeps_stubs: bool,
    pub plan: Option<MovePlan>,
    pub moves: u64,
    /// The whole log's truth at the attach.
    pub at_attach: Truth,
    /// Records that an image could not be asked to take (N7).
    pub excused: u64,
    /// It sleeps for so many steps.
    pub sleeps: u32,
    /// Its claim was given up while it slept.
    pub forgotten: bool,
    /// Relations whose files are in the first base though they had been removed before its redo point.
    pub orphans: BTreeSet<Rel>,
}

/// What an attach begins with.
pub(super) struct Attach<'a> {
    pub node: NodeName,
    pub storage: Arc<MemoryStorage>,
    pub seal: &'a Seal,
    pub place: &'a std::path::Path,
    pub flaw: Option<Flaw>,
    pub initial: &'a Truth,
    pub log: &'a [Record],
    /// [`Active::leaked`](super::active::Active::leaked)
    pub leaked: &'a BTreeSet<Rel>,
    /// Claims everything.
    pub claim: ClaimWatch,
    /// True if it may sleep, and so goes by its claim.
    pub may_sleep: bool,
}

impl Standby {
    /// Attaches at a seal; the claim on everything stands.
    pub async fn attach(attach: Attach<'_>, rng: &mut SmallRng) -> Held<Standby> {
        let Attach {
            node,
            storage,
            seal,
            place,
            flaw,
            initial,
            log,
            leaked,
            claim,
            may_sleep,
        } = attach;
        let shared: Arc<dyn Storage> = storage.clone();
        let mut base = Base::load(&shared, seal).await?;
        change(&claim, &shared, &node, std::slice::from_ref(seal)).await?;
        if flaw == Some(Flaw::LatestInsteadOfSealed) {
            base.seal.lineage = Lineage::up_to(dax::ids::Generation::MAX);
        }
        let layout = Arc::new(ModelLayout { flaw });
        let private = PrivateDir::prepare(place, &*layout, true, owner())?;
        // Whether the overlay has room in memory for all, or goes to the disk.
        let roomy = seal.redo.0.is_multiple_of(2);
        let options = StandbyOptions {
            spill_dir: place.to_owned(),
            memory_bytes_max: if roomy { 1 << 20 } else { 1 << 10 },
            // Who may sleep asks the storage again and again.
            cache_bytes: if may_sleep { 1 << 8 } else { 1 << 18 },
            claim: (may_sleep && flaw != Some(Flaw::AnswersAfterSleep)).then(|| claim.clone()),
        };
        let live = base.namespace.clone();
        let view = StandbyView::attach(shared, layout, base, live, Arc::new(private), options)?;
        view.change_in_place(|state| state.distortion.flaw = flaw);
        let redo = seal.redo.0;
        say(|| format!("{node} attaches at {}, redo {redo}", seal.generation));
        let mut standby = Standby {
            node,
            claim,
            storage,
            files: Files { view: view.clone() },
            view,
            flaw,
            pool: Pool::default(),
            truth: Truth::after(initial, &log[..redo as usize]),
            known: Known::default(),
            applied: redo,
            feedback: redo,
            shown_at_feedback: seal.end.0,
            shown: seal.end.0,
            consistent_at: seal.end.0,
            consistent: redo >= seal.end.0,
            invalid: BTreeSet::new(),
            checkpoint: None,
            restart: (redo, seal.end.0),
            stubs: Vec::new(),
            keeps_stubs: match flaw {
                Some(Flaw::WhiteoutsDropped) => false,
                _ => rng.random(),
            },
            plan: None,
            moves: 0,
            at_attach: Truth::after(initial, log),
            excused: 0,
            sleeps: 0,
            forgotten: false,
            orphans: BTreeSet::new(),
        };
        standby.orphans = standby.find_orphans(&log[redo as usize..], leaked)?;
        standby.files.create(CONTROL)?;
        standby.write_control(seal.payload.clone()).await?;
        standby.clean_unlogged()?;
        Ok(standby)
    }

    /// Of the relations that cuts found half removed, those that are in the base for good: redo of the
    /// log from here on does not remove them.
    fn find_orphans(&self, log: &[Record], leaked: &BTreeSet<Rel>) -> Held<BTreeSet<Rel>> {
        let removes = |record: &Record, rel: Rel| matches!(*record, Record::Drop { rel: gone } | Record::Abort { rel: gone } if gone == rel);
        let mut orphans = BTreeSet::new();
        for rel in leaked {
            let size = self.files.size(&rel.file(Fork::Main).path())?;
            if size > Some(0) && !log.iter().any(|record| removes(record, *rel)) {
                // A database that is copied takes them along.
                orphans.extend((1..=DATABASES).map(|db| Rel { db, ..*rel }));
            }
        }
        Ok(orphans)
    }

    async fn write_control(&self, bytes: Vec<u8>) -> Held<()> {
        Ok(self.files.write(CONTROL, bytes.into()).await?)
    }

    /// For messages.
    pub fn describe(&self) -> String {
        let seal = self.view.base_seal();
        format!(
            "{} on base {} (redo {}, W {}), applied {} of {} shown, {} moves",
            self.node,
            seal.generation,
            seal.redo.0,
            seal.end.0,
            self.applied,
            self.shown,
            self.moves
        )
    }

    /// `ResetUnloggedRelations(CLEANUP)`.
    fn clean_unlogged(&self) -> Held<()> {
        for (dir, file) in self.unlogged()? {
            for name in self.files.names(&dir)?.unwrap_or_default() {
                let other = File::parse(file.rel.db, &name);
                if other.is_some_and(|f| f.rel == file.rel && f.fork != Fork::Init) {
                    self.files
                        .unlink(&format!("{dir}/{name}"))
                        .map_err(|e| failed(e))?;
                }
            }
        }
        Ok(())
    }

    /// Init forks, and the directories they are in.
    fn unlogged(&self) -> Held<Vec<(String, File)>> {
        let mut found = Vec::new();
        for db in self.files.names("base")?.unwrap_or_default() {
            let Ok(db) = db.parse() else {
                continue;
            };
            let dir = directory(db);
            let names = self.files.names(&dir)?.unwrap_or_default();
            let files = names.iter().filter_map(|name| File::parse(db, name));
            let init = files.filter(|file| file.fork == Fork::Init);
            found.extend(init.map(|file| (dir.clone(), file)));
        }
        Ok(found)
    }

    /// `ResetUnloggedRelations(INIT)`, at the end of recovery.
    pub async fn reset_unlogged(&self) -> Held<()> {
        for (_, init) in self.unlogged()? {
            let data = self.files.read(&init.path()).await.map_err(|e| failed(e))?;
            let main = init.rel.file(Fork::Main).path();
            say(|| format!("   {} makes {main}", self.node));
            self.files.create(&main).map_err(|e| failed(e))?;
            if !data.is_empty() {
                self.files.write(&main, data).await.map_err(|e| failed(e))?;
            }
            let visible = init.rel.file(Fork::Visibility);
            if self.files.size(&visible.path())?.is_some() {
                let what = format!("{} survived the reset", visible.path());
                return Err(broken("unlogged relations are reset", what));
            }
        }
        Ok(())
    }

    pub fn note_removed(&mut self, record: &Record, lsn: u64) {
        match *record {
            Record::Drop { rel } | Record::Abort { rel } => self.known.removed(rel, lsn),
            Record::DropDb { db } | Record::CopyDb { to: db, .. } => self.known.forget_database(db),
            _ => {}
        }
    }

    /// Rule 3's stamp, where it is switched off.
    fn distort(&self, page_lsn: Option<u64>) {
        let stamp = match self.flaw {
            Some(Flaw::StampedByPage) => page_lsn,
            Some(Flaw::StampedByFeedback) => Some(self.feedback),
            _ => return,
        };
        self.view
            .change_in_place(|state| state.distortion.stamp = stamp.map(Lsn));
    }

    /// Hands over log up to `end`.
    pub fn show(&mut self, end: u64) {
        self.shown = self.shown.max(end);
        let live = self.view.state().live.clone();
        self.view.show_log(live, Lsn(self.shown));
    }

    /// Applies one more record, if it was handed over.
    pub async fn step(&mut self, log: &[Record]) -> Held<()> {
        if self.applied < self.shown.min(log.len() as u64) {
            self.distort(None);
            self.redo(&log[self.applied as usize]).await?;
        }
        Ok(())
    }

    /// Feedback.
    pub fn tell(&mut self) {
        (self.feedback, self.shown_at_feedback) = (self.applied, self.shown);
    }

    /// In the middle of a record. Whoever waits for redo to come to rest, which it does at the end of the log
    /// that is shown, moves the base now if he takes this for rest.
    pub async fn between(&mut self) -> Held<()> {
        let rest = match self.flaw {
            Some(Flaw::RestByFeedback) => self.shown_at_feedback,
            _ => self.shown,
        };
        if self.applied >= rest {
            self.move_base().await?;
        }
        Ok(())
    }

    /// Writes a page out of the pool.
    pub async fn write_out(&mut self, id: PageId) -> Held<()> {
        if let Some(page) = self.pool.clean(id) {
            say(|| format!("   {} writes {id:?} {page:?}", self.node));
            self.distort(Some(page.lsn));
            let written = self.files.write_page(id, &page).await;
            self.distort(None);
            written.map_err(|e| {
                let what = format!("eviction of {id:?}, {}: {e}", self.describe());
                broken("redo does not fail", what)
            })?;
            self.restart.1 = self.restart.1.max(page.lsn);
        }
        Ok(())
    }

    /// A restartpoint at the last checkpoint record applied.
    pub async fn restartpoint(&mut self) -> Held<()> {
        let Some((redo, record)) = self.checkpoint else {
            return Ok(());
        };
        for id in self.pool.dirty() {
            self.write_out(id).await?;
        }
        for file in std::mem::take(&mut self.stubs) {
            if self.files.size(&file.path())? == Some(0) {
                self.files.unlink(&file.path())?;
            }
        }
        let control = super::active::Active::control(redo, record);
        self.write_control(control.to_vec()).await?;
        self.restart.0 = redo;
        Ok(())
    }

    /// What queries see, with the relations that an active brought back.
    pub async fn check(&self, orphans: &BTreeSet<Rel>) -> Held<()> {
        if !self.consistent {
            return Ok(());
        }
        let where_ = |mut b: super::checkers::Broken| {
            b.what = format!("{}: {}", self.describe(), b.what);
            b
        };
        let looker = Looker::Query;
        check_relations(&self.files, &self.pool, &self.truth, looker)
            .await
            .map_err(where_)?;
        check_names(&self.files, &self.truth, (&self.known, orphans), looker)
            .await
            .map_err(where_)
    }

    /// Looks at what a move to the newest seal needs, if there is one to go to.
    pub async fn plan_move(&mut self) -> Held<()> {
        if self.flaw == Some(Flaw::LatestInsteadOfSealed) {
            return Ok(());
        }
        let shared: Arc<dyn Storage> = self.storage.clone();
        let seals = load_seals(&shared).await?;
        let base = self.view.base_seal();
        let Some(seal) = seals
            .last()
            .filter(|s| s.end.0 <= self.shown && s.continues(&base))
        else {
            return Ok(());
        };
        let mut images = self.view.bases_in_use();
        images.push(seal.clone());
        self.change_claim(&shared, &images).await?;
        let mut next = self.view.load_next(seal).await?;
        if self.flaw == Some(Flaw::DroppedByEnd) {
            next.seal.redo = next.seal.end;
        }
        let mut plan = self.view.plan_move(next).await?;
        if self.flaw == Some(Flaw::DroppedWithoutVersion) {
            let covered = self.view.state().blocks_covered_by(&plan.base);
            let covered = covered.into_iter().map(|(key, _)| key);
            plan.present.extend(covered);
        }
        self.plan = Some(plan);
        Ok(())
    }

    /// Moves as planned, if redo has come that far; whether it did.
    pub async fn move_base(&mut self) -> Held<bool> {
        let early = self.flaw == Some(Flaw::MovedTooEarly);
        let ready = |plan: &mut MovePlan| early || plan.seal().end.0 <= self.applied;
        let Some(plan) = self.plan.take_if(ready) else {
            return Ok(false);
        };
        assert!(self.view.move_base(plan)?, "nobody switches meanwhile");
        self.moves += 1;
        say(|| format!("moved: {}", self.describe()));
        let shared: Arc<dyn Storage> = self.storage.clone();
        self.change_claim(&shared, &self.view.bases_in_use())
            .await?;
        Ok(true)
    }

    async fn change_claim(&self, storage: &Arc<dyn Storage>, images: &[Seal]) -> Held<()> {
        let changed = change(&self.claim, storage, &self.node, images).await?;
        match changed || self.flaw == Some(Flaw::AnswersAfterSleep) {
            true => Ok(()),
            false => Err(Error::ClaimLost.into()),
        }
    }

    /// True if what happened to it is what becomes of one whose claim was given up: it noticed.
    pub fn noticed(&self, broken: &Broken) -> bool {
        self.forgotten && broken.what.contains(&Error::ClaimLost.to_string())
    }

    /// The database restarts on what is there, as if the overlay were a disk (N4).
    pub fn restart_in_place(&mut self, initial: &Truth, log: &[Record]) {
        let (redo, written) = self.restart;
        self.pool = Pool::default();
        self.invalid.clear();
        self.stubs.clear();
        self.truth = Truth::after(initial, &log[..redo as usize]);
        self.applied = redo;
        self.consistent_at = written;
        self.consistent = redo >= written;
    }
}

/// Claims these images and nothing else.
pub(super) async fn change(
    watch: &ClaimWatch,
    storage: &Arc<dyn Storage>,
    node: &NodeName,
    images: &[Seal],
) -> Held<bool> {
    let journal = images.iter().map(|seal| seal.journal).min();
    let claim = Claim {
        images: images.iter().map(|seal| seal.lineage.clone()).collect(),
        journal: journal.expect("a standby has a base"),
        everything: false,
        ..Claim::everything(node.clone())
    };
    Ok(watch.change(storage, &claim).await?)
}
