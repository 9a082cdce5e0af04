//! Works in a repository just now: copies and expiries keep out of each other's way.
//!
//! A copy takes pieces for granted that are there, and an expiry removes pieces that no image has. Each puts an object under its
//! own name, and then looks for the other kind's: so at least one of two sees the other. Both give way, and are tried again. Who
//! has not renewed its object for five minutes by the store's clock counts as gone, and its object is removed. Who was silent for that
//! long learns it from the same clock, and does not go on.
//!
//! Invariant: a copy that is not gone when its image is complete was seen by every expiry since it began.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use object_store::path::Path as Name;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::{Repository, random_name};
use crate::error::{Error, Result};

/// How often a work says that it goes on.
const RENEW_EVERY: Duration = Duration::from_secs(30);
/// After how long without a word it counts as gone.
const SILENCE: Duration = Duration::from_secs(300);

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
    /// Begins a copy.
    ///
    /// # Errors
    /// [`Error::Expiring`] while an expiry removes pieces.
    pub(crate) async fn copy(repository: &Repository) -> Result<Work> {
        let begun = Work::alone(repository, Kind::Copy).await?;
        begun.ok_or(Error::Expiring)
    }

    /// Begins an expiry; `None` while somebody copies.
    pub(crate) async fn expiry(repository: &Repository) -> Result<Option<Work>> {
        Work::alone(repository, Kind::Expiry).await
    }

    async fn alone(repository: &Repository, kind: Kind) -> Result<Option<Work>> {
        let work = Work::begin(repository, kind).await?;
        match work.sees_other(kind).await {
            Ok(false) => Ok(Some(work)),
            seen => {
                work.end().await?;
                seen.map(|_| None)
            }
        }
    }

    async fn begin(repository: &Repository, kind: Kind) -> Result<Work> {
        let name = format!("{WORKS}/{}{}", kind.prefix(), random_name()?);
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
                    tracing::warn!(%error, "cannot renew this work's mark in the repository");
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
                "this work's mark in the repository was not renewed for five minutes, and others removed it: start \
                 again"
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

    /// Minutes pass for what a work has put.
    fn age(directory: &tempfile::TempDir, work: &Work) {
        let file = directory.path().join(work.sign.name.as_ref());
        let file = std::fs::File::open(file).unwrap();
        let then = SystemTime::now() - SILENCE - Duration::from_secs(5);
        file.set_modified(then).unwrap();
    }

    #[tokio::test]
    async fn an_expiry_and_a_copy_give_way_to_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let repository = repository(&directory).await;
        let copy = Work::copy(&repository).await.unwrap();
        let other = Work::copy(&repository).await.unwrap();
        assert!(Work::expiry(&repository).await.unwrap().is_none());
        copy.end().await.unwrap();
        other.end().await.unwrap();
        let expiry = Work::expiry(&repository).await.unwrap().unwrap();
        let early = Work::copy(&repository).await;
        assert!(matches!(early.err(), Some(Error::Expiring)));
        expiry.end().await.unwrap();
        let copy = Work::copy(&repository).await.unwrap();
        assert!(copy.now().await.is_ok());
    }

    #[tokio::test]
    async fn work_that_was_silent_for_long_is_gone_and_learns_it() {
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
