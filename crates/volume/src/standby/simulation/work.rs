//! What the active's backends begin to do, chosen at random from what fits.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::active::Active;
use super::checkers::Held;
use super::log::Record;
use super::page::{Fork, Page, Rel, directory};
use super::task::{Step, Task};

/// Numbers that relations of a database can have; few, so that they come again.
const NUMBERS: u16 = 6;
pub(super) const DATABASES: u8 = 4;

impl Active {
    /// Something happens: a change at once, or a backend that begins something longer.
    pub async fn work(&mut self, rng: &mut SmallRng) -> Held<()> {
        match rng.random_range(0..100) {
            0..38 => self.change_something(rng).await,
            38..47 => self.extend_something(rng),
            47..56 => self.set_something_visible(rng).await,
            56..61 => self.truncate_something(rng).await,
            61..71 => self.begin_table(rng),
            71..79 => self.begin_bulk(rng),
            79..88 => self.begin_drop(rng),
            88..91 => self.begin_unlogged(rng),
            91..93 => self.unlogged_change(rng).await,
            93..97 => self.begin_database(rng),
            _ => self.begin_database_drop(rng),
        }
    }

    fn begin(&mut self, rel: Option<Rel>, dbs: Vec<u8>, steps: impl IntoIterator<Item = Step>) {
        let steps = steps.into_iter().collect();
        self.tasks.push(Task { rel, dbs, steps });
    }

    async fn change_something(&mut self, rng: &mut SmallRng) -> Held<()> {
        let Some(rel) = self.open_relations(false).choose(rng).copied() else {
            return self.begin_table(rng);
        };
        let blocks = self.truth.relations[&rel].pages.len() as u64;
        if blocks == 0 {
            return Ok(());
        }
        let block = rng.random_range(0..blocks);
        match rng.random_ratio(1, 8) {
            true => self.image(rel.file(Fork::Main), block, rng),
            false => self.change(rel, block, rng).await,
        }
    }

    fn extend_something(&mut self, rng: &mut SmallRng) -> Held<()> {
        if let Some(rel) = self.open_relations(false).choose(rng).copied()
            && self.truth.relations[&rel].pages.len() < 5
        {
            self.begin(Some(rel), Vec::new(), [Step::Extend(rel)]);
        }
        Ok(())
    }

    async fn set_something_visible(&mut self, rng: &mut SmallRng) -> Held<()> {
        match self.open_relations(false).choose(rng).copied() {
            Some(rel) if !self.truth.relations[&rel].pages.is_empty() => {
                self.set_visible(rel).await
            }
            _ => Ok(()),
        }
    }

    async fn truncate_something(&mut self, rng: &mut SmallRng) -> Held<()> {
        let Some(rel) = self.open_relations(false).choose(rng).copied() else {
            return Ok(());
        };
        let blocks = self.truth.relations[&rel].pages.len() as u64;
        self.truncate(rel, rng.random_range(0..=blocks)).await
    }

    async fn unlogged_change(&mut self, rng: &mut SmallRng) -> Held<()> {
        match self.open_relations(true).choose(rng).copied() {
            Some(rel) => self.unlogged_work(rel, rng).await,
            None => Ok(()),
        }
    }

    /// A number that nothing has: neither a relation, nor a file, nor a backend.
    fn free_relation(&mut self, rng: &mut SmallRng) -> Held<Option<Rel>> {
        let Some(db) = self.open_databases().choose(rng).copied() else {
            return Ok(None);
        };
        let number = rng.random_range(1..=NUMBERS);
        let rel = Rel { db, number };
        let mut taken = self.truth.relations.contains_key(&rel)
            || self.is_busy(rel)
            || self.leaked.contains(&rel);
        for fork in Fork::ALL {
            taken |= self.files.size(&rel.file(fork).path())?.is_some();
        }
        Ok((!taken).then_some(rel))
    }

    /// A table with some pages; its transaction ends well, or is rolled back: then the files go before
    /// the log says so (N8).
    fn begin_table(&mut self, rng: &mut SmallRng) -> Held<()> {
        let Some(rel) = self.free_relation(rng)? else {
            return Ok(());
        };
        let unlogged = false;
        let mut steps = vec![
            Step::CreateFile(rel.file(Fork::Main)),
            Step::Log(Record::Create { rel, unlogged }),
        ];
        let pages = rng.random_range(0..4);
        steps.extend((0..pages).map(|_| Step::Extend(rel)));
        if self.unsettled {
            let more = rng.random_range(1..4);
            steps.extend((0..more).map(|_| Step::Change(rel)));
            if rng.random() {
                steps.insert(steps.len() - 1, Step::Extend(rel));
            }
        }
        let fails = if self.unsettled { 2 } else { 5 };
        match rng.random_ratio(1, fails) {
            true => {
                steps.push(Step::Forget(rel));
                steps.push(Step::Remove(rel.file(Fork::Main)));
                steps.push(Step::Log(Record::Abort { rel }));
            }
            false => steps.extend([Step::Log(Record::Commit { rel }), Step::Flush]),
        }
        self.begin(Some(rel), Vec::new(), steps);
        Ok(())
    }

    /// A table or index whose pages are logged whole first and written past the buffers later (N2).
    fn begin_bulk(&mut self, rng: &mut SmallRng) -> Held<()> {
        let Some(rel) = self.free_relation(rng)? else {
            return Ok(());
        };
        let file = rel.file(Fork::Main);
        let unlogged = false;
        let mut steps = vec![
            Step::CreateFile(file),
            Step::Log(Record::Create { rel, unlogged }),
        ];
        let mut blocks: Vec<u64> = (0..rng.random_range(1..4)).collect();
        steps.extend(blocks.iter().map(|&block| Step::BulkLog { file, block }));
        // The upper pages of a tree come before some lower ones: the file is longer than what it has.
        if rng.random() {
            blocks.reverse();
        }
        steps.extend(blocks.iter().map(|&block| Step::BulkWrite { file, block }));
        steps.extend([
            Step::Sync(file),
            Step::Log(Record::Commit { rel }),
            Step::Flush,
        ]);
        self.begin(Some(rel), Vec::new(), steps);
        Ok(())
    }

    fn begin_unlogged(&mut self, rng: &mut SmallRng) -> Held<()> {
        let Some(rel) = self.free_relation(rng)? else {
            return Ok(());
        };
        let init = rel.file(Fork::Init);
        let (unlogged, block) = (true, 0);
        let steps = [
            Step::CreateFile(rel.file(Fork::Main)),
            Step::CreateFile(init),
            Step::Log(Record::Create { rel, unlogged }),
            Step::BulkLog { file: init, block },
            Step::BulkWrite { file: init, block },
            Step::Sync(init),
            Step::Log(Record::Commit { rel }),
            Step::Flush,
        ];
        self.begin(Some(rel), Vec::new(), steps);
        Ok(())
    }

    /// The record first, then buffers and files, one by one (N7, N8).
    fn begin_drop(&mut self, rng: &mut SmallRng) -> Held<()> {
        let unlogged = rng.random_ratio(1, 4);
        let Some(rel) = self.open_relations(unlogged).choose(rng).copied() else {
            return Ok(());
        };
        let mut steps = vec![
            Step::Log(Record::Drop { rel }),
            Step::Flush,
            Step::Forget(rel),
        ];
        steps.extend(Fork::ALL.map(|fork| Step::Remove(rel.file(fork))));
        self.begin(Some(rel), Vec::new(), steps);
        Ok(())
    }

    /// `CREATE DATABASE ... STRATEGY FILE_COPY`: a checkpoint, the copy, the record, a checkpoint.
    fn begin_database(&mut self, rng: &mut SmallRng) -> Held<()> {
        let to = rng.random_range(1..=DATABASES);
        let Some(from) = self.open_databases().choose(rng).copied() else {
            return Ok(());
        };
        let taken = self.truth.databases.contains_key(&to)
            || self.is_database_busy(from)
            || self.is_database_busy(to)
            || self.files.names(&directory(to))?.is_some();
        if !taken {
            let steps = [
                Step::AwaitCheckpoint(None),
                Step::MakeDirectory(to),
                Step::CopyNext { from, to },
                Step::Log(Record::CopyDb { from, to }),
                Step::Flush,
                Step::AwaitCheckpoint(None),
                Step::Log(Record::CommitDb { db: to }),
                Step::Flush,
            ];
            self.begin(None, vec![from, to], steps);
        }
        Ok(())
    }

    /// `DROP DATABASE`: marked invalid, buffers dropped, a checkpoint, the files, the record (N8).
    fn begin_database_drop(&mut self, rng: &mut SmallRng) -> Held<()> {
        let open = self.open_databases();
        if open.len() < 2 {
            return Ok(());
        }
        let Some(db) = open.choose(rng).copied() else {
            return Ok(());
        };
        if !self.is_database_busy(db) {
            let steps = [
                Step::Log(Record::Doom { db }),
                Step::Flush,
                Step::ForgetDb(db),
                Step::AwaitCheckpoint(None),
                Step::RemoveNext(db),
                Step::Log(Record::DropDb { db }),
                Step::Flush,
            ];
            self.begin(None, vec![db], steps);
        }
        Ok(())
    }

    /// Pages are written, or leave the pool, or get hints; log and blocks become durable by themselves.
    pub async fn background(&mut self, rng: &mut SmallRng) -> Held<()> {
        let Some(id) = self.pool.pick(rng) else {
            return Ok(());
        };
        match rng.random_range(0..10) {
            0..4 => self.write_out(id).await?,
            4..7 => {
                self.write_out(id).await?;
                self.pool.evict(id);
            }
            7 => {
                if let Some(page) = self.pool.get(id).filter(|p| !p.is_new()) {
                    let hint = rng.random();
                    self.pool.change(id, Page { hint, ..page });
                }
            }
            8 => self.flush(),
            _ => {
                let mut luck = SmallRng::seed_from_u64(rng.random());
                self.storage.land(|_| luck.random_ratio(1, 3));
            }
        }
        Ok(())
    }

    /// True if a backend waits for a checkpoint.
    pub fn wants_checkpoint(&self) -> bool {
        let waits = |t: &Task| matches!(t.steps.front(), Some(Step::AwaitCheckpoint(Some(_))));
        self.tasks.iter().any(waits)
    }
}
