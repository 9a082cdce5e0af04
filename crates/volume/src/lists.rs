//! Lists of blocks: which version each block of the database got in a stretch of generations, for who
//! reads sealed images without having written them (CAC-DB 4.5.2).
//!
//! The paper's standby compares page LSNs. Those do not tell versions apart: hint bits, visibility and
//! free space change without moving them. That a block was written in a generation does not, either: it
//! may have been written several times, and a stale replica has an earlier version of the same
//! generation. So a list has the sequence number of the last version, which with the epoch of the
//! generation is exact; a replica's answer is right if and only if it has that version. Sorted and in
//! differences, in the order in which a checkpoint writes, this takes two to five bytes for a block.
//!
//! Invariants: a list names every block that its generations wrote, with its last version there, or
//! there is no list; the lists of a seal follow each other without a gap and end with the seal. A list
//! that is not there, or not any more, means "unknown", and a quorum is asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use dax::error::ErrorKind;
use dax::ids::{BlockKey, Epoch, FileId, Generation, Version};
use dax::storage::Storage;
use serde::{Deserialize, Serialize};

use crate::bytes_file;
use crate::error::{Error, Result};
use crate::journal::Chained;
use crate::journal::frame::{self, Front};

/// How many lists a seal refers to: its own and those of the seals before it. A base can move over so
/// many seals at once, and a fresh attach knows what was written since so many.
pub const KEPT_LISTS: usize = 8;
/// Blocks of a list, at most (8 GiB of 8 KiB blocks; some 40 MiB of memory, 5 MiB stored). A stretch of
/// generations that writes more has none.
pub(crate) const MAX_BLOCKS: usize = 1 << 20;

/// The sequence numbers of blocks' versions.
pub(crate) type Seqs = BTreeMap<BlockKey, u64>;

/// Where a list is, and what it covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListRef {
    /// It tells what the image of `to` has over the image that ends here...
    pub after: Generation,
    /// ... all of it written in the epoch of this generation.
    pub to: Generation,
    /// The file that holds it, in blocks of one version.
    pub file: FileId,
    /// Length of the encoded list.
    pub bytes: u64,
}

/// A list, read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BlockList {
    /// The image that it leads to.
    pub to: Generation,
    /// By block.
    blocks: Vec<(BlockKey, u64)>,
}

/// A list as it is stored: for each file the difference to the one before, and for each of its blocks
/// the differences of number and sequence to the block before.
#[derive(Serialize, Deserialize)]
struct Stored(Vec<(u64, Vec<(u64, i64)>)>);

/// The bytes of a list.
pub(crate) fn encode(seqs: &Seqs) -> Vec<u8> {
    let mut files: Vec<(u64, Vec<(u64, i64)>)> = Vec::new();
    let (mut file, mut block, mut seq) = (0, 0, 0);
    for (key, next) in seqs {
        if files.is_empty() || key.file.0 != file {
            files.push((key.file.0.wrapping_sub(file), Vec::new()));
            (file, block) = (key.file.0, 0);
        }
        let of_file = files.last_mut().map(|(_, blocks)| blocks);
        let differences = (
            key.block.0.wrapping_sub(block),
            next.wrapping_sub(seq) as i64,
        );
        of_file.into_iter().for_each(|b| b.push(differences));
        (block, seq) = (key.block.0, *next);
    }
    let payload = postcard::to_allocvec(&Stored(files)).expect("numbers can be written to memory");
    let mut out = Vec::with_capacity(payload.len() + frame::HEADER_BYTES);
    frame::write(&mut out, &mut { Chained::START }, &payload);
    out
}

/// The blocks of a list as it is stored.
#[cfg(test)]
pub(crate) fn blocks_of(bytes: &[u8], to: Generation) -> Result<Vec<(BlockKey, u64)>> {
    decode(bytes, to).map(|list| list.blocks)
}

fn decode(bytes: &[u8], to: Generation) -> Result<BlockList> {
    let damaged = |what: &str| Error::Damaged(format!("the list of blocks of {to} {what}"));
    let Front::Record(payload) = frame::read(bytes, &mut { Chained::START }) else {
        return Err(damaged("is broken"));
    };
    let Stored(files) = postcard::from_bytes(payload).map_err(|_| damaged("does not parse"))?;
    let mut blocks = Vec::new();
    let (mut file, mut seq) = (0u64, 0u64);
    for (to_file, of_file) in files {
        file = file.wrapping_add(to_file);
        let mut block = 0u64;
        for (to_block, to_seq) in of_file {
            block = block.wrapping_add(to_block);
            seq = seq.wrapping_add(to_seq as u64);
            blocks.push((BlockKey::new(FileId(file), block), seq));
        }
    }
    Ok(BlockList { to, blocks })
}

/// Writes a list durably into the new file `file`.
pub(crate) async fn store(
    storage: &Arc<dyn Storage>,
    file: FileId,
    (after, to): (Generation, Generation),
    encoded: &[u8],
) -> Result<ListRef> {
    bytes_file::store(storage, file, encoded).await?;
    Ok(ListRef {
        after,
        to,
        file,
        bytes: encoded.len() as u64,
    })
}

/// What is known of the blocks that were written between two images.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    /// Newest last, without gaps, up to the newer image.
    pub lists: Vec<BlockList>,
    /// True if they reach back to the older image.
    pub complete: bool,
}

impl Lists {
    /// Reads those of a seal's lists that tell what it has over the image that ends at `after`: as many
    /// as are there.
    pub async fn load(
        storage: &Arc<dyn Storage>,
        refs: &[ListRef],
        to: Generation,
        after: Generation,
    ) -> Result<Lists> {
        let mut found = Lists::default();
        let mut at = to;
        for list in refs.iter().rev() {
            if at <= after || list.to != at {
                break;
            }
            let Some(read) = load(storage, list).await? else {
                break;
            };
            found.lists.insert(0, read);
            at = list.after;
        }
        found.complete = at <= after;
        Ok(found)
    }

    /// The last version that one of them has of a block, and the image from which on it is the newest.
    pub fn get(&self, key: BlockKey) -> Option<(Generation, Version)> {
        let mut newest_first = self.lists.iter().rev();
        newest_first.find_map(|list| Some((list.to, list.get(key)?)))
    }
}

impl BlockList {
    /// The list of the image of `to`.
    #[cfg(test)]
    pub fn new(to: Generation, seqs: &Seqs) -> BlockList {
        let blocks = seqs.iter().map(|(key, seq)| (*key, *seq)).collect();
        BlockList { to, blocks }
    }

    /// The version that the block got.
    pub fn get(&self, key: BlockKey) -> Option<Version> {
        let at = self.blocks.binary_search_by_key(&key, |(key, _)| *key);
        at.ok().map(|at| self.version(self.blocks[at].1))
    }

    /// All of it.
    pub fn iter(&self) -> impl Iterator<Item = (BlockKey, Version)> + '_ {
        let blocks = self.blocks.iter();
        blocks.map(|(key, seq)| (*key, self.version(*seq)))
    }

    fn version(&self, seq: u64) -> Version {
        let epoch: Epoch = self.to.epoch;
        Version { epoch, seq }
    }
}

/// The blocks of a list of a seal; `None` if it is not there any more.
///
/// # Errors
/// Those of the zones.
pub async fn read(storage: &Arc<dyn Storage>, list: &ListRef) -> Result<Option<Vec<BlockKey>>> {
    let list = load(storage, list).await?;
    Ok(list.map(|list| list.blocks.into_iter().map(|(key, _)| key).collect()))
}

/// Reads a list; `None` if it is not there any more. What cannot be read is not worth an error: then
/// quorums are asked.
pub(crate) async fn load(storage: &Arc<dyn Storage>, list: &ListRef) -> Result<Option<BlockList>> {
    let read = match bytes_file::load(storage, list.file, list.bytes).await {
        Ok(bytes) => decode(&bytes, list.to),
        Err(e) => Err(e),
    };
    match read {
        Ok(list) => Ok(Some(list)),
        Err(Error::Damaged(why)) => {
            tracing::debug!(why, "a list of blocks is gone");
            Ok(None)
        }
        Err(Error::Storage(e)) if e.kind() == ErrorKind::Corrupt => {
            tracing::warn!(error = %e, "a list of blocks cannot be read");
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// What an active has written and not sealed yet.
///
/// ```text
///   write ──note──▶ open ──cut──▶ cut ──sealed──▶ gone
///                     └── too many: unknown until the next cut ──▶
/// ```
#[derive(Debug)]
pub(crate) struct Writes {
    /// `None`: there were too many, or it is not known what came before.
    open: Option<Seqs>,
    /// Generations that were cut and not sealed yet, oldest first.
    cut: Vec<(Generation, Option<Arc<Seqs>>)>,
    /// The image that they go on from.
    after: Generation,
    max: usize,
}

/// What a seal's list is made of.
pub(crate) struct Unsealed {
    /// The image that it goes on from.
    pub after: Generation,
    stretches: Vec<Arc<Seqs>>,
}

impl Unsealed {
    /// The list's bytes.
    pub fn encode(&self) -> Vec<u8> {
        if let [only] = &self.stretches[..] {
            return encode(only);
        }
        let all = self.stretches.iter().flat_map(|seqs| seqs.iter());
        encode(&all.map(|(key, seq)| (*key, *seq)).collect())
    }
}

impl Writes {
    /// Goes on from the image that ends at `after`; `first` was written before, or is not known.
    pub fn new(after: Generation, first: Option<Vec<(BlockKey, Version)>>) -> Writes {
        let first = first.map(|all| all.into_iter().map(|(k, v)| (k, v.seq)).collect());
        Writes {
            open: first,
            cut: Vec::new(),
            after,
            max: MAX_BLOCKS,
        }
    }

    /// A block of the open generation was written; under the lock that gave it its version.
    pub fn note(&mut self, key: BlockKey, version: Version) {
        let Some(open) = &mut self.open else {
            return;
        };
        if open.len() >= self.max && !open.contains_key(&key) {
            self.open = None;
            return;
        }
        open.insert(key, version.seq);
    }

    /// The open generation ends.
    pub fn cut(&mut self, generation: Generation) {
        let ended = self.open.replace(Seqs::new());
        let kept =
            |(_, seqs): &(Generation, Option<Arc<Seqs>>)| seqs.as_ref().map_or(0, |s| s.len());
        let before: usize = self.cut.iter().map(kept).sum();
        let ended = ended.filter(|seqs| before + seqs.len() <= self.max);
        self.cut.push((generation, ended.map(Arc::new)));
    }

    /// Everything that a seal of this generation has over the seal before it, if that is known.
    pub fn unsealed(&self, generation: Generation) -> Option<Unsealed> {
        let upto = self.cut.iter().take_while(|(g, _)| *g <= generation);
        let stretches: Option<Vec<_>> = upto.map(|(_, seqs)| seqs.clone()).collect();
        let stretches = stretches.filter(|all| !all.is_empty())?;
        let after = self.after;
        Some(Unsealed { after, stretches })
    }

    /// The generation is sealed.
    pub fn sealed(&mut self, generation: Generation) {
        self.cut.retain(|(g, _)| *g > generation);
        self.after = generation;
    }
}

#[cfg(test)]
mod tests {
    use dax::memory::MemoryCluster;
    use dax::storage::VolumeSettings;
    use proptest::prelude::*;

    use super::*;

    fn g(number: u32) -> Generation {
        Generation {
            epoch: Epoch(3),
            number,
        }
    }

    fn v(seq: u64) -> Version {
        Version {
            epoch: Epoch(3),
            seq,
        }
    }

    fn key(block: u64) -> BlockKey {
        BlockKey::new(FileId(9), block)
    }

    proptest! {
        #[test]
        fn lists_read_back(
            seqs in prop::collection::btree_map(
                (any::<u64>(), prop_oneof![0..100u64, any::<u64>()]),
                prop_oneof![0..100u64, any::<u64>()],
                0..200,
            ),
        ) {
            let seqs: Seqs = seqs.into_iter().map(|((f, b), s)| (BlockKey::new(FileId(f), b), s)).collect();
            let list = decode(&encode(&seqs), g(1)).unwrap();
            let back: Seqs = list.iter().map(|(key, version)| (key, version.seq)).collect();
            prop_assert_eq!(&back, &seqs);
            for (key, seq) in &seqs {
                prop_assert_eq!(list.get(*key), Some(v(*seq)));
            }
        }

        #[test]
        fn noise_is_damaged(bytes in prop::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>()) {
            prop_assert!(decode(&bytes, g(1)).is_err());
            let mut list = encode(&[(key(1), 2), (key(3), 4)].into());
            let at = at.index(list.len());
            list[at] ^= 0x40;
            prop_assert!(decode(&list, g(1)).is_err());
        }
    }

    #[test]
    fn a_checkpoint_takes_few_bytes_for_a_block() {
        // Files of 1 GiB, a tenth of their blocks, written in order.
        let blocks = (0..50_000u64).map(|i| {
            let at = BlockKey::new(FileId((1 << 40) + i / 13_107), i % 13_107 * 10);
            (at, 1_000_000_000 + i)
        });
        let bytes = encode(&blocks.collect()).len();
        assert!(bytes < 150_000, "{bytes}");
    }

    fn blocks_of(unsealed: Unsealed) -> Vec<(u64, u64)> {
        let list = decode(&unsealed.encode(), g(1)).unwrap();
        list.iter().map(|(k, v)| (k.block.0, v.seq)).collect()
    }

    #[test]
    fn a_seal_lists_all_that_was_cut_since_the_one_before() {
        let mut writes = Writes::new(g(0), Some(vec![(key(7), v(1))]));
        writes.note(key(1), v(2));
        writes.note(key(1), v(3));
        writes.cut(g(1));
        writes.note(key(1), v(4));
        writes.note(key(2), v(5));
        writes.cut(g(2));
        writes.note(key(3), v(6));
        let first = writes.unsealed(g(1)).unwrap();
        assert_eq!(
            (first.after, blocks_of(first)),
            (g(0), vec![(1, 3), (7, 1)])
        );
        // The first cut was not sealed: the second seal has it all.
        let both = writes.unsealed(g(2)).unwrap();
        assert_eq!(blocks_of(both), [(1, 4), (2, 5), (7, 1)]);
        writes.sealed(g(2));
        writes.cut(g(3));
        let third = writes.unsealed(g(3)).unwrap();
        assert_eq!((third.after, blocks_of(third)), (g(2), vec![(3, 6)]));
    }

    #[test]
    fn too_many_blocks_are_unknown_until_the_next_seal() {
        let mut writes = Writes::new(g(0), Some(Vec::new()));
        writes.max = 3;
        for block in 0..4 {
            writes.note(key(block), v(block));
        }
        writes.note(key(0), v(9));
        writes.cut(g(1));
        assert!(writes.unsealed(g(1)).is_none());
        // Not sealed, so the next list would have a hole.
        writes.note(key(1), v(10));
        writes.cut(g(2));
        assert!(writes.unsealed(g(2)).is_none());
        writes.sealed(g(2));
        (0..3).for_each(|block| writes.note(key(block), v(20 + block)));
        writes.note(key(2), v(30));
        writes.cut(g(3));
        assert_eq!(blocks_of(writes.unsealed(g(3)).unwrap()).len(), 3);
        writes.note(key(5), v(40));
        writes.cut(g(4));
        assert!(writes.unsealed(g(4)).is_none(), "bounded together");
    }

    #[test]
    fn earlier_lists_may_be_unknown() {
        let mut writes = Writes::new(g(0), None);
        writes.note(key(1), v(1));
        writes.cut(g(1));
        assert!(writes.unsealed(g(1)).is_none());
    }

    #[tokio::test]
    async fn lists_lead_from_image_to_image_as_far_as_they_are_there() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let owner = cluster.client();
        owner
            .own_epoch(&dax::ids::NodeName::new("a").unwrap())
            .await
            .unwrap();
        let storage: Arc<dyn Storage> = owner;
        let mut refs = Vec::new();
        for number in 1..=4u32 {
            let seqs = Seqs::from([(key(0), number.into()), (key(number.into()), 7)]);
            let (file, span) = (FileId(20 + u64::from(number)), (g(number - 1), g(number)));
            refs.push(store(&storage, file, span, &encode(&seqs)).await.unwrap());
        }
        let load = async |after: u32| Lists::load(&storage, &refs, g(4), g(after)).await.unwrap();
        let all = load(0).await;
        assert!(all.complete);
        assert_eq!(all.get(key(0)), Some((g(4), v(4))));
        assert_eq!(all.get(key(2)), Some((g(2), v(7))));
        assert_eq!(all.get(key(9)), None);
        let last = load(3).await;
        assert!(last.complete && last.lists.len() == 1);
        assert_eq!(last.get(key(2)), None);
        storage.remove_files(&[FileId(22)]).await.unwrap();
        let some = load(0).await;
        assert!(!some.complete && some.lists.len() == 2);
        assert!(load(2).await.complete);
        let unsealed = Lists::load(&storage, &refs, g(5), g(3)).await.unwrap();
        assert!(!unsealed.complete && unsealed.lists.is_empty());
    }
}
