//! The record on the storage tier: who runs the machine, written by the owner of the highest epoch.
//!
//! Invariant: a handle that was fenced is never used again; each epoch is owned with a new one. While an epoch is owned the volume
//! is scrubbed: a zone that has lost its disk would not count again otherwise.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use dax::error::{Error, ErrorKind, Result};
use dax::ids::NodeName;
use dax::scrub::{Scrubber, Scrubbing};
use dax::storage::{Authority, Storage};
use tokio::sync::Mutex;

use crate::core::Record;

const RECORD: &str = "vm/machine";
/// Who ran it since when, by epoch.
const HISTORY: &str = "vm/history/";

/// Opens the volume.
#[async_trait]
pub trait Open: Send + Sync + 'static {
    /// A handle that owns no epoch.
    async fn open(&self) -> Result<Arc<dyn Storage>>;
}

pub struct Zones {
    opener: Box<dyn Open>,
    name: NodeName,
    storage: Mutex<Option<Arc<dyn Storage>>>,
    /// For as long as an epoch is owned.
    scrubbing: parking_lot::Mutex<Option<Scrubbing>>,
}

fn parse(record: Option<Bytes>) -> Result<Option<Record>> {
    let wrong = |error: serde_json::Error| {
        Error::new(
            ErrorKind::Corrupt,
            format!("invalid record of the virtual machine in the zones: {error}"),
        )
    };
    record
        .map(|record| serde_json::from_slice(&record).map_err(wrong))
        .transpose()
}

impl Zones {
    pub fn new(opener: Box<dyn Open>, name: NodeName) -> Zones {
        Zones {
            opener,
            name,
            storage: Mutex::default(),
            scrubbing: parking_lot::Mutex::default(),
        }
    }

    async fn storage(&self) -> Result<Arc<dyn Storage>> {
        let mut storage = self.storage.lock().await;
        if let Some(storage) = &*storage {
            return Ok(storage.clone());
        }
        let opened = self.opener.open().await?;
        *storage = Some(opened.clone());
        Ok(opened)
    }

    /// What the record says. No handle of this one's is needed that owns an epoch.
    pub async fn read(&self) -> Result<Option<Record>> {
        parse(self.storage().await?.get_record(RECORD).await?)
    }

    /// Owns the next epoch, and reads the record in it.
    pub async fn own(&self) -> Result<(u32, Option<Record>)> {
        *self.scrubbing.lock() = None;
        let used = self
            .storage
            .lock()
            .await
            .take_if(|storage| storage.epoch().is_some());
        if let Some(used) = used
            && let Err(error) = used.release().await
        {
            tracing::debug!(%error, "the epoch before was not released");
        }
        let storage = self.storage().await?;
        let epoch = storage.own_epoch(&self.name).await?;
        let scrubber = Scrubber::of_all_files(Arc::clone(&storage));
        *self.scrubbing.lock() = Some(scrubber.spawn());
        Ok((epoch.0, parse(storage.promote_record(RECORD).await?)?))
    }

    /// Writes the record in the epoch that is owned.
    pub async fn write(&self, record: &Record, what: &str) -> Result<()> {
        let storage = self.storage().await?;
        let bytes = serde_json::to_vec(record)
            .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
        storage
            .put_record(RECORD, Bytes::from(bytes), Authority::Owner)
            .await?;
        let entry = format!("{HISTORY}{:08}", record.epoch);
        let noted = storage
            .put_record(&entry, Bytes::from(what.to_owned()), Authority::Owner)
            .await;
        if let Err(error) = noted {
            tracing::debug!(%error, "what happened was not noted");
        }
        Ok(())
    }

    /// A handle that failed is not used again.
    pub async fn forget(&self) {
        *self.scrubbing.lock() = None;
        self.storage.lock().await.take();
    }

    /// What was noted, oldest first.
    pub async fn history(&self) -> Result<Vec<String>> {
        // Not with the handle that may have been fenced.
        let records = self.opener.open().await?.list_records(HISTORY).await?;
        let text = |bytes: Bytes| String::from_utf8_lossy(&bytes).into_owned();
        Ok(records
            .into_iter()
            .map(|(_, record)| text(record))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Who;
    use dax::memory::MemoryCluster;
    use dax::storage::VolumeSettings;

    struct Tier(Arc<MemoryCluster>);

    #[async_trait]
    impl Open for Tier {
        async fn open(&self) -> Result<Arc<dyn Storage>> {
            Ok(self.0.client())
        }
    }

    #[tokio::test]
    async fn host_that_lost_the_epoch_writes_no_record() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let zones = |name: &str| {
            Zones::new(
                Box::new(Tier(cluster.clone())),
                NodeName::new(name).unwrap(),
            )
        };
        let record = |epoch, name: &str| Record {
            epoch,
            active: Who {
                name: name.to_owned(),
                life: 1,
            },
            standby: None,
            unsynced_in: None,
        };
        let (a, b) = (zones("a"), zones("b"));
        let (epoch, found) = a.own().await.unwrap();
        assert_eq!(found, None);
        a.write(&record(epoch, "a"), "{}").await.unwrap();
        let (higher, found) = b.own().await.unwrap();
        assert_eq!(found, Some(record(epoch, "a")));
        let error = a.write(&record(epoch, "a"), "{}").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced);
        b.write(&record(higher, "b"), "{}").await.unwrap();
        assert_eq!(a.own().await.unwrap().1, Some(record(higher, "b")));
        assert_eq!(b.history().await.unwrap().len(), 2);
    }
}
