//! Redo as PostgreSQL does it: pages by their LSN, files as they come, with what it tolerates before
//! the standby is consistent and what it dies of afterwards.

use super::checkers::{Broken, Held, REDO, broken, failed};
use super::log::Record;
use super::page::{File, Fork, Page, PageId, Rel, directory};
use super::standby::Standby;
use super::trace::say;

const FUTURE: &str = "nothing from the future is seen";

impl Standby {
    /// Applies the next record.
    pub async fn redo(&mut self, record: &Record) -> Held<()> {
        let lsn = self.applied + 1;
        say(|| format!("   {} redo {lsn}: {record:?}", self.node));
        let done = self.replay(record, lsn).await.map_err(|error| {
            let what = format!("{record:?} at {lsn}, {}: {}", self.describe(), error.what);
            Broken {
                checker: error.checker,
                what,
            }
        });
        done?;
        self.truth.apply(record, lsn);
        self.note_removed(record, lsn);
        self.applied = lsn;
        if !self.consistent && self.applied >= self.consistent_at {
            self.become_consistent()?;
        }
        Ok(())
    }

    async fn replay(&mut self, record: &Record, lsn: u64) -> Held<()> {
        match *record {
            Record::Create { rel, unlogged } => {
                // The active gives a number again only after its stub is gone.
                if let Some(at) = self.stubs.iter().position(|stub| stub.rel == rel) {
                    let stub = self.stubs.remove(at);
                    // A move may have taken it, as the active has.
                    if self.files.size(&stub.path())?.is_some() {
                        self.files.unlink(&stub.path()).map_err(|e| failed(e))?;
                    }
                }
                let fork = if unlogged { Fork::Init } else { Fork::Main };
                self.create_file(rel.file(fork))
            }
            Record::Abort { rel } | Record::Drop { rel } => self.drop_relation(rel).await,
            Record::Change {
                rel,
                block,
                prev,
                value,
                clears,
            } => {
                let id = rel.file(Fork::Main).page(block);
                self.redo_change(id, lsn, prev, value).await?;
                match clears {
                    true => self.redo_visibility(rel, None).await,
                    false => Ok(()),
                }
            }
            Record::Image {
                rel,
                fork,
                block,
                value,
            } => {
                self.redo_image(rel.file(fork).page(block), value, lsn)
                    .await
            }
            Record::SetVisible { rel } => self.redo_visibility(rel, Some(lsn)).await,
            Record::Truncate { rel, blocks } => self.redo_truncate(rel, blocks).await,
            Record::DropDb { db } => {
                self.forget(|id| id.file.rel.db == db);
                self.stubs.retain(|file| file.rel.db != db);
                self.remove_directory(db)
            }
            Record::CopyDb { from, to } => self.redo_copy(from, to).await,
            Record::Checkpoint { redo } => {
                self.checkpoint = Some((redo, lsn));
                Ok(())
            }
            Record::Commit { .. } | Record::Doom { .. } | Record::CommitDb { .. } => Ok(()),
        }
    }

    /// Drops buffers of what is removed, and what was held against it.
    fn forget(&mut self, gone: impl Fn(PageId) -> bool) {
        self.invalid.retain(|id| !gone(*id));
        self.pool.forget(gone);
    }

    /// Files that redo misses it makes, with their directories.
    fn create_file(&self, file: File) -> Held<()> {
        let path = file.path();
        if self.files.size(&path)?.is_some() {
            return self.files.open(&path).map_err(|e| failed(e));
        }
        let dir = directory(file.rel.db);
        if self.files.names(&dir)?.is_none() {
            self.files.mkdir(&dir).map_err(|e| failed(e))?;
        }
        self.files.create(&path).map_err(|e| failed(e))
    }

    /// A page for redo; `None` if there is none, or a new one.
    async fn redo_read(&mut self, id: PageId) -> Held<Option<Page>> {
        if let Some(page) = self.pool.get(id) {
            return Ok(Some(page).filter(|p| !p.is_new()));
        }
        self.create_file(id.file)?;
        let page = self.files.read_page(id).await.map_err(|e| failed(e))?;
        if let Some(page) = page {
            self.pool.read(id, page);
        }
        Ok(page.filter(|p| !p.is_new()))
    }

    async fn redo_change(&mut self, id: PageId, lsn: u64, prev: u64, value: u64) -> Held<()> {
        let Some(mut page) = self.redo_read(id).await? else {
            return self.missing(id);
        };
        if page.lsn >= lsn {
            return match self.consistent && page.lsn > lsn {
                true => Err(broken(FUTURE, format!("{id:?} is {page:?}"))),
                false => Ok(()),
            };
        }
        if page.lsn != prev {
            return self.misfit(id, format!("has LSN {}, not {prev}", page.lsn));
        }
        page.change(value, lsn);
        self.pool.change(id, page);
        Ok(())
    }

    /// A page that is missing, or new. Before redo is consistent the file may have been cut or removed
    /// by a later record, which must come in time.
    fn missing(&mut self, id: PageId) -> Held<()> {
        match self.consistent {
            true => self.misfit(id, "is not there".into()),
            false => {
                self.invalid.insert(id);
                Ok(())
            }
        }
    }

    /// A page that does not fit its record. Fatal, unless the image lacks it because its relation was
    /// going when the generation was cut, so that nobody will ever look (N7; there the earlier seal
    /// helps, or the operator). A standby that has moved never meets that.
    fn misfit(&mut self, id: PageId, what: String) -> Held<()> {
        let will_be_looked_at = self.at_attach.is_live_since(id.file.rel, self.applied);
        match self.moves == 0 && !will_be_looked_at {
            true => {
                self.excused += 1;
                Ok(())
            }
            false => Err(broken(REDO, format!("{id:?} {what}"))),
        }
    }

    /// `CheckRecoveryConsistency`.
    fn become_consistent(&mut self) -> Held<()> {
        self.consistent = true;
        for id in std::mem::take(&mut self.invalid) {
            self.misfit(id, "was never removed".into())?;
        }
        Ok(())
    }

    async fn redo_image(&mut self, id: PageId, value: u64, lsn: u64) -> Held<()> {
        self.create_file(id.file)?;
        let path = id.file.path();
        if self.files.pages(&path)?.unwrap_or(0) <= id.block {
            let grown = self.files.resize(&path, id.block + 1);
            grown.await.map_err(|e| failed(e))?;
        }
        self.pool.change(id, Page::image(value, lsn));
        Ok(())
    }

    /// Sets the bit by the page's LSN, or clears it whatever the LSN is (H1).
    async fn redo_visibility(&mut self, rel: Rel, set: Option<u64>) -> Held<()> {
        let id = rel.file(Fork::Visibility).page(0);
        self.create_file(id.file)?;
        let path = id.file.path();
        if self.files.pages(&path)?.unwrap_or(0) == 0 {
            self.files.resize(&path, 1).await.map_err(|e| failed(e))?;
        }
        let mut page = match self.pool.get(id) {
            Some(page) => page,
            None => {
                let page = self.files.read_page(id).await.map_err(|e| failed(e))?;
                page.unwrap_or_default()
            }
        };
        match set {
            Some(lsn) if page.lsn >= lsn => return Ok(()),
            Some(lsn) => (page.lsn, page.visible) = (lsn, true),
            None => page.visible = false,
        }
        self.pool.change(id, page);
        Ok(())
    }

    async fn redo_truncate(&mut self, rel: Rel, blocks: u64) -> Held<()> {
        let file = rel.file(Fork::Main);
        self.create_file(file)?;
        self.forget(|id| id.file == file && id.block >= blocks);
        let path = file.path();
        if self.files.pages(&path)?.unwrap_or(0) > blocks {
            self.files
                .resize(&path, blocks)
                .await
                .map_err(|e| failed(e))?;
        }
        // Of nothing there is no map.
        let map = rel.file(Fork::Visibility);
        let path = map.path();
        if blocks == 0 && self.files.size(&path)?.is_some() {
            self.forget(|id| id.file == map);
            self.files.resize(&path, 0).await.map_err(|e| failed(e))?;
        }
        Ok(())
    }

    /// Cut and unlinked; in some versions the main fork's stub goes at the next restartpoint.
    async fn drop_relation(&mut self, rel: Rel) -> Held<()> {
        self.forget(|id| id.file.rel == rel);
        for fork in Fork::ALL {
            let file = rel.file(fork);
            let path = file.path();
            if self.files.size(&path)?.is_none() {
                continue;
            }
            self.files.resize(&path, 0).await.map_err(|e| failed(e))?;
            self.between().await?;
            match fork == Fork::Main && self.keeps_stubs {
                true => self.stubs.push(file),
                false => self.files.unlink(&path).map_err(|e| failed(e))?,
            }
        }
        Ok(())
    }

    fn remove_directory(&self, db: u8) -> Held<()> {
        let dir = directory(db);
        match self.files.names(&dir)? {
            Some(_) => self.files.remove_all(&dir).map_err(|e| failed(e)),
            None => Ok(()),
        }
    }

    /// `copydir`, after the destination was emptied and the source's buffers were written.
    async fn redo_copy(&mut self, from: u8, to: u8) -> Held<()> {
        self.forget(|id| id.file.rel.db == to);
        self.remove_directory(to)?;
        for id in self.pool.dirty() {
            if id.file.rel.db == from {
                self.write_out(id).await?;
            }
        }
        self.between().await?;
        self.files.mkdir(&directory(to)).map_err(|e| failed(e))?;
        let names = self.files.names(&directory(from))?;
        let names = names.ok_or_else(|| broken(REDO, format!("database {from} is missing")))?;
        for name in &names {
            let path = format!("{}/{name}", directory(from));
            let data = self.files.read(&path).await.map_err(|e| failed(e))?;
            self.between().await?;
            let path = format!("{}/{name}", directory(to));
            self.files.create(&path).map_err(|e| failed(e))?;
            if !data.is_empty() {
                self.files.write(&path, data).await.map_err(|e| failed(e))?;
            }
        }
        let copied = names.iter().filter_map(|name| File::parse(from, name));
        // Copies of what relations have left behind stay for good in PostgreSQL, where their numbers do not come again
        // so soon.
        let is_left = |file: &File| !self.truth.relations.contains_key(&file.rel);
        let copied = copied.filter(|file| file.fork == Fork::Main && is_left(file));
        let copied = copied.map(|left| {
            let number = left.rel.number;
            Rel { db: to, number }.file(left.fork)
        });
        let copied: Vec<File> = copied.collect();
        self.stubs.extend(copied);
        Ok(())
    }
}
