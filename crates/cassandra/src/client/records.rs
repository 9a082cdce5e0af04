//! Records: one row each, read and written by quorum.
//!
//! Nobody tells a writer that a newer version is there, so it looks, and writes above what it finds. An owner's
//! version is above those of older epochs anyway: it looks while it writes.
//!
//! Invariant: of one record, a handle begins the next write when the one before has ended. Otherwise a promotion would
//! write what it found above a put that was acknowledged meanwhile, and a put that is repeated above a later one's.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use dax::error::{Error, ErrorKind, Result};
use dax::ids::Version;
use dax::storage::Authority;
use dax::wire::MAX_RECORD_BYTES;
use futures_util::future::try_join;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use super::Inner;
#[cfg(test)]
use crate::simulation::Flaw;

/// Who writes a record, and who waits for that, by name.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits until nobody else writes the record.
    async fn take(&self, name: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock();
            // Whoever writes or waits has its own.
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(name.to_owned()).or_default())
        };
        turn.lock_owned().await
    }
}

impl Inner {
    pub(super) async fn put_record(
        &self,
        name: &str,
        value: Option<Bytes>,
        authority: Authority,
    ) -> Result<()> {
        let bytes = value.as_ref().map_or(0, Bytes::len);
        if bytes > MAX_RECORD_BYTES {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("record {name} of {bytes} bytes is above 1 MiB"),
            ));
        }
        let _turn = self.turn(name).await;
        match authority {
            Authority::Owner => self.put_owned(name, value.as_ref()).await,
            Authority::Node => {
                let (found, _) = self.find_record(name).await?;
                let next = {
                    let versions = &mut self.state.lock().writer.handle.node_records;
                    versions.next(name, value.as_ref(), found)
                };
                self.write_record(name, next, value.as_ref()).await
            }
        }
    }

    /// Any version of the epoch is above what owners of older ones wrote. Only a node may have gone higher, which
    /// a look at the same time tells.
    async fn put_owned(&self, name: &str, value: Option<&Bytes>) -> Result<()> {
        let version = self.next_version()?;
        let writing = Box::pin(self.write_record(name, version, value));
        let looking = Box::pin(self.find_record(name));
        let ((found, _), ()) = try_join(looking, writing).await?;
        match found > version {
            true => self.write_owned(name, found, value).await,
            false => self.pass_gate().await,
        }
    }

    /// Under the epoch: above what was found, and acknowledged only through the gate.
    async fn write_owned(&self, name: &str, found: Version, value: Option<&Bytes>) -> Result<()> {
        self.observe(found)?;
        let version = {
            let mut state = self.state.lock();
            state.writer.handle.skip_past(found);
            state.writer.next_version()?
        };
        self.write_record(name, version, value).await?;
        self.pass_gate().await
    }

    async fn write_record(
        &self,
        name: &str,
        version: Version,
        value: Option<&Bytes>,
    ) -> Result<()> {
        self.persist(|| self.environment.write_record(name, version, value))
            .await
    }

    /// The newest version and value that a quorum has.
    async fn find_record(&self, name: &str) -> Result<(Version, Option<Bytes>)> {
        self.persist(|| self.environment.read_record(name)).await
    }

    pub(super) async fn get_record(&self, name: &str) -> Result<Option<Bytes>> {
        let (_, value) = self.find_record(name).await?;
        Ok(value)
    }

    /// Writes what is there again in this epoch, also that there is nothing (C2).
    pub(super) async fn promote_record(&self, name: &str) -> Result<Option<Bytes>> {
        self.check_writer()?;
        let _turn = self.turn(name).await;
        let (found, value) = self.find_record(name).await?;
        #[cfg(test)]
        if self.has_flaw(Flaw::PromotionWithoutRewrite) {
            self.pass_gate().await?;
            return Ok(value);
        }
        self.write_owned(name, found, value.as_ref()).await?;
        Ok(value)
    }

    pub(super) async fn list_records(&self, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        self.persist(|| self.environment.list_records(prefix)).await
    }

    async fn turn(&self, name: &str) -> Option<OwnedMutexGuard<()>> {
        #[cfg(test)]
        if self.has_flaw(Flaw::PutsOverlap) {
            return None;
        }
        Some(self.turns.take(name).await)
    }
}
