//! What processes have open: counts per file, and one listing per opened directory.
//!
//! Invariant: the view's open count of an inode is the number of file handles counted here.
//!
//! After a takeover, handles from before it bypass the page cache, and new ones of the same file use
//! it. A kernel drops cached pages at most *before* a write through a bypassing handle (some do not
//! even that): readahead through a caching handle could fetch the old block meanwhile and keep it. So
//! whoever writes past the cache asks here whether the file was ever cached, and if so has the kernel
//! drop the pages *after* the view has taken the write, before the writer hears of it.
//!
//! What is cached of a file from before a takeover is of the past: a kernel reads ahead into its cache
//! when asked to (`posix_fadvise`, as PostgreSQL does), even through a handle that bypasses it. So the
//! first handles that use the cache have the kernel drop a file's pages when it opens them. A read
//! through such a handle shows that this was done. Only files that were opened before can have such pages:
//! numbers of files grow, so later ones are known by theirs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use volume::private::is_private;
use volume::standby::is_created;
use volume::view::{DirEntry, Ino, PageCache};

/// Open handles of one file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Opens {
    /// Handles that bypass the page cache.
    direct: u64,
    /// Handles that use it.
    cached: u64,
}

/// A directory's names, as they were when it was opened or rewound; begins with `.` and `..`.
pub(crate) type Listing = Arc<[DirEntry]>;

#[derive(Debug)]
struct OpenDirectory {
    listing: Listing,
    /// A first reading has begun, so position 0 comes from rewinddir.
    begun: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Handles {
    files: Mutex<HashMap<Ino, Opens>>,
    /// A shared file was opened for use with the page cache. Not on a standby (rule 8).
    shared_cached: AtomicBool,
    /// Another view was shown before.
    switched: AtomicBool,
    /// The newest shared file that was opened, and that had been when the view was exchanged.
    newest: AtomicU64,
    newest_before: AtomicU64,
    /// Files of which nothing is cached from before that.
    forgotten: Mutex<HashSet<Ino>>,
    directories: Mutex<HashMap<u64, OpenDirectory>>,
    next_directory: AtomicU64,
}

/// The number that the kernel keeps for an open file: whether it bypasses the page cache, and whether all others of
/// that file do.
const CACHED: u64 = 0;
const DIRECT: u64 = 1;
const NEVER_CACHED: u64 = 2;

/// True if a file's handle uses the page cache.
pub(crate) fn is_cached(handle: u64) -> bool {
    handle == CACHED
}

/// True if nobody else uses it for the handle's file either.
pub(crate) fn is_never_cached(handle: u64) -> bool {
    handle == NEVER_CACHED
}

impl Handles {
    /// Counts a handle that the view has counted, and says how the kernel must treat it.
    pub(crate) fn open_file(&self, ino: Ino, asked: PageCache) -> (u64, PageCache) {
        let mut files = self.files.lock();
        let opens = files.entry(ino).or_default();
        if !is_private(ino) && !is_created(ino) {
            self.newest.fetch_max(ino.0, Ordering::AcqRel);
        }
        if asked.is_bypassed() {
            opens.direct += 1;
            return match asked {
                PageCache::Never => (NEVER_CACHED, asked),
                _ => (DIRECT, asked),
            };
        }
        opens.cached += 1;
        if is_private(ino) {
            return (CACHED, asked);
        }
        self.shared_cached.store(true, Ordering::Release);
        match self.may_have_old_pages(ino) {
            true => (CACHED, PageCache::Dropped),
            false => (CACHED, asked),
        }
    }

    /// Another view is shown from now on.
    pub(crate) fn switched(&self) {
        self.forgotten.lock().clear();
        let newest = self.newest.load(Ordering::Acquire);
        self.newest_before.store(newest, Ordering::Release);
        self.switched.store(true, Ordering::Release);
    }

    fn may_have_old_pages(&self, ino: Ino) -> bool {
        self.was_there_before(ino) && !self.forgotten.lock().contains(&ino)
    }

    /// True if a shared file may have been opened before the view was exchanged.
    fn was_there_before(&self, ino: Ino) -> bool {
        let is_old = || is_created(ino) || ino.0 <= self.newest_before.load(Ordering::Acquire);
        self.switched.load(Ordering::Acquire) && is_old()
    }

    /// The kernel reads a shared file through this handle.
    pub(crate) fn read_through(&self, ino: Ino, handle: u64) {
        if is_cached(handle) && !is_private(ino) && self.was_there_before(ino) {
            self.forgotten.lock().insert(ino);
        }
    }

    /// True if the kernel may have pages of shared files cached. Who asks after a write need not
    /// mind an answer that changes then: what is opened later reads what was written.
    pub(crate) fn shared_cached(&self) -> bool {
        self.shared_cached.load(Ordering::Acquire)
    }

    /// Forgets a handle. Says whether the view counts it (it does not, where a switch lost it).
    pub(crate) fn release_file(&self, ino: Ino, handle: u64) -> bool {
        let mut files = self.files.lock();
        let Some(opens) = files.get_mut(&ino) else {
            return false;
        };
        let count = match handle {
            CACHED => &mut opens.cached,
            _ => &mut opens.direct,
        };
        if *count == 0 {
            return false;
        }
        *count -= 1;
        if *opens == Opens::default() {
            files.remove(&ino);
        }
        true
    }

    /// True if a file has one handle only.
    pub(crate) fn is_last(&self, ino: Ino) -> bool {
        let files = self.files.lock();
        files
            .get(&ino)
            .is_some_and(|opens| opens.direct + opens.cached == 1)
    }

    /// All open files with the number of their handles.
    pub(crate) fn files(&self) -> Vec<(Ino, u64)> {
        let files = self.files.lock();
        files
            .iter()
            .map(|(ino, opens)| (*ino, opens.direct + opens.cached))
            .collect()
    }

    /// Forgets all handles of a file: it is not in the view any more.
    pub(crate) fn lose_file(&self, ino: Ino) {
        self.files.lock().remove(&ino);
    }

    /// Keeps a listing for an opened directory.
    pub(crate) fn open_directory(&self, listing: Listing) -> u64 {
        let handle = self.next_directory.fetch_add(1, Ordering::Relaxed);
        let begun = false;
        self.directories
            .lock()
            .insert(handle, OpenDirectory { listing, begun });
        handle
    }

    /// The listing to read from `position`; `None` when a fresh one is due: the directory was
    /// rewound (or the handle is unknown).
    pub(crate) fn listing(&self, handle: u64, position: u64) -> Option<Listing> {
        let mut directories = self.directories.lock();
        let directory = directories.get_mut(&handle)?;
        if position == 0 && std::mem::replace(&mut directory.begun, true) {
            return None;
        }
        Some(Arc::clone(&directory.listing))
    }

    /// Replaces the listing of a rewound directory.
    pub(crate) fn rewind_directory(&self, handle: u64, listing: Listing) {
        if let Some(directory) = self.directories.lock().get_mut(&handle) {
            directory.listing = listing;
        }
    }

    /// Drops the listing.
    pub(crate) fn release_directory(&self, handle: u64) {
        self.directories.lock().remove(&handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_pages_from_before_a_switch_are_dropped_at_the_first_opens() {
        let handles = Handles::default();
        let ino = Ino(7);
        assert_eq!(handles.open_file(ino, PageCache::Kept).1, PageCache::Kept);
        let (old, _) = handles.open_file(ino, PageCache::Bypassed);
        handles.open_file(Ino(8), PageCache::Bypassed);
        handles.switched();
        let (new, cache) = handles.open_file(ino, PageCache::Kept);
        assert_eq!(cache, PageCache::Dropped);
        handles.read_through(ino, old);
        let (_, cache) = handles.open_file(ino, PageCache::Kept);
        assert_eq!(
            cache,
            PageCache::Dropped,
            "nobody knows whether the kernel has opened it"
        );
        handles.read_through(ino, new);
        assert_eq!(handles.open_file(ino, PageCache::Kept).1, PageCache::Kept);
        let (_, cache) = handles.open_file(Ino(8), PageCache::Kept);
        assert_eq!(cache, PageCache::Dropped);
    }

    /// One was noted for every file that a new active ever read, for as long as it lived.
    // hazard: PAGE-12
    #[test]
    fn files_that_are_newer_than_a_switch_have_no_old_pages_and_are_not_noted() {
        const CREATED: u64 = 1 << 62;
        let handles = Handles::default();
        for before in [7, CREATED | 1] {
            handles.open_file(Ino(before), PageCache::Bypassed);
        }
        handles.switched();
        let reads = |number: u64| {
            let (handle, cache) = handles.open_file(Ino(number), PageCache::Kept);
            handles.read_through(Ino(number), handle);
            cache
        };
        for old in [3, 7, CREATED | 1] {
            assert_eq!(reads(old), PageCache::Dropped);
        }
        for new in 8..100 {
            assert_eq!(reads(new), PageCache::Kept);
        }
        assert_eq!(handles.forgotten.lock().len(), 3);
    }

    #[test]
    fn handles_of_both_kinds_are_counted_apart() {
        let handles = Handles::default();
        let ino = Ino(7);
        let (old, cache) = handles.open_file(ino, PageCache::Bypassed);
        assert_eq!(cache, PageCache::Bypassed);
        assert!(!is_cached(old) && !is_never_cached(old));
        assert!(!handles.shared_cached());
        let (new, cache) = handles.open_file(ino, PageCache::Kept);
        assert_eq!(cache, PageCache::Kept);
        assert!(handles.shared_cached());
        assert_eq!(handles.files(), vec![(ino, 2)]);
        assert!(handles.release_file(ino, old));
        assert!(!handles.release_file(ino, old));
        assert!(handles.is_last(ino) && handles.release_file(ino, new));
        assert_eq!(handles.files(), vec![]);
        let (log, cache) = handles.open_file(ino, PageCache::Never);
        assert_eq!(cache, PageCache::Never);
        assert!(!is_cached(log) && is_never_cached(log));
        assert!(handles.is_last(ino) && handles.release_file(ino, log));
    }

    #[test]
    fn lost_handles_are_not_released_in_the_view() {
        let handles = Handles::default();
        let ino = Ino(7);
        let (handle, _) = handles.open_file(ino, PageCache::Kept);
        handles.lose_file(ino);
        assert!(!handles.release_file(ino, handle));
    }

    #[test]
    fn rewinding_asks_for_a_fresh_listing() {
        let handles = Handles::default();
        let empty: Listing = Arc::from(vec![]);
        let handle = handles.open_directory(empty.clone());
        assert!(handles.listing(handle, 0).is_some());
        assert!(handles.listing(handle, 2).is_some());
        assert!(handles.listing(handle, 0).is_none());
        handles.rewind_directory(handle, empty);
        assert!(handles.listing(handle, 2).is_some());
        handles.release_directory(handle);
        assert!(handles.listing(handle, 2).is_none());
    }
}
