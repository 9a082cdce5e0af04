//! Pages as they were sent last: those that were sent most recently.

use std::num::NonZeroUsize;

use lru::LruCache;

use super::Page;

/// A cache of pages.
#[derive(Debug)]
pub struct Cache(LruCache<u32, Box<Page>>);

impl Cache {
    /// With room for so many, and at least one.
    pub fn new(pages: usize) -> Cache {
        Cache(LruCache::new(
            NonZeroUsize::new(pages).unwrap_or(NonZeroUsize::MIN),
        ))
    }

    /// The page as it was sent.
    pub fn get(&mut self, number: u32) -> Option<&Page> {
        self.0.get(&number).map(|page| &**page)
    }

    /// Nobody knows what it is.
    pub fn forget(&mut self, number: u32) {
        self.0.pop(&number);
    }

    /// The page was sent.
    pub fn set(&mut self, number: u32, page: &Page) {
        if let Some(old) = self.0.get_mut(&number) {
            **old = *page;
        } else if self.0.len() == self.0.cap().get()
            && let Some((_, mut oldest)) = self.0.pop_lru()
        {
            *oldest = *page;
            self.0.put(number, oldest);
        } else {
            self.0.put(number, Box::new(*page));
        }
    }
}
