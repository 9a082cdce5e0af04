//! The two sides, and how they are timed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use cassandra::{Client, Config, create_volume};
use dax::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, NodeName, VolumeName};
use dax::storage::{Storage, SyncScope, VolumeSettings};
use tokio::task::JoinSet;

use super::Load;
use super::driver::Driver;

/// Both sides' keyspace.
pub(super) const KEYSPACE: &str = "understudy";
/// The data centre that clients are in.
pub(super) const HERE: &str = "dc1";
/// Blocks of each client: eight partitions.
const BLOCKS: u64 = 1024;

/// Who does the work.
#[derive(Debug, Clone)]
pub(super) enum Side {
    Ours(Ours),
    Driver(Driver),
}

/// The block path.
#[derive(Debug, Clone)]
pub(super) struct Ours {
    client: Arc<Client>,
    epoch: Epoch,
}

impl Ours {
    /// Makes the keyspace and a volume, and owns it.
    pub(super) async fn open(contact_points: Vec<String>) -> anyhow::Result<Ours> {
        let volume = VolumeName::new("bench")?;
        let mut config = Config::new(contact_points, KEYSPACE, volume)?;
        config.data_centre = Some(HERE.to_owned());
        create_volume(&config, &VolumeSettings::default()).await?;
        let client = Client::connect(config).await?;
        let epoch = client.own_epoch(&NodeName::new("bench")?).await?;
        Ok(Ours { client, epoch })
    }

    fn key(&self, client: u16, block: u64) -> BlockKey {
        BlockKey {
            file: FileId::new(self.epoch, u64::from(client) + 1),
            block: BlockIndex(block),
        }
    }

    async fn commit(&self, client: u16, block: u64, data: Bytes) -> anyhow::Result<()> {
        let key = self.key(client, block);
        self.client.write(key, Generation::SINGLE, data)?;
        Ok(self.client.csync(SyncScope::File(key.file)).await?)
    }

    async fn read(&self, client: u16, block: u64) -> anyhow::Result<()> {
        let found = self
            .client
            .read(self.key(client, block), Generation::SINGLE);
        found.await?.context("a block is not there").map(drop)
    }
}

impl Side {
    async fn act(&self, load: Load, client: u16, block: u64) -> anyhow::Result<()> {
        match (self, load) {
            (Side::Ours(side), Load::Commit) => side.commit(client, block, contents()).await,
            (Side::Ours(side), Load::Read) => side.read(client, block).await,
            (Side::Driver(side), Load::Commit) => side.commit(client, block, contents()).await,
            (Side::Driver(side), Load::Read) => side.read(client, block).await,
        }
    }
}

/// A block that does not compress well.
fn contents() -> Bytes {
    let mut block = vec![0; 8192];
    rand::fill(&mut block[..]);
    block.into()
}

/// One run of one side.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub per_second: f64,
    /// In order.
    pub latencies_us: Vec<u32>,
}

impl Run {
    /// The latency that this share of the operations had at most.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        let last = self.latencies_us.len().saturating_sub(1);
        let at = (last as f64 * share).round() as usize;
        let found = self.latencies_us.get(at).copied();
        f64::from(found.unwrap_or_default()) / 1000.0
    }
}

/// Lets clients work for so long.
pub(super) async fn run(
    side: &Side,
    load: Load,
    clients: u16,
    length: Duration,
) -> anyhow::Result<Run> {
    if load == Load::Read {
        fill(side, clients).await?;
    }
    let began = Instant::now();
    let mut working = JoinSet::new();
    for client in 0..clients {
        working.spawn(work(side.clone(), load, client, began + length));
    }
    let mut latencies_us = Vec::new();
    while let Some(worked) = working.join_next().await {
        latencies_us.extend(worked.context("a client is gone")??);
    }
    let per_second = latencies_us.len() as f64 / began.elapsed().as_secs_f64();
    latencies_us.sort_unstable();
    Ok(Run {
        per_second,
        latencies_us,
    })
}

async fn work(side: Side, load: Load, client: u16, until: Instant) -> anyhow::Result<Vec<u32>> {
    let mut latencies_us = Vec::new();
    for number in 0u64.. {
        let began = Instant::now();
        if began >= until {
            break;
        }
        let block = match load {
            Load::Commit => number % BLOCKS,
            Load::Read => rand::random_range(0..BLOCKS),
        };
        side.act(load, client, block).await?;
        latencies_us.push(began.elapsed().as_micros() as u32);
    }
    Ok(latencies_us)
}

/// Every client's blocks are there.
async fn fill(side: &Side, clients: u16) -> anyhow::Result<()> {
    let mut filling = JoinSet::new();
    for client in 0..clients {
        let side = side.clone();
        filling.spawn(async move {
            for block in 0..BLOCKS {
                side.act(Load::Commit, client, block).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(filled) = filling.join_next().await {
        filled.context("a client is gone")??;
    }
    Ok(())
}
