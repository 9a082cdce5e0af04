//! Seals: the durable statement that a generation is complete, and the image that it ends (design
//! section 3).

use std::sync::Arc;

use bytes::Bytes;
use dax::ids::{FileId, Generation};
use dax::storage::{Authority, Lineage, Storage};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::journal::{Chained, JournalPos, JournalTail};
use crate::lists::ListRef;
use crate::lsn::Lsn;
use crate::namespace::Namespace;
use crate::snapshot::{self, SnapshotRef};
use crate::view::Timestamp;

/// The record that holds the seals.
pub const SEALS_RECORD: &str = "seals";
/// How many seals are kept: the last, and the one before it for an attach whose redo fails (N7).
pub const KEPT_SEALS: usize = 2;

/// A sealed generation: an atomic, durable, immutable image of the whole volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// The generation that ends here.
    pub generation: Generation,
    /// The generations that make up the image; ends at `generation`.
    pub lineage: Lineage,
    /// The namespace of the image is the journal's up to here.
    pub journal: JournalPos,
    /// A snapshot to start from on the way to `journal`.
    pub snapshot: SnapshotRef,
    /// Redo from the image starts here.
    pub redo: Lsn,
    /// W: everything that the image can reflect is in the log before this position.
    pub end: Lsn,
    /// Which versions blocks got in the last generations, newest last: ends with this one's list, or is
    /// empty if that is not known.
    #[serde(default)]
    pub lists: Vec<ListRef>,
    /// When it was cut, by the active's clock; seals of release 0.1 do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// The image has no file with a higher id; seals of release 0.1 do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_file: Option<FileId>,
    /// What `pgdata` must remember with the seal.
    #[serde(with = "hex")]
    pub payload: Vec<u8>,
}

impl Seal {
    /// Files outside of every namespace that the seal needs.
    pub fn files(&self) -> impl Iterator<Item = FileId> + '_ {
        let lists = self.lists.iter().map(|list| list.file);
        std::iter::once(self.snapshot.file).chain(lists)
    }

    /// The highest id of a file that the image or the seal itself needs.
    pub fn newest_needed(&self) -> FileId {
        let newest = self.newest_file.unwrap_or(FileId(u64::MAX));
        self.files().fold(newest, FileId::max)
    }

    /// True if this image is an earlier one and what was written since. It is not if a takeover began
    /// at an older seal than that: then the earlier image is on a branch that nobody goes on with.
    pub fn continues(&self, earlier: &Seal) -> bool {
        let to = earlier.generation;
        self.generation > to
            && self.journal >= earlier.journal
            && self.lineage.truncated(to) == earlier.lineage
    }
}

/// A sealed image, loaded.
#[derive(Clone)]
pub struct Base {
    /// The seal.
    pub seal: Seal,
    /// The namespace at the seal.
    pub namespace: Namespace,
    /// Where the journal goes on after it.
    pub place: Chained,
}

impl Base {
    /// Loads the image of a seal: its snapshot, and the journal from there up to the seal.
    pub async fn load(storage: &Arc<dyn Storage>, seal: &Seal) -> Result<Base> {
        let namespace = snapshot::load(storage, &seal.snapshot).await?;
        let mut tail = JournalTail::new(storage.clone(), namespace, seal.snapshot.place());
        tail.advance(seal.journal).await?;
        Ok(Base {
            seal: seal.clone(),
            namespace: tail.namespace().clone(),
            place: tail.place(),
        })
    }

    /// Loads the image of a later seal of the same line on the way from this one: only the journal
    /// between them is read, and what did not change is shared.
    ///
    /// # Errors
    /// `Invalid` if the seal's image does not go on from this one.
    pub async fn advance(&self, storage: &Arc<dyn Storage>, seal: &Seal) -> Result<Base> {
        if !seal.continues(&self.seal) {
            return Err(Error::Invalid("the seal does not go on from this image"));
        }
        let mut tail = self.tail(storage);
        tail.advance(seal.journal).await?;
        Ok(Base {
            seal: seal.clone(),
            namespace: tail.namespace().clone(),
            place: tail.place(),
        })
    }

    /// A reader that follows the journal from this image on.
    pub fn tail(&self, storage: &Arc<dyn Storage>) -> JournalTail {
        JournalTail::new(storage.clone(), self.namespace.clone(), self.place)
    }
}

/// The kept seals, newest last; empty before the volume was formatted.
pub async fn load_seals(storage: &Arc<dyn Storage>) -> Result<Vec<Seal>> {
    parse(storage.get_record(SEALS_RECORD).await?)
}

/// The same, fixed under the epoch that the handle owns: no later reader sees older seals.
pub(crate) async fn promote_seals(storage: &Arc<dyn Storage>) -> Result<Vec<Seal>> {
    parse(storage.promote_record(SEALS_RECORD).await?)
}

/// Replaces the seals record, under the epoch's authority.
pub(crate) async fn put_seals(storage: &Arc<dyn Storage>, seals: &[Seal]) -> Result<()> {
    let json = serde_json::to_vec(seals).expect("seals have string keys only");
    storage
        .put_record(SEALS_RECORD, Bytes::from(json), Authority::Owner)
        .await?;
    Ok(())
}

/// The lists of a seal of the image that ends at `after`, for the next seal to go on with. `seals` may
/// be of several lines; every list of a seal that goes on from that image is in one of theirs.
pub(crate) fn lists_leading_to(after: Generation, seals: &[Seal]) -> Vec<ListRef> {
    let chain = |seal: &Seal| {
        let upto = seal.lists.iter().filter(|list| list.to <= after);
        let upto: Vec<ListRef> = upto.cloned().collect();
        upto.last()
            .is_some_and(|last| last.to == after)
            .then_some(upto)
    };
    seals.iter().rev().find_map(chain).unwrap_or_default()
}

fn parse(record: Option<Bytes>) -> Result<Vec<Seal>> {
    let Some(bytes) = record else {
        return Ok(Vec::new());
    };
    serde_json::from_slice(&bytes)
        .map_err(|e| Error::Damaged(format!("the record of the seals does not parse: {e}")))
}

/// Bytes as hexadecimal text.
mod hex {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        let text: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        to.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        if !text.is_ascii() || text.len() % 2 != 0 {
            return Err(D::Error::custom("not pairs of hexadecimal digits"));
        }
        let pairs = (0..text.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&text[i..i + 2], 16));
        pairs.collect::<Result<_, _>>().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use dax::ids::Epoch;

    use super::*;

    fn generation(epoch: u32, number: u32) -> Generation {
        Generation {
            epoch: Epoch(epoch),
            number,
        }
    }

    fn seal(lineage: Lineage, journal: u64) -> Seal {
        Seal {
            generation: lineage.end(),
            lineage,
            journal: JournalPos(journal),
            snapshot: SnapshotRef {
                file: FileId(0),
                bytes: 0,
                at: JournalPos(0),
                chain: 0,
            },
            redo: Lsn(0),
            end: Lsn(0),
            lists: Vec::new(),
            at: None,
            newest_file: None,
            payload: Vec::new(),
        }
    }

    #[test]
    fn an_image_goes_on_from_those_that_are_part_of_it() {
        let open = Lineage::up_to(Generation::MAX);
        let [first, second, third] =
            [3, 4, 5].map(|n| seal(open.truncated(generation(1, n)), n.into()));
        assert!(second.continues(&first) && third.continues(&first));
        assert!(!first.continues(&second) && !first.continues(&first));
        // A takeover by a standby that stood on the second: the third is a dead branch.
        let taken = second.lineage.clone().continued(generation(2, 0));
        let next = seal(taken.truncated(generation(2, 0)), 9);
        assert!(next.continues(&first) && next.continues(&second));
        assert!(!next.continues(&third));
    }
}
