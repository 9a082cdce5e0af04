//! A buffer pool: pages read once, changed in memory, written when they are evicted or a checkpoint
//! wants them.

use std::collections::BTreeMap;

use rand::Rng;
use rand::rngs::SmallRng;

use super::page::{File, Page, PageId};

/// A page in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffer {
    pub page: Page,
    pub dirty: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Pool(BTreeMap<PageId, Buffer>);

impl Pool {
    pub fn get(&self, id: PageId) -> Option<Page> {
        self.0.get(&id).map(|buffer| buffer.page)
    }

    pub fn read(&mut self, id: PageId, page: Page) {
        let dirty = false;
        self.0.insert(id, Buffer { page, dirty });
    }

    pub fn change(&mut self, id: PageId, page: Page) {
        let dirty = true;
        self.0.insert(id, Buffer { page, dirty });
    }

    /// Who writes the page calls this first.
    pub fn clean(&mut self, id: PageId) -> Option<Page> {
        let buffer = self.0.get_mut(&id).filter(|buffer| buffer.dirty)?;
        buffer.dirty = false;
        Some(buffer.page)
    }

    pub fn evict(&mut self, id: PageId) {
        self.0.remove(&id);
    }

    /// Any page.
    pub fn pick(&self, rng: &mut SmallRng) -> Option<PageId> {
        let at = rng.random_range(0..self.0.len().max(1));
        self.0.keys().nth(at).copied()
    }

    pub fn dirty(&self) -> Vec<PageId> {
        let dirty = self.0.iter().filter(|(_, buffer)| buffer.dirty);
        dirty.map(|(id, _)| *id).collect()
    }

    /// Forgets pages without writing them: their file or tail is gone.
    pub fn forget(&mut self, gone: impl Fn(PageId) -> bool) {
        self.0.retain(|id, _| !gone(*id));
    }

    pub fn forget_file(&mut self, file: File) {
        self.forget(|id| id.file == file);
    }
}
