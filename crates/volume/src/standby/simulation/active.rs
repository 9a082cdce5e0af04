//! The active's PostgreSQL: a buffer pool over the active view, a log, and backends that work in
//! small steps, so that a checkpoint or a crash may fall between any two of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use dax::ids::Generation;
use dax::memory::{MemoryCluster, MemoryStorage};
use rand::Rng;
use rand::rngs::SmallRng;

use super::checkers::{Held, broken};
use super::files::Files;
use super::flaw::Flaw;
use super::log::{Record, Standing, Truth};
use super::ordered::Synced;
use super::page::{File, Fork, Page, PageId, Rel, directory};
use super::pool::Pool;
use super::task::{Step, Task};
use super::trace::say;
use crate::active::{ActiveView, CutImage};

/// A checkpoint under way.
pub(super) struct Checkpoint {
    pub number: u64,
    pub redo: u64,
    /// Pages that were dirty at the redo point and are not written yet.
    pub to_write: Vec<PageId>,
    /// Stubs of relations that were removed before it began.
    pub stubs: Vec<File>,
    pub phase: Phase,
}

impl Checkpoint {
    /// True if its record is synced, and the cut comes next.
    pub fn is_about_to_cut(&self) -> bool {
        matches!(self.phase, Phase::Control { cut: None, .. })
    }
}

/// How far it is.
pub(super) enum Phase {
    Write,
    Sync,
    /// The record is in the log; the control file is being written, which seals.
    Control {
        record: u64,
        cut: Option<Box<CutImage>>,
        end: Option<u64>,
    },
    Unlink,
}

pub(super) struct Active {
    /// Transactions change what they made, and many are rolled back.
    pub unsettled: bool,
    pub storage: Arc<MemoryStorage>,
    pub cluster: Arc<MemoryCluster>,
    pub view: ActiveView,
    pub files: Files,
    pub flaw: Option<Flaw>,
    pub pool: Pool,
    pub log: Vec<Record>,
    /// What the whole log says.
    pub truth: Truth,
    /// The database takes the log for synced up to here.
    pub flushed: u64,
    /// What has become of its syncs.
    pub synced: Synced,
    pub tasks: Vec<Task>,
    /// Files with pages that no checkpoint has synced yet.
    pub unsynced: BTreeSet<File>,
    /// Pages logged whole and not written yet, by the end of their record.
    pub bulk: BTreeMap<PageId, (u64, Page)>,
    /// Images that lack such pages though they are below their redo points.
    pub lacking: BTreeSet<Generation>,
    /// Relations that a cut found half removed. Who attaches there has their files for good, as after a
    /// crash of a stock server; their numbers must not come again (PostgreSQL gives a number again only
    /// after four billion others).
    pub leaked: BTreeSet<Rel>,
    /// Those that an active brought back, which had attached there: every image has their files since.
    /// A standby that removed them by its own redo, from an earlier seal, sees them again.
    pub orphans: BTreeSet<Rel>,
    /// Stubs to unlink after a checkpoint that starts later than this one.
    pub stubs: Vec<(File, u64)>,
    pub checkpoint: Option<Checkpoint>,
    pub checkpoints_started: u64,
    pub checkpoints_done: u64,
}

impl Active {
    /// Goes on behind `log`, all of which is durable, with an empty pool.
    pub fn new(
        storage: Arc<MemoryStorage>,
        cluster: Arc<MemoryCluster>,
        view: ActiveView,
        flaw: Option<Flaw>,
        truth: Truth,
        log: Vec<Record>,
    ) -> Active {
        Active {
            unsettled: false,
            storage,
            cluster,
            files: Files {
                view: Arc::new(view.clone()),
            },
            view,
            flaw,
            pool: Pool::default(),
            flushed: log.len() as u64,
            synced: Synced::new(log.len() as u64, flaw),
            log,
            truth,
            tasks: Vec::new(),
            unsynced: BTreeSet::new(),
            bulk: BTreeMap::new(),
            lacking: BTreeSet::new(),
            leaked: BTreeSet::new(),
            orphans: BTreeSet::new(),
            stubs: Vec::new(),
            checkpoint: None,
            checkpoints_started: 0,
            checkpoints_done: 0,
        }
    }

    /// Appends a record; returns its end.
    pub fn insert(&mut self, record: Record) -> u64 {
        let lsn = self.log.len() as u64 + 1;
        say(|| format!("{lsn}: {record:?}"));
        self.truth.apply(&record, lsn);
        self.log.push(record);
        lsn
    }

    pub fn flush(&mut self) {
        self.flush_to(self.log.len() as u64);
    }

    fn flush_to(&mut self, end: u64) {
        self.flushed = self.flushed.max(end);
        self.synced.sync(self.flushed);
    }

    /// A page through the pool.
    pub async fn page(&mut self, id: PageId) -> Held<Page> {
        if let Some(page) = self.pool.get(id) {
            return Ok(page);
        }
        let page = self.files.read_page(id).await?;
        let page = page.ok_or_else(|| broken("operations succeed", format!("{id:?} is gone")))?;
        self.pool.read(id, page);
        Ok(page)
    }

    /// Writes a page out: first the log, then the page.
    pub async fn write_out(&mut self, id: PageId) -> Held<()> {
        if let Some(page) = self.pool.clean(id) {
            say(|| format!("   written: {id:?} {page:?}"));
            self.flush_to(page.lsn);
            self.files.write_page(id, &page).await?;
            self.unsynced.insert(id.file);
        }
        Ok(())
    }

    /// True if a relation or its database is locked.
    pub fn is_busy(&self, rel: Rel) -> bool {
        let holds = |t: &Task| t.rel == Some(rel) || t.dbs.contains(&rel.db);
        self.tasks.iter().any(holds)
    }

    /// True if anybody works in a database.
    pub fn is_database_busy(&self, db: u8) -> bool {
        let works = |t: &Task| t.rel.is_some_and(|rel| rel.db == db) || t.dbs.contains(&db);
        self.tasks.iter().any(works)
    }

    /// Databases where something may begin.
    pub fn open_databases(&self) -> Vec<u8> {
        let all = self.truth.databases.iter();
        let open = all.filter(|(_, standing)| **standing == Standing::Committed);
        let open = open.map(|(db, _)| *db);
        open.filter(|db| !self.tasks.iter().any(|t| t.dbs.contains(db)))
            .collect()
    }

    /// Relations that may be changed.
    pub fn open_relations(&self, unlogged: bool) -> Vec<Rel> {
        let live = self.truth.live();
        let live = live.filter(|(rel, is)| is.unlogged == unlogged && !self.is_busy(*rel));
        live.map(|(rel, _)| rel).collect()
    }

    /// Does the next step of a backend, if nothing is in its way.
    pub async fn step_task(&mut self, at: usize, rng: &mut SmallRng) -> Held<()> {
        let Some(step) = self.tasks[at].steps.pop_front() else {
            self.tasks.remove(at);
            return Ok(());
        };
        say(|| format!("   {step:?}"));
        if let Some(again) = self.step(step, rng).await? {
            self.tasks[at].steps.push_front(again);
        }
        if self.tasks[at].steps.is_empty() {
            self.tasks.remove(at);
        }
        Ok(())
    }

    /// Does a step; returns what is left of it.
    async fn step(&mut self, step: Step, rng: &mut SmallRng) -> Held<Option<Step>> {
        match step {
            Step::CreateFile(file) => self.files.create(&file.path())?,
            Step::MakeDirectory(db) => self.files.mkdir(&directory(db))?,
            Step::Log(record) => drop(self.insert(record)),
            Step::Flush => self.flush(),
            Step::Extend(rel) => self.extend(rel, rng).await?,
            Step::Change(rel) => {
                let blocks = self.truth.relations[&rel].pages.len() as u64;
                if blocks > 0 {
                    self.change(rel, rng.random_range(0..blocks), rng).await?;
                }
            }
            Step::BulkLog { file, block } => {
                let value = rng.random_range(1..u64::MAX);
                let (rel, fork) = (file.rel, file.fork);
                let lsn = self.insert(Record::Image {
                    rel,
                    fork,
                    block,
                    value,
                });
                let page = Page::image(value, lsn);
                self.bulk.insert(file.page(block), (lsn, page));
            }
            Step::BulkWrite { file, block } => {
                let id = file.page(block);
                if let Some((_, page)) = self.bulk.get(&id).copied() {
                    self.files.write_page(id, &page).await?;
                    self.bulk.remove(&id);
                }
            }
            Step::Sync(file) => self.files.sync(&file.path()).await?,
            Step::Forget(rel) => {
                self.pool.forget(|id| id.file.rel == rel);
                self.bulk.retain(|id, _| id.file.rel != rel);
            }
            Step::ForgetDb(db) => {
                self.pool.forget(|id| id.file.rel.db == db);
                self.unsynced.retain(|file| file.rel.db != db);
            }
            Step::Remove(file) => self.remove(file).await?,
            Step::AwaitCheckpoint(asked) => {
                let wanted = asked.unwrap_or(self.checkpoints_started + 1);
                let waits = self.checkpoints_done < wanted;
                return Ok(waits.then_some(Step::AwaitCheckpoint(Some(wanted))));
            }
            Step::CopyNext { from, to } => {
                let more = self.copy_next(from, to).await?;
                return Ok(more.then_some(Step::CopyNext { from, to }));
            }
            Step::RemoveNext(db) => {
                let more = self.remove_next(db)?;
                return Ok(more.then_some(Step::RemoveNext(db)));
            }
        }
        Ok(None)
    }

    /// A transaction that has changed what it made is rolled back, up to the record of that: what it logged
    /// last may not be synced yet.
    pub async fn roll_back_some(&mut self, rng: &mut SmallRng) -> Held<()> {
        let is_abort = |step: &Step| matches!(step, Step::Log(Record::Abort { .. }));
        let doomed = |task: &Task| {
            matches!(task.steps.front(), Some(Step::Change(_))) && task.steps.iter().any(is_abort)
        };
        let Some(at) = self.tasks.iter().position(doomed) else {
            return Ok(());
        };
        while !self.tasks[at].steps.front().is_none_or(is_abort) {
            self.step_task(at, rng).await?;
        }
        Ok(())
    }

    /// A new page at the end; the file may grow by more, which is not logged.
    async fn extend(&mut self, rel: Rel, rng: &mut SmallRng) -> Held<()> {
        let file = rel.file(Fork::Main);
        let block = self.truth.relations[&rel].pages.len() as u64;
        let size = self.files.pages(&file.path())?.unwrap_or(0);
        if size <= block {
            let more = if rng.random_ratio(1, 4) { 2 } else { 0 };
            self.files.resize(&file.path(), block + 1 + more).await?;
        }
        self.image(file, block, rng)
    }

    /// Logs a page as a whole.
    pub fn image(&mut self, file: File, block: u64, rng: &mut SmallRng) -> Held<()> {
        let value = rng.random_range(1..u64::MAX);
        let (rel, fork) = (file.rel, file.fork);
        let lsn = self.insert(Record::Image {
            rel,
            fork,
            block,
            value,
        });
        self.pool.change(file.page(block), Page::image(value, lsn));
        Ok(())
    }

    /// A change of a page, and perhaps of the visibility map's, which keeps its LSN (H1).
    pub async fn change(&mut self, rel: Rel, block: u64, rng: &mut SmallRng) -> Held<()> {
        let id = rel.file(Fork::Main).page(block);
        let mut page = self.page(id).await?;
        let relation = &self.truth.relations[&rel];
        let (should, clears) = (relation.pages[block as usize], relation.visible);
        if !page.same(&should) {
            let what = format!("the active reads {page:?} of {id:?}, should be {should:?}");
            return Err(broken("the active reads what it wrote", what));
        }
        let (prev, value) = (page.lsn, rng.random());
        let lsn = self.insert(Record::Change {
            rel,
            block,
            prev,
            value,
            clears,
        });
        page.change(value, lsn);
        self.pool.change(id, page);
        if clears {
            let id = self.visibility_page(rel).await?;
            let mut page = self.page(id).await?;
            page.visible = false;
            self.pool.change(id, page);
        }
        Ok(())
    }

    pub async fn set_visible(&mut self, rel: Rel) -> Held<()> {
        let id = self.visibility_page(rel).await?;
        let mut page = self.page(id).await?;
        page.lsn = self.insert(Record::SetVisible { rel });
        page.visible = true;
        self.pool.change(id, page);
        Ok(())
    }

    /// The page of the visibility map, whose file may have to be made.
    async fn visibility_page(&mut self, rel: Rel) -> Held<PageId> {
        let file = rel.file(Fork::Visibility);
        if self.files.size(&file.path())?.is_none() {
            self.files.create(&file.path())?;
        }
        if self.files.pages(&file.path())? == Some(0) {
            self.files.resize(&file.path(), 1).await?;
        }
        Ok(file.page(0))
    }

    /// Logged and done in one, which no checkpoint comes between.
    pub async fn truncate(&mut self, rel: Rel, blocks: u64) -> Held<()> {
        let file = rel.file(Fork::Main);
        self.insert(Record::Truncate { rel, blocks });
        self.flush();
        self.pool.forget(|id| id.file == file && id.block >= blocks);
        self.files.resize(&file.path(), blocks).await?;
        let map = rel.file(Fork::Visibility);
        if blocks == 0 && self.files.size(&map.path())?.is_some() {
            self.pool.forget(|id| id.file == map);
            self.files.resize(&map.path(), 0).await?;
        }
        Ok(())
    }

    /// What is never logged: hints, and all of an unlogged relation.
    pub async fn unlogged_work(&mut self, rel: Rel, rng: &mut SmallRng) -> Held<()> {
        let file = rel.file(Fork::Main);
        let block = rng.random_range(0..3);
        if self.files.pages(&file.path())?.unwrap_or(0) <= block {
            self.files.resize(&file.path(), block + 1).await?;
        }
        let mut page = self.page(file.page(block)).await?;
        page.body = rng.random_range(1..u64::MAX);
        self.pool.change(file.page(block), page);
        let id = self.visibility_page(rel).await?;
        let mut page = self.page(id).await?;
        page.visible = true;
        self.pool.change(id, page);
        Ok(())
    }

    async fn remove(&mut self, file: File) -> Held<()> {
        let path = file.path();
        self.pool.forget_file(file);
        self.unsynced.remove(&file);
        if self.files.size(&path)?.is_none() {
            return Ok(());
        }
        match file.fork {
            Fork::Main => {
                self.files.resize(&path, 0).await?;
                self.stubs.push((file, self.checkpoints_started));
            }
            _ => self.files.unlink(&path)?,
        }
        Ok(())
    }

    async fn copy_next(&mut self, from: u8, to: u8) -> Held<bool> {
        let there = self.files.names(&directory(to))?.unwrap_or_default();
        let names = self.files.names(&directory(from))?.unwrap_or_default();
        let Some(name) = names.iter().find(|name| !there.contains(name)) else {
            return Ok(false);
        };
        let data = self
            .files
            .read(&format!("{}/{name}", directory(from)))
            .await?;
        let path = format!("{}/{name}", directory(to));
        self.files.create(&path)?;
        if !data.is_empty() {
            self.files.write(&path, data).await?;
        }
        self.files.sync(&path).await?;
        Ok(true)
    }

    fn remove_next(&mut self, db: u8) -> Held<bool> {
        let dir = directory(db);
        self.stubs.retain(|(file, _)| file.rel.db != db);
        let names = self.files.names(&dir)?.unwrap_or_default();
        match names.first() {
            Some(name) => self.files.unlink(&format!("{dir}/{name}"))?,
            None => self.files.rmdir(&dir)?,
        }
        Ok(!names.is_empty())
    }

    /// The control file's bytes.
    pub fn control(redo: u64, checkpoint: u64) -> Bytes {
        let mut bytes = b"control ".to_vec();
        bytes.extend(redo.to_le_bytes());
        bytes.extend(checkpoint.to_le_bytes());
        bytes.into()
    }
}
