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
//! Invariant: never in the way. What fails is left, and looked at again with the next list.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use dax::ids::FileId;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use pgdata::relation::RelationBlock;
use pgdata::warmth::{self, BUFFERS_FILE};
use serde::Serialize;
use volume::standby::StandbyView;

use super::error::Result;
use super::standby::read_live;

/// How often the active's list is looked at, and the standby's own.
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

/// What a standby tells about its warmth; nothing before the first list.
pub(crate) type Told = Arc<Mutex<Option<Warmth>>>;

/// Follows the active's lists.
pub(crate) struct Warmer {
    pub view: Arc<StandbyView>,
    pub blocks_per_segment: u32,
    pub cache_bytes: u64,
    pub told: Told,
}

impl Warmer {
    /// Runs until it is aborted.
    pub async fn run(self) {
        let mut hot = None;
        let given = self.own_list();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if let Err(error) = self.look(&mut hot, given).await {
                tracing::debug!(%error, "the list of the active's buffers could not be used");
            }
        }
    }

    /// Reads the list if it is new, brings what is missing into memory, and counts.
    /// `given` is the list that the server was started with.
    async fn look(
        &self,
        hot: &mut Option<(FileId, Vec<RelationBlock>)>,
        given: Option<u64>,
    ) -> Result<()> {
        let live = self.view.live();
        let Ok(file) = live.resolve(BUFFERS_FILE) else {
            return Ok(());
        };
        if hot.as_ref().is_none_or(|(known, _)| *known != file) {
            let list = read_live(self.view.storage(), &live, file).await?;
            // One that is being replaced is no list; the next one will be.
            let Some(blocks) = parse(&list) else {
                return Ok(());
            };
            *hot = Some((file, blocks));
        }
        let Some((_, blocks)) = hot else {
            return Ok(());
        };
        // The list that it was given says what it should have, not what it has.
        let own = match self.own_list() != given {
            true => self.own_buffers().await,
            false => HashSet::new(),
        };
        let missing = self.count(blocks, &own);
        self.load(missing).await;
        self.count(blocks, &own);
        Ok(())
    }

    /// Which list of its own the standby's server has: each is a file of its own.
    fn own_list(&self) -> Option<u64> {
        let place = self.view.private().place(BUFFERS_FILE).ok()?;
        Some(std::fs::metadata(place).ok()?.ino())
    }

    /// What the standby's server has in its buffers, as it told last.
    async fn own_buffers(&self) -> HashSet<RelationBlock> {
        let Ok(place) = self.view.private().place(BUFFERS_FILE) else {
            return HashSet::new();
        };
        let list = tokio::fs::read(place).await.unwrap_or_default();
        parse(&list).unwrap_or_default().into_iter().collect()
    }

    /// Tells how warm the standby is; returns the blocks that are not in its memory.
    fn count(&self, hot: &[RelationBlock], own: &HashSet<RelationBlock>) -> Vec<(String, u64)> {
        let places = hot.iter().filter(|block| !own.contains(block));
        let places = places.filter_map(|block| block.location(self.blocks_per_segment));
        let (mut in_mount, mut missing) = (0, Vec::new());
        for (path, block) in places {
            match self.view.is_at_hand(&path, block) {
                true => in_mount += 1,
                false => missing.push((path, block)),
            }
        }
        let hot_blocks = hot.len() as u64;
        let there = hot_blocks - missing.len() as u64;
        let mut told = self.told.lock();
        let loaded = told.as_ref().map_or(0, |told| told.loaded);
        *told = Some(Warmth {
            hot_blocks,
            in_buffers: there - in_mount,
            in_mount,
            loaded,
            percent: share(there, hot_blocks),
        });
        missing
    }

    /// Reads blocks into the mount's cache, as many as fit.
    async fn load(&self, missing: Vec<(String, u64)>) {
        let block_bytes = u64::from(self.view.storage().settings().block_size_bytes);
        let room = (self.cache_bytes as f64 * CACHE_SHARE) as u64 / block_bytes;
        let reads = missing.into_iter().take(room as usize);
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
    use super::share;

    #[test]
    fn shares_are_percents() {
        assert_eq!(share(1, 3), 33.3);
        assert_eq!(share(3, 3), 100.0);
        assert_eq!(share(0, 0), 100.0, "nothing is missing");
    }
}
