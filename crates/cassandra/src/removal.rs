//! Removing a volume for good. Repeating finishes what was interrupted.
//!
//! ```text
//!   marked as removed ──▶ fenced ──▶ records, and with them all claims, go ──▶ who may still read ends ──▶ blocks go
//! ```
//!
//! Invariant: nobody takes a block that went for one that is absent.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dax::error::Result;
use dax::ids::{Epoch, Version, VolumeName};
use dax::storage::Protocol;
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::client::environment::{Delete, Environment, Look};
use crate::config::Config;
use crate::connect::connect;
use crate::driver::Driver;
use crate::lease::{Change, Row, Terms};
use crate::row::{self, Chunk};
use crate::schema::{Durability, Replication};
use crate::setup::{Rows, execute, insist, keyspace_facts};
use crate::volumes;

/// Partitions that are deleted at a time.
const AT_A_TIME: usize = 16;
/// A standby stands on a claim that it has seen for 10 s, and so does an owner on its lease, mostly for less.
const READERS_END: Duration = Duration::from_secs(12);
/// Above every version, also of what is still on its way: nobody writes under this name again.
const LAST: Version = Version {
    epoch: Epoch::MAX,
    seq: row::SEQ_END - 1,
};

/// Removes the volume that `config` names, for good: its name is not used again. Whoever owned it is fenced. Repeating is
/// harmless, and finishes what was interrupted. Waits while Cassandra does not answer.
///
/// # Errors
/// `Conflict` if another volume is laid over it, which the message names; `Unavailable`, `Denied`.
pub async fn remove_volume(config: &Config) -> Result<()> {
    let session = Arc::new(connect(config).await?);
    let (keyspace, volume) = (&config.keyspace, &config.volume);
    if keyspace_facts(&session, keyspace).await?.is_none() {
        return Ok(());
    }
    let rows = Rows {
        session: &session,
        keyspace,
        replication: String::new(),
    };
    let parent = volumes::remove(&rows, volume).await?;
    let kind = (Protocol::default(), Durability::Quorum);
    let replication = Replication::even([], 0);
    let driver = Driver::on(Arc::clone(&session), config, kind, replication).await?;
    let last = fence(&driver).await?;
    let timestamp = row::timestamp(LAST);
    let text =
        format!("DELETE FROM {keyspace}.records USING TIMESTAMP {timestamp} WHERE volume = ?");
    execute(&session, &text, (volume.as_str(),)).await?;
    if !last.released {
        tokio::time::sleep(READERS_END.max(Terms::timeout(last.lease))).await;
    }
    give_back(&driver, volume).await?;
    match parent {
        Some(parent) => volumes::disown(&rows, &parent, volume).await,
        None => Ok(()),
    }
}

/// Takes the last epoch that there is. Its row says whether the volume had been given up in order.
async fn fence(driver: &Driver) -> Result<Row> {
    loop {
        let expected = insist(|| driver.look(Look::Settled)).await?;
        let before = match &expected {
            Some(row) if row.epoch == Epoch::MAX => return Ok(row.clone()),
            before => before.as_ref(),
        };
        let new = Row {
            epoch: Epoch::MAX,
            owner: "removed".to_owned(),
            lease: before.map_or(Duration::ZERO, |row| row.lease),
            renewals: 0,
            released: before.is_none_or(|row| row.released),
        };
        let change = Change { expected, new };
        insist(|| driver.change(&change)).await?;
    }
}

pub(crate) async fn give_back(driver: &Driver, volume: &VolumeName) -> Result<()> {
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut each = |chunk| chunks.push(chunk);
    driver.scan_chunks(volume, &mut each).await?;
    let files: BTreeSet<_> = chunks.iter().map(|(file, _)| *file).collect();
    let delete = |what| async move { insist(|| driver.delete(what, LAST)).await };
    for deletes in [
        chunks.into_iter().map(Delete::Chunk).collect::<Vec<_>>(),
        files.into_iter().map(Delete::Notes).collect(),
    ] {
        stream::iter(deletes.into_iter().map(delete))
            .buffer_unordered(AT_A_TIME)
            .try_collect::<()>()
            .await?;
    }
    Ok(())
}
