//! Pieces of files that were written between two images, from the lists that the seals leave: all others are those of the image
//! before, and are not read again.
//!
//! The zones keep the last few lists. Whoever archives copies them into the repository as they come, so that they reach from one
//! image to the next, whoever makes it. Where one is missing, everything is read.
//!
//! Invariant: a piece that is taken over is one that no list between the two images names, of a file that was not cut between
//! them, and the newer image goes on from the older one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use dax::ids::{Epoch, FileId, Generation};
use volume::lists;
use volume::namespace::Cut;
use volume::seal::Seal;

use crate::error::{Error, Result};
use crate::manifest::{File, Manifest};
use crate::repository::{CHUNK_BYTES, ChunkId, Repository};
use crate::source::Source;

const CHANGES: &str = "changes";

/// A stretch of generations: what the image of `to` has over that of `after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Stretch {
    after: Generation,
    to: Generation,
}

impl Stretch {
    fn name(self) -> String {
        let Stretch { after, to } = self;
        format!(
            "{CHANGES}/{}.{}-{}.{}",
            after.epoch.0, after.number, to.epoch.0, to.number
        )
    }

    fn parse(name: &str) -> Option<Stretch> {
        let (after, to) = name.split_once('-')?;
        let generation = |text: &str| {
            let (epoch, number) = text.split_once('.')?;
            Some(Generation {
                epoch: Epoch(epoch.parse().ok()?),
                number: number.parse().ok()?,
            })
        };
        Some(Stretch {
            after: generation(after)?,
            to: generation(to)?,
        })
    }
}

/// Pieces by file: their places in it.
type Pieces = BTreeMap<u64, BTreeSet<u64>>;

/// The image before, and what was written since.
pub(crate) struct Unchanged {
    files: HashMap<u64, File>,
    written: Pieces,
}

impl Unchanged {
    /// The piece of a file at this place, if it is the same as in the image before.
    pub(crate) fn piece(&self, file: &FileNow<'_>, place: usize) -> Option<Option<ChunkId>> {
        let before = self.files.get(&file.id.0)?;
        let start = (place * CHUNK_BYTES) as u64;
        let len = |size: u64| size.saturating_sub(start).min(CHUNK_BYTES as u64);
        let is_written = || {
            let written = self.written.get(&file.id.0);
            written.is_some_and(|places| places.contains(&(place as u64)))
        };
        let is_same = before.cuts == file.cuts
            && len(before.size_bytes) == len(file.size_bytes)
            && !is_written();
        is_same.then(|| before.chunks.get(place).copied()).flatten()
    }
}

/// A file as it is in the newer image.
pub(crate) struct FileNow<'a> {
    pub id: FileId,
    pub size_bytes: u64,
    pub cuts: &'a [Cut],
}

impl Repository {
    /// Copies the lists of the newest seal that are not there yet.
    ///
    /// # Errors
    /// Those of the zones and of the repository.
    pub async fn put_changes(&self, source: &Source) -> Result<()> {
        let seal = source.newest_seal().await?;
        let there = self.stretches().await?;
        for list in &seal.lists {
            let stretch = Stretch {
                after: list.after,
                to: list.to,
            };
            if there.contains(&stretch) {
                continue;
            }
            let Some(blocks) = lists::read(source.storage(), list).await? else {
                continue;
            };
            let mut pieces = Pieces::new();
            for key in blocks {
                let place = key.block.0 * source.block_bytes() / CHUNK_BYTES as u64;
                pieces.entry(key.file.0).or_default().insert(place);
            }
            self.put_value(&stretch.name(), &pieces).await?;
        }
        Ok(())
    }

    async fn stretches(&self) -> Result<BTreeSet<Stretch>> {
        let names = self.names(CHANGES).await?;
        Ok(names
            .iter()
            .filter_map(|name| Stretch::parse(name))
            .collect())
    }

    /// The image, and what was written since then up to a seal; `None` if that is not known.
    pub(crate) async fn unchanged_since(
        &self,
        before: Manifest,
        seal: &Seal,
    ) -> Result<Option<Unchanged>> {
        let is_continued = seal.lineage.truncated(before.generation) == before.lineage;
        if !is_continued || seal.generation < before.generation {
            return Ok(None);
        }
        let Some(chain) = chain(&self.stretches().await?, before.generation, seal.generation)
        else {
            return Ok(None);
        };
        let mut written = Pieces::new();
        for stretch in chain {
            let pieces: Pieces = match self.value(&stretch.name()).await {
                Err(error @ (Error::Damaged { .. } | Error::Missing(_))) => {
                    tracing::warn!(%error, "everything is read for this image");
                    return Ok(None);
                }
                read => read?,
            };
            for (file, places) in pieces {
                written.entry(file).or_default().extend(places);
            }
        }
        let files = before.files.into_iter();
        let files = files.filter_map(|file| Some((file.id?, file))).collect();
        Ok(Some(Unchanged { files, written }))
    }

    /// Removes what tells of images before this one: the next goes on from it.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn remove_changes(&self, image: &Manifest) -> Result<()> {
        let old = self.stretches().await?.into_iter();
        let old = old.filter(|stretch| stretch.to <= image.generation);
        self.remove_all(old.map(Stretch::name).collect()).await
    }
}

/// Stretches without a gap that lead from one image to another; `None` if there are none.
fn chain(all: &BTreeSet<Stretch>, from: Generation, to: Generation) -> Option<Vec<Stretch>> {
    let (mut chain, mut at) = (Vec::new(), to);
    while at > from {
        let one = all.iter().find(|stretch| stretch.to == at)?;
        if one.after >= at {
            return None;
        }
        chain.push(*one);
        at = one.after;
    }
    Some(chain)
}

#[cfg(test)]
mod tests {
    use dax::ids::BlockIndex;
    use dax::ids::Version;

    use super::*;

    fn g(epoch: u32, number: u32) -> Generation {
        Generation {
            epoch: Epoch(epoch),
            number,
        }
    }

    fn stretch(after: Generation, to: Generation) -> Stretch {
        Stretch { after, to }
    }

    #[test]
    fn names_are_read_as_they_were_written() {
        let one = stretch(g(3, 14), g(4, 0));
        let name = one.name();
        assert_eq!(name, "changes/3.14-4.0");
        assert_eq!(Stretch::parse("3.14-4.0"), Some(one));
        for name in ["", "3-4", "3.1-4", "a.b-c.d"] {
            assert_eq!(Stretch::parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_chain_has_no_gap() {
        let all = BTreeSet::from([
            stretch(g(1, 1), g(1, 2)),
            stretch(g(1, 2), g(2, 0)),
            stretch(g(2, 1), g(2, 2)),
        ]);
        assert_eq!(chain(&all, g(1, 1), g(2, 0)).unwrap().len(), 2);
        assert_eq!(chain(&all, g(2, 0), g(2, 0)).unwrap().len(), 0);
        assert!(
            chain(&all, g(1, 1), g(2, 2)).is_none(),
            "2.0 to 2.1 is missing"
        );
    }

    #[test]
    fn a_piece_is_the_same_unless_something_happened_to_it() {
        let chunk = ChunkId::try_from("07".repeat(32)).unwrap();
        let cut = Cut {
            first_block: BlockIndex(3),
            version: Version {
                epoch: Epoch(1),
                seq: 9,
            },
        };
        let size_bytes = 2 * CHUNK_BYTES as u64 + 100;
        let file = File {
            id: Some(5),
            path: "base/1/2".to_owned(),
            mode: 0o600,
            size_bytes,
            cuts: Vec::new(),
            chunks: vec![Some(chunk), None, Some(chunk)],
        };
        let unchanged = Unchanged {
            files: HashMap::from([(5, file)]),
            written: Pieces::from([(5, BTreeSet::from([0]))]),
        };
        let at = |id, size_bytes, cuts: &[Cut], place| {
            let now = FileNow {
                id: FileId(id),
                size_bytes,
                cuts,
            };
            unchanged.piece(&now, place)
        };
        assert_eq!(at(5, size_bytes, &[], 0), None, "it was written");
        assert_eq!(at(5, size_bytes, &[], 1), Some(None), "zeros as before");
        assert_eq!(at(5, size_bytes, &[], 2), Some(Some(chunk)));
        assert_eq!(at(5, size_bytes + 1, &[], 2), None, "it is longer");
        assert_eq!(at(5, size_bytes + 1, &[], 1), Some(None));
        assert_eq!(at(5, 3 * size_bytes, &[], 3), None, "it is new");
        assert_eq!(at(5, size_bytes, &[cut], 1), None, "the file was cut");
        assert_eq!(at(6, size_bytes, &[], 1), None, "it is another file");
    }
}
