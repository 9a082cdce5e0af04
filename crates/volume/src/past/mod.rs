//! The past: images that are kept longer than the last two seals, by policy or because a [`Pin`] names them.
//!
//! ```text
//!   seals ── leaves, the policy or a pin wants it ──▶ past/<generation>, written once, and named by the index
//!     │                                                   │ no rule and no pin wants it, or room is short
//!     └── leaves, nobody wants it ──▶ given back ◀────────┘
//! ```
//!
//! The record [`INDEX_RECORD`] has what the reclaimer needs of each kept image, and what changes: the lists of blocks, which
//! are merged when an image between two others goes. `past/<generation>` has the seal, with a snapshot of its own position,
//! so that it holds no journal.
//!
//! Invariants:
//! - the index names a seal before it leaves `seals`, and names it no more before anything of it is given back: whoever
//!   finds it in `seals` or else in the index, in this order, after a pin on it is durable, knows that it stays;
//! - only volumes whose [`Forms`] allow it have a past: every active looks at it there.

mod keep;
mod merge;
mod pin;
pub(crate) mod thin;

use std::sync::Arc;

use bytes::Bytes;
use dax::error::ErrorKind;
use dax::forms::{Forms, WrittenForms};
use dax::ids::{FileId, Generation};
use dax::storage::{Authority, Lineage, Storage};
use serde::{Deserialize, Serialize};

pub use self::keep::Keep;
pub(crate) use self::merge::merge;
pub use self::pin::{Pin, PinState};
use crate::error::{Error, Result};
use crate::journal::JournalPos;
use crate::lists::ListRef;
use crate::lsn::Lsn;
use crate::seal::Seal;
use crate::view::Timestamp;

/// The record that names the kept images.
pub const INDEX_RECORD: &str = "past";
/// Prefix of the records that have their seals.
pub const KEPT_PREFIX: &str = "past/";
/// Number of the form of all records here.
pub(crate) const FORMAT: u32 = 1;
/// Images that are kept, at most: the index stays below the size of a record.
pub(crate) const MAX_KEPT: usize = 1000;
/// Bytes of the index, at most; a record may have 1 MiB.
pub(crate) const MAX_INDEX_BYTES: usize = 768 << 10;
/// Pins whose making was given up that are remembered.
const MAX_DROPPED: usize = 1000;
/// Zeros at the end of a control file, at most.
const MAX_ZEROS: usize = 1 << 20;

/// A policy of what is kept in the zones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Rules of the images that stay.
    pub keep: Keep,
    /// Bytes that they may take, about; the oldest go first.
    pub space: Option<u64>,
}

/// A seal as it is kept: its control file without the zeros at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSeal {
    format: u32,
    zeros: usize,
    seal: Seal,
}

impl KeptSeal {
    /// Leaves the zeros out.
    pub fn new(mut seal: Seal) -> KeptSeal {
        let whole = seal.payload.len();
        let used = seal.payload.iter().rposition(|byte| *byte != 0);
        seal.payload.truncate(used.map_or(0, |last| last + 1));
        KeptSeal {
            format: FORMAT,
            zeros: whole - seal.payload.len(),
            seal,
        }
    }

    /// The seal as it was.
    pub fn seal(&self) -> Seal {
        let mut seal = self.seal.clone();
        seal.payload.resize(seal.payload.len() + self.zeros, 0);
        seal
    }

    /// The record's name.
    pub fn record_name(generation: Generation) -> String {
        format!("{KEPT_PREFIX}{generation}")
    }

    /// Refuses what no seal says.
    pub(crate) fn check(&self, name: &str) -> Result<()> {
        check_format(name, self.format)?;
        let seal = &self.seal;
        let wrong = if seal.lineage.end() != seal.generation {
            "its image does not end with its generation"
        } else if seal.snapshot.at > seal.journal {
            "its snapshot is newer than it"
        } else if self.zeros > MAX_ZEROS {
            "its control file is too long"
        } else {
            return Ok(());
        };
        Err(Error::Damaged(format!("the record {name}: {wrong}")))
    }

    /// Reads a record.
    ///
    /// # Errors
    /// `Damaged` if it is no such record.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<KeptSeal> {
        let kept: KeptSeal = parse(name, bytes)?;
        kept.check(name)?;
        match kept.seal.snapshot.at == kept.seal.journal {
            true => Ok(kept),
            false => Err(Error::Damaged(format!(
                "the record {name}: its snapshot is of another position"
            ))),
        }
    }

    /// Removes the record of a generation.
    pub(crate) async fn remove(storage: &Arc<dyn Storage>, generation: Generation) -> Result<()> {
        let name = KeptSeal::record_name(generation);
        Ok(storage.remove_record(&name, Authority::Owner).await?)
    }

    /// Writes the record of its generation.
    pub(crate) async fn put(&self, storage: &Arc<dyn Storage>) -> Result<()> {
        put(storage, &KeptSeal::record_name(self.seal.generation), self).await
    }
}

/// A kept image, as the reclaimer needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptImage {
    /// The generation that it ends with.
    pub generation: Generation,
    /// Its generations.
    pub lineage: Lineage,
    /// Its namespace is the journal's up to here.
    pub journal: JournalPos,
    /// When it was cut.
    pub at: Timestamp,
    /// Redo from it starts here.
    pub redo: Lsn,
    /// It reflects the log up to here.
    pub end: Lsn,
    /// It has no file with a higher id.
    pub newest_file: FileId,
    /// The file of its snapshot.
    pub snapshot: FileId,
    /// Bytes of that.
    pub snapshot_bytes: u64,
    /// Lists of the blocks that it has over the image that is kept before it, oldest first; empty if not known.
    pub lists: Vec<ListRef>,
    /// How many blocks they name, if they are known.
    pub blocks: Option<u64>,
    /// It came here after it had left the seals, for pins that had been made before: no pin is made on it.
    #[serde(default)]
    pub closed: bool,
}

impl KeptImage {
    /// Files that it needs besides those in its namespace.
    pub fn files(&self) -> impl Iterator<Item = FileId> + '_ {
        let lists = self.lists.iter().map(|list| list.file);
        std::iter::once(self.snapshot).chain(lists)
    }
}

/// Contents of the record [`INDEX_RECORD`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    format: u32,
    /// The kept images by generation, oldest first.
    pub images: Vec<KeptImage>,
    /// Pins whose making was given up, newest last: they stand no more, whoever writes them again.
    #[serde(default)]
    pub dropped: Vec<String>,
}

impl Default for Index {
    fn default() -> Index {
        Index {
            format: FORMAT,
            images: Vec::new(),
            dropped: Vec::new(),
        }
    }
}

impl Index {
    /// Reads it.
    ///
    /// # Errors
    /// `Damaged` if the record is no index.
    pub async fn load(storage: &Arc<dyn Storage>) -> Result<Index> {
        let record = storage.get_record(INDEX_RECORD).await?;
        Ok(Index::parse(record.as_deref())?.unwrap_or_default())
    }

    /// Reads it under the epoch that the handle owns: no later reader sees an older one.
    pub(crate) async fn promote(storage: &Arc<dyn Storage>) -> Result<Index> {
        let record = storage.promote_record(INDEX_RECORD).await?;
        if let Some(index) = Index::parse(record.as_deref())? {
            return Ok(index);
        }
        // One that a dead epoch left at a single zone would be seen later.
        let index = Index::default();
        index.put(storage).await?;
        Ok(index)
    }

    /// Reads the contents of the record.
    ///
    /// # Errors
    /// `Damaged` if they are no index.
    pub fn parse(record: Option<&[u8]>) -> Result<Option<Index>> {
        let Some(bytes) = record else { return Ok(None) };
        let index: Index = parse(INDEX_RECORD, bytes)?;
        check_format(INDEX_RECORD, index.format)?;
        let ascending = index
            .images
            .is_sorted_by(|a, b| a.generation < b.generation);
        let ended = |image: &KeptImage| image.lineage.end() == image.generation;
        match ascending && index.images.iter().all(ended) {
            true => Ok(Some(index)),
            false => Err(Error::Damaged(format!(
                "the record {INDEX_RECORD} does not name images in their order"
            ))),
        }
    }

    pub(crate) async fn put(&self, storage: &Arc<dyn Storage>) -> Result<()> {
        put(storage, INDEX_RECORD, self).await
    }

    /// True if it is too long for a record.
    pub(crate) fn is_too_long(&self) -> bool {
        self.images.len() > MAX_KEPT || encode(self).len() > MAX_INDEX_BYTES
    }

    /// The kept image of a generation.
    pub fn get(&self, generation: Generation) -> Option<&KeptImage> {
        let at = self
            .images
            .binary_search_by_key(&generation, |image| image.generation);
        at.ok().map(|at| &self.images[at])
    }

    /// Adds an image at its place, or replaces that of its generation.
    pub(crate) fn add(&mut self, image: KeptImage) {
        self.images.retain(|one| one.generation != image.generation);
        let at = self
            .images
            .partition_point(|one| one.generation < image.generation);
        self.images.insert(at, image);
    }

    /// Notes that the making of a pin is given up.
    pub(crate) fn drop_pin(&mut self, name: &str) {
        self.dropped.push(name.to_owned());
        let over = self.dropped.len().saturating_sub(MAX_DROPPED);
        self.dropped.drain(..over);
    }

    /// Files that the images need besides those in their namespaces.
    pub fn files(&self) -> impl Iterator<Item = FileId> + '_ {
        self.images.iter().flat_map(KeptImage::files)
    }
}

/// The seal of an image that is kept, with the lists that lead to it from the image kept before; `None` if it is not kept, or
/// not any more.
///
/// # Errors
/// Those of the zones, and `Damaged`.
pub async fn load_seal(storage: &Arc<dyn Storage>, generation: Generation) -> Result<Option<Seal>> {
    let index = Index::load(storage).await?;
    let name = KeptSeal::record_name(generation);
    let (Some(image), Some(record)) = (index.get(generation), storage.get_record(&name).await?)
    else {
        return Ok(None);
    };
    let mut seal = KeptSeal::parse(&name, &record)?.seal();
    seal.lists.clone_from(&image.lists);
    Ok(Some(seal))
}

/// True if the volume may have a past: every program that may own it looks at it.
pub(crate) async fn is_allowed(storage: &Arc<dyn Storage>) -> Result<bool> {
    let Some(record) = storage.get_record(Forms::RECORD).await? else {
        return Ok(false);
    };
    let forms: WrittenForms = parse(Forms::RECORD, &record)?;
    Ok(forms.written >= Forms::PINS)
}

/// The refusal where it may not.
pub(crate) fn not_allowed() -> Error {
    Error::Storage(dax::error::Error::new(
        ErrorKind::Denied,
        format!(
            "the volume may not have pins before it has forms {}: understudy upgrade finish",
            Forms::PINS
        ),
    ))
}

fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec(record).expect("records here have string keys only")
}

async fn put<T: Serialize>(storage: &Arc<dyn Storage>, name: &str, record: &T) -> Result<()> {
    let bytes = Bytes::from(encode(record));
    Ok(storage.put_record(name, bytes, Authority::Owner).await?)
}

fn parse<T: for<'a> Deserialize<'a>>(name: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|e| Error::Damaged(format!("the record {name} does not parse: {e}")))
}

fn check_format(name: &str, format: u32) -> Result<()> {
    match format {
        FORMAT => Ok(()),
        _ => Err(Error::Damaged(format!(
            "the record {name} has format {format}, and this program reads {FORMAT}"
        ))),
    }
}
