//! Snapshots of the namespace: a file of its own with the records that build it from nothing, in
//! the journal's framing (so every part has its checksum).

use std::sync::Arc;

use dax::ids::FileId;
use dax::storage::Storage;
use serde::{Deserialize, Serialize};

use crate::bytes_file;
use crate::error::{Error, Result};
use crate::journal::frame::{self, Front};
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
    /// Length of the encoded snapshot.
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
        ids: namespace.removed().collect(),
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
    bytes_file::store(storage, file, &encoded).await?;
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
    let bytes = bytes_file::load(storage, snapshot.file, snapshot.bytes).await?;
    decode(&bytes)
}
