//! A repository: objects by name, in a directory.
//!
//! ```text
//! understudy.json                     whose it is, and its format
//! chunks/<2>/<64 hexadecimal digits>  a piece of a file of an image, by the SHA-256 of its contents
//! images/<time>-<seal>/manifest       what an image consists of
//! log/<segment>/<from>-<to>           a piece of a segment of the log
//! log/<timeline>.history              the history of a timeline
//! ```
//!
//! Invariant: what is read is what was written under this name, or it is an error: chunks are named by their contents, and
//! everything else carries a checksum of its name and its contents.

mod chunk;
mod object;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Name;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use serde::{Deserialize, Serialize};

pub use self::chunk::{CHUNK_BYTES, ChunkId};
use crate::error::{Error, Result};

/// The format that this program writes and reads.
const FORMAT: u32 = 1;
const MARKER: &str = "understudy.json";

/// The database that a repository belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Of the repository.
    pub format: u32,
    /// PostgreSQL's name of the database.
    pub system_identifier: u64,
    /// The volume's name.
    pub volume: String,
}

/// See the module. Clones are the same repository.
#[derive(Clone)]
pub struct Repository {
    store: Arc<dyn ObjectStore>,
    place: String,
}

impl Repository {
    /// A directory. It must exist.
    ///
    /// # Errors
    /// [`Error::Store`] if there is none.
    pub fn in_directory(directory: &Path) -> Result<Repository> {
        let store = LocalFileSystem::new_with_prefix(directory)?.with_fsync(true);
        Ok(Repository {
            store: Arc::new(store),
            place: directory.display().to_string(),
        })
    }

    /// The owner; `None` if the repository is new.
    ///
    /// # Errors
    /// [`Error::Refused`] if its format is not known here.
    pub async fn owner(&self) -> Result<Option<Owner>> {
        let found = self.store.get(&Name::from(MARKER)).await;
        let bytes = match found {
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            found => found?.bytes().await?,
        };
        let owner: Owner =
            serde_json::from_slice(&bytes).map_err(|error| Error::damaged(MARKER, error))?;
        if owner.format != FORMAT {
            return Err(Error::Refused(format!(
                "the repository {} has format {}, and this program knows format {FORMAT}: use the release that wrote it, or a \
                 newer one",
                self.place, owner.format
            )));
        }
        Ok(Some(owner))
    }

    /// Makes it this database's, if it is nobody's yet.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is another's, or has something in it that is no repository.
    pub async fn belong_to(&self, system_identifier: u64, volume: &str) -> Result<()> {
        let owner = Owner {
            format: FORMAT,
            system_identifier,
            volume: volume.to_owned(),
        };
        if self.owner().await?.is_none() {
            if self.store.list(None).try_next().await?.is_some() {
                return Err(Error::Refused(format!(
                    "{} is not empty, and no repository: give an empty directory",
                    self.place
                )));
            }
            let json = serde_json::to_vec_pretty(&owner).expect("a struct of plain values");
            self.create(&Name::from(MARKER), json.into()).await?;
        }
        match self.owner().await? {
            Some(found) if found == owner => Ok(()),
            found => Err(Error::Refused(format!(
                "the repository {} belongs to another database ({}): give each database its own",
                self.place,
                found.map_or_else(String::new, |other| format!(
                    "volume {}, system identifier {}",
                    other.volume, other.system_identifier
                ))
            ))),
        }
    }

    /// Writes an object, unless one of that name is there. Whether it is there since now.
    async fn create(&self, name: &Name, bytes: Bytes) -> Result<bool> {
        let options = PutOptions::from(PutMode::Create);
        match self.store.put_opts(name, bytes.into(), options).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn get(&self, name: &Name) -> Result<Bytes> {
        match self.store.get(name).await {
            Err(object_store::Error::NotFound { .. }) => Err(Error::Missing(name.to_string())),
            found => Ok(found?.bytes().await?),
        }
    }

    /// Names of objects below one, without it.
    pub(crate) async fn names(&self, below: &str) -> Result<Vec<String>> {
        let prefix = Name::from(below);
        let found = self.store.list(Some(&prefix));
        let names = found.map_ok(|object| {
            let name = object.location.to_string();
            name[below.len() + 1..].to_owned()
        });
        let mut names: Vec<String> = names.try_collect().await?;
        names.sort_unstable();
        Ok(names)
    }

    pub(crate) async fn remove(&self, name: &str) -> Result<()> {
        match self.store.delete(&Name::from(name)).await {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            done => Ok(done?),
        }
    }
}
