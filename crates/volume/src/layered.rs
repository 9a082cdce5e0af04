//! A volume that is laid over an image of another one: its first seal.
//!
//! The child begins with the image's data files, under their ids: its zones find their blocks in the parent until the child writes
//! them. Everything else it is given by whoever makes it, as files of its own.
//!
//! Invariant: no block that the child names as data is newer than the image, because the seal's lineage is the image's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dax::ids::{FileId, Generation};
use dax::storage::Storage;

use crate::error::{Error, Result};
use crate::journal::Chained;
use crate::latest::owned_epoch;
use crate::layout::FileClass;
use crate::lsn::Lsn;
use crate::namespace::op::Op;
use crate::namespace::{Inode, Namespace, ROOT};
use crate::seal::{self, Base, Seal};
use crate::snapshot;
use crate::view::FileKind;

/// Makes the first seal of a volume that is laid over the image of `base`, with those of its data files. The handle owns an
/// epoch.
///
/// # Errors
/// `Exists` if the volume was formatted before; `Invalid` if its epoch is not above the image's.
pub async fn format_over(
    storage: &Arc<dyn Storage>,
    base: &Base,
    files: &BTreeSet<FileId>,
) -> Result<Seal> {
    let epoch = owned_epoch(storage)?;
    if epoch <= base.seal.generation.epoch {
        return Err(Error::Invalid("the epoch is not above that of the image"));
    }
    if !seal::promote_seals(storage).await?.is_empty() {
        return Err(Error::Exists);
    }
    let namespace = data_of(&base.namespace, files)?;
    let file = FileId::new(epoch, 1);
    let snapshot = snapshot::store(storage, file, &namespace, Chained::START).await?;
    let generation = Generation { epoch, number: 0 };
    let seal = Seal {
        generation,
        lineage: base
            .seal
            .lineage
            .clone()
            .continued(generation)
            .truncated(generation),
        journal: Chained::START.at,
        snapshot,
        redo: Lsn::ZERO,
        end: Lsn::ZERO,
        lists: Vec::new(),
        at: base.seal.at,
        newest_file: Some(file),
        payload: Vec::new(),
    };
    seal::put_seals(storage, std::slice::from_ref(&seal)).await?;
    Ok(seal)
}

/// These data files of an image, and all of its directories of data.
fn data_of(image: &Namespace, files: &BTreeSet<FileId>) -> Result<Namespace> {
    let mut data = Namespace::empty();
    let mut links: BTreeMap<FileId, u32> = BTreeMap::new();
    let mut names = Vec::new();
    let mut directories = vec![ROOT];
    while let Some(parent) = directories.pop() {
        let mut below = 0;
        for (name, id) in image.directory(parent)? {
            let inode = image.inode(*id)?;
            let is_directory = inode.kind == FileKind::Directory;
            if inode.class != FileClass::Data || !(is_directory || files.contains(id)) {
                continue;
            }
            names.push(Op::PutName {
                parent,
                name: name.to_vec(),
                id: *id,
            });
            if is_directory {
                below += 1;
                directories.push(*id);
            } else {
                *links.entry(*id).or_default() += 1;
            }
        }
        links.insert(parent, 2 + below);
    }
    for (id, nlink) in links {
        let inode = Inode {
            nlink,
            ..image.inode(id)?.clone()
        };
        data.apply(&Op::PutInode { id, inode })?;
    }
    for name in names {
        data.apply(&name)?;
    }
    Ok(data)
}
