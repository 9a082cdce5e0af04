//! The log on the storage tier: a file of a volume of its own, written by the owner of the highest epoch.
//!
//! Invariant: a handle that was fenced is never used again; whoever owns an epoch next does so with a new one. While an epoch is
//! owned the volume is scrubbed: a zone that has lost its disk would not count again otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use dax::error::{Error, ErrorKind, Result};
use dax::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, NodeName};
use dax::scrub::{Scrubber, Scrubbing};
use dax::storage::{Authority, Storage, SyncScope};
use futures_util::StreamExt;
use futures_util::stream;
use parking_lot::Mutex;

use crate::core::log::{self, Identity, Position};
use crate::core::record::{Number, Record};

/// The log's file. Nothing else is in the volume.
const LOG: FileId = FileId(1);
/// Where the log begins.
const BEGINNING: &str = "mirror/log";
/// Which log it is. Not with its beginning, which moves: this is written once.
const IDENTITY: &str = "mirror/identity";
/// Who served since when, by epoch.
const HISTORY: &str = "mirror/history/";
/// Blocks that are read ahead.
const READ_AHEAD: usize = 64;
/// Blocks that are given back at a time.
const TRIM_BLOCKS: u64 = 256;

/// Opens the volume.
#[async_trait]
pub trait Open: Send + Sync + 'static {
    /// A handle that owns no epoch.
    async fn open(&self) -> Result<Arc<dyn Storage>>;
}

#[derive(Default)]
struct State {
    storage: Option<Arc<dyn Storage>>,
    /// Where the next batch goes.
    end: Position,
    /// Where each batch begins.
    batches: BTreeMap<Number, Position>,
    /// Where the log is said to begin.
    first: Position,
    /// For as long as an epoch is owned.
    scrubbing: Option<Scrubbing>,
}

/// The log.
pub struct Zones {
    opener: Box<dyn Open>,
    name: NodeName,
    state: Mutex<State>,
}

fn wrong(error: log::LogError) -> Error {
    Error::new(ErrorKind::Corrupt, error.to_string())
}

impl Zones {
    pub fn new(opener: Box<dyn Open>, name: NodeName) -> Zones {
        Zones {
            opener,
            name,
            state: Mutex::default(),
        }
    }

    /// A handle; a new one if the last was used up.
    async fn storage(&self) -> Result<Arc<dyn Storage>> {
        if let Some(storage) = self.state.lock().storage.clone() {
            return Ok(storage);
        }
        let storage = self.opener.open().await?;
        self.state.lock().storage = Some(storage.clone());
        Ok(storage)
    }

    /// The next epoch is owned with a new handle.
    pub fn forget(&self) {
        self.take();
    }

    /// The handle, which nobody uses from now on, the scrub neither.
    fn take(&self) -> Option<Arc<dyn Storage>> {
        let mut state = self.state.lock();
        state.scrubbing = None;
        state.storage.take()
    }

    /// Gives the epoch up.
    pub async fn release(&self) {
        if let Some(storage) = self.take()
            && let Err(error) = storage.release().await
        {
            tracing::debug!(%error, "the epoch was not released");
        }
    }

    /// The number of the first record that the log has, and which log it is, if it says so.
    pub async fn begins(&self) -> Result<(Number, Option<Identity>)> {
        let storage = self.storage().await?;
        let named = identity(storage.get_record(IDENTITY).await?)?;
        let first = position(storage.get_record(BEGINNING).await?)?;
        let block = storage.read(BlockKey::new(LOG, first.block), Generation::SINGLE);
        if let Some(block) = block.await? {
            log::check_version(&block.data).map_err(wrong)?;
        }
        Ok((first.number, named))
    }

    /// Which log it is, if it says so: what no later owner finds to be otherwise.
    pub async fn identity(&self) -> Result<Option<Identity>> {
        let storage = self.storage().await?;
        identity(storage.promote_record(IDENTITY).await?)
    }

    /// From now on it is this one.
    pub async fn name(&self, log: Identity) -> Result<()> {
        let storage = self.storage().await?;
        let record = Bytes::from(log.to_string());
        storage.put_record(IDENTITY, record, Authority::Owner).await
    }

    /// True if nobody has ever written the log.
    pub async fn is_new(&self) -> Result<bool> {
        let storage = self.storage().await?;
        Ok(storage.accepted_epoch().await?.epoch == Epoch::NONE)
    }

    /// Writes down that this manager serves in its epoch.
    pub async fn remember(&self, epoch: u32, what: &str) -> Result<()> {
        let storage = self.storage().await?;
        let name = format!("{HISTORY}{epoch:08}");
        storage
            .put_record(&name, Bytes::from(what.to_owned()), Authority::Owner)
            .await
    }

    /// What was written down, oldest first.
    pub async fn history(&self) -> Result<Vec<String>> {
        let storage = self.storage().await?;
        let records = storage.list_records(HISTORY).await?;
        Ok(records
            .into_iter()
            .map(|(_, record)| String::from_utf8_lossy(&record).into_owned())
            .collect())
    }

    /// Owns the next epoch.
    pub async fn own(&self) -> Result<u32> {
        if self
            .state
            .lock()
            .storage
            .as_ref()
            .is_some_and(|storage| storage.epoch().is_some())
        {
            self.forget();
        }
        let storage = self.storage().await?;
        let epoch = storage.own_epoch(&self.name).await?;
        self.state.lock().scrubbing = Some(Scrubber::of_all_files(storage).spawn());
        Ok(epoch.0)
    }

    /// Reads all of the log, promoting it; `take` is given what each batch has.
    pub async fn read(&self, mut take: impl FnMut(Vec<Record>)) -> Result<Number> {
        let storage = self.storage().await?;
        let first = position(storage.promote_record(BEGINNING).await?)?;
        let mut batches = BTreeMap::new();
        let mut at = first;
        let reader = storage.clone();
        let mut blocks = stream::iter(first.block..)
            .map(move |block| {
                let storage = reader.clone();
                async move { storage.read_promote(BlockKey::new(LOG, block)).await }
            })
            .buffered(READ_AHEAD);
        loop {
            let Some(head) = blocks.next().await.transpose()?.flatten() else {
                break;
            };
            let Some(count) = log::blocks_of_batch(at, &head.data) else {
                break;
            };
            let mut batch = vec![head.data];
            for _ in 1..count {
                let block = blocks.next().await.transpose()?.flatten();
                batch.extend(block.map(|block| block.data));
            }
            let Some((records, next)) = log::read(at, &batch).map_err(wrong)? else {
                break;
            };
            batches.insert(at.number, at);
            at = next;
            take(records);
        }
        let mut state = self.state.lock();
        state.first = first;
        state.end = at;
        state.batches = batches;
        Ok(Number(at.number.0 - 1))
    }

    /// Makes a batch durable.
    pub async fn append(&self, records: &[Record]) -> Result<()> {
        let storage = self.storage().await?;
        let at = self.state.lock().end;
        let block_bytes = storage.settings().block_size_bytes as usize;
        let (blocks, next) = log::write(at, records, block_bytes).map_err(wrong)?;
        storage.write_room(blocks.len() * block_bytes).await?;
        for (offset, block) in blocks.into_iter().enumerate() {
            let key = BlockKey::new(LOG, at.block + offset as u64);
            storage.write(key, Generation::SINGLE, Bytes::from(block))?;
        }
        storage.csync(SyncScope::File(LOG)).await?;
        let mut state = self.state.lock();
        state.batches.insert(at.number, at);
        state.end = next;
        Ok(())
    }

    /// Proves that the epoch stands.
    pub async fn confirm(&self) -> Result<u32> {
        let storage = self.storage().await?;
        Ok(storage.confirm().await?.0)
    }

    /// Durable records of the batch that has `from`; `None` if the log begins later.
    pub async fn batch(&self, from: Number) -> Result<Option<Vec<Record>>> {
        let storage = self.storage().await?;
        let (at, end) = {
            let state = self.state.lock();
            let at = state.batches.range(..=from).next_back().map(|(_, at)| *at);
            (at, state.end)
        };
        if from >= end.number {
            return Ok(Some(Vec::new()));
        }
        let Some(at) = at else {
            return Ok(None);
        };
        let read = |block| storage.read(BlockKey::new(LOG, block), Generation::SINGLE);
        let gone = || {
            Error::new(
                ErrorKind::Corrupt,
                format!("the log's record {from} is gone"),
            )
        };
        let head = read(at.block).await?.ok_or_else(gone)?;
        let count = log::blocks_of_batch(at, &head.data).ok_or_else(gone)?;
        let mut blocks = vec![head.data];
        for block in at.block + 1..at.block + count {
            blocks.push(read(block).await?.ok_or_else(gone)?.data);
        }
        let (records, _) = log::read(at, &blocks).map_err(wrong)?.ok_or_else(gone)?;
        Ok(Some(
            records
                .into_iter()
                .filter(|record| record.number >= from)
                .collect(),
        ))
    }

    /// Gives back what nobody needs: batches that end before `before`.
    pub async fn trim(&self, before: Number) -> Result<()> {
        let storage = self.storage().await?;
        let first = {
            let state = self.state.lock();
            let next = state
                .batches
                .range(..=before)
                .next_back()
                .map(|(_, at)| *at);
            let Some(next) = next.filter(|next| next.block >= state.first.block + TRIM_BLOCKS)
            else {
                return Ok(());
            };
            next
        };
        let record = serde_json::to_vec(&first)
            .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
        storage
            .put_record(BEGINNING, Bytes::from(record), Authority::Owner)
            .await?;
        {
            let mut state = self.state.lock();
            state.first = first;
            state.batches = state.batches.split_off(&first.number);
        }
        storage
            .remove_blocks_before(LOG, BlockIndex(first.block))
            .await
    }
}

fn identity(record: Option<Bytes>) -> Result<Option<Identity>> {
    let Some(record) = record else {
        return Ok(None);
    };
    let read = Identity::parse(&String::from_utf8_lossy(&record));
    let wrong = || {
        Error::new(
            ErrorKind::Corrupt,
            "the log's identity is not a number in hexadecimal",
        )
    };
    read.map(Some).ok_or_else(wrong)
}

fn position(record: Option<Bytes>) -> Result<Position> {
    let Some(record) = record else {
        return Ok(Position::BEGINNING);
    };
    let read = serde_json::from_slice(&record);
    read.map_err(|error| {
        Error::new(
            ErrorKind::Corrupt,
            format!("the first position of the log cannot be read: {error}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::class::Claims;
    use dax::memory::MemoryCluster;
    use dax::storage::VolumeSettings;

    struct Memory(Arc<MemoryCluster>);

    #[async_trait]
    impl Open for Memory {
        async fn open(&self) -> Result<Arc<dyn Storage>> {
            Ok(self.0.client())
        }
    }

    fn record(number: u64, bytes: usize) -> Record {
        Record::of(number, Claims::default(), bytes)
    }

    fn zones(cluster: &Arc<MemoryCluster>, name: &str) -> Zones {
        Zones::new(
            Box::new(Memory(cluster.clone())),
            NodeName::new(name).expect("valid"),
        )
    }

    async fn numbers(zones: &Zones) -> Vec<u64> {
        let mut numbers = Vec::new();
        let last = zones
            .read(|records| numbers.extend(records.iter().map(|record| record.number.0)))
            .await;
        assert_eq!(
            last.expect("it is there").0,
            numbers.last().copied().unwrap_or(0)
        );
        numbers
    }

    #[tokio::test]
    async fn the_next_owner_reads_what_was_durable_and_the_last_one_writes_nothing_more() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let (one, other) = (zones(&cluster, "a"), zones(&cluster, "b"));
        one.own().await.expect("nobody else does");
        assert!(numbers(&one).await.is_empty());
        one.append(&[record(1, 10), record(2, 20_000)])
            .await
            .expect("its epoch stands");
        one.append(&[record(3, 10)])
            .await
            .expect("its epoch stands");
        other.own().await.expect("it is higher");
        assert_eq!(numbers(&other).await, [1, 2, 3]);
        let error = one
            .append(&[record(4, 10)])
            .await
            .expect_err("its epoch is over");
        assert_eq!(error.kind(), ErrorKind::Fenced);
        other
            .append(&[record(4, 11)])
            .await
            .expect("its epoch stands");
        one.forget();
        one.own().await.expect("it is higher");
        assert_eq!(numbers(&one).await, [1, 2, 3, 4]);
        let batch = one
            .batch(Number(2))
            .await
            .expect("it is there")
            .expect("not trimmed");
        assert_eq!(
            batch
                .iter()
                .map(|record| record.number.0)
                .collect::<Vec<_>>(),
            [2]
        );
    }

    #[tokio::test]
    async fn a_log_is_named_by_its_owner_and_keeps_its_name() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let (one, other) = (zones(&cluster, "a"), zones(&cluster, "b"));
        one.own().await.expect("nobody else does");
        assert_eq!(one.identity().await.expect("it can be asked"), None);
        other.own().await.expect("it is higher");
        one.name(Identity(1)).await.expect_err("its epoch is over");
        assert_eq!(other.identity().await.expect("it can be asked"), None);
        other.name(Identity(2)).await.expect("its epoch stands");
        numbers(&other).await;
        for number in 1..=400 {
            let appended = other.append(&[record(number, 10)]).await;
            appended.expect("its epoch stands");
        }
        other.trim(Number(300)).await.expect("its epoch stands");
        let one = zones(&cluster, "a");
        let found = (Number(300), Some(Identity(2)));
        assert_eq!(one.begins().await.expect("it is there"), found);
        one.own().await.expect("it is higher");
        let named = one.identity().await.expect("it can be asked");
        assert_eq!(named, Some(Identity(2)));
    }

    #[tokio::test]
    async fn what_nobody_needs_is_given_back() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let one = zones(&cluster, "a");
        one.own().await.expect("nobody else does");
        numbers(&one).await;
        for number in 1..=400 {
            one.append(&[record(number, 10)])
                .await
                .expect("its epoch stands");
        }
        one.trim(Number(100)).await.expect("its epoch stands");
        let begins = |(first, _): (Number, Option<Identity>)| first;
        let first = one.begins().await.map(begins);
        assert_eq!(first.expect("it is there"), Number(1));
        one.trim(Number(300)).await.expect("its epoch stands");
        let first = one.begins().await.map(begins);
        assert_eq!(first.expect("it is there"), Number(300));
        assert_eq!(one.batch(Number(299)).await.expect("it can be asked"), None);
        let other = zones(&cluster, "b");
        other.own().await.expect("it is higher");
        assert_eq!(numbers(&other).await, (300..=400).collect::<Vec<_>>());
    }
}
