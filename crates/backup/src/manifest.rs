//! Manifests: the directories, files and pieces of an image, and where its log begins.

use std::collections::HashSet;
use std::time::SystemTime;

use dax::ids::Generation;
use dax::storage::Lineage;
use pgdata::segment::SegmentSize;
use pgdata::timeline::TimelineId;
use serde::{Deserialize, Serialize};
use volume::lsn::Lsn;
use volume::namespace::Cut;

use crate::error::{Error, Result};
use crate::repository::{ChunkId, Repository};

/// The name of an image in its repository: when it was begun, and which seal it is of. Ordered by the seal, because clocks differ.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ImageId(String);

impl ImageId {
    /// Epoch and number of the seal.
    fn seal(&self) -> Option<(u64, u64)> {
        let (_, seal) = self.0.rsplit_once('-')?;
        let (epoch, number) = seal.split_once('.')?;
        Some((epoch.parse().ok()?, number.parse().ok()?))
    }
}

impl Ord for ImageId {
    fn cmp(&self, other: &ImageId) -> std::cmp::Ordering {
        let by_name = || self.0.cmp(&other.0);
        self.seal().cmp(&other.seal()).then_with(by_name)
    }
}

impl PartialOrd for ImageId {
    fn partial_cmp(&self, other: &ImageId) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl std::fmt::Display for ImageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for ImageId {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<ImageId, String> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
        match !name.is_empty() && name.bytes().all(is_plain) {
            true => Ok(ImageId(name.to_owned())),
            false => Err(format!(
                "{name} is no name of an image: see \"understudy backup list\""
            )),
        }
    }
}

/// A directory of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    /// Its path in the data directory.
    pub path: String,
    /// Permission bits.
    pub mode: u16,
}

/// A file of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Its number in the volume, if its blocks have versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Its path in the data directory.
    pub path: String,
    /// Permission bits.
    pub mode: u16,
    /// Length of the file in the image.
    pub size_bytes: u64,
    /// Where it was cut; blocks behind that read as zeros unless they were written later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuts: Vec<Cut>,
    /// Its pieces in order; `None` for zeros.
    pub chunks: Vec<Option<ChunkId>>,
}

/// Contents of one image: its files, with the pieces that they consist of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The seal that the image is of.
    pub generation: Generation,
    /// The generations that it consists of.
    pub lineage: Lineage,
    /// When the copy was begun, Unix milliseconds.
    pub begun_unix_ms: u64,
    /// The major version of the server.
    pub server: String,
    /// Redo starts here.
    pub redo: Lsn,
    /// The end of the log that the image can reflect.
    pub end: Lsn,
    /// The timeline of that.
    pub timeline: TimelineId,
    /// Bytes in a segment of the log.
    pub segment_bytes: u32,
    /// `pg_control` as it was sealed.
    #[serde(with = "hex::serde")]
    pub control: Vec<u8>,
    /// Directories, parents first.
    pub directories: Vec<Directory>,
    /// Files.
    pub files: Vec<File>,
    /// Bytes that the copy read from the zones.
    pub read_bytes: u64,
    /// Bytes that it wrote to the repository.
    pub written_bytes: u64,
}

impl Manifest {
    /// The name of the image.
    pub fn id(&self) -> ImageId {
        let Generation { epoch, number } = self.generation;
        ImageId(format!(
            "{}-{}.{number}",
            stamp(self.begun_unix_ms),
            epoch.0
        ))
    }

    /// Bytes in a segment of the log.
    pub(crate) fn segment_size(&self) -> Result<SegmentSize> {
        SegmentSize::new(self.segment_bytes)
            .ok_or_else(|| Error::damaged(name_of(&self.id()), "segments have no such size"))
    }

    /// Length of all its files.
    pub fn size_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size_bytes).sum()
    }

    /// Its pieces, some more than once.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkId> + '_ {
        let all = self.files.iter().flat_map(|file| &file.chunks);
        all.filter_map(|chunk| *chunk)
    }

    /// Puts the image into the repository, whose pieces are there.
    pub(crate) async fn put(&self, repository: &Repository) -> Result<()> {
        let name = name_of(&self.id());
        match repository.put_value(&name, self).await? {
            true => Ok(()),
            false => Err(Error::Refused(format!(
                "{name} is there already: another copy of this moment was made at the same time"
            ))),
        }
    }

    /// An image of the repository.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Damaged`]
    pub async fn load(repository: &Repository, image: &ImageId) -> Result<Manifest> {
        repository.value(&name_of(image)).await
    }
}

/// The images of a repository, oldest first.
///
/// # Errors
/// [`Error::Store`]
pub async fn images(repository: &Repository) -> Result<Vec<ImageId>> {
    let names = repository.names("images").await?;
    let ids = names
        .iter()
        .filter_map(|name| name.strip_suffix("/manifest"));
    let mut ids: Vec<ImageId> = ids.filter_map(|id| id.parse().ok()).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// The last image that can be read; those behind it that cannot are passed over with a warning.
///
/// # Errors
/// [`Error::Store`]
pub async fn last(repository: &Repository) -> Result<Option<Manifest>> {
    for image in images(repository).await?.into_iter().rev() {
        match Manifest::load(repository, &image).await {
            Err(error @ (Error::Damaged { .. } | Error::Missing(_))) => {
                tracing::warn!(%image, %error, "an image is passed over");
            }
            loaded => return loaded.map(Some),
        }
    }
    Ok(None)
}

/// All images in order, with the time when each was complete by the store's clock.
pub(crate) async fn dated(repository: &Repository) -> Result<Vec<(ImageId, SystemTime)>> {
    let objects = repository.objects("images").await?;
    let dated = objects.iter().filter_map(|object| {
        let id = object.name.strip_suffix("/manifest")?.parse().ok()?;
        Some((id, object.written))
    });
    let mut dated: Vec<(ImageId, SystemTime)> = dated.collect();
    dated.sort_unstable();
    Ok(dated)
}

/// Removes an image. Its pieces stay.
pub(crate) async fn remove(repository: &Repository, image: &ImageId) -> Result<()> {
    repository.remove(&name_of(image)).await?;
    repository.remove(&alone_name_of(image)).await
}

/// Notes that the log behind an image need not be there any more.
pub(crate) async fn set_alone(repository: &Repository, image: &ImageId) -> Result<()> {
    let name = alone_name_of(image);
    repository.put_object(&name, bytes::Bytes::new()).await?;
    Ok(())
}

/// Images that can be restored as they are only: the log behind them was expired.
///
/// # Errors
/// [`Error::Store`]
pub async fn alone(repository: &Repository) -> Result<HashSet<ImageId>> {
    let names = repository.names("images").await?;
    let mut alone = HashSet::new();
    for name in names.iter().filter_map(|name| name.strip_suffix("/alone")) {
        if let Ok(image) = name.parse() {
            repository.object(&alone_name_of(&image)).await?;
            alone.insert(image);
        }
    }
    Ok(alone)
}

fn alone_name_of(image: &ImageId) -> String {
    format!("images/{image}/alone")
}

fn name_of(image: &ImageId) -> String {
    format!("images/{image}/manifest")
}

/// Digits that sort by time: seconds since 1970, so that no calendar is needed.
fn stamp(unix_ms: u64) -> String {
    format!("{:011}.{:03}", unix_ms / 1000, unix_ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_in_the_order_of_their_seals_whatever_clocks_say() {
        let id = |name: &str| name.parse::<ImageId>().unwrap();
        let mut all = [
            id("00000000009.000-2.11"),
            id("00000000001.000-10.0"),
            id("00000000002.000-2.9"),
        ];
        all.sort_unstable();
        assert_eq!(all[0], id("00000000002.000-2.9"));
        assert_eq!(all[2], id("00000000001.000-10.0"));
    }

    #[test]
    fn names_of_images_are_plain_and_sort_by_time() {
        assert!("../x".parse::<ImageId>().is_err() && "".parse::<ImageId>().is_err());
        assert!(stamp(999_999_999_999) < stamp(1_000_000_000_000));
        assert!(stamp(1_700_000_000_001).parse::<ImageId>().is_ok());
    }
}
