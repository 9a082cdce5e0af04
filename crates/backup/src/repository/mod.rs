//! A repository: objects by name, in a directory or in S3.
//!
//! ```text
//! understudy.json                     whose it is, and its format
//! chunks/<2>/<64 hexadecimal digits>  a piece of a file of an image, by the SHA-256 of its contents
//! images/<time>-<seal>/manifest       what an image consists of
//! changes/<generation>-<generation>    pieces that were written between two images
//! log/<segment>/<from>-<to>           a piece of a segment of the log
//! log/<timeline>.history              the history of a timeline
//! works/<kind>-<id>                   who copies or expires just now
//! tip                                 how far the log was copied
//! expired/<id>                        pieces that no image had when somebody looked
//! drills/<time>                       the result of a drill
//! ```
//!
//! Invariant: what is read is what was written under this name, or it is an error: chunks are named by their contents, and
//! everything else carries a checksum of its name and its contents. With a key, all but the first is encrypted as well.

mod chunk;
mod cipher;
mod object;
mod place;
#[cfg(test)]
mod tests;
pub(crate) mod work;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use coordination::records::Cluster;
use dax::credentials::Secret;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Name;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use serde::{Deserialize, Serialize};

pub use self::chunk::{CHUNK_BYTES, ChunkId};
use self::cipher::Cipher;
use crate::error::{Error, Result};

/// The format that this program writes and reads.
const FORMAT: u32 = 1;
const MARKER: &str = "understudy.json";

/// The database that a repository belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Number of the repository's format.
    pub format: u32,
    /// Random, and part of every checksum and seal: objects of another repository are none of this one.
    pub id: String,
    /// PostgreSQL's name of the database.
    pub system_identifier: u64,
    /// Name of the volume that the database is on.
    pub volume: String,
    /// When the volume was made, Unix milliseconds: one that is made of a backup of it goes other ways.
    pub created_unix_ms: u64,
    /// Which key it is encrypted with; `None` if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_check: Option<String>,
}

/// An object as a list of them shows it.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    /// Its name, without what it was asked for below.
    pub name: String,
    pub bytes: u64,
    /// When it was written, by the store's clock.
    pub written: SystemTime,
}

/// See the module. Clones are the same repository.
#[derive(Clone)]
pub struct Repository {
    store: Arc<dyn ObjectStore>,
    place: String,
    cipher: Option<Arc<Cipher>>,
    /// As soon as the owner was read.
    id: Arc<OnceLock<String>>,
}

impl Repository {
    /// A directory, which must exist, or `s3://bucket/path`, with the secret that it is encrypted with, if it is.
    ///
    /// # Errors
    /// [`Error::Store`] if there is no such directory, [`Error::Refused`] if the place is none.
    pub fn open(place: &str, secret: Option<&Secret>) -> Result<Repository> {
        Ok(Repository {
            store: place::open(place)?,
            place: place.to_owned(),
            cipher: secret.map(|secret| Arc::new(Cipher::new(secret))),
            id: Arc::default(),
        })
    }

    /// One without encryption in a store that a test made.
    #[cfg(test)]
    pub(crate) fn over(store: Arc<dyn ObjectStore>) -> Repository {
        Repository {
            place: store.to_string(),
            store,
            cipher: None,
            id: Arc::default(),
        }
    }

    /// The owner; `None` if the repository is new.
    ///
    /// # Errors
    /// [`Error::NotOurs`] if its format is not known here, or it is encrypted with another key than this one.
    pub async fn owner(&self) -> Result<Option<Owner>> {
        let found = self.store.get(&Name::from(MARKER)).await;
        let bytes = match found {
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            found => found?.bytes().await?,
        };
        let owner: Owner =
            serde_json::from_slice(&bytes).map_err(|error| Error::damaged(MARKER, error))?;
        if owner.format != FORMAT {
            return Err(Error::NotOurs(format!(
                "the repository {} has format {}, and this program knows format {FORMAT}: use the release that wrote it, or a \
                 newer one",
                self.place, owner.format
            )));
        }
        if owner.key_check != self.key_check() {
            let place = &self.place;
            return Err(Error::NotOurs(match (&owner.key_check, &self.cipher) {
                (Some(_), None) => {
                    format!("the repository {place} is encrypted: give its --key-file")
                }
                (None, _) => format!("the repository {place} is not encrypted: give no --key-file"),
                _ => format!(
                    "the repository {place} is encrypted with another key than the one of --key-file"
                ),
            }));
        }
        if *self.id.get_or_init(|| owner.id.clone()) != owner.id {
            return Err(Error::NotOurs(format!(
                "another repository is at {} than before: it was exchanged, or not mounted",
                self.place
            )));
        }
        Ok(Some(owner))
    }

    /// Refuses to go on in the place of a repository that is not there any more.
    pub(crate) async fn is_still_there(&self) -> Result<()> {
        match self.owner().await? {
            Some(_) => Ok(()),
            None => Err(Error::Missing(format!("{MARKER} of {}", self.place))),
        }
    }

    /// A name of an object that no other repository has.
    fn own(&self, name: &str) -> String {
        format!("{} {name}", self.id.get().map_or("", String::as_str))
    }

    fn key_check(&self) -> Option<String> {
        self.cipher.as_ref().map(|cipher| cipher.check())
    }

    /// Makes it this database's, if it is nobody's yet.
    ///
    /// # Errors
    /// [`Error::NotOurs`] if it is another's, or has something in it that is no repository.
    pub async fn belong_to(&self, volume: &str, cluster: &Cluster) -> Result<()> {
        let found = self.owner().await?;
        let id = match &found {
            Some(owner) => owner.id.clone(),
            None => random_name()?,
        };
        let owner = Owner {
            format: FORMAT,
            id: id.clone(),
            system_identifier: cluster.system_identifier,
            volume: volume.to_owned(),
            created_unix_ms: cluster.created_unix_ms,
            key_check: self.key_check(),
        };
        if found.is_none() {
            if self.store.list(None).try_next().await?.is_some() {
                return Err(Error::NotOurs(format!(
                    "{} is not empty, and no repository: give an empty directory",
                    self.place
                )));
            }
            let json = serde_json::to_vec_pretty(&owner).expect("a struct of plain values");
            self.put(&Name::from(MARKER), json.into()).await?;
        }
        match self.owner().await? {
            // Who else began it at the same time has given it its id.
            Some(found)
                if owner
                    == (Owner {
                        id,
                        ..found.clone()
                    }) =>
            {
                Ok(())
            }
            found => Err(Error::NotOurs(format!(
                "the repository {} belongs to another database ({}): give each database its own",
                self.place,
                found.map_or_else(String::new, |other| format!(
                    "volume {}, system identifier {}, made {}",
                    other.volume,
                    other.system_identifier,
                    humantime::format_rfc3339_seconds(
                        SystemTime::UNIX_EPOCH + Duration::from_millis(other.created_unix_ms)
                    )
                ))
            ))),
        }
    }

    /// Writes an object, encrypted if there is a key, unless one of that name is there. Whether it is there since now.
    async fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        let sealed = self.sealed(name, bytes).await?;
        self.put(&Name::from(name), sealed).await
    }

    /// Writes an object, encrypted if there is a key, in the place of one that is there.
    async fn overwrite(&self, name: &str, bytes: Bytes) -> Result<()> {
        let sealed = self.sealed(name, bytes).await?;
        self.store.put(&Name::from(name), sealed.into()).await?;
        Ok(())
    }

    async fn sealed(&self, name: &str, bytes: Bytes) -> Result<Bytes> {
        let Some(cipher) = self.cipher.clone() else {
            return Ok(bytes);
        };
        let name = self.own(name);
        Ok(busy(move || cipher.seal(&name, &bytes)).await??.into())
    }

    async fn put(&self, name: &Name, bytes: Bytes) -> Result<bool> {
        let create = PutOptions::from(PutMode::Create);
        let put = self.store.put_opts(name, bytes.clone().into(), create);
        match put.await {
            Ok(_) => Ok(true),
            // S3 says so as well of one that another is writing, and may not complete.
            Err(object_store::Error::AlreadyExists { .. }) => match self.store.head(name).await {
                Err(object_store::Error::NotFound { .. }) => {
                    self.store.put(name, bytes.into()).await?;
                    Ok(true)
                }
                found => found.map(|_| false).map_err(Error::from),
            },
            // Names say what is in objects, so one that is written twice is the same.
            Err(
                object_store::Error::NotImplemented { .. }
                | object_store::Error::NotSupported { .. },
            ) => {
                self.store.put(name, bytes.into()).await?;
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn get(&self, name: &str) -> Result<Bytes> {
        let found = match self.store.get(&Name::from(name)).await {
            Err(object_store::Error::NotFound { .. }) => {
                return Err(Error::Missing(name.to_owned()));
            }
            found => found?.bytes().await?,
        };
        let Some(cipher) = self.cipher.clone() else {
            return Ok(found);
        };
        let named = self.own(name);
        let opened = busy(move || cipher.open(&named, &found)).await?;
        opened
            .map(Bytes::from)
            .map_err(|why| Error::damaged(name, why))
    }

    /// Objects below a name, in the order of theirs.
    pub(crate) async fn objects(&self, below: &str) -> Result<Vec<Object>> {
        let prefix = Name::from(below);
        let found = self.store.list(Some(&prefix));
        let objects = found.map_ok(|object| Object {
            name: object.location.as_ref()[below.len() + 1..].to_owned(),
            bytes: object.size,
            written: object.last_modified.into(),
        });
        let mut objects: Vec<Object> = objects.try_collect().await?;
        objects.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(objects)
    }

    /// Sets an object aside, where nobody looks for it. False if it was not there.
    pub(crate) async fn set_aside(&self, name: &str) -> Result<bool> {
        let aside = Name::from(format!("damaged/{name}"));
        match self.store.rename(&Name::from(name), &aside).await {
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            moved => Ok(moved.map(|()| true)?),
        }
    }

    /// When an object was written, by the store's clock.
    pub(crate) async fn written(&self, name: &str) -> Result<SystemTime> {
        match self.store.head(&Name::from(name)).await {
            Err(object_store::Error::NotFound { .. }) => Err(Error::Missing(name.to_owned())),
            found => Ok(found?.last_modified.into()),
        }
    }

    /// Names of objects below one.
    pub(crate) async fn names(&self, below: &str) -> Result<Vec<String>> {
        let objects = self.objects(below).await?;
        Ok(objects.into_iter().map(|object| object.name).collect())
    }

    /// Removes objects. Those that are not there are no error.
    pub(crate) async fn remove_all(&self, names: Vec<String>) -> Result<()> {
        let names = names.into_iter().map(|name| Ok(Name::from(name)));
        let mut removed = self.store.delete_stream(stream::iter(names).boxed());
        while let Some(one) = removed.next().await {
            match one {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub(crate) async fn remove(&self, name: &str) -> Result<()> {
        match self.store.delete(&Name::from(name)).await {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            done => Ok(done?),
        }
    }
}

/// A name that nobody else has.
pub(crate) fn random_name() -> Result<String> {
    let random = dax::credentials::Nonce::random()?;
    Ok(hex::encode(&random.0[..16]))
}

/// Does what takes the processor a while where nobody waits for it.
async fn busy<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(std::io::Error::other)
        .map_err(Error::system("a thread ended early"))
}
