//! Works in a repository just now: copies and expiries keep out of each other's way.
//!
//! A copy takes pieces for granted that are there, and an expiry removes pieces that no image has. Each puts an object under its
//! own name, and then looks for the other kind's: so at least one of two sees the other. A copy waits, an expiry gives way. Who
//! has not renewed its object for an hour by the store's clock counts as gone, and its object is removed. Who was silent for that
//! long learns it from the same clock, and does not go on.
//!
//! Invariant: a copy that is not gone when its image is complete was seen by every expiry since it began.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use object_store::path::Path as Name;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::Repository;
use crate::error::{Error, Result};

/// How often a work says that it goes on.
const RENEW_EVERY: Duration = Duration::from_secs(60);
/// After how long without a word it counts as gone.
const SILENCE: Duration = Duration::from_secs(3600);
/// How often a copy looks whether an expiry has ended.
const LOOK_EVERY: Duration = Duration::from_secs(1);

const WORKS: &str = "works";

/// Kinds of works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It takes pieces that are there for granted.
    Copy,
    /// It removes pieces.
    Expiry,
}

impl Kind {
    fn prefix(self) -> &'static str {
        match self {
            Kind::Copy => "copy-",
            Kind::Expiry => "expiry-",
        }
    }

    fn other(self) -> Kind {
        match self {
            Kind::Copy => Kind::Expiry,
            Kind::Expiry => Kind::Copy,
        }
    }
}

/// A work under way. It is renewed until it is dropped.
pub(crate) struct Work {
    repository: Repository,
    sign: Arc<Sign>,
    renewing: JoinHandle<()>,
}

/// The object of a work.
struct Sign {
    store: Arc<dyn ObjectStore>,
    name: Name,
    /// When it was renewed, by the store's clock; `None` once that was too late.
    renewed: Mutex<Option<SystemTime>>,
}

impl Sign {
    async fn put(&self) -> Result<SystemTime> {
        self.store.put(&self.name, Vec::new().into()).await?;
        Ok(self.store.head(&self.name).await?.last_modified.into())
    }

    /// Renews it. Returns the time by the store's clock; `None` if it counts as gone.
    async fn renew(&self) -> Result<Option<SystemTime>> {
        let mut renewed = self.renewed.lock().await;
        let Some(last) = *renewed else {
            return Ok(None);
        };
        let now = self.put().await?;
        let silence = now.duration_since(last).unwrap_or_default();
        *renewed = (silence <= SILENCE).then_some(now);
        Ok(*renewed)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

impl Work {
    /// Begins a copy: when no expiry removes anything.
    pub(crate) async fn copy(repository: &Repository) -> Result<Work> {
        let work = Work::begin(repository, Kind::Copy).await?;
        while work.sees_other(Kind::Copy).await? {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(work)
    }

    /// Begins an expiry; `None` while somebody copies.
    pub(crate) async fn expiry(repository: &Repository) -> Result<Option<Work>> {
        let work = Work::begin(repository, Kind::Expiry).await?;
        if work.sees_other(Kind::Expiry).await? {
            work.end().await?;
            return Ok(None);
        }
        Ok(Some(work))
    }

    async fn begin(repository: &Repository, kind: Kind) -> Result<Work> {
        let id = dax::credentials::Nonce::random()?;
        let name = format!("{WORKS}/{}{}", kind.prefix(), hex::encode(&id.0[..8]));
        let sign = Sign {
            store: repository.store.clone(),
            name: Name::from(name),
            renewed: Mutex::new(None),
        };
        *sign.renewed.lock().await = Some(sign.put().await?);
        let sign = Arc::new(sign);
        let renewed = sign.clone();
        let renewing = tokio::spawn(async move {
            loop {
                tokio::time::sleep(RENEW_EVERY).await;
                if let Err(error) = renewed.renew().await {
                    tracing::warn!(%error, "the repository does not hear that work in it goes on");
                }
            }
        });
        Ok(Work {
            repository: repository.clone(),
            sign,
            renewing,
        })
    }

    /// True if somebody of the other kind is at work. Removes what those left who are gone.
    async fn sees_other(&self, kind: Kind) -> Result<bool> {
        let now = self.now().await?;
        let mut is_other = false;
        for work in self.repository.objects(WORKS).await? {
            if !work.name.starts_with(kind.other().prefix()) {
                continue;
            }
            let silence = now.duration_since(work.written).unwrap_or_default();
            match silence > SILENCE {
                true => {
                    let name = format!("{WORKS}/{}", work.name);
                    self.repository.remove(&name).await?;
                }
                false => is_other = true,
            }
        }
        Ok(is_other)
    }

    /// The time by the store's clock. Says that the work goes on.
    ///
    /// # Errors
    /// [`Error::Refused`] if it counts as gone.
    pub(crate) async fn now(&self) -> Result<SystemTime> {
        self.sign.renew().await?.ok_or_else(|| {
            Error::Refused(
                "the repository heard nothing of this work for an hour, and others took it for gone: begin again"
                    .to_owned(),
            )
        })
    }

    /// Ends it.
    pub(crate) async fn end(self) -> Result<()> {
        self.renewing.abort();
        self.repository.remove(self.sign.name.as_ref()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn repository(directory: &tempfile::TempDir) -> Repository {
        Repository::open(directory.path().to_str().unwrap(), None).unwrap()
    }

    /// An hour passes for what a work has put.
    fn age(directory: &tempfile::TempDir, work: &Work) {
        let file = directory.path().join(work.sign.name.as_ref());
        let file = std::fs::File::open(file).unwrap();
        let then = SystemTime::now() - SILENCE - Duration::from_secs(5);
        file.set_modified(then).unwrap();
    }

    #[tokio::test]
    async fn an_expiry_gives_way_and_a_copy_waits() {
        let directory = tempfile::tempdir().unwrap();
        let repository = repository(&directory).await;
        let copy = Work::copy(&repository).await.unwrap();
        let other = Work::copy(&repository).await.unwrap();
        assert!(Work::expiry(&repository).await.unwrap().is_none());
        copy.end().await.unwrap();
        other.end().await.unwrap();
        let expiry = Work::expiry(&repository).await.unwrap().unwrap();
        let waiting = Work::copy(&repository);
        let early = tokio::time::timeout(Duration::from_millis(1500), waiting).await;
        assert!(early.is_err(), "it waits");
        expiry.end().await.unwrap();
        let copy = Work::copy(&repository).await.unwrap();
        assert!(copy.now().await.is_ok());
    }

    #[tokio::test]
    async fn who_was_silent_for_an_hour_is_gone_and_learns_it() {
        let directory = tempfile::tempdir().unwrap();
        let repository = repository(&directory).await;
        let frozen = Work::copy(&repository).await.unwrap();
        age(&directory, &frozen);
        *frozen.sign.renewed.lock().await = Some(SystemTime::now() - SILENCE - SILENCE);
        let expiry = Work::expiry(&repository).await.unwrap();
        assert!(expiry.is_some(), "it does not wait for who is gone");
        assert!(frozen.now().await.is_err(), "and that one does not go on");
        assert!(frozen.now().await.is_err(), "never again");
    }
}
