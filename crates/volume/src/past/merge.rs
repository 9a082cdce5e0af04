//! Merging the lists of seals that are not kept into the list of the next one that is.

use std::sync::Arc;

use dax::ids::FileId;
use dax::storage::Storage;

use crate::error::Result;
use crate::lists::{self, ListRef, MAX_BLOCKS, Seqs};

/// Lists that follow each other as as few as possible (a list is of one epoch), and how many blocks they name. None at all, and
/// no number, if one is gone or they are too long; that means "unknown" everywhere.
pub(crate) async fn merge(
    storage: &Arc<dyn Storage>,
    refs: &[ListRef],
    mut allocate: impl FnMut() -> FileId,
) -> Result<(Vec<ListRef>, Option<u64>)> {
    let (mut merged, mut blocks) = (Vec::new(), 0);
    for of_epoch in refs.chunk_by(|a, b| a.to.epoch == b.to.epoch) {
        let mut seqs = Seqs::new();
        for list in of_epoch {
            let Some(list) = lists::load(storage, list).await? else {
                return Ok((Vec::new(), None));
            };
            seqs.extend(list.iter().map(|(key, version)| (key, version.seq)));
            if seqs.len() > MAX_BLOCKS {
                return Ok((Vec::new(), None));
            }
        }
        blocks += seqs.len() as u64;
        merged.push(match of_epoch {
            [only] => only.clone(),
            [first, .., last] => {
                let span = (first.after, last.to);
                lists::store(storage, allocate(), span, &lists::encode(&seqs)).await?
            }
            [] => continue,
        });
    }
    let known = !merged.is_empty();
    Ok((merged, known.then_some(blocks)))
}
