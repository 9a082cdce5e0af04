//! Snapshots of the namespace: a file of its own with the records that build it from nothing, in
//! the journal's framing (so every part has its checksum).

use std::sync::Arc;

use bytes::Bytes;
use dax::ids::{BlockKey, FileId, Generation};
use dax::storage::{Storage, SyncScope};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::journal::frame::{self, Front};
use crate::journal::tail::read_blocks;
use crate::journal::{Chained, JournalPos};
use crate::namespace::Namespace;
use crate::namespace::op::{self, Op};

/// Operations in one record of a snapshot.
const OPS_PER_RECORD: usize = 256;

/// Where a snapshot is, and where in the journal it was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRef {
    /// The file that holds it, in blocks of one version.
    pub file: FileId,
    /// Its length.
    pub bytes: u64,
    /// The journal goes on here.
    pub at: JournalPos,
    /// The journal's chain checksum there.
    pub chain: u32,
}

impl SnapshotRef {
    /// Where the journal goes on.
    pub fn place(&self) -> Chained {
        Chained {
            at: self.at,
            chain: self.chain,
        }
    }
}

/// The records that build `namespace` from an empty one.
pub fn encode(namespace: &Namespace) -> Vec<u8> {
    let mut out = Vec::new();
    let mut place = Chained::START;
    let mut batch = Vec::with_capacity(OPS_PER_RECORD);
    let mut push = |op: Option<Op>| {
        let last = op.is_none();
        batch.extend(op);
        if batch.len() == OPS_PER_RECORD || (last && !batch.is_empty()) {
            frame::write(&mut out, &mut place, &op::encode(&batch));
            batch.clear();
        }
    };
    for (id, inode) in namespace.inodes() {
        push(Some(Op::PutInode {
            id,
            inode: inode.clone(),
        }));
    }
    for (parent, names) in namespace.directories() {
        for (name, id) in names {
            push(Some(Op::PutName {
                parent,
                name: name.to_vec(),
                id: *id,
            }));
        }
    }
    for (parent, name, id) in namespace.all_retained() {
        push(Some(Op::PutRetained {
            parent,
            name: name.to_vec(),
            id,
        }));
    }
    push(Some(Op::Bury {
        ids: namespace.graves().collect(),
    }));
    push(None);
    out
}

/// Builds the namespace from its records.
///
/// # Errors
/// `Damaged` if a record is not whole.
pub fn decode(bytes: &[u8]) -> Result<Namespace> {
    let mut namespace = Namespace::empty();
    let mut place = Chained::START;
    while (place.at.0 as usize) < bytes.len() {
        let Front::Record(payload) = frame::read(&bytes[place.at.0 as usize..], &mut place) else {
            return Err(Error::Damaged(format!(
                "namespace snapshot is broken at byte {}",
                place.at.0
            )));
        };
        for op in op::decode(payload)? {
            namespace.apply(&op)?;
        }
    }
    Ok(namespace)
}

/// Writes a snapshot of `namespace`, taken at `place`, durably into the new file `file`.
pub async fn store(
    storage: &Arc<dyn Storage>,
    file: FileId,
    namespace: &Namespace,
    place: Chained,
) -> Result<SnapshotRef> {
    let encoded = encode(namespace);
    let block_size = storage.settings().block_size_bytes as usize;
    for (block, chunk) in (0..).zip(encoded.chunks(block_size)) {
        let mut data = chunk.to_vec();
        data.resize(block_size, 0);
        storage.write_room(block_size).await?;
        storage.write(
            BlockKey::new(file, block),
            Generation::SINGLE,
            Bytes::from(data),
        )?;
    }
    storage.csync(SyncScope::File(file)).await?;
    Ok(SnapshotRef {
        file,
        bytes: encoded.len() as u64,
        at: place.at,
        chain: place.chain,
    })
}

/// Reads a snapshot back.
///
/// # Errors
/// `Damaged` if it is not whole.
pub async fn load(storage: &Arc<dyn Storage>, snapshot: &SnapshotRef) -> Result<Namespace> {
    let block_size = u64::from(storage.settings().block_size_bytes);
    let blocks = 0..snapshot.bytes.div_ceil(block_size);
    let mut bytes = Vec::with_capacity(snapshot.bytes as usize);
    for (index, block) in read_blocks(storage, snapshot.file, blocks, false)
        .await?
        .into_iter()
        .enumerate()
    {
        let block = block.ok_or_else(|| {
            Error::Damaged(format!(
                "block {index} of the snapshot {} is missing",
                snapshot.file
            ))
        })?;
        bytes.extend_from_slice(&block.data);
    }
    bytes.truncate(snapshot.bytes as usize);
    decode(&bytes)
}
