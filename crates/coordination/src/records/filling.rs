//! `filling`: the volume lies over an image of a repository that is not in its zones yet.
//!
//! ```text
//!   filling (next file and piece) ──▶ ... ──▶ done
//! ```
//!
//! Invariant: the record is there before anything of the database is. Until it says that all is done, whoever reads data of the
//! volume reads the repository as well, or nothing.

use std::path::PathBuf;

use dax::credentials::VolumeKey;
use dax::ids::{Epoch, VolumeName};
use dax::storage::Authority;
use serde::{Deserialize, Serialize};

use super::Record;

/// The image, and how far it was copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filling {
    /// The repository: a directory or a bucket that all nodes reach.
    pub repository: String,
    /// The file with its key, on each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Name of the image.
    pub image: String,
    /// The volume that the image is copied into; this one is laid over it.
    pub into: VolumeName,
    /// The key of that volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<VolumeKey>,
    /// First epoch of this volume. Copies are made in epochs of the image's volume below it.
    pub before_epoch: Epoch,
    /// The file of the image that is copied next, by its place.
    pub next_file: u64,
    /// The piece of it.
    pub next_piece: u64,
    /// Everything is there.
    pub done: bool,
}

impl Record for Filling {
    const PREFIX: &'static str = "filling";
    const AUTHORITY: Authority = Authority::Node;
}
