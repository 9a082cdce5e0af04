//! Keeping a standby's memory like the active's: besides what redo replays, what the active's clients
//! only read (multi-version replication, section 4.5, second variant: the list of hot pages is sent,
//! and the standby touches them).
//!
//! The active's server writes the list of its buffers into a shared file ([`pgdata::warmth`]). A new
//! standby's server loads it into its own buffers at its start. Later lists are compared with what the
//! standby has in memory: its server's buffers, which that one lists as well, the overlay, and the
//! mount's cache. What is in none of them is read into the cache, a few blocks at a time, behind
//! everything else. So after a takeover reads are answered from this machine's memory.
//!
//! Invariant: never in the way. What fails, or does not fit, is left, and looked at again with the next
//! list; blocks of one list do not take each other's place in the cache.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dax::ids::FileId;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use pgdata::relation::RelationBlock;
use pgdata::warmth::{self, BUFFERS_FILE};
use serde::Serialize;
use volume::standby::{Residence, StandbyView};

use super::error::Result;
use super::files::read_live;

/// How often it is looked for new lists, and counted.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Blocks that are read at once.
const READS_AT_ONCE: usize = 4;
/// The part of the mount's cache that lists may fill.
const CACHE_SHARE: f64 = 0.75;

/// How much of the active's memory a standby has.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub(crate) struct Warmth {
    /// Blocks in the active's buffers, as it told last.
    pub hot_blocks: u64,
    /// Those that the standby's server has in its buffers, as it told last.
    pub in_buffers: u64,
    /// Those that are in neither but in the mount's memory.
    pub in_mount: u64,
    /// Blocks that lists had the mount read so far.
    pub loaded: u64,
    /// Blocks in memory of all hot ones, in percent.
    pub percent: f64,
}

/// Warmth of a standby, for the node's status; nothing before the first list.
pub(crate) type WarmthStatus = Arc<Mutex<Option<Warmth>>>;

/// Follows the active's lists.
pub(crate) struct Warmer {
    pub view: Arc<StandbyView>,
    pub blocks_per_segment: u32,
    pub cache_bytes: u64,
    pub told: WarmthStatus,
}

impl Warmer {
    /// Runs until it is aborted.
    pub async fn run(self) {
        let mut hot = None;
        let place = self.view.private().place(BUFFERS_FILE).ok();
        let mut own = OwnList::starting_with(place);
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if let Err(error) = self.look(&mut hot, &mut own).await {
                tracing::debug!(%error, "the list of the active's buffers could not be used");
            }
        }
    }

    /// Reads the lists that are new, and counts; if one is, brings what is missing into memory first.
    async fn look(
        &self,
        hot: &mut Option<(FileId, Vec<RelationBlock>)>,
        own: &mut OwnList,
    ) -> Result<()> {
        let live = self.view.live();
        let Ok(file) = live.resolve(BUFFERS_FILE) else {
            return Ok(());
        };
        let mut is_new = own.follow().await;
        if hot.as_ref().is_none_or(|(known, _)| *known != file) {
            let list = read_live(self.view.storage(), &live, file).await?;
            // One that is being replaced is no list; the next one will be.
            let Some(blocks) = parse(&list) else {
                return Ok(());
            };
            *hot = Some((file, blocks));
            is_new = true;
        }
        let Some((_, blocks)) = hot else {
            return Ok(());
        };
        let found = self.count(blocks, &own.blocks);
        if is_new && !found.missing.is_empty() {
            self.load(found).await;
            self.count(blocks, &own.blocks);
        }
        Ok(())
    }

    /// Tells how warm the standby is.
    fn count(&self, hot: &[RelationBlock], own: &HashSet<RelationBlock>) -> Found {
        let places = hot.iter().filter(|block| !own.contains(block));
        let places = places.filter_map(|block| block.location(self.blocks_per_segment));
        let (mut found, mut in_overlay) = (Found::default(), 0);
        for (path, block) in places {
            match self.view.residence(&path, block) {
                Residence::Cache => found.in_cache += 1,
                Residence::Memory => in_overlay += 1,
                Residence::Storage => found.missing.push((path, block)),
            }
        }
        let hot_blocks = hot.len() as u64;
        let in_mount = found.in_cache + in_overlay;
        let there = hot_blocks - found.missing.len() as u64;
        let mut told = self.told.lock();
        let loaded = told.as_ref().map_or(0, |told| told.loaded);
        *told = Some(Warmth {
            hot_blocks,
            in_buffers: there - in_mount,
            in_mount,
            loaded,
            percent: share(there, hot_blocks),
        });
        found
    }

    /// Reads blocks into the mount's cache, as many as fit.
    async fn load(&self, found: Found) {
        let block_bytes = u64::from(self.view.storage().settings().block_size_bytes);
        let room = found.room(self.cache_bytes, block_bytes);
        let reads = found.missing.into_iter().take(room);
        let reads = stream::iter(reads).map(|(path, block)| async move {
            let read = self.view.warm(&path, block).await;
            read.unwrap_or_default()
        });
        let mut reads = reads.buffer_unordered(READS_AT_ONCE);
        let mut loaded = 0;
        while let Some(is_read) = reads.next().await {
            loaded += u64::from(is_read);
        }
        if let Some(told) = self.told.lock().as_mut() {
            told.loaded += loaded;
        }
    }
}

/// Where the blocks of a list are that the standby's server does not have in its buffers.
#[derive(Debug, Default)]
struct Found {
    /// So many are in the mount's cache.
    in_cache: u64,
    /// These would have to be read.
    missing: Vec<(String, u64)>,
}

impl Found {
    /// How many blocks may be read. Those of the list that the cache has count: more of them would only
    /// take each other's place.
    fn room(&self, cache_bytes: u64, block_bytes: u64) -> usize {
        let blocks = (cache_bytes as f64 * CACHE_SHARE) as u64 / block_bytes.max(1);
        blocks.saturating_sub(self.in_cache) as usize
    }
}

/// What the standby's server has in its buffers, as it told last. The list that it was given at its start
/// says what it should have, not what it has.
struct OwnList {
    place: Option<PathBuf>,
    /// The list that was read last, or given.
    seen: Option<Mark>,
    blocks: HashSet<RelationBlock>,
}

/// Tells one list from the next: each is a file of its own, whose number may be an earlier one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    ino: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Mark {
    fn of(place: &Path) -> Option<Mark> {
        let file = std::fs::metadata(place).ok()?;
        Some(Mark {
            ino: file.ino(),
            bytes: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
        })
    }
}

impl OwnList {
    /// What is at `place` now is the list that the server was given.
    fn starting_with(place: Option<PathBuf>) -> OwnList {
        OwnList {
            seen: place.as_deref().and_then(Mark::of),
            place,
            blocks: HashSet::new(),
        }
    }

    /// Reads the list if it is another one; whether it was.
    async fn follow(&mut self) -> bool {
        let Some(place) = &self.place else {
            return false;
        };
        let mark = Mark::of(place);
        if mark == self.seen {
            return false;
        }
        let list = tokio::fs::read(place).await.unwrap_or_default();
        let Some(blocks) = parse(&list) else {
            return false;
        };
        self.blocks = blocks.into_iter().collect();
        self.seen = mark;
        true
    }
}

fn parse(list: &[u8]) -> Option<Vec<RelationBlock>> {
    warmth::parse(std::str::from_utf8(list).ok()?)
}

/// A part in percent, to a tenth.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 100.0;
    }
    (part as f64 / whole as f64 * 1000.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percents() {
        assert_eq!(share(1, 3), 33.3);
        assert_eq!(share(3, 3), 100.0);
        assert_eq!(share(0, 0), 100.0, "nothing is missing");
    }

    #[test]
    fn reads_are_limited_to_the_cache() {
        let found = |in_cache| Found {
            in_cache,
            missing: Vec::new(),
        };
        assert_eq!(found(0).room(80, 8), 7, "three quarters of ten");
        assert_eq!(found(5).room(80, 8), 2);
        assert_eq!(found(7).room(80, 8), 0, "it is full of this list");
        assert_eq!(found(9).room(80, 8), 0);
    }

    #[tokio::test]
    async fn a_list_of_ones_own_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join(BUFFERS_FILE);
        let write = |text: &str| {
            let next = dir.path().join("next");
            std::fs::write(&next, text).unwrap();
            std::fs::rename(&next, &place).unwrap();
        };
        write("<<1>>\n5,1663,16384,0,1\n");
        let mut own = OwnList::starting_with(Some(place.clone()));
        assert!(!own.follow().await, "that was given");
        assert!(own.blocks.is_empty());
        write("<<2>>\n5,1663,16384,0,1\n5,1663,16384,0,2\n");
        assert!(own.follow().await);
        assert_eq!(own.blocks.len(), 2);
        assert!(!own.follow().await, "it is the same");
        write("<<3>>\n5,1663,16384,0,1\n");
        assert!(!own.follow().await, "it is not whole");
        assert_eq!(own.blocks.len(), 2, "what was known stays");
        write("<<0>>\n");
        assert!(own.follow().await);
        assert!(own.blocks.is_empty());
    }
}
